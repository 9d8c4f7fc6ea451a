"""The two clients: the same methods, one crossing per operation, exits that finish."""

from __future__ import annotations

import asyncio
import functools
import inspect
import runpy
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, get_origin, get_type_hints

import pytest

import holdfast
from holdfast import testing
from holdfast.aio.effects import AsyncEffects
from holdfast.aio.holdfast import AsyncHoldfast, AsyncOpenOptions
from holdfast.aio.index import AsyncIndexView
from holdfast.aio.journal import AsyncJournalView
from holdfast.aio.session_views import AsyncSessionPacks
from holdfast.aio.state import AsyncReadableState, AsyncState, AsyncStateReader, AsyncStateStore, AsyncStoreOptions
from holdfast.client import holdfast as client
from holdfast.client.effects import Effects
from holdfast.client.holdfast import Holdfast
from holdfast.client.journal import JournalView
from holdfast.client.options import OpenOptions, StoreOptions
from holdfast.client.session_views import SessionPacks
from holdfast.client.state import ReadableState, State, StateReader, StateStore
from holdfast.runtime.agent import Agent, AsyncAgent
from holdfast.testing.clock import FrozenClock, SeededIds


def _public(kind: type, *, follow_wrapped: bool = True) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(member, follow_wrapped=follow_wrapped)
        for name, member in vars(kind).items()
        if not name.startswith("_") and inspect.isfunction(member)
    }


PUBLIC = (holdfast.compaction, holdfast.effects, holdfast.models, holdfast.types)
"""Modules of names beyond the root; `holdfast.errors` has all errors."""

EITHER = {("operate", "operator"), ("add_sink", "sink")}
"""Parameters that take more through asyncio: what may be a coroutine function there."""


@pytest.mark.parametrize(
    ("sync", "colour"),
    [
        (Holdfast, AsyncHoldfast),
        (JournalView, AsyncJournalView),
        (SessionPacks, AsyncSessionPacks),
        (ReadableState, AsyncReadableState),
        (State, AsyncState),
        (StateReader, AsyncStateReader),
        (StateStore, AsyncStateStore),
        (Effects, AsyncEffects),
        (Agent, AsyncAgent),
    ],
)
def test_both_clients_have_the_same_methods_with_the_same_parameters(sync: type, colour: type) -> None:
    one, other = _public(sync), _public(colour, follow_wrapped=False)
    assert one.keys() == other.keys()
    differ = set()
    for name, signature in one.items():
        for given, same in zip(signature.parameters.values(), other[name].parameters.values(), strict=True):
            assert (given.name, given.kind, given.default) == (same.name, same.kind, same.default), name
            differ |= {(name, given.name)} if given != same else set()
        twin = getattr(colour, name)
        assert inspect.getdoc(twin), name
        assert (twin.__module__, twin.__qualname__) == (colour.__module__, f"{colour.__name__}.{name}")
    assert differ == {(name, parameter) for name, parameter in EITHER if name in one}


def test_other_parameters_are_found_even_behind_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(JournalView.version)
    async def version(self: Any, of: str) -> None: ...

    monkeypatch.setattr(AsyncJournalView, "version", version)
    with pytest.raises(AssertionError, match="version"):
        test_both_clients_have_the_same_methods_with_the_same_parameters(JournalView, AsyncJournalView)


@pytest.mark.parametrize(
    "pages",
    [AsyncHoldfast.sessions, AsyncHoldfast.questions, AsyncEffects.pending, AsyncEffects.dead, AsyncIndexView.stacks],
)
def test_a_twin_that_iterates_says_so(pages: Any) -> None:
    assert get_origin(get_type_hints(pages)["return"]) is AsyncIterator
    assert get_origin(inspect.signature(pages).return_annotation) is AsyncIterator


def test_a_wrong_argument_is_refused_by_the_name_of_the_twin() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            chat: Any = await hf.session("alice")
            for name in ("export", "append"):
                with pytest.raises(TypeError, match=rf"^AsyncSession\.{name}\(\) got .* 'fromat'"):
                    await getattr(chat, name)("openai", fromat=1)
            with pytest.raises(TypeError, match=r"^AsyncHoldfast\.sessions\(\) got"):
                hf.sessions(usr="alice")  # type: ignore[call-arg]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("sync", "colour", "either"),
    [
        (OpenOptions, AsyncOpenOptions, {"memory", "summarizer", "embedder"}),
        (StoreOptions, AsyncStoreOptions, {"embedder"}),
    ],
)
def test_both_clients_are_opened_with_the_same_and_a_loop_takes_async_functions_too(
    sync: Any, colour: Any, either: set[str]
) -> None:
    assert sync.__annotations__.keys() == colour.__annotations__.keys()
    assert sync.__optional_keys__ == colour.__optional_keys__ == frozenset(sync.__annotations__)
    one, other = get_type_hints(sync), get_type_hints(colour)
    assert {name for name in one if one[name] != other[name]} == either


def test_everything_public_is_listed_and_everything_listed_is_there() -> None:
    visible = {
        name for name in vars(holdfast) if not name.startswith("_") and not inspect.ismodule(vars(holdfast)[name])
    }
    listed = set(holdfast.__all__)
    assert visible - {"TYPE_CHECKING", "Any", "open"} <= listed
    assert len(listed) <= 62
    for module in (holdfast, *PUBLIC):
        assert list(module.__all__) == sorted(set(module.__all__))
        assert all(hasattr(module, name) for name in module.__all__)
        with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
            module.Nothing  # noqa: B018


def test_completion_offers_every_public_name_before_its_first_use() -> None:
    for module in (holdfast, *PUBLIC, testing):
        assert set(module.__all__) <= set(dir(module)), module.__name__
    assert {module.__name__.rpartition(".")[2] for module in PUBLIC} <= set(dir(holdfast))


def test_a_session_has_few_members_of_its_own() -> None:
    assert len([name for name in dir(holdfast.Session) if not name.startswith("_")]) <= 26


def test_the_plain_async_twins_are_those_that_the_generator_writes() -> None:
    generator = Path(__file__).parent.parent.parent / "tools" / "generate_aio.py"
    done = subprocess.run([sys.executable, generator, "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_generator_removes_a_plain_twin_that_is_left_over() -> None:
    generator = runpy.run_path(str(Path(__file__).parent.parent.parent / "tools" / "generate_aio.py"))
    source = "class AsyncA:\n    kept = 1\n    old_pin = make_async(A.pin)\n"
    assert generator["rewrite"](source, "A", []) == "class AsyncA:\n    kept = 1\n"


def test_a_name_is_in_one_module_or_also_at_the_root_and_every_error_in_errors() -> None:
    homes = [name for module in PUBLIC for name in module.__all__]
    assert len(homes) == len(set(homes))
    assert set(homes) & set(holdfast.__all__) == {"AnthropicMessages", "OpenAIChat", "OpenAIResponses", "Scripted"}
    for name in {*holdfast.__all__, *homes}:
        assert not hasattr(holdfast.errors, name) or name in holdfast.__all__


def test_importing_everything_leaves_the_builtin_open_alone() -> None:
    code = "import builtins; from holdfast import *; print(open is builtins.open, Turn.__name__, AsyncAgent.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "Turn", "AsyncAgent"]
    assert callable(holdfast.open)


def test_public_modules_are_reached_from_the_root_and_load_nothing_slow() -> None:
    heavy = ("asyncio", "ssl", "http.client")
    for module in PUBLIC:
        code = f"import sys, holdfast; {module.__name__}; print([name for name in {heavy} if name in sys.modules])"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.strip() == "[]", module.__name__


def _round_trip(hf: Holdfast) -> list[Any]:
    hf.as_user("alice").journal.append("s1", "app.noted", {"text": "hi"}, key="k", facts={"n": 1}, files=[b"body"])
    (event,) = hf.journal.events("s1")
    erasure = hf.journal.erase("alice")
    return [
        (event.version, event.content.data, event.facts.data),
        hf.journal.version("s1"),
        [e.type for e in hf.journal.events_by_key("s1", "k")],
        list(hf.journal.streams()),
        erasure,
        hf.journal.artifact(event.facts.artifacts[0]),
        hf.journal.position(),
        hf.journal.verify().ok,
        hf.journal.rebuild(),
        hf.journal.collect(),
    ]


async def _async_round_trip(hf: AsyncHoldfast) -> list[Any]:
    await hf.as_user("alice").journal.append(
        "s1", "app.noted", {"text": "hi"}, key="k", facts={"n": 1}, files=[b"body"]
    )
    (event,) = [e async for e in hf.journal.events("s1")]
    erasure = await hf.journal.erase("alice")
    return [
        (event.version, event.content.data, event.facts.data),
        await hf.journal.version("s1"),
        [e.type for e in await hf.journal.events_by_key("s1", "k")],
        [name async for name in hf.journal.streams()],
        erasure,
        await hf.journal.artifact(event.facts.artifacts[0]),
        await hf.journal.position(),
        (await hf.journal.verify()).ok,
        await hf.journal.rebuild(),
        await hf.journal.collect(),
    ]


@pytest.mark.parametrize("url", ["memory:", "a.db", "sqlite:///b.db"])
def test_both_clients_give_the_same_answers(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open(url) as hf:
        answers = _round_trip(hf)
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")

    async def main() -> list[Any]:
        async with holdfast.open_async(url) as hf:
            return await _async_round_trip(hf)

    assert asyncio.run(main()) == answers


def test_backup_export_and_import_work_from_both_clients(tmp_path: Path) -> None:
    async def main() -> None:
        async with await holdfast.open_async(tmp_path / "a.db") as hf:
            await hf.journal.append("s", "app.noted", {"n": 1})
            await hf.journal.backup(tmp_path / "copy.db")
            await hf.journal.export(tmp_path / "a.jsonl")
        async with await holdfast.open_async("memory:") as other:
            assert await other.journal.import_(tmp_path / "a.jsonl") == 1

    asyncio.run(main())
    assert holdfast.restore(tmp_path / "copy.db", tmp_path / "b.db") == 1
    with holdfast.open(tmp_path / "b.db") as hf:
        assert hf.journal.verify().ok


def test_a_subscriber_is_told_at_once_and_ends_when_nothing_happens() -> None:
    clock = FrozenClock()
    with holdfast.open("memory:", clock=clock, ids=SeededIds(clock)) as hf:
        got: list[int] = []

        def follow() -> None:
            for event in hf.journal.subscribe("s", after=0, timeout=5):
                got.append(event.version)

        thread = threading.Thread(target=follow)
        thread.start()
        for number in range(3):
            hf.journal.append("s", "app.noted", {"n": number})
            hf.journal.append("other", "app.noted")
        while len(got) < 3:
            thread.join(0.01)
        clock.advance(6_000)
        thread.join(10)
        assert not thread.is_alive()
        assert got == [1, 2, 3]


def test_an_async_subscriber_takes_no_thread_while_it_waits() -> None:
    async def main() -> None:
        async with await holdfast.open_async("memory:") as hf:

            async def follow() -> list[int]:
                seen: list[int] = []
                async for event in hf.journal.subscribe(after=0):
                    seen.append(event.seq)
                    if len(seen) == 5:
                        break
                return seen

            followers = [asyncio.create_task(follow()) for _ in range(40)]
            await asyncio.sleep(0.05)
            for number in range(5):
                await hf.journal.append("s", "app.noted", {"n": number})
            assert await asyncio.wait_for(asyncio.gather(*followers), 20) == [[1, 2, 3, 4, 5]] * 40

    asyncio.run(main())


def test_a_subscriber_starts_from_now_unless_told_otherwise() -> None:
    with holdfast.open("memory:") as hf:
        hf.journal.append("s", "app.noted", {"n": 1})
        following = hf.journal.subscribe(timeout=5)
        fresh = threading.Timer(0.05, hf.journal.append, ("s", "app.noted", {"n": 2}))
        fresh.start()
        assert next(following).content.data == {"n": 2}
        fresh.join()


def test_cancelling_an_await_does_not_cancel_the_write(tmp_path: Path) -> None:
    async def main() -> None:
        async with await holdfast.open_async(tmp_path / "a.db") as hf:
            tasks = [asyncio.create_task(hf.journal.append("s", "app.noted", {"n": n}, key=str(n))) for n in range(20)]
            await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for n in range(20):
                await hf.journal.append("s", "app.noted", {"n": n}, key=str(n))
            assert await hf.journal.version("s") == 20

    asyncio.run(main())


def test_a_cancelled_task_still_closes_what_it_opened(tmp_path: Path) -> None:
    opened: list[AsyncHoldfast] = []

    async def body() -> None:
        async with await holdfast.open_async(tmp_path / "a.db") as hf:
            opened.append(hf)
            await asyncio.sleep(60)

    async def main() -> None:
        task = asyncio.create_task(body())
        while not opened:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises((holdfast.errors.Closed, RuntimeError)):
            await opened[0].journal.position()

    asyncio.run(main())
    assert not (tmp_path / "a.db-wal").exists()


def test_the_sync_client_warns_once_inside_a_running_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_warned", [])

    async def main() -> list[warnings.WarningMessage]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with holdfast.open("memory:") as hf:
                hf.journal.append("s", "app.noted")
                hf.journal.append("s", "app.noted")
            return list(caught)

    (warning,) = asyncio.run(main())
    assert "open_async" in str(warning.message)


def test_views_of_a_tenant_see_nothing_else_and_close_nothing() -> None:
    with holdfast.open("memory:") as hf:
        acme = hf.tenant("acme")
        acme.journal.append("s", "app.noted", {"n": 1})
        acme.close()
        with hf.tenant("acme") as again:
            assert again.journal.version("s") == 1
        assert hf.journal.version("s") == 0
        assert list(hf.journal.events()) == []
        assert "acme" in repr(acme)
        for name in ("", "a\nb"):
            with pytest.raises(holdfast.errors.InvalidValue):
                hf.tenant(name)
            with pytest.raises(holdfast.errors.InvalidValue):
                hf.as_user(name)


def test_who_acts_is_noted_by_pseudonym() -> None:
    with holdfast.open("memory:") as hf:
        hf.as_user("alice").journal.append("s", "app.noted", {"n": 1})
        hf.as_user("bob").journal.append("s", "app.noted", {"n": 2}, subject="alice")
        assert [(event.user, event.subject) for event in hf.journal.events()] == [(1, 1), (2, 1)]


def test_importing_holdfast_brings_no_event_loop_and_no_server() -> None:
    heavy = ("asyncio", "rich", "cyclopts", "apsw", "ssl", "http")
    code = f"import sys, holdfast; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_relative_path_and_a_link_mean_the_same_file_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "data" / "a.db")
    monkeypatch.chdir(tmp_path)
    with holdfast.open("link.db") as hf:
        hf.journal.append("s", "app.noted", files=[b"x" * 300_000])
        monkeypatch.chdir("/")
        hf.env.journal.connections.drop_writer(suspect=True)  # type: ignore[attr-defined]
        hf.journal.append("s", "app.noted")
        assert hf.journal.verify().ok
    with holdfast.open(tmp_path / "data" / "a.db") as hf:
        assert hf.journal.version("s") == 2
        assert hf.journal.verify().ok

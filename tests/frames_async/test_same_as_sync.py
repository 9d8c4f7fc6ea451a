"""The asyncio side has the members of the sync side, and they give the same."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast.aio.frame import AsyncFrame
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.aio.index import AsyncIndexView
from holdfast.aio.session import AsyncSession
from holdfast.aio.session_views import AsyncSessionCompaction, AsyncSessionDetails, AsyncSessionPacks
from holdfast.client.frame import Frame
from holdfast.client.index import IndexView
from holdfast.client.session import Session
from holdfast.client.session_views import SessionCompaction, SessionDetails, SessionPacks
from holdfast.errors import Refused
from holdfast.records.recovery import ActorResumeState, FrameInfo, QuestionReceipt
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.frames_async.conftest import ACTOR, Test
from tests.sessions.looped import counted


def _public(kind: type) -> dict[str, Any]:
    return {name: member for name, member in inspect.getmembers_static(kind) if not name.startswith("_")}


def _parameters(member: Any) -> list[tuple[Any, ...]]:
    found = inspect.signature(member, follow_wrapped=False).parameters.values()
    # A step's function and a summarizer may be async here, which is the one difference.
    return [(p.name, p.kind, p.default, None if p.name in ("fn", "summarizer") else p.annotation) for p in found]


def _without_parentheses(member: Any) -> bool:
    return isinstance(member, property) or inspect.ismemberdescriptor(member)


@pytest.mark.parametrize(
    ("sync", "colour", "names", "iterated", "instead"),
    [
        (IndexView, AsyncIndexView, set(), {"stacks"}, set()),
        (Frame, AsyncFrame, {"id", "scope"}, set(), set()),
        (Session, AsyncSession, {"id", "thread", "packs", "compaction", "details"}, set(), {"length"}),
        (SessionPacks, AsyncSessionPacks, set(), set(), set()),
        (SessionCompaction, AsyncSessionCompaction, set(), set(), set()),
        (SessionDetails, AsyncSessionDetails, set(), set(), set()),
    ],
)
def test_both_sides_have_the_same_members_with_the_same_parameters(
    sync: type, colour: type, names: set[str], iterated: set[str], instead: set[str]
) -> None:
    """`names` stay what they are; whatever else is a property reads the journal, and is awaited. `instead` of `len`."""
    one, other = _public(sync), _public(colour)
    assert one.keys() | instead == other.keys()
    for name, member in one.items():
        assert inspect.getdoc(other[name]), name
        if not _without_parentheses(member):
            assert _parameters(member) == _parameters(other[name]), name
            assert other[name].__qualname__ == f"{colour.__name__}.{name}"
        elif name not in names:
            assert [parameter.name for parameter in inspect.signature(other[name]).parameters.values()] == ["self"]
    assert {name for name, member in other.items() if _without_parentheses(member)} == names
    called = {name for name in other.keys() - names if not inspect.iscoroutinefunction(other[name])}
    assert called - {"frame", "turn"} == iterated
    assert hasattr(sync, "__iter__") == hasattr(colour, "__aiter__")


def test_other_parameters_are_found_even_behind_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    @functools.wraps(AsyncFrame.append)
    async def append(self: Any, message: Any, *, files: Any = ()) -> None: ...

    monkeypatch.setattr(AsyncFrame, "append", append)
    with pytest.raises(AssertionError, match="append"):
        test_both_sides_have_the_same_members_with_the_same_parameters(Frame, AsyncFrame, {"id", "scope"}, set(), set())


Said = tuple[str, tuple[Any, ...], dict[str, Any]]


def _story() -> Generator[Said, Any, None]:
    """Every operation of the index at least once, each with what the ones before gave."""

    def op(name: str, *args: Any, **kwargs: Any) -> Said:
        return name, args, kwargs

    root = yield op("push_frame", "goal", scope=ACTOR, tokens=1000, key="root")
    child = yield op("push_frame", "below", parent=root, tokens=100)
    yield op("update_frame", child, goal="further below", metadata={"n": 1})
    for name in ("get_frame", "ancestry"):
        yield op(name, child)
    for name in ("stack", "top_of_stack", "leaves"):
        yield op(name, ACTOR)
    yield op("stacks")
    yield op("reserve", child, "search", 50)
    yield op("spend_reserved", child, "search", 20)
    yield op("release_reservation", child, "search")
    yield op("record_usage", child, 5)
    handle = yield op("add_handle", child, "document", target="a.txt", body="text")
    removal = yield op("remove_handle", child, handle, reason="old")
    yield op("restore_handles", child, removal)
    yield op("compact_context", child, 0, key="smaller")
    yield op("compact_context", child, 0, key="smaller")
    yield op("handles", child)
    yield op("add_result", child, "file", "a.txt", summary="done")
    yield op("results", child)
    pack = yield op("assemble_context_pack", None, child, budget_tokens=700)
    call = yield op("begin_model_call", child, pack)
    yield op("pack_at", call)
    yield op("end_model_call", child, call, error="overloaded")
    call = yield op("begin_model_call", child, model="m", request={"a": 1})
    yield op("end_model_call", child, call, usage=7, finish="stop", response="hi")
    call = yield op("begin_tool_call", child, "search", arguments={"q": 1})
    yield op("end_tool_call", child, call, value=[1, 2])
    asked = yield op("suspend_frame", child, "may I?", token=True)
    yield op("question", asked.question)
    yield op("reissue_token", asked.question)
    yield op("resume_frame", asked.question, approve=True, note="go on")
    yield op("answer_to", ACTOR, asked.question)
    yield op("set_brief", ACTOR, "planner", system_prompt="Plan.", invariants=["Be brief."], working_context={"n": 1})
    yield op("brief", ACTOR, "planner")
    yield op("sweep")
    yield op("pop_frame", child, summary="ok", value=1)
    yield op("resume_actor", ACTOR, incarnation="one")
    yield op("release_actor", ACTOR)
    yield op("pop_frame", root, "cancelled")


def _comparable(value: Any) -> Any:
    """Without what is secret or names a process."""
    if isinstance(value, holdfast.ContextPack):
        return repr(value)  # Its marks are of its own journal.
    if isinstance(value, FrameInfo):
        return replace(value, context_hash=None)  # So is this.
    if isinstance(value, QuestionReceipt):
        return replace(value, token=None)
    return replace(value, holder=None) if isinstance(value, ActorResumeState) else value


async def _tell(index: Any, name: str, args: Any, kwargs: Any) -> Any:
    made = getattr(index, name)(*args, **kwargs)
    if inspect.isasyncgen(made):
        return [item async for item in made]
    return await made if inspect.isawaitable(made) else list(made) if inspect.isgenerator(made) else made


async def _told(client: Any, crossings: Callable[[], int]) -> list[Any]:
    story, told, sent = _story(), [], None
    while True:
        try:
            name, args, kwargs = story.send(sent)
        except StopIteration:
            return told
        before = crossings()
        sent = await _tell(client.index, name, args, kwargs)
        told.append((name, crossings() - before, None if name == "reissue_token" else _comparable(sent)))


@pytest.mark.parametrize("url", ["memory:", "a.db"])
@pytest.mark.filterwarnings("ignore:Holdfast waits for the disk")
def test_every_operation_gives_the_same_and_crosses_once(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ambient() -> dict[str, Any]:
        clock = FrozenClock()
        return {"clock": clock, "ids": SeededIds(clock)}

    def place(name: str) -> Any:
        (tmp_path / name).mkdir()
        return url if url == "memory:" else tmp_path / name / url

    async def main() -> None:
        with holdfast.open(place("sync"), **ambient()) as hf:
            expected = await _told(hf, lambda: 1)
        async with holdfast.open_async(place("async"), **ambient()) as other:
            told = await _told(other, counted(other._threads, monkeypatch))
        assert [(name, value) for name, _, value in told] == [(name, value) for name, _, value in expected]
        assert {crossed for _, crossed, _ in told} == {1}
        assert {name for name, _, _ in told} == _public(IndexView).keys()

    asyncio.run(main())


def test_iterators_go_on_past_a_page(play: Callable[[Test], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.aio.executor.PAGE", 2)

    async def test(hf: AsyncHoldfast) -> None:
        for n in range(5):
            frame = await hf.index.push_frame("goal", scope=f"actor/a{n}")
            await hf.index.suspend_frame(frame, "why?")
        assert len([asked async for asked in hf.questions()]) == 5
        assert [scope async for scope, _ in hf.index.stacks()] == [f"actor/a{n}" for n in range(5)]

    play(test)


def test_a_block_has_everything_that_a_sync_one_has(play: Callable[[Test], None]) -> None:
    async def test(hf: AsyncHoldfast) -> None:
        async with hf.frame("goal", key="k", tokens=100, inputs={"a": 1}) as frame:
            assert (frame.scope, await frame.status(), await frame.left()) == (ACTOR, "active", 100)
            await frame.spend(10)
            await frame.reserve("later", 30)
            assert (await frame.tokens()).used == 10
            assert await frame.left() == 60
            await frame.release("later")
            handle = await frame.attach("document", target="a.txt")
            assert await frame.detach(handle) is not None
            assert (await frame.limits()).tool_calls == 50
            assert await frame.result({"n": 1}, summary="ok") == {"n": 1}
        assert (await frame.info()).summary == "ok"
        assert await frame.value(dict[str, int]) == {"n": 1}
        async with hf.frame("goal", key="k", tokens=100, inputs={"a": 1}) as again:
            assert (again.id, await again.status()) == (frame.id, "completed")
            with pytest.raises(Refused):
                await again.open()
        assert repr(again).startswith("AsyncFrame('goal'")

    play(test)

"""`recovering(tenants=…)`: one process takes up what several tenants left, each turn through its own tenant's view."""

from __future__ import annotations

import asyncio
import select
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import tool
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import Corrupt, InvalidValue, Refused
from holdfast.flow.turns import runnable
from holdfast.flow.turns.runnable import StreamReadiness
from holdfast.model.scripted import Scripted
from holdfast.runtime.agent import AsyncAgent
from tests.turns.agent_world import until, until_async
from tests.turns.loops import place
from tests.turns.tenants_process import KINDS, TENANTS, World, session_of
from tests.turns.test_recovering import SELDOM, left, looked, words

PATIENCE = 60


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A journal that a process with turns of three tenants left when it was killed."""
    path = tmp_path / "a.db"
    command = [sys.executable, "-m", "tests.turns.tenants_process", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            heard, _, _ = select.select([process.stdout], [], [], PATIENCE)
            assert heard, "the program did not come so far"
            assert process.stdout.readline() == "ready\n"
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
    return path


async def answered(hf: AsyncHoldfast) -> None:
    async for question in hf.questions():
        if not question.answered:
            await hf.answer(question.id, approve=True)


def said(hf: Any, kind: str) -> list[str]:
    """The words of a conversation, without calls and results."""
    return [one.text for one in hf.session(session_of(kind)).messages() if one.text]


def check_all_done(path: Path) -> None:
    """Each conversation was answered once, with its own tenant's words."""
    with holdfast.open(path) as hf:
        assert hf.journal.tenants() == list(TENANTS), "nobody wrote for anybody else"
        for name in TENANTS:
            own = hf.tenant(name)
            assert {info.id for info in own.sessions()} == {session_of(kind) for kind in KINDS}
            for kind in KINDS:
                asked = f"{kind} for {name}"
                assert said(own, kind) == [asked, f"Answer to {asked}"]
            assert list(own.index.stacks()) == []
        assert hf.journal.verify().findings == ()


def test_another_process_takes_up_what_a_killed_one_left_in_every_tenant(killed: Path) -> None:
    async def test() -> None:
        async with (
            holdfast.open_async(killed) as hf,
            World(stuck=False).agent(hf).recovering(every=0.05, tenants="all") as recovering,
        ):
            await until_async(lambda: recovering.taken_up == 2 * len(TENANTS), PATIENCE)
            for name in TENANTS:
                await answered(hf.tenant(name))
            await until_async(lambda: recovering.taken_up == 3 * len(TENANTS), PATIENCE)

    asyncio.run(test())
    check_all_done(killed)


def test_code_without_asyncio_takes_up_what_was_left_in_every_tenant(tmp_path: Path) -> None:
    async def stopped() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as hf:
            for name in TENANTS:
                await left(hf.tenant(name))

    asyncio.run(stopped())
    with holdfast.open(tmp_path / "a.db") as hf:
        agent = hf.agent("a", model=Scripted(["Done."]))
        with agent.recovering(every=0.01, tenants="all") as recovering:
            until(lambda: recovering.taken_up == len(TENANTS))
        for name in TENANTS:
            assert hf.tenant(name).session("s").messages()[-1].text == "Done."


async def each_left(hf: AsyncHoldfast) -> Callable[[Any], Awaitable[list[str]]]:
    """A turn left in each tenant; gives a function that recovers and says in which tenants something was answered."""
    for name in TENANTS:
        await left(hf.tenant(name))
    agent = hf.agent("a", model=Scripted(["Done."]))

    async def recovered(tenants: Any) -> list[str]:
        await looked(agent, agent.recovering(tenants=tenants))
        return [name for name in TENANTS if await words(hf.tenant(name)) == ["Hello", "Done."]]

    return recovered


def covers() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            recovered = await each_left(hf)
            assert await recovered([]) == []
            assert await recovered(None) == ["default"]
            assert await recovered(["nobody", "zeta", "zeta"]) == ["default", "zeta"]
            assert await recovered("all") == ["acme", "default", "zeta"]
            assert await hf.journal.tenants() == list(TENANTS)

    asyncio.run(test())


def test_it_covers_its_own_tenant_those_that_are_named_or_all() -> None:
    covers()


def test_going_on_in_the_wrong_tenant_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsyncAgent, "tenant", lambda self, name: self)
    with pytest.raises(AssertionError):
        covers()


def test_a_tenants_view_recovers_nobody_elses() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            await each_left(hf)
            mine = hf.tenant("acme").agent("a", model=Scripted(["Done."]))
            for others in ("all", ["zeta"], ["acme", "zeta"], []):
                with pytest.raises(Refused, match="tenant"):
                    mine.recovering(tenants=others)
            assert await looked(mine, mine.recovering(tenants=["acme"])) == 1
            assert await words(hf.tenant("zeta")) == ["Hello"]

    asyncio.run(test())


@pytest.mark.parametrize("tenants", ["acme", "", 7, b"acme", {"acme"}, [7], [""], ["\x00"]], ids=repr)
def test_tenants_that_make_no_sense_are_refused(tenants: Any) -> None:
    with holdfast.open("memory:") as hf:
        recovering = hf.agent("a", model=Scripted([])).recovering(tenants=tenants)
        with pytest.raises(InvalidValue):
            recovering.__enter__()


def test_an_answer_is_heard_of_at_once_in_every_tenant() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            asked = []
            for name in TENANTS:
                own = hf.tenant(name)
                await left(own)
                turn = (await own.index.resume_actor(place("s"))).frames[0].id
                asked.append((own, (await own.index.suspend_frame(turn, "Go on?")).question))
            agent = hf.agent("a", model=Scripted(["Done."]))
            async with agent.recovering(every=SELDOM, tenants="all") as recovering:
                await asyncio.sleep(0.02)
                for count, (own, question) in enumerate(asked, 1):
                    assert recovering.taken_up == count - 1
                    await own.answer(question, approve=True)
                    await until_async(lambda wanted=count: recovering.taken_up == wanted)  # type: ignore[misc]
            heard = [name for name in TENANTS if hf._sync.env.observers.list_callbacks(name, "question.answered")]
            assert heard == [], "who recovers no more hears nothing"

    asyncio.run(test())


def test_a_stream_that_cannot_be_read_keeps_nobody_else_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = runnable.read_readiness

    def standing(env: Any, stream: str, *how: Any) -> StreamReadiness:
        if env.tenant == "acme":
            raise Corrupt
        return sound(env, stream, *how)

    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            recovered = await each_left(hf)
            monkeypatch.setattr(runnable, "read_readiness", standing)
            assert await recovered("all") == ["default", "zeta"]
            monkeypatch.undo()
            assert await recovered("all") == ["acme", "default", "zeta"]

    asyncio.run(test())


CALLS_PAY = {"name": "pay", "arguments": {}}


@tool(needs_approval=True)
def pay() -> str:
    """Pay."""
    return "paid"


def test_recovering_is_for_one_tenant() -> None:
    with holdfast.open("memory:") as hf:
        agent = hf.agent("a", model=Scripted([CALLS_PAY, "Done."]), tools=[pay])
        mine = agent.tenant("t")
        question = mine.send("s", "Pay").questions[0].id
        hf.tenant("t").answer(question, approve=True)
        with agent.recovering(every=0.01) as others, mine.recovering(every=0.01) as recovering:
            until(lambda: recovering.taken_up == 1)
        assert others.taken_up == 0

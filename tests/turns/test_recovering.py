"""`recovering`: what a dead process left is gone on with, and what somebody works on is left alone."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model.scripted import Scripted
from holdfast.records.settings import Settings
from holdfast.runtime.recovery import Recovery
from holdfast.runtime.tasks import get_agent_tasks
from holdfast.testing.clock import FrozenClock
from tests.turns.agent_world import Counted, Gated, until, until_async
from tests.turns.loops import place
from tests.turns.shutdown_process import kind_of
from tests.turns.test_shutdown import Program, check_left, finish, programs

__all__ = ["programs"]  # a fixture
SELDOM = 1e6
LEASE_MS = 400


async def looked(agent: Any, recovering: Any) -> int:
    """One look, and everything that it began done; gives how many turns it began with."""
    begun: int = await recovering.poll()
    while agent._crew.tasks:
        await asyncio.wait(set(agent._crew.tasks))
    return begun


async def left(hf: AsyncHoldfast, session: str = "s", *, agent: str = "a", text: str = "Hello") -> None:
    """A turn that nobody works on any more: whoever did was stopped in the model."""
    model = Gated(["Done."])
    sending = asyncio.ensure_future(hf.agent(agent, model=model).send(session, text))
    await model.begun.wait()
    await get_agent_tasks(hf).cancel_all()
    await asyncio.gather(sending, return_exceptions=True)
    assert (await hf.index.resume_actor(place(session))).frames


async def words(hf: AsyncHoldfast, session: str = "s") -> list[str]:
    return [one.text for one in await (await hf.session(session)).messages()]


@asynccontextmanager
async def two_clients(path: Path) -> AsyncIterator[tuple[AsyncHoldfast, AsyncHoldfast]]:
    """Two clients of one file: to each other they are two processes."""
    settings = Settings(lease_ms=LEASE_MS)
    async with (
        holdfast.open_async(path, settings=settings, durability="fast") as one,
        holdfast.open_async(path, settings=settings, durability="fast") as other,
    ):
        yield one, other


def test_what_a_killed_process_left_is_listed_by_its_class_and_gone_on_with(
    tmp_path: Path, programs: list[Program]
) -> None:
    programs.append(Program(tmp_path, 10, 60.0))
    programs[0].signal(signal.SIGKILL)
    programs[0].kill()
    wanted = {
        "quick": [("model_in_progress", "retry", False)],
        "model": [("model_in_progress", "retry", False)],
        "lookup": [("tool_in_progress", "retry", False)],
        "pay": [("tool_in_progress", "ask", True)],
        "ask": [("waiting_for_subcall", "children", False), ("waiting_for_user", "answer", False)],
    }
    with holdfast.open(tmp_path / "a.db") as hf:
        for number in range(10):
            pending = hf.index.resume_actor(place(f"s{number}")).pending
            assert [(one.kind, one.next, one.unsafe_to_retry) for one in pending] == wanted[kind_of(number)]
    live = check_left(tmp_path, 10, released=False)
    assert len(live) == 10
    asyncio.run(finish(tmp_path, 10, live))


def test_what_somebody_works_on_is_left_alone(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_clients(tmp_path / "a.db") as (one, other):
            model, mine = Gated(["Done."]), Counted(["Mine."])
            sending = asyncio.ensure_future(one.agent("a", model=model).send("s", "Hello"))
            await model.begun.wait()
            async with other.agent("a", model=mine).recovering(every=0.02) as recovering:
                await asyncio.sleep(LEASE_MS / 1000 * 2)
                assert (recovering.taken_up, mine.asked) == (0, 0)
                assert not recovering._at_work, "nobody waits for it either: there may be other things to do"
                model.go_on.set()
                assert (await sending).text == "Done."
            assert await words(one) == ["Hello", "Done."]

    asyncio.run(test())


def test_what_a_silent_owner_works_on_is_taken_over_after_the_time_of_a_lease(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_clients(tmp_path / "a.db") as (one, other):
            model = Gated(["Late."])
            sending = asyncio.ensure_future(one.agent("a", model=model).send("s", "Hello", key="k"))
            await model.begun.wait()
            one._sync.env.leases.close()  # No more signs of life, as if its machine had gone.
            async with other.agent("a", model=Scripted(["Taken over."])).recovering(every=0.02) as recovering:
                await until_async(lambda: recovering.taken_up == 1)
            model.go_on.set()
            assert (await sending).text == "Taken over."  # The journal takes nothing from who was thought to be dead.
            assert await words(other) == ["Hello", "Taken over."]

    asyncio.run(test())


def test_an_answer_is_heard_of_at_once() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            await left(hf)
            agent = hf.agent("a", model=Scripted(["Done."]))
            turn = (await hf.index.resume_actor(place("s"))).frames[0].id
            asked = await hf.index.suspend_frame(turn, "Go on?")
            async with agent.recovering(every=SELDOM) as recovering:
                await asyncio.sleep(0.02)
                assert recovering.taken_up == 0
                await hf.answer(asked.question, approve=True)
                await until_async(lambda: recovering.taken_up == 1)
            assert await words(hf) == ["Hello", "Done."]

    asyncio.run(test())


def test_each_agent_goes_on_with_its_own_turns_in_its_own_tenant() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            await left(hf, "mine")
            await left(hf, "others", agent="b")
            await left(hf.tenant("acme"), "mine")
            async with (await hf.session("by hand")).turn("Hello") as turn:
                await turn.steps()
            agent = hf.agent("a", model=Scripted(["Done."]))
            assert await looked(agent, agent.recovering()) == 1
            assert await words(hf, "mine") == ["Hello", "Done."]
            assert await words(hf, "others") == await words(hf, "by hand") == ["Hello"]
            assert await words(hf.tenant("acme"), "mine") == ["Hello"]
            assert await looked(agent.tenant("acme"), agent.tenant("acme").recovering()) == 1
            assert await words(hf.tenant("acme"), "mine") == ["Hello", "Done."]
            assert await looked(agent, agent.recovering()) == 0

    asyncio.run(test())


async def tries(clock: FrozenClock, seconds: int) -> list[int]:
    """When a turn is tried whose model fails, if it is looked for every second."""
    found = []
    async with holdfast.open_async("memory:", clock=clock) as hf:
        await left(hf)
        model = Counted([ModelFailed("down", kind="unavailable", retryable=True)])
        agent = hf.agent("a", model=model)
        recovering = agent.recovering(every=1.0)
        for second in range(seconds):
            before = model.asked
            await looked(agent, recovering)
            if model.asked > before:
                found.append(second)
            clock.advance(1_000)
        assert (await hf.index.resume_actor(place("s"))).frames, "it is never given up"
        healthy = hf.agent("a", model=Scripted(["Done."]))
        assert await looked(healthy, healthy.recovering()) == 1
    return found


def test_a_turn_that_fails_again_and_again_is_tried_ever_more_rarely() -> None:
    found = asyncio.run(tries(FrozenClock(), 1_300))
    pauses = [after - before for before, after in pairwise(found)]
    assert pauses[:8] == [2, 4, 8, 16, 32, 64, 128, 256]
    assert pauses[8:] == [300] * len(pauses[8:])
    assert len(pauses) > 9


def test_trying_again_without_a_pause_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.runtime.recovery.LONGEST_PAUSE", 0.0)
    assert asyncio.run(tries(FrozenClock(), 5)) == [0, 1, 2, 3, 4]


def test_many_turns_are_gone_on_with_a_few_at_a_time() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            for number in range(6):
                await left(hf, f"s{number}")
            inside, most = 0, 0

            async def counted(pack: Any) -> str:
                nonlocal inside, most
                inside += 1
                most = max(most, inside)
                await asyncio.sleep(0.01)
                inside -= 1
                return "Done."

            agent = hf.agent("a", model=Scripted([counted]))
            recovering = agent.recovering(at_once=2)
            assert await looked(agent, recovering) == 6
            assert (recovering.taken_up, most) == (6, 2)

    asyncio.run(test())


def test_it_stops_cleanly_and_what_it_began_stays_live(tmp_path: Path) -> None:
    async def test() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as hf:
            await left(hf)
            model = Gated(["Done."])
            async with hf.agent("a", model=model).recovering(every=0.01):
                await model.begun.wait()
        async with holdfast.open_async(tmp_path / "a.db") as hf:
            found = await hf.index.resume_actor(place("s"))
            assert (len(found.frames), found.holder) == (1, None)
            others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert others == []

    asyncio.run(test())


def test_a_client_that_shuts_down_takes_up_nothing() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            await left(hf)
            await hf.drain(0)
            async with hf.agent("a", model=Scripted(["Done."])).recovering(every=0.01) as recovering:
                await asyncio.sleep(0.05)
                assert (recovering.taken_up, recovering._task is None or recovering._task.done()) == (0, True)
            assert await words(hf) == ["Hello"]

    asyncio.run(test())


def test_code_without_asyncio_recovers_as_well(tmp_path: Path) -> None:
    async def stopped() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as hf:
            await left(hf)

    asyncio.run(stopped())
    with holdfast.open(tmp_path / "a.db") as hf:
        agent = hf.agent("a", model=Scripted(["Done."]))
        with agent.recovering(every=0.01) as recovering:
            assert isinstance(recovering, Recovery)
            until(lambda: recovering.taken_up == 1)
        assert hf.session("s").messages()[-1].text == "Done."


# taking up


@pytest.mark.parametrize(
    "how",
    [{"every": value} for value in (0, -1, True, "1", None, float("nan"), float("inf"))]
    + [{"at_once": value} for value in (0, -1, True, 1.5, "1", None)],
    ids=str,
)
def test_recovering_refuses_numbers_that_make_no_sense(how: dict[str, Any]) -> None:
    with holdfast.open("memory:") as hf:
        recovering = hf.agent("a", model=Scripted([])).recovering(**how)
        with pytest.raises(InvalidValue, match=next(iter(how))):
            recovering.__enter__()


def test_who_was_overtaken_gets_the_reply_that_another_process_ended_the_turn_with(tmp_path: Path) -> None:
    async def test() -> None:
        async with two_clients(tmp_path / "a.db") as (one, other):
            model = Gated(["Late."])
            sending = asyncio.ensure_future(one.agent("a", model=model).send("s", "Hello", key="k"))
            await model.begun.wait()
            one._sync.env.leases.close()  # No more signs of life, as if its machine had gone.
            async with other.agent("a", model=Scripted(["Taken over."])).recovering(every=0.02) as recovering:
                await until_async(lambda: recovering.taken_up == 1)
            model.go_on.set()
            reply = await sending
            again = await other.agent("a", model=Scripted([])).send("s", "Hello", key="k")
            assert (reply.status, reply.text) == ("done", "Taken over.")
            assert reply == again

    asyncio.run(test())

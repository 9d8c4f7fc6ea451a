"""Turns that wait: for an answer, for a time, for nobody who came in time. Each goes on, and the model is told why."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.core.frames import next_step as steps
from holdfast.errors import HoldfastError
from holdfast.flow.frames import read as frames
from holdfast.flow.turns import sweep
from holdfast.model.scripted import Scripted, call
from holdfast.runtime.tasks import get_agent_tasks
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from holdfast.runtime.tools.tool import tool
from holdfast.testing.clock import FrozenClock
from tests.scale import seeded, volume
from tests.turns.loops import place
from tests.turns.test_recovering import looked

SECOND = 1_000
LATE = "Nobody answered in time"


class Waits:
    """An agent whose tools wait in every way there is, on a clock that is moved by hand."""

    def __init__(self, hf: AsyncHoldfast, clock: FrozenClock) -> None:
        self.hf, self.clock = hf, clock
        self.ran: list[str] = []
        self.torn = True
        self.agent = hf.agent("a", model=Scripted(self._reply), tools=self._tools(), history=False, loops=50)
        self.recovering: Any = self.agent.recovering()

    def _reply(self, pack: Any) -> Any:
        """Call the tools that the user names, then say what came of them."""
        talk = pack.conversation.messages
        results = [one for message in talk for one in message.tool_results]
        if results:
            return "; ".join(str(one.result) for one in results)
        return [call(name) for name in talk[-1].text.split()]

    def _tools(self) -> list[Any]:
        ran = self.ran.append

        def asking(name: str, **how: Any) -> Any:
            def ask(call: ToolCall) -> str:
                ran(name)
                return f"{name} {call.ask('Sure?', **how).approved}"

            return tool(ask, name=name, description="Ask.")

        def nesting(name: str, **how: Any) -> Any:
            def nest(call: ToolCall) -> str:
                ran(name)
                with call.frame.frame("below", key="below") as below:
                    answer = below.ask("Sure below?", key="q", **(how or {}))
                return f"{name} {answer.approved}"

            return tool(nest, name=name, description="Ask below.")

        async def sleep(call: AsyncToolCall) -> str:
            ran("sleep")
            await call.sleep(10)
            await call.sleep(10)
            return "slept"

        def hanging(policy: str) -> Any:
            async def hang() -> str:
                ran(policy)
                if self.torn:
                    await asyncio.sleep(600)
                return f"{policy} again"

            return tool(hang, name=policy, description="Hang.", if_interrupted=policy)

        async def plain() -> str:
            ran("plain")
            return "plain"

        async def approved() -> str:
            ran("approved")
            return "approved"

        return [
            asking("asks"),
            asking("fails", expires_ms=5 * SECOND, on_expiry="fail"),
            asking("cancels", expires_ms=5 * SECOND, on_expiry="cancel"),
            asking("keeps", expires_ms=5 * SECOND, on_expiry="keep"),
            nesting("nests"),
            nesting("nest-fails", expires_ms=5 * SECOND, on_expiry="fail"),
            nesting("nest-sleeps", kind="timer", until=self.clock.now_ms() + 7 * SECOND),
            tool(sleep, description="Sleep."),
            tool(plain, description="Do it."),
            tool(approved, description="Do it if allowed.", needs_approval=True),
            *map(hanging, ("ask", "retry", "fail")),
        ]

    async def begin(self, text: str) -> None:
        """Send it, until it waits; what hangs is left as a crash would leave it."""
        sending = asyncio.ensure_future(self.agent.send("s", text))
        hangs = {"ask", "retry", "fail"} & set(text.split())
        for _ in range(2_000):
            if sending.done() or (hangs and hangs <= set(self.ran) and len(self.ran) >= self._running(text)):
                break
            await asyncio.sleep(0.001)
        await get_agent_tasks(self.hf).cancel_all()
        await asyncio.gather(sending, return_exceptions=True)
        self.torn = False

    @staticmethod
    def _running(text: str) -> int:
        return sum(name != "approved" for name in text.split())

    async def look(self) -> int:
        return await looked(self.agent, self.recovering)

    async def open_questions(self) -> list[Any]:
        return [one async for one in self.hf.questions() if not one.answered]

    async def results(self) -> list[str]:
        said = await (await self.hf.session("s")).messages()
        return [str(one.result) for message in said for one in message.tool_results]

    async def is_live(self) -> bool:
        return bool((await self.hf.index.resume_actor(place("s"))).frames)


def play(test: Callable[[Waits], Any]) -> None:
    async def run() -> None:
        clock = FrozenClock()
        async with holdfast.open_async("memory:", clock=clock) as hf:
            await test(Waits(hf, clock))
            assert (await hf.journal.verify()).findings == ()
            await hf.journal.rebuild()
            assert (await hf.journal.verify()).findings == ()

    asyncio.run(run())


def test_a_tool_that_sleeps_is_woken_by_whoever_recovers() -> None:
    async def test(world: Waits) -> None:
        await world.begin("sleep")
        assert (await world.look(), world.ran) == (0, ["sleep"])
        world.clock.advance(10 * SECOND)
        swept = await world.hf.index.sweep()
        assert swept == holdfast.types.SweepReport(), "its turn wakes it, and runs the tool again"
        assert (await world.look(), len(world.ran)) == (1, 2)
        assert await world.is_live()
        world.clock.advance(10 * SECOND)
        assert (await world.look(), len(world.ran)) == (1, 3)
        assert await world.results() == ["slept"]
        assert not await world.is_live()

    play(test)


def test_a_turn_that_is_suspended_itself_is_woken_by_its_timer_or_its_answer() -> None:
    async def test(world: Waits) -> None:
        await world.begin("asks")
        turn = (await world.hf.index.resume_actor(place("s"))).frames[0].id
        (question,) = await world.open_questions()
        until = world.clock.now_ms() + 60 * SECOND
        await world.hf.index.suspend_frame(turn, "Not now.", kind="timer", until=until, subtree=True)
        await world.hf.answer(question.id, approve=True)
        assert await world.look() == 0
        world.clock.advance(60 * SECOND)
        assert await world.look() == 1
        assert await world.results() == ["asks True"]

    play(test)


@pytest.mark.parametrize("name", ["fails", "cancels"])
def test_a_question_that_nobody_answered_in_time_is_an_error_for_the_model(name: str) -> None:
    async def test(world: Waits) -> None:
        await world.begin(name)
        (question,) = await world.open_questions()
        assert await world.look() == 0
        world.clock.advance(6 * SECOND)
        assert await world.hf.index.sweep() == holdfast.types.SweepReport(), (
            "only its turn ends a call: the model has to be told"
        )
        assert await world.look() == 1
        assert (await world.results())[0].startswith(LATE)
        with pytest.raises(HoldfastError):
            await world.hf.answer(question.id, approve=True)
        assert not await world.is_live()
        assert world.ran == [name], "it was not allowed, so it did not go on"

    play(test)


def test_a_question_that_is_kept_can_be_answered_late() -> None:
    async def test(world: Waits) -> None:
        await world.begin("keeps")
        world.clock.advance(3_600 * SECOND)
        assert await world.look() == 0
        (question,) = await world.open_questions()
        await world.hf.answer(question.id, approve=True)
        assert await world.look() == 1
        assert await world.results() == ["keeps True"]

    play(test)


def test_a_new_message_finds_out_that_nobody_answered_in_time() -> None:
    async def test(world: Waits) -> None:
        await world.begin("fails")
        world.clock.advance(6 * SECOND)
        reply = await world.agent.send("s", "And now?")
        assert (reply.status, reply.text[: len(LATE)]) == ("done", LATE)

    play(test)


@pytest.mark.parametrize("policy", ["nests", "nest-sleeps"])
def test_a_tool_whose_work_below_waits_is_not_torn(policy: str) -> None:
    async def test(world: Waits) -> None:
        await world.begin(policy)
        assert (await world.look(), world.ran) == (0, [policy])
        for question in await world.open_questions():
            assert question.reason == "Sure below?"
            if question.kind != "timer":
                await world.hf.answer(question.id, approve=True)
        world.clock.advance(8 * SECOND)
        assert await world.hf.index.sweep() == holdfast.types.SweepReport()
        assert await world.look() == 1
        assert (await world.results())[0].startswith(policy)
        assert world.ran == [policy, policy]

    play(test)


@pytest.mark.parametrize("name", ["asks", "approved"])
@pytest.mark.parametrize("status", ["failed", "cancelled"])
def test_a_call_whose_frame_an_operator_ends_has_an_error_as_its_result(name: str, status: str) -> None:
    async def test(world: Waits) -> None:
        await world.begin(name)
        (question,) = await world.open_questions()
        await world.hf.index.pop_frame(question.frame, status, error="not that")
        ran = list(world.ran)
        assert await world.look() == 1
        results = await world.results()
        assert len(results) == 1
        assert ("interrupted" in results[0] or "called off" in results[0], world.ran) == (True, ran)
        assert not await world.is_live()

    play(test)


def test_the_sweep_that_ends_a_turn_gives_its_calls_results() -> None:
    async def test(world: Waits) -> None:
        await world.begin("asks plain")
        turn = (await world.hf.index.resume_actor(place("s"))).frames[0].id
        await world.hf.index.suspend_frame(turn, "Now?", expires_ms=SECOND, on_expiry="fail", subtree=True)
        world.clock.advance(2 * SECOND)
        swept = await world.hf.index.sweep()
        assert swept.expired == (turn,)
        results = await world.results()
        assert (len(results), "plain" in results) == (2, True)
        assert not await world.is_live()

    play(test)


# no call waits for ever

NAMES = [
    "asks",
    "fails",
    "cancels",
    "keeps",
    "nests",
    "nest-fails",
    "nest-sleeps",
    "sleep",
    "plain",
    "approved",
    "ask",
    "retry",
    "fail",
]


async def meddle(world: Waits, chance: random.Random) -> None:
    """Somebody does something, or time passes."""
    what = chance.choice(["answer", "answer", "pass", "sweep", "pop", "look"])
    questions = await world.open_questions()
    if what == "answer" and questions:
        question = chance.choice(questions)
        if question.kind != "timer":
            try:
                await world.hf.answer(question.id, approve=chance.random() < 0.7)
            except holdfast.errors.QuestionExpired:
                pass
    elif what == "pass":
        world.clock.advance(chance.choice([SECOND, 4 * SECOND, 11 * SECOND]))
    elif what == "sweep":
        await world.hf.index.sweep()
    elif what == "pop" and questions and chance.random() < 0.3:
        await world.hf.index.pop_frame(chance.choice(questions).frame, "cancelled", error="no")
    else:
        await world.look()


async def walk(world: Waits, chance: random.Random) -> None:
    """A turn with tools that wait beside each other, and people who come when they like. It ends, and is whole."""
    names = chance.sample(NAMES, chance.randint(1, 4))
    await world.begin(" ".join(names))
    for _ in range(chance.randint(0, 12)):
        await meddle(world, chance)
    for _ in range(20):
        for question in await world.open_questions():
            if question.kind != "timer" and (question.expires_at is None or question.on_expiry == "keep"):
                await world.hf.answer(question.id, approve=True)
        world.clock.advance(11 * SECOND)
        await world.look()
        if not await world.is_live():
            break
    assert not await world.is_live(), f"{names} wait for ever: {await world.open_questions()}"
    assert len(await world.results()) == len(names), "one result for each call"


def test_no_call_waits_for_ever() -> None:
    chance = seeded("no call waits for ever")
    for _ in range(volume(40, 2_000)):
        play(lambda world: walk(world, chance))


def expired_frames_are_ended_by_the_sweep(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sweep, "_is_for_turn", lambda state, frame: False)


def late_is_not_known(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "is_late", lambda question, now: False)


def below_is_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(steps, "pending_questions", lambda live, frame: [frame.question] if frame.question else [])


def ended_frames_begin_anew(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(frames, "has_frame", lambda env, frame: False)


@pytest.mark.parametrize(
    ("plant", "name"),
    [
        (expired_frames_are_ended_by_the_sweep, "sleep"),
        (late_is_not_known, "fails"),
        (below_is_not_looked_at, "nests"),
        (ended_frames_begin_anew, "approved"),
    ],
)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tests = {
        "sleep": test_a_tool_that_sleeps_is_woken_by_whoever_recovers,
        "fails": lambda: test_a_question_that_nobody_answered_in_time_is_an_error_for_the_model("fails"),
        "nests": lambda: test_a_tool_whose_work_below_waits_is_not_torn("nests"),
        "approved": lambda: test_a_call_whose_frame_an_operator_ends_has_an_error_as_its_result("approved", "failed"),
    }
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        tests[name]()

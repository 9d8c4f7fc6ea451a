"""Many conversations, tenants, agents and processes: each gets its own, and whoever is closed leaves the rest live."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import holdfast
from holdfast.errors import Closed, Draining, KeyReused, ModelFailed, Refused
from holdfast.model.scripted import Scripted, call
from holdfast.records.messages import Delta, ModelCall, ModelReply
from holdfast.runtime import listeners, loop_thread
from holdfast.runtime.agent import Agent
from holdfast.runtime.tools.tool import tool
from tests.forked import in_child
from tests.scale import volume
from tests.turns.agent_world import SESSION, Counted, Gated, kinds, spoken_async, until
from tests.turns.loops import spoken

Holdfast = holdfast.Holdfast


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listeners, "TAIL_POLL_SECONDS", 0.01)


@tool(needs_approval=True)
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


# tenants


def test_a_tenants_agent_sees_its_own_conversations_only(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted([call("pay", amount=5), "Done."]), tools=[pay])
    ann, bob = agent.tenant("ann"), agent.tenant("bob")
    waiting = ann.send(SESSION, "Pay.", key="k")
    assert waiting.status == "waiting"
    assert list(bob.tail(SESSION)) == []
    assert not bob.stop(SESSION)
    with pytest.raises(Refused, match="nothing to continue"):
        bob.send(SESSION)
    with pytest.raises(holdfast.HoldfastError):
        hf.tenant("bob").answer(waiting.questions[0].id, approve=True)
    assert spoken(hf.tenant("bob")) == []
    other = bob.send(SESSION, "Pay.", key="k")
    assert (other.status, other.turn_id != waiting.turn_id) == ("waiting", True), "a key is a tenant's own"
    last = list(ann.tail(SESSION))[-1]
    assert list(bob.tail(SESSION, last.id)) == []
    hf.tenant("ann").answer(waiting.questions[0].id, approve=True)
    assert ann.send(SESSION).text == "Done."
    assert bob.send(SESSION, "Pay.", key="k").status == "waiting"
    assert spoken(hf) == []


def test_tenants_are_heard_apart_while_they_work() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated(lambda pack: "Done.")
            agent = hf.agent("a", model=model)
            ann = asyncio.ensure_future(agent.tenant("ann").send(SESSION, "Ann's secret"))
            await model.begun.wait()
            assert [event async for event in agent.tenant("bob").tail(SESSION)] == []
            bob = asyncio.ensure_future(_heard(agent.tenant("bob").stream(SESSION, "Hello")))
            await asyncio.sleep(0.02)
            assert not await agent.tenant("carl").stop(SESSION)
            model.go_on.set()
            assert (await ann).text == "Done."
            assert "secret" not in str(await bob)
            assert kinds(await bob) == ["message", "delta", "reply", "done"]

    asyncio.run(main())


async def _heard(events: Any) -> list[Any]:
    return [event async for event in events]


# agents


def test_two_agents_answer_in_one_conversation(hf: Holdfast) -> None:
    one, two = Counted(["One."], name="gpt-4o"), Counted(["Two."], name="gpt-4o-mini")
    first = hf.agent("one", model=one, system="You are one.", tools=[pay])
    second = hf.agent("two", model=two, system="You are two.", history=False)
    assert first.send(SESSION, "Hello").text == "One."
    assert second.send(SESSION, "Hello").text == "Two."
    assert first.send(SESSION, "Hello").text == "One."
    for model, system in ((one, "You are one."), (two, "You are two.")):
        for request in model.requests:
            assert request.pack.to_openai()["messages"][0]["content"].startswith(system)
    assert [tool["function"]["name"] for tool in one.requests[-1].pack.to_openai()["tools"]][-1] == "pay"
    assert [role for role, _ in spoken(hf)] == ["user", "assistant"] * 3


def test_who_waits_in_line_does_not_change_the_instructions_of_who_works() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated([call("look"), "One."])

            @tool
            def look() -> str:
                """Look."""
                return "seen"

            first = hf.agent("one", model=model, system="You are one.", tools=[look])
            second = hf.agent("two", model=Scripted(["Two."]), system="You are two.")
            working = asyncio.ensure_future(first.send(SESSION, "Hello"))
            await model.begun.wait()
            waiting = asyncio.ensure_future(second.send(SESSION, "Hello"))
            await asyncio.sleep(0.02)
            model.go_on.set()
            assert ((await working).text, (await waiting).text) == ("One.", "Two.")
            for request in model.requests:
                assert request.pack.to_openai()["messages"][0]["content"].startswith("You are one.")

    asyncio.run(main())


def test_the_same_message_sent_many_times_at_once_is_answered_once() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Counted(["Hi."], pause=0.001)
            agent = hf.agent("a", model=model)
            replies = await asyncio.gather(*(agent.send(SESSION, "Hello", key="k") for _ in range(8)))
            assert len({reply.turn_id for reply in replies}) == 1
            assert ({reply.text for reply in replies}, model.asked) == ({"Hi."}, 1)
            with pytest.raises(KeyReused):
                await agent.send(SESSION, "Goodbye", key="k")
            assert await spoken_async(hf) == [("user", "Hello"), ("assistant", "Hi.")]

    asyncio.run(main())


def test_many_conversations_at_a_time(tmp_path: Path) -> None:
    many = volume(50, 1_000)

    @tool(if_interrupted="retry")
    def look(at: str) -> str:
        """Look."""
        return f"seen {at}"

    def answer(pack: Any) -> Any:
        last = pack.conversation.messages[-1]
        return str(last.tool_results[0].result) if last.role == "tool" else call("look", at=last.text)

    async def main() -> None:
        async with holdfast.open_async(tmp_path / "a.db", durability="fast") as hf:
            agent = hf.agent("a", model=Scripted(answer), tools=[look], history=False)
            replies = await asyncio.gather(*(agent.send(f"s{n}", f"thing {n}", key="k") for n in range(many)))
            assert [reply.text for reply in replies] == [f"seen thing {n}" for n in range(many)]
            assert (agent._crew.tasks, agent._crew._driving, agent._crew.hub._reached) == (set(), {}, {})
            assert agent._crew.hub._said == {}
            assert (await hf.journal.verify()).findings == ()

    asyncio.run(main())


def test_one_conversation_answers_in_the_order_in_which_it_was_asked() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            agent = hf.agent("a", model=Scripted(lambda pack: f"To {pack.conversation.messages[-1].text}"))
            sent = [asyncio.ensure_future(agent.send(SESSION, str(n))) for n in range(10)]
            assert [(await one).text for one in sent] == [f"To {n}" for n in range(10)]
            assert [text for role, text in await spoken_async(hf) if role == "user"] == [str(n) for n in range(10)]

    asyncio.run(main())


# closing


def test_closing_leaves_what_runs_live(tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.open_async(tmp_path / "a.db") as hf:
            model = Gated(["never"])
            agent = hf.agent("a", model=model)
            sends = [asyncio.ensure_future(agent.send(f"s{n}", "Hello", key="k")) for n in range(3)]
            listening = asyncio.ensure_future(_heard(agent.stream("s3", "Hello", key="k")))
            await model.begun.wait()
            await asyncio.sleep(0.03)
            tailing = asyncio.ensure_future(_heard(agent.tail("s0")))
            await asyncio.sleep(0.02)
        for one in await asyncio.gather(*sends, listening, tailing, return_exceptions=True):
            assert isinstance(one, Closed | Draining), one
        with pytest.raises(Closed):
            await agent.send("s0", "Hello", key="k")
        async with holdfast.open_async(tmp_path / "a.db") as hf:
            again = hf.agent("a", model=Scripted(["Hi."]))
            for n in range(4):
                assert (await again.send(f"s{n}", "Hello", key="k")).text == "Hi."
                assert await spoken_async(hf, f"s{n}") == [("user", "Hello"), ("assistant", "Hi.")]
            assert (await hf.journal.verify()).findings == ()

    asyncio.run(main())


def test_closing_lets_threads_that_wait_or_listen_go(tmp_path: Path) -> None:
    hf = holdfast.open(tmp_path / "a.db")
    told: list[BaseException] = []
    here = threading.Event()

    class Slow(Scripted):
        async def reply(self, asked: Any, say: Any = None) -> Any:
            here.set()
            await asyncio.Event().wait()

    agent = hf.agent("a", model=Slow())

    def attempt(work: Any) -> None:
        try:
            work()
        except BaseException as error:  # whatever it is, it is looked at
            told.append(error)

    works = [lambda: agent.send("one", "Hello", key="k"), lambda: list(agent.stream("two", "Hello", key="k"))]
    threads = [threading.Thread(target=attempt, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    here.wait(5)
    for session in ("one", "two"):  # Who listens where nothing is under way is done at once.
        until(lambda session=session: len(hf.index.stack(f"actor/main/session/{session}/thread/main")) == 1)
    threads.append(threading.Thread(target=attempt, args=(lambda: list(agent.tail("one")),)))
    threads[-1].start()
    hf.close()
    for thread in threads:
        thread.join(5)
        assert not thread.is_alive()
    assert [type(error) for error in told] == [Closed] * 3
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-agents"]
    with holdfast.open(tmp_path / "a.db") as again:
        for session in ("one", "two"):
            assert again.agent("a", model=Scripted(["Hi."])).send(session, "Hello", key="k").text == "Hi."


def test_a_closed_client_begins_nothing(tmp_path: Path) -> None:
    hf = holdfast.open(tmp_path / "a.db")
    agent = hf.agent("a", model="scripted")
    agent.send(SESSION, "Hello")
    hf.close()
    for use in (lambda: agent.send(SESSION, "Hello"), lambda: list(agent.stream(SESSION, "Hello"))):
        with pytest.raises(Closed):
            use()
    with pytest.raises(Closed):
        list(agent.tail(SESSION))
    assert not [thread for thread in threading.enumerate() if thread.name == "holdfast-agents"]


def test_ctrl_c_leaves_the_turn_live_and_free_at_once(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    here = threading.Event()

    class Slow(Scripted):
        async def reply(self, asked: Any, say: Any = None) -> Any:
            here.set()
            await asyncio.Event().wait()

    class Interrupted(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            if not here.is_set():
                here.wait(5)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(
        loop_thread,
        "threading",
        SimpleNamespace(Event=Interrupted, **{n: getattr(threading, n) for n in ("Lock", "Thread", "current_thread")}),
    )
    with pytest.raises(KeyboardInterrupt):
        hf.agent("a", model=Slow()).send(SESSION, "Hello", key="k")
    assert hf.index.resume_actor(f"actor/main/session/{SESSION}/thread/main").holder is None, "it was waited for"
    assert hf.agent("a", model=Scripted(["Hi."])).send(SESSION, "Hello", key="k", if_busy="reject").text == "Hi."


def test_a_turn_that_is_left_is_live_and_free_at_once() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            model = Gated(["never"])
            agent = hf.agent("a", model=model)
            work = asyncio.ensure_future(agent.send(SESSION, "Hello", key="k"))
            await model.begun.wait()
            await agent._crew.cancel_all()
            with pytest.raises(Closed):
                await work
            again = hf.agent("a", model=Scripted(["Hi."]))
            assert (await again.send(SESSION, "Hello", key="k", if_busy="reject")).text == "Hi."

    asyncio.run(main())


def test_a_child_of_a_fork_works_on_its_own(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        agent = hf.agent("a", model=Scripted(["Hi."]))
        agent.send(SESSION, "Hello")

        def child() -> list[str]:
            return [agent.send("child", "Hello").text, *kinds(agent.stream("child", "Hello"))]

        assert in_child(child) == "['Hi.', 'message', 'delta', 'reply', 'done']"
        assert agent.send(SESSION, "Hello").text == "Hi."
        assert len(spoken(hf, "child")) == 4


def test_two_processes_on_one_turn_answer_it_once(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        answers: list[Any] = [ModelFailed("Away.", kind="unavailable", retryable=True)]
        with pytest.raises(ModelFailed):
            hf.agent("a", model=Scripted(lambda pack: answers.pop())).send(SESSION, "Hello", key="k")

        def child() -> str:
            return hf.agent("a", model=Scripted(["From one."])).send(SESSION, "Hello", key="k").text

        assert in_child(child) == "From one."
        model = Counted(["From another."])
        assert hf.agent("a", model=model).send(SESSION, "Hello", key="k").text == "From one."
        assert (model.asked, len(spoken(hf))) == (0, 2)


PATIENCE = 20.0


# a client that is closed


class Endless:
    """A model that answers nobody."""

    name = "endless"

    def __init__(self) -> None:
        self.called = threading.Event()

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        self.called.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def close(self) -> None:
        """There is nothing to close."""


def test_who_waited_in_line_learns_whether_anything_was_written(tmp_path: Path) -> None:
    model, told = Endless(), dict[str, str]()
    hf = holdfast.open(tmp_path / "a.db", durability="fast")
    agent: Agent[str] = hf.agent("a", model=model)

    def send(text: str) -> None:
        try:
            agent.send("s", text, key=text)
        except Closed as error:
            told[text] = str(error)

    threads = [threading.Thread(target=send, args=(f"m{nth}",)) for nth in range(3)]
    threads[0].start()
    assert model.called.wait(PATIENCE)
    for thread in threads[1:]:
        thread.start()
    late = time.monotonic() + PATIENCE
    while len(loop_thread.get_loop_thread(hf).threads.kept["crew"].tasks) < len(threads):
        assert time.monotonic() < late
        time.sleep(0.005)
    hf.close()
    for thread in threads:
        thread.join(PATIENCE)
    with holdfast.open(tmp_path / "a.db") as again:
        said = [one.text for one in again.session("s").messages()]
    assert said[0] == "m0"
    for text in ("m0", "m1", "m2"):  # One that came just as the first was left may have joined it.
        assert ("left as it stands" in told[text]) == (text in said)
        assert ("Nothing was written" in told[text]) == (text not in said)

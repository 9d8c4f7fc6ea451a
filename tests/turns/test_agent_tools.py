"""Tools of an agent: beside each other, each in a frame of its own, with questions, limits and agents within them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

import holdfast
from holdfast import Limits
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import ActorBusy, EffectFailed, InsufficientTokens, InvalidValue, Refused
from holdfast.flow.turns.engine import TurnEngine
from holdfast.model.scripted import Scripted, call
from holdfast.runtime.send import AgentSend
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from holdfast.runtime.tools.tool import AnyTool, tool
from tests.turns.agent_world import SESSION, Counted, facts, on_loop, spoken_async, until_async
from tests.turns.loops import asks, place, spoken

Holdfast = holdfast.Holdfast


def results(hf: Holdfast, session: str = SESSION) -> list[Any]:
    return [result.result for one in hf.session(session).messages() for result in one.tool_results]


# policies


def policies(hf: Holdfast) -> list[str | None]:
    found = [one for one in hf.session(SESSION).messages() if one.tool_results]
    return ["pinned" if one.pinned else one.policy for one in found]


def run_tools_with_policies(hf: Holdfast) -> None:
    """Call tools with and without a policy, and one that fails."""

    @tool(policy="discard_when_done")
    def scan() -> str:
        """List all rows."""
        return "row " * 100

    @tool(policy="pinned")
    async def read(fails: bool) -> str:
        """Read the rule."""
        if fails:
            raise OSError("no file")
        return "never green"

    @tool
    def look() -> str:
        """Look."""
        return "seen"

    script = [[call("scan")], [call("read", fails=False)], [call("read", fails=True)], [call("look")], "Done."]
    agent = hf.agent("a", model=Scripted(script), tools=[scan, read, look])
    assert agent.send(SESSION, "Paint the fence.").text == "Done."
    assert policies(hf) == ["discard_when_done", "pinned", None, None]
    made = hf.session(SESSION).compact(1, strategy="policy_trim", max_tokens=120)
    assert made is not None
    assert "row" not in made.text
    assert "never green" in str(hf.session(SESSION).pack().to_openai())


def test_the_policy_of_a_tool_is_that_of_its_results(hf: Holdfast) -> None:
    run_tools_with_policies(hf)


def test_a_planted_driver_that_forgets_the_policy_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    finish = TurnEngine.finish_tool
    monkeypatch.setattr(
        TurnEngine, "finish_tool", lambda self, call, value, *, files, policy: finish(self, call, value, files=files)
    )
    with pytest.raises(AssertionError):
        run_tools_with_policies(hf)


@pytest.mark.parametrize("wrong", ["keep", 3, ["pinned"]])
def test_an_unknown_policy_of_a_tool_is_refused(hf: Holdfast, wrong: Any) -> None:
    def look() -> str:
        """Look."""
        return "seen"

    with pytest.raises(InvalidValue, match="not a policy"):
        tool(policy=wrong)(look)
    with hf.session(SESSION).turn("Go.") as turn:
        (model,) = turn.steps()
        model.done(asks(("look", {})))  # type: ignore[attr-defined]
        step: Any
        (step,) = turn.steps()
        with pytest.raises(InvalidValue, match="not a policy"):
            step.done("seen", policy=wrong)
        assert step.done("seen", policy="compress_first").policy == "compress_first", "nothing was written before"
        turn.stop()
    assert policies(hf) == ["compress_first"]


def test_a_policy_is_given_in_an_asyncio_loop() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            chat = await hf.session(SESSION)
            async with chat.turn("Go.") as turn:
                async for step in turn:
                    work: Any = step
                    if isinstance(step, holdfast.CallModel):
                        await work.done(asks(("look", {})))
                    elif isinstance(step, holdfast.CallTool):
                        assert (await work.done("seen", policy="pinned")).pinned
                        await turn.stop()

    asyncio.run(main())


# beside each other


def test_tools_run_beside_each_other_in_threads(hf: Holdfast) -> None:
    together = threading.Barrier(3, timeout=5)

    @tool
    def meet(n: int) -> int:
        """Wait for the others."""
        together.wait()
        return n

    agent = hf.agent("a", model=Scripted([[call("meet", n=n) for n in range(3)], "All met."]), tools=[meet])
    assert agent.send(SESSION, "Meet.").text == "All met."
    assert sorted(results(hf)) == [0, 1, 2]


def test_async_tools_run_beside_each_other_on_the_loop(hf: Holdfast) -> None:
    here: list[int] = []

    @tool
    async def meet(n: int) -> int:
        """Wait for the others."""
        here.append(n)
        while len(here) < 3:
            await asyncio.sleep(0)
        return n

    agent = hf.agent("a", model=Scripted([[call("meet", n=n) for n in range(3)], "All met."]), tools=[meet])
    assert agent.send(SESSION, "Meet.").text == "All met."


def test_one_waits_while_the_others_finish(hf: Holdfast) -> None:
    ran: list[str] = []

    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        ran.append("pay")
        return "paid"

    @tool
    def look() -> str:
        """Look."""
        ran.append("look")
        return "seen"

    agent = hf.agent("a", model=Scripted([[call("pay"), call("look"), call("look")], "Done."]), tools=[pay, look])
    waiting = agent.send(SESSION, "Go.")
    assert (waiting.status, ran, results(hf)) == ("waiting", ["look", "look"], ["seen", "seen"])
    hf.answer(waiting.questions[0].id, approve=True)
    assert (agent.send(SESSION).text, ran) == ("Done.", ["look", "look", "pay"])


def test_several_tools_ask_at_once_and_each_gets_its_own_answer(hf: Holdfast) -> None:
    heard: dict[int, Any] = {}

    @tool
    def choose(n: int, call: ToolCall) -> str:
        """Ask which."""
        heard[n] = call.ask(f"Which for {n}?", kind="input", options=["left", "right"]).payload
        return f"{n}: {heard[n]}"

    agent = hf.agent("a", model=Scripted([[call("choose", n=n) for n in range(3)], "Chosen."]), tools=[choose])
    waiting = agent.send(SESSION, "Choose.")
    assert sorted(str(one.reason) for one in waiting.questions) == [f"Which for {n}?" for n in range(3)]
    for one in waiting.questions[:2]:
        hf.answer(one.id, payload="left" if "0" in str(one.reason) else "right")
    partly = agent.send(SESSION)
    assert (partly.status, len(partly.questions), len(results(hf))) == ("waiting", 1, 2)
    hf.answer(partly.questions[0].id, payload="left")
    assert agent.send(SESSION).text == "Chosen."
    assert sorted(results(hf)) == sorted(f"{n}: {heard[n]}" for n in range(3))


# frames


def test_each_tool_has_a_frame_of_its_own_with_its_grant(hf: Holdfast) -> None:
    seen: dict[str, Any] = {}

    @tool(tokens=500)
    def rich(call: ToolCall) -> str:
        """Has something to spend."""
        seen["rich"] = (call.frame.id, call.frame.left, call.frame.info().parent)
        assert call.key == call.frame.id
        with call.frame.frame("below", tokens=100) as child:
            seen["below"] = (child.left, child.info().parent)
        return "ok"

    @tool
    def poor(call: ToolCall) -> str:
        """Has nothing to spend."""
        with pytest.raises(InsufficientTokens), call.frame.frame("below", tokens=1):
            pass
        seen["poor"] = (call.frame.id, call.frame.left)
        return "ok"

    agent = hf.agent("a", model=Scripted([[call("rich"), call("poor")], "Done."]), tools=[rich, poor], tokens=50_000)
    reply = agent.send(SESSION, "Go.")
    assert reply.text == "Done."
    assert results(hf) == ["ok", "ok"]
    assert seen["rich"][1:] == (500, reply.turn_id)
    assert seen["below"] == (100, seen["rich"][0])
    assert seen["poor"][1] == 0
    asked = {one.call: one.name for one in facts(hf, "tool.requested")}
    assert asked == {seen["rich"][0]: "rich", seen["poor"][0]: "poor"}
    assert {hf.index.get_frame(id).status for id in asked} == {"completed"}


def test_a_grant_that_the_turn_cannot_afford_stops_it(hf: Holdfast) -> None:
    @tool(tokens=90_000)
    def greedy() -> str:
        """Wants too much."""
        raise AssertionError("it never runs")

    reply = hf.agent("a", model=Scripted([call("greedy"), "no"]), tools=[greedy], tokens=50_000).send(SESSION, "Go.")
    assert (reply.status, str(reply.reason).split(":")[0]) == ("stopped", "budget")


def test_a_limit_on_depth_is_the_tools_problem(hf: Holdfast) -> None:
    @tool
    def deep(call: ToolCall) -> str:
        """Goes deep."""
        with call.frame.frame("one"):
            return "deep enough"

    agent = hf.agent("a", model=Scripted([call("deep"), "Done."]), tools=[deep], limits=Limits(depth=1))
    assert agent.send(SESSION, "Go.").text == "Done."
    assert "MaxDepthExceeded" in str(results(hf))


def test_what_a_tool_attaches_is_shown_to_the_model(hf: Holdfast) -> None:
    @tool
    def fetch(call: ToolCall) -> str:
        """Fetch evidence."""
        call.attach("tool_output", description="the invoice", body="Total: 240")
        call.ask("Is it right?")
        call.attach("tool_output", description="the stamp", body="Checked.", key="stamp")
        return "attached"

    model = Counted([call("fetch"), "Done."])
    agent = hf.agent("a", model=model, tools=[fetch])
    (question,) = agent.send(SESSION, "Go.").questions
    hf.answer(question.id, approve=True)
    assert agent.send(SESSION).text == "Done."
    shown = str(model.requests[-1].pack.to_openai())
    assert (shown.count("Total: 240"), shown.count("Checked.")) == (1, 1), "though the tool ran twice"


def test_what_a_tool_has_run_is_kept_over_a_question(hf: Holdfast) -> None:
    charged: list[int] = []

    @tool
    def book(call: ToolCall) -> str:
        """Charge once, ask, go on."""
        charge = call.frame.run(lambda: charged.append(1) or "charge-1", key="charge")
        seat = call.ask("Which seat?", kind="input", options=["12A", "12B"]).payload
        return f"{charge} {seat}"

    agent = hf.agent("a", model=Scripted([call("book"), "Booked."]), tools=[book])
    (question,) = agent.send(SESSION, "Book.").questions
    hf.answer(question.id, payload="12A")
    assert agent.send(SESSION).text == "Booked."
    assert (charged, results(hf)) == ([1], ["charge-1 12A"])


# history


def test_a_fact_that_fell_out_of_the_pack_is_found_through_the_tools(hf: Holdfast) -> None:
    filler = "Nothing of note happened on this day, and it went on for a while. " * 12
    chat = hf.session(SESSION, model="scripted")
    chat.append("The code of the safe is TANGERINE-77.")
    for number in range(60):
        chat.append({"role": "assistant" if number % 2 == 0 else "user", "content": f"{number}: {filler}"})
    shown: list[str] = []

    def answer(pack: Any) -> Any:
        shown.append(str(pack.to_openai()["messages"]))
        last = pack.conversation.messages[-1]
        if last.role != "tool":
            return call("search_history", query="code of the safe")
        found = str(last.tool_results[0].result)
        if "TANGERINE" in found and len(shown) == 2:
            return "It is TANGERINE-77."
        return call("expand", handle=found.split(maxsplit=1)[0])

    agent = hf.agent("a", model=Scripted(answer), limits=Limits(context_tokens=4_000))
    reply = agent.send(SESSION, "What is the code?", key="k")
    assert "TANGERINE" not in shown[0], "it was cut from the pack"
    assert reply.text == "It is TANGERINE-77."
    before = hf.journal.position()
    assert agent.send(SESSION, "What is the code?", key="k").text == reply.text
    assert hf.journal.position() == before
    asked = facts(hf, "tool.requested")
    assert [one.name for one in asked] == ["search_history"]
    assert len(facts(hf, "tool.returned")) == len(asked)


def test_without_history_there_are_no_such_tools(hf: Holdfast) -> None:
    model = Counted(["Hi."])
    hf.agent("a", model=model, history=False).send(SESSION, "Hello")
    assert "tools" not in model.requests[0].pack.to_openai()
    hf.agent("b", model=model).send("other", "Hello")
    named = [one["function"]["name"] for one in model.requests[1].pack.to_openai()["tools"]]
    assert named == ["expand", "search_history"]


# agents within tools


def test_a_tool_may_send_to_another_agent(hf: Holdfast) -> None:
    expert = hf.agent("expert", model=Scripted(["It is 42."]))

    @tool
    def ask_expert(question: str, call: ToolCall) -> str:
        """Ask the expert."""
        return expert.send("experts", question, key=call.key).text

    agent = hf.agent("a", model=Scripted([call("ask_expert", question="What is it?"), "42."]), tools=[ask_expert])
    assert agent.send(SESSION, "Go.").text == "42."
    assert results(hf) == ["It is 42."]
    assert spoken(hf, "experts") == [("user", "What is it?"), ("assistant", "It is 42.")]


def test_more_tools_that_wait_for_tools_than_there_are_threads(hf: Holdfast) -> None:
    @tool
    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    inner = hf.agent("inner", model=Scripted([call("add", a=1, b=2), "3."]), tools=[add], history=False)

    @tool
    def ask_inner(n: int) -> str:
        """Ask another agent, which has tools as well."""
        return inner.send(f"inner-{n}", "1 + 2?").text

    calls = [call("ask_inner", n=n) for n in range(20)]
    outer = hf.agent("outer", model=Scripted([calls, "Done."]), tools=[ask_inner], history=False)
    assert outer.send(SESSION, "Go.").text == "Done."
    assert results(hf) == ["3."] * 20


@pytest.mark.parametrize("if_busy", ["queue", "join", "interrupt"])
def test_a_tool_that_would_wait_for_its_own_turn_is_refused(hf: Holdfast, if_busy: str) -> None:
    told: list[str] = []

    @tool
    def recurse() -> str:
        """Send to the same conversation."""
        with pytest.raises(Refused, match="wait for itself") as caught:
            agent.send(SESSION, "Again", if_busy=if_busy)
        told.append(str(caught.value))
        with pytest.raises(Refused, match="wait for itself"):
            list(agent.stream(SESSION, "Again", if_busy=if_busy))
        with pytest.raises(ActorBusy):
            agent.send(SESSION, "Again", if_busy="reject")
        return agent.send("elsewhere", "Hello").text

    agent = hf.agent("a", model=Scripted({"go": [call("recurse"), "Done."], "hello": "Hi."}), tools=[recurse])
    assert agent.send(SESSION, "Go.").text == "Done."
    assert (len(told), results(hf)) == (1, ["Hi."])
    assert agent.send(SESSION, "Hello").text == "Hi.", "afterwards it is free"


def test_a_circle_of_agents_is_refused_as_well(hf: Holdfast) -> None:
    @tool
    def ask_b() -> str:
        """Ask b."""
        return b.send("b", "Go.").text

    @tool
    def ask_a() -> str:
        """Ask a."""
        return a.send("a", "Go.").text

    a = hf.agent("a", model=Scripted([call("ask_b"), "A is done."]), tools=[ask_b])
    b = hf.agent("b", model=Scripted([call("ask_a"), "B is done."]), tools=[ask_a])
    assert a.send("a", "Go.").text == "A is done."
    assert "wait for itself" in str(results(hf, "b"))


def test_a_tool_on_the_loop_may_not_block_it(hf: Holdfast) -> None:
    @tool
    async def careless() -> str:
        """Call the agent for threads from the loop."""
        return hf.agent("b", model="scripted").send("elsewhere", "Hello").text

    assert (
        hf.agent("a", model=Scripted([call("careless"), "Done."]), tools=[careless]).send(SESSION, "Go.").text
        == "Done."
    )
    assert "def" in str(results(hf))


def test_an_async_tool_may_send_to_another_agent_of_its_loop() -> None:
    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            expert = hf.agent("expert", model=Scripted(["It is 42."]))

            @tool
            async def ask_expert(question: str, call: AsyncToolCall) -> str:
                """Ask the expert."""
                with pytest.raises(Refused, match="wait for itself"):
                    await agent.send(call.session, "Again")
                reply = await expert.send("experts", question, key=call.key)
                return reply.text

            script = [call("ask_expert", question="What is it?"), "42."]
            agent = hf.agent("a", model=Scripted(script), tools=[ask_expert])
            assert (await agent.send(SESSION, "Go.")).text == "42."

            left: list[asyncio.Task[Any]] = []

            @tool
            async def later() -> str:
                """Begin something that outlives the turn."""

                async def follow_up() -> str:
                    await over.wait()
                    return (await follow.send("own", "Hello")).text

                left.append(asyncio.ensure_future(follow_up()))
                return "begun"

            over = asyncio.Event()
            follow = hf.agent("f", model=Scripted({"go": [call("later"), "Done."], "hello": "Hi."}), tools=[later])
            assert (await follow.send("own", "Go.")).text == "Done."
            over.set()
            assert await left[0] == "Hi.", "the turn that it came from is over"

    asyncio.run(main())


def test_the_frames_of_tools_are_where_the_turn_is(hf: Holdfast) -> None:
    @tool(needs_approval=True)
    def pay() -> str:
        """Pay."""
        return "paid"

    waiting = hf.agent("a", model=Scripted([call("pay"), "Done."]), tools=[pay]).send(SESSION, "Go.")
    stack = hf.index.stack(place())
    assert next((one.id == waiting.turn_id, one.status) for one in stack) == (True, "waiting")
    assert stack[-1].parent == waiting.turn_id


# a server of tools that is away


class Server:
    """Tools that are asked for over a wire."""

    def __init__(self) -> None:
        self.away = False

    async def tools(self) -> Sequence[AnyTool]:
        if self.away:
            raise EffectFailed("The server is away.")

        @tool
        async def look() -> str:
            """Look."""
            return "seen"

        return [look]


async def without_a_server(hf: AsyncHoldfast) -> None:
    server = Server()
    agent = hf.agent("a", model=Scripted([call("look"), "Seen."]), tools=[server])
    assert (await agent.send(SESSION, "One", key="1")).text == "Seen."
    server.away = True
    assert (await agent.send(SESSION, "One", key="1")).text == "Seen.", "what was answered needs no server"
    with pytest.raises(EffectFailed):
        await agent.send(SESSION, "Two", key="2")
    assert (await spoken_async(hf))[-1] == ("user", "Two"), "it is in the journal"
    stream = agent.stream("new", "Three", key="3")
    assert (await anext(stream)).kind == "message"
    with pytest.raises(EffectFailed):
        await anext(stream)
    async with agent.recovering(every=0.01, on_error=lambda failure: None) as recovering:
        await until_async(lambda: recovering.failures)
        server.away = False
        await until_async(lambda: recovering.taken_up == 2)
    assert (await agent.send(SESSION, "Two", key="2")).text == "Seen."
    assert (await agent.send("new", "Three", key="3")).text == "Seen."
    assert (agent._crew.hub._reached, agent._crew.hub._said) == ({}, {})


def test_a_message_is_not_lost_with_a_server_of_tools() -> None:
    on_loop(without_a_server)


def test_a_message_that_waits_for_a_server_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = AgentSend.run

    async def lists_first(self: AgentSend[Any]) -> Any:
        await self._load_settings(self._made.model)
        return await run(self)

    monkeypatch.setattr(AgentSend, "run", lists_first)
    with pytest.raises(EffectFailed):
        on_loop(without_a_server)

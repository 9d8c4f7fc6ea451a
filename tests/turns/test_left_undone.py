"""What was under way when a process died: each call is listed with its class, and listeners hear of what happens."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli.main import main
from holdfast.flow.frames import takeover
from holdfast.model.scripted import Scripted, call
from holdfast.runtime.tasks import get_agent_tasks
from holdfast.runtime.tools.call import AsyncToolCall
from holdfast.runtime.tools.tool import tool
from tests.turns.agent_world import Gated, until, until_async
from tests.turns.loops import place

TOOLS = ("lookup", "pay", "fragile", "refund", "careful", "sleepy", "nested")
WAITS = ("waiting_for_subcall", "children", None, False)
ALONE = {
    "model": [("model_in_progress", "retry", "scripted", False)],
    "lookup": [("tool_in_progress", "retry", "lookup", False)],
    "pay": [("tool_in_progress", "ask", "pay", True)],
    "fragile": [("tool_in_progress", "fail", "fragile", True)],
    "refund": [WAITS, ("waiting_for_user", "answer", None, False)],
    "careful": [WAITS, ("waiting_for_user", "answer", None, False)],
    "sleepy": [WAITS, ("waiting", "answer", None, False)],
    "nested": [WAITS, WAITS, ("waiting_for_user", "answer", None, False)],
}


def stuck_agent(hf: Any, inside: list[str]) -> Any:
    """An agent that hangs in the model, or in the tools that it is told to call."""

    async def hang() -> str:
        await asyncio.sleep(600)
        return ""

    @tool(if_interrupted="retry")
    async def lookup() -> str:
        """Hang, and run again."""
        inside.append("lookup")
        return await hang()

    @tool
    async def pay() -> str:
        """Hang, and ask."""
        inside.append("pay")
        return await hang()

    @tool(if_interrupted="fail")
    async def fragile() -> str:
        """Hang, and fail."""
        inside.append("fragile")
        return await hang()

    @tool(needs_approval=True)
    async def refund() -> str:
        """Wait for a yes."""
        return ""

    @tool
    async def careful(call: AsyncToolCall) -> str:
        """Ask."""
        inside.append("careful")
        return str(await call.ask("Sure?"))

    @tool
    async def sleepy(call: AsyncToolCall) -> str:
        """Sleep."""
        inside.append("sleepy")
        await call.sleep(600)
        return ""

    @tool
    async def nested(call: AsyncToolCall) -> str:
        """Ask below."""
        inside.append("nested")
        async with call.frame.frame("below") as below:
            return str(await below.ask("Sure below?", key="q"))

    async def model(pack: Any) -> Any:
        text = pack.conversation.messages[-1].text
        if text != "model":
            return [call(name) for name in text.split()]
        inside.append("model")
        return await hang()

    tools = [lookup, pay, fragile, refund, careful, sleepy, nested]
    return hf.agent("a", model=Scripted(model), tools=tools, history=False)


async def leave(hf: Any, text: str) -> None:
    """A turn that was left in the middle of these."""
    inside: list[str] = []
    names = set(text.split())
    sending = asyncio.ensure_future(stuck_agent(hf, inside).send("s", text))
    await until_async(lambda: names - {"refund"} <= set(inside))
    async with asyncio.timeout(10):
        while len([one async for one in hf.questions()]) < len(names & {"refund", "careful", "sleepy", "nested"}):
            await asyncio.sleep(0.001)
        if not names & {"model", "lookup", "pay", "fragile"}:
            await sending  # Everything waits, so it comes back.
    await get_agent_tasks(hf).cancel_all()
    await asyncio.gather(sending, return_exceptions=True)


def listed(pending: Any) -> list[tuple[str, str, str | None, bool]]:
    return [(one.kind, one.next, one.name, one.unsafe_to_retry) for one in pending]


async def pending_after(text: str) -> list[tuple[str, str, str | None, bool]]:
    async with holdfast.open_async("memory:") as hf:
        await leave(hf, text)
        found = await hf.index.resume_actor(place("s"))
        assert {one.frame for one in found.pending} <= {one.id for one in found.frames}
        return listed(found.pending)


@pytest.mark.parametrize("name", ALONE)
def test_a_call_in_flight_is_listed_with_its_class(name: str) -> None:
    assert asyncio.run(pending_after(name)) == ALONE[name]


def test_calls_beside_each_other_are_listed_each_with_its_class() -> None:
    found = asyncio.run(pending_after(" ".join(TOOLS)))
    apart = [entry for name in TOOLS for entry in ALONE[name] if entry != WAITS]
    assert sorted(found, key=str) == sorted([*apart, WAITS, WAITS], key=str)
    assert [entry[2] for entry in found[:3]] == ["lookup", "pay", "fragile"], "what may have happened comes first"


def test_a_call_that_waits_and_is_listed_as_torn_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(takeover, "_waiting_calls", lambda state, frame: set())
    assert asyncio.run(pending_after("careful")) != ALONE["careful"]


def test_the_command_line_lists_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def made() -> None:
        async with holdfast.open_async(tmp_path / "a.db", durability="fast") as hf:
            await leave(hf, "lookup pay refund")

    asyncio.run(made())
    assert main(["stack", str(tmp_path / "a.db"), "--pending", "--json"]) == 0
    (scope,) = json.loads(capsys.readouterr().out)["scopes"]
    shown = [(one["kind"], one["next"], one["name"], one["unsafe_to_retry"]) for one in scope["pending"]]
    assert shown == [*ALONE["lookup"], *ALONE["pay"], *ALONE["refund"]]
    assert main(["stack", str(tmp_path / "a.db"), "--pending"]) == 0
    words = capsys.readouterr().out
    assert "lookup" in words
    assert "pay" in words
    assert "may it run?" in words


# listening


def test_listeners_hear_what_happens_to_turns() -> None:
    heard: list[tuple[str, str]] = []

    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            for name in ("turn.joined", "cancel.requested", "question.answered"):
                hf.on(name, lambda event: heard.append((event.type, event.facts.frame)))
            undo = hf.on("turn.joined", lambda event: heard.append(("never", "")))
            undo()
            model = Gated(["Done."])
            agent = hf.agent("a", model=model)
            sending = asyncio.ensure_future(agent.send("s", "Hello"))
            await model.begun.wait()
            joining = asyncio.ensure_future(agent.send("s", "And this?", if_busy="join"))
            await until_async(lambda: len(heard) == 1)
            assert await agent.stop("s")
            await until_async(lambda: len(heard) == 2)
            replies = await asyncio.gather(sending, joining)
            assert [reply.status for reply in replies] == ["stopped", "stopped"]
            turn = replies[0].turn_id
            assert heard == [("turn.joined", turn), ("cancel.requested", turn)]
            asked = await stuck_agent(hf, []).send("t", "refund")
            await hf.answer(asked.questions[0].id, approve=False)
            await until_async(lambda: len(heard) == 3)
            assert heard[2] == ("question.answered", asked.questions[0].frame)

    asyncio.run(test())


def test_a_listener_may_be_async_and_may_fail_without_harm() -> None:
    heard: list[str] = []

    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:

            async def slowly(event: Any) -> None:
                await asyncio.sleep(0)
                heard.append(event.type)

            hf.on("frame.popped", slowly)
            assert (await hf.agent("a", model=Scripted(["Done."])).send("s", "Hello")).status == "done"
            await until_async(lambda: heard == ["frame.popped"])

    asyncio.run(test())
    with holdfast.open("memory:") as hf:
        hf.on("turn.joined", lambda event: 1 // 0)
        with hf.session("s").turn("Hello"):
            pass
        with pytest.warns(RuntimeWarning, match="ZeroDivisionError"), hf.session("s").turn("And this?"):
            pass


def test_listeners_of_code_without_asyncio_hear_of_an_agents_turns() -> None:
    heard: list[str] = []
    with holdfast.open("memory:") as hf:
        hf.on("question.answered", lambda event: heard.append(event.facts.question))
        agent = stuck_agent(hf, [])
        asked = agent.send("s", "refund")
        hf.answer(asked.questions[0].id, approve=False)
        until(lambda: heard == [asked.questions[0].id])

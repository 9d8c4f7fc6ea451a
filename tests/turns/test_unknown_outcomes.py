"""Calls that were made and whose outcome nobody knows: out of their time, or cut off from whoever does the work."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import McpServer, Scripted, ToolCall, tool
from holdfast.errors import ToolInterrupted
from holdfast.flow.turns.tool_calls import CHECK_FIRST
from holdfast.model.scripted import call
from holdfast.runtime import driver
from holdfast.runtime.driver import ATTEMPT_LIMIT
from tests.backends import IN_MEMORY
from tests.turns.loops import SESSION, types
from tests.turns.test_mcp_tools import COMMAND

Holdfast = holdfast.Holdfast
HINTS = {"shop_look_up": "retry", "shop_cancel": "retry", "shop_pay": "ask", "shop_refuse": "fail"}


class Slow:
    """Payments whose confirmation does not come in time, in a thread, in a coroutine, or because the line is cut."""

    def __init__(self, hf: Holdfast, how: str, **given: Any) -> None:
        self.hf, self.keys, self.attempts = hf, [], []
        self.hangs, self.over = True, threading.Event()
        made = {"thread": self._thread, "async": self._coroutine, "cut": self._cut}[how]
        self.agent = hf.agent("a", model=Scripted([call("pay", order=17), "Done."]), tools=[made(given)], history=False)

    def _note(self, call: Any) -> bool:
        self.keys.append(call.key)
        self.attempts.append(call.attempt)
        return self.hangs

    def _thread(self, given: Any) -> Any:
        @tool(timeout=0.02, **given)
        def pay(order: int, call: ToolCall) -> str:
            """Pay."""
            if self._note(call):
                self.over.wait(20)
            return "paid"

        return pay

    def _coroutine(self, given: Any) -> Any:
        @tool(timeout=0.02, **given)
        async def pay(order: int, call: holdfast.AsyncToolCall) -> str:
            """Pay."""
            if self._note(call):
                await asyncio.Event().wait()
            return "paid"

        return pay

    def _cut(self, given: Any) -> Any:
        @tool(**given)
        def pay(order: int, call: ToolCall) -> str:
            """Pay."""
            if self._note(call):
                raise ToolInterrupted("The bank hung up.")
            return "paid"

        return pay

    def send(self) -> Any:
        return self.agent.send(SESSION, "Pay.", key="k")

    def result(self) -> Any:
        (found,) = [one for message in self.hf.session(SESSION).messages() for one in message.tool_results]
        return found


@pytest.fixture(params=["thread", "async", "cut"])
def how(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def slow(hf: Holdfast, how: str, request: pytest.FixtureRequest) -> Iterator[Slow]:
    made = Slow(hf, how, **request.param)
    yield made
    made.over.set()


def given(**how: Any) -> Any:
    return pytest.mark.parametrize("slow", [how], indirect=True, ids=[how.get("if_interrupted", "nothing said")])


@pytest.mark.parametrize("slow", [{}, {"if_interrupted": "fail"}], indirect=True, ids=["nothing", "fail"])
def test_the_model_is_told_that_it_may_have_run_and_is_not_to_be_repeated(slow: Slow) -> None:
    assert slow.send().text == "Done."
    told = slow.result()
    assert (told.is_error, told.interrupted, len(slow.keys)) == (True, True, 1)
    assert told.result.endswith(f"It may or may not have taken effect. {CHECK_FIRST}")


@given(if_interrupted="ask")
def test_one_that_is_to_be_asked_about_is_asked_about(slow: Slow) -> None:
    reply = slow.send()
    (question,) = reply.questions
    assert (reply.status, len(slow.keys), question.call) == ("waiting", 1, slow.keys[0])
    assert question.reason.startswith("pay(17) may have run: ")
    assert question.reason.endswith(". Run again?")
    assert slow.send().status == "waiting", "whoever comes back is asked the same, and nothing runs"
    assert len(slow.keys) == 1
    slow.hangs = False
    slow.hf.answer(question.id, approve=True)
    assert slow.send().text == "Done."
    assert (slow.attempts, len(set(slow.keys)), slow.result().result) == ([1, 2], 1, "paid")


@given(if_interrupted="ask")
def test_a_no_tells_the_model_that_it_may_have_run(slow: Slow) -> None:
    (question,) = slow.send().questions
    slow.hf.answer(question.id, approve=False)
    assert slow.send().text == "Done."
    assert (len(slow.keys), slow.result().interrupted, CHECK_FIRST in slow.result().result) == (1, True, True)


@given(if_interrupted="retry")
def test_one_that_may_run_again_runs_again_under_its_key_and_not_for_ever(slow: Slow) -> None:
    assert slow.send().text == "Done."
    assert (slow.attempts, len(set(slow.keys))) == ([1, 2, 3], 1)
    assert ATTEMPT_LIMIT == 3
    assert CHECK_FIRST in slow.result().result
    assert types(slow.hf).count("tool.returned") == 1


@given(if_interrupted="retry")
def test_it_is_done_as_soon_as_it_comes_through(slow: Slow, monkeypatch: pytest.MonkeyPatch) -> None:
    left_open = driver.TurnDriver._handle_unknown

    def then_goes(self: Any, *args: Any) -> Any:
        slow.hangs = False
        return left_open(self, *args)

    monkeypatch.setattr(driver.TurnDriver, "_handle_unknown", then_goes)
    assert slow.send().text == "Done."
    assert (slow.attempts, slow.result().result) == ([1, 2], "paid")


# MCP servers


def agent_of(hf: Holdfast, server: McpServer, name: str, **args: Any) -> Any:
    return hf.agent("a", model=Scripted([call(name, **args), "Done."]), tools=[server], history=False)


@IN_MEMORY
def test_a_server_that_dies_in_a_payment_is_asked_about_and_never_called_again_unasked(
    hf: Holdfast, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    agent = agent_of(hf, McpServer(command=COMMAND), "pay", order=13, ledger=str(ledger))
    (question,) = agent.send(SESSION, "Pay.", key="k").questions
    assert "may have run: The MCP server" in question.reason
    assert ledger.read_text().split() == ["13"]
    hf.answer(question.id, approve=True, args={"order": 14, "ledger": str(ledger)})
    assert agent.send(SESSION, "Pay.", key="k").text == "Done."
    assert ledger.read_text().split() == ["13", "14"]


@IN_MEMORY
@pytest.mark.parametrize("way", ["fail", "retry"])
def test_what_you_say_of_a_servers_tool_goes_before_its_hints(hf: Holdfast, tmp_path: Path, way: Any) -> None:
    ledger = tmp_path / "ledger"
    server = McpServer(command=COMMAND, if_interrupted={"pay": way})
    agent = agent_of(hf, server, "pay", order=13, ledger=str(ledger))
    assert agent.send(SESSION, "Pay.", key="k").text == "Done."
    assert ledger.read_text().split() == ["13"] * (ATTEMPT_LIMIT if way == "retry" else 1)
    (result,) = hf.session(SESSION).messages()[2].tool_results
    assert result.result.endswith(f"It may or may not have taken effect. {CHECK_FIRST}")


def test_a_servers_hints_say_what_becomes_of_its_calls() -> None:
    async def found() -> dict[str, Any]:
        async with McpServer(command=COMMAND, prefix="shop_") as server:
            return {one.name: one for one in await server.tools()}

    tools = asyncio.run(found())
    assert {name: tools[name].if_unknown for name in HINTS} == HINTS
    assert tools["shop_refuse"].if_interrupted == "ask", "after a crash nobody is told anything, so somebody is asked"

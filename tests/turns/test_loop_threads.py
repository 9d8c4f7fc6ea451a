"""The loop of agents without asyncio: whatever a tool, a model or the loop itself does, nobody waits for ever."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.errors import Closed
from holdfast.model.scripted import Scripted, call
from holdfast.models import ModelReply
from holdfast.records.messages import Message
from holdfast.runtime import loop_thread, tasks
from holdfast.runtime.loop_thread import LoopThread, get_loop_thread
from holdfast.runtime.tools import tool as tool_run
from holdfast.runtime.tools.tool import AnyTool, tool
from tests.turns.agent_world import SESSION, until

PATIENCE = 5.0


@tool
def in_thread() -> str:
    """Fail."""
    raise KeyboardInterrupt


@tool
async def on_the_loop() -> str:
    """Fail."""
    raise KeyboardInterrupt


TOOLS = [in_thread, on_the_loop]


def in_background(act: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Something in a thread, and what came of it."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(act())
        except BaseException as error:  # It is what came of it.
            came.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, came


def waited(act: Callable[[], Any]) -> Any:
    """What came of something that must not take for ever."""
    thread, came = in_background(act)
    thread.join(PATIENCE)
    assert came, "it waits for ever"
    return came[0]


class Held:
    """A model that gives a sign and goes on when it may."""

    name = "held"

    def __init__(self) -> None:
        self.begun, self.go_on = threading.Event(), threading.Event()

    async def reply(self, asked: Any, say: Any = None) -> ModelReply:
        self.begun.set()
        while not self.go_on.is_set():
            await asyncio.sleep(0.001)
        return ModelReply(message=Message(role="assistant", content="Late."))

    async def close(self) -> None:
        pass


def interrupts_itself(hf: Holdfast, bad: AnyTool) -> None:
    model = Held()
    other, answer = in_background(lambda: hf.agent("b", model=model).send("other", "Hello").text)
    assert model.begun.wait(PATIENCE)
    agent: Any = hf.agent("a", model=Scripted([call(bad.name), "Sorry."]), tools=[bad])
    assert waited(lambda: agent.send(SESSION, "Go").text) == "Sorry."
    (failed,) = [one for message in hf.session(SESSION) for one in message.tool_results]
    assert failed.is_error
    assert "KeyboardInterrupt" in str(failed.result)
    model.go_on.set()
    other.join(PATIENCE)
    assert answer == ["Late."], "others are not touched"


@pytest.mark.parametrize("bad", TOOLS, ids=lambda one: one.name)
def test_a_tool_that_interrupts_itself_has_failed_and_nobody_else_has(bad: AnyTool) -> None:
    with holdfast.open("memory:") as hf:
        interrupts_itself(hf, bad)


@pytest.mark.parametrize("bad", TOOLS, ids=lambda one: one.name)
def test_a_tool_whose_interruption_ends_others_is_noticed(bad: AnyTool, monkeypatch: pytest.MonkeyPatch) -> None:
    async def awaited(name: str, function: Any, given: Any) -> Any:
        return await function(**given)

    monkeypatch.setattr(tool_run, "_run_async", awaited)
    monkeypatch.setattr(tool_run, "_run_sync", lambda name, function, given: function(**given))
    with pytest.raises(AssertionError), holdfast.open("memory:") as hf:
        interrupts_itself(hf, bad)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_task_that_wants_the_process_to_end_ends_alone(error: type[BaseException]) -> None:
    async def ends() -> None:
        raise error

    async def goes_on(began: threading.Event, go_on: threading.Event) -> str:
        began.set()
        while not go_on.is_set():
            await asyncio.sleep(0.001)
        return "done"

    with holdfast.open("memory:") as hf:
        loop, began, go_on = get_loop_thread(hf), threading.Event(), threading.Event()
        other, came = in_background(lambda: loop.run(goes_on(began, go_on)))
        assert began.wait(PATIENCE)
        assert isinstance(waited(lambda: loop.run(ends())), error)
        go_on.set()
        other.join(PATIENCE)
        assert came == ["done"]
        assert waited(lambda: hf.agent("a", model=Scripted(["Hi."])).send(SESSION, "Hello").text) == "Hi."


def breaks(loop: LoopThread) -> None:
    """Something in the loop itself fails, and it runs no more."""
    selector: Any = loop._loop._selector  # type: ignore[attr-defined]

    def select(timeout: float | None = None) -> Any:
        raise OSError("no more files")

    loop.call(lambda: setattr(selector, "select", select))


def ends_by_itself(hf: Holdfast) -> None:
    model = Held()
    sender, came = in_background(lambda: hf.agent("a", model=model).send(SESSION, "Hello", key="k"))
    assert model.begun.wait(PATIENCE)
    loop = get_loop_thread(hf)
    breaks(loop)
    sender.join(PATIENCE)
    assert came, "it waits for ever"
    assert isinstance(came[0], Closed)
    assert "no more files" in str(came[0])
    assert not loop.alive
    assert waited(lambda: hf.agent("b", model=Scripted(["Hi."])).send("other", "Hello").text) == "Hi."
    assert waited(hf.close) is None


def test_a_loop_that_ends_by_itself_releases_all_who_wait() -> None:
    ends_by_itself(holdfast.open("memory:"))


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_loop_that_ends_in_silence_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "_run_loop", lambda loop, waiters: loop.run_forever())
    monkeypatch.setattr("tests.turns.test_loop_threads.PATIENCE", 0.3)
    with pytest.raises(AssertionError, match="for ever"):
        ends_by_itself(holdfast.open("memory:"))


def test_nobody_begins_to_wait_for_a_loop_that_has_ended() -> None:
    with holdfast.open("memory:") as hf:
        loop = get_loop_thread(hf)
        breaks(loop)
        until(lambda: not loop.alive)

        async def nothing() -> None:
            pass

        assert isinstance(waited(lambda: loop.run(nothing())), Closed)
        assert loop._waiters.add().is_set()
        assert waited(loop.close) is None


def test_a_loop_that_ends_while_it_is_closed_keeps_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    hf = holdfast.open("memory:")
    loop = get_loop_thread(hf)
    monkeypatch.setattr(loop_thread, "CLOSE_TIMEOUT", 0.1)
    monkeypatch.setattr(loop_thread, "JOIN_TIMEOUT", 0.1)
    begin = LoopThread._schedule

    def too_late(self: LoopThread, work: Any) -> Any:
        if self.alive:
            breaks(self)
            self._thread.join(PATIENCE)
        return begin(self, work)

    monkeypatch.setattr(LoopThread, "_schedule", too_late)
    assert waited(hf.close) is None
    assert not loop.alive


# closing


@pytest.mark.parametrize("blocks", [False, True])
def test_whoever_waits_for_a_tool_that_heeds_nothing_hears_that_the_client_was_closed(
    monkeypatch: pytest.MonkeyPatch, blocks: bool
) -> None:
    for module in (tasks, loop_thread):
        monkeypatch.setattr(module, "CLOSE_TIMEOUT", 0.2)
    monkeypatch.setattr(loop_thread, "JOIN_TIMEOUT", 0.1)
    begun, let_go = threading.Event(), threading.Event()
    came: list[Any] = []

    @tool
    async def stubborn() -> str:
        """Heed nothing."""
        begun.set()
        while not let_go.is_set():
            try:
                if blocks:
                    let_go.wait(20)
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                pass
        return "ok"

    hf = holdfast.open("memory:")
    agent = hf.agent("a", model=Scripted([{"name": "stubborn", "arguments": {}}, "Done."]), tools=[stubborn])

    def send() -> None:
        try:
            came.append(agent.send("s", "Go"))
        except Closed as error:
            came.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    assert begun.wait(5)
    before = time.monotonic()
    hf.close()
    took = time.monotonic() - before
    sender.join(5)
    let_go.set()
    until(lambda: not any(one.name == "holdfast-agents" for one in threading.enumerate()))
    assert not sender.is_alive()
    assert isinstance(came[0], Closed)
    assert took < 1.0


def test_a_closed_client_leaves_nothing_of_its_agents_behind() -> None:
    gone = []
    for _ in range(2):
        hf = holdfast.open("memory:")
        assert hf.agent("a", model=Scripted(["Hi."])).send("s", "Hello").text == "Hi."
        gone.append(weakref.ref(hf.env.leases))
        hf.close()
    del hf
    until(lambda: gc.collect() >= 0 and not any(one() for one in gone))

    async def test() -> weakref.ref[Any]:
        async with holdfast.open_async("memory:") as hf:
            await hf.agent("a", model=Scripted(["Hi."])).send("s", "Hello")
            return weakref.ref(tasks.get_agent_tasks(hf))

    kept = asyncio.run(test())
    until(lambda: gc.collect() >= 0 and kept() is None)

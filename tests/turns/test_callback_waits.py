"""Callers' code within operations: it may send to agents, never waits for its own turn, and keeps no pool busy."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Scripted, tool
from holdfast.aio.executor import THREADS
from holdfast.compaction import MessagesOver, Rule
from holdfast.errors import Closed, Refused
from holdfast.flow.turns import deadlock
from holdfast.model.scripted import call
from holdfast.runtime import loop_thread
from holdfast.runtime.agent import Agent
from tests.turns.loops import replies, take

PATIENCE = 20.0
Callback = Callable[[], object]


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    """Closed whatever hangs: who waits for an agent is told."""
    client = holdfast.open("memory:")
    yield client
    client.close()


def hanging(work: list[Callback], patience: float = PATIENCE) -> int:
    """How much of some work, each in a thread of its own, has not ended after a while."""
    threads = [threading.Thread(target=_told, args=(one,), daemon=True) for one in work]
    for thread in threads:
        thread.start()
    late = time.monotonic() + patience
    for thread in threads:
        thread.join(max(0.0, late - time.monotonic()))
    return sum(thread.is_alive() for thread in threads)


def _told(work: Callback) -> None:
    try:
        work()
    except Closed:
        pass  # The client was closed because this hung.


# as many callbacks as there are threads


def told_of_events(hf: Holdfast, within: Callable[[str], object]) -> Callable[[int], Callback]:
    agent: Agent[str] = hf.agent("support", model=Scripted({}, otherwise="ok"))
    hf.on("model.responded", lambda event: within(event.stream) if "/user" in event.stream else None)
    return lambda nth: lambda: agent.send(f"user{nth}", "hello")


def deciding(hf: Holdfast, within: Callable[[str], object]) -> Callable[[int], Callback]:
    @tool(needs_approval=lambda args: bool(within(f"user{args['nth']}")) and False)
    def look(nth: int) -> str:
        """Look."""
        return str(nth)

    def agent(nth: int) -> Any:
        return hf.agent("support", model=Scripted([call("look", nth=nth), "ok"]), tools=[look])

    return lambda nth: lambda: agent(nth).send(f"user{nth}", "hello")


def summing_up(hf: Holdfast, within: Callable[[str], object]) -> Callable[[int], Callback]:
    agent: Agent[str] = hf.agent("support", model=Scripted({}, otherwise="ok"))

    def begun(nth: int) -> Callback:
        chat = hf.session(f"user{nth}")
        chat.append(["one", "two"])
        chat.compaction.add_rule(Rule("r", MessagesOver(2), lambda over: within(f"user{nth}")))
        return lambda: agent.send(f"user{nth}", "hello")

    return begun


WAYS = [told_of_events, deciding, summing_up]


@pytest.mark.parametrize("way", WAYS)
def test_as_many_callbacks_as_there_are_threads_may_all_wait_for_agents(hf: Holdfast, way: Any) -> None:
    together, heard = threading.Barrier(THREADS, timeout=PATIENCE), list[str]()
    audit: Agent[str] = hf.agent("audit", model=Scripted({}, otherwise="noted"))

    def within(who: str) -> bool:
        together.wait()  # Each has a thread of the pool now, so that none is left.
        heard.append(audit.send(f"audit-{who.replace('/', '-')}", "It was said.").text)
        return True

    begun = way(hf, within)
    assert hanging([begun(nth) for nth in range(THREADS)]) == 0
    assert set(heard) == {"noted"}
    assert len(heard) >= THREADS


def test_a_pool_that_waits_for_itself_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_thread, "enter_next_level", nullcontext)
    together = threading.Barrier(THREADS, timeout=PATIENCE)
    audit: Agent[str] = hf.agent("audit", model=Scripted({}, otherwise="noted"))

    def within(who: str) -> object:
        together.wait()
        return audit.send(f"audit-{who.replace('/', '-')}", "It was said.")

    begun = told_of_events(hf, within)
    assert hanging([begun(nth) for nth in range(THREADS)], patience=2.0) == THREADS


def test_callbacks_that_wait_for_agents_whose_callbacks_wait_end(hf: Holdfast) -> None:
    agent: Agent[str] = hf.agent("a", model=Scripted({}, otherwise="ok"))
    deepest = 5

    def further(event: Any) -> None:
        level = int(event.stream.split("/")[3].partition("-")[2])
        if level < deepest:
            agent.send(f"{event.stream.split('/')[3].partition('-')[0]}-{level + 1}", "further")

    hf.on("model.responded", further)
    assert hanging([lambda nth=nth: agent.send(f"s{nth}-0", "begin") for nth in range(THREADS + 4)]) == 0  # type: ignore[misc]
    assert all(len(hf.session(f"s{nth}-{deepest}").messages()) == 2 for nth in range(THREADS + 4))


# a message to the conversation whose turn is being opened


def from_callback(hf: Holdfast, send: Callback) -> None:
    once: list[object] = []

    def told(event: Any) -> None:
        if event.stream == "session/s/thread/main" and not once:
            once.append(event)
            send()

    hf.on("message.appended", told)


def from_rule(hf: Holdfast, send: Callback) -> None:
    chat = hf.session("s")
    chat.append(["one", "two"])
    chat.compaction.add_rule(Rule("r", MessagesOver(2), lambda over: send()))


@pytest.mark.parametrize("place", [from_callback, from_rule])
@pytest.mark.parametrize("inner", ["agent", "loop"])
@pytest.mark.parametrize("outer", ["agent", "loop"])
def test_what_runs_while_a_turn_opens_cannot_wait_for_it(hf: Holdfast, place: Any, outer: str, inner: str) -> None:
    agent: Agent[str] = hf.agent("a", model=Scripted({}, otherwise="ok"))
    refusals: list[str] = []

    def send(how: str, text: str) -> None:
        if how == "agent":
            agent.send("s", text)
        else:
            take(hf, text, replies("ok"))

    def beside() -> None:
        try:
            send(inner, "beside")
        except Refused as error:
            refusals.append(str(error))

    place(hf, beside)
    assert hanging([lambda: send(outer, "hello")], 10) == 0
    assert refusals
    assert all("would wait for itself" in text for text in refusals)
    assert [one.text for one in hf.session("s").messages()][-2:] == ["hello", "ok"]


def test_a_turn_that_is_known_too_late_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlock.Caller, "list_held_turns", lambda self: [])
    monkeypatch.setattr(deadlock.TurnWait, "list_held_turns", lambda self: [])
    agent: Agent[str] = hf.agent("a", model=Scripted({}, otherwise="ok"))
    from_callback(hf, lambda: agent.send("s", "beside"))
    assert hanging([lambda: agent.send("s", "hello")], 1) == 1

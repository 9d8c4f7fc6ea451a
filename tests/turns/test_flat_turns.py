"""Flatness in counts: what a turn asks of SQLite does not grow with what was said before, and it commits no more often.

Without tools a turn commits three times: the message with its frame, the pack with the call, the reply with the end.
Only the turn is counted, so the same is counted each time. By the wall clock agents look for what other processes want
and leases are kept: here neither is. And of tools beside each other one after the other says what it gave, because the
later of two that come at once is refused, and looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from bench.counting import Counts, counting
from bench.counts import difference
from holdfast import CallModel, CallTool, Holdfast, Limits, Session
from holdfast.flow.packs import pack
from holdfast.flow.turns import turns
from holdfast.flow.turns.model_calls import TurnModelCalls
from holdfast.model.scripted import Scripted, call
from holdfast.records.messages import Message
from holdfast.runtime import tasks
from holdfast.runtime.driver import TurnDriver
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.scale import volume

SMALL, LARGE = 100, volume(2_000, 100_000)
MOST = {"own loop": 38.5, "own loop, two tools": 107, "agent": 38.5, "agent, two tools": 102.5}
"""Statements of one turn: 28 of them write one without tools, the others look and read. A few more bundle them once.

Two more write the summary of a window that moves: they look for an erasure and write the event.
"""
APART = 10.0
"""Percent by which two lengths may differ."""
BUDGET = 1_200
SAMPLE = 12
WORDS = "the parcel of order 17 went to Reykjavík by way of Hull, where nobody had heard of it; " * 2
LONG = "long"
Take = Callable[[str], object]


def quarters(text: str) -> int:
    """Tokens, roughly: exact ones take longer and change nothing here."""
    return len(text) // 4


def wanted(tools: int, rounds: int = 1) -> list[Any]:
    """What a model says in a turn: so many calls at once, if any, as often as there are rounds, and the reply."""
    calls = [call("look", at=at) for at in range(tools)]
    asked = [Message(role="assistant", content=None, tool_calls=tuple(calls))] * rounds if calls else []
    return [*asked, WORDS]


def own_loop(hf: Holdfast, tools: int, *, together: bool = False) -> Take:
    """A turn in a loop of one's own; `together` begins the tools that can run beside each other at once."""

    def take(name: str) -> None:
        says = iter(wanted(tools))
        with hf.session(name).turn(WORDS, budget=BUDGET) as turn:
            while steps := turn.steps(at_once=None if together else 1):
                for step in steps:
                    if isinstance(step, CallModel):
                        step.done(next(says))
                    elif isinstance(step, CallTool):
                        step.done(WORDS)
            assert turn.text == WORDS

    return take


def by_agent(hf: Holdfast, tools: int, rounds: int = 1) -> Take:
    """The same by an agent."""

    def look(at: int) -> str:
        """Look at something."""
        return WORDS

    model = Scripted([list(one.tool_calls) if isinstance(one, Message) else one for one in wanted(tools, rounds)])
    limits = Limits(context_tokens=BUDGET)
    agent: Any = hf.agent("clerk", model=model, tools=[look] if tools else [], limits=limits, history=False)

    def take(name: str) -> None:
        assert agent.send(name, WORDS).text == WORDS

    return take


WAYS: dict[str, Callable[[Holdfast], Take]] = {
    "own loop": lambda hf: own_loop(hf, 0),
    "own loop, two tools": lambda hf: own_loop(hf, 2),
    "agent": lambda hf: by_agent(hf, 0),
    "agent, two tools": lambda hf: by_agent(hf, 2),
}


def fill(session: Session, messages: int) -> None:
    """Say so much."""
    made = [{"role": role, "content": WORDS} for role in ("user", "assistant")] * 500
    for start in range(0, messages, len(made)):
        session.append(made[: messages - start])


def one_after_the_other(patch: pytest.MonkeyPatch) -> None:
    """Tools still run beside each other; what came of them is written in turn."""
    sound = TurnDriver._journal_outcome

    async def settled(self: TurnDriver, step: Any, *outcome: Any, **how: Any) -> None:
        async with vars(self).setdefault("one at a time", asyncio.Lock()):
            await sound(self, step, *outcome, **how)

    patch.setattr(TurnDriver, "_journal_outcome", settled)


def look_no_more(patch: pytest.MonkeyPatch) -> None:
    """As long as the tests run, agents do not look for what other processes want."""
    patch.setattr(tasks, "STOP_POLL_SECONDS", 3_600.0)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdfast]:
    """A journal with a long conversation, and nothing beside what a test does with it."""
    with pytest.MonkeyPatch.context() as patch:
        one_after_the_other(patch)
        look_no_more(patch)
        yield from _opened(tmp_path_factory)


def _opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdfast]:
    clock = FrozenClock()
    path = tmp_path_factory.mktemp("flat") / "a.db"
    # The text index merges what it holds now and then, so it has bounds of its own. A lease that lasts needs no signs
    # of life, which a thread gives by the wall clock.
    settings = holdfast.Settings(index_text=0, lease_ms=3_600_000)
    ids = SeededIds(clock, seed=1)
    with holdfast.open(path, durability="fast", clock=clock, ids=ids, tokenizer=quarters, settings=settings) as hf:
        fill(hf.session(LONG), LARGE)
        yield hf


def counted(hf: Holdfast, take: Take, name: str, sample: int = SAMPLE) -> Counts:
    """One turn's counts, averaged."""
    take(name)
    with counting(hf.env.journal) as counts:
        for _ in range(sample):
            take(name)
    return counts.per(sample)


def both(hf: Holdfast, way: str) -> tuple[Counts, Counts]:
    """The counts in a short conversation and in the long one, of the same journal."""
    short = f"short-{list(WAYS).index(way)}"
    for name in (short, LONG):
        fill(hf.session(name), SMALL)  # Both end alike, so that the same is shown of them.
    take = WAYS[way](hf)
    return counted(hf, take, short), counted(hf, take, LONG)


@pytest.mark.parametrize("way", WAYS)
def test_a_turn_asks_the_same_of_sqlite_however_long_the_conversation_is(opened: Holdfast, way: str) -> None:
    few, many = both(opened, way)
    for name in ("statements", "vm_steps", "pages_read"):
        small, large = getattr(few, name), getattr(many, name)
        assert difference(small, large) <= APART, f"{name}: {small} and {large}"
    assert few.commits == many.commits
    assert max(few.statements, many.statements) <= MOST[way]


def test_the_same_is_counted_each_time(opened: Holdfast) -> None:
    take, name = by_agent(opened, 2), "each-time"
    take(name)
    fill(opened.session(name), SMALL)
    found = {counted(opened, take, name, sample=1).statements for _ in range(volume(8, 200))}
    assert found == {122}


def test_looks_for_other_processes_would_be_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "STOP_POLL_SECONDS", 0.001)
    with holdfast.open(tmp_path / "a.db", durability="fast", clock=FrozenClock(), tokenizer=quarters) as hf:
        take, name = by_agent(hf, 2), "looked-at"
        fill(hf.session(name), SMALL)
        found = {counted(hf, take, name, sample=1).statements for _ in range(8)}
    assert max(found) > MOST["agent, two tools"]


def asks_at_every_look(patch: pytest.MonkeyPatch) -> None:
    sound = turns.read_turn

    def look(env: Any, turn: Any, known: Any = None) -> Any:
        turns.find_stop_request(env, turn)
        return sound(env, turn, known)

    patch.setattr(turns, "read_turn", look)


def packs_at_another_moment(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnModelCalls, "can_build_now", lambda self, view: False)


def remembers_no_brief(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(pack._PackBuilder, "_has_own_brief", lambda self: True)


@pytest.mark.parametrize("plant", [asks_at_every_look, packs_at_another_moment, remembers_no_brief])
def test_statements_too_many_are_found(
    opened: Holdfast, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert both(opened, "own loop")[0].statements > MOST["own loop"]


def test_a_turn_that_reads_all_that_was_said_is_found(opened: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    sound, look = turns._read_tail, turns.read_turn
    monkeypatch.setattr(turns, "read_turn", lambda env, turn, known=None: look(env, turn))
    monkeypatch.setattr(turns, "_read_tail", lambda env, line, after: sound(env, line, 0)[-1:])
    few, many = both(opened, "own loop")
    assert difference(few.vm_steps, many.vm_steps) > APART


COMMITS: dict[str, tuple[Callable[[Holdfast], Take], int]] = {
    "without tools": (lambda hf: own_loop(hf, 0), 3),
    # The call, its intent, its outcome, and the second pack with its reply.
    "one tool": (lambda hf: own_loop(hf, 1), 7),
    # Intents at once, and an outcome for each.
    "two tools beside each other": (lambda hf: own_loop(hf, 2, together=True), 8),
    "two tools one after the other": (lambda hf: own_loop(hf, 2), 9),
    "agent without tools": (lambda hf: by_agent(hf, 0), 3),
    # Intents of an agent's calls are in the commit of the reply.
    "agent with one tool": (lambda hf: by_agent(hf, 1), 6),
    "agent with two tools": (lambda hf: by_agent(hf, 2), 7),
    "agent with a tool twice": (lambda hf: by_agent(hf, 1, rounds=2), 9),
}


@pytest.mark.parametrize("how", COMMITS)
def test_a_turn_commits_as_often_as_it_has_something_to_keep(opened: Holdfast, how: str) -> None:
    make, commits = COMMITS[how]
    take, name = make(opened), f"commits-{list(COMMITS).index(how)}"
    take(name)  # The first turn also configures the session.
    assert counted(opened, take, name, sample=3).commits == commits


def test_a_commit_too_many_is_found(opened: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = turns.begin_turn

    def begun(env: Any, place: Any, how: Any) -> Any:
        opened.session("elsewhere").append("by the way")
        return sound(env, place, how)

    monkeypatch.setattr(turns, "begin_turn", begun)
    assert counted(opened, own_loop(opened, 0), "too-many", sample=3).commits == 4

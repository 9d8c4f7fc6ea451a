"""Flatness in counts: what an append and a load ask of SQLite does not grow with the journal.

Counts do not depend on the machine, so a regression is seen on any. `make bench` prints the
same counts at 1 000 and at 100 000 events.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from bench.counting import Counts, counting
from bench.counts import KINDS, counted, difference
from bench.journals import journal
from bench.workload import fill, pushed, turn
from holdfast.client.holdfast import Holdfast
from holdfast.flow.journal.append import StreamWrite, append_events, decide_and_append
from holdfast.model.tokenizers import resolve_tokenizer
from holdfast.ports import Env
from holdfast.records.events.envelope import DEFAULT_TENANT
from holdfast.system import Lru
from holdfast.testing.writer import make_note
from tests.scale import volume

SMALL = 500
LARGE = volume(5_000, 100_000)
SAMPLE = 180
APART = 10.0
"""Percent by which two sizes may differ."""

PUSH, TURN, LOAD = KINDS

# Driver calls of one operation today: fewer is welcome, more needs a reason and a new number here.
CALLS = {PUSH: 1.6, TURN: 1.6, LOAD: 18.0}
LEAST = 1
"""One statement that is a transaction by itself: what an append that came before asks of the driver."""


@pytest.fixture(scope="module")
def both_sizes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Counts, Counts]]:
    """Each operation's counts in a small journal and in a large one."""
    found: dict[str, list[Counts]] = {kind: [] for kind in KINDS}
    with journal(tmp_path_factory.mktemp("counts"), durability="fast") as env:
        for size, first in ((SMALL, 0), (LARGE, SMALL)):
            fill(env, size - env.journal.position(), first=first)
            for index, kind in enumerate(KINDS):
                found[kind].append(counted(env, kind, f"counted-{size}-{index}", SAMPLE))
    return {kind: (few, many) for kind, (few, many) in found.items()}


@pytest.fixture
def env(tmp_path: Path) -> Iterator[Env]:
    with journal(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", ["calls", "statements", "vm_steps", "pages"])
def test_counts_do_not_grow_with_the_journal(
    both_sizes: dict[str, tuple[Counts, Counts]], kind: str, count: str
) -> None:
    few, many = both_sizes[kind]
    assert difference(getattr(few, count), getattr(many, count)) <= APART, (few, many)


@pytest.mark.parametrize("kind", KINDS)
def test_driver_calls_stay_few(both_sizes: dict[str, tuple[Counts, Counts]], kind: str) -> None:
    for counts in both_sizes[kind]:
        assert counts.calls <= CALLS[kind]


def test_a_load_follows_live_frames_and_not_ended_ones(env: Env) -> None:
    def steps_of_a_load() -> float:
        with counting(env.journal) as counts:
            assert len(env.journal.load(DEFAULT_TENANT, "actor/worker").frames) == 1
        return counts.vm_steps

    append_events(env, [StreamWrite(stream="actor/worker", events=(pushed(env.ids),))])
    before = steps_of_a_load()
    for _ in range(50):
        append_events(env, [StreamWrite(stream="actor/worker", events=tuple(turn(env.ids)))])
    assert difference(before, steps_of_a_load()) <= APART


def calls_of(env: Env, work: Callable[[], object]) -> float:
    """Return the driver calls of an operation that came before."""
    with counting(env.journal) as counts:
        for _ in range(4):
            work()
        before = counts.calls
        work()
    return counts.calls - before


def test_a_decision_on_a_cached_state_reads_nothing_first(env: Env) -> None:
    def push() -> None:
        decide_and_append(env, ["actor/worker"], lambda states: {"actor/worker": [pushed(env.ids)]})

    assert calls_of(env, push) == LEAST


def test_an_app_event_asks_no_more_than_a_frame(env: Env) -> None:
    view = Holdfast(env, owner=False).journal
    assert calls_of(env, lambda: view.append("actor/worker", "app.noted", {"text": "again"})) == LEAST


def test_eight_events_in_one_append_ask_no_more_than_one(env: Env) -> None:
    def note() -> None:
        append_events(env, [StreamWrite(stream="actor/worker", events=tuple(make_note() for _ in range(8)))])

    assert calls_of(env, note) == LEAST


def test_a_key_that_is_new_is_not_looked_up_first(env: Env) -> None:
    numbers = count()

    def note() -> None:
        append_events(env, [StreamWrite(stream="actor/worker", events=(make_note(),), key=f"key-{next(numbers)}")])

    assert calls_of(env, note) == LEAST


def python_calls_of(work: Callable[[], object]) -> int:
    """Return the number of Python functions and comprehensions that are entered by work that came before."""
    entered = 0

    def enter(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal entered
        entered += event == "call"

    for _ in range(8):
        work()
    before = sys.getprofile()
    sys.setprofile(enter)
    try:
        work()
    finally:
        sys.setprofile(before)
    return entered - 1  # `work` itself


@pytest.mark.parametrize(("messages", "most"), [(1, 102), (4, 185)])
def test_an_append_enters_few_functions(tmp_path: Path, messages: int, most: int) -> None:
    tokenizer: Any = resolve_tokenizer()
    tokenizer.load()  # Until then short texts are counted in Python.
    with holdfast.open(tmp_path / "a.db", settings=holdfast.Settings(index_text=0)) as hf:
        session = hf.session("a", model="gpt-4o")
        given: Any = "text" if messages == 1 else [{"role": "user", "content": "text"}] * messages
        assert python_calls_of(lambda: session.append(given)) <= most


def test_a_put_of_an_entry_enters_few_functions(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", settings=holdfast.Settings(index_text=0)) as hf:
        state = hf.state("user/1")
        assert python_calls_of(lambda: state.write("key", {"text": "value", "number": 1})) <= 98


def test_functions_entered_too_often_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lru, "get", lambda *_: None)
    with pytest.raises(AssertionError):
        test_an_append_enters_few_functions(tmp_path, 1, 102)


def test_counting_ends_when_left(env: Env) -> None:
    with counting(env.journal) as counts:
        append_events(env, [StreamWrite(stream="actor/worker", events=(pushed(env.ids),))])
    seen = counts.calls
    append_events(env, [StreamWrite(stream="actor/worker", events=(pushed(env.ids),))])
    assert seen > 0
    assert counts.calls == seen

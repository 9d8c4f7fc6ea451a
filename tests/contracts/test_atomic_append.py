"""An append to the journal in memory is all or nothing, wherever it is stopped: by an error, an interrupt, the stack.

It is stopped at every line of the journal's own code, once and then once more while it is taken back, and at every
depth of the stack that is too deep for it. Afterwards the journal holds what it held before, or the whole of it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.connect import assemble_env
from holdfast.core.search.documents import TextSearch
from holdfast.journal.memory import journal as memory_journal
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.batches import Batch
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.scale import seeded, volume

PLACE = str(Path(memory_journal.__file__).parent)


class Stop(BaseException):
    """Whatever it is that stops an append."""


@contextmanager
def stopped_at(*steps: int) -> Iterator[list[int]]:
    """Stop at these lines of the journal's own code, counted as they are run; gives how many were run."""
    passed = [0]

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        if not frame.f_code.co_filename.startswith(PLACE):
            return None
        if event == "line":
            passed[0] += 1
            if passed[0] in steps:
                raise Stop
        # Raising ends the tracing of this frame alone: what it calls on its way out is traced anew.
        sys.settrace(trace)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield passed
    finally:
        sys.settrace(before)


# what is written


def opened() -> tuple[Holdfast, MemoryJournal]:
    """Always the same journal."""
    journal, clock = MemoryJournal(), FrozenClock()
    journal.secret = b"0" * 32
    hf = Holdfast(assemble_env(journal, Settings(), clock, SeededIds(clock, 7)))
    hf.as_user("ann").session("a").append(["hello", "there"])
    hf.state("user/1").write("colour", "red")
    return hf, journal


WRITES: dict[str, Callable[[Holdfast], object]] = {
    "messages": lambda hf: hf.as_user("bea").session("a").append(["words " * 5, "hello " * 9], key="k"),
    "an artifact": lambda hf: hf.session("a").append({"role": "assistant", "content": "x" * 300_000}),
    "a value in place of another": lambda hf: hf.as_user("bea").state("user/1").write("colour", "green"),
    "a new session": lambda hf: hf.session("new", system="Be kind.").append("hello"),
    "a summary": lambda hf: hf.session("a").compact(0, strategy="sliding_window", store=True),
}


def batches(name: str) -> list[Batch]:
    """What an operation writes, one commit after the other."""
    hf, journal = opened()
    hf.session("a").append("and so on " * 20)
    found: list[Batch] = []
    original = journal.append

    def append(batch: Batch) -> Any:
        found.append(batch)
        return original(batch)

    journal.append = append  # type: ignore[method-assign]
    WRITES[name](hf)
    return found


def ready(before: list[Batch]) -> MemoryJournal:
    hf, journal = opened()
    hf.session("a").append("and so on " * 20)
    for batch in before:
        journal.append(batch)
    return journal


def everything(journal: MemoryJournal) -> Any:
    """All that a journal in memory holds, so that it can be compared."""
    hits = journal.search("default", TextSearch(terms=("hello", "there", "red", "green", "words"), now=0))
    tables = journal._tables
    index: Any = journal._texts
    return (
        sorted(hit.event.seq for hit in hits),
        dict(journal._events),
        journal._position,
        dict(journal._versions),
        dict(journal._heads),
        dict(journal._keys),
        dict(journal._ids),
        dict(journal._subjects),
        dict(journal._artifacts),
        {name: dict(rows) for name, rows in tables._rows.items()},
        {name: set(keys) for name, keys in tables._of.items() if keys},
        {name: list(versions) for name, versions in tables._histories.items() if versions},
        index.indexed,
    )


class Trial:
    """One batch that is appended again and again, and stopped each time."""

    def __init__(self, before: list[Batch], batch: Batch) -> None:
        self._before, self._batch = before, batch
        self.written = self.stopped = 0
        whole = ready(before)
        self._without = self._shape(whole)
        with stopped_at() as passed:
            whole.append(batch)
        self.lines = passed[0]
        self._journal = ready(before)
        self._nothing = everything(self._journal)

    def _shape(self, journal: MemoryJournal) -> int:
        return journal._position

    def run(self, *steps: int) -> None:
        """Stopped at these lines, it is not there, or all of it is."""
        with stopped_at(*steps):
            try:
                self._journal.append(self._batch)
            except Stop:
                self.stopped += 1
        self.check()

    def check(self) -> None:
        if everything(self._journal) == self._nothing:
            return
        self.written += 1
        events = sum(len(part.events) for part in self._batch.parts)
        assert self._journal._position == self._without + events, "some of it is there"
        assert self._journal.append(self._batch).repeated
        hf = Holdfast(assemble_env(self._journal, Settings(), FrozenClock(), None))
        assert hf.journal.verify().findings == ()
        self._journal = ready(self._before)
        self._nothing = everything(self._journal)

    def end(self) -> None:
        """What was taken back so often can be written after all."""
        self._journal.append(self._batch)
        hf = Holdfast(assemble_env(self._journal, Settings(), FrozenClock(), None))
        assert hf.journal.verify().findings == ()
        hf.journal.rebuild()
        assert hf.journal.verify().findings == ()


def trials(name: str) -> Iterator[Trial]:
    found = batches(name)
    for number, batch in enumerate(found):
        yield Trial(found[:number], batch)


@pytest.mark.parametrize("name", WRITES)
def test_an_append_that_is_stopped_anywhere_is_not_there_or_whole(name: str) -> None:
    for trial in trials(name):
        assert trial.lines > 50
        for at in range(1, trial.lines + 1):
            trial.run(at)
        assert trial.stopped == trial.lines
        assert trial.written <= 5, "only what comes behind it may stop and leave it"
        trial.end()


@pytest.mark.parametrize("name", WRITES)
def test_also_if_taking_it_back_is_stopped(name: str) -> None:
    rng = seeded(f"stopped twice in {name}")
    for trial in trials(name):
        for _ in range(volume(100, 3_000)):
            first = rng.randint(1, trial.lines)
            trial.run(first, first + rng.randint(1, 60), first + rng.randint(60, 90))
        trial.end()


def test_also_where_the_stack_ends() -> None:
    (trial,) = trials("messages")
    journal = trial._journal

    def deeper(left: int) -> None:
        if left:
            deeper(left - 1)
        else:
            journal.append(trial._batch)

    limit = sys.getrecursionlimit()
    failed = 0
    for depth in range(limit - 100, limit):
        try:
            deeper(depth)
        except RecursionError:
            failed += 1
        trial.check()
        journal = trial._journal
    assert failed > 5
    trial.end()


def test_a_part_that_stays_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    (trial,) = trials("messages")
    original = MemoryJournal._roll_back

    def forgetful(self: MemoryJournal, position: int) -> None:
        original(self, position)
        self._versions["default", "session/a/thread/main", 99] = 99

    monkeypatch.setattr(MemoryJournal, "_roll_back", forgetful)
    with pytest.raises(AssertionError, match="some of it is there"):
        trial.run(trial.lines // 2)

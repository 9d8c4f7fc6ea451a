"""Die before and after every port call of every flow: the journal holds the state before or the state after."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import holdfast
from holdfast.connect import assemble_env
from holdfast.flow.journal.append import decide_and_append
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.testing.faults import FaultPoints, SimulatedDeath, die_everywhere
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.writer import Writer, make_note

Wrap = Callable[[Journal], Journal]


def _client(journal: Journal) -> holdfast.Holdfast:
    clock = FrozenClock()
    return holdfast.Holdfast(assemble_env(journal, Settings(), clock, SeededIds(clock), user="alice"))


def _program(hf: holdfast.Holdfast, folder: Path) -> None:
    """Every flow there is."""
    journal = hf.journal
    journal.append("s", "app.noted", {"n": 1}, key="one", files=[b"x" * 300_000])

    decide_and_append(hf.env, ["session/t"], lambda states: {"session/t": [make_note("t")]}, key="two")
    list(journal.events())
    journal.rebuild()
    journal.backup(folder / "backup.db")
    journal.export(folder / "export.jsonl")
    try:
        journal.erase("alice")
    except holdfast.errors.NotFound:
        assert list(journal.events("global")), "only who was erased before may be unknown"
    journal.collect()


def test_every_flow_leaves_the_state_before_or_after(tmp_path: Path) -> None:
    numbers = itertools.count()
    folder = tmp_path

    def run(wrap: Wrap) -> None:
        nonlocal folder
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        inner = SqliteJournal(folder / "a.db")
        try:
            _program(_client(wrap(inner)), folder)
        finally:
            inner.close()

    points = []
    for point in die_everywhere(run):
        points.append(point)
        with holdfast.open(folder / "a.db") as hf:
            assert hf.journal.verify().findings == (), point
            assert [event.key for event in hf.journal.events("s")] in ([], ["one"])
            before = dump_projections(hf.env.journal)
            hf.journal.rebuild()
            assert dump_projections(hf.env.journal) == before
        # Whatever was left, the same program finishes when it is run again.
        for name in ("backup.db", "export.jsonl"):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / "backup.db-artifacts", ignore_errors=True)
        journal = SqliteJournal(folder / "a.db")
        _program(_client(journal), folder)
        assert [event.key for event in _client(journal).journal.events("s")] == ["one"]
        assert _client(journal).journal.version("session/t") == 1
        journal.close()
    assert {"before append", "after append", "before erase", "after erase", "before rebuild"} <= set(points)


def test_nothing_is_done_after_death() -> None:
    points = FaultPoints(_memory(), die_at=1)
    writer = Writer(points)  # type: ignore[arg-type]
    for _ in range(2):
        with pytest.raises(SimulatedDeath):
            writer.append("session/s", make_note())
    assert points.passed == ["before append"]


def test_a_program_that_swallows_death_is_found_out() -> None:
    def careless(wrap: Wrap) -> None:
        try:
            Writer(wrap(_memory())).append("session/s", make_note())
        except BaseException:
            pass

    with pytest.raises(AssertionError, match="did not die"):
        list(die_everywhere(careless))


def _memory() -> Journal:
    from holdfast.journal.memory.journal import MemoryJournal

    return MemoryJournal()

"""Coalescing: one change for each row does what all of them did."""

from __future__ import annotations

import itertools
from random import Random

import pytest

from holdfast.core.journal.project import project_event
from holdfast.core.journal.row_changes import RowChangeSet, ShadowRows, coalesce_changes
from holdfast.core.journal.tables import TABLES
from holdfast.records.batches import RowChange, RowDelete, RowIncrement, RowInsert, RowReplace, RowUpdate
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.testing.generate_frames import FrameGenerator
from tests.scale import seeded, volume

KEY = (b"f", "purpose")
ROW = {"frame_id": b"f", "purpose": "purpose", "amount": 5}
CHANGES: list[RowChange] = [
    RowInsert("frame_reservations", ROW),
    RowReplace("frame_reservations", {**ROW, "amount": 9}),
    RowUpdate("frame_reservations", KEY, {"amount": 2}),
    RowUpdate("frame_reservations", KEY, {}, {"amount": 3}),
    RowIncrement("frame_reservations", KEY, {"amount": 4}),
    RowDelete("frame_reservations", KEY),
]


def _applied(changes: list[RowChange], present: bool) -> dict[object, object]:
    rows = ShadowRows()
    if present:
        rows.apply(RowInsert("frame_reservations", {**ROW, "amount": 100}))
    for change in changes:
        rows.apply(change)
    return rows.rows("frame_reservations")  # type: ignore[return-value]


def _coalesced(changes: list[RowChange]) -> list[RowChange]:
    pending = RowChangeSet()
    for change in changes:
        pending.add((1, 1), change)
    return [change for name in TABLES for _, change in pending.changes(name)]


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_every_sequence_of_changes_to_a_row_comes_to_the_same(length: int) -> None:
    for sequence in itertools.product(CHANGES, repeat=length):
        changes = list(sequence)
        for present in (False, True):
            # A Put onto a row that is there is an error, so such sequences cannot be.
            here = present
            legal = True
            for change in changes:
                legal = legal and not (isinstance(change, RowInsert) and here)
                here = not isinstance(change, RowDelete) if not isinstance(change, RowUpdate) else here
            kinds = {type(change) for change in changes}
            if legal and not {RowIncrement, RowUpdate} <= kinds:
                for one in (_coalesced(changes), coalesce_changes(changes)):
                    assert len(one) == 1
                    assert _applied(one, present) == _applied(changes, present), changes


def test_a_story_comes_to_the_same_in_batches_of_any_size() -> None:
    random = seeded("coalesce")
    for _ in range(volume(20, 500)):
        story = FrameGenerator(Random(random.random()), SeededIds(FrozenClock()))
        changes = [
            change
            for version in range(1, 150)
            for draft in story.step()
            for change in project_event(draft.type, draft.facts, version, 1000)
        ]
        whole, batched = ShadowRows(), ShadowRows()
        for change in changes:
            whole.apply(change)
        size = random.randint(1, 200)
        for start in range(0, len(changes), size):
            for change in _coalesced(changes[start : start + size]):
                batched.apply(change)
        assert all(whole.rows(name) == batched.rows(name) for name in TABLES)

"""A sound index is not taken for damaged, whatever a connection remembers of it."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.journal.sqlite import check
from holdfast.sqlite.fts import TextIndex, index_table
from holdfast.types import Finding


def checked_after_merging(path: Path) -> tuple[Finding, ...]:
    """What a check finds once so much was appended since a search that pages of the index were merged."""
    with holdfast.open(path, durability="fast") as hf:
        session = hf.session("s")
        for number in range(9):
            session.append(f"amber {number}")
        session.search("amber")
        for number in range(9):
            session.append(f"birch {number}")
        return hf.journal.verify().findings


def test_an_index_that_was_merged_since_it_was_searched_is_sound(tmp_path: Path) -> None:
    assert checked_after_merging(tmp_path / "a.db") == ()


def test_a_check_by_what_is_remembered_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Asleep(TextIndex):
        def match(self, *given: object) -> list[tuple[int, float]]:
            return []

    monkeypatch.setattr(check, "tenant_index", lambda connection, tenant: Asleep(connection, index_table(tenant)))
    assert [one.kind for one in checked_after_merging(tmp_path / "a.db")] == ["pages"]

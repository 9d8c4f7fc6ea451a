"""Listing sessions looks at each row a bounded number of times for a page, however many there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast.flow.sessions import sessions as sessions_flow
from holdfast.journal.memory import tables as memory_tables
from holdfast.journal.memory.tables import MemoryTables
from tests.scale import volume

FEW = volume(100, 1_000)
FOR_A_PAGE = 2
"""Rows of a session and of its thread."""


class Looks:
    """How many rows were looked at."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.rows = 0
        for name in ("all_rows", "tenant_rows"):
            patch.setattr(MemoryTables, name, self._counted(getattr(MemoryTables, name)))

    def _counted(self, sound: Any) -> Any:
        def counted(tables: MemoryTables, *given: str) -> Iterator[Any]:
            for row in sound(tables, *given):
                self.rows += 1
                yield row

        return counted


def rows_for(sessions: int) -> float:
    """Rows that are looked at for each session of each page."""
    with holdfast.open("memory:") as hf, pytest.MonkeyPatch.context() as patch:
        for number in range(sessions):
            hf.session(f"s{number}").append("Hello")
        looks = Looks(patch)
        assert len(list(hf.sessions())) == sessions
        pages = -(-sessions // sessions_flow.PAGE) + 1
        return looks.rows / sessions / pages


def test_a_page_looks_at_every_row_once_however_many_there_are() -> None:
    assert rows_for(FEW) <= FOR_A_PAGE
    assert rows_for(4 * FEW) <= FOR_A_PAGE


def test_a_look_for_each_session_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    sound = memory_tables._threads_by_session

    class Asked(dict[str, Any]):
        def __init__(self, tables: MemoryTables, tenant: str) -> None:
            self._of = (tables, tenant)

        def get(self, stream: str, otherwise: Any = None) -> Any:
            return sound(*self._of).get(stream, otherwise)

    monkeypatch.setattr(memory_tables, "_threads_by_session", Asked)
    assert rows_for(50) > FOR_A_PAGE

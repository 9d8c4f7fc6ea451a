"""Heads that a writer keeps from one commit to the next: never read without need, never trusted too long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.errors import VersionConflict
from holdfast.journal.sqlite import transaction
from holdfast.journal.sqlite.transaction import KnownHeads, SqlitePlan, SqliteWriter


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "journal.db")


@pytest.fixture
def hf(path: str) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(path) as opened:
        yield opened


def note(hf: holdfast.Holdfast, number: int) -> int:
    return hf.journal.append("actor/a", "app.noted", {"n": number}).parts[0].last


def statements_of(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch, number: int) -> list[str]:
    seen: list[str] = []

    def trace(cursor: apsw.Cursor, sql: str, values: Any) -> bool:
        seen.append(sql.split(maxsplit=1)[0])
        return True

    begin = SqliteWriter._begin

    def traced(self: SqliteWriter, connection: apsw.Connection, members: Any) -> KnownHeads:
        connection.exec_trace = trace
        return begin(self, connection, members)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteWriter, "_begin", traced)
        note(hf, number)
    return seen


def test_a_lone_writer_reads_nothing_before_it_writes(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    note(hf, 1)
    assert statements_of(hf, monkeypatch, 2) == ["BEGIN", "INSERT", "UPDATE", "COMMIT"]
    for number in (3, 4):
        note(hf, number)
    assert statements_of(hf, monkeypatch, 5) == ["BEGIN", "INSERT", "COMMIT"]


def test_writers_that_take_turns_continue_one_chain(path: str, hf: holdfast.Holdfast) -> None:
    with holdfast.open(path) as other:
        versions = [note(one, number) for number, one in enumerate([hf, hf, other, hf, other, other, hf])]
    assert versions == [1, 2, 3, 4, 5, 6, 7]
    assert hf.journal.verify().ok


def check_version(hf: holdfast.Holdfast, path: str) -> None:
    note(hf, 1)
    with holdfast.open(path) as other:
        note(other, 2)
    hf.journal.append("actor/a", "app.noted", {"n": 3}, expected=2)


def test_a_version_that_another_process_made_is_known(path: str, hf: holdfast.Holdfast) -> None:
    check_version(hf, path)


def check_failure(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    write = SqlitePlan.write

    def fail(self: SqlitePlan) -> None:
        write(self)
        raise holdfast.Unavailable

    note(hf, 1)
    with monkeypatch.context() as patch:
        patch.setattr(SqlitePlan, "write", fail)
        with pytest.raises(holdfast.Unavailable):
            note(hf, 2)
    assert note(hf, 3) == 2
    assert hf.journal.verify().ok


def test_a_transaction_that_failed_is_not_remembered(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    check_failure(hf, monkeypatch)


def test_a_name_that_was_erased_is_forgotten(hf: holdfast.Holdfast) -> None:
    user = hf.as_user("ada")
    user.session("s").append("Hello.")
    hf.journal.erase("ada")
    user.session("s").append("Hello again.")
    user.session("s").append("And again.")
    assert [event.subject for event in hf.journal.events() if event.type == "message.appended"] == [1, 2, 2]


def test_memory_of_heads_is_bounded(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transaction, "MAX_KNOWN", 8)
    for number in range(40):
        hf.journal.append(f"actor/a-{number % 20}", "app.noted", {"n": number})
    known = hf.env.journal.writer._known  # type: ignore[attr-defined]
    assert len(known.heads) <= 8
    assert hf.journal.verify().ok


def test_heads_that_are_never_read_again_are_caught(
    path: str, hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KnownHeads, "is_current", lambda self, connection: True)
    with pytest.raises(VersionConflict):
        check_version(hf, path)


def test_failed_transactions_that_are_remembered_are_caught(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = SqliteWriter._begin

    def remember(self: SqliteWriter, connection: apsw.Connection, members: Any) -> KnownHeads:
        self._known = begin(self, connection, members)
        return self._known

    monkeypatch.setattr(SqliteWriter, "_begin", remember)
    monkeypatch.setattr(KnownHeads, "is_current", lambda self, connection: connection is self.connection)
    with pytest.raises(AssertionError):
        check_failure(hf, monkeypatch)

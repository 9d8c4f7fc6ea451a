"""Heads that a writer keeps from one commit to the next: never read without need, never trusted too long."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast.errors import KeyReused, VersionConflict
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

    attempt = SqliteWriter._attempt

    def traced(self: SqliteWriter, connection: apsw.Connection, members: Any, **options: Any) -> None:
        connection.exec_trace = trace
        attempt(self, connection, members, **options)

    with monkeypatch.context() as patch:
        patch.setattr(SqliteWriter, "_attempt", traced)
        note(hf, number)
    return seen


def test_a_lone_writer_reads_nothing_before_it_writes(hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    note(hf, 1)
    assert statements_of(hf, monkeypatch, 2) == ["BEGIN", "INSERT", "UPDATE", "COMMIT"]
    for number in (3, 4):
        note(hf, number)
    assert statements_of(hf, monkeypatch, 5) == ["INSERT"]


def test_a_writer_beside_another_process_decides_under_the_lock(
    path: str, hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        note(hf, number)
    with holdfast.open(path) as other:
        note(other, 4)
        # Its numbers are taken, which refuses the first statement; the next call expects the other process.
        assert statements_of(hf, monkeypatch, 5) == ["INSERT", "BEGIN", "SELECT", "INSERT", "COMMIT"]
        assert statements_of(hf, monkeypatch, 6)[0] == "BEGIN"
    assert hf.journal.verify().ok


def test_nobody_is_refused_by_what_was_known_before_the_lock(path: str, hf: holdfast.Holdfast) -> None:
    check_refusal(hf, path)


def check_refusal(hf: holdfast.Holdfast, path: str) -> None:
    for number in range(1, 5):
        note(hf, number)
    with holdfast.open(path) as other:
        note(other, 5)
    hf.journal.append("actor/a", "app.noted", {"n": 6}, expected=5)
    assert hf.journal.verify().ok


def test_a_refusal_before_the_lock_is_caught(path: str, hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = SqliteWriter._plan

    def refuse(self: SqliteWriter, known: KnownHeads, members: Any, *, ahead: bool = False, **how: Any) -> SqlitePlan:
        return plan(self, known, members, **how)

    monkeypatch.setattr(SqliteWriter, "_plan", refuse)
    monkeypatch.setattr(KnownHeads, "is_current", lambda self, connection: True)
    with pytest.raises(VersionConflict):
        check_refusal(hf, path)


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


@pytest.mark.parametrize("ahead", [True, False])
def test_a_version_that_another_process_made_is_known(
    path: str, hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    if not ahead:
        monkeypatch.setattr(SqliteWriter, "_plan_ahead", lambda *_: None)
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
    monkeypatch.setattr(SqliteWriter, "_plan_ahead", lambda *_: None)
    monkeypatch.setattr(KnownHeads, "is_current", lambda self, connection: True)
    with pytest.raises(VersionConflict):
        check_version(hf, path)


def test_failed_transactions_that_are_remembered_are_caught(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_ahead = SqliteWriter._plan_ahead

    def remember(self: SqliteWriter, connection: apsw.Connection, members: Any) -> SqlitePlan | None:
        plan = plan_ahead(self, connection, members)
        self._known = None if plan is None else plan.known
        return plan

    monkeypatch.setattr(SqliteWriter, "_plan_ahead", remember)
    monkeypatch.setattr(KnownHeads, "is_current", lambda self, connection: connection is self.connection)
    with pytest.raises(AssertionError):
        check_failure(hf, monkeypatch)


def keyed(hf: holdfast.Holdfast, number: int) -> holdfast.types.AppendResult:
    return hf.journal.append("actor/a", "app.noted", {"n": number}, key=f"key-{number}")


def test_a_key_that_was_used_is_found_by_a_writer_that_reads_nothing_first(path: str, hf: holdfast.Holdfast) -> None:
    check_keys(hf, path)


def check_keys(hf: holdfast.Holdfast, path: str) -> None:
    first = [keyed(hf, number).parts[0].last for number in range(5)]
    with holdfast.open(path) as other:
        again = [keyed(one, number) for number in range(5) for one in (hf, other)]
    assert [result.repeated for result in again] == [True] * 10
    assert [result.parts[0].last for result in again[::2]] == first == [1, 2, 3, 4, 5]
    with pytest.raises(KeyReused):
        hf.journal.append("actor/a", "app.noted", {"n": 9}, key="key-1")
    assert keyed(hf, 5).parts[0].last == 6
    assert hf.journal.verify().ok


def test_keys_that_are_never_looked_up_are_caught(
    path: str, hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqlitePlan, "_find_stored", lambda self, tenant, part, *, by_id: [])
    with pytest.raises(holdfast.Refused):
        check_keys(hf, path)


@pytest.mark.parametrize("ahead", [True, False])
def test_what_is_written_does_not_depend_on_planning_ahead(
    path: str, hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    if not ahead:
        monkeypatch.setattr(SqliteWriter, "_plan_ahead", lambda *_: None)
    with holdfast.open(path) as other:
        for number in range(12):
            note(hf if number % 3 else other, number)
            keyed(hf, number % 7)
        with pytest.raises(VersionConflict):
            hf.journal.append("actor/a", "app.noted", {"n": 0}, expected=3)
    assert [event.content.data["n"] for event in hf.journal.events()] == [
        *(n for number in range(7) for n in (number, number)),
        *range(7, 12),
    ]
    assert hf.journal.verify().ok

"""Statements that come again are run in one driver call, with the same outcome as one by one."""

from __future__ import annotations

from collections.abc import Iterator

import apsw
import pytest

from holdfast.sqlite import bundles
from holdfast.sqlite.bundles import Statement, StatementBundles

ADD = "INSERT INTO counts (name, amount) VALUES (?, ?)"
RAISE = (
    "INSERT INTO counts (name, amount) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET amount = amount + excluded.amount"
)
MOVE = "UPDATE counts SET amount = ? WHERE name = ?"


@pytest.fixture
def connection() -> Iterator[apsw.Connection]:
    opened = apsw.Connection(":memory:")
    opened.execute("CREATE TABLE counts (name TEXT PRIMARY KEY, amount ANY NOT NULL) STRICT")
    yield opened
    opened.close()


def prepare(some: StatementBundles) -> None:
    if some.wanted is not None:
        some.prepare()


def run_all(some: StatementBundles, statements: list[Statement]) -> None:
    for sql, runs in some.group(statements):
        some.connection.executemany(sql, runs)


def run(some: StatementBundles, statements: list[Statement]) -> int:
    """Run statements as a transaction of their own and return the number of driver calls."""
    calls = []
    prepare(some)
    some.connection.exec_trace = lambda cursor, sql, values: calls.append(sql) is None
    some.connection.execute("BEGIN")
    run_all(some, statements)
    some.connection.execute("COMMIT")
    some.connection.exec_trace = None
    return len(calls) - 2


def statements(number: int) -> list[Statement]:
    return [
        (ADD, (f"one-{number}", number)),
        (ADD, (f"two-{number}", b"bytes")),
        (RAISE, ("all", number)),
        (MOVE, (None if number < 0 else "moved", f"two-{number}")),
    ]


def counts(connection: apsw.Connection) -> list[tuple[str, object]]:
    return list(connection.execute("SELECT name, amount FROM counts ORDER BY name"))


def test_the_third_time_statements_are_one_call(connection: apsw.Connection) -> None:
    some = StatementBundles(connection)
    assert [run(some, statements(number)) for number in range(4)] == [4, 4, 1, 1]


def test_bundles_leave_what_single_statements_leave(connection: apsw.Connection) -> None:
    some = StatementBundles(connection)
    for number in range(5):
        run(some, statements(number))
    bundled = counts(connection)
    connection.execute("DELETE FROM counts")
    for number in range(5):
        for sql, values in statements(number):
            connection.execute(sql, values)
    assert counts(connection) == bundled


def test_only_inserts_of_whole_rows_are_joined() -> None:
    assert bundles._join_rows(ADD, 3) == f"{ADD}, (?, ?), (?, ?)"
    for sql in (RAISE, MOVE):
        assert bundles._join_rows(sql, 2) == f"{sql}; {sql}"


def test_a_refused_row_leaves_nothing_of_its_bundle(connection: apsw.Connection) -> None:
    some = StatementBundles(connection)
    for number in range(3):
        run(some, statements(number))
    before = counts(connection)
    for wrong in (statements(2), statements(-1)):
        prepare(some)
        connection.execute("BEGIN")
        with pytest.raises(apsw.ConstraintError):
            run_all(some, wrong)
        connection.execute("ROLLBACK")
        assert counts(connection) == before
    assert run(some, statements(9)) == 1


def test_a_bundle_outlives_a_transaction_that_is_rolled_back(connection: apsw.Connection) -> None:
    check_rollback(connection)


def check_rollback(connection: apsw.Connection) -> None:
    some = StatementBundles(connection)
    for number in range(2):
        run(some, statements(number))
    prepare(some)
    connection.execute("BEGIN")
    run_all(some, statements(2))
    connection.execute("ROLLBACK")
    assert run(some, statements(2)) == 1


def test_a_bundle_that_a_rollback_removes_is_caught(
    connection: apsw.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    group, bundle = StatementBundles.group, StatementBundles.prepare

    def prepare_too_late(self: StatementBundles, given: list[Statement]) -> object:
        if self.wanted is not None:
            bundle(self)
        return group(self, given)

    monkeypatch.setattr(StatementBundles, "group", prepare_too_late)
    monkeypatch.setattr(StatementBundles, "prepare", lambda self: None)
    with pytest.raises(apsw.SQLError):
        check_rollback(connection)


def test_bundles_are_bounded_in_number_and_size(connection: apsw.Connection, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundles, "MAX_BUNDLES", 2)
    monkeypatch.setattr(bundles, "MAX_VALUES", 6)
    some = StatementBundles(connection)
    sizes = [[run(some, [(RAISE, ("all", 1))] * size) for _ in range(3)] for size in (4, 1, 2, 3)]
    # Of four statements there are too many values, and of three it would be the third bundle.
    assert [size[-1] for size in sizes] == [4, 1, 1, 3]

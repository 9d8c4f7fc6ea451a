"""What a journal at work asks of SQLite, in counts: they do not depend on the machine.

`counting(journal)` stands between the journal and its connections for as long as it is
entered. A driver call is a method called on a connection or on one of its cursors: each
hands the interpreter's lock over. Statements and VM steps come from SQLite's own trace,
pages from its own counters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import apsw
import msgspec

_TRACED = apsw.SQLITE_TRACE_STMT | apsw.SQLITE_TRACE_PROFILE
_KEEPING = {"data_version"}
"""Methods that keep the interpreter's lock."""
_RUNNING = ("INSERT INTO bundle_", "TRIGGER run_bundle_")
_STEPS = "SQLITE_STMTSTATUS_VM_STEP"


class Counts(msgspec.Struct):
    """Totals since counting began."""

    calls: float = 0
    statements: float = 0
    vm_steps: float = 0
    pages: float = 0
    """Written."""
    pages_read: float = 0
    commits: float = 0
    """Of the connection that writes."""

    def add(self, other: Counts) -> None:
        """What was counted elsewhere as well."""
        for name in self.__struct_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def per(self, operations: int) -> Counts:
        """The same for one operation."""
        return Counts(*(getattr(self, name) / operations for name in self.__struct_fields__))


class _Counted:
    """Stands in for a connection or a cursor and counts what is called on it."""

    def __init__(self, inner: Any, counts: Counts) -> None:
        self._inner = inner
        self._counts = counts

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        return self._counted(found) if callable(found) and name not in _KEEPING else found

    def _counted(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **named: Any) -> Any:
            self._counts.calls += 1
            answer = method(*args, **named)
            return _Counted(answer, self._counts) if isinstance(answer, apsw.Cursor) else answer

        return call

    def __iter__(self) -> Iterator[Any]:
        self._counts.calls += 1
        return iter(self._inner)


@contextmanager
def counting(journal: Any) -> Iterator[Counts]:
    """Count everything that a SQLite journal does, until left."""
    counts = Counts()
    connections = journal.connections
    with ExitStack() as undo:
        for name, way in (("write", _writing), ("reader", _lending)):
            setattr(connections, name, way(getattr(connections, name), counts))
            undo.callback(delattr, connections, name)
        connections.fetch = partial(_fetch, connections)
        undo.callback(delattr, connections, "fetch")
        yield counts


def _fetch(connections: Any, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """Fetch by a connection that is lent, and so counted; the pool takes one without lending it."""
    with connections.reader(once=True) as connection:
        rows: list[Any] = connection.execute(sql, values).fetchall()
        return rows


def _writing(write: Callable[..., Any], counts: Counts) -> Callable[..., Any]:
    known: dict[apsw.Connection, _Counted] = {}

    def counted(work: Callable[..., Any], *given: Any) -> Any:
        def run(connection: apsw.Connection) -> Any:
            # The same for every transaction: the writer keeps what it knows of a connection.
            shown = known.setdefault(connection, _Counted(connection, counts))
            with _traced(connection, counts, writes=True):
                return work(shown, *given)

        return write(run)

    return counted


def _lending(lend: Callable[..., Any], counts: Counts) -> Callable[..., Any]:
    @contextmanager
    def counted(**how: Any) -> Iterator[_Counted]:
        with lend(**how) as connection:
            if isinstance(connection, _Counted):
                yield connection  # That of a snapshot, lent again within it: what it does is counted already.
                return
            with _traced(connection, counts, writes=False):
                yield _Counted(connection, counts)

    return counted


@contextmanager
def _traced(connection: apsw.Connection, counts: Counts, writes: bool) -> Iterator[None]:
    begun = False

    def note(event: dict[str, Any]) -> None:
        nonlocal begun
        if event["code"] == apsw.SQLITE_TRACE_STMT:
            # Those of a bundle are counted one by one, and not what runs them.
            runs = event["sql"].startswith(_RUNNING)
            counts.statements += not runs
            # Outside of a transaction, a bundle is one by itself.
            alone = event["sql"].startswith(_RUNNING[0]) and not begun
            counts.commits += writes and (alone or event["sql"] == "COMMIT")
            begun = event["sql"].startswith("BEGIN") or (begun and event["sql"] not in ("COMMIT", "ROLLBACK"))
        else:
            counts.vm_steps += event["stmt_status"][_STEPS]

    before, read = _pages_written(connection), _pages_read(connection)
    connection.trace_v2(_TRACED, note, id=note)
    try:
        yield
    finally:
        connection.trace_v2(0, None, id=note)
        counts.pages += _pages_written(connection) - before
        counts.pages_read += _pages_read(connection) - read


def _pages_written(connection: apsw.Connection) -> int:
    """Pages that this connection has put into the write-ahead log so far."""
    return connection.status(apsw.SQLITE_DBSTATUS_CACHE_WRITE)[0]


def _pages_read(connection: apsw.Connection) -> int:
    """Pages that this connection has looked at so far, whether they were in its cache or not."""
    found = (apsw.SQLITE_DBSTATUS_CACHE_HIT, apsw.SQLITE_DBSTATUS_CACHE_MISS)
    return sum(connection.status(one)[0] for one in found)

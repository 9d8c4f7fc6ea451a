"""The connections of one database file: one for writing, a few for reading, all closed around a fork.

SQLite's file locks do not survive a fork, but its records of them do: a child that uses them can
destroy the parent's data. So every connection is closed before a fork and reopened when next
needed, on both sides. If another thread is using one at that moment, the child refuses to work.
Threads that fork at the same time do so one after the other.

Nor do the locks survive other code of this process that opens the same file with another SQLite library and closes
it: then any process may delete the log, and commits go to a file without a name. The names are therefore compared with
the files that were opened, before and after every commit. If they differ, the pool stops for good.

A signal may raise KeyboardInterrupt at any call in the main thread, also while an earlier interruption is being
cleaned up. Only `with lock:` and single calls of C code cannot be split. So work that needs a lock is a function,
called inside such a `with`: a context manager in Python could be interrupted before it releases what it took.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, TypeVarTuple

import apsw

from holdfast.errors import Busy, Closed, FileMoved, HoldfastError, OutcomeUnknown, Refused
from holdfast.records.batches import Head
from holdfast.sqlite.connection import (
    DRIVER_ERRORS,
    ROW_ERRORS,
    Durability,
    FileFormat,
    make_busy_handler,
    open_connection,
    rewrite_log,
    translate_error,
)
from holdfast.sqlite.files import FileId, file_size, find_file_id
from holdfast.system import ForkLock

ResultT = TypeVar("ResultT")
GivenTs = TypeVarTuple("GivenTs")

MAX_IDLE_READERS = 16
FORK_WAIT_SECONDS = 1.0
FORK_POLL_SECONDS = 0.001


class ThreadSnapshot(threading.local):
    """The snapshot that a thread's reads see, if it has opened one."""

    connection: apsw.Connection | None = None
    position = 0
    """The cursor at which the snapshot was taken."""
    heads: dict[tuple[str, str], Head | None] | None = None
    """The ends of streams read within the snapshot."""


class SqlitePool:
    """A pool that opens, lends, takes back and closes connections."""

    def __init__(
        self, path: Path, format: FileFormat, *, durability: Durability, busy_ms: int, vfs: str | None
    ) -> None:
        self._path, self._format = path, format
        self._durability: Durability = durability
        self._busy_ms = busy_ms
        self._vfs = vfs
        self.write_lock = ForkLock()
        """The lock to hold while writing: the writer is used by one thread at a time."""
        self._gate = threading.Lock()
        self._users: dict[object, int] = {}
        """The operations that use a connection, each with its thread."""
        self._writer: apsw.Connection | None = None
        self._poller: apsw.Connection | None = None
        self._idle: list[apsw.Connection] = []
        self.pinned = ThreadSnapshot()
        self._names = tuple(os.fsencode(path) + end for end in (b"", b"-wal"))
        self._database = find_file_id(self._names[0])
        self._writer_files: tuple[FileId | None, ...] | None = None
        self._moved = False
        # Frames that another process left in the log when it died may be visible but not on disk.
        self._inherited = file_size(path.with_name(path.name + "-wal")) > 0
        self._suspect = False
        self._forked = False
        self.closed = False
        self.after_fork: list[Callable[[], None]] = []
        if self._database in _UNSAFE_FILES:
            raise Refused(_UNSAFE_MESSAGE)
        with _FORKING:
            _WATCHED.add(self)
        user = object()
        try:
            self._enter(user)
            self._open_writer()
        except DRIVER_ERRORS as error:
            raise translate_error(error) from error
        finally:
            self._users.pop(user, None)

    def write(self, work: Callable[[apsw.Connection, *GivenTs], ResultT], *given: *GivenTs) -> ResultT:
        """Call `work` with the one connection that writes, while no other thread of this process writes."""
        user = object()
        with self.write_lock.lock:
            try:
                self._enter(user)
                try:
                    return work(self._prepare_writer(), *given)
                finally:
                    # The last resort, if a signal interrupted the code that ends a transaction: a signal cannot come
                    # between here and the close, because nothing is called before it.
                    writer = self._writer
                    if writer is not None and writer.in_transaction:
                        self._writer, self._writer_files, self._suspect = None, None, True
                        writer.close(True)
            except DRIVER_ERRORS as error:
                raise translate_error(error) from error
            finally:
                self._users.pop(user, None)
                if self.closed:
                    self._close_if_unused()

    def _prepare_writer(self) -> apsw.Connection:
        try:
            connection = self._writer or self._open_writer()
            self.check_files()
            if self._suspect or self._inherited:
                # Put on disk what a failed commit or a dead process left visible, before any write builds on it.
                rewrite_log(connection, self._path, self._vfs)
                self._suspect = self._inherited = False
        except BaseException:
            self.drop_writer(suspect=self._suspect)
            raise
        return connection

    def transact(self, work: Callable[[apsw.Connection], ResultT]) -> ResultT:
        """Call `work` with the write connection in a transaction: committed at the end, rolled back on any error."""

        def run(connection: apsw.Connection) -> ResultT:
            committing = False
            try:
                connection.execute("BEGIN IMMEDIATE")
                result = work(connection)
                committing = True
                connection.execute("COMMIT")
                self.check_files(committed=True)
            except BaseException as error:
                committing = committing and not isinstance(error, apsw.FullError)
                self.abandon_transaction(connection, error, committing=committing)
                if isinstance(error, DRIVER_ERRORS):
                    raise translate_error(error, committing=committing, advice=self._format.if_unknown) from error
                raise
            return result

        return self.write(run)

    def is_writable(self, within_ms: int) -> bool:
        """Return False if SQLite's write lock cannot be had within that time, not even by this process."""
        connection: apsw.Connection | None = None
        user = object()
        try:
            self._enter(user)
            # On a connection of its own, because the others wait for longer.
            connection = apsw.Connection(os.fspath(self._path), flags=apsw.SQLITE_OPEN_READWRITE, vfs=self._vfs)
            connection.set_busy_handler(make_busy_handler(within_ms))
            connection.execute("BEGIN IMMEDIATE; ROLLBACK")
        except apsw.BusyError:
            return False
        except apsw.Error as error:
            raise translate_error(error) from error
        finally:
            try:
                self._discard(connection)
            finally:
                self._users.pop(user, None)
                self._close_if_unused()
        return True

    def check_files(self, *, committed: bool = False) -> None:
        """Stop for good if the writer's files are not those that their names lead to: nobody would see its commits."""
        files, (database, log) = self._writer_files, self._names
        if files is not None and not self._moved and files == (find_file_id(database), find_file_id(log)):
            return
        if not self._are_files_moved():
            return
        self._moved = True
        message = (
            f"{self._path} or its log is not the file that was opened: it was moved, deleted or replaced, or other "
            "code of this process opened it with another SQLite library and closed it. Close this client, and open "
            "the journal again."
        )
        if committed:
            raise OutcomeUnknown(f"{message} The last commit may be in a file without a name, and lost.")
        raise FileMoved(message)

    def _are_files_moved(self) -> bool:
        files, (database, log) = self._writer_files, self._names
        if self._moved or files is None or files == (find_file_id(database), find_file_id(log)):
            return self._moved
        return files is self._writer_files  # Another thread may have closed the writer just now, and the log with it.

    def abandon_transaction(self, connection: apsw.Connection, error: BaseException, *, committing: bool) -> None:
        """Roll back after an error; drop the connection if it may be faulty or its commit may be half done."""
        if not committing:
            try:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                if isinstance(error, (*ROW_ERRORS, apsw.BusyError, HoldfastError)):
                    return
            except apsw.Error:
                pass  # Dropping the connection ends its transaction.
        self.drop_writer(suspect=committing)

    def truncate_log(self) -> None:
        """Empty the log, which still holds what was deleted."""

        def truncate(connection: apsw.Connection) -> int:
            try:
                return connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)[0]
            except apsw.BusyError:
                return -1

        if self.write(truncate) != 0:
            raise Busy("A reader keeps the log from being emptied.")

    @contextmanager
    def reader(self, *, once: bool = False) -> Iterator[apsw.Connection]:
        """Yield a connection for reading; all reads inside see the same snapshot.

        `once` is for a single statement, read to its end: it is a snapshot by itself and needs no transaction.
        """
        if self.pinned.connection is not None:
            yield self.pinned.connection
            return
        connection: apsw.Connection | None = None
        user = object()
        try:
            self._enter(user)
            with self._gate:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self._open(write=False)
            if not once:
                connection.execute("BEGIN")
            yield connection
            if not once:
                connection.execute("COMMIT")
        except BaseException as error:
            # Taken first: it is not lent again, even if a signal interrupts its closing.
            broken, connection = connection, None
            self._discard(broken)
            if isinstance(error, DRIVER_ERRORS):
                raise translate_error(error) from error
            raise
        finally:
            try:
                self._keep_reader(connection)
            finally:
                self._users.pop(user, None)
                if self.closed:
                    self._close_if_unused()

    def fetch(self, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
        """Return every row of a single statement: a snapshot by itself, which a thread's own snapshot replaces."""
        pinned = self.pinned.connection
        if pinned is not None:
            return pinned.execute(sql, values).fetchall()
        # As `reader` does, without its context: this is how nearly everything is read.
        connection: apsw.Connection | None = None
        user = object()
        try:
            self._enter(user)
            with self._gate:
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                connection = self._open(write=False)
            return connection.execute(sql, values).fetchall()
        except BaseException as error:
            broken, connection = connection, None
            self._discard(broken)
            if isinstance(error, DRIVER_ERRORS):
                raise translate_error(error) from error
            raise
        finally:
            try:
                self._keep_reader(connection)
            finally:
                self._users.pop(user, None)
                if self.closed:
                    self._close_if_unused()

    @contextmanager
    def poller(self) -> Iterator[tuple[apsw.Connection, bool]]:
        """Yield the one connection that polls for changes, and whether it was just opened."""
        user = object()
        try:
            self._enter(user)
            fresh = self._poller is None
            if self._poller is None:
                self._poller = self._open(write=False)
            yield self._poller, fresh
        except DRIVER_ERRORS as error:
            broken, self._poller = self._poller, None
            self._discard(broken)
            raise translate_error(error) from error
        finally:
            self._users.pop(user, None)
            self._close_if_unused()

    @contextmanager
    def extra_writer(self) -> Iterator[apsw.Connection]:
        """Yield a further connection, for long work in parallel with the others."""
        connection: apsw.Connection | None = None
        user = object()
        try:
            self._enter(user)
            connection = self._open(write=True)
            yield connection
            self.check_files(committed=True)
        except DRIVER_ERRORS as error:
            raise translate_error(error) from error
        finally:
            try:
                self._discard(connection)
            finally:
                self._users.pop(user, None)
                self._close_if_unused()

    def drop_writer(self, *, suspect: bool) -> None:
        """Close the writer after an error. With `suspect`, a commit may be visible but not yet on disk."""
        self._suspect = self._suspect or suspect
        self._moved |= self._are_files_moved()
        writer = self._writer
        if writer is not None:
            try:
                if self._moved:
                    writer.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                # Without a call in between: an open transaction is closed, or still that of the writer.
                self._writer = self._writer_files = None
                writer.close(True)
            except apsw.Error:
                pass  # It failed before, so closing may fail too.

    def close(self) -> None:
        """Close every idle connection; those in use are closed when they are returned."""
        self.closed = True
        self._close_if_unused()
        with _FORKING:
            _WATCHED.discard(self)

    def _open(self, *, write: bool) -> apsw.Connection:
        self._check_database()
        connection = open_connection(
            self._path, self._format, durability=self._durability, busy_ms=self._busy_ms, vfs=self._vfs, write=write
        )
        try:
            self._check_database()
        except FileMoved:
            self._discard(connection)
            raise
        return connection

    def _open_writer(self) -> apsw.Connection:
        self._writer = self._open(write=True)
        self._writer_files = tuple(map(find_file_id, self._names))
        return self._writer

    def _check_database(self) -> None:
        """Stop for good if another database has the name: the caches above are of the one that was opened."""
        if find_file_id(self._names[0]) != self._database:
            self._moved = True
            self.check_files()

    def _discard(self, connection: apsw.Connection | None) -> None:
        """Close a connection, whatever its state. A log that lost its name is not copied into the database."""
        if connection is not None:
            try:
                if self._are_files_moved():
                    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
                connection.close(True)
            except apsw.Error:
                pass  # It failed before, so closing may fail too.

    def _enter(self, user: object) -> None:
        """Note an operation. It waits while a thread forks, unless the fork waits for an operation of this thread."""
        if threading.get_ident() in self._users.values():
            self._admit(user)
        else:
            with _FORKING:
                self._admit(user)

    def _admit(self, user: object) -> None:
        with self._gate:
            if self._forked:
                raise Refused(_UNSAFE_MESSAGE)
            if self.closed:
                raise Closed
            if self._moved:
                self.check_files()
            self._users[user] = threading.get_ident()

    def _keep_reader(self, connection: apsw.Connection | None) -> None:
        if len(self._idle) >= MAX_IDLE_READERS:
            self._discard(connection)
        elif connection is not None:
            self._idle.append(connection)

    def _close_if_unused(self) -> None:
        """Close what a closed pool still holds, once no operation needs it."""
        if self.closed:
            with self._gate:
                if not self._users:
                    self._close_all()

    def _close_all(self) -> None:
        # Readers first: closing the last connection folds the log into the database.
        for connection in (*self._idle, self._poller, self._writer):
            self._discard(connection)
        self._idle.clear()
        self._poller = self._writer = self._writer_files = None

    # forking

    def close_before_fork(self) -> None:
        """Wait until every connection is idle, at most a second, and close them all. Operations cannot begin."""
        deadline = time.monotonic() + FORK_WAIT_SECONDS
        while self._users and time.monotonic() < deadline:
            time.sleep(FORK_POLL_SECONDS)
        with self._gate:
            if not self._users:
                self._close_all()

    def start_in_child(self) -> None:
        """Start with nothing inherited, or refuse to work if a connection is still open."""
        inherited = [one for one in (*self._idle, self._poller, self._writer) if one is not None]
        if self._users or inherited:
            self._forked = True
            _UNSAFE_FILES.add(self._database)
            _ABANDONED_CONNECTIONS.extend(inherited)
            self._idle, self._poller, self._writer = [], None, None
        self._gate = threading.Lock()
        self.pinned = ThreadSnapshot()
        self._users = {}
        for callback in self.after_fork:
            callback()


_UNSAFE_FILES: set[FileId | None] = set()
_ABANDONED_CONNECTIONS: list[apsw.Connection] = []
_UNSAFE_MESSAGE = (
    "This process was forked while another thread was using the journal, and SQLite's locks do not survive that. "
    "Open the journal in a process started by spawn, or fork before opening it."
)


_WATCHED: weakref.WeakSet[SqlitePool] = weakref.WeakSet()
_FORKING = threading.RLock()
"""Held by the thread that forks, from before its pools are closed until after the fork."""


def _close_pools() -> None:
    for one in list(_WATCHED):
        one.close_before_fork()


def _start_pools() -> None:
    for one in list(_WATCHED):
        one.start_in_child()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_close_pools, after_in_child=_start_pools)
    # Hooks that were registered last run first before a fork and last after it. The lock's own methods are the hooks:
    # a signal cannot interrupt them, and an exception of a hook would not stop the fork.
    os.register_at_fork(
        before=_FORKING.acquire,
        after_in_parent=_FORKING.release,
        after_in_child=_FORKING._at_fork_reinit,  # type: ignore[attr-defined]
    )

"""Open a SQLite connection that keeps the promises: each pragma set for a reason and read back.

A database that will not take a setting is refused rather than run with less. Driver
errors are translated here and nowhere else.

"""

from __future__ import annotations

import errno
import os
import random
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import apsw

from holdfast.errors import (
    Busy,
    Corrupt,
    HoldfastError,
    NotAJournal,
    OutcomeUnknown,
    ReadOnly,
    Refused,
    StorageFull,
    Unavailable,
    Unsupported,
)

Durability = Literal["full", "fast"]

OLDEST_SQLITE = (3, 51, 3)
STATEMENTS = 256
CHECKPOINT_PAGES = 4_000
REWRITE_BYTES = 65_536


def require_sqlite() -> None:
    """Refuse SQLite before 3.51.3: two connections that write and checkpoint at once could corrupt a WAL database."""
    version = tuple(int(piece) for piece in apsw.sqlite_lib_version().split("."))
    if version < OLDEST_SQLITE:
        raise Unsupported(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt databases that two connections use. "
            f"Install apsw with SQLite {'.'.join(map(str, OLDEST_SQLITE))} or newer."
        )


class FileFormat(NamedTuple):
    """A kind of database file: how to recognise it, how to bring it to its newest schema, and what its SQL may call."""

    recognise: Callable[[apsw.Connection, Path], int]
    """Return the schema's number, 0 for an empty file; refuse a file of something else, untouched."""
    prepare: Callable[[apsw.Connection, Path], None]
    """Create or migrate the schema. Safe among several processes."""
    functions: Mapping[str, tuple[Callable[..., apsw.SQLiteValue], int]] = {}
    """Deterministic SQL functions by name, each with its number of arguments, -1 for any."""
    not_a_database: str | None = None
    """The message for a file that is no SQLite database at all; None for the default of `NotAJournal`."""


def open_connection(
    path: Path, format: FileFormat, *, durability: Durability, busy_ms: int, vfs: str | None, write: bool
) -> apsw.Connection:
    """Open a connection with every setting in force; a connection that writes also prepares the schema."""
    flags = apsw.SQLITE_OPEN_READWRITE
    try:
        connection = apsw.Connection(os.fspath(path), flags=flags, vfs=vfs, statementcachesize=STATEMENTS)
    except apsw.Error as error:
        raise translate(error) from error
    try:
        connection.set_busy_handler(patience(busy_ms))
        for name, (function, arguments) in format.functions.items():
            connection.create_scalar_function(name, function, arguments, deterministic=True)
        format.recognise(connection, path)
        write_ahead_log(connection, busy_ms)
        durable_commits(connection, durability)
        rarer_checkpoints(connection)
        stable_plans(connection)
        real_disk_flush(connection)
        foreign_keys(connection)
        zero_what_is_deleted(connection)
        distrust_the_schema(connection)
        if write:
            format.prepare(connection, path)
        else:
            _set(connection, "query_only", 1)
    except BaseException as error:
        connection.close(True)
        if isinstance(error, apsw.NotADBError) and format.not_a_database is not None:
            raise NotAJournal(format.not_a_database.format(path=path)) from error
        if isinstance(error, apsw.Error):
            raise translate(error) from error
        raise
    return connection


def in_one_moment(connection: apsw.Connection, look: Callable[[], int]) -> int:
    """Run `look` in one transaction: a file that another process is creating is seen empty or whole."""
    if connection.in_transaction:
        return look()
    connection.execute("BEGIN")
    try:
        return look()
    finally:
        connection.execute("ROLLBACK")


def create_file(path: Path) -> None:
    """Create the file with private permissions before SQLite sees it: its WAL and index inherit its mode."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, stat.S_IRUSR | stat.S_IWUSR))
    except FileExistsError:
        if path.is_dir():
            raise NotAJournal(
                f"{path} is a folder. Give the path of a file in it, such as {path / 'agent.db'}."
            ) from None
    except FileNotFoundError:
        raise Refused(f"The folder {path.parent} does not exist. Create it first.") from None
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise StorageFull() from None
        raise ReadOnly(f"{path} cannot be created ({error.strerror}). Check the permissions of its folder.") from None


def patience(busy_ms: int) -> Callable[[int], bool]:
    """Return a busy handler that waits for another process's lock in short random steps: no convoy, no starvation."""
    began = 0.0

    def wait(count: int) -> bool:
        nonlocal began
        now = time.monotonic()
        if count == 0:
            began = now
        if (now - began) * 1000 > busy_ms:
            return False
        time.sleep(_uneven(0.0002, 0.002 if count < 20 else 0.01))
        return True

    return wait


def _uneven(shortest: float, longest: float) -> float:
    return random.uniform(shortest, longest)  # noqa: S311  only to keep waiters out of step


def write_ahead_log(connection: apsw.Connection, busy_ms: int) -> None:
    """Switch to WAL: readers never block the writer, and a commit is one append and one sync.

    Changing the mode needs the file alone and does not call the busy handler, so two
    processes that create a journal at the same time must retry.
    """
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            mode = connection.pragma("journal_mode", "wal")
            break
        except (apsw.BusyError, apsw.LockedError):
            if time.monotonic() > deadline:
                raise
            time.sleep(_uneven(0.001, 0.01))
    if mode != "wal":
        raise Unavailable(f"SQLite keeps journal mode {mode!r} here; holdfast needs WAL. Use a local disk.")


def durable_commits(connection: apsw.Connection, durability: Durability) -> None:
    """Set `synchronous`: FULL syncs the log at every commit; NORMAL (`fast`) may lose the newest on power loss."""
    _set(connection, "synchronous", 2 if durability == "full" else 1)


def rarer_checkpoints(connection: apsw.Connection) -> None:
    """Raise the checkpoint threshold: an append writes about eight pages, mostly those of the append before.

    At SQLite's default of 1,000 pages, about every hundredth append would pay for a checkpoint.
    """
    connection.wal_autocheckpoint(CHECKPOINT_PAGES)


def stable_plans(connection: apsw.Connection) -> None:
    """Make plans independent of bound values; otherwise SQLite recompiles many statements at each use."""
    if not connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1):
        raise Unavailable("SQLite does not keep its query plans stable. holdfast cannot run like this.")


def real_disk_flush(connection: apsw.Connection) -> None:
    """Flush through the drive's cache: on macOS a plain fsync stops there."""
    _set(connection, "fullfsync", 1)
    _set(connection, "checkpoint_fullfsync", 1)


def foreign_keys(connection: apsw.Connection) -> None:
    """Enforce foreign keys, off by default in SQLite, so that a dangling reference does not go unnoticed."""
    _set(connection, "foreign_keys", 1)


def zero_what_is_deleted(connection: apsw.Connection) -> None:
    """Overwrite deleted data with zeros, so that erased content does not stay in free pages."""
    _set(connection, "secure_delete", 1)


def distrust_the_schema(connection: apsw.Connection) -> None:
    """Keep a hostile file from running functions through its schema, and check cell sizes when reading."""
    _set(connection, "trusted_schema", 0)
    _set(connection, "cell_size_check", 1)


def _set(connection: apsw.Connection, name: str, value: int) -> None:
    connection.pragma(name, value)
    actual = connection.pragma(name)
    if actual != value:
        raise Unavailable(f"SQLite keeps {name} at {actual!r} instead of {value!r}. holdfast cannot run like this.")


def rewrite_log(connection: apsw.Connection, path: Path, vfs: str | None) -> None:
    """Write the whole log again, byte for byte, and sync it; under the write lock, so that it does not change.

    Syncing alone proves nothing: after a failed sync, the system may have dropped the pages and
    report success the next time. Pages that are written again are synced again.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        log = path.with_name(path.name + "-wal")
        if not log.exists():
            return
        flags = [apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_READWRITE, 0]
        file = apsw.VFSFile(vfs or "", os.fspath(log), flags)
        try:
            size = file.xFileSize()
            for offset in range(0, size, REWRITE_BYTES):
                file.xWrite(file.xRead(min(REWRITE_BYTES, size - offset), offset), offset)
            file.xSync(apsw.SQLITE_SYNC_FULL)
        finally:
            file.xClose()
    finally:
        connection.execute("ROLLBACK")


def ask(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """Return every row of a query. A result that is not read to its end would keep a lock."""
    return connection.execute(sql, values).fetchall()


def translate(error: BaseException, *, committing: bool = False) -> HoldfastError:
    """Return a driver's error as one of holdfast's. An error while committing means that the outcome is unknown."""
    if isinstance(error, HoldfastError):
        return error
    detail = f"({error})"
    if isinstance(error, apsw.FullError):
        # Even while committing: the last frame of the log, which makes a commit, was not written.
        return StorageFull()
    if committing:
        return OutcomeUnknown(
            f"The commit failed {detail} and may or may not have reached the disk. "
            "Call again with the same key to find out."
        )
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Busy()
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return ReadOnly()
    if isinstance(error, apsw.NotADBError):
        return NotAJournal()
    if isinstance(error, apsw.CorruptError | UnicodeDecodeError):
        return Corrupt(f"The database is damaged {detail}. Stop writing, run `holdfast verify`, restore from a backup.")
    if isinstance(error, apsw.ConstraintError | apsw.MismatchError):
        return Refused(f"The database refused a row {detail}. Nothing was written.")
    if isinstance(error, apsw.TooBigError):
        return Refused(f"A value is too large for SQLite {detail}. Nothing was written.")
    if isinstance(error, apsw.CantOpenError):
        return Unavailable(f"The database file cannot be opened {detail}. Check the path and its permissions.")
    if isinstance(error, apsw.Error | OSError | MemoryError):
        return Unavailable(f"The database could not do this {detail}. Nothing was written; try again later.")
    raise error

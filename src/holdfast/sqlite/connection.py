"""Open a SQLite connection that keeps the promises: each pragma set for a reason and read back.

A database that will not take a setting is refused rather than run with less. Driver
errors are translated here and nowhere else.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import apsw

from holdfast.core.lazy import lazy_module
from holdfast.errors import (
    Busy,
    Corrupt,
    HoldfastError,
    NewerSchema,
    NotAJournal,
    OutcomeUnknown,
    ReadOnly,
    Refused,
    StorageFull,
    Unavailable,
    Unsupported,
)

if TYPE_CHECKING:
    import random
else:
    random = lazy_module(__name__, "random")

Durability = Literal["full", "fast"]

MIN_SQLITE_VERSION = (3, 51, 3)
STATEMENT_CACHE_SIZE = 256
CHECKPOINT_PAGES = 4_000
"""An append writes about eight pages, mostly those of the append before. At SQLite's default of 1,000 pages, about
every hundredth append would pay for a checkpoint."""
SYNCHRONOUS: dict[Durability, int] = {"full": 2, "fast": 1}
"""FULL syncs the log at every commit; NORMAL (`fast`) may lose the newest on power loss."""
PRAGMAS = {
    # Flush through the drive's cache: on macOS a plain fsync stops there.
    "fullfsync": 1,
    "checkpoint_fullfsync": 1,
    # Off by default in SQLite: a dangling reference must not go unnoticed.
    "foreign_keys": 1,
    # Overwrite deleted data with zeros, so that erased content does not stay in free pages.
    "secure_delete": 1,
    # Keep a hostile file from running functions through its schema, and check cell sizes when reading.
    "trusted_schema": 0,
    "cell_size_check": 1,
}
REWRITE_CHUNK_BYTES = 65_536
OPEN_STEPS = 50_000_000
"""The most steps of SQLite's machine until a file's schema is known: a million objects take fewer."""
DRIVER_ERRORS = (apsw.Error, UnicodeDecodeError, OverflowError)
"""Errors of the driver. The last two are about what is stored: bytes that are not text, a number with no next one."""
MAX_BUSY_STEP = 0.01
"""The longest time, in seconds, between two looks of a process that waits for the write lock."""
CALL_AGAIN = "Call again with the same key to find out."
_BLOCK_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*$\n?", re.MULTILINE)
_QUOTED_NAME = re.compile('"([a-z_][a-z0-9_]*)"')
SchemaObjects = Mapping[tuple[str, str], str]
"""The definition of every table, index, view and trigger of a schema, by type and name."""
_SCHEMA = "SELECT type, name, tbl_name, sql FROM sqlite_schema"
_STATISTICS = {
    "sqlite_stat1": "sqlite_stat1: CREATE TABLE sqlite_stat1(tbl,idx,stat)",
    "sqlite_stat4": "sqlite_stat4: CREATE TABLE sqlite_stat4(tbl,idx,neq,nlt,ndlt,sample)",
}
"""The tables that ANALYZE makes."""


def require_sqlite() -> None:
    """Refuse SQLite before 3.51.3: two connections that write and checkpoint at once could corrupt a WAL database."""
    version = tuple(int(piece) for piece in apsw.sqlite_lib_version().split("."))
    if version < MIN_SQLITE_VERSION:
        raise Unsupported(
            f"SQLite {apsw.sqlite_lib_version()} can corrupt databases that two connections use. "
            f"Install apsw with SQLite {'.'.join(map(str, MIN_SQLITE_VERSION))} or newer."
        )


class FileFormat(NamedTuple):
    """A kind of database file: how to recognise it, how to bring it to its newest schema, and what its SQL may call."""

    kind: str
    """The name of the kind, for messages."""
    application: int
    """The application id in the header of such files."""
    migrations: Callable[[], Sequence[tuple[int, Callable[[apsw.Connection], None]]]]
    """Return the number of each schema, in order, and a function that makes it of the one before."""
    objects: Callable[[int], tuple[SchemaObjects, SchemaObjects]]
    """Return the objects that a schema of this number must have, and those that it may have."""
    generalise: Callable[[str], str] = str
    """Return a name or definition as `objects` has it: some tables occur many times under numbered names."""
    functions: Mapping[str, tuple[Callable[..., apsw.SQLiteValue], int]] = {}
    """Deterministic SQL functions by name, each with its number of arguments, -1 for any."""
    others: Mapping[int, str] = {}
    """Messages for files of other known applications, by their ids."""
    not_a_database: str | None = None
    """The message for a file that is no SQLite database at all; None for the default of `NotAJournal`."""
    if_unknown: str = CALL_AGAIN
    """The advice after a commit of unknown outcome."""


def open_connection(
    path: Path, format: FileFormat, *, durability: Durability, busy_ms: int, vfs: str | None, write: bool
) -> apsw.Connection:
    """Open a connection with every setting in force; a connection that writes also prepares the schema."""
    flags = apsw.SQLITE_OPEN_READWRITE
    try:
        connection = apsw.Connection(os.fspath(path), flags=flags, vfs=vfs, statementcachesize=STATEMENT_CACHE_SIZE)
    except apsw.Error as error:
        raise translate_error(error) from error
    try:
        connection.set_busy_handler(make_busy_handler(busy_ms))
        for name, (function, arguments) in format.functions.items():
            connection.create_scalar_function(name, function, arguments, deterministic=True)
        for name, value in PRAGMAS.items():
            _set_pragma(connection, name, value)
        refuse_foreign_sql(connection, path, format)
        enable_wal(connection, busy_ms)
        _set_pragma(connection, "synchronous", SYNCHRONOUS[durability])
        connection.wal_autocheckpoint(CHECKPOINT_PAGES)
        # Plans that do not depend on bound values; otherwise SQLite recompiles many statements at each use.
        if not connection.config(apsw.SQLITE_DBCONFIG_ENABLE_QPSG, 1):
            raise Unavailable("SQLite does not keep its query plans stable. holdfast cannot run like this.")
        if write:
            prepare_schema(connection, path, format)
        else:
            _set_pragma(connection, "query_only", 1)
    except BaseException as error:
        connection.close(True)
        if isinstance(error, apsw.NotADBError) and format.not_a_database is not None:
            raise NotAJournal(format.not_a_database.format(path=path)) from error
        if isinstance(error, DRIVER_ERRORS):
            raise translate_error(error) from error
        raise
    return connection


def prepare_schema(connection: apsw.Connection, path: Path, format: FileFormat) -> None:
    """Bring a file to the newest schema, creating it in a new file. Safe with several processes."""
    migrations = format.migrations()
    if read_schema_number(connection, path, format) == migrations[-1][0]:
        return
    for number, migrate in migrations:
        with write_transaction(connection):
            # Another process may have done this while we waited for the lock.
            if read_schema_number(connection, path, format) < number:
                migrate(connection)
                connection.pragma("application_id", format.application)
                connection.pragma("user_version", number)


def read_schema_number(connection: apsw.Connection, path: Path, format: FileFormat) -> int:
    """Return the number of a file's schema, 0 for an empty file; refuse a file of something else, untouched.

    All is read in one transaction: a file that another process is creating is seen empty or whole.
    """
    if not connection.in_transaction:
        connection.execute("BEGIN")
        try:
            return read_schema_number(connection, path, format)
        finally:
            connection.execute("ROLLBACK")
    found: int = connection.pragma("application_id")
    version: int = connection.pragma("user_version")
    if found == format.application:
        newest = format.migrations()[-1][0]
        if version > newest:
            raise NewerSchema(f"{path} has schema {version}; this release knows {newest}. Upgrade holdfast to open it.")
        return version
    if found in format.others:
        raise NotAJournal(format.others[found].format(path=path))
    if found or version or connection.execute("SELECT count(*) FROM sqlite_schema").get:
        raise NotAJournal(
            f"{path} is an SQLite database of something else. Give the path of a {format.kind}, or of a new file."
        )
    return 0


def refuse_foreign_sql(connection: apsw.Connection, path: Path, format: FileFormat) -> None:
    """Refuse a file with SQL of somebody else, before any of it can run.

    A trigger could change what is appended, and a view in place of a table could answer for it or never end.
    """
    connection.set_progress_handler(lambda: True, OPEN_STEPS)
    connection.execute("BEGIN")
    try:
        number = read_schema_number(connection, path, format)
        for kind, name in find_schema_changes(connection, format, number)[:1] if number else ():
            raise Corrupt(
                f"{path} has the {kind} {name!r:.80} otherwise than holdfast makes it: something else changed the "
                "file, and its SQL could run with yours. Restore from a backup."
            )
    except apsw.InterruptError:
        raise Corrupt(f"{path} takes too long to open: its schema has no end. Restore from a backup.") from None
    finally:
        connection.set_progress_handler(None)
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def find_schema_changes(connection: apsw.Connection, format: FileFormat, number: int) -> Sequence[tuple[str, str]]:
    """Return the type and name of every object that is missing, unknown, or not as a schema of this number has it."""
    return _compare_schema(tuple(fetch_rows(connection, _SCHEMA)), format.objects, format.generalise, number)


@lru_cache(maxsize=2)  # Most connections of a process see the same schema.
def _compare_schema(
    rows: tuple[tuple[Any, ...], ...],
    objects: Callable[[int], tuple[SchemaObjects, SchemaObjects]],
    generalise: Callable[[str], str],
    number: int,
) -> Sequence[tuple[str, str]]:
    required, optional = objects(number)
    found, changed = _parse_schema(rows), []
    for (kind, name), definition in found.items():
        general = (kind, generalise(name))
        if generalise(definition) not in (required.get(general), optional.get(general), _STATISTICS.get(name)):
            changed.append((kind, name))
    return changed + sorted(required.keys() - found.keys())


def _parse_schema(rows: Iterable[tuple[Any, ...]]) -> dict[tuple[str, str], str]:
    """Return objects by type and name, without the quotes that renaming adds to definitions."""
    found: dict[tuple[str, str], str] = {}
    for kind, name, table, sql in rows:
        unquoted = _QUOTED_NAME.sub(r"\1", str(sql or ""))
        found[str(kind), str(name)] = f"{table}: {' '.join(unquoted.split())}"
    return found


def build_schema(*scripts: str, extend: Callable[[apsw.Connection], None] | None = None) -> dict[tuple[str, str], str]:
    """Return the objects that SQL scripts, and then a function, make in an empty database."""
    empty = apsw.Connection(":memory:")
    try:
        for script in scripts:
            for _ in empty.execute(script):
                pass
        if extend is not None:
            extend(empty)
        return read_objects(empty)
    finally:
        empty.close()


def read_objects(connection: apsw.Connection) -> dict[tuple[str, str], str]:
    """Return the objects of a database by type and name."""
    return _parse_schema(fetch_rows(connection, _SCHEMA))


@contextmanager
def write_transaction(connection: apsw.Connection) -> Iterator[None]:
    """Run a block under SQLite's write lock: committed at the end, rolled back on any error."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


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


def make_busy_handler(busy_ms: int) -> Callable[[int], bool]:
    """Return a busy handler that waits for another process's lock in short random steps: no convoy, no starvation."""
    began = 0.0

    def wait(count: int) -> bool:
        nonlocal began
        now = time.monotonic()
        if count == 0:
            began = now
        if (now - began) * 1000 > busy_ms:
            return False
        time.sleep(_random_delay(0.0002, 0.002 if count < 20 else MAX_BUSY_STEP))
        return True

    return wait


def _random_delay(shortest: float, longest: float) -> float:
    return random.uniform(shortest, longest)


def enable_wal(connection: apsw.Connection, busy_ms: int) -> None:
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
            time.sleep(_random_delay(0.001, 0.01))
    if mode != "wal":
        raise Unavailable(f"SQLite keeps journal mode {mode!r} here; holdfast needs WAL. Use a local disk.")


def _set_pragma(connection: apsw.Connection, name: str, value: int) -> None:
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
            for offset in range(0, size, REWRITE_CHUNK_BYTES):
                file.xWrite(file.xRead(min(REWRITE_CHUNK_BYTES, size - offset), offset), offset)
            file.xSync(apsw.SQLITE_SYNC_FULL)
        finally:
            file.xClose()
    finally:
        connection.execute("ROLLBACK")


def fetch_rows(connection: apsw.Connection, sql: str, values: tuple[Any, ...] = ()) -> list[Any]:
    """Return every row of a query. A result that is not read to its end would keep a lock."""
    return connection.execute(sql, values).fetchall()


def parse_queries(sql: str) -> dict[str, str]:
    """Return the blocks of an SQL file by the names above them, without comments."""
    pieces = _BLOCK_NAME.split(sql)
    return {name: _COMMENT.sub("", body).strip() for name, body in zip(pieces[1::2], pieces[2::2], strict=True)}


ROW_ERRORS = (apsw.ConstraintError, apsw.MismatchError, apsw.TooBigError)
"""The errors with which SQLite refuses a row. The connection is sound after them."""


def translate_error(error: BaseException, *, committing: bool = False, advice: str = CALL_AGAIN) -> HoldfastError:
    """Return a driver's error as one of holdfast's. An error while committing means that the outcome is unknown."""
    if isinstance(error, HoldfastError):
        return error
    detail = f"({error})"
    if isinstance(error, apsw.FullError):
        # Even while committing: the last frame of the log, which makes a commit, was not written.
        return StorageFull()
    if committing:
        return OutcomeUnknown(f"The commit failed {detail} and may or may not have reached the disk. {advice}")
    if isinstance(error, apsw.BusyError | apsw.LockedError):
        return Busy()
    if isinstance(error, apsw.ReadOnlyError | apsw.PermissionsError):
        return ReadOnly()
    if isinstance(error, apsw.NotADBError):
        return NotAJournal()
    if isinstance(error, apsw.CorruptError | UnicodeDecodeError | OverflowError):
        return Corrupt(f"The database is damaged {detail}. Stop writing, run `holdfast verify`, restore from a backup.")
    if isinstance(error, ROW_ERRORS):
        return Refused(f"The database refused a row {detail}. Nothing was written.")
    if isinstance(error, apsw.CantOpenError):
        return Unavailable(f"The database file cannot be opened {detail}. Check the path and its permissions.")
    if isinstance(error, apsw.Error | OSError | MemoryError):
        return Unavailable(f"The database could not do this {detail}. Nothing was written; try again later.")
    raise error

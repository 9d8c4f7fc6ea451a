"""Places to measure in: a temporary folder on the disk at hand, journals in it, and the raw limit.

The folder lies in the working folder, not in the system's temporary one, which may be
memory: a sync that touches no disk would make every ratio look worse than it is.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import apsw

from holdfast.connect import connect
from holdfast.ports import Env


@contextmanager
def folder() -> Iterator[Path]:
    """A new folder that goes with everything in it."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=Path.cwd(), ignore_cleanup_errors=True) as path:
        yield Path(path)


@contextmanager
def journal(place: Path, name: str = "journal.db", *, durability: str = "full") -> Iterator[Env]:
    """A journal with everything around it, closed at the end."""
    env = connect(place / name, durability=durability)
    try:
        yield env
    finally:
        env.journal.close()


@contextmanager
def fresh(name: str = "journal.db", *, durability: str = "full") -> Iterator[Env]:
    """A journal in a folder of its own."""
    with folder() as place, journal(place, name, durability=durability) as env:
        yield env


@contextmanager
def raw_insert(place: Path, body: bytes, name: str = "raw.db") -> Iterator[Callable[[], object]]:
    """The least that durable storage of these bytes can cost: one row, one statement, one FULL commit."""
    connection = apsw.Connection(os.fspath(place / name))
    try:
        assert connection.pragma("journal_mode", "wal") == "wal"
        connection.pragma("synchronous", 2)
        connection.execute("CREATE TABLE raw (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")
        yield lambda: connection.execute("INSERT INTO raw (body) VALUES (?)", (body,))
    finally:
        connection.close(True)


def sync_seconds(place: Path, times: int = 200) -> list[float]:
    """How long this disk takes to make one page durable, without any database."""
    found: list[float] = []
    with open(place / "sync.bin", "wb", buffering=0) as file:
        # The file has its size already, as a write-ahead log has once it was folded in.
        file.write(bytes(4096 * times))
        os.fsync(file.fileno())
        file.seek(0)
        for _ in range(times):
            file.write(b"\1" * 4096)
            start = time.perf_counter()
            os.fsync(file.fileno())
            found.append(time.perf_counter() - start)
    return found


def checkpointed_bytes(path: Path) -> int:
    """The size of a database whose log was folded in."""
    connection = apsw.Connection(os.fspath(path))
    try:
        connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    finally:
        connection.close(True)
    return path.stat().st_size

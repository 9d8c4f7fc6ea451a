"""Cozo's embedded engine and its relations: opened by one process at a time, with errors in holdfast's words.

Values reach a script as parameters only. The engine counts relations in memory, so two processes
with one file would overwrite each other: the second one is refused. Relations are created on opening;
if a process is killed meanwhile, the next one completes them.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from cozo_embedded import CozoDbPy  # type: ignore[import-untyped]

from holdfast.core.values import is_interruption
from holdfast.errors import (
    Busy,
    Closed,
    Corrupt,
    HoldfastError,
    InvalidValue,
    NewerSchema,
    NotFound,
    OutcomeUnknown,
    ReadOnly,
    Refused,
    StorageFull,
    Unavailable,
    Unsupported,
)

if sys.platform != "win32":
    import fcntl

Rows = list[list[Any]]
ENGINES: Final = ("sqlite", "mem")
IN_MEMORY: Final = ":memory:"

_CODE = re.compile(r"\bcode:? (?:Some\()?(\d+)")
_CODE_ERRORS: dict[int, tuple[type[HoldfastError], str]] = {
    5: (Busy, "is locked by another process. Try again, or find the process that holds it."),
    6: (Busy, "is locked by another process. Try again, or find the process that holds it."),
    8: (ReadOnly, "cannot be written. Check the permissions of the file and of its folder."),
    11: (Corrupt, "is damaged. Stop writing to it, and restore it from a backup."),
    13: (StorageFull, "does not fit the disk any more, and nothing was written. Free space."),
    14: (Unavailable, "cannot be opened. Check that it is a file, and the permissions of it and of its folder."),
    26: (Corrupt, "is not a Cozo database. Give the path of one, or of a new file."),
}
"""The meanings of SQLite's codes: Cozo keeps its file with SQLite."""
_IO_ERROR = 10
STORE_FORMAT: Final = 1
VECTOR_RELATIONS: Final = ("vector", "vector:near")
"""The relations created with the first vector, whose length they take."""
_RELATIONS = {
    "entry": """:create entry {scope: String, key: String =>
        version: Int, value: String, written_at: Int, expires_at: Int, lifetime: String, rest: Bytes}""",
    "words": ":create words {scope: String, key: String => expires_at: Int, text: String}",
    "words:found": "::fts create words:found {extractor: text, tokenizer: Simple, filters: [Stemmer('english')]}",
    "edge": """:create edge {scope: String, source: String, kind: String, target_scope: String, target: String =>
        weight: Float?, data: String}""",
    "edge:incoming": "::index create edge:incoming {target_scope, target, kind, scope, source}",
    "about": ":create about {name: String => value: Any}",
}


class CozoEngine:
    """One open database."""

    def __init__(self, path: str | os.PathLike[str], engine: str) -> None:
        if engine not in ENGINES:
            raise InvalidValue(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}.")
        text = os.fspath(path)
        if not isinstance(text, str) or not text:
            raise InvalidValue(f"Give the path of a Cozo database as text, or {IN_MEMORY!r}.")
        if (engine == "mem") != (text == IN_MEMORY):
            raise InvalidValue(
                f"engine='mem' goes with the path {IN_MEMORY!r}, and engine='sqlite' with that of a file."
            )
        self.durable = engine != "mem"
        self.name = f"The Cozo database {text}"
        self._lock = _lock_file(Path(text), self.name) if self.durable else None
        try:
            with _translate_errors(self.name):
                self._database = CozoDbPy(engine, text if self.durable else "", "{}")
        except BaseException:
            self._unlock()
            raise

    def read(self, script: str, **params: Any) -> Rows:
        """Run one of holdfast's own read-only scripts and return its rows."""
        with _translate_errors(self.name):
            rows: Rows = self._database.run_script(script, params, True)["rows"]
        return rows

    def write(self, script: str, **params: Any) -> Rows:
        """Run one of holdfast's own scripts, all of it or nothing."""
        with _translate_errors(self.name, writes=True):
            rows: Rows = self._database.run_script(script, params, False)["rows"]
        return rows

    def run_query(self, script: str, params: dict[str, Any]) -> dict[str, Any]:
        """Run a caller's script, which cannot change anything."""
        with _translate_errors(self.name, theirs=True):
            answer = self._database.run_script(script, params, True)
        return {"headers": answer["headers"], "rows": answer["rows"]}

    def close(self) -> None:
        """Close the database and release its lock."""
        self._database.close()
        self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            if sys.platform != "win32":
                # Explicitly: if a child was forked meanwhile, closing the file would not release the lock.
                fcntl.flock(self._lock, fcntl.LOCK_UN)
            os.close(self._lock)
            self._lock = None


@contextmanager
def _translate_errors(name: str, *, writes: bool = False, theirs: bool = False) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        if is_interruption(error):
            raise
        raise _failure(error, name, writes=writes, theirs=theirs) from None


def _failure(error: BaseException, name: str, *, writes: bool, theirs: bool) -> HoldfastError:
    words = _error_text(error)
    found = _CODE.search(words)
    code = int(found[1]) if found else 0
    if code == _IO_ERROR and writes:
        return OutcomeUnknown(f"{name} failed while it was written. Open it again and read what is there.")
    if code in _CODE_ERRORS:
        kind, advice = _CODE_ERRORS[code]
        return kind(f"{name} {advice}")
    if "database closed" in words:
        return Closed()
    if theirs:
        return InvalidValue(f"Cozo does not run this script: {words[:500]}")
    if words.startswith("Cannot convert") or isinstance(error, TypeError | ValueError):
        return InvalidValue("Cozo cannot keep this value. Use text, numbers, bytes, lists and objects of those.")
    return Corrupt(f"{name} cannot be read as holdfast wrote it. Restore it from a backup. {words[:200]}")


def _error_text(error: BaseException) -> str:
    """Return the engine's message, which comes as a record or as text."""
    said = error.args[0] if error.args else ""
    if not isinstance(said, dict):
        return str(said)
    parts = [said.get("message"), *said.get("causes", ()), said.get("help")]
    return ". ".join(str(part) for part in parts if part)


def _lock_file(path: Path, name: str) -> int | None:
    """Lock a file beside the database for as long as it is open."""
    if sys.platform == "win32":
        return None
    try:
        handle = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise NotFound(f"There is no folder {path.parent}. Create it, or correct the path.") from None
    except OSError as error:
        raise ReadOnly(f"{name} cannot be opened for writing: {error.strerror}. Check the permissions.") from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise Busy(f"{name} is open already, and takes one process at a time. Close it there first.") from None
    except OSError as error:
        os.close(handle)
        raise Unsupported(
            f"The file system of {path} does not lock files ({error.strerror}). Use a local disk."
        ) from None
    return handle


def relation_names(engine: CozoEngine) -> set[str]:
    """Return the names of all relations and indexes."""
    return {row[0] for row in engine.read("::relations")}


def read_metadata(engine: CozoEngine) -> dict[str, object]:
    """Return the database's own metadata."""
    return {str(name): value for name, value in engine.read("?[name, value] := *about{name, value}")}


def prepare_relations(engine: CozoEngine) -> None:
    """Create missing relations; refuse a foreign database, or one of a later release."""
    there = relation_names(engine)
    foreign = sorted(there - _RELATIONS.keys() - set(VECTOR_RELATIONS))
    if foreign:
        raise Refused(f"{engine.name} was made by something else: it has {foreign[0]!r}. Give the path of a new file.")
    for name, script in _RELATIONS.items():
        if name not in there:
            engine.write(script)
    known = read_metadata(engine)
    if not known:
        engine.write(f"?[name, value] <- [['format', {STORE_FORMAT}], ['version', 0]] :put about {{name => value}}")
    elif known.get("format") != STORE_FORMAT:
        raise NewerSchema(f"{engine.name} was written by a later release of holdfast. Upgrade holdfast to open it.")

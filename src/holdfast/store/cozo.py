"""The store in Cozo: entries, text, vectors and edges in one embedded engine, and its Datalog for whoever reads.

One process has it open at a time. Every write is one transaction of the engine. What is searched for
is never part of a query: the engine sees letters and digits that were made from it.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from holdfast.ambient import renew_in_child
from holdfast.core.entries import MAX_KEY_CHARS
from holdfast.errors import Closed, Corrupt, InvalidValue
from holdfast.records.entries import Edge, EdgeQuery, EntryPage, Match, Stored, Wanted
from holdfast.store import cozo_graph
from holdfast.store.cozo_engine import CozoEngine, Rows
from holdfast.store.cozo_search import CozoSearch
from holdfast.store.cozo_shape import prepare

NEVER: Final = 2**62
"""When an entry expires that does not."""

_READ = "key, version, value, written_at, expires_at, lifetime, rest"
_GET = f"?[{_READ}] := key = $key, *entry{{scope: $scope, {_READ}}}"
_VERSIONS = """
current[version] := *entry{scope: $scope, key: $key, version}
current[version] := not *entry{scope: $scope, key: $key}, version = 0
?[version, last] := current[version], *about{name: 'version', value: last}
"""
_PUT = f"""
{{?[scope, {_READ}] <- [[$scope, $key, $version, $value, $written_at, $expires_at, $lifetime, $rest]]
  :put entry {{scope, {_READ.replace("key,", "key =>", 1)}}}}}
{{?[name, value] <- [['version', $version]] :put about {{name => value}}}}
"""
_DROP = "{?[scope, key] <- [[$scope, $key]] :rm entry {scope, key}}"

_EXPIRED = "?[scope, key, version] := *entry{scope, key, version, expires_at}, expires_at <= $now :limit $limit"
PURGED_AT_ONCE: Final = 500

_READERS = re.compile(r"\b(CsvReader|JsonReader)\b")


class CozoStore:
    """Relations of one database. A lock lets one thread of this process in at a time."""

    def __init__(self, path: str | os.PathLike[str], *, engine: str = "sqlite") -> None:
        self._engine = CozoEngine(path, engine)
        try:
            prepare(self._engine)
            self._search = CozoSearch(self._engine)
        except BaseException:
            self._engine.close()
            raise
        self._closed = self._forked = False
        self._lock = threading.RLock()
        renew_in_child(self)

    def after_fork(self) -> None:
        """The engine's threads and its locks stay with the parent."""
        self._lock = threading.RLock()
        self._forked = True

    @property
    def capabilities(self) -> frozenset[str]:
        offered = {"text", "vectors", "graph", "datalog"}
        return frozenset(offered | {"durable"} if self._engine.durable else offered)

    def get(self, scope: str, key: str) -> Stored | None:
        with self._open():
            rows = self._engine.read(_GET, scope=scope, key=key)
        return _stored(rows[0]) if rows else None

    def put(
        self, scope: str, key: str, entry: Stored, expected: int | None = None, once: str | None = None
    ) -> int | None:
        params = _columns(entry)
        with self._open():
            ((current, last),) = self._engine.read(_VERSIONS, scope=scope, key=key)
            if expected is not None and expected != current:
                return None
            found, more = self._search.indexing(scope, entry)
            self._engine.write(_PUT + found, scope=scope, key=key, version=last + 1, **params, **more)
            return int(last) + 1

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        with self._open():
            ((current, _),) = self._engine.read(_VERSIONS, scope=scope, key=key)
            if expected is not None and expected != current:
                return None
            if current:
                self._engine.write(_DROP + self._search.forgetting(), scope=scope, key=key)
            return bool(current)

    def purge(self, now: int) -> int:
        total = 0
        while True:
            with self._open():
                rows = self._engine.read(_EXPIRED, now=now, limit=PURGED_AT_ONCE)
                gone = [self.drop(scope, key, version) for scope, key, version in rows]
            total += len(gone)
            if len(gone) < PURGED_AT_ONCE:
                return total

    def page(self, scope: str, page: EntryPage) -> list[tuple[str, Stored]]:
        after, until = _around(page.prefix)
        # Rows come in the order of their keys, and the engine stops when it has enough of them.
        script = (
            f"?[{_READ}] := *entry{{scope: $scope, {_READ}}}, expires_at > $now, key > $after"
            + (", key < $until" if until is not None else "")
            + (", lifetime == $lifetime" if page.lifetime is not None else "")
            + " :limit $limit"
        )
        with self._open():
            rows = self._engine.read(
                script,
                scope=scope,
                now=page.now,
                after=after if page.after is None else max(after, page.after),
                until=until,
                lifetime=page.lifetime,
                limit=page.limit,
            )
        return [(row[0], _stored(row)) for row in rows]

    def search(self, scope: str, wanted: Wanted) -> list[Match]:
        with self._open():
            scores = self._search.find(scope, wanted)
            rows = self._rows(scope, list(scores))
        return self._search.compared(wanted, scores, {row[0]: _stored(row) for row in rows})

    def _rows(self, scope: str, keys: list[str]) -> Rows:
        if not keys:
            return []
        script = f"wanted[key] <- $keys ?[{_READ}] := wanted[key], *entry{{scope: $scope, {_READ}}}"
        return self._engine.read(script, scope=scope, keys=[[key] for key in keys])

    def link(self, edge: Edge) -> None:
        with self._open():
            cozo_graph.link(self._engine, edge)

    def unlink(self, edge: Edge) -> bool:
        with self._open():
            return cozo_graph.unlink(self._engine, edge)

    def edges(self, query: EdgeQuery) -> list[Edge]:
        with self._open():
            return cozo_graph.edges(self._engine, query)

    def datalog(self, script: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a script in Cozo's Datalog finds, as `headers` and `rows`, in all scopes. It can only read.

        Relations are `entry`, `edge` and `words`; a value is JSON text: `parse_json(value)`.
        """
        if not isinstance(script, str):
            raise InvalidValue(f"A Datalog script must be text, not {type(script).__name__}.")
        if _READERS.search(script):
            raise InvalidValue(
                "A Datalog script reads this database alone, so it takes no CsvReader and no JsonReader."
            )
        with self._open():
            pass  # The engine lets readers in beside each other; a long question keeps only writers waiting.
        return self._engine.ask(script, dict(params or {}))

    def close(self) -> None:
        if self._forked or self._closed:
            return
        with self._lock:
            if not self._closed:
                self._closed = True
                self._engine.close()

    def _open(self) -> AbstractContextManager[object]:
        if self._forked:
            raise Closed("This store was opened before a fork. Open it again in this process, once it is closed there.")
        if self._closed:
            raise Closed
        return self._lock


def _columns(entry: Stored) -> dict[str, Any]:
    """An entry as a row: what Datalog may ask for by name, and the rest as bytes."""
    rest = {name: value for name, value in asdict(entry).items() if value not in (None, ()) and name not in _BY_NAME}
    try:
        value = entry.value.decode()
    except UnicodeDecodeError:
        raise InvalidValue("A value must be JSON, which is UTF-8.") from None
    return {
        "value": value,
        "written_at": entry.written_at,
        "expires_at": NEVER if entry.expires_at is None else entry.expires_at,
        "lifetime": entry.lifetime or "",
        "rest": msgspec.msgpack.encode(rest),
    }


_BY_NAME = frozenset({"value", "version", "written_at", "expires_at", "lifetime"})


def _stored(row: list[Any]) -> Stored:
    _, version, value, written_at, expires_at, lifetime, rest = row
    named = {
        "value": value.encode(),
        "version": version,
        "written_at": written_at,
        "expires_at": None if expires_at == NEVER else expires_at,
        "lifetime": lifetime or None,
    }
    try:
        return msgspec.convert(msgspec.msgpack.decode(rest) | named, Stored)
    except (msgspec.MsgspecError, TypeError):
        raise Corrupt("An entry in the Cozo database is damaged. Restore it from a backup.") from None


def _around(prefix: str) -> tuple[str, str | None]:
    """The last key before all that begin with this text, and the first text after them.

    The engine takes `>=` on a key for `>`, so there is no other way to say where to begin.
    """
    if not prefix:
        return "", None
    last = ord(prefix[-1])
    before = prefix[:-1]
    if last:
        before += chr(0xD7FF if last == 0xE000 else last - 1) + _LAST * MAX_KEY_CHARS
    kept = prefix.rstrip(_LAST)
    if not kept:
        return before, None
    following = ord(kept[-1]) + 1
    return before, kept[:-1] + chr(0xE000 if following == 0xD800 else following)


_LAST = "\U0010ffff"

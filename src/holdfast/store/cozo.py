"""The store in Cozo: entries, text, vectors and edges in one embedded engine, with read-only Datalog for callers.

One process has it open at a time. Every write is one transaction of the engine. Search text is
never part of a query: the engine sees letters and digits that were made from it.

Each word is indexed as a word of its scope, so entries of other scopes are never candidates and do not affect the
rarity of a word. While a scope has few vectors, all are compared. Among many the graph is queried, and if its
nearest are mostly in other scopes, this scope's vectors are compared after all.

Values reach a script as parameters only. The engine counts relations in memory, so two processes with one file would
overwrite each other: the second one is refused. Relations are created on opening; if a process is killed meanwhile,
the next one completes them.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import msgspec
from cozo_embedded import CozoDbPy  # type: ignore[import-untyped]
from msgspec.structs import asdict

from holdfast import errors
from holdfast.core.entries import MAX_KEY_CHARS, edge_name
from holdfast.core.journal.codec import decode, encode
from holdfast.core.search.words import index_text
from holdfast.core.values import is_interruption
from holdfast.records.entries import Edge, EdgeQuery, EntryMatch, EntryPageQuery, EntrySearchQuery, StoredEntry
from holdfast.sqlite.vectors import similarities
from holdfast.system import ForkLock, renew_in_child

if sys.platform != "win32":
    import fcntl

NO_EXPIRY: Final = 2**62
"""The stored expiry of an entry that does not expire."""

_COLUMNS = "key, version, value, written_at, expires_at, lifetime, rest"
_GET = f"?[{_COLUMNS}] := key = $key, *entry{{scope: $scope, {_COLUMNS}}}"
_VERSIONS = """
current[version] := *entry{scope: $scope, key: $key, version}
current[version] := not *entry{scope: $scope, key: $key}, version = 0
?[version, last] := current[version], *about{name: 'version', value: last}
"""
_PUT = f"""
{{?[scope, {_COLUMNS}] <- [[$scope, $key, $version, $value, $written_at, $expires_at, $lifetime, $rest]]
  :put entry {{scope, {_COLUMNS.replace("key,", "key =>", 1)}}}}}
{{?[name, value] <- [['version', $version]] :put about {{name => value}}}}
"""
_DROP = "{?[scope, key] <- [[$scope, $key]] :rm entry {scope, key}}"

_EXPIRED = "?[scope, key, version] := *entry{scope, key, version, expires_at}, expires_at <= $now :limit $limit"
PURGE_BATCH: Final = 500

_FORBIDDEN_READERS = re.compile(r"\b(CsvReader|JsonReader)\b")
_NAMED_COLUMNS = frozenset({"value", "version", "written_at", "expires_at", "lifetime"})
_LAST_CHARACTER = "\U0010ffff"
_EDGE_COLUMNS: Final = "scope, source, kind, target_scope, target, weight, data"
_EDGE_KEY: Final = "scope, source, kind, target_scope, target"
_EDGE_KEY_VALUES: Final = "[[$scope, $source, $kind, $target_scope, $target]]"
_LINK = f"""
?[{_EDGE_COLUMNS}] <- [[$scope, $source, $kind, $target_scope, $target, $weight, $data]]
:put edge {{{_EDGE_KEY} => weight, data}}
"""
_FIND_EDGE = f"""
asked[{_EDGE_KEY}] <- {_EDGE_KEY_VALUES}
?[weight] := asked[{_EDGE_KEY}], *edge{{{_EDGE_KEY}, weight}}
"""
_UNLINK = f"?[{_EDGE_KEY}] <- {_EDGE_KEY_VALUES} :rm edge {{{_EDGE_KEY}}}"
_EDGES_AT = {
    "out": "wanted[source], scope = $scope",
    "in": "wanted[target], target_scope = $scope, *edge:incoming{target_scope, target, kind, scope, source}",
}
MAX_COMPARED: Final = 2_000
"""The number of vectors that can be compared in the time that the graph needs to find the nearest."""
GRAPH_WIDTH: Final = 200
"""The number of neighbours kept in view during the graph search: with 5, every other nearest one was missed."""
MAX_WORD_HITS: Final = 2_000
"""The limit of entries examined per word. A word that occurs in more of them says little about each."""
# A row is removed first: if overwritten, it would still be found by its former words.
_FORGET_WORDS = "{?[scope, key] <- [[$scope, $key]] :rm words {scope, key}}"
_ADD_WORDS = """{?[scope, key, expires_at, text] <- [[$scope, $key, $expires_at, $text]]
  :put words {scope, key => expires_at, text}}"""
_FORGET_VECTOR = "{?[scope, key] <- [[$scope, $key]] :rm vector {scope, key}}"
_ADD_VECTOR = """{?[scope, key, expires_at, v] <- [[$scope, $key, $expires_at, vec($vector)]]
  :put vector {scope, key => expires_at, v}}"""
_HITS = """hit[key, term, times] := term = {term}, ~words:found{{scope, key, expires_at |
  query: $query{term}, k: $most, bind_score: times, score_kind: 'tf', filter: scope == $scope && expires_at > $now}}
"""
# The engine's own score of several words is that of the best one, so the sum is made here: rare words count
# more, and repetitions of a word ever less.
_SUM_SCORES = """rare[term, count(key)] := hit[key, term, times]
?[key, sum(score)] := hit[key, term, times], rare[term, n], score = ln(1 + $most / n) * times / (times + 1.2)
:order -sum(score) :limit $limit"""
_COUNT_VECTORS = "?[key] := *vector{scope: $scope, key} :limit $most"
_NEAREST = """?[key] := ~vector:near{scope, key, expires_at |
  query: vec($vector), k: $limit, ef: $wide, filter: scope == $scope && expires_at > $now}"""
_COMPARE_VECTORS = """?[key, distance] := *vector{scope: $scope, key, expires_at, v}, expires_at > $now,
  distance = cos_dist(v, vec($vector)) :order distance :limit $limit"""


class CozoStore:
    """A store in one database. A lock admits one thread of this process at a time."""

    def __init__(self, path: str | os.PathLike[str], *, engine: str = "sqlite") -> None:
        self._engine = CozoEngine(path, engine)
        try:
            prepare_relations(self._engine)
            self._search = CozoSearch(self._engine)
        except BaseException:
            self._engine.close()
            raise
        self._closed = self._forked = False
        self._lock = ForkLock(reentrant=True)
        renew_in_child(self)

    def after_fork(self) -> None:
        """Mark the store as unusable in the child: the engine's threads and locks stay with the parent."""
        self._forked = True

    @property
    def capabilities(self) -> frozenset[str]:
        offered = {"text", "vectors", "graph", "datalog"}
        return frozenset(offered | {"durable"} if self._engine.durable else offered)

    def get(self, scope: str, key: str) -> StoredEntry | None:
        with self._open():
            rows = self._engine.read(_GET, scope=scope, key=key)
        return _entry_from_row(rows[0]) if rows else None

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> int | None:
        params = _entry_columns(entry)
        with self._open():
            ((current, last),) = self._engine.read(_VERSIONS, scope=scope, key=key)
            if expected is not None and expected != current:
                return None
            found, more = self._search.index_script(scope, entry)
            self._engine.write(_PUT + found, scope=scope, key=key, version=last + 1, **params, **more)
            return int(last) + 1

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        with self._open():
            ((current, _),) = self._engine.read(_VERSIONS, scope=scope, key=key)
            if expected is not None and expected != current:
                return None
            if current:
                self._engine.write(_DROP + self._search.removal_script(), scope=scope, key=key)
            return bool(current)

    def purge(self, now: int) -> int:
        total = 0
        while True:
            with self._open():
                rows = self._engine.read(_EXPIRED, now=now, limit=PURGE_BATCH)
                gone = [self.drop(scope, key, version) for scope, key, version in rows]
            total += len(gone)
            if len(gone) < PURGE_BATCH:
                return total

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        after, until = _prefix_bounds(page.prefix)
        # Rows come in the order of their keys, and the engine stops when it has enough of them.
        script = (
            f"?[{_COLUMNS}] := *entry{{scope: $scope, {_COLUMNS}}}, expires_at > $now, key > $after"
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
        return [(row[0], _entry_from_row(row)) for row in rows]

    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        with self._open():
            scores = self._search.find_candidates(scope, wanted)
            script = f"wanted[key] <- $keys ?[{_COLUMNS}] := wanted[key], *entry{{scope: $scope, {_COLUMNS}}}"
            rows = self._engine.read(script, scope=scope, keys=[[key] for key in scores]) if scores else []
        return self._search.rank_matches(wanted, scores, {row[0]: _entry_from_row(row) for row in rows})

    def link(self, edge: Edge) -> None:
        weight = None if edge.weight is None else float(edge.weight)
        with self._open():
            self._engine.write(_LINK, **_edge_params(edge), weight=weight, data=encode(edge.data).decode())

    def unlink(self, edge: Edge) -> bool:
        with self._open():
            found = bool(self._engine.read(_FIND_EDGE, **_edge_params(edge)))
            if found:
                self._engine.write(_UNLINK, **_edge_params(edge))
            return found

    def edges(self, query: EdgeQuery) -> list[Edge]:
        """Return edges at some keys, in order of their names."""
        if not query.keys:
            return []
        script = (
            f"wanted[{'source' if query.direction == 'out' else 'target'}] <- $keys "
            + ("kinds[kind] <- $kinds " if query.kinds else "")
            + f"?[{_EDGE_COLUMNS}] := {_EDGES_AT[query.direction]}, *edge{{{_EDGE_COLUMNS}}}"
            + (", kinds[kind]" if query.kinds else "")
            + f" :order {_EDGE_KEY} :limit $limit"
        )
        keys, kinds = [[key] for key in query.keys], [[kind] for kind in query.kinds]
        with self._open():
            rows = self._engine.read(script, scope=query.scope, keys=keys, kinds=kinds, limit=query.limit)
        names = _EDGE_COLUMNS.split(", ")[:-1]
        return [Edge(**dict(zip(names, row, strict=True)), data=decode(data.encode())) for *row, data in rows]

    def datalog(self, script: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a read-only script in Cozo's Datalog over all scopes; return `headers` and `rows`.

        Relations are `entry`, `edge` and `words`; a value is JSON text: `parse_json(value)`.
        """
        if not isinstance(script, str):
            raise errors.InvalidValue(f"A Datalog script must be text, not {type(script).__name__}.")
        if _FORBIDDEN_READERS.search(script):
            raise errors.InvalidValue(
                "A Datalog script reads this database alone, so it takes no CsvReader and no JsonReader."
            )
        with self._open():
            pass  # The engine runs readers in parallel; a long query only delays writers.
        return self._engine.run_query(script, dict(params or {}))

    def close(self) -> None:
        if self._forked or self._closed:
            return
        with self._lock.lock:
            if not self._closed:
                self._closed = True
                self._engine.close()

    def _open(self) -> AbstractContextManager[object]:
        if self._forked:
            raise errors.Closed(
                "This store was opened before a fork. Open it again in this process, once it is closed there."
            )
        if self._closed:
            raise errors.Closed
        return self._lock.lock


def _entry_columns(entry: StoredEntry) -> dict[str, Any]:
    """Return an entry as a row: named columns for Datalog, and the rest as bytes."""
    kept = {name: value for name, value in asdict(entry).items() if value not in (None, ())}
    rest = {name: value for name, value in kept.items() if name not in _NAMED_COLUMNS}
    try:
        value = entry.value.decode()
    except UnicodeDecodeError:
        raise errors.InvalidValue("A value must be JSON, which is UTF-8.") from None
    return {
        "value": value,
        "written_at": entry.written_at,
        "expires_at": NO_EXPIRY if entry.expires_at is None else entry.expires_at,
        "lifetime": entry.lifetime or "",
        "rest": msgspec.msgpack.encode(rest),
    }


def _entry_from_row(row: list[Any]) -> StoredEntry:
    _, version, value, written_at, expires_at, lifetime, rest = row
    named = {
        "value": value.encode(),
        "version": version,
        "written_at": written_at,
        "expires_at": None if expires_at == NO_EXPIRY else expires_at,
        "lifetime": lifetime or None,
    }
    try:
        return msgspec.convert(msgspec.msgpack.decode(rest) | named, StoredEntry)
    except (msgspec.MsgspecError, TypeError):
        raise errors.Corrupt("An entry in the Cozo database is damaged. Restore it from a backup.") from None


def _edge_params(edge: Edge) -> dict[str, str]:
    return dict(zip(_EDGE_KEY.split(", "), edge_name(edge), strict=True))


def _prefix_bounds(prefix: str) -> tuple[str, str | None]:
    """Return the last key before all with this prefix, and the first text after them.

    The engine treats `>=` on a key as `>`, so there is no other way to set where a page begins.
    """
    if not prefix:
        return "", None
    last = ord(prefix[-1])
    before = prefix[:-1]
    if last:
        before += chr(0xD7FF if last == 0xE000 else last - 1) + _LAST_CHARACTER * MAX_KEY_CHARS
    kept = prefix.rstrip(_LAST_CHARACTER)
    if not kept:
        return before, None
    following = ord(kept[-1]) + 1
    return before, kept[:-1] + chr(0xE000 if following == 0xD800 else following)


class CozoSearch:
    """The index of entries, and searches in it. The first vector fixes the embedder and the length of all."""

    def __init__(self, engine: CozoEngine) -> None:
        self._engine = engine
        known = read_metadata(engine)
        self._space: tuple[object, object] | None = None
        if "embedder" in known:
            self._space = (known["embedder"], known["dimensions"])

    def index_script(self, scope: str, entry: StoredEntry) -> tuple[str, dict[str, Any]]:
        """Return the script that indexes a written entry, and its parameters."""
        script, params = self.removal_script(), dict[str, Any]()
        if entry.words is not None:
            script += _ADD_WORDS
            params["text"] = " ".join(_index_tokens(scope, entry.words))
        if entry.vector is not None and any(entry.vector):
            space = (entry.embedder or "", len(entry.vector))
            if self._space is None:
                self._create_vectors(*space)
            if space == self._space:
                script += _ADD_VECTOR
                params["vector"] = _vector_numbers(entry.vector)
        return script, params

    def removal_script(self) -> str:
        """Return the script that removes an entry from the index."""
        return _FORGET_WORDS if self._space is None else _FORGET_WORDS + _FORGET_VECTOR

    def _create_vectors(self, embedder: str, dimensions: int) -> None:
        """Create the relation of vectors, replacing one that a killed process left unfinished."""
        there = relation_names(self._engine)
        if VECTOR_RELATIONS[1] in there:
            self._engine.write("::index drop vector:near")
        if VECTOR_RELATIONS[0] in there:
            self._engine.write("::remove vector")
        size = int(dimensions)
        self._engine.write(f":create vector {{scope: String, key: String => expires_at: Int, v: <F32; {size}>}}")
        self._engine.write(
            f"::hnsw create vector:near {{dim: {size}, m: 16, dtype: F32, fields: [v], "
            "distance: Cosine, ef_construction: 64}"
        )
        self._engine.write(
            "?[name, value] <- [['embedder', $embedder], ['dimensions', $dimensions]] :put about {name => value}",
            embedder=embedder,
            dimensions=dimensions,
        )
        self._space = (embedder, dimensions)

    def find_candidates(self, scope: str, wanted: EntrySearchQuery) -> dict[str, float]:
        """Return keys of candidates with their word scores: 0 for those found only by vector."""
        found = dict.fromkeys(self._find_near(scope, wanted), 0.0)
        queries = [query for term in wanted.terms if (query := _term_query(scope, term))]
        if queries:
            rows = self._engine.read(
                "".join(_HITS.format(term=term) for term in range(len(queries))) + _SUM_SCORES,
                scope=scope,
                now=wanted.now,
                limit=wanted.limit,
                most=max(MAX_WORD_HITS, wanted.limit),
                **{f"query{term}": query for term, query in enumerate(queries)},
            )
            found.update((key, score) for key, score in rows)
        return found

    def _find_near(self, scope: str, wanted: EntrySearchQuery) -> list[str]:
        if wanted.vector is None or not any(wanted.vector):
            return []
        if self._space != (wanted.embedder or "", len(wanted.vector)):
            return []
        asked = {"scope": scope, "now": wanted.now, "limit": wanted.limit, "vector": _vector_numbers(wanted.vector)}
        rows: Rows = []
        if len(self._engine.read(_COUNT_VECTORS, scope=scope, most=MAX_COMPARED + 1)) > MAX_COMPARED:
            rows = self._engine.read(_NEAREST, **asked, wide=max(GRAPH_WIDTH, wanted.limit))
        if len(rows) < wanted.limit:
            rows = self._engine.read(_COMPARE_VECTORS, **asked)
        return [row[0] for row in rows]

    def rank_matches(
        self, wanted: EntrySearchQuery, scores: Mapping[str, float], entries: Mapping[str, StoredEntry]
    ) -> list[EntryMatch]:
        """Return the best candidates, each with both of its scores."""
        query = wanted.vector or b""
        alike = {
            key: entry.vector
            for key, entry in entries.items()
            if query and entry.vector and entry.embedder == wanted.embedder and len(entry.vector) == len(query)
        }
        cosines = dict(zip(alike, similarities(query, list(alike.values())), strict=True))
        top = max(scores.values(), default=0.0) or 1.0
        found = [
            EntryMatch(key=key, entry=entry, text=scores[key], cosine=max(0.0, cosines.get(key, 0.0)))
            for key, entry in entries.items()
        ]
        found.sort(key=lambda match: (-match.text / top - match.cosine, match.key))
        return [match for match in found if match.text > 0 or match.cosine > 0][: wanted.limit]


def _vector_numbers(vector: bytes) -> list[float]:
    return [float(number) for number in memoryview(vector).cast("b")]


def _scope_prefix(scope: str) -> str:
    """Return the prefix of every word of a scope. Without vowels, so that the engine's stemmer leaves it alone."""
    digest = hashlib.sha256(scope.encode()).digest()
    return f"S{int.from_bytes(digest[:8], 'big') % 10**15:015}"


def _index_tokens(scope: str, text: str) -> list[str]:
    """Return words as tokens of the engine; those that are not plain ASCII as the hex of their bytes."""
    place = _scope_prefix(scope)
    # Words have no capital letters, and after a digit there is no ending for the stemmer to remove.
    return [f"{place}{word if word.isascii() else f'U{word.encode().hex()}0'}" for word in index_text(text).split()]


def _term_query(scope: str, term: str) -> str:
    """Return a term in the engine's query language: characters of languages without spaces must be adjacent."""
    tokens = [f'"{token}"' for token in _index_tokens(scope, term)]
    if len(tokens) < 2:
        return "".join(tokens)
    pairs = [f"NEAR/1({first} {second})" for first, second in pairwise(tokens) if first != second]
    return " AND ".join(pairs or tokens[:1])


Rows = list[list[Any]]
ENGINES: Final = ("sqlite", "mem")
IN_MEMORY: Final = ":memory:"

_CODE = re.compile(r"\bcode:? (?:Some\()?(\d+)")
_CODE_ERRORS: dict[int, tuple[type[errors.HoldfastError], str]] = {
    5: (errors.Busy, "is locked by another process. Try again, or find the process that holds it."),
    6: (errors.Busy, "is locked by another process. Try again, or find the process that holds it."),
    8: (errors.ReadOnly, "cannot be written. Check the permissions of the file and of its folder."),
    11: (errors.Corrupt, "is damaged. Stop writing to it, and restore it from a backup."),
    13: (errors.StorageFull, "does not fit the disk any more, and nothing was written. Free space."),
    14: (errors.Unavailable, "cannot be opened. Check that it is a file, and the permissions of it and of its folder."),
    26: (errors.Corrupt, "is not a Cozo database. Give the path of one, or of a new file."),
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
            raise errors.InvalidValue(f"engine must be one of {', '.join(ENGINES)}, not {engine!r}.")
        text = os.fspath(path)
        if not isinstance(text, str) or not text:
            raise errors.InvalidValue(f"Give the path of a Cozo database as text, or {IN_MEMORY!r}.")
        if (engine == "mem") != (text == IN_MEMORY):
            raise errors.InvalidValue(
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


def _failure(error: BaseException, name: str, *, writes: bool, theirs: bool) -> errors.HoldfastError:
    words = _error_text(error)
    found = _CODE.search(words)
    code = int(found[1]) if found else 0
    if code == _IO_ERROR and writes:
        return errors.OutcomeUnknown(f"{name} failed while it was written. Open it again and read what is there.")
    if code in _CODE_ERRORS:
        kind, advice = _CODE_ERRORS[code]
        return kind(f"{name} {advice}")
    if "database closed" in words:
        return errors.Closed()
    if theirs:
        return errors.InvalidValue(f"Cozo does not run this script: {words[:500]}")
    if words.startswith("Cannot convert") or isinstance(error, TypeError | ValueError):
        return errors.InvalidValue("Cozo cannot keep this value. Use text, numbers, bytes, lists and objects of those.")
    return errors.Corrupt(f"{name} cannot be read as holdfast wrote it. Restore it from a backup. {words[:200]}")


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
        raise errors.NotFound(f"There is no folder {path.parent}. Create it, or correct the path.") from None
    except OSError as error:
        raise errors.ReadOnly(
            f"{name} cannot be opened for writing: {error.strerror}. Check the permissions."
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise errors.Busy(f"{name} is open already, and takes one process at a time. Close it there first.") from None
    except OSError as error:
        os.close(handle)
        raise errors.Unsupported(
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
        raise errors.Refused(
            f"{engine.name} was made by something else: it has {foreign[0]!r}. Give the path of a new file."
        )
    for name, script in _RELATIONS.items():
        if name not in there:
            engine.write(script)
    known = read_metadata(engine)
    if not known:
        engine.write(f"?[name, value] <- [['format', {STORE_FORMAT}], ['version', 0]] :put about {{name => value}}")
    elif known.get("format") != STORE_FORMAT:
        raise errors.NewerSchema(
            f"{engine.name} was written by a later release of holdfast. Upgrade holdfast to open it."
        )

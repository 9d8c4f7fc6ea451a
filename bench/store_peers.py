"""LangGraph's stores in the peers' process: `python -m bench.store_peers`, one JSON line in, one JSON line out.

Each as it comes. Its SqliteStore is given by its own `from_conn_string`, which leaves SQLite's defaults: a rollback
journal and synchronous=FULL, and `put` is one transaction. It can also be given a connection, so it is measured on
one in WAL mode with synchronous=FULL as well, which is what holdfast has. Vectors need a connection that loads
extensions; where Python's own does not, one of pysqlite3 is given. It has no text search: what it offers is
a filter by equal fields.
"""

from __future__ import annotations

import gc
import itertools
import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.chat_peers import serve
from bench.peer_kinds import SYNCHRONOUS
from bench.store_items import DIMENSIONS, LIMIT, PAGE, QUESTIONS, Vectors, group, key, question, text, topic, value

SQLITE = "LangGraph SqliteStore"
SQLITE_WAL = "LangGraph SqliteStore, WAL connection"
SQLITE_VECTORS = "LangGraph SqliteStore, sqlite-vec"
MEMORY = "LangGraph InMemoryStore"
MEMORY_VECTORS = "LangGraph InMemoryStore, vectors"
KINDS = (SQLITE, SQLITE_WAL, SQLITE_VECTORS, MEMORY, MEMORY_VECTORS)
TOGETHER = 500
ROOT = "memories"


class Opened:
    """A store with so many items, and what is known about it."""

    def __init__(self, kind: str, path: Path, items: int, vectors: Path | None) -> None:
        self._stack = ExitStack()
        self.items = items
        self.numbers = itertools.count(items)
        self.turns = itertools.count()
        index = None if vectors is None else _index(Vectors(vectors, items), items)
        self.store, self.note = self._made(kind, path, index)
        self._load()

    def _made(self, kind: str, path: Path, index: Any) -> tuple[Any, str]:
        if kind in (MEMORY, MEMORY_VECTORS):
            from langgraph.store.memory import InMemoryStore

            return InMemoryStore(index=index) if index else InMemoryStore(), "in memory"
        from langgraph.store.sqlite import SqliteStore

        if kind == SQLITE:
            store = self._stack.enter_context(SqliteStore.from_conn_string(str(path)))
        else:
            connection = _connection(path, extensions=index is not None)
            self._stack.callback(connection.close)
            if kind == SQLITE_WAL:
                connection.execute("PRAGMA journal_mode = wal").fetchall()
                connection.execute("PRAGMA synchronous = FULL")
            store = SqliteStore(connection, index=index)
        store.setup()
        return store, _durability(store.conn)

    def _load(self) -> None:
        from langgraph.store.base import PutOp

        for first in range(0, self.items, TOGETHER):
            some = range(first, min(first + TOGETHER, self.items))
            self.store.batch([PutOp(self.namespace(number), key(number), value(number)) for number in some])

    def namespace(self, number: int) -> tuple[str, str]:
        """A group's own."""
        return (ROOT, group(number, self.items))

    def close(self) -> None:
        """Let go of the database."""
        self._stack.close()


def _connection(path: Path, *, extensions: bool) -> Any:
    driver: Any = sqlite3
    if extensions and not hasattr(sqlite3.Connection, "enable_load_extension"):
        import pysqlite3

        driver = pysqlite3
    return driver.connect(str(path), check_same_thread=False, isolation_level=None)


def _durability(connection: Any) -> str:
    ((level,),) = connection.execute("PRAGMA synchronous").fetchall()
    ((mode,),) = connection.execute("PRAGMA journal_mode").fetchall()
    return f"journal_mode={mode}, synchronous={SYNCHRONOUS[level]}"


def _index(vectors: Vectors, items: int) -> dict[str, Any]:
    numbers = {text(number): number for number in range(items)}
    # As the store wants them, made before the clock starts.
    made = {said: vectors.of_item(number).tolist() for said, number in numbers.items()}
    made |= {asked: vectors.of_question(asked).tolist() for asked in (question(n, items) for n in range(QUESTIONS))}
    other = vectors.of_item(0).tolist()
    return {
        "dims": DIMENSIONS,
        "embed": lambda texts: [made.get(one, other) for one in texts],
        "fields": ["text"],
    }


class Stores:
    """What can be asked: every public method. Each answers with the seconds of one."""

    def __init__(self) -> None:
        self._opened: dict[str, Opened] = {}

    def hello(self, place: str) -> dict[str, Any]:
        """Which stores work here, and why others do not."""
        found: dict[str, str] = {}
        absent: dict[str, str] = {}
        for kind in KINDS:
            package = "langgraph-checkpoint" if kind in (MEMORY, MEMORY_VECTORS) else "langgraph-checkpoint-sqlite"
            vectors = Path(place) / "no-vectors.bin" if kind in (SQLITE_VECTORS, MEMORY_VECTORS) else None
            try:
                if vectors is not None:
                    vectors.write_bytes(bytes(4 * DIMENSIONS * (QUESTIONS + 1)))
                Opened(kind, Path(place) / f"hello-{KINDS.index(kind)}.db", 1, vectors).close()
                found[kind] = f"{package} {version(package)}"
            except Exception as error:
                absent[kind] = f"{type(error).__name__}: {error}"
        gc.collect()
        gc.freeze()
        return {"found": found, "absent": absent}

    def open(self, kind: str, place: str, items: int, vectors: str | None) -> str:
        """A store of a kind with so many items; says how durable its commits are."""
        path = Path(place) / f"langgraph-{KINDS.index(kind)}.db"
        self._opened[kind] = Opened(kind, path, items, None if vectors is None else Path(vectors))
        gc.collect()
        gc.freeze()
        return self._opened[kind].note

    def put(self, kind: str, times: int) -> float:
        """New items, one call and one commit each."""
        opened = self._opened[kind]
        numbers = [next(opened.numbers) for _ in range(times)]
        inputs = [(opened.namespace(number), key(number), value(number)) for number in numbers]
        return _each(lambda given: opened.store.put(*given), inputs)

    def read_back(self, kind: str) -> int:
        """The items that were put and are there: as many as were acknowledged, or it fails."""
        opened = self._opened[kind]
        last = next(opened.numbers)
        for number in range(opened.items, last):
            _some(opened.store.get(opened.namespace(number), key(number)))
        return last - opened.items

    def get(self, kind: str, times: int) -> float:
        """Items that are there."""
        opened = self._opened[kind]
        numbers = [next(opened.turns) * 7_919 % opened.items for _ in range(times)]
        inputs = [(opened.namespace(number), key(number)) for number in numbers]
        return _each(lambda given: _some(opened.store.get(*given)), inputs)

    def list(self, kind: str, times: int) -> float:
        """A group's items, newest first: it knows no other order and no keys to go on after."""
        opened = self._opened[kind]
        inputs = [opened.namespace(next(opened.turns)) for _ in range(times)]
        return _each(lambda namespace: _some(opened.store.search(namespace, limit=PAGE)), inputs)

    def text(self, kind: str, times: int) -> float:
        """Items of all groups with a field of this value, which is the nearest that it offers."""
        opened = self._opened[kind]
        inputs = [topic(next(opened.turns) * 7_919 % opened.items) for _ in range(times)]
        return _each(lambda one: _some(opened.store.search((ROOT,), filter={"topic": one}, limit=LIMIT)), inputs)

    def vector(self, kind: str, times: int) -> float:
        """Items of all groups that are most like a question."""
        opened = self._opened[kind]
        inputs = [question(next(opened.turns) % QUESTIONS, opened.items) for _ in range(times)]
        return _each(lambda asked: _some(opened.store.search((ROOT,), query=asked, limit=LIMIT)), inputs)

    def close(self) -> None:
        """Let go of everything."""
        for opened in self._opened.values():
            opened.close()


def _some(found: Any) -> None:
    assert found, "a store that finds nothing is not measured"


def _each(work: Callable[[Any], object], inputs: Iterable[Any]) -> float:
    given = list(inputs)
    gc.collect()
    start = time.perf_counter()
    for one in given:
        work(one)
    return (time.perf_counter() - start) / len(given)


if __name__ == "__main__":
    serve(Stores())

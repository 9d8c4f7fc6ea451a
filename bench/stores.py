"""State beside LangGraph's stores: putting, getting, listing, and finding by text and by vectors, among 10 000 items.

Everybody keeps the same items, of about 150 characters each, and has the same vectors of 256 numbers, which were made
beforehand. A put is one call and one commit that is on disk. What is compared is said in store_peers.py; what of
it is not alike:

    put      holdfast also indexes the words; the journal keeps every version and its hash, LangGraph the newest
    list     LangGraph gives a group's items newest first, holdfast the keys with a prefix in their order
    text     LangGraph has no text search: it filters by an equal field, holdfast ranks by the words of a question
    vectors  holdfast looks for the words of the question as well, since it has one search for both
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy
from msgspec.structs import replace

import holdfast
from bench.harness import Contender, Samples, ratios, rounds, spread, timed
from bench.journals import folder
from bench.peer_process import PeerProcess, peer_process
from bench.report import Bar, Line, at_least, ratio_line
from bench.store_items import DIMENSIONS, LIMIT, PAGE, QUESTIONS, Vectors, asked_for, group, key, question, value
from bench.store_peers import KINDS, MEMORY, MEMORY_VECTORS, SQLITE, SQLITE_VECTORS, SQLITE_WAL

TITLE = "State beside LangGraph's stores"
ITEMS, QUICK_ITEMS = 10_000, 1_000
SCOPE = "user/42"
STATE, SQLITE_STORE, MEMORY_STORE = "hf.state", "sqlite store", "memory store"
BAR = at_least(1)
TIMES = {"put": 40, "get": 400, "list": 20, "text": 10, "vector": 4}
"""Of each in a row. Getting, listing and finding come first, so that they are measured at the number that is named."""
ORDER = ("get", "list", "text", "vector", "put", "put with a vector")


class Ours:
    """A scope of holdfast with the items, and where in them it is."""

    def __init__(self, state: Any, items: int) -> None:
        self._state, self._items = state, items
        self._numbers, self._turns, self._last = itertools.count(items), itertools.count(), items

    def _key(self, number: int) -> str:
        return f"{group(number, self._items)}/{key(number)}"

    def load(self) -> None:
        """The items that are there before anything is measured."""
        for number in range(self._items):
            self._state.write(self._key(number), value(number))

    def put(self, times: int) -> float:
        """New items, one call and one commit each. What an index has to catch up with, it does before others' turn."""
        numbers = [next(self._numbers) for _ in range(times)]
        inputs = [(self._key(number), value(number)) for number in numbers]
        took = _each(lambda given: self._state.write(*given), inputs)
        self._state.search(question(0, self._items), limit=1)
        self._last = numbers[-1] + 1
        return took

    def read_back(self) -> int:
        """The items that were put and are there: as many as were acknowledged, or it fails."""
        for number in range(self._items, self._last):
            assert self._state.entry(self._key(number)) is not None, f"item {number} was acknowledged and is not there"
        return self._last - self._items

    def get(self, times: int) -> float:
        """Items that are there, with what is known about them, as LangGraph gives them."""
        numbers = [next(self._turns) * 7_919 % self._items for _ in range(times)]
        return _each(lambda one: _some(self._state.entry(one)), [self._key(number) for number in numbers])

    def list(self, times: int) -> float:
        """A group's items with their values."""
        inputs = [f"{group(next(self._turns), self._items)}/" for _ in range(times)]
        return _each(lambda prefix: _some(self._state.entries(prefix, limit=PAGE)), inputs)

    def text(self, times: int) -> float:
        """What a question is about. With an embedder, by its vector too."""
        inputs = [question(next(self._turns) % QUESTIONS, self._items) for _ in range(times)]
        return _each(lambda asked: _some(self._state.search(asked, limit=LIMIT)), inputs)


def _each(work: Callable[[Any], object], inputs: list[Any]) -> float:
    return timed(lambda: [work(one) for one in inputs]) / len(inputs)


def _some(found: Any) -> None:
    assert found, "a store that finds nothing is not measured"


def write_vectors(path: Path, items: int) -> None:
    """Vectors of items, and near those of the items that they are about, of the questions."""
    chance = numpy.random.default_rng(7)
    kept = chance.standard_normal((items, DIMENSIONS)).astype(numpy.float32)
    about = kept[[asked_for(number, items) for number in range(QUESTIONS)]]
    asked = about + chance.standard_normal(about.shape).astype(numpy.float32)
    path.write_bytes(kept.tobytes() + asked.tobytes())


def given_vectors(path: Path, items: int) -> Callable[..., list[Any]]:
    """An embedder that knows the vectors already: items by their key, which begins their text."""
    vectors = Vectors(path, items)

    def precomputed(texts: list[str], *, query: bool = False) -> list[Any]:
        if query:
            return [vectors.of_question(text) for text in texts]
        return [vectors.of_item(int(text.partition("\n")[0][-7:])) for text in texts]

    return precomputed


def opened(place: Path, stack: ExitStack, items: int) -> tuple[dict[str, Ours], dict[str, Ours]]:
    """Holdfast's stores by name: those that find by words, and those that find by vectors as well.

    They are loaded without waiting for the disk, one commit each as always, and then opened as they are measured.
    """
    vectors = place / "vectors.bin"
    write_vectors(vectors, items)
    embed = given_vectors(vectors, items)
    paths = {name: place / f"{name}.db" for name in ("journal", "journal-vectors", "store", "store-vectors")}
    with holdfast.open(paths["journal"], durability="fast") as hf:
        Ours(hf.state(SCOPE), items).load()
    shutil.copy(paths["journal"], paths["journal-vectors"])
    for name, embedder in (("store", None), ("store-vectors", embed)):
        with holdfast.open_store(_url(paths[name]), durability="fast", embedder=embedder) as store:
            Ours(store(SCOPE), items).load()
    memory = stack.enter_context(holdfast.open_store("memory:", search=True))
    plain = {
        STATE: stack.enter_context(holdfast.open(paths["journal"])).state,
        SQLITE_STORE: stack.enter_context(holdfast.open_store(_url(paths["store"]))),
        MEMORY_STORE: memory,
    }
    by_vectors = {
        STATE: stack.enter_context(holdfast.open(paths["journal-vectors"], embedder=embed)).state,
        SQLITE_STORE: stack.enter_context(holdfast.open_store(_url(paths["store-vectors"]), embedder=embed)),
    }
    Ours(memory(SCOPE), items).load()
    by_vectors[STATE](SCOPE).search(question(0, items))  # The journal makes its vectors when they are first needed.
    return (
        {name: Ours(store(SCOPE), items) for name, store in plain.items()},
        {name: Ours(store(SCOPE), items) for name, store in by_vectors.items()},
    )


def _url(path: Path) -> str:
    return f"sqlite:///{path}"


def measured(
    plain: dict[str, Ours], by_vectors: dict[str, Ours], peers: PeerProcess | None, found: list[str], count: int
) -> dict[str, Samples]:
    """What each takes for each, in rounds of their own."""
    samples: dict[str, Samples] = {}
    for what in ORDER:
        vectors = what in ("vector", "put with a vector")
        method = "put" if vectors and what != "vector" else what
        times = TIMES[method]
        contenders: dict[str, Contender] = {}
        for name, ours in (by_vectors if vectors else plain).items():
            contenders[name] = _asking_ours(ours, "text" if what == "vector" else method, times)
        for kind in found:
            if vectors == (kind in (SQLITE_VECTORS, MEMORY_VECTORS)) and peers is not None:
                contenders[kind] = _asking(peers, kind, method, min(times, 2) if _slow(kind, what) else times)
        samples[what] = rounds(contenders, count * LISTED if what == "list" else count)
    return samples


def _slow(kind: str, what: str) -> bool:
    return kind == MEMORY_VECTORS and what == "vector"


def _asking_ours(ours: Ours, method: str, times: int) -> Contender:
    return lambda: float(getattr(ours, method)(times))


def _asking(peers: PeerProcess, kind: str, method: str, times: int) -> Contender:
    return lambda: float(peers.ask(method, kind=kind, times=times))


def run(quick: bool) -> list[Line]:
    """Ours and theirs in the same rounds, theirs in their own process."""
    items, count = (QUICK_ITEMS, 3) if quick else (ITEMS, 15)
    notes: dict[str, str] = {}
    with folder() as place, ExitStack() as stack:
        plain, by_vectors = opened(place, stack, items)
        with peer_process(place, "bench.store_peers") as peers:
            for kind in () if peers is None else peers.found:
                vectors = os.fspath(place / "vectors.bin") if kind in (SQLITE_VECTORS, MEMORY_VECTORS) else None
                assert peers is not None
                notes[kind] = peers.ask("open", kind=kind, place=os.fspath(place), items=items, vectors=vectors)
            samples = measured(plain, by_vectors, peers, list(notes), count)
            for ours in (*plain.values(), *by_vectors.values()):
                ours.read_back()
            for kind in notes:
                assert peers is not None
                notes[kind] += f", {peers.ask('read_back', kind=kind):,} read back"
    found = [line for what in samples for line in _lines(what, samples[what], notes)]
    # Finding among a thousand says little: theirs grows with the number of items.
    found = [replace(line, bar=None) if quick and line.what.startswith(("text", "vector")) else line for line in found]
    return [_present(peers, items), *found]


def _present(peers: PeerProcess | None, items: int) -> Line:
    if peers is None:
        note = "none: `make bench` installs them into .venv-peers"
        return Line(what="stores measured beside", value=0, unit=f"of {len(KINDS)}", note=note)
    missing = [f"without {kind} ({why})" for kind, why in peers.absent.items()]
    note = ", ".join([f"{items:,} items", *dict.fromkeys(peers.found.values()), *missing])
    return Line(what="stores measured beside", value=len(peers.found), unit=f"of {len(KINDS)}", note=note)


COMPARED: dict[str, tuple[tuple[str, str, Bar | None], ...]] = {
    "vector": (
        (STATE, SQLITE_VECTORS, BAR),
        (SQLITE_STORE, SQLITE_VECTORS, BAR),
        (STATE, MEMORY_VECTORS, BAR),
        (SQLITE_STORE, MEMORY_VECTORS, BAR),
    ),
    "put with a vector": ((STATE, SQLITE_VECTORS, None), (SQLITE_STORE, SQLITE_VECTORS, None)),
}
"""Ours, theirs, and what must be reached; where nothing is said here, USUALLY."""
USUALLY: tuple[tuple[str, str, Bar | None], ...] = (
    (STATE, SQLITE, BAR),
    (SQLITE_STORE, SQLITE, BAR),
    (STATE, SQLITE_WAL, None),
    (SQLITE_STORE, SQLITE_WAL, None),
    (MEMORY_STORE, MEMORY, None),
)
PUT_BAR = at_least(0.6)
"""What a put of `hf.state` must reach of one on a connection as durable as its own: its journal keeps every version."""
LISTED = 3
"""Lists are near each other and quick: so many times the rounds, or the median wanders."""
PUT = tuple((ours, theirs, PUT_BAR if (ours, theirs) == (STATE, SQLITE_WAL) else bar) for ours, theirs, bar in USUALLY)
NOTES = {
    "text": "they filter by an equal field",
    "vector": "with the words of the question",
    "put with a vector": "hf.state makes vectors when they are first searched",
}


def _lines(what: str, samples: Samples, notes: dict[str, str]) -> list[Line]:
    """How many times as fast as theirs; without them, what ours take."""
    found = [
        ratio_line(
            f"{what}: {ours}, times the speed of {theirs}", ratios(samples, theirs, ours), bar, note, peer=theirs
        )
        for ours, theirs, bar in COMPARED.get(what, PUT if what == "put" else USUALLY)
        if ours in samples and theirs in samples
        for note in [_note(what, samples, ours, theirs, notes)]
    ]
    alone = [
        Line(what=f"{what}: {name}", value=1e6 * spread(samples[name]).median, unit="us", note=NOTES.get(what, ""))
        for name in samples
        if name not in notes
    ]
    return found or alone


def _note(what: str, samples: Samples, ours: str, theirs: str, notes: dict[str, str]) -> str:
    rates = " and ".join(f"{1 / spread(samples[name]).median:,.0f}" for name in (ours, theirs))
    said = [f"{rates} a second", NOTES.get(what, ""), notes[theirs] if what.startswith("put") else ""]
    return "; ".join(piece for piece in said if piece)

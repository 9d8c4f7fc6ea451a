"""Search where much was said and kept: 60 questions to 100 000 messages of one conversation, and to 100 000 entries.

Beside each, in the same rounds, the raw limit on the same data: a bare FTS5 query of the same words by bm25, on a
merged table of the same texts, and with vectors also a bare numpy product of the question with the same vectors as a
matrix of floats. Vectors are wordllama's. Every question is asked by everybody in turn; its ratio is taken there.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import apsw
import numpy

import holdfast
from bench.harness import Samples, ratios, rounds, timed
from bench.journals import folder, journal
from bench.report import Line, ratio_line
from bench.store_items import LIMIT, QUESTIONS, key, question, text, value
from holdfast.core.journal.codec import encode
from holdfast.core.search.documents import TextRow
from holdfast.core.search.words import query_terms
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.flow.state.journal_store import write_draft
from holdfast.model.embedders import resolve_embedder
from holdfast.ports import Embedder
from holdfast.records.entries import StoredEntry
from holdfast.sqlite.fts import TextIndex

TITLE = "Search in much that was said and kept"
COUNT, QUICK_COUNT = 100_000, 5_000
TOGETHER = 1_000
SESSION, SCOPE = "long", "user/42"
STREAMS = {"messages": f"session/{SESSION}/thread/main", "entries": SCOPE}
MODEL = "wordllama"
RAW, DOT = "bare FTS5", "bare product"
WORDS, VECTORS = "words", "words and vectors"

Ask = Callable[[str], Any]


def load_messages(path: Path, count: int) -> None:
    """A conversation of so many messages, appended in long lists."""
    with holdfast.open(path, durability="fast") as hf:
        session = hf.session(SESSION)
        for first in range(0, count, TOGETHER):
            some = range(first, min(first + TOGETHER, count))
            session.append([{"role": ("user", "assistant")[number % 2], "content": text(number)} for number in some])


def load_entries(path: Path, count: int) -> None:
    """So many entries of one scope, appended as the events that writes append, many at a time."""
    with journal(path.parent, path.name, durability="fast") as env:
        for first in range(0, count, TOGETHER):
            some = range(first, min(first + TOGETHER, count))
            entries = ((key(number), StoredEntry(value=encode(value(number)), written_at=0)) for number in some)
            drafts = tuple(write_draft(SCOPE, name, entry) for name, entry in entries)
            append_events(env, [StreamWrite(stream=SCOPE, events=drafts)])


@contextmanager
def asking(path: Path, what: str, model: str | None) -> Iterator[Ask]:
    """The search of a conversation or of a scope; its vectors are made beforehand."""
    with holdfast.open(path, embedder=model) as hf:
        found: Any = hf.session(SESSION) if what == "messages" else hf.state(SCOPE)
        found.search("anything")
        yield lambda asked: found.search(asked, limit=LIMIT)


@contextmanager
def bare(path: Path, what: str, model: Embedder, count: int) -> Iterator[tuple[Ask, Ask]]:
    """The same words in a table of FTS5, in a file of its own, and the same vectors as one matrix."""
    connection = apsw.Connection(os.fspath(path))
    table = apsw.Connection(os.fspath(path.with_name("bare.db")))
    try:
        index = TextIndex(table, "said")
        index.create()
        with table:
            index.add(TextRow(number, text(number)) for number in range(count))
        index.scrub()
        sql = (
            "SELECT rowid, bm25(said, 1.0, 0.5, 2.0, 0.0) AS score FROM said "
            f"WHERE said MATCH ? ORDER BY score LIMIT {LIMIT}"
        )
        rows = connection.execute(
            "SELECT v.vector FROM vectors AS v JOIN streams AS s ON s.id = v.stream WHERE s.name = ?", (STREAMS[what],)
        )
        together = b"".join(vector for (vector,) in rows)
        matrix = numpy.frombuffer(together, numpy.int8).reshape(-1, model.dimensions).astype(numpy.float32)

        def words(asked: str) -> list[Any]:
            return table.execute(sql, (" OR ".join(f'"{term}"' for term in query_terms(asked)),)).fetchall()

        def product(asked: str) -> Any:
            vector = numpy.frombuffer(model.embed([asked], query=True)[0], numpy.int8).astype(numpy.float32)
            return matrix @ vector

        yield words, product
    finally:
        connection.close(True)
        table.close(True)


def measured(asks: dict[str, Ask], asked: Sequence[str]) -> Samples:
    """Seconds of each for each question: a round is one question, the warm-up all of them."""
    for one in asked:
        for ask in asks.values():
            assert len(ask(one)), "a search that finds nothing is not measured"
    turns = {name: iter(asked) for name in asks}

    def contender(name: str) -> float:
        one = next(turns[name])
        return timed(lambda: asks[name](one))

    return rounds({name: lambda name=name: contender(name) for name in asks}, len(asked), warm_up=0)


def lines(what: str, samples: Samples, count: int) -> list[Line]:
    """Median and p95 over the questions, and how much more than the raw limit that is."""
    both = [one + other for one, other in zip(samples[RAW], samples[DOT], strict=True)]
    samples = {**samples, f"{RAW} and {DOT}": both}
    found = [_times(f"{count:,} {what}, {name}", samples[name]) for name in (RAW, DOT)]
    for name, base in ((WORDS, RAW), (VECTORS, f"{RAW} and {DOT}")):
        found.append(_times(f"{count:,} {what}, search by {name}", samples[name]))
        found.append(ratio_line(f"{count:,} {what}, by {name}, against {base}", ratios(samples, name, base)))
    return found


def _times(what: str, seconds: Sequence[float]) -> Line:
    p95 = quantiles(seconds, n=20, method="inclusive")[-1]
    return Line(what=what, value=1e3 * median(seconds), unit="ms", note=f"p95 {1e3 * p95:.1f} ms")


def run(quick: bool) -> list[Line]:
    """Messages first, then entries, each in a journal of its own."""
    count = QUICK_COUNT if quick else COUNT
    asked = [question(number, count) for number in range(QUESTIONS)]
    model = resolve_embedder(MODEL)
    assert model is not None
    found: list[Line] = []
    for what, load in (("messages", load_messages), ("entries", load_entries)):
        with folder() as place:
            path = place / "journal.db"
            load(path, count)
            with (
                asking(path, what, MODEL) as by_vectors,
                asking(path, what, None) as by_words,
                bare(path, what, model, count) as (words, product),
            ):
                asks = {RAW: words, DOT: product, WORDS: by_words, VECTORS: by_vectors}
                found += lines(what, measured(asks, asked), count)
    return found

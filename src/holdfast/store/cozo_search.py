"""Search in Cozo: words by its text index, vectors by its graph of neighbours, each within one scope before ranking.

Each word is indexed as a word of its scope, so other scopes' entries are never candidates and do not change how rare
a word is. The vectors of a scope are all compared while they are few. Among many the graph is asked, and if
its nearest are mostly other scopes', this one's are compared all the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

from holdfast.core.search.words import indexed
from holdfast.records.entries import Match, Stored, Wanted
from holdfast.store.cozo_engine import CozoEngine, Rows
from holdfast.store.cozo_shape import VECTORS, about, names
from holdfast.vectors import similarities

FEW: Final = 2_000
"""So many vectors are compared in the time that the graph takes to find the nearest."""
WIDE: Final = 200
"""So many neighbours are kept in view on the way to the nearest: with 5, every other one was missed."""
MOST: Final = 2_000
"""So many entries with one word are looked at. A word that more of them have says little about each."""

# A row is removed first: written over, it would also be found by the words that it had before.
_FORGET_WORDS = "{?[scope, key] <- [[$scope, $key]] :rm words {scope, key}}"
_ADD_WORDS = """{?[scope, key, expires_at, text] <- [[$scope, $key, $expires_at, $text]]
  :put words {scope, key => expires_at, text}}"""
_FORGET_VECTOR = "{?[scope, key] <- [[$scope, $key]] :rm vector {scope, key}}"
_ADD_VECTOR = """{?[scope, key, expires_at, v] <- [[$scope, $key, $expires_at, vec($vector)]]
  :put vector {scope, key => expires_at, v}}"""

_HITS = """hit[key, term, times] := term = {term}, ~words:found{{scope, key, expires_at |
  query: $query{term}, k: $most, bind_score: times, score_kind: 'tf', filter: scope == $scope && expires_at > $now}}
"""
# The engine's own score of several words is that of the best one, so the sum is made here: rare words count more,
# and the same word again ever less.
_SUMMED = """rare[term, count(key)] := hit[key, term, times]
?[key, sum(score)] := hit[key, term, times], rare[term, n], score = ln(1 + $most / n) * times / (times + 1.2)
:order -sum(score) :limit $limit"""
_COUNTED = "?[key] := *vector{scope: $scope, key} :limit $most"
_NEAREST = """?[key] := ~vector:near{scope, key, expires_at |
  query: vec($vector), k: $limit, ef: $wide, filter: scope == $scope && expires_at > $now}"""
_COMPARED = """?[key, distance] := *vector{scope: $scope, key, expires_at, v}, expires_at > $now,
  distance = cos_dist(v, vec($vector)) :order distance :limit $limit"""


class CozoSearch:
    """What is indexed, and how it is found. The first vector says by which embedder and how long all are."""

    def __init__(self, engine: CozoEngine) -> None:
        self._engine = engine
        known = about(engine)
        self._space: tuple[object, object] | None = None
        if "embedder" in known:
            self._space = (known["embedder"], known["dimensions"])

    def indexing(self, scope: str, entry: Stored) -> tuple[str, dict[str, Any]]:
        """What to run when an entry is written, and its parameters."""
        script, params = self.forgetting(), dict[str, Any]()
        if entry.words is not None:
            script += _ADD_WORDS
            params["text"] = " ".join(_tokens(scope, entry.words))
        if entry.vector is not None and any(entry.vector):
            space = (entry.embedder or "", len(entry.vector))
            if self._space is None:
                self._make(*space)
            if space == self._space:
                script += _ADD_VECTOR
                params["vector"] = _numbers(entry.vector)
        return script, params

    def forgetting(self) -> str:
        """What to run when an entry goes."""
        return _FORGET_WORDS if self._space is None else _FORGET_WORDS + _FORGET_VECTOR

    def _make(self, embedder: str, dimensions: int) -> None:
        """The relation of vectors; what a killed process left of one is made anew."""
        there = names(self._engine)
        if VECTORS[1] in there:
            self._engine.write("::index drop vector:near")
        if VECTORS[0] in there:
            self._engine.write("::remove vector")
        self._engine.write(
            f":create vector {{scope: String, key: String => expires_at: Int, v: <F32; {int(dimensions)}>}}"
        )
        self._engine.write(
            f"::hnsw create vector:near {{dim: {int(dimensions)}, m: 16, dtype: F32, fields: [v], "
            "distance: Cosine, ef_construction: 64}"
        )
        self._engine.write(
            "?[name, value] <- [['embedder', $embedder], ['dimensions', $dimensions]] :put about {name => value}",
            embedder=embedder,
            dimensions=dimensions,
        )
        self._space = (embedder, dimensions)

    def find(self, scope: str, wanted: Wanted) -> dict[str, float]:
        """Keys of candidates with the scores of their words, which is 0 for those that only a vector found."""
        found = dict.fromkeys(self._near(scope, wanted), 0.0)
        queries = [query for term in wanted.terms if (query := _query(scope, term))]
        if queries:
            rows = self._engine.read(
                "".join(_HITS.format(term=term) for term in range(len(queries))) + _SUMMED,
                scope=scope,
                now=wanted.now,
                limit=wanted.limit,
                most=max(MOST, wanted.limit),
                **{f"query{term}": query for term, query in enumerate(queries)},
            )
            found.update((key, score) for key, score in rows)
        return found

    def _near(self, scope: str, wanted: Wanted) -> list[str]:
        if wanted.vector is None or not any(wanted.vector):
            return []
        if self._space != (wanted.embedder or "", len(wanted.vector)):
            return []
        asked = {"scope": scope, "now": wanted.now, "limit": wanted.limit, "vector": _numbers(wanted.vector)}
        rows: Rows = []
        if len(self._engine.read(_COUNTED, scope=scope, most=FEW + 1)) > FEW:
            rows = self._engine.read(_NEAREST, **asked, wide=max(WIDE, wanted.limit))
        if len(rows) < wanted.limit:
            rows = self._engine.read(_COMPARED, **asked)
        return [row[0] for row in rows]

    def compared(self, wanted: Wanted, scores: Mapping[str, float], entries: Mapping[str, Stored]) -> list[Match]:
        """The best of what was found, each with both of its scores."""
        query = wanted.vector or b""
        alike = {
            key: entry.vector
            for key, entry in entries.items()
            if query and entry.vector and entry.embedder == wanted.embedder and len(entry.vector) == len(query)
        }
        cosines = dict(zip(alike, similarities(query, list(alike.values())), strict=True))
        top = max(scores.values(), default=0.0) or 1.0
        found = [
            Match(key=key, entry=entry, text=scores[key], cosine=max(0.0, cosines.get(key, 0.0)))
            for key, entry in entries.items()
        ]
        found.sort(key=lambda match: (-match.text / top - match.cosine, match.key))
        return [match for match in found if match.text > 0 or match.cosine > 0][: wanted.limit]


def _numbers(vector: bytes) -> list[float]:
    return [float(number) for number in memoryview(vector).cast("b")]


def _place(scope: str) -> str:
    """What every word of a scope begins with. Without vowels: the engine takes English endings off what has some."""
    digest = hashlib.sha256(scope.encode()).digest()
    return f"S{int.from_bytes(digest[:8], 'big') % 10**15:015}"


def _tokens(scope: str, text: str) -> list[str]:
    """Words as the engine is given them: those that are not plain letters and digits as the bytes that they are."""
    place = _place(scope)
    # No word has capital letters, and after a digit there is no ending to take off.
    return [f"{place}{word if word.isascii() else f'U{word.encode().hex()}0'}" for word in indexed(text).split()]


def _query(scope: str, term: str) -> str:
    """A term in the engine's words: letters of languages without spaces must stand beside each other."""
    tokens = [f'"{token}"' for token in _tokens(scope, term)]
    if len(tokens) < 2:
        return "".join(tokens)
    pairs = [f"NEAR/1({first} {second})" for first, second in pairwise(tokens) if first != second]
    return " AND ".join(pairs or tokens[:1])

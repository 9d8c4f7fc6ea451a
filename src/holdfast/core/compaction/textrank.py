"""Which sentences stand for all: TextRank for what is central, marginal relevance for what is new.

The graph of likeness is never built. Its edges are cosines, so one step of the walk is two passes
over the words: sentences into words, words into sentences. For n sentences of k words that is
O(n·k) a step in place of O(n²·k), and exact. Choosing costs O(n) for each sentence chosen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

DAMPING = 0.85
STEPS = 20
SETTLED = 1e-5
CENTRAL, FACTS = 0.6, 0.9
"""Weights: being central to the conversation; each fact that is not yet in the summary."""
MOST_FACTS = 4.0
"""Beyond it, a sentence is a table, and more numbers make it no better."""
DIVERSITY = 1.5
"""How much being like a chosen sentence counts against one: the power of what is not alike."""
BREVITY = 0.3
"""Between 0, the best sentences whatever their length, and 1, the most for each token."""
SHORTEST = 8
"""Tokens. Below it, being shorter is no merit."""


class Candidate(msgspec.Struct, frozen=True, gc=False):
    """A sentence that may be chosen."""

    vector: dict[str, float]
    """Its terms by weight, of length 1; empty if it has none."""
    facts: dict[str, float]
    """What it alone may tell, by worth: numbers, names, identifiers."""
    bonus: float
    """What counts for it whatever else is chosen."""
    cost: int
    """Tokens."""


def unit(weights: dict[str, float]) -> dict[str, float]:
    """A vector of the same direction and length 1."""
    length = math.sqrt(sum(weight * weight for weight in weights.values()))
    return {term: weight / length for term, weight in weights.items()} if length else {}


def ranks(vectors: Sequence[dict[str, float]]) -> list[float]:
    """How central each vector is, the most central being 1. Deterministic, and rounded so that platforms agree."""
    if not vectors:
        return []
    index = {term: at for at, term in enumerate(dict.fromkeys(term for vector in vectors for term in vector))}
    rows = [[(index[term], weight) for term, weight in vector.items()] for vector in vectors]
    # What a sentence gives, it gives in equal shares of likeness; likeness to itself (1) does not count.
    degrees = [max(0.0, degree - 1.0) for degree in _walk(rows, [1.0] * len(rows), len(index))]
    ranked = [1.0] * len(rows)
    for _ in range(STEPS):
        given = [rank / degree if degree > SETTLED else 0.0 for rank, degree in zip(ranked, degrees, strict=True)]
        reached = _walk(rows, given, len(index))
        following = [
            (1 - DAMPING) + DAMPING * (max(0.0, got - own) if degree > SETTLED else 0.0)
            for got, own, degree in zip(reached, given, degrees, strict=True)
        ]
        change = max(abs(after - before) for after, before in zip(following, ranked, strict=True))
        ranked = following
        if change < SETTLED:
            break
    top = max(ranked)
    return [round(rank / top, 6) for rank in ranked]


def _walk(rows: list[list[tuple[int, float]]], given: list[float], size: int) -> list[float]:
    """One step along all edges: each sentence gives to its words, and words give to their sentences."""
    held = [0.0] * size
    for row, amount in zip(rows, given, strict=True):
        if amount:
            for at, weight in row:
                held[at] += amount * weight
    return [sum([held[at] * weight for at, weight in row]) for row in rows]


def choose(candidates: Sequence[Candidate], most: int, told: Iterable[str] = ()) -> list[int]:
    """Which candidates to keep within `most` tokens, in order of choice. What is `told` already counts for nothing."""
    table = _Table(candidates, set(told))
    left = [at for at, candidate in enumerate(candidates) if candidate.cost <= most]
    chosen: list[int] = []
    while left:
        best = max(left, key=table.values.__getitem__)  # the first of equals, so that the order is always the same
        if chosen and table.values[best] <= 0:
            break  # the rest says nothing that was not said
        chosen.append(best)
        most -= candidates[best].cost
        table.learn(best)
        left = [at for at in left if at != best and candidates[at].cost <= most]
    return chosen


class _Table:
    """What each candidate is worth beside those that were chosen."""

    def __init__(self, candidates: Sequence[Candidate], known: set[str]) -> None:
        self.candidates, self.known = candidates, known
        self.central = ranks([candidate.vector for candidate in candidates])
        self.alike = [0.0] * len(candidates)
        self.by_term: dict[str, list[tuple[int, float]]] = {}
        self.by_fact: dict[str, list[int]] = {}
        for at, candidate in enumerate(candidates):
            for term, weight in candidate.vector.items():
                self.by_term.setdefault(term, []).append((at, weight))
            for fact in candidate.facts:
                self.by_fact.setdefault(fact, []).append(at)
        self.values = [self._value(at) for at in range(len(candidates))]

    def learn(self, best: int) -> None:
        """After a choice: who is like it, and who has nothing new to tell any more."""
        likeness: dict[int, float] = {}
        for term, weight in self.candidates[best].vector.items():
            for at, other in self.by_term[term]:
                likeness[at] = likeness.get(at, 0.0) + weight * other
        changed = {at for fact in self.candidates[best].facts for at in self.by_fact[fact]}
        self.known.update(self.candidates[best].facts)
        for at, cosine in likeness.items():
            if cosine > self.alike[at]:
                self.alike[at] = cosine
                changed.add(at)
        for at in changed:
            self.values[at] = self._value(at)

    def _value(self, at: int) -> float:
        candidate = self.candidates[at]
        news = sum([worth for fact, worth in candidate.facts.items() if fact not in self.known])
        gain = CENTRAL * self.central[at] + FACTS * min(MOST_FACTS, news) + candidate.bonus
        if gain > 0:
            gain *= max(0.0, 1 - self.alike[at]) ** DIVERSITY
        return round(gain / math.pow(max(SHORTEST, candidate.cost), BREVITY), 9)

"""Combine text scores and vector scores into one order, considering the context of each candidate.

A short message means little alone: the messages around it, and how well its session fits the query, count as well.
Weights are round numbers on a plateau, not fitted to any data. The order is total and depends only on the candidates,
not on the order in which they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from holdfast.core.search.words import index_text, space_letters
from holdfast.records.entries import EntryMatch, EntrySearchQuery, StoredEntry

NEIGHBOUR_WEIGHTS = ((-1, 0.2), (1, 0.3), (-2, 0.1), (2, 0.1))
"""The part of their scores that neighbouring messages add: the next one is often the answer."""
SESSION_WEIGHT = 0.4
"""The part of its score that the best message of the session adds."""
SHORT_CHARS = 200
"""Characters. If messages are longer on average, they say more by themselves and context counts less."""
NAMED_SPEAKER_FACTOR = 1.4
"""The speaker is named in the query."""
QUESTION_FACTOR = 0.9
"""A question is seldom the answer."""
SALIENCE_RANGE = 0.4
"""The range between the most and the least salient: from 0.8 to 1.2 times the score."""


class SearchCandidate(msgspec.Struct, frozen=True):
    """A candidate answer, with its scores and its place.

    `thread` and `position` determine its neighbours; without a thread it has no context. `newest` decides between
    equals: the larger is the newer.
    """

    id: int
    text: float = 0.0
    cosine: float = 0.0
    thread: str | int = ""
    position: int = 0
    session: str = ""
    speaker: str | None = None
    is_question: bool = False
    salience: float | None = None
    newest: int = 0


def rank_candidates(
    candidates: Iterable[SearchCandidate],
    *,
    mean_length: float,
    vector_weight: float = 0.5,
    speakers_named: frozenset[str] = frozenset(),
    limit: int,
) -> list[tuple[int, float]]:
    """Return the best candidates with their scores, of which the first is 1.

    `mean_length` is the average number of characters of everything searched, not of the candidates. A candidate without
    a score of its own is an answer only if one of its neighbours has one: a whole session is never an answer.
    """
    given = list(candidates)
    own = _own_scores(given, vector_weight)
    near = _best_scores(given, own, lambda one: None if one.thread == "" else (one.thread, one.position))
    best = _best_scores(given, own, lambda one: one.session or None)
    share = min(1.0, SHORT_CHARS / mean_length) if mean_length > 0 else 1.0
    scored: list[tuple[float, int, int]] = []
    for one, score in zip(given, own, strict=True):
        around = sum(weight * near.get((one.thread, one.position + step), 0.0) for step, weight in NEIGHBOUR_WEIGHTS)
        if score > 0 or around > 0:
            lent = around + SESSION_WEIGHT * best.get(one.session, 0.0) if one.thread != "" else 0.0
            scored.append((-(score + share * lent) * _prior_factor(one, speakers_named), -one.newest, one.id))
    scored.sort()
    top = -scored[0][0] if scored else 1.0
    return [(id, -score / top) for score, _, id in scored[: max(0, limit)]]


def _own_scores(given: list[SearchCandidate], vector_weight: float) -> list[float]:
    """Return the sum of both scores of each candidate, each relative to the best of its kind."""
    text = max((one.text for one in given), default=0.0)
    cosine = max((one.cosine for one in given), default=0.0)
    return [
        (one.text / text if one.text > 0 else 0.0) + (one.cosine / cosine * vector_weight if one.cosine > 0 else 0.0)
        for one in given
    ]


def _best_scores(
    given: list[SearchCandidate], own: list[float], key: Callable[[SearchCandidate], Any]
) -> dict[Any, float]:
    """Return the best score under each key; candidates without a key are left out."""
    found: dict[Any, float] = {}
    for one, score in zip(given, own, strict=True):
        if (place := key(one)) is not None:
            found[place] = max(score, found.get(place, 0.0))
    return found


def _prior_factor(one: SearchCandidate, speakers_named: frozenset[str]) -> float:
    """Return the factor that does not depend on a candidate's words; 1 if nothing is known."""
    prior = NAMED_SPEAKER_FACTOR if one.speaker is not None and one.speaker in speakers_named else 1.0
    if one.is_question:
        prior *= QUESTION_FACTOR
    if one.salience is not None:
        prior *= 1 + SALIENCE_RANGE * (one.salience - 0.5)
    return prior


def spaced_words(entry: StoredEntry) -> str:
    """Return an entry's words with one space before each, so that a term matches only at the beginning of a word."""
    return _space_words(index_text(entry.words or ""))


def match_entries(entries: Iterable[tuple[str, StoredEntry, str]], wanted: EntrySearchQuery) -> list[EntryMatch]:
    """Search without an index: live entries, each given with its spaced words, scored by the number of terms found."""
    terms = [_space_words(space_letters(term)) for term in wanted.terms]
    found = [
        EntryMatch(key=key, entry=entry, text=float(score))
        for key, entry, words in entries
        if (score := sum(term in words for term in terms)) and entry.is_live(wanted.now)
    ]
    return sorted(found, key=lambda match: (-match.text, match.key))[: wanted.limit]


def _space_words(text: str) -> str:
    return " " + " ".join(text.split())

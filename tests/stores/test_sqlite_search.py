"""Finding entries in SQLite: by words and by vectors, in one scope alone, never what is over, never out of date."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from holdfast.core.search.words import query_terms
from holdfast.records.entries import EntryMatch, EntrySearchQuery
from holdfast.sqlite import vectors
from holdfast.store import sqlite as backend
from holdfast.store.sqlite import SqliteStore
from tests.scale import seeded, volume
from tests.stores.stories import entry

SIZE = 8


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    opened = SqliteStore(tmp_path / "state.db", durability="fast")
    yield opened
    opened.close()


def vector(chance: Random) -> bytes:
    return vectors.pack_vectors([[chance.gauss(0, 1) for _ in range(SIZE)]], 1, SIZE)[0]


def cosine(one: bytes, other: bytes) -> float:
    a, b = memoryview(one).cast("b").tolist(), memoryview(other).cast("b").tolist()
    lengths = math.sqrt(sum(x * x for x in a) * sum(y * y for y in b))
    return sum(x * y for x, y in zip(a, b, strict=True)) / lengths if lengths else 0.0


def found(store: SqliteStore, scope: str, query: str, **wanted: object) -> list[str]:
    matches = store.search(scope, EntrySearchQuery(now=10, terms=query_terms(query), **wanted))  # type: ignore[arg-type]
    return [match.key for match in sorted(matches, key=lambda match: -match.text)]


# words


def test_words_find_entries_of_one_scope_alone(store: SqliteStore) -> None:
    for scope in ("user/1", "user/11", "session/user"):
        store.put(scope, "a", entry(words="the crab lives in user 1"))
    store.put("user/1", "b", entry(words="crabs, crabs and a river"))
    assert set(found(store, "user/1", "crab river")) == {"a", "b"}
    assert found(store, "user/1", "crab river")[0] == "b"
    assert found(store, "user/11", "river") == []
    assert found(store, "user/2", "crab") == []
    assert found(store, "user/11", "session s1 s2 place") == [], "how scopes are told apart is not to be found"


@pytest.mark.parametrize(
    "query", ['durable-execution "AND C++', "crab OR", 'text:"x" NEAR(', "' OR 1=1 --", "{a b} : c", "*", "^crab", "\0"]
)
def test_a_question_is_data(query: str, store: SqliteStore) -> None:
    store.put("user/1", "a", entry(words="durable execution and C++"))
    store.put("user/2", "b", entry(words="crab " + query))
    assert found(store, "user/1", query) == (["a"] if "durable" in query else [])


def test_other_words_find_an_entry_once_it_was_written_again(store: SqliteStore) -> None:
    for words, gone in (("crab", "river"), ("river", "crab"), (None, "river"), ("crab", "river")):
        store.put("user/1", "a", entry(words=words))
        assert found(store, "user/1", words or "") == (["a"] if words else [])
        assert found(store, "user/1", gone) == []
    store.drop("user/1", "a")
    assert found(store, "user/1", "crab") == []


def test_expired_entries_take_nobody_s_place(store: SqliteStore) -> None:
    chance = seeded("expired")
    wanted = vector(chance)
    for number in range(30):
        store.put("user/1", f"over{number}", entry(words="crab crab", expires_at=10, vector=wanted, embedder="e"))
    for number in range(5):
        made = entry(words="the crab of the long river", expires_at=[None, 11][number % 2], vector=wanted, embedder="e")
        store.put("user/1", f"live{number}", made)
    live = {f"live{number}" for number in range(5)}
    assert set(found(store, "user/1", "crab", limit=5)) == live
    assert set(found(store, "user/1", "", limit=5, vector=wanted, embedder="e")) == live


# vectors


def expected(known: dict[str, bytes], wanted: bytes, limit: int) -> dict[str, float]:
    scored = {key: cosine(wanted, one) for key, one in known.items()}
    best = sorted(scored, key=lambda key: -scored[key])[:limit]
    return {key: scored[key] for key in best if scored[key] > 0}


def shown(matches: list[EntryMatch]) -> dict[str, float]:
    return {match.key: match.cosine for match in matches}


def answers_follow_the_rows(store: SqliteStore, other: SqliteStore, chance: Random, rounds: int) -> None:
    """Whoever writes, whatever goes, whichever embedder: the nearest are those of the rows as they are now."""
    known: dict[str, dict[str, bytes]] = {"user/1": {}, "user/2": {}}
    for _ in range(rounds):
        writer, scope, key = chance.choice([store, other]), chance.choice(list(known)), f"k{chance.randrange(12)}"
        known[scope].pop(key, None)
        what = chance.random()
        if what < 0.6:
            known[scope][key] = vector(chance)
            writer.put(scope, key, entry(vector=known[scope][key], embedder="e"))
        elif what < 0.7:
            writer.put(scope, key, entry())
        elif what < 0.8:
            writer.put(scope, key, entry(vector=vector(chance), embedder="another"))
        else:
            writer.drop(scope, key)
        wanted, limit = vector(chance), chance.choice([3, 100])
        matches = store.search(scope, EntrySearchQuery(now=0, terms=(), vector=wanted, embedder="e", limit=limit))
        assert shown(matches) == pytest.approx(expected(known[scope], wanted, limit), abs=1e-5)


def test_vectors_follow_the_rows_whoever_writes(store: SqliteStore) -> None:
    other = SqliteStore(store.path, durability="fast")
    answers_follow_the_rows(store, other, seeded("vectors"), volume(150, 3_000))
    other.close()


@pytest.mark.parametrize("bug", ["never read again", "never forgotten", "no filter by embedder"])
def test_vectors_that_are_out_of_date_are_noticed(
    bug: str, store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    if bug == "no filter by embedder":
        edited = {**backend.queries()}
        edited["vectors"] = edited["vectors"].replace("embedder = ?3", "?3 IS NOT NULL")
        monkeypatch.setattr(backend, "queries", lambda: edited)
    else:
        real = backend.ScopeSnapshot
        wrong = (lambda id, name, newest, reset: real(id, name, 1, 0)) if "read" in bug else (
            lambda id, name, newest, reset: real(id, name, newest, 0)
        )  # fmt: skip
        monkeypatch.setattr(backend, "ScopeSnapshot", wrong)
    with pytest.raises(AssertionError):
        answers_follow_the_rows(store, store, Random(1), 200)


def test_both_kinds_of_match_are_united_with_both_scores(store: SqliteStore) -> None:
    chance = seeded("united")
    near = vector(chance)
    far = bytes(-number & 0xFF for number in near)
    store.put("user/1", "said", entry(words="crab", vector=far, embedder="e"))
    store.put("user/1", "meant", entry(words="lobster", vector=near, embedder="e"))
    store.put("user/1", "both", entry(words="a crab", vector=near, embedder="e"))
    store.put("user/1", "neither", entry(words="stone", vector=far, embedder="e"))
    matches = store.search("user/1", EntrySearchQuery(now=0, terms=("crab",), vector=near, embedder="e"))
    assert {m.key: (m.text > 0, m.cosine > 0.99) for m in matches} == {
        "said": (True, False),
        "meant": (False, True),
        "both": (True, True),
    }
    assert all(match.entry == store.get("user/1", match.key) for match in matches)


def test_memory_for_vectors_has_a_cap(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = seeded("cap")
    monkeypatch.setattr(store._vectors, "_most", 3_000)
    for scope in range(6):
        for number in range(10):
            store.put(f"user/{scope}", f"k{number}", entry(vector=vector(chance), embedder="e"))
    for scope in [*range(6), 0, 5]:
        wanted = EntrySearchQuery(now=0, terms=(), vector=vector(chance), embedder="e")
        assert store.search(f"user/{scope}", wanted)
        assert sum(one.size for one in store._vectors._kept.values()) <= 3_000

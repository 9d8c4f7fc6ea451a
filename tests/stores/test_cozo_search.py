"""Search in Cozo: within a scope before ranking, only what is there now, and a question is data."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from holdfast.core.search.words import query_terms
from holdfast.records.entries import EntryMatch, EntrySearchQuery
from holdfast.sqlite.vectors import pack_vectors, similarities
from holdfast.store import cozo as backend
from holdfast.store.cozo import CozoStore
from tests.scale import seeded, volume
from tests.stores.stories import entry

VOCABULARY = ("red", "green", "blue", "running", "naïve", "日本語", "and", "or", "not", "near", "c++", "42")


@pytest.fixture
def store() -> Iterator[CozoStore]:
    """In memory: what is searched is the same engine."""
    opened = CozoStore(":memory:", engine="mem")
    yield opened
    opened.close()


def found(store: CozoStore, query: str, scope: str = "user/1", **options: object) -> list[str]:
    """The keys that a question finds, the best first."""
    matches = store.search(scope, EntrySearchQuery(**{"now": 0, "terms": query_terms(query), **options}))
    return [match.key for match in sorted(matches, key=lambda match: (-match.text, match.key))]


def vector(*numbers: float) -> bytes:
    """A vector of eight dimensions."""
    return pack_vectors([[*numbers, *[0.0] * (8 - len(numbers))]], 1, 8)[0]


def near(store: CozoStore, wanted: bytes, scope: str = "user/1", **options: object) -> list[EntryMatch]:
    """What is alike, the most alike first."""
    given = {"now": 0, "terms": (), "vector": wanted, "embedder": "e", **options}
    return sorted(store.search(scope, EntrySearchQuery(**given)), key=lambda match: -match.cosine)


def test_words_are_found_by_meaningful_forms(store: CozoStore) -> None:
    store.put("user/1", "a", entry(words="She is allergic to nuts, and runs every day."))
    store.put("user/1", "b", entry(words="日本語を話す"))
    store.put("user/1", "c", entry(words="本日は晴天"))
    store.put("user/1", "d", entry(words="C++ and naïve Straße"))
    assert found(store, "Who runs?") == ["a"]
    assert found(store, "running") == ["a"]
    assert found(store, "日本") == ["b", "c"], "letters beside each other, in either order"
    assert found(store, "日話") == []
    assert found(store, "c++") == ["d"]
    assert found(store, "NAIVE straße") == ["d"]
    assert found(store, "nothing of that") == []


def test_rarer_words_count_more(store: CozoStore) -> None:
    for number in range(20):
        store.put("user/1", f"{number:02}", entry(words=f"blue house number {number}"))
    store.put("user/1", "z", entry(words="green house"))
    assert found(store, "green house", limit=3)[0] == "z"
    assert len(found(store, "house", limit=5)) == 5


def test_more_of_the_words_count_more_and_others_do_not_matter(store: CozoStore) -> None:
    store.put("user/1", "one", entry(words="a red tricycle"))
    store.put("user/1", "two", entry(words="a bicycle, red"))
    store.put("user/1", "three", entry(words="a blue bicycle"))
    before = store.search("user/1", EntrySearchQuery(now=0, terms=("red", "bicycle")))
    assert found(store, "red bicycle")[0] == "two"
    for number in range(30):
        store.put("user/2", f"{number}", entry(words="red red bicycle"))
    assert store.search("user/1", EntrySearchQuery(now=0, terms=("red", "bicycle"))) == before


def _forgets_old_words(store: CozoStore) -> None:
    rng = seeded("words in cozo")
    said: dict[tuple[str, str], set[str]] = {}
    for _ in range(volume(120, 3_000)):
        place = (f"user/{rng.randrange(3)}", f"k{rng.randrange(6)}")
        if rng.random() < 0.3:
            store.drop(*place)
            said.pop(place, None)
        else:
            words = set(rng.sample(VOCABULARY, k=rng.randint(0, 4)))
            store.put(*place, entry(words=" ".join(words) if words else None))
            said[place] = words
        word, scope = rng.choice(VOCABULARY), f"user/{rng.randrange(3)}"
        expected = {key for (where, key), words in said.items() if where == scope and word in words}
        # A function word is only indexed where nothing else was said.
        if word not in ("and", "or", "not", "near"):
            assert set(found(store, word, scope)) == expected


def test_what_was_written_over_or_deleted_is_not_found(store: CozoStore) -> None:
    _forgets_old_words(store)


def test_words_left_behind_would_be_seen(store: CozoStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_FORGET_WORDS", "")
    with pytest.raises(AssertionError):
        _forgets_old_words(store)


@pytest.mark.parametrize(
    "query",
    [
        'durable-execution "AND C++',
        '"',
        "*",
        "a* OR b",
        "red^0 AND",
        "NEAR/3(red green)",
        "NOT red",
        "(((",
        "'",
        "\\",
        "$query",
        "red) OR (blue",
        "\x00\x01",
        "😀",
        "\uff41\uff4e\uff44",
        "S" * 2_000,
        "; ::remove entry",
    ],
)
def test_a_question_is_data(store: CozoStore, query: str) -> None:
    store.put("user/1", "a", entry(words="red"))
    store.put("user/1", "b", entry(words="blue"))
    store.put("user/2", "a", entry(words=f"red blue {query}"))
    for asked in (query_terms(query), (query,), (query, query)):
        keys = {match.key for match in store.search("user/1", EntrySearchQuery(now=0, terms=asked))}
        assert keys <= {"a", "b"}
        assert "b" not in keys or "blue" in query
    assert len(store.search("user/1", EntrySearchQuery(now=0, terms=("red",)))) == 1


def test_no_text_pretends_to_be_in_another_scope(store: CozoStore) -> None:
    place = backend._scope_prefix("user/2")
    store.put("user/1", "a", entry(words=f"{place}red {place} red"))
    store.put("user/2", "b", entry(words="red"))
    assert found(store, "red", "user/2") == ["b"]
    assert found(store, f"{place}red", "user/1") == ["a"]
    assert found(store, f"{place}red", "user/2") == []


@pytest.mark.parametrize("few", [backend.MAX_COMPARED, 0], ids=["compared", "graph"])
def test_other_scopes_neither_appear_nor_crowd_out(store: CozoStore, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    monkeypatch.setattr(backend, "MAX_COMPARED", few)
    for number in range(volume(150, 3_000)):
        store.put("user/2", f"{number}", entry(words="red red red green", vector=vector(1, number / 1e3), embedder="e"))
    store.put("user/1", "mine", entry(words="a long text with one red word", vector=vector(0.5, 1), embedder="e"))
    assert found(store, "red green", limit=2) == ["mine"]
    assert [match.key for match in near(store, vector(1), limit=2)] == ["mine"]


def _ranks_words_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_scope_prefix", lambda scope: "S0")
    monkeypatch.setattr(backend, "MAX_WORD_HITS", 2)
    monkeypatch.setattr(backend, "_HITS", backend._HITS.replace("scope == $scope && ", ""))


def _ranks_vectors_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "_COMPARE_VECTORS", backend._NEAREST.replace("$wide", "$limit"))


@pytest.mark.parametrize("plant", [_ranks_words_first, _ranks_vectors_first])
def test_a_search_that_ranks_before_it_looks_at_the_scope_would_be_seen(
    store: CozoStore, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_other_scopes_neither_appear_nor_crowd_out(store, monkeypatch, backend.MAX_COMPARED)


def test_what_has_expired_is_not_found_and_takes_no_place(store: CozoStore) -> None:
    for number in range(20):
        over = number % 2 == 0
        store.put(
            "user/1",
            f"{number:02}",
            entry(words="red " * (9 if over else 1), expires_at=100 if over else None, vector=vector(1), embedder="e"),
        )
    odd = [f"{number:02}" for number in range(1, 20, 2)]
    assert found(store, "red", limit=10, now=100) == odd
    assert sorted(match.key for match in near(store, vector(1), limit=10, now=100)) == odd
    assert len(found(store, "red", limit=100, now=99)) == 20


@pytest.mark.parametrize("few", [backend.MAX_COMPARED, 0], ids=["compared", "graph"])
def test_the_most_alike_are_found_and_the_cosine_is_exact(
    store: CozoStore, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(backend, "MAX_COMPARED", few)
    rng = seeded("vectors in cozo")
    kept: dict[str, bytes] = {}
    for _ in range(volume(150, 2_000)):
        key = f"k{rng.randrange(60)}"
        if rng.random() < 0.2:
            store.drop("user/1", key)
            kept.pop(key, None)
        else:
            kept[key] = vector(*(rng.gauss(0, 1) for _ in range(8)))
            store.put("user/1", key, entry(vector=kept[key], embedder="e"))
    wanted = vector(*(rng.gauss(0, 1) for _ in range(8)))
    cosines = dict(zip(kept, similarities(wanted, list(kept.values())), strict=True))
    best = sorted((key for key in cosines if cosines[key] > 0), key=lambda key: -cosines[key])[:5]
    matches = near(store, wanted, limit=5)
    assert [match.cosine for match in matches] == pytest.approx([cosines[match.key] for match in matches])
    assert len({match.key for match in matches} & set(best)) >= (5 if few else 4), "the graph may miss one"


def test_vectors_of_another_kind_are_left_out(store: CozoStore) -> None:
    store.put("user/1", "first", entry(vector=vector(1), embedder="e"))
    store.put("user/1", "longer", entry(words="red", vector=b"\x7f" * 9, embedder="e"))
    store.put("user/1", "other", entry(words="red", vector=vector(1), embedder="f"))
    store.put("user/1", "zero", entry(words="red", vector=bytes(8), embedder="e"))
    assert [match.key for match in near(store, vector(1))] == ["first"]
    for asked in (
        {"embedder": "f"},
        {"embedder": None},
        {"vector": b"\x7f" * 9},
        {"vector": bytes(8)},
        {"vector": b""},
    ):
        assert near(store, **{"wanted": vector(1), **asked}) == []
    assert sorted(match.key for match in near(store, vector(1), terms=("red",))) == ["first", "longer", "other", "zero"]
    store.put("user/1", "first", entry(vector=vector(1), embedder="f"))
    assert near(store, vector(1)) == [], "and one that is replaced by another kind is gone"


def test_both_scores_are_given_for_what_either_found(store: CozoStore) -> None:
    store.put("user/1", "both", entry(words="red", vector=vector(1, 1), embedder="e"))
    store.put("user/1", "text", entry(words="red"))
    store.put("user/1", "alike", entry(words="blue", vector=vector(1), embedder="e"))
    matches = {match.key: match for match in near(store, vector(1), terms=("red",))}
    assert matches["both"].text > 0
    assert matches["both"].cosine == pytest.approx(0.707, abs=0.01)
    assert matches["text"].text > 0
    assert matches["text"].cosine == 0
    assert matches["alike"].text == 0
    assert matches["alike"].cosine == pytest.approx(1.0)


def test_a_vector_relation_that_was_half_made_is_made_anew(store: CozoStore) -> None:
    store._engine.write(":create vector {scope: String, key: String => expires_at: Int, v: <F32; 3>}")
    store.put("user/1", "k", entry(vector=vector(1), embedder="e"))
    assert [match.key for match in near(store, vector(1))] == ["k"]

"""The contract of search: where it is declared it finds, and nowhere does it find what is not there to be read."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.client.state import State, StateStore
from holdfast.errors import InvalidValue
from holdfast.records.entries import Wanted
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract_kit import SCOPE, OpenAt, StoreFixtures, ToyEmbedder, port_of

HOSTILE_QUERIES = (
    *('durable-execution "AND C++', "*", "NEAR(", "NEAR(a b, 2)", '"', "'", "''", "(", ")", "^a", "a*", "-a", "+", ":"),
    *("text:x", "{a b}", "a AND", "OR", "NOT a", "", " ", "\0", "a\0b", "\ud800", "x\udfff", "\u202e", "%", "_", "\\"),
    *("'; DROP TABLE entries; --", "] } ?[x] <- [[1]]", "$1", "?1", "@x", "🙂", "東京", "word " * 2_000, "w" * 10_001),
)


class SearchContract(StoreFixtures):
    """Finding entries by their words; a store that does not declare `text` finds nothing, and never fails."""

    def test_entries_are_found_by_their_words(self, store: StateStore, state: State, clock: FrozenClock) -> None:
        state.write("note", {"title": "Our Gardens", "body": ["the café in Zürich", 4711]})
        state.write("garden-party", "cake")
        for query, least, most in (
            ("gardens", "note", "note garden-party"),
            ("garden", "note garden-party", "note garden-party"),
            ("CAFE?", "note", "note"),
            ("café", "note", "note"),
            ("zurich", "note", "note"),
            ("4711", "note", "note"),
            ("party", "garden-party", "garden-party"),
            ("tractor", "", ""),
        ):
            found = {result.key: result for result in state.search(query)}
            assert found.keys() <= set(most.split()), query
            assert found.keys() >= set(least.split()) or "text" not in store.capabilities, query
            assert not found or "text" in store.capabilities
            for key, result in found.items():
                assert (result.kind, result.scope, result.at) == ("entry", SCOPE, clock.now_ms())
                assert result.value == state.read(key)

    def test_whatever_fits_best_comes_first(self, store: StateStore, state: State) -> None:
        state.write("one", "a red tricycle")
        state.write("two", "a bicycle, red")
        state.write("three", "a blue bicycle")
        state.write("four", "nothing of it")
        found = state.search("red bicycle")
        assert [result.key for result in found][:1] == (["two"] if "text" in store.capabilities else [])
        assert {result.key for result in found} == ({"one", "two", "three"} if found else set())
        scores = [result.score for result in found]
        assert scores == sorted(scores, reverse=True)
        assert all(0 < score <= 1 for score in scores)

    def test_salience_and_then_age_decide_between_equals(
        self, store: StateStore, state: State, clock: FrozenClock
    ) -> None:
        for key, salience in (("k1", 0.5), ("k2", 0.9), ("k3", 0.1), ("k4", 0.5), ("k5", 0.5)):
            state.write(key, "needle", salience=salience)
            clock.advance(0 if key == "k4" else 1)
        wanted = ["k2", "k4", "k5", "k1", "k3"] if "text" in store.capabilities else []
        clock.advance(1)
        for _ in range(3):
            assert [result.key for result in state.search("needle")] == wanted

    def test_as_many_as_are_asked_for(self, store: StateStore, state: State) -> None:
        for number in range(8):
            state.write(f"k{number}", "needle")
        found = [result.key for result in state.search("needle", limit=1_000)]
        assert len(found) == (8 if "text" in store.capabilities else 0)
        for limit in (1, 5, 8):
            assert [result.key for result in state.search("needle", limit=limit)] == found[:limit]
        assert [result.key for result in state.search("needle")] == found[:5]
        for none in (0, -1, 1_001, 1.0, True, "5", 10**5_000):
            with pytest.raises(InvalidValue, match="limit"):
                state.search("needle", limit=none)  # type: ignore[arg-type]

    def test_a_snippet_shows_what_was_found(self, store: StateStore, state: State) -> None:
        state.write("long", {"text": "hay " * 500 + "a needle in it" + " hay" * 500})
        for result in state.search("needle"):
            assert "needle" in result.snippet
            assert len(result.snippet) < 250
        assert len(state.search("needle")) == ("text" in store.capabilities)

    def test_no_query_is_more_than_words(self, store: StateStore, state: State) -> None:
        state.write("k", "durable execution in C++, a tool of 東京")
        store("user/4").write("other", "durable execution AND NEAR a x text")
        for query in HOSTILE_QUERIES:
            assert {result.key for result in state.search(query, limit=1_000)} <= {"k"}, query
        for query in ("*", '"', "(", "%", "", "\0"):
            assert state.search(query) == [], query
        for query in ('durable-execution "AND C++', "東京", '"tool"*', "x OR tool"):
            assert len(state.search(query)) == ("text" in store.capabilities), query
        for none in (5, None, b"tool", ["tool"]):
            with pytest.raises(InvalidValue):
                state.search(none)  # type: ignore[arg-type]

    def test_what_lies_below_a_transient_entry_is_not_found(self, store: StateStore, state: State) -> None:
        state.write("k", "needle stored")
        state.write("k", "other words", lifetime="transient")
        assert state.search("needle") == []
        state.clear_transient()
        assert len(state.search("needle")) == ("text" in store.capabilities)

    def test_only_what_can_be_read_is_found(self, store: StateStore, random: Random, clock: FrozenClock) -> None:
        """Random histories: every word ever written is looked for in every scope, and found where it now stands."""
        scopes = ("user/1", "user/11", "session/1", "session/1/thread/1")
        held: dict[tuple[str, str], tuple[str, int | None]] = {}
        words: list[str] = []
        for _ in range(30 * self.scale):
            place = random.choice(scopes), random.choice("abc")
            chance = random.random()
            if chance < 0.6:
                words.append(f"w{len(words):06}")
                ttl = random.choice((None, 1, 3))
                store(place[0]).write(place[1], {"word": words[-1]}, ttl=ttl)
                held[place] = (words[-1], None if ttl is None else clock.now_ms() + ttl * 1_000)
            elif chance < 0.8:
                store(place[0]).delete(place[1])
                held.pop(place, None)
            else:
                clock.advance(1_000)
        live = {
            (place[0], word): [place[1]]
            for place, (word, expires_at) in held.items()
            if (expires_at is None or expires_at > clock.now_ms()) and "text" in store.capabilities
        }
        for scope in scopes:
            for word in words:
                found = [result.key for result in store(scope).search(word)]
                assert found == live.get((scope, word), []), (scope, word)

    def test_vectors_find_what_means_the_same(self, open_at: OpenAt) -> None:
        store = open_at("vectors", embedder=ToyEmbedder())
        state = store(SCOPE)
        state.write("a", "my automobile")
        state.write("b", "a physician")
        state.write("overwritten", "one automobile")
        state.write("overwritten", "a bicycle")
        state.write("deleted", "automobile")
        state.delete("deleted")
        store("user/4").write("other", "automobile")
        for query, keys in (("car", ["a"]), ("doctor", ["b"]), ("buy", [])):
            found = [result.key for result in state.search(query)]
            assert found == (keys if "vectors" in store.capabilities else [])

    def test_the_port_finds_live_entries_of_one_scope(
        self, store: StateStore, state: State, clock: FrozenClock
    ) -> None:
        state.write("over", "needle", ttl=1)
        for key in ("a", "b", "c"):
            state.write(key, "needle")
        store("user/4").write("other", "needle")
        clock.advance(1_000)
        found = port_of(store).search(SCOPE, Wanted(now=clock.now_ms(), terms=("needle",)))
        assert sorted(match.key for match in found) == (["a", "b", "c"] if "text" in store.capabilities else [])
        assert all(match.text > 0 and match.entry == port_of(store).get(SCOPE, match.key) for match in found)
        assert len(port_of(store).search(SCOPE, Wanted(now=clock.now_ms(), terms=("needle",), limit=2))) <= 2

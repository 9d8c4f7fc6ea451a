"""The contract of search and graph.

A declared search finds entries, and no search finds an entry that cannot be read. Walks along edges end, and are
compared with a brute-force walk.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.client.state import State, StateStore
from holdfast.errors import InvalidValue, TooLarge, Unsupported
from holdfast.records.entries import DIRECTIONS, Edge, EdgeQuery, EntrySearchQuery
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract.fixtures import (
    SCOPE,
    OpenAt,
    StoreFixtures,
    ToyEmbedder,
    is_identical,
    store_backend,
)

HOSTILE_QUERIES = (
    *('durable-execution "AND C++', "*", "NEAR(", "NEAR(a b, 2)", '"', "'", "''", "(", ")", "^a", "a*", "-a", "+", ":"),
    *("text:x", "{a b}", "a AND", "OR", "NOT a", "", " ", "\0", "a\0b", "\ud800", "x\udfff", "\u202e", "%", "_", "\\"),
    *("'; DROP TABLE entries; --", "] } ?[x] <- [[1]]", "$1", "?1", "@x", "🙂", "東京", "word " * 2_000, "w" * 10_001),
)


class SearchContract(StoreFixtures):
    """The contract of search by words; a store that does not declare `text` finds nothing, and never fails."""

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
        """Search for every word ever written in every scope, after random changes; only live entries are found."""
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
        port, query = store_backend(store), EntrySearchQuery(now=clock.now_ms(), terms=("needle",))
        found = port.search(SCOPE, query)
        assert sorted(match.key for match in found) == (["a", "b", "c"] if "text" in store.capabilities else [])
        assert all(match.text > 0 and match.entry == port.get(SCOPE, match.key) for match in found)
        assert len(port.search(SCOPE, replace(query, limit=2))) <= 2


OTHER_SCOPE = "workflow/w"
NodeAddress = tuple[str, str]


class GraphContract(StoreFixtures):
    """The contract of edges; a store that does not declare them refuses every call."""

    def test_where_nothing_was_linked_there_is_nothing(self, state: State) -> None:
        if has_graph(state):
            assert state.neighbours("a") == []
            assert state.traverse("a") == []
            assert state.unlink("a", "to", "b") is False

    def test_edges_are_found_from_both_ends(self, store: StateStore, state: State) -> None:
        if not has_graph(state):
            return
        state.link("a", "knows", "b", weight=0.5, data={"since": [2024]})
        state.link("a", "likes", "c")
        state.link("b", "knows", "a")
        state.link("a", "knows", "b", target_scope=OTHER_SCOPE)
        assert _edge_tuples(state.neighbours("a")) == [
            (SCOPE, "a", "knows", SCOPE, "b"),
            (SCOPE, "a", "knows", OTHER_SCOPE, "b"),
            (SCOPE, "a", "likes", SCOPE, "c"),
        ]
        first = state.neighbours("a")[0]
        assert (first.weight, first.data) == (0.5, {"since": [2024]})
        assert _edge_tuples(state.neighbours("a", direction="in")) == [(SCOPE, "b", "knows", SCOPE, "a")]
        assert len(state.neighbours("a", direction="both")) == 4
        assert _edge_tuples(state.neighbours("a", kinds=["likes"])) == [(SCOPE, "a", "likes", SCOPE, "c")]
        assert len(state.neighbours("a", kinds=["likes", "knows"], direction="both")) == 4
        assert state.neighbours("a", kinds=["Likes"]) == []
        assert _edge_tuples(store(OTHER_SCOPE).neighbours("b", direction="in")) == [
            (SCOPE, "a", "knows", OTHER_SCOPE, "b")
        ]
        assert store(OTHER_SCOPE).neighbours("b") == store(OTHER_SCOPE).neighbours("a", direction="both") == []

    def test_the_same_edge_again_takes_new_data(self, state: State) -> None:
        if not has_graph(state):
            return
        for weight, data in ((1, "one"), (None, None), (-2.5, [None, {"a": 2**63 - 1}]), (0, "")):
            state.link("a", "to", "b", weight=weight, data=data)
            (edge,) = state.neighbours("a")
            assert edge.weight == weight
            assert is_identical(edge.data, data)
        assert state.unlink("a", "to", "b")
        assert not state.unlink("a", "to", "b")
        assert state.neighbours("b", direction="both") == []

    def test_taking_an_edge_away_leaves_the_others(self, store: StateStore, state: State) -> None:
        if not has_graph(state):
            return
        state.link("a", "to", "b")
        state.link("a", "To", "b")
        state.link("a", "to", "b", target_scope=OTHER_SCOPE)
        store(OTHER_SCOPE).link("a", "to", "b", target_scope=SCOPE)
        for source, kind, target in (("a", "to", "B"), ("b", "to", "a"), ("a", "to ", "b")):
            assert not state.unlink(source, kind, target)
        assert state.unlink("a", "to", "b")
        assert _edge_tuples(state.neighbours("a")) == [
            (SCOPE, "a", "To", SCOPE, "b"),
            (SCOPE, "a", "to", OTHER_SCOPE, "b"),
        ]
        assert _edge_tuples(state.neighbours("b", direction="in")) == [
            (SCOPE, "a", "To", SCOPE, "b"),
            (OTHER_SCOPE, "a", "to", SCOPE, "b"),
        ]

    def test_walks_end_also_in_circles(self, state: State) -> None:
        if not has_graph(state):
            return
        for source, target in (("a", "a"), ("a", "b"), ("a", "c"), ("b", "d"), ("c", "d"), ("d", "a"), ("d", "e")):
            state.link(source, "to", target)
        reached = state.traverse("a", depth=64)
        assert [(one.key, one.depth) for one in reached] == [("b", 1), ("c", 1), ("d", 2), ("e", 3)]
        assert [edge.target for edge in reached[-1].path] == ["b", "d", "e"]
        assert [one.key for one in state.traverse("a", depth=2)] == ["b", "c", "d"]
        assert [one.key for one in state.traverse("e", direction="in", depth=2)] == ["d", "b", "c"]
        assert [one.key for one in state.traverse("a", limit=2)] == ["b", "c"]
        assert len(state.neighbours("a", direction="both")) == 4

    def test_walks_are_those_of_the_plainest_walk(self, store: StateStore, state: State, random: Random) -> None:
        if not has_graph(state):
            return
        nodes = [(scope, key) for scope in (SCOPE, OTHER_SCOPE) for key in ("a", "b%", "é", "a/b", "🙂")]
        known: dict[tuple[str, ...], Edge] = {}
        for _ in range(40 * self.scale):
            (scope, source), (target_scope, target) = random.choice(nodes), random.choice(nodes)
            kind = random.choice(("to", "of"))
            if random.random() < 0.2:
                gone = store(scope).unlink(source, kind, target, target_scope=target_scope)
                assert gone == (known.pop((scope, source, kind, target_scope, target), None) is not None)
            else:
                store(scope).link(source, kind, target, target_scope=target_scope)
                edge = Edge(scope=scope, source=source, kind=kind, target_scope=target_scope, target=target)
                known[scope, source, kind, target_scope, target] = edge
        for _ in range(10 * self.scale):
            start, direction = random.choice(nodes), random.choice(DIRECTIONS)
            kinds, depth = random.choice((None, ["to"], ["of", "to"])), random.randrange(1, 5)
            walked = store(start[0]).traverse(start[1], depth=depth, kinds=kinds, direction=direction)
            assert {(one.scope, one.key): one.depth for one in walked} == _walk_edges(
                known, start, direction, kinds, depth
            )
            for one in walked:
                _check_path(start, (one.scope, one.key), one.path, one.depth)

    def test_the_port_gives_edges_in_order_up_to_a_limit(self, store: StateStore, state: State) -> None:
        if not has_graph(state):
            return
        for source in ("b", "a", "\uff5a", "🙂"):
            for target in ("y", "x"):
                state.link(source, "to", target)
        keys = ("🙂", "\uff5a", "b", "a", "none")
        found = store_backend(store).edges(EdgeQuery(scope=SCOPE, keys=keys))
        assert [(edge.source, edge.target) for edge in found] == [
            (source, target) for source in ("a", "b", "\uff5a", "🙂") for target in ("x", "y")
        ]
        assert store_backend(store).edges(EdgeQuery(scope=SCOPE, keys=keys, limit=3)) == found[:3]
        into = store_backend(store).edges(EdgeQuery(scope=SCOPE, keys=("x",), direction="in", limit=3))
        assert [edge.source for edge in into] == ["a", "b", "\uff5a"]
        assert store_backend(store).edges(EdgeQuery(scope=SCOPE, keys=())) == []

    def test_neighbours_can_be_asked_for_a_few(self, state: State) -> None:
        if not has_graph(state):
            return
        for number in range(5):
            state.link("a", "to", f"b{number}")
            state.link(f"c{number}", "to", "a")
        assert [edge.target for edge in state.neighbours("a", limit=2)] == ["b0", "b1"]
        assert [edge.source for edge in state.neighbours("a", direction="in", limit=3)] == ["c0", "c1", "c2"]
        both = state.neighbours("a", direction="both")
        assert list(state.neighbours("a", direction="both", limit=7)) == list(both)[:7]
        assert len(both) == 10
        for limit in (0, -1, True, "2"):
            with pytest.raises(InvalidValue, match="limit"):
                state.neighbours("a", limit=limit)  # type: ignore[arg-type]

    def test_edges_that_cannot_be_are_refused(self, open_at: OpenAt) -> None:
        state = open_at("small", settings=Settings(event_bytes=4_000))(SCOPE)
        if not has_graph(state):
            return
        bad: list[tuple[Any, Any, Any, dict[str, Any]]] = [
            *(("", "to", "b", {}), ("a", "", "b", {}), ("a", "to", "\0", {}), ("a", 5, "b", {})),
            *(("a", "k" * 129, "b", {}), ("a", "to", "b", {"target_scope": "nowhere/x"})),
            *(("a", "to", "b", {"weight": float("nan")}), ("a", "to", "b", {"weight": "1"})),
            *(("a", "to", "b", {"data": {1}}), ("a", "to", "b", {"data": "\ud800"})),
        ]
        for source, kind, target, options in bad:
            with pytest.raises(InvalidValue):
                state.link(source, kind, target, **options)
        with pytest.raises(TooLarge):
            state.link("a", "to", "b", data="x" * 4_000)
        for options in (
            *({"direction": "up"}, {"direction": None}, {"kinds": "to"}, {"kinds": [5]}, {"depth": 0}),
            *({"depth": 65}, {"limit": 0}),
        ):
            with pytest.raises(InvalidValue):
                state.traverse("a", **options)
        assert state.neighbours("a", direction="both") == []

    def test_edges_stay_when_a_value_goes(self, state: State) -> None:
        if not has_graph(state):
            return
        state.write("a", 1)
        state.link("a", "to", "b")
        state.delete("a")
        assert [one.key for one in state.traverse("a")] == ["b"]
        assert state.list() == []


def has_graph(state: State) -> bool:
    """Return True if the store declares a graph; else assert that every graph call is refused."""
    try:
        state.neighbours("a")
    except Unsupported:
        asked = (lambda: state.link("a", "to", "b"), lambda: state.unlink("a", "to", "b"), lambda: state.traverse("a"))
        for refused in asked:
            with pytest.raises(Unsupported, match="graph"):
                refused()
        return False
    return True


def _edge_tuples(edges: Any) -> list[tuple[str, ...]]:
    return [(edge.scope, edge.source, edge.kind, edge.target_scope, edge.target) for edge in edges]


def _walk_edges(
    edges: dict[tuple[str, ...], Edge], start: NodeAddress, direction: str, kinds: list[str] | None, depth: int
) -> dict[NodeAddress, int]:
    """Return every key within `depth` edges, by trying every edge at every step."""
    found = {start: 0}
    for distance in range(1, depth + 1):
        for edge in edges.values():
            pair = ((edge.scope, edge.source), (edge.target_scope, edge.target))
            for here, there in (pair, pair[::-1]):
                follows = direction == "both" or (here == pair[0]) == (direction == "out") or pair[0] == pair[1]
                if follows and (kinds is None or edge.kind in kinds) and found.get(here) == distance - 1:
                    found.setdefault(there, distance)
    del found[start]
    return found


def _check_path(start: NodeAddress, end: NodeAddress, path: tuple[Edge, ...], depth: int) -> None:
    """Assert that a path leads from one end to the other, by as many edges as it says."""
    at = start
    for edge in path:
        ends = {(edge.scope, edge.source), (edge.target_scope, edge.target)}
        assert at in ends
        at = next(iter(ends - {at}), at)
    assert at == end
    assert len(path) == depth

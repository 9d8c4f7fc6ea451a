"""The contract of the graph: edges between keys, and walks that end, compared with the plainest walk there is."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.client.state import State, StateStore
from holdfast.errors import InvalidValue, TooLarge, Unsupported
from holdfast.records.entries import DIRECTIONS, Edge, EdgeQuery
from holdfast.records.settings import Settings
from holdfast.testing.store_contract_kit import SCOPE, OpenAt, StoreFixtures, port_of, same

OTHER = "workflow/w"
Node = tuple[str, str]


class GraphContract(StoreFixtures):
    """Edges, where a store declares them; else each is refused."""

    def test_where_nothing_was_linked_there_is_nothing(self, state: State) -> None:
        if offers_graph(state):
            assert state.neighbours("a") == []
            assert state.traverse("a") == []
            assert state.unlink("a", "to", "b") is False

    def test_edges_are_found_from_both_ends(self, store: StateStore, state: State) -> None:
        if not offers_graph(state):
            return
        state.link("a", "knows", "b", weight=0.5, data={"since": [2024]})
        state.link("a", "likes", "c")
        state.link("b", "knows", "a")
        state.link("a", "knows", "b", target_scope=OTHER)
        assert _ends(state.neighbours("a")) == [
            (SCOPE, "a", "knows", SCOPE, "b"),
            (SCOPE, "a", "knows", OTHER, "b"),
            (SCOPE, "a", "likes", SCOPE, "c"),
        ]
        first = state.neighbours("a")[0]
        assert (first.weight, first.data) == (0.5, {"since": [2024]})
        assert _ends(state.neighbours("a", direction="in")) == [(SCOPE, "b", "knows", SCOPE, "a")]
        assert len(state.neighbours("a", direction="both")) == 4
        assert _ends(state.neighbours("a", kinds=["likes"])) == [(SCOPE, "a", "likes", SCOPE, "c")]
        assert len(state.neighbours("a", kinds=["likes", "knows"], direction="both")) == 4
        assert state.neighbours("a", kinds=["Likes"]) == []
        assert _ends(store(OTHER).neighbours("b", direction="in")) == [(SCOPE, "a", "knows", OTHER, "b")]
        assert store(OTHER).neighbours("b") == store(OTHER).neighbours("a", direction="both") == []

    def test_the_same_edge_again_takes_new_data(self, state: State) -> None:
        if not offers_graph(state):
            return
        for weight, data in ((1, "one"), (None, None), (-2.5, [None, {"a": 2**63 - 1}]), (0, "")):
            state.link("a", "to", "b", weight=weight, data=data)
            (edge,) = state.neighbours("a")
            assert edge.weight == weight
            assert same(edge.data, data)
        assert state.unlink("a", "to", "b")
        assert not state.unlink("a", "to", "b")
        assert state.neighbours("b", direction="both") == []

    def test_taking_an_edge_away_leaves_the_others(self, store: StateStore, state: State) -> None:
        if not offers_graph(state):
            return
        state.link("a", "to", "b")
        state.link("a", "To", "b")
        state.link("a", "to", "b", target_scope=OTHER)
        store(OTHER).link("a", "to", "b", target_scope=SCOPE)
        for source, kind, target in (("a", "to", "B"), ("b", "to", "a"), ("a", "to ", "b")):
            assert not state.unlink(source, kind, target)
        assert state.unlink("a", "to", "b")
        assert _ends(state.neighbours("a")) == [(SCOPE, "a", "To", SCOPE, "b"), (SCOPE, "a", "to", OTHER, "b")]
        assert _ends(state.neighbours("b", direction="in")) == [
            (SCOPE, "a", "To", SCOPE, "b"),
            (OTHER, "a", "to", SCOPE, "b"),
        ]

    def test_walks_end_also_in_circles(self, state: State) -> None:
        if not offers_graph(state):
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
        if not offers_graph(state):
            return
        nodes = [(scope, key) for scope in (SCOPE, OTHER) for key in ("a", "b%", "é", "a/b", "🙂")]
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
            assert {(one.scope, one.key): one.depth for one in walked} == _walk(known, start, direction, kinds, depth)
            for one in walked:
                _check_path(start, (one.scope, one.key), one.path, one.depth)

    def test_the_port_gives_edges_in_order_up_to_a_limit(self, store: StateStore, state: State) -> None:
        if not offers_graph(state):
            return
        for source in ("b", "a", "\uff5a", "🙂"):
            for target in ("y", "x"):
                state.link(source, "to", target)
        keys = ("🙂", "\uff5a", "b", "a", "none")
        found = port_of(store).edges(EdgeQuery(scope=SCOPE, keys=keys))
        assert [(edge.source, edge.target) for edge in found] == [
            (source, target) for source in ("a", "b", "\uff5a", "🙂") for target in ("x", "y")
        ]
        assert port_of(store).edges(EdgeQuery(scope=SCOPE, keys=keys, limit=3)) == found[:3]
        into = port_of(store).edges(EdgeQuery(scope=SCOPE, keys=("x",), direction="in", limit=3))
        assert [edge.source for edge in into] == ["a", "b", "\uff5a"]
        assert port_of(store).edges(EdgeQuery(scope=SCOPE, keys=())) == []

    def test_neighbours_can_be_asked_for_a_few(self, state: State) -> None:
        if not offers_graph(state):
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
        if not offers_graph(state):
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
        if not offers_graph(state):
            return
        state.write("a", 1)
        state.link("a", "to", "b")
        state.delete("a")
        assert [one.key for one in state.traverse("a")] == ["b"]
        assert state.list() == []


def offers_graph(state: State) -> bool:
    """Whether the store declares a graph; where it does not, every part of it is refused."""
    try:
        state.neighbours("a")
    except Unsupported:
        asked = (lambda: state.link("a", "to", "b"), lambda: state.unlink("a", "to", "b"), lambda: state.traverse("a"))
        for refused in asked:
            with pytest.raises(Unsupported, match="graph"):
                refused()
        return False
    return True


def _ends(edges: Any) -> list[tuple[str, ...]]:
    return [(edge.scope, edge.source, edge.kind, edge.target_scope, edge.target) for edge in edges]


def _walk(
    edges: dict[tuple[str, ...], Edge], start: Node, direction: str, kinds: list[str] | None, depth: int
) -> dict[Node, int]:
    """Every key within so many edges, by asking every edge at every step."""
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


def _check_path(start: Node, end: Node, path: tuple[Edge, ...], depth: int) -> None:
    """A path leads from one end to the other, by as many edges as it says."""
    at = start
    for edge in path:
        ends = {(edge.scope, edge.source), (edge.target_scope, edge.target)}
        assert at in ends
        at = next(iter(ends - {at}), at)
    assert at == end
    assert len(path) == depth

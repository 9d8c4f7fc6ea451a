"""Edges in Cozo from both ends, and Datalog that can only read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from holdfast.errors import InvalidValue
from holdfast.records.entries import Edge, EdgeQuery
from holdfast.store.cozo import CozoStore
from tests.stores.stories import entry


@pytest.fixture(params=["mem", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[CozoStore]:
    """One of each engine."""
    opened = CozoStore(":memory:" if request.param == "mem" else tmp_path / "a.cozo", engine=request.param)
    yield opened
    opened.close()


def test_edges_are_found_from_both_ends_in_order(store: CozoStore) -> None:
    a, b = "user/1", "user/2"
    edges = [
        Edge(scope=scope, source=source, kind=kind, target_scope=a, target=target, weight=0.5, data={"n": [1, None]})
        for scope in (a, b)
        for source in ("x", "y")
        for kind in ("knows", "owns")
        for target in ("x", "z")
    ]
    for edge in reversed(edges):
        store.link(edge)
    assert store.edges(EdgeQuery(scope=a, keys=("x",))) == edges[:4]
    assert store.edges(EdgeQuery(scope=a, keys=("y", "x"))) == edges[:8]
    assert store.edges(EdgeQuery(scope=a, keys=("x",), limit=3)) == edges[:3]
    into = [edge for edge in edges if edge.target == "z" and edge.kind == "owns"]
    assert store.edges(EdgeQuery(scope=a, keys=("z",), direction="in", kinds=("owns", "other"))) == into
    assert store.edges(EdgeQuery(scope=b, keys=("z",), direction="in")) == []
    assert store.edges(EdgeQuery(scope=a, keys=())) == []
    changed = Edge(scope=a, source="x", kind="knows", target_scope=a, target="x")
    store.link(changed)
    assert store.edges(EdgeQuery(scope=a, keys=("x",), limit=1)) == [changed]
    assert [store.unlink(edges[0]), store.unlink(edges[0])] == [True, False]
    assert store.edges(EdgeQuery(scope=a, keys=("x",))) == edges[1:4]


def test_datalog_reads_values_by_name(store: CozoStore) -> None:
    store.put("user/1", "a", entry(b'{"n":3}'))
    store.put("user/1", "b", entry(b'{"n":4}'))
    script = "?[key, n] := *entry{scope: $scope, key, value}, n = get(parse_json(value), 'n'), n > $least"
    assert store.datalog(script, {"scope": "user/1", "least": 3}) == {"headers": ["key", "n"], "rows": [["b", 4]]}
    assert store.datalog("?[a] <- [[$a]]", {"a": "'] :rm entry {"})["rows"] == [["'] :rm entry {"]]


def test_datalog_changes_nothing_and_reads_nothing_else(store: CozoStore, tmp_path: Path) -> None:
    store.put("user/1", "k", entry())
    (tmp_path / "a.csv").write_text("a\n1\n")
    for script in (
        "?[scope, key] <- [['user/1', 'k']] :rm entry {scope, key}",
        "{?[a] <- [[1]] :create more {a}}",
        "?[a] <- [[1]] :replace entry {a}",
        "::remove entry",
        "::set_triggers entry on put { ?[a] <- [[1]] }",
        "::index drop words:found",
        f"?[a] <~ CsvReader(types: ['Any'], url: 'file://{tmp_path}/a.csv', has_headers: true)",
        "?[a] := *entry{key: a",
        "?[a] := a = 1 / 'x'",
        "",
    ):
        with pytest.raises(InvalidValue):
            store.datalog(script)
    calls: list[Callable[[], object]] = [
        lambda: store.datalog(7),
        lambda: store.datalog("?[a] <- [[$a]]", {"a": object()}),
        lambda: store.datalog("?[a] <- [[$a]]"),
    ]
    for call in calls:
        with pytest.raises(InvalidValue):
            call()
    assert store.get("user/1", "k") is not None
    assert store.datalog("::relations")["rows"] != []

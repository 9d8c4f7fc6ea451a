"""What is asked of a journal follows what is asked for: one edge, one key, one page, wherever it begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from bench.counting import counting
from bench.counts import difference
from holdfast.client.state import State, open_store
from holdfast.errors import InvalidValue, Unsupported
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.flow.state.journal_store import JournalStore, decode_entry, link_draft, write_draft
from holdfast.journal.memory import tables as memory_tables
from holdfast.journal.sqlite import SqliteJournal
from holdfast.records.entries import Edge, StoredEntry
from holdfast.testing.store_contract.fixtures import SCOPE, store_backend
from tests.scale import volume

APART = 10
"""Percent."""


@pytest.fixture
def client(tmp_path: Path) -> Iterator[holdfast.Holdfast]:
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        yield hf


def _steps(client: holdfast.Holdfast, act: Callable[[], object]) -> float:
    journal = store_backend(client.state)._env.journal  # type: ignore[attr-defined]
    act()
    with counting(journal) as counts:
        act()
    return counts.vm_steps


def test_a_page_costs_the_same_wherever_it_begins(client: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    state, many = client.state(SCOPE), volume(400, 10_000)
    _fill(state, many)

    def apart() -> float:
        first = _steps(client, lambda: state.list(limit=5))
        late = _steps(client, lambda: state.list(after=f"k{many - 10:06}", limit=5))
        assert state.list(after=f"k{many - 10:06}", limit=2) == [f"k{many - 9:06}", f"k{many - 8:06}"]
        assert state.list("k", after="a", limit=1) == ["k000000"]
        return difference(first, late)

    assert apart() <= APART
    entries = SqliteJournal.entries

    def from_the_prefix(journal: SqliteJournal, tenant: str, stream: str, page: Any) -> Any:
        whole = entries(journal, tenant, stream, replace(page, after=None, limit=10**6))
        return [event for event in whole if page.after is None or decode_entry(event)[0] > page.after][: page.limit]

    monkeypatch.setattr(SqliteJournal, "entries", from_the_prefix)
    assert _steps(client, lambda: state.list(after=f"k{many - 10:06}", limit=5)) > 10 * many


def _fill(state: State, many: int) -> None:
    store = state._storage.store
    assert isinstance(store, JournalStore)
    drafts = [write_draft(SCOPE, f"k{number:06}", StoredEntry(value=b"1")) for number in range(many)]
    append_events(store._env, [StreamWrite(stream=SCOPE, events=tuple(drafts))])


def test_an_edge_goes_at_the_same_cost_among_few_and_among_many(client: holdfast.Holdfast) -> None:
    store, edges = store_backend(client.state), volume(400, 10_000)
    assert isinstance(store, JournalStore)
    state = client.state(SCOPE)
    state.link("few", "to", "a")
    made = [link_draft(_edge("many", f"t{number:06}")) for number in range(edges)]
    append_events(store._env, [StreamWrite(stream=SCOPE, events=tuple(made))])
    few = _steps(client, lambda: store.has_edge(_edge("few", "a")))
    many = _steps(client, lambda: store.has_edge(_edge("many", f"t{edges - 1:06}")))
    assert difference(few, many) <= APART
    assert state.unlink("many", "to", f"t{edges - 1:06}")
    assert not state.unlink("many", "to", f"t{edges - 1:06}")


def _edge(source: str, target: str) -> Edge:
    return Edge(scope=SCOPE, source=source, kind="to", target_scope=SCOPE, target=target)


def test_a_write_in_memory_looks_at_its_own_key_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    revisions = memory_tables.list_revisions

    def noting(tables: Any, tenant: str, stream: str, key: str, before: int) -> list[int]:
        looked.append(len(tables.history(tenant, stream, key)))
        monkeypatch.setattr(tables, "stream_rows", None)  # Whoever looks at all rows of a stream fails.
        try:
            return revisions(tables, tenant, stream, key, before)
        finally:
            monkeypatch.undo()
            monkeypatch.setattr(memory_tables, "list_revisions", noting)

    with holdfast.open("memory:") as hf:
        monkeypatch.setattr(memory_tables, "list_revisions", noting)
        for number in range(50):
            hf.state(SCOPE).write(f"k{number}", "word")
        hf.state(SCOPE).write("k1", "another")
        assert [found.key for found in hf.state(SCOPE).search("another")] == ["k1"]
        assert [found.value for found in hf.state(SCOPE).history("k1")] == ["another", "word"]
    assert max(looked) == 2


def test_the_scopes_of_a_journal_are_listed_in_pages(client: holdfast.Holdfast) -> None:
    for number in range(5):
        client.state(f"user/{number}").write("k", number)
    client.session("s").append(holdfast.Message(role="user", content="hello"))
    assert client.state.scopes() == [f"user/{number}" for number in range(5)]
    assert client.state.scopes(after="user/1", limit=2) == ["user/2", "user/3"]
    with pytest.raises(InvalidValue):
        client.state.scopes(limit=0)
    with open_store("memory:") as store, pytest.raises(Unsupported, match="scopes"):
        store.scopes()

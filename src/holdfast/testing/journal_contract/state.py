"""The contract of state in a journal: entries by key and page, history, edges, lanes of effects, and search."""

from __future__ import annotations

from itertools import product
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.journal.codec import decode, decode_event, decode_facts
from holdfast.core.search.documents import TextSearch
from holdfast.core.search.words import query_terms
from holdfast.flow.journal import artifacts
from holdfast.ports.capabilities import MAINTENANCE, STATE, TEXT, VECTORS, require
from holdfast.ports.journal import Journal
from holdfast.records.batches import RowQuery
from holdfast.records.entries import Edge, EdgeQuery, EntryPageQuery
from holdfast.records.events import state
from holdfast.records.events.envelope import Draft, StoredEvent
from holdfast.testing.generate_state import FAR_FUTURE_MS, KEYS, KINDS, SINKS, StateGenerator
from holdfast.testing.journal_contract.fixtures import JournalFixtures, dump_projections, read_events
from holdfast.testing.writer import Writer

SCOPE = "user/42"
NOW_MS = 1


def make_write(key: str, value: Any, **facts: Any) -> Draft:
    """Make a draft that writes a key."""
    content = state.ValueContent(value=value)
    return Draft(type="state.written", facts=state.StateWritten(key=key, **facts), content=content)


def _write_random_state(writer: Writer, seed: int, steps: int = 150, scope: str = SCOPE) -> list[StoredEvent]:
    story = StateGenerator(Random(seed), writer.env.ids, scope, ("alice", "bob"))  # noqa: S311
    for _ in range(steps):
        writer.append(scope, *story.step())
    return read_events(writer.env.journal, scope, limit=10_000)


def _list_entries(journal: Journal, now: int = NOW_MS, **page: Any) -> list[tuple[str, int]]:
    found = require(journal, STATE).entries("default", SCOPE, EntryPageQuery(now=now, **page))
    return [(decode_facts("state.written", event.schema, event.facts).key, event.version) for event in found]


class StateContract(JournalFixtures):
    """The contract of entries, edges and effects: random histories, compared with their events."""

    @pytest.mark.parametrize("seed", range(3))
    def test_entries_are_what_the_events_left(self, writer: Writer, journal: Journal, seed: int) -> None:
        reader = require(journal, STATE)
        wanted: dict[str, int] = {}
        for stored in _write_random_state(writer, seed):
            event = decode_event(stored)
            if event.type == "state.written":
                wanted[event.facts.key] = event.version
            elif event.type == "state.deleted":
                wanted.pop(event.facts.key, None)
        assert _list_entries(journal) == sorted(wanted.items())
        for key in KEYS:
            found = reader.entry("default", SCOPE, key)
            assert (None if found is None else found.version) == wanted.get(key)
        assert reader.entries("acme", SCOPE, EntryPageQuery(now=NOW_MS)) == []
        assert reader.entry("default", "user/4", "prefs") is None

    def test_what_is_over_is_listed_for_its_tenant_alone(self, writer: Writer, journal: Journal) -> None:
        reader = require(journal, STATE)
        for scope, key, ends in (("user/1", "a", 10), ("user/1", "b", 20), ("user/2", "a", 30), ("user/2", "c", None)):
            writer.append(scope, make_write(key, 1, expires_at=ends))
        writer.append("user/1", make_write("a", 2, expires_at=15))
        assert reader.find_expired("default", 9, 10) == []
        assert sorted(reader.find_expired("default", 20, 10)) == [("user/1", "a", 3), ("user/1", "b", 2)]
        assert len(reader.find_expired("default", 100, 2)) == 2
        assert reader.find_expired("acme", 100, 10) == reader.find_expired("nobody", 100, 10) == []

    def test_scopes_are_streams_with_something_to_read(self, writer: Writer, journal: Journal) -> None:
        reader = require(journal, STATE)
        for number in (3, 1, 2):
            writer.append(f"user/{number}", make_write("k", 1, expires_at=10 * number))
        writer.append("user/4", make_write("k", 1), Draft(type="state.deleted", facts=state.StateDeleted(key="k")))
        writer.append("user/5", make_write("k", 1))
        assert reader.scopes("default", 0, "", 10) == ["user/1", "user/2", "user/3", "user/5"]
        assert reader.scopes("default", 0, "user/1", 2) == ["user/2", "user/3"]
        assert reader.scopes("default", 20, "", 10) == ["user/3", "user/5"]
        assert reader.scopes("acme", 0, "", 10) == []

    @pytest.mark.parametrize("seed", range(3))
    def test_one_edge_can_be_asked_for(self, writer: Writer, journal: Journal, seed: int) -> None:
        reader = require(journal, STATE)
        _write_random_state(writer, seed)
        query = EdgeQuery(scope=SCOPE, keys=KEYS)
        made = [decode_event(event).facts for event in reader.edges("default", query)]
        found = {(facts.source, facts.kind, facts.target_scope, facts.target) for facts in made}
        assert found
        for source, kind, target in product(KEYS, KINDS, KEYS):
            for scope in {name[2] for name in found} | {"user/nobody"}:
                edge = Edge(scope=SCOPE, source=source, kind=kind, target_scope=scope, target=target)
                assert reader.has_edge("default", edge) is ((source, kind, scope, target) in found)
                assert not reader.has_edge("acme", edge)

    @pytest.mark.parametrize("seed", range(3))
    def test_pages_by_prefix_and_key_are_the_whole(self, writer: Writer, journal: Journal, seed: int) -> None:
        _write_random_state(writer, seed)
        for prefix in ("", "user_", "user_%", "p", "P", "日", "\U0010ffff", "nothing"):
            whole = _list_entries(journal, prefix=prefix)
            assert whole == [item for item in _list_entries(journal) if item[0].startswith(prefix)]
            found: list[tuple[str, int]] = []
            while more := _list_entries(journal, prefix=prefix, after=found[-1][0] if found else None, limit=2):
                found += more
            assert found == whole

    def test_time_and_lifetime_are_honoured(self, writer: Writer, journal: Journal) -> None:
        drafts = make_write("a", 1, expires_at=100), make_write("b", 2, lifetime="session"), make_write("c", 3)
        writer.append(SCOPE, *drafts)
        assert _list_entries(journal, now=99) == [("a", 1), ("b", 2), ("c", 3)]
        assert _list_entries(journal, now=100) == [("b", 2), ("c", 3)]
        assert _list_entries(journal, lifetime="session") == [("b", 2)]

    @pytest.mark.parametrize("seed", range(2))
    def test_the_history_of_a_key_is_every_event_that_changed_it(
        self, writer: Writer, journal: Journal, seed: int
    ) -> None:
        reader = require(journal, STATE)
        events = [decode_event(event) for event in _write_random_state(writer, seed)]
        for key in KEYS:
            changed = [e.version for e in events if e.type in ("state.written", "state.deleted") and e.facts.key == key]
            found = [event.version for event in reader.revisions("default", SCOPE, key, 2**62, 1_000)]
            assert found == changed[::-1]
            if len(changed) > 2:
                some = reader.revisions("default", SCOPE, key, changed[-1], 1)
                assert [event.version for event in some] == [changed[-2]]
        assert reader.revisions("acme", SCOPE, "prefs", 2**62, 10) == []

    @pytest.mark.parametrize("seed", range(3))
    def test_edges_are_found_from_both_ends(self, writer: Writer, journal: Journal, seed: int) -> None:
        reader = require(journal, STATE)
        edges: dict[tuple[str, str, str], int] = {}
        for stored in _write_random_state(writer, seed):
            event = decode_event(stored)
            if event.type in ("state.linked", "state.unlinked"):
                edge = (event.facts.source, event.facts.kind, event.facts.target)
                edges.pop(edge, None)
                if event.type == "state.linked":
                    edges[edge] = event.version
        for direction, end in (("out", 0), ("in", 2)):
            for kinds in ((), KINDS[:1]):
                query = EdgeQuery(scope=SCOPE, keys=KEYS[:4], direction=direction, kinds=kinds)  # type: ignore[arg-type]
                wanted = sorted(e for e in edges if e[end] in KEYS[:4] and (not kinds or e[1] in kinds))
                found = reader.edges("default", query)
                facts = [decode_event(event).facts for event in found]
                assert sorted((one.source, one.kind, one.target) for one in facts) == wanted
                assert [event.version for event in found] == [edges[o.source, o.kind, o.target] for o in facts]
                assert reader.edges("acme", query) == []

    @pytest.mark.parametrize("seed", range(3))
    def test_a_lane_holds_what_is_not_settled_in_order(self, writer: Writer, journal: Journal, seed: int) -> None:
        waiting: dict[str, tuple[str, int]] = {}
        for stored in _write_random_state(writer, seed):
            event = decode_event(stored)
            if event.type == "effect.declared":
                waiting[event.facts.effect] = (event.facts.sink, event.version)
            elif event.type == "effect.settled" and event.facts.outcome in ("applied", "skipped"):
                waiting.pop(event.facts.effect)
        firsts = []
        for sink in sorted(SINKS):
            wanted = sorted(version for to, version in waiting.values() if to == sink)
            lane = RowQuery(table="effects", stream=SCOPE, column="sink", value=sink)
            first = journal.select("default", replace(lane, limit=1))
            firsts += first
            assert journal.lanes("default", sink) == first
            assert [row["version"] for _, row in journal.select("default", lane)] == wanted
            assert [row["version"] for _, row in first] == wanted[:1]
        assert journal.lanes("default") == firsts
        assert journal.lanes("acme") == journal.lanes("default", "nobody") == []

    def test_only_what_stands_is_found(self, writer: Writer, journal: Journal) -> None:
        writer.append(
            SCOPE,
            make_write("a", "a purple lamp"),
            make_write("b", "a purple chair", expires_at=FAR_FUTURE_MS),
            make_write("a", "gone"),
        )
        writer.append("user/43", make_write("a", "a purple table"))
        Writer(journal, tenant="acme").append(SCOPE, make_write("a", "a purple door"))
        assert self._search_scope(journal, "purple") == [(SCOPE, 2)]
        assert self._search_scope(journal, "purple", now=FAR_FUTURE_MS) == []
        assert self._search_scope(journal, "lamp") == []
        assert self._search_scope(journal, "gone") == [(SCOPE, 3)]
        writer.append(SCOPE, Draft(type="state.deleted", facts=state.StateDeleted(key="a")))
        assert self._search_scope(journal, "gone") == []
        everywhere = require(journal, TEXT).search("default", TextSearch(terms=query_terms("purple"), now=NOW_MS))
        assert sorted((hit.event.stream, hit.event.version) for hit in everywhere) == [(SCOPE, 2), ("user/43", 1)]

    def _search_scope(self, journal: Journal, words: str, now: int = NOW_MS) -> list[tuple[str, int]]:
        hits = require(journal, TEXT).search("default", TextSearch(terms=query_terms(words), now=now, scopes=(SCOPE,)))
        return sorted((hit.event.stream, hit.event.version) for hit in hits)

    def test_what_was_erased_is_neither_read_nor_found(self, writer: Writer, journal: Journal) -> None:
        vectors = require(journal, VECTORS)
        reader = require(journal, STATE)
        writer.append(SCOPE, replace(make_write("x", "a heliotrope"), subject="carol"), make_write("y", "an iris"))
        assert self._search_scope(journal, "heliotrope") == [(SCOPE, 1)]
        vectors.keep_vectors("default", SCOPE, "e", [(1, b"d", b"\1"), (2, b"f", b"\2")])
        artifacts.erase_subject(writer.env, "carol")
        assert self._search_scope(journal, "heliotrope") == []
        assert reader.entry("default", SCOPE, "x") is None
        assert _list_entries(journal) == [("y", 2)]
        assert [seq for seq, _ in vectors.vectors("default", SCOPE, "e", 0)] == [2]
        before = dump_projections(journal)
        require(journal, MAINTENANCE).rebuild()
        assert dump_projections(journal) == before
        assert self._search_scope(journal, "iris") == [(SCOPE, 2)]

    def test_vectors_are_kept_by_event_and_known_by_digest(self, writer: Writer, journal: Journal) -> None:
        vectors = require(journal, VECTORS)
        writer.append(SCOPE, make_write("a", "one"), make_write("b", "two"), make_write("a", "three"))
        missing = vectors.find_unembedded("default", SCOPE, "e", 10)
        assert [decode(event.content or b"")["value"] for event in missing] == ["two", "three"]
        vectors.keep_vectors("default", SCOPE, "e", [(event.seq, b"d%d" % event.seq, b"\7") for event in missing])
        assert vectors.find_unembedded("default", SCOPE, "e", 10) == []
        assert len(vectors.find_unembedded("default", SCOPE, "another", 10)) == 2
        assert vectors.vectors_by_digest("default", "e", [b"d2", b"d9"]) == {b"d2": b"\7"}
        assert vectors.vectors_by_digest("acme", "e", [b"d2"]) == {}
        assert vectors.vectors("default", SCOPE, "e", 2) == [(3, b"\7")]
        vectors.drop_vectors("acme", [3])
        vectors.drop_vectors("default", [2])
        assert vectors.vectors("default", SCOPE, "e", 0) == [(3, b"\7")]

    @pytest.mark.parametrize("seed", range(2))
    def test_a_rebuild_finds_the_same(self, writer: Writer, journal: Journal, seed: int) -> None:
        _write_random_state(writer, seed)
        before = (dump_projections(journal), self._search_scope(journal, "refund nuts plan"))
        require(journal, MAINTENANCE).rebuild()
        assert (dump_projections(journal), self._search_scope(journal, "refund nuts plan")) == before

"""The comparison of tenants can fail: each wall between them is taken down on purpose, and it must be noticed.

Every bug is a patch made here, never a switch in the source. What notices it runs again without the bug, so
that it is the bug that was noticed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.flow.effects.sinks import SinkRegistry
from holdfast.flow.frames import steps
from holdfast.flow.journal.observers import EventCallbacks
from holdfast.flow.state.store import Storage, TransientEntries
from holdfast.flow.state.vectors import count_vectors
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import search as sqlite_search
from holdfast.journal.sqlite import segments, statements
from holdfast.system import Lru
from tests.edges.tenant_actor import by_words
from tests.edges.test_tenant_search_planted import search_all_tenants
from tests.edges.test_tenants import compare

Patch = pytest.MonkeyPatch
SEEDS = 20


def one_index_for_all(patch: Patch) -> None:
    """How rare a word is, is counted over everybody's texts."""
    search_all_tenants(patch)
    original = MemoryJournal.search

    def search(self: Any, tenant: str, wanted: Any) -> Any:
        return [hit for hit in original(self, tenant, wanted) if hit.event.tenant == tenant]

    patch.setattr(MemoryJournal, "search", search)


def transients_by_scope_alone(patch: Patch) -> None:
    patch.setattr(Storage, "place", lambda self, scope: ("", scope))


def room_for_transients_is_shared(patch: Patch) -> None:
    original = TransientEntries._make_room

    def make_room(self: Any, tenant: str, now: int) -> None:
        original(self, max(self._counts, key=self._counts.__getitem__, default=tenant), now)

    patch.setattr(TransientEntries, "_make_room", make_room)


def vectors_by_scope_alone(patch: Patch) -> None:
    get, put = Lru.get, Lru.put

    def place_of(cache: Any, key: Any) -> Any:
        return ("", *key[1:]) if cache._weigh is count_vectors else key

    patch.setattr(Lru, "get", lambda self, key: get(self, place_of(self, key)))
    patch.setattr(Lru, "put", lambda self, key, *kept: put(self, place_of(self, key), *kept))


def callbacks_hear_everybody(patch: Patch) -> None:
    original = EventCallbacks.list_callbacks

    def hear(self: Any, tenant: str, name: str) -> Any:
        return [callback for one in {entry[0] for entry in self._kept} for callback in original(self, one, name)]

    patch.setattr(EventCallbacks, "list_callbacks", hear)


def sinks_by_name_alone(patch: Patch) -> None:
    def find(self: Any, tenant: str, name: str) -> Any:
        return next((sink for (_, known), sink in self._sinks.items() if known == name), None)

    patch.setattr(SinkRegistry, "find", find)


def middleware_of_everybody(patch: Patch) -> None:
    patch.setattr(SinkRegistry, "middleware", lambda self, tenant: [function for _, function in self._middleware])


def steps_by_frame_alone(patch: Patch) -> None:
    patch.setattr(steps, "_step_owner", lambda env, frame: ("", "", frame))


def keys_of_everybody(patch: Patch) -> None:
    original = MemoryJournal.events_by_key

    def by_key(self: Any, tenant: str, stream: str, key: str) -> Any:
        return original(self, tenant, stream, key) or original(self, "globex", stream, key)

    patch.setattr(MemoryJournal, "events_by_key", by_key)


def pseudonyms_are_numbered_together(patch: Patch) -> None:
    original = MemoryJournal._pseudonym

    def pseudonym(self: Any, tenant: str, name: str) -> int:
        known = [one for one in self._subjects.get(tenant, ()) if one.name == name]
        if not known and tenant == "acme":
            while len(self._subjects.get("acme", ())) < len(self._subjects.get("globex", ())):
                original(self, "acme", f"held back {len(self._subjects.get('acme', ()))}")
        return original(self, tenant, name)

    patch.setattr(MemoryJournal, "_pseudonym", pseudonym)


def edges_of_everybody(patch: Patch) -> None:
    original = MemoryJournal.edges

    def edges(self: Any, tenant: str, query: Any) -> Any:
        return [edge for name in self.tenants() for edge in original(self, name, query)]

    patch.setattr(MemoryJournal, "edges", edges)


def subscribers_hear_everybody(patch: Patch) -> None:
    original = MemoryJournal.read

    def read(self: Any, query: Any) -> Any:
        everybodys = list(self._events.values())[query.after :][: query.limit]
        return everybodys if query.stream is None and query.after and not query.types else original(self, query)

    patch.setattr(MemoryJournal, "read", read)


TALKING = ("say", "write", "search", "search_state", "rewind", "fork")
MOMENTS = ("write_for_a_moment", "read")
BUGS: dict[Callable[[Patch], None], tuple[str, ...]] = {
    one_index_for_all: TALKING,
    transients_by_scope_alone: MOMENTS,
    room_for_transients_is_shared: MOMENTS,
    vectors_by_scope_alone: TALKING,
    callbacks_hear_everybody: ("listen", "write"),
    sinks_by_name_alone: ("operate", "dispatch", "own_sink"),
    middleware_of_everybody: ("operate", "operate_through_middleware"),
    steps_by_frame_alone: ("work_under_a_chosen_id",),
    keys_of_everybody: (),
    pseudonyms_are_numbered_together: (),
    edges_of_everybody: ("edges", "read_only"),
    subscribers_hear_everybody: ("subscribe", "append_event"),
}
"""Each with the calls among which it must be noticed; nothing is all."""


def noticed(patch: Patch, bug: Callable[[Patch], None], folder: Path, backend: str) -> None:
    """Some seed notices a bug, and nothing without it."""
    calls = BUGS[bug]
    embedder, rounds = by_words if bug is vectors_by_scope_alone else None, 6 if calls else 1
    for seed in range(SEEDS):
        with patch.context() as planted:
            bug(planted)
            try:
                compare(folder, backend, embedder, seed, rounds, calls)
            except (AssertionError, LookupError):
                break
    else:
        raise AssertionError(f"{bug.__name__} was not noticed on {backend}")
    compare(folder, backend, embedder, seed, rounds, calls)


@pytest.mark.parametrize("bug", list(BUGS), ids=lambda bug: bug.__name__)
def test_a_wall_that_is_down_is_noticed(bug: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path) -> None:
    noticed(monkeypatch, bug, tmp_path, "memory")


def pending_texts_of_everybody(patch: Patch) -> None:
    """Texts that are not indexed yet are read without regard to whose they are."""
    known = statements.queries()
    sql = known["pending_texts"].replace("INDEXED BY idx_events_type", "").replace("e.tenant = ?1", "?1 = ?1")
    patch.setattr(sqlite_search, "queries", lambda: {**known, "pending_texts": sql})


def pending_texts_stored_for_everybody(patch: Patch) -> None:
    pending_texts_of_everybody(patch)
    patch.setattr(sqlite_search, "SEARCHED_IN_MEMORY", 1)


def segments_of_everybody(patch: Patch) -> None:
    known = statements.queries()
    sql = known["text_segments"].replace("tenant = ?", "tenant <> -?")
    patch.setattr(segments, "queries", lambda: {**known, "text_segments": sql})
    patch.setattr(sqlite_search, "SEARCHED_IN_MEMORY", 1)


ON_DISK = (pending_texts_of_everybody, pending_texts_stored_for_everybody, segments_of_everybody)
BUGS |= dict.fromkeys(ON_DISK, TALKING)


@pytest.mark.parametrize("bug", ON_DISK, ids=lambda bug: bug.__name__)
def test_an_index_that_mixes_tenants_is_noticed_on_disk_as_well(
    bug: Callable[[Patch], None], monkeypatch: Patch, tmp_path: Path
) -> None:
    noticed(monkeypatch, bug, tmp_path, "sqlite")

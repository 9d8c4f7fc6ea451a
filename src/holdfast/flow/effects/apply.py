"""Effects on the journaled store as drafts: the rules of direct writes, run over a store that only records drafts.

So an effect obeys the same rules as a direct write, and several effects of one operator on the same key add up before
any of them is written. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from holdfast.core.effects import options_of
from holdfast.core.entries import EdgeName, edge_name
from holdfast.flow.journal.append import States
from holdfast.flow.state import search as state_search
from holdfast.flow.state import write
from holdfast.flow.state.journal_store import JournalStore, delete_draft, link_draft, unlink_draft, write_draft
from holdfast.flow.state.store import Storage, TransientEntries
from holdfast.flow.state.write import EntryWrite
from holdfast.ports import Env
from holdfast.records import effects
from holdfast.records.entries import Edge, StoredEntry
from holdfast.records.events.envelope import Draft

Drafts = dict[str, list[Draft]]


NO_TRANSIENTS = TransientEntries(0)
"""An empty overlay: this process's transient entries are no part of the stored state."""


class EffectPlan(JournalStore):
    """The journal's store as planned effects leave it: changes become drafts, which it collects."""

    def __init__(self, env: Env, states: States, drafts: Drafts) -> None:
        super().__init__(env)
        self._states = states
        self._drafts = drafts
        self._planned: dict[tuple[str, str], StoredEntry | None] = {}
        self._planned_edges: dict[EdgeName, bool] = {}
        self._effect: str | None = None
        self._storage = Storage(
            store=self,
            clock=env.clock,
            settings=env.settings,
            transients=NO_TRANSIENTS,
            tenant=env.tenant,
            reserving=True,
        )

    def apply(self, effect: Any, id: str) -> None:
        """Plan an effect under its id; refused as the same call on the store would be."""
        self._effect = id
        apply_effect(self._storage, effect, id)

    def get(self, scope: str, key: str) -> StoredEntry | None:
        place = (scope, key)
        return self._planned[place] if place in self._planned else super().get(scope, key)

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> int | None:
        known = self.get(scope, key)
        if expected is not None and expected != (0 if known is None else known.version):
            return None
        # Other effects may have written it before: the event names only the present one.
        version = self._add_draft(scope, write_draft(scope, key, replace(entry, applied=entry.applied[-1:])))
        self._planned[scope, key] = replace(entry, version=version)
        return version

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        known = self.get(scope, key)
        if expected is not None and expected != (0 if known is None else known.version):
            return None
        if known is None:
            return False
        self._add_draft(scope, delete_draft(key, effect=self._effect))
        self._planned[scope, key] = None
        return True

    def _add_draft(self, scope: str, draft: Draft) -> int:
        drafts = self._drafts.setdefault(scope, [])
        drafts.append(draft)
        return self._states[scope].version + len(drafts)

    def link(self, edge: Edge) -> None:
        self._add_draft(edge.scope, link_draft(edge, effect=self._effect))
        self._planned_edges[edge_name(edge)] = True

    def unlink(self, edge: Edge) -> bool:
        key = edge_name(edge)
        there = self._planned_edges.get(key)
        if there is None:
            there = self.has_edge(edge)
        if there:
            self._add_draft(edge.scope, unlink_draft(edge, effect=self._effect))
            self._planned_edges[key] = False
        return there


def apply_effect(storage: Storage, effect: Any, id: str) -> Mapping[str, Any]:
    """Apply an effect to a store under its id, and return the result."""
    if isinstance(effect, effects.WriteState):
        options, expected = options_of(effect), effect.expected_version
        wanted = EntryWrite(value=effect.value, options=options, expected=expected, reducer=effect.reducer, effect=id)
        return {"version": write.write_entry(storage, effect.scope, effect.key, wanted)}
    if isinstance(effect, effects.DeleteState):
        return {"deleted": write.delete_entry(storage, effect.scope, effect.key, effect.expected_version)}
    if isinstance(effect, effects.LinkState):
        state_search.link_keys(storage, effect_edge(effect))
        return {"linked": True}
    return {"unlinked": state_search.unlink_keys(storage, effect_edge(effect))}


def effect_edge(effect: effects.LinkState | effects.UnlinkState) -> Edge:
    """Return the edge that an effect is about."""
    data = {"weight": effect.weight, "data": effect.data} if isinstance(effect, effects.LinkState) else {}
    return state_search.make_edge(
        effect.scope, effect.source, effect.kind, effect.target, target_scope=effect.target_scope, **data
    )

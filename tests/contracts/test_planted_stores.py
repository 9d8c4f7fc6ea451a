"""Tests that can fail: each promise of a store is broken on purpose, and the contract must notice.

Every bug is a store made here, or a patch, never a switch in the source.
"""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.client.state import StateStore
from holdfast.core import entries as rules
from holdfast.errors import Conflict, EntryNotFound
from holdfast.flow.state import store as state_store
from holdfast.flow.state import write
from holdfast.flow.state.store import Storage, TransientEntries
from holdfast.records.entries import StoredEntry
from holdfast.records.settings import Settings
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract import StoreContract
from holdfast.testing.store_contract.fixtures import SCOPE
from tests.contracts import broken_stores as broken
from tests.contracts.test_stores import stays_inside

NOTICED = (AssertionError, Conflict, EntryNotFound, pytest.fail.Exception)
"""How a test says that a promise is broken: by itself, or by what the broken store made of its calls."""


def run(name: str, make: Callable[[str], MemoryStore]) -> None:
    """One test of the contract over the stores that `make` gives."""
    clock, opened = FrozenClock(), list[StateStore]()

    def open_at(place: str = "one", *, settings: Settings | None = None, embedder: Any = None) -> StateStore:
        settings = settings or Settings()
        transients = TransientEntries(settings.transient_entries)
        parts = {"clock": clock, "settings": settings, "transients": transients, "tenant": "default"}
        opened.append(StateStore(Storage(store=make(place), embedder=embedder, **parts)))
        return opened[-1]

    test = getattr(StoreContract, name)
    wanted = test.__code__.co_varnames[1 : test.__code__.co_argcount]
    known: dict[str, Any] = {"clock": clock, "random": Random(0), "open_at": open_at}
    if {"store", "state"} & set(wanted):
        known |= {"store": (store := open_at()), "state": store(SCOPE)}
    test(StoreContract(), **{argument: known[argument] for argument in wanted})


STORES: list[tuple[type[MemoryStore], str]] = [
    (broken.PurgesNothing, "test_purging_removes_what_is_over_and_nothing_else"),
    (broken.PurgesNothing, "test_purging_removes_many"),
    (broken.PurgesWhatWasWrittenAnew, "test_purging_removes_what_is_over_and_nothing_else"),
    (broken.PurgesWithoutLooking, "test_purging_removes_what_is_over_and_nothing_else"),
    (broken.IgnoresExpected, "test_the_port_compares_versions"),
    (broken.ComparesAndThenWrites, "test_of_many_that_expect_the_same_version_one_wins"),
    (broken.DropsWhateverIsThere, "test_the_port_compares_versions"),
    (broken.ComparesAndThenWrites, "test_threads_that_add_lose_nothing"),
    (broken.CountsFromTheEntry, "test_versions_grow_and_are_never_given_twice"),
    (broken.LikePrefix, "test_a_prefix_is_compared_exactly"),
    (broken.ListsWhatIsOver, "test_what_has_expired_is_gone_for_every_reader"),
    (broken.LimitsBeforeItLooks, "test_the_port_gives_pages_of_what_is_live"),
    (broken.LimitsBeforeItLooks, "test_what_has_expired_is_gone_for_every_reader"),
    (broken.PagesOverlap, "test_pages_of_any_size_make_the_whole"),
    (broken.PagesOverlap, "test_keys_that_come_and_go_while_paging_disturb_no_others"),
    (broken.OrdersByUtf16, "test_keys_are_in_order_of_their_code_points"),
    (broken.ScopesAreFolders, "test_scopes_do_not_see_each_other"),
    (broken.FoldsCase, "test_hostile_keys_are_kept_each_in_its_own_place"),
    (broken.CutsKeys, "test_hostile_keys_are_kept_each_in_its_own_place"),
    (broken.ResolvesPaths, "test_hostile_keys_are_kept_each_in_its_own_place"),
    (broken.TrimsKeys, "test_hostile_keys_are_kept_each_in_its_own_place"),
    (broken.ReadsNumbersAsFloats, "test_every_json_value_is_read_as_it_was_written"),
    (broken.ForgetsOptions, "test_options_are_kept_and_belong_to_one_write"),
    (broken.ForgetsOptions, "test_the_port_keeps_every_part_of_an_entry"),
    (broken.SearchesEveryScope, "test_only_what_can_be_read_is_found"),
    (broken.SearchesEveryScope, "test_no_query_is_more_than_words"),
    (broken.FindsWhatIsOver, "test_only_what_can_be_read_is_found"),
    (broken.KeepsOldWords, "test_only_what_can_be_read_is_found"),
    (broken.FindsNothing, "test_entries_are_found_by_their_words"),
    (broken.TakesAnyKind, "test_taking_an_edge_away_leaves_the_others"),
    (broken.IgnoresKinds, "test_edges_are_found_from_both_ends"),
    (broken.IgnoresDirection, "test_walks_are_those_of_the_plainest_walk"),
    (broken.KeepsTheFirstData, "test_the_same_edge_again_takes_new_data"),
    (broken.NeverCloses, "test_a_closed_store_says_so"),
    (broken.SaysItIsDurable, "test_a_durable_store_has_everything_when_it_is_opened_again"),
]


@pytest.mark.parametrize(("bug", "guard"), STORES, ids=[f"{bug.__name__}-{guard[5:]}" for bug, guard in STORES])
def test_a_store_with_a_bug_does_not_keep_the_contract(bug: type[MemoryStore], guard: str) -> None:
    run(guard, lambda place: MemoryStore(search=True))
    with pytest.raises(NOTICED):
        run(guard, lambda place: bug(search=True))


def test_a_store_that_counts_anew_when_it_is_opened_does_not_keep_the_contract() -> None:
    def make(counting: bool) -> Callable[[str], MemoryStore]:
        places: dict[str, MemoryStore] = {}

        def open_place(place: str) -> MemoryStore:
            before, store = places.get(place), broken.SaysItIsDurable(search=True)
            if before is not None:
                store.__dict__ |= {name: vars(before)[name] for name in ("_entries", "_keys", "_words", "_out", "_in")}
                last = next(before._versions)
                highest = max((entry.version for entry in store._entries.values()), default=0)
                store._versions = iter(range((last if counting else highest) + 1, 10**6))  # type: ignore[assignment]
            return places.setdefault(place, store) if before is None else store

        return open_place

    guard = "test_a_durable_store_has_everything_when_it_is_opened_again"
    run(guard, make(counting=True))
    with pytest.raises(AssertionError):
        run(guard, make(counting=False))


def test_a_store_whose_keys_are_paths_does_not_stay_inside(tmp_path: Path) -> None:
    def make(store: MemoryStore) -> StateStore:
        parts = {"clock": FrozenClock(), "settings": Settings(), "transients": TransientEntries(1), "tenant": "default"}
        return StateStore(Storage(store=store, **parts))

    stays_inside(lambda: make(MemoryStore()), tmp_path)
    with pytest.raises(AssertionError):
        stays_inside(lambda: make(broken.JoinsPaths(tmp_path / "a/b/root/store", tmp_path)), tmp_path)


def time_does_not_pass(patch: pytest.MonkeyPatch) -> None:
    for module in (write, state_store):
        patch.setattr(module, "live_or_none", lambda entry, now: entry)


def time_is_not_begun_anew(patch: pytest.MonkeyPatch) -> None:
    known: dict[int, int] = {}

    def expiry(options: rules.EntryOptions, now: int) -> int | None:
        return None if options.ttl is None else known.setdefault(0, now + round(options.ttl * 1_000))

    patch.setattr(rules, "expiry", expiry)


def nothing_lies_over(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TransientEntries, "get", lambda self, place, key, now: None)


def search_looks_below(patch: pytest.MonkeyPatch) -> None:
    def over(self: TransientEntries, place: Any, now: int) -> Iterator[tuple[str, StoredEntry]]:
        return iter(())

    patch.setattr(TransientEntries, "live_entries", over)


def a_refused_deletion_uncovers(patch: pytest.MonkeyPatch) -> None:
    original = write.delete_entry

    def delete(storage: Storage, scope: Any, key: str, *given: Any) -> bool:
        storage.transients.drop(storage.place(scope), key)
        return original(storage, scope, key, *given)

    patch.setattr(write, "delete_entry", delete)


def transient_sums_race(patch: pytest.MonkeyPatch) -> None:
    original = TransientEntries.put

    def put(self: TransientEntries, place: Any, key: str, entry: StoredEntry, before: StoredEntry | None) -> bool:
        time.sleep(0.001)
        return original(self, place, key, entry, self.at(place, key))

    patch.setattr(TransientEntries, "put", put)


def values_are_not_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(write, "to_plain", lambda value: json.loads(json.dumps(value, default=repr)))


def keys_are_made_to_fit(patch: pytest.MonkeyPatch) -> None:
    def check(value: Any) -> str:
        return unicodedata.normalize("NFC", value.replace("\0", ""))

    patch.setattr(rules, "check_entry_key", check)


def reducers_begin_anew(patch: pytest.MonkeyPatch) -> None:
    real = write._reduce_entry

    def forget(storage: Any, key: str, known: StoredEntry | None, *more: Any) -> StoredEntry:
        return real(storage, key, None if known is None else StoredEntry(value=known.value), *more)

    patch.setattr(write, "_reduce_entry", forget)


def what_is_over_is_handed_on(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoredEntry, "is_live", lambda entry, now: True)


def pages_are_full_of_other_tiers(patch: pytest.MonkeyPatch) -> None:
    real = state_store.fetch_pages

    def fetch(storage: Storage, scope: str, page: Any, most: int | None, counts: Any = None) -> Any:
        return [one for one in real(storage, scope, page, most) if counts is None or counts(*one)]

    patch.setattr(state_store, "fetch_pages", fetch)


def searches_end_with_the_first_answer(patch: pytest.MonkeyPatch) -> None:
    first = MemoryStore.search
    patch.setattr(MemoryStore, "search", lambda self, scope, wanted: first(self, scope, replace(wanted, limit=100)))


PATCHES: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (time_does_not_pass, "test_what_has_expired_is_gone_for_every_reader"),
    (time_does_not_pass, "test_what_has_expired_is_not_there_for_writers"),
    (time_is_not_begun_anew, "test_every_write_begins_its_time_anew"),
    (reducers_begin_anew, "test_a_reducer_keeps_what_the_write_does_not_say"),
    (reducers_begin_anew, "test_a_reducer_keeps_the_type_of_what_it_changes"),
    (what_is_over_is_handed_on, "test_what_is_over_hands_nothing_on"),
    (pages_are_full_of_other_tiers, "test_tiers_are_listed_and_searched_apart"),
    (searches_end_with_the_first_answer, "test_tiers_are_listed_and_searched_apart"),
    (nothing_lies_over, "test_transient_entries_lie_over_what_is_stored"),
    (search_looks_below, "test_what_lies_below_a_transient_entry_is_not_found"),
    (a_refused_deletion_uncovers, "test_a_deletion_takes_both_and_a_refused_one_neither"),
    (transient_sums_race, "test_threads_that_add_lose_nothing"),
    (values_are_not_looked_at, "test_what_is_not_json_is_refused_and_changes_nothing"),
    (keys_are_made_to_fit, "test_hostile_keys_are_kept_each_in_its_own_place"),
]


@pytest.mark.parametrize(("bug", "guard"), PATCHES, ids=[f"{bug.__name__}-{guard[5:]}" for bug, guard in PATCHES])
def test_rules_with_a_bug_do_not_keep_the_contract(
    bug: Callable[[pytest.MonkeyPatch], None], guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(guard, lambda place: MemoryStore(search=True))
    bug(monkeypatch)
    with pytest.raises(NOTICED):
        run(guard, lambda place: MemoryStore(search=True))

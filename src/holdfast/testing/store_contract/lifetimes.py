"""The contract of options and lifetimes: expired entries are gone for all readers, transient ones hide stored ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from holdfast.client.state import State, StateStore
from holdfast.core.values import register_type
from holdfast.errors import EntryNotFound, InvalidValue, TooLarge, VersionConflict
from holdfast.records.entries import TIERS, Reducer, Tier
from holdfast.records.scope import Scope
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract.fixtures import SCOPE, OpenAt, StoreFixtures, list_entries, store_backend


class LifetimeContract(StoreFixtures):
    """The contract of an entry's options and lifetime."""

    def test_options_are_kept_and_belong_to_one_write(self, state: State, clock: FrozenClock) -> None:
        for options in (
            {"tier": "hot", "lifetime": "durable", "content_kind": "episodic", "salience": 0.0},
            {"tier": "warm", "content_kind": "a kind of my own", "salience": 1},
            {"tier": "cold", "salience": 1 / 3, "ttl": 1.5},
            {},
        ):
            state.write("k", "v", **options)  # type: ignore[arg-type]
            entry = state.entry("k")
            assert entry is not None
            assert list_entries(state) == [entry]
            for name in ("tier", "lifetime", "content_kind", "salience"):
                assert getattr(entry, name) == options.get(name), name
            assert entry.expires_at == (clock.now_ms() + 1_500 if "ttl" in options else None)

    def test_tiers_are_listed_and_searched_apart(self, state: State) -> None:
        for number in range(110):  # More than a search asks a store for.
            state.write(f"a/{number:03}", "needle needle", tier="warm")
        for tier in TIERS:
            for number in range(3):
                state.write(f"{tier}/x{number}", "a needle in much hay", tier=tier)
        state.write("none", "needle")
        some: tuple[Tier, ...] = ("hot", "cold")
        for tier in some:
            keys = [f"{tier}/x{number}" for number in range(3)]
            assert state.list(tier=tier) == [entry.key for entry in state.entries(tier=tier)] == keys
            pages = [state.list(tier=tier, after=after, limit=2) for after in (None, keys[1], keys[2])]
            assert pages == [keys[:2], keys[2:], []]
            found = {result.key for result in state.search("needle", tier=tier, limit=3)}
            assert found == (set(keys) if state.search("needle") else set())
        assert len(state.list(tier="warm")) == 113
        assert state.list("hot/", tier="cold") == []
        state.write("hot/x0", "hidden needle", lifetime="transient")
        state.write("cold/x9", "shown", lifetime="transient", tier="cold")
        assert state.list(tier="hot") == [entry.key for entry in state.entries(tier="hot")] == ["hot/x1", "hot/x2"]
        assert state.list(tier="hot", limit=1) == ["hot/x1"]
        assert state.list(tier="cold")[-1] == "cold/x9"
        assert "hot/x0" not in {result.key for result in state.search("needle", tier="hot")}
        reads: tuple[Callable[..., Any], ...] = (state.list, state.entries, state.search)
        for read in reads:
            with pytest.raises(InvalidValue, match="tier"):
                read("needle", tier="tepid")

    def test_options_that_mean_nothing_are_refused_and_change_nothing(self, state: State) -> None:
        state.write("k", "v")
        before = list_entries(state)
        for name, values in REFUSED_OPTIONS.items():
            for value in values:
                with pytest.raises(InvalidValue, match=name):
                    state.write("k", "changed", **{name: value})  # type: ignore[arg-type]
        assert list_entries(state) == before

    def test_only_what_is_in_a_session_can_live_as_long_as_one(self, store: StateStore) -> None:
        for scope in ("s", "session/s/thread/t"):
            store(scope).write("k", 1, lifetime="session")
        for scope in ("user/42", "global", "actor/a/session/s", "session/s/user/42"):
            with pytest.raises(InvalidValue, match="session"):
                store(scope).write("k", 1, lifetime="session")
            assert list_entries(store(scope)) == []

    def test_what_has_expired_is_gone_for_every_reader(self, state: State, clock: FrozenClock) -> None:
        old = state.write("k", 40, ttl=1.5)
        state.write("l", 1)
        clock.advance(1_499)
        assert state.read("k") == 40
        assert state.list() == ["k", "l"]
        clock.advance(1)
        assert state.read("k", default="gone") == "gone"
        with pytest.raises(EntryNotFound):
            state.require("k")
        assert state.entry("k") is None
        assert "k" not in state
        assert state.list() == list(state) == [entry.key for entry in list_entries(state)] == ["l"]
        assert state.list(limit=1) == ["l"]
        assert state.search("40") == []
        with pytest.raises(VersionConflict):
            state.write("k", 1, expected_version=old)
        assert not state.delete("k", expected_version=0)
        assert not state.delete("k")

    def test_what_has_expired_is_not_there_for_writers(self, state: State, clock: FrozenClock) -> None:
        for key, value in (("sum", 40), ("list", [1]), ("object", {"a": 1}), ("new", 1)):
            state.write(key, value, ttl=1)
        clock.advance(1_000)
        state.write("sum", 2, reducer="sum")
        state.write("list", 2, reducer="append")
        state.write("object", {"b": 2}, reducer="merge")
        state.write("new", 2, expected_version=0)
        assert [entry.value for entry in list_entries(state)] == [[2], 2, {"b": 2}, 2]

    def test_every_write_begins_its_time_anew(self, state: State, clock: FrozenClock) -> None:
        state.write("kept", 1, ttl=1)
        state.write("longer", 1, ttl=1)
        state.write("sum", 1, ttl=1)
        clock.advance(900)
        state.write("kept", 1)
        state.write("longer", 2, ttl=1)
        state.write("sum", 1, ttl=1, reducer="sum")
        clock.advance(900)
        assert [(entry.key, entry.value) for entry in list_entries(state)] == [("kept", 1), ("longer", 2), ("sum", 2)]
        clock.advance(100)
        assert state.list() == ["kept"]

    def test_a_reducer_keeps_what_the_write_does_not_say(self, state: State, clock: FrozenClock) -> None:
        for key, before, more, reducer in REDUCER_CASES:
            kept = {"tier": "hot", "content_kind": "episodic", "salience": 0.25, "lifetime": "durable"}
            state.write(key, before, ttl=10, **kept)  # type: ignore[arg-type]
            ends = clock.now_ms() + 10_000
            clock.advance(1_000)
            for said in ({}, {"salience": 0.0}, {"tier": "cold"}, {"ttl": 60}):
                state.write(key, more, reducer=reducer, **said)
                kept_on = kept | {name: value for name, value in said.items() if name != "ttl"}
                ends = clock.now_ms() + 60_000 if "ttl" in said else ends
                entry = state.entry(key)
                assert entry is not None
                assert entry.expires_at == ends
                assert {name: getattr(entry, name) for name in kept} == kept_on
                kept.update(kept_on)
            state.write(key, before)
            plain = state.entry(key)
            assert plain is not None
            assert (plain.expires_at, plain.tier, plain.salience) == (None, None, None)

    def test_what_is_over_hands_nothing_on(self, state: State, clock: FrozenClock) -> None:
        state.write("n", 5, ttl=1, tier="hot")
        clock.advance(1_000)
        state.write("n", 1, reducer="sum")
        entry = state.entry("n")
        assert entry is not None
        assert (entry.value, entry.expires_at, entry.tier) == (1, None, None)

    def test_a_reducer_keeps_the_type_of_what_it_changes(self, state: State) -> None:
        @dataclass
        class Price:
            cents: int
            currency: str

        @dataclass
        class Noted(Price):
            note: str

        in_cents: Any = {1: lambda old: old | {"cents": old["cents"] * 100}}
        register_type(Price, "contract price", version=2, upcasters=in_cents)
        state.write("k", Price(500, "USD"))
        state.write("k", {"currency": "EUR"}, reducer="merge")
        state.write("items", Price(1, "USD"), reducer="append")
        register_type(Noted, "contract price", version=3, upcasters=in_cents | {2: lambda old: old | {"note": ""}})
        assert state.require("k", as_=Noted).cents == 500
        assert state.read("items", as_=list[Price]) == [Price(1, "USD")]

    def test_purging_removes_what_is_over_and_nothing_else(
        self, store: StateStore, state: State, clock: FrozenClock
    ) -> None:
        assert store.purge() == 0
        others = [store(scope) for scope in ("global", "s", "session/s/thread/t", "operator/o", "custom/a/id/b")]
        for one in (state, *others):
            one.write("soon/over", "words", ttl=1)
            one.write("later", 1, ttl=5)
            one.write("kept", 1)
        state.write("again", 1, ttl=1)
        state.write("gone", 1, ttl=1)
        state.delete("gone")
        clock.advance(1_000)
        state.write("again", 2)
        before = [list_entries(one) for one in (state, *others)]
        old = store_backend(store).get(SCOPE, "soon/over")
        # Later writes may have removed some.
        there = [store_backend(store).get(one.scope, "soon/over") for one in (state, *others)]
        assert store.purge() == sum(entry is not None for entry in there)
        assert [list_entries(one) for one in (state, *others)] == before
        assert state.read("again") == 2
        assert all(store_backend(store).get(one.scope, "soon/over") is None for one in (state, *others))
        assert store.purge() == 0
        version = state.write("soon/over", 3, expected_version=0)
        assert old is None or version > old.version

    def test_purging_removes_many(self, store: StateStore, state: State, clock: FrozenClock) -> None:
        for number in range(60 * self.scale):
            state.write(f"k{number}", number, ttl=1 + number % 2)
        clock.advance(1_000)
        store.purge()
        assert all(store_backend(store).get(SCOPE, f"k{number}") is None for number in range(0, 60 * self.scale, 2))
        assert len(state.list()) == 30 * self.scale

    def test_transient_entries_lie_over_what_is_stored(self, state: State) -> None:
        version = state.write("k", "stored", tier="cold")
        assert state.write("k", "over", lifetime="transient") == version
        assert state.write("only", "over", lifetime="transient", salience=0.5) == 0
        assert state.read("k") == state.require("only") == "over"
        assert state.list() == ["k", "only"]
        assert state.list(limit=1) == state.list("k") == ["k"]
        assert state.list(after="k") == ["only"]
        assert [(entry.value, entry.lifetime, entry.tier) for entry in list_entries(state)] == [
            ("over", "transient", None)
        ] * 2
        assert state.clear_transient() == 2
        assert state.clear_transient() == 0
        assert [(entry.value, entry.version, entry.tier) for entry in list_entries(state)] == [
            ("stored", version, "cold")
        ]

    def test_transient_entries_begin_with_what_they_lie_over(self, state: State, clock: FrozenClock) -> None:
        state.write("n", 5)
        state.write("n", 1, reducer="sum", lifetime="transient")
        state.write("n", 1, reducer="sum", lifetime="transient", ttl=1)
        assert state.read("n") == 7
        clock.advance(1_000)
        assert state.read("n") == 5
        assert state.list() == ["n"]
        state.write("n", 1, reducer="sum", lifetime="transient")
        assert state.read("n") == 6

    def test_a_stored_write_takes_away_what_lies_over_it(self, state: State) -> None:
        state.write("k", 1)
        state.write("k", 100, lifetime="transient")
        with pytest.raises(VersionConflict):
            state.write("k", 3, expected_version=0)
        assert state.read("k") == 100
        state.write("k", 1, reducer="sum")
        assert state.read("k") == 2

    def test_a_transient_entry_gives_no_right_to_overwrite_what_was_not_seen(self, open_at: OpenAt) -> None:
        state, other = open_at()(SCOPE), open_at("other")(SCOPE)
        for mine, at in ((state, state.write("k", 1)), (other, 0)):
            mine.write("k", 2, lifetime="transient")
            entry = mine.entry("k")
            assert entry is not None
            assert entry.version == at
            for lifetime in ("transient", None):
                with pytest.raises(VersionConflict):
                    mine.write("k", 3, expected_version=at + 1, lifetime=lifetime)
            assert mine.write("k", 3, expected_version=entry.version) > at

    def test_a_deletion_takes_both_and_a_refused_one_neither(self, state: State, clock: FrozenClock) -> None:
        version = state.write("k", "stored")
        state.write("k", "over", lifetime="transient")
        state.write("only", "over", lifetime="transient")
        with pytest.raises(VersionConflict):
            state.delete("k", expected_version=version + 1)
        assert state.read("k") == "over"
        assert state.delete("k", expected_version=version)
        assert state.delete("only")
        assert list_entries(state) == []
        state.write("k", "over", lifetime="transient", ttl=1)
        clock.advance(1_000)
        assert not state.delete("k")

    def test_transient_entries_are_seen_by_one_store_alone(self, open_at: OpenAt) -> None:
        one = open_at()
        one(SCOPE).write("k", "over", lifetime="transient")
        assert one(SCOPE).read("k") == one(SCOPE).reader().read("k") == "over"
        assert one("user/43").read("k") is None
        two = open_at() if "shared" in one.capabilities else open_at("another")
        assert two(SCOPE).read("k") is None
        assert two(SCOPE).list() == []

    def test_transient_entries_are_bounded(self, open_at: OpenAt, clock: FrozenClock) -> None:
        store = open_at("few", settings=Settings(transient_entries=3))
        for number in range(3):
            store(f"user/{number}").write("k", number, lifetime="transient", ttl=number + 1)
        store("user/2").write("k", "again", lifetime="transient")
        with pytest.raises(TooLarge, match="3 transient"):
            store(SCOPE).write("k", 1, lifetime="transient")
        assert store(SCOPE).read("k") is None
        store(SCOPE).write("k", 1)
        clock.advance(1_000)
        store(SCOPE).write("k", 2, lifetime="transient")
        assert [store(f"user/{number}").read("k") for number in (0, 1, 2, 42)] == [None, 1, "again", 2]

    def test_what_lives_as_long_as_a_session_goes_with_it(self, store: StateStore, clock: FrozenClock) -> None:
        mine, others = store("s1"), (store("session/s"), store("session/s11"), store("global"))
        for state in (mine, others[0], others[1]):
            state.write("scratch", 1, lifetime="session")
            state.write("kept", 1, lifetime="durable")
        others[2].write("kept", 1)
        mine.write("soon over", 1, lifetime="session", ttl=1)
        mine.write("turned durable", 1, lifetime="session")
        mine.write("turned durable", 2)
        mine.write("kept", "over", lifetime="transient")
        before = [list_entries(state) for state in others]
        clock.advance(1_000)
        assert store.end_session("s1") == 1
        assert [(entry.key, entry.value) for entry in list_entries(mine)] == [("kept", 1), ("turned durable", 2)]
        assert [list_entries(state) for state in others] == before
        assert store.end_session("s1") == 0
        assert store.end_session("never begun") == 0

    def test_what_lives_as_long_as_a_session_in_a_thread_goes_with_that_thread(self, store: StateStore) -> None:
        threads = [Scope.thread("s1", name) for name in ("main", "other")]
        states = [store("s1"), *map(store, threads)]
        for state in states:
            state.write("scratch", 1, lifetime="session")
            state.write("kept", 1)
        assert store.end_session(threads[0]) == 1
        assert ["scratch" in state for state in states] == [True, False, True]
        assert all("kept" in state for state in states)
        assert store.end_session(threads[1].text) == 1
        assert store.end_session(threads[1]) == 0
        for scope in ("user/1", "global", "actor/a/session/s1/thread/main"):
            with pytest.raises(InvalidValue, match="neither a session nor a thread"):
                store.end_session(scope)


REDUCER_CASES: tuple[tuple[str, object, object, Reducer], ...] = (
    ("sum", 1, 1, "sum"),
    ("list", [], 1, "append"),
    ("object", {}, {"a": 1}, "merge"),
)
_INVALID_NUMBERS: tuple[object, ...] = (float("nan"), float("inf"), "1", True, [1], 10**5_000)
REFUSED_OPTIONS: dict[str, tuple[object, ...]] = {
    "ttl": (0, -1, -0.5, 0.0001, 10**12, *_INVALID_NUMBERS),
    "salience": (1.5, -0.1, 2, *_INVALID_NUMBERS),
    "tier": ("lukewarm", "", 1, "HOT", ["hot"]),
    "lifetime": ("eternal", "", 1),
    "content_kind": ("", "k" * 65, "a\nb", 1, "\ud800"),
}

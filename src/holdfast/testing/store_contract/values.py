"""The contract of values, versions and reducers.

A value reads back as written, and one that cannot be written leaves no trace. No writer overwrites a value it has
not seen, and no addition is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, Self

import msgspec
import pytest

from holdfast.client.state import State, StateStore
from holdfast.core.values import register_type
from holdfast.errors import EntryNotFound, InvalidValue, TooLarge, ValueMismatch, VersionConflict
from holdfast.records.entries import EntryPageQuery, StoredEntry
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract.fixtures import (
    SCOPE,
    OpenAt,
    StoreFixtures,
    is_identical,
    list_entries,
    random_value,
    run_in_threads,
    store_backend,
)


@dataclass
class PostalAddress:
    """A user's dataclass."""

    street: str
    numbers: list[int] = field(default_factory=list)


class CustomerProfile(msgspec.Struct):
    """A user's record."""

    name: str
    address: PostalAddress | None = None


class PydanticLikeModel:
    """An object like a Pydantic model: it can dump and validate itself."""

    def __init__(self, total: int) -> None:
        self.total = total

    def model_dump(self, *, mode: str) -> dict[str, int]:
        """Return the model as data."""
        assert mode == "json"
        return {"total": self.total}

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """Build the model from data."""
        try:
            return cls(0 + value["total"])
        except (KeyError, TypeError):
            raise ValueError("total: not a number") from None


class Prefs(msgspec.Struct):
    """A type whose second version renames a field."""

    colour: str


def invalid_values() -> list[Any]:
    """Return values that no store accepts."""
    deep: Any = "bottom"
    for _ in range(65):
        deep = [deep]
    itself: list[Any] = []
    itself += [itself, itself]
    alone: list[Any] = [
        *(float("nan"), float("inf"), -float("inf"), 2**63, -(2**63) - 1),
        *({1}, b"bytes", bytearray(b"x"), object(), Decimal(1), 1j, range(3), iter(()), PostalAddress, len),
        *("a\0b", "\ud800", {"a\0": 1}, {"\udfff": 1}, {1: 2}, {None: 1}, {("a",): 1}, deep, itself),
    ]
    return alone + [{"inside": [value]} for value in alone]


class ValueContract(StoreFixtures):
    """The contract of writing and reading values."""

    def test_every_json_value_is_read_as_it_was_written(self, state: State, random: Random) -> None:
        for number in range(25 * self.scale):
            value = random_value(random)
            state.write(f"key {number % 7}", value)
            assert is_identical(state.read(f"key {number % 7}"), value), value
            assert is_identical(state.require(f"key {number % 7}"), value)

    def test_sixty_four_levels_and_nearly_a_megabyte_fit(self, state: State) -> None:
        deep: Any = "bottom"
        for _ in range(64):
            deep = {"in": deep}
        wide = {"text": "word 世 " * 90_000, "list": list(range(1_000))}
        for value in (deep, wide):
            state.write("k", value)
            assert is_identical(state.read("k"), value)

    def test_what_is_not_json_is_refused_and_changes_nothing(self, state: State) -> None:
        state.write("k", "before")
        before = list_entries(state)
        for value in invalid_values():
            for reducer in ("overwrite", "append"):
                with pytest.raises(InvalidValue):
                    state.write("k", value, reducer=reducer)
                with pytest.raises(InvalidValue):
                    state.write("new", value, reducer=reducer, lifetime="transient")
        assert list_entries(state) == before

    def test_a_value_over_the_limit_is_refused_and_changes_nothing(self, open_at: OpenAt) -> None:
        state = open_at("small", settings=Settings(event_bytes=4_000))(SCOPE)
        state.write("k", "x" * 3_000)
        before = list_entries(state)
        with pytest.raises(TooLarge):
            state.write("k", "x" * 4_000)
        state.write("list", ["x" * 3_000])
        with pytest.raises(TooLarge):
            state.write("list", "x" * 1_000, reducer="append")
        assert list_entries(state)[:1] == before
        assert state.read("list") == ["x" * 3_000]

    def test_a_missing_key_is_none_or_the_default_and_null_is_a_value(self, state: State) -> None:
        assert state.read("k") is None
        assert state.read("k", default=5) == 5
        assert state.entry("k") is None
        assert "k" not in state
        with pytest.raises(EntryNotFound):
            state.require("k")
        state.write("k", None)
        assert state.read("k", default=5) is None
        assert state.require("k") is None
        assert state.list() == ["k"]
        assert "k" in state

    def test_objects_come_back_as_their_types(self, state: State) -> None:
        address = PostalAddress("Main St", [1, 2])
        profile = CustomerProfile("Ann", address)
        state.write("dataclass", address)
        state.write("struct", profile)
        state.write("model", PydanticLikeModel(3))
        state.write("nested", {"all": [address, PydanticLikeModel(4)], "pair": (1, 2)})
        assert state.read("dataclass", as_=PostalAddress) == address
        assert state.require("struct", as_=CustomerProfile) == profile
        assert state.require("model", as_=PydanticLikeModel).total == 3
        assert state.read("nested") == {"all": [{"street": "Main St", "numbers": [1, 2]}, {"total": 4}], "pair": [1, 2]}
        assert state.read("none", as_=CustomerProfile) is None
        assert state.read("struct") == {"name": "Ann", "address": {"street": "Main St", "numbers": [1, 2]}}

    def test_a_type_that_does_not_fit_is_named_with_its_field_and_what_to_do(self, state: State) -> None:
        state.write("k", {"street": 5})
        state.write("m", {"total": "much"})
        for key, kind, part in (
            ("k", PostalAddress, "street"),
            ("k", CustomerProfile, "name"),
            ("m", PydanticLikeModel, "total"),
        ):
            with pytest.raises(ValueMismatch) as refused:
                state.read(key, as_=kind)
            for word in (repr(key), SCOPE, kind.__name__, part, "register_type"):
                assert word in str(refused.value)
        assert state.read("k") == {"street": 5}

    def test_upcasters_make_new_values_of_old_ones(self, state: State) -> None:
        register_type(Prefs, "contract-prefs", version=1)
        state.write("old", Prefs(colour="red"))
        renamed = msgspec.defstruct("Prefs", [("hue", str), ("bright", bool)])
        steps = {1: lambda value: {"hue": value["colour"]}, 2: lambda value: {**value, "bright": True}}
        register_type(renamed, "contract-prefs", version=3, upcasters=steps)
        assert state.require("old", as_=renamed) == renamed("red", True)
        assert state.read("old") == {"colour": "red"}
        state.write("new", renamed("blue", False))
        assert state.require("new", as_=renamed) == renamed("blue", False)
        with pytest.raises(ValueMismatch, match="newer program"):
            state.read("new", as_=Prefs)

    def test_an_entry_says_when_and_how_it_was_written(self, state: State, clock: FrozenClock) -> None:
        version = state.write("k", [1], salience=0.25, content_kind="semantic")
        entry = state.entry("k")
        assert entry is not None
        assert (entry.scope, entry.key, entry.value, entry.version) == (SCOPE, "k", [1], version)
        assert entry.written_at == clock.now_ms()
        assert (entry.salience, entry.content_kind, entry.tier, entry.expires_at) == (0.25, "semantic", None, None)


ADDITIONS = 6
OPTION_NAMES = ("tier", "lifetime", "content_kind", "salience", "schema")


class VersionContract(StoreFixtures):
    """The contract of versions, expected versions, and reducers."""

    def test_versions_grow_and_are_never_given_twice(self, state: State, clock: FrozenClock) -> None:
        given = [state.write("k", 1), state.write("k", 2), state.write("k", 1, reducer="sum")]
        assert state.delete("k")
        given.append(state.write("k", 3, ttl=1))
        clock.advance(1_000)
        given.append(state.write("k", 4, expected_version=0))
        given.append(state.write("k", 5, expected_version=given[-1]))
        assert given == sorted(set(given)), given
        assert min(given) >= 1

    def test_a_write_may_expect_a_version(self, state: State) -> None:
        first = state.write("k", 1, expected_version=0)
        second = state.write("k", 2, expected_version=first)
        assert second > first
        entry = state.entry("k")
        assert entry is not None
        assert entry.version == second
        assert state.delete("k", expected_version=second)
        assert state.write("k", 3, expected_version=0) > second

    def test_a_write_that_expects_another_version_changes_nothing(self, state: State, clock: FrozenClock) -> None:
        old = state.write("k", 1, ttl=5, tier="hot")
        new = state.write("k", 2, ttl=5, tier="hot")
        before = list_entries(state)
        clock.advance(1)
        for expected in (0, old, new + 1, 2**63 - 1):
            for reducer in ("overwrite", "sum"):
                with pytest.raises(VersionConflict) as refused:
                    state.write("k", 9, expected_version=expected, reducer=reducer, tier="cold")
                assert (refused.value.expected, refused.value.actual) == (expected, new)
            with pytest.raises(VersionConflict):
                state.delete("k", expected_version=expected)
        with pytest.raises(VersionConflict):
            state.write("other", 1, expected_version=1)
        assert list_entries(state) == before

    def test_after_a_deletion_there_is_no_version(self, state: State) -> None:
        version = state.write("k", 1)
        state.delete("k")
        for expected in (version, version + 1):
            with pytest.raises(VersionConflict):
                state.write("k", 2, expected_version=expected)
            with pytest.raises(VersionConflict):
                state.delete("k", expected_version=expected)
        assert not state.delete("k", expected_version=0)
        assert list_entries(state) == []

    def test_what_is_no_version_is_refused(self, state: State) -> None:
        state.write("k", 1)
        before = list_entries(state)
        for expected in (-1, 1.0, "1", True, 2**63, 10**5_000):
            with pytest.raises(InvalidValue):
                state.write("k", 2, expected_version=expected)  # type: ignore[arg-type]
            with pytest.raises(InvalidValue):
                state.delete("k", expected_version=expected)  # type: ignore[arg-type]
        assert list_entries(state) == before

    def test_reducers_make_the_new_value_of_the_old_one(self, state: State) -> None:
        state.write("list", 1, reducer="append")
        state.write("list", [2], reducer="append")
        assert state.read("list") == [1, [2]]
        state.write("object", {"a": {"x": 1}, "b": [1]}, reducer="merge")
        state.write("object", {"a": {"y": 2}, "b": [2], "c": None}, reducer="merge")
        assert state.read("object") == {"a": {"x": 1, "y": 2}, "b": [2], "c": None}
        state.write("number", 2, reducer="sum")
        state.write("number", 0.5, reducer="sum")
        assert state.read("number") == 2.5
        state.write("number", 7, reducer="overwrite")
        assert state.read("number") == 7

    def test_a_reducer_on_the_wrong_type_changes_nothing(self, state: State) -> None:
        for key, value in (("text", "x"), ("none", None), ("true", True), ("most", 2**63 - 1)):
            state.write(key, value)
        before = list_entries(state)
        for key, given, reducer in (
            *(("text", 1, "append"), ("none", 1, "append"), ("text", {}, "merge"), ("text", 1, "sum")),
            *(("none", 1, "sum"), ("true", 1, "sum"), ("new", "1", "sum"), ("new", True, "sum"), ("new", [], "merge")),
            *(("most", 1, "sum"), ("text", 1, "multiply"), ("text", 1, None), ("text", 1, 3)),
        ):
            for lifetime in (None, "transient"):
                with pytest.raises(InvalidValue):
                    state.write(key, given, reducer=reducer, lifetime=lifetime)  # type: ignore[arg-type]
        assert list_entries(state) == before

    def test_threads_that_add_lose_nothing(self, store: StateStore, clock: FrozenClock) -> None:
        def add(number: int) -> None:
            mine = store(SCOPE)
            for step in range(ADDITIONS * self.scale):
                mine.write("sum", 1, reducer="sum")
                mine.write("transient", 1, reducer="sum", lifetime="transient")
                if step % 3 == 0:
                    mine.write("list", [number, step], reducer="append")

        run_in_threads(8, add)
        state = store(SCOPE)
        assert state.read("sum") == state.read("transient") == 8 * ADDITIONS * self.scale
        added = sorted(state.read("list"))
        assert added == [[number, step] for number in range(8) for step in range(0, ADDITIONS * self.scale, 3)]

    def test_of_many_that_expect_the_same_version_one_wins(self, store: StateStore) -> None:
        won: list[int] = []

        def claim(number: int) -> None:
            try:
                store(SCOPE).write("claimed", number, expected_version=0)
                won.append(number)
            except VersionConflict:
                pass

        run_in_threads(8, claim)
        assert won == [store(SCOPE).read("claimed")]

    def test_a_shared_place_is_seen_by_both_and_loses_nothing(self, open_at: OpenAt) -> None:
        one, elsewhere = open_at(), open_at("elsewhere")
        one(SCOPE).write("k", "seen")
        assert elsewhere(SCOPE).read("k") is None
        if "shared" not in one.capabilities:
            return
        two = open_at()
        assert two(SCOPE).read("k") == "seen"

        def add(number: int) -> None:
            for _ in range(ADDITIONS * self.scale):
                (one, two)[number % 2](SCOPE).write("sum", 1, reducer="sum")

        run_in_threads(4, add)
        assert one(SCOPE).read("sum") == two(SCOPE).read("sum") == 4 * ADDITIONS * self.scale

    def test_the_port_compares_versions(self, store: StateStore, clock: FrozenClock) -> None:
        port, entry = store_backend(store), StoredEntry(value=b'"v"', written_at=clock.now_ms())
        assert port.put(SCOPE, "k", entry, 1) is None
        assert port.get(SCOPE, "k") is None
        version = port.put(SCOPE, "k", entry, 0)
        assert version is not None
        assert port.put(SCOPE, "k", StoredEntry(value=b"2"), 0) is None
        assert port.put(SCOPE, "k", StoredEntry(value=b"2"), version + 1) is None
        assert port.drop(SCOPE, "k", version + 1) is None
        kept = port.get(SCOPE, "k")
        assert kept is not None
        assert (bytes(kept.value), kept.version) == (b'"v"', version)
        assert port.drop(SCOPE, "none") is False
        assert port.drop(SCOPE, "k", version) is True
        assert port.drop(SCOPE, "k", version) is None

    def test_the_port_keeps_every_part_of_an_entry(self, store: StateStore, clock: FrozenClock) -> None:
        port, now = store_backend(store), clock.now_ms()
        full = StoredEntry(
            value=b'{"a":1}',
            written_at=now,
            expires_at=now + 5,
            tier="cold",
            lifetime="durable",
            content_kind="my kind",
            salience=0.125,
            schema="prefs@2",
            applied=("effect",),
        )
        for key, entry in (("bare", StoredEntry(value=b"null", written_at=now)), ("full", full)):
            version = port.put(SCOPE, key, entry)
            ((listed, paged),) = port.page(SCOPE, EntryPageQuery(now=now, prefix=key, limit=5))
            for kept in (port.get(SCOPE, key), paged):
                assert kept is not None
                assert (listed, kept.version) == (key, version)
                for part in ("value", "written_at", "expires_at", *OPTION_NAMES, "applied"):
                    assert getattr(kept, part) == getattr(entry, part), part

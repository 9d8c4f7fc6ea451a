"""The contract of values: what is written is read, and what cannot be written leaves no trace."""

from __future__ import annotations

from dataclasses import dataclass, field
from decimal import Decimal
from random import Random
from typing import Any, Self

import msgspec
import pytest

from holdfast.client.state import State
from holdfast.core.value_types import register_type
from holdfast.errors import EntryNotFound, InvalidValue, TooLarge, ValueMismatch
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract_kit import SCOPE, OpenAt, StoreFixtures, any_value, same, seen


@dataclass
class Address:
    """A caller's dataclass."""

    street: str
    numbers: list[int] = field(default_factory=list)


class Profile(msgspec.Struct):
    """A caller's record."""

    name: str
    address: Address | None = None


class Model:
    """What looks like a Pydantic model: it can dump itself and be validated."""

    def __init__(self, total: int) -> None:
        self.total = total

    def model_dump(self, *, mode: str) -> dict[str, int]:
        """As data."""
        assert mode == "json"
        return {"total": self.total}

    @classmethod
    def model_validate(cls, value: Any) -> Self:
        """From data."""
        try:
            return cls(0 + value["total"])
        except (KeyError, TypeError):
            raise ValueError("total: not a number") from None


class Prefs(msgspec.Struct):
    """A type whose second version has another name for a field."""

    colour: str


def not_json() -> list[Any]:
    """Values that no store keeps."""
    deep: Any = "bottom"
    for _ in range(65):
        deep = [deep]
    itself: list[Any] = []
    itself += [itself, itself]
    alone: list[Any] = [
        *(float("nan"), float("inf"), -float("inf"), 2**63, -(2**63) - 1),
        *({1}, b"bytes", bytearray(b"x"), object(), Decimal(1), 1j, range(3), iter(()), Address, len),
        *("a\0b", "\ud800", {"a\0": 1}, {"\udfff": 1}, {1: 2}, {None: 1}, {("a",): 1}, deep, itself),
    ]
    return alone + [{"inside": [value]} for value in alone]


class ValueContract(StoreFixtures):
    """Writing and reading."""

    def test_every_json_value_is_read_as_it_was_written(self, state: State, random: Random) -> None:
        for number in range(25 * self.scale):
            value = any_value(random)
            state.write(f"key {number % 7}", value)
            assert same(state.read(f"key {number % 7}"), value), value
            assert same(state.require(f"key {number % 7}"), value)

    def test_sixty_four_levels_and_nearly_a_megabyte_fit(self, state: State) -> None:
        deep: Any = "bottom"
        for _ in range(64):
            deep = {"in": deep}
        wide = {"text": "word 世 " * 90_000, "list": list(range(1_000))}
        for value in (deep, wide):
            state.write("k", value)
            assert same(state.read("k"), value)

    def test_what_is_not_json_is_refused_and_changes_nothing(self, state: State) -> None:
        state.write("k", "before")
        before = seen(state)
        for value in not_json():
            for reducer in ("overwrite", "append"):
                with pytest.raises(InvalidValue):
                    state.write("k", value, reducer=reducer)
                with pytest.raises(InvalidValue):
                    state.write("new", value, reducer=reducer, lifetime="transient")
        assert seen(state) == before

    def test_a_value_over_the_limit_is_refused_and_changes_nothing(self, open_at: OpenAt) -> None:
        state = open_at("small", settings=Settings(event_bytes=4_000))(SCOPE)
        state.write("k", "x" * 3_000)
        before = seen(state)
        with pytest.raises(TooLarge):
            state.write("k", "x" * 4_000)
        state.write("list", ["x" * 3_000])
        with pytest.raises(TooLarge):
            state.write("list", "x" * 1_000, reducer="append")
        assert seen(state)[:1] == before
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
        address = Address("Main St", [1, 2])
        profile = Profile("Ann", address)
        state.write("dataclass", address)
        state.write("struct", profile)
        state.write("model", Model(3))
        state.write("nested", {"all": [address, Model(4)], "pair": (1, 2)})
        assert state.read("dataclass", as_=Address) == address
        assert state.require("struct", as_=Profile) == profile
        assert state.require("model", as_=Model).total == 3
        assert state.read("nested") == {"all": [{"street": "Main St", "numbers": [1, 2]}, {"total": 4}], "pair": [1, 2]}
        assert state.read("none", as_=Profile) is None
        assert state.read("struct") == {"name": "Ann", "address": {"street": "Main St", "numbers": [1, 2]}}

    def test_a_type_that_does_not_fit_is_named_with_its_field_and_what_to_do(self, state: State) -> None:
        state.write("k", {"street": 5})
        state.write("m", {"total": "much"})
        for key, kind, part in (("k", Address, "street"), ("k", Profile, "name"), ("m", Model, "total")):
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

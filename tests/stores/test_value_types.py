"""Values of the caller's own types: stored as what they consist of, read back as themselves, also years later."""

from __future__ import annotations

import datetime
import enum
import uuid
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from holdfast.client.state import State, open_store
from holdfast.core.values import register_type, upcast_value
from holdfast.errors import InvalidValue, ValueMismatch


class Colour(enum.Enum):
    RED = "red"


@dataclass
class Order:
    id: uuid.UUID
    at: datetime.datetime
    total: Decimal
    colour: Colour
    tags: set[str] = field(default_factory=set)
    pair: tuple[int, str] = (1, "a")
    raw: bytes = b""


ORDER = Order(
    id=uuid.UUID(int=7),
    at=datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    total=Decimal("1.10"),
    colour=Colour.RED,
    tags={"a"},
    raw=b"\0\xff",
)


class Line(pydantic.BaseModel):
    sku: str
    count: Annotated[int, pydantic.Field(gt=0)] = 1


class Cart(pydantic.BaseModel):
    lines: list[Line]
    at: datetime.datetime
    total: Decimal
    colour: Colour = Colour.RED
    pair: tuple[int, str] = (1, "a")


class StrictCart(Cart):
    model_config = pydantic.ConfigDict(strict=True)


@pydantic.dataclasses.dataclass
class Checked:
    count: int


@pytest.fixture
def state() -> State:
    return open_store("memory:")("user/42")


def test_dataclasses_with_dates_and_money_come_back_whole(state: State) -> None:
    state.write("order", ORDER)
    assert state.require("order", as_=Order) == ORDER
    state.write("orders", [ORDER, ORDER])
    assert state.require("orders", as_=list[Order]) == [ORDER, ORDER]


@pytest.mark.parametrize("kind", [Cart, StrictCart])
def test_pydantic_models_come_back_whole_also_strict_ones(state: State, kind: type[Cart]) -> None:
    cart = kind(lines=[Line(sku="x", count=2)], at=ORDER.at, total=Decimal("2.50"))
    state.write("cart", cart)
    assert state.require("cart", as_=kind) == cart
    assert state.read("cart")["lines"] == [{"sku": "x", "count": 2}]
    state.write("checked", Checked(count=3))
    assert state.require("checked", as_=Checked) == Checked(count=3)


def test_a_pydantic_model_that_does_not_fit_is_named_with_its_field(state: State) -> None:
    state.write("line", {"sku": "x", "count": 0})
    with pytest.raises(ValueMismatch) as refused:
        state.read("line", as_=Line)
    for part in ("'line' of user/42", "Line", "count", "register_type(Line"):
        assert part in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [(1, int), (1, float), ([1], list[int]), ({"a": 1}, dict[str, int]), ("a", Literal["a", "b"]), (None, int | None)],
)
def test_plain_types_can_be_asked_for(value: Any, kind: Any) -> None:
    assert upcast_value(value, kind, None, "k") == value


@pytest.mark.parametrize("kind", [int, list[str], Literal["b"], 5, "int", ["int"], {}, object()])
def test_what_does_not_fit_or_is_no_type_is_refused(kind: Any) -> None:
    with pytest.raises(InvalidValue):
        upcast_value("a", kind, None, "k")


def test_numbers_are_not_made_of_text() -> None:
    with pytest.raises(ValueMismatch):
        upcast_value("5", int, None, "k")


class First(msgspec.Struct):
    colour: str


class Second(msgspec.Struct):
    hue: str
    bright: bool = False


def test_what_the_error_says_to_do_helps(state: State) -> None:
    """Written before anything was registered; then the class changed."""
    state.write("prefs", First(colour="red"))
    with pytest.raises(ValueMismatch, match=r"register_type\(Second, version=2, upcasters=\{1: …\}\)"):
        state.read("prefs", as_=Second)
    register_type(Second, version=2, upcasters={1: lambda old: {"hue": old["colour"]}})
    assert state.require("prefs", as_=Second) == Second(hue="red")
    state.write("plain", {"hue": "blue"})
    assert state.require("plain", as_=Second) == Second(hue="blue")
    state.write("neither", {"shade": "grey"})
    with pytest.raises(ValueMismatch, match="from version 1 failed: KeyError"):
        state.read("neither", as_=Second)


def test_an_upcaster_that_fails_or_gives_nonsense_is_named() -> None:
    def fails(old: Any) -> Any:
        raise RuntimeError("a mistake")

    for step, part in ((fails, "RuntimeError: a mistake"), (lambda old: 5, "hue|object"), (lambda old: old, "hue")):
        kind = msgspec.defstruct("Prefs", [("hue", str)])
        register_type(kind, "failing-prefs", version=2, upcasters={1: step})
        with pytest.raises(ValueMismatch, match=part):
            upcast_value({"colour": "red"}, kind, "failing-prefs@1", "k")


def test_versions_without_a_step_between_them_are_taken_as_they_are() -> None:
    kind = msgspec.defstruct("Prefs", [("hue", str), ("bright", bool, False)])
    register_type(kind, "gap-prefs", version=4, upcasters={1: lambda old: {"hue": old["colour"]}})
    assert upcast_value({"hue": "red"}, kind, "gap-prefs@3", "k") == kind("red")
    assert upcast_value({"colour": "red"}, kind, "gap-prefs@1", "k") == kind("red")
    assert upcast_value({"hue": "red"}, kind, "other@1", "k") == kind("red")
    with pytest.raises(ValueMismatch, match="newer program"):
        upcast_value({"hue": "red"}, kind, "gap-prefs@5", "k")


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        (int, {}),
        (First(colour="red"), {}),
        (First, {"name": ""}),
        (First, {"name": "a@b"}),
        (First, {"version": 0}),
        (First, {"version": True}),
        (First, {"version": 10**5_000}),
        (First, {"version": "2"}),
        (First, {"version": 2, "upcasters": {2: len}}),
        (First, {"version": 2, "upcasters": {0: len}}),
        (First, {"version": 2, "upcasters": {"1": len}}),
        (First, {"version": 2, "upcasters": {1: "len"}}),
    ],
)
def test_what_cannot_be_registered_is_refused(kind: Any, given: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        register_type(kind, **given)


def test_objects_that_hold_what_no_store_keeps_are_refused(state: State) -> None:
    class Careless(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(arbitrary_types_allowed=True, ser_json_inf_nan="constants")
        it: Any

    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    for value in (
        Careless(it=float("nan")),
        Careless(it=object()),
        Careless(it="a\0b"),
        Order(**{**vars(ORDER), "total": object()}),
        Order(**{**vars(ORDER), "raw": "\ud800"}),
        First(colour=deep),
        Careless(it=deep),
        deep,
    ):
        with pytest.raises(InvalidValue):
            state.write("k", value)
    assert state.list() == []

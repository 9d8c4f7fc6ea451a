"""What a model is told of a tool's arguments, and what is made of those that it writes."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import json
import uuid
from typing import Annotated, Any, Generic, Literal, Optional, TypeVar

import jsonschema
import msgspec
import pydantic
import pytest

from holdfast import CallTool, Holdfast
from holdfast.core.wire.tools import describe_misfit
from holdfast.errors import ArgumentsUnfit, InvalidValue
from holdfast.flow.turns import tool_calls
from holdfast.records.messages import ToolDef
from holdfast.runtime.tools import arguments as tool_arguments
from holdfast.runtime.tools import schema as tool_schema
from holdfast.runtime.tools import signature
from holdfast.runtime.tools.result import failure_text
from holdfast.runtime.tools.schema import build_schema
from holdfast.runtime.tools.tool import AnyTool, tool
from tests.scale import seeded, volume
from tests.turns import tool_types
from tests.turns.loops import SESSION, asks, leave_at, replies, take

T = TypeVar("T")


def accepts(schema: dict[str, Any], value: Any) -> bool:
    return bool(jsonschema.Draft202012Validator(schema).is_valid(value))


def reads(made: AnyTool, given: Any) -> dict[str, Any] | None:
    try:
        return made.read(json.dumps(given))
    except ArgumentsUnfit:
        return None


def written(value: Any) -> Any:
    """Values as the JSON that says them."""
    return json.loads(msgspec.json.encode(value, enc_hook=lambda model: model.model_dump(mode="json")))


def check_generated(trials: int, name: str) -> None:
    """Schema and reading agree: what one takes the other reads, and more is read only of what is written loosely."""
    rng = seeded(name)
    loosely = refused = 0
    for _ in range(trials):
        function, arguments = tool_types.function(rng)
        made = tool(function)
        jsonschema.Draft202012Validator.check_schema(made.parameters)
        for attempt in range(6):
            given = arguments(rng)
            for _ in range(attempt // 2):
                given = tool_types.damaged(rng, given)
            fits, found = accepts(made.parameters, given), reads(made, given)
            shown = f"{json.dumps(given)} by {json.dumps(made.parameters)}"
            if found is None:
                refused += 1
                assert not fits, f"the schema takes what cannot be read: {shown}"
                continue
            loosely += not fits
            assert fits or _alike(given, written(found)), f"read, though the schema refuses it: {shown}"
    assert refused, "nothing was wrong enough to be refused"
    assert loosely, "nothing was written loosely"


def _alike(given: Any, read: Any) -> bool:
    """Whether it is the same data but for how scalars are written, nulls for what is left out, and repeated members."""
    if isinstance(given, dict) and isinstance(read, dict):
        return all(_alike(one, read[name]) if name in read else one is None for name, one in given.items())
    if isinstance(given, list) and isinstance(read, list):
        loose = [one for one in given if not any(_alike(one, other) for other in read)]
        return not loose and len(read) <= len(given)
    if given is None:
        return True
    return not isinstance(given, dict | list) and not isinstance(read, dict | list)


def test_a_schema_and_what_is_read_by_it_agree_on_generated_functions() -> None:
    check_generated(volume(250, 5_000), "agreeing")


@pytest.mark.parametrize(
    "bug", ["unknown names are dropped", "objects take anything", "required is forgotten", "strings pass"]
)
def test_a_disagreement_is_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "unknown names are dropped":
        real = tool_arguments.interpret_value

        def deaf(schema: Any, value: Any, where: str, defs: Any, problems: list[str]) -> Any:
            return real(schema, value, where, defs, [])

        monkeypatch.setattr(tool_arguments, "interpret_value", deaf)
        monkeypatch.setattr(tool_arguments, "interpret_value", deaf)
    elif bug == "objects take anything":
        open_up = tool_schema.object_schema
        for where in (tool_schema, signature):
            monkeypatch.setattr(
                where, "object_schema", lambda *given: {**open_up(*given), "additionalProperties": True}
            )
    elif bug == "required is forgotten":
        shut = tool_schema.object_schema
        for where in (tool_schema, signature):
            monkeypatch.setattr(where, "object_schema", lambda properties, _required: shut(properties, []))
    else:
        monkeypatch.setitem(tool_schema._PLAIN, tool_schema.types.BoolType, {})  # type: ignore[arg-type]
    with pytest.raises((AssertionError, KeyError)):
        check_generated(volume(250, 250), bug)


# what a model is told


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Leaf:
    """A leaf.

    Attributes:
        weight: In grams.
    """

    weight: float
    children: list[Leaf] = dataclasses.field(default_factory=list)


class Address(pydantic.BaseModel):
    """Where somebody lives."""

    street: str
    zip: int = 5
    neighbours: list[Address] = []


class Cat(msgspec.Struct, tag="cat"):
    lives: int


class Dog(msgspec.Struct, tag="dog"):
    tricks: list[str]


@dataclasses.dataclass
class Box(Generic[T]):
    inside: T


@tool
def everything(
    text: str,
    colour: Colour,
    leaf: Leaf,
    address: Address,
    pet: Cat | Dog,
    boxes: Box[Box[int]],
    number: Annotated[int, msgspec.Meta(ge=1, le=9, description="A small one.")] = 3,
    when: datetime.datetime | None = None,
    day: Optional[datetime.date] = None,  # noqa: UP045
    id: uuid.UUID | None = None,
    price: decimal.Decimal = decimal.Decimal("1.50"),
    pair: tuple[int, str] = (1, "a"),
    point: tuple[float, float] = (0.0, 0.0),
    tags: frozenset[str] = frozenset(),
    by_number: dict[int, bool] | None = None,
    mode: Literal["fast", "slow"] = "fast",
    anything: Any = None,
) -> str:
    """Take one of each.

    Args:
        text: What to say.
        number: Never shown, because the hint says it better.
    """
    return text


def test_every_type_that_json_can_hold_has_its_schema() -> None:
    shown = everything.parameters["properties"]
    assert shown["text"] == {"type": "string", "description": "What to say."}
    assert shown["colour"] == {"type": "string", "enum": ["red", "blue"]}
    assert shown["number"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "A small one.",
        "default": 3,
    }
    assert shown["when"]["anyOf"][0] == {"type": "string", "format": "date-time"}
    assert shown["day"]["anyOf"][0] == {"type": "string", "format": "date"}
    assert shown["id"]["anyOf"][0] == {"type": "string", "format": "uuid"}
    assert shown["price"]["default"] == "1.50"
    assert shown["point"]["items"] == {"type": "number"}
    assert shown["pair"]["prefixItems"] == [{"type": "integer"}, {"type": "string"}]
    assert shown["tags"] == {"type": "array", "items": {"type": "string"}, "uniqueItems": True, "default": []}
    assert shown["mode"] == {"type": "string", "enum": ["fast", "slow"], "default": "fast"}
    assert shown["anything"] == {"default": None}
    assert everything.parameters["required"] == ["text", "colour", "leaf", "address", "pet", "boxes"]


def test_only_types_that_hold_themselves_are_named_and_every_reference_is_at_the_top() -> None:
    schema = everything.parameters
    jsonschema.Draft202012Validator.check_schema(schema)
    assert set(schema["$defs"]) == {"Leaf", "Address"}
    assert json.dumps(schema).count("$defs") == 1 + json.dumps(schema).count("#/$defs/")
    assert schema["$defs"]["Leaf"]["description"] == "A leaf."
    assert schema["$defs"]["Leaf"]["properties"]["weight"]["description"] == "In grams."
    assert '"title"' not in json.dumps(schema)
    for one in (schema, *schema["$defs"].values(), *schema["properties"]["pet"]["anyOf"]):
        assert one["additionalProperties"] is False


def test_a_type_that_holds_itself_has_an_object_at_the_top() -> None:
    found = build_schema(Leaf)
    assert found["type"] == "object"
    assert accepts(found, {"weight": 1, "children": [{"weight": 2}]})
    assert not accepts(found, {"weight": 1, "children": [{"weight": "x"}]})


def test_what_is_named_in_a_part_is_named_at_the_top_of_the_whole() -> None:
    whole = tool_schema.object_schema({"value": build_schema(list[Leaf])}, ["value"])
    assert set(whole["$defs"]) == {"Leaf"}
    assert accepts(whole, {"value": [{"weight": 1, "children": [{"weight": 2}]}]})
    assert not accepts(whole, {"value": [{"weight": 1, "children": [{}]}]})


def test_what_is_written_for_every_type_is_read_as_that_type() -> None:
    given = {
        "text": "hi",
        "colour": "blue",
        "leaf": {"weight": 2, "children": [{"weight": "3"}]},
        "address": {"street": "Elm", "neighbours": [{"street": "Oak", "zip": "7"}]},
        "pet": {"type": "dog", "tricks": ["sit"]},
        "boxes": {"inside": {"inside": 4}},
        "when": "2026-11-15T10:00:00Z",
        "day": "2026-11-15",
        "id": "12345678-1234-5678-1234-567812345678",
        "price": "19.990",
        "pair": [5, "b"],
        "tags": ["x", "x"],
        "by_number": {"3": True},
    }
    found = everything.read(json.dumps(given))
    assert found["colour"] is Colour.BLUE
    assert found["leaf"] == Leaf(2.0, [Leaf(3.0)])
    assert found["address"] == Address(street="Elm", neighbours=[Address(street="Oak", zip=7)])
    assert found["pet"] == Dog(tricks=["sit"])
    assert found["boxes"] == Box(Box(4))
    assert found["when"] == datetime.datetime(2026, 11, 15, 10, tzinfo=datetime.UTC)
    assert found["id"] == uuid.UUID(given["id"])  # type: ignore[arg-type]
    assert found["price"] == decimal.Decimal("19.990")
    assert found["pair"] == (5, "b")
    assert found["tags"] == frozenset({"x"})
    assert found["by_number"] == {3: True}
    assert "number" not in found, "what is left out is the function's own default"


# what models write


@tool
def pay(
    order: int, amount: float, note: str | None = None, urgent: bool = False, lines: list[Leaf] | None = None
) -> None:
    """Pay."""


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ('{"order": "17", "amount": "2.5"}', {"order": 17, "amount": 2.5}),
        ('{"order": 17.0, "amount": 2}', {"order": 17, "amount": 2.0}),
        ('{"order": 1, "amount": 2, "urgent": "true"}', {"order": 1, "amount": 2.0, "urgent": True}),
        ('{"order": 1, "amount": 2, "urgent": null}', {"order": 1, "amount": 2.0}),
        ('{"order": 1, "amount": 2, "note": null}', {"order": 1, "amount": 2.0, "note": None}),
        ('{"order": 1, "amount": 2, "note": "null"}', {"order": 1, "amount": 2.0, "note": "null"}),
        ('{"order": 1, "amount": 2, "note": "5"}', {"order": 1, "amount": 2.0, "note": "5"}),
    ],
)
def test_scalars_are_read_as_loosely_as_models_write_them(given: str, read: dict[str, Any]) -> None:
    assert pay.read(given) == read


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ('{"order": "many", "amount": 1}', 'order: expected a whole number, got text, in "many"'),
        ('{"order": 1.5, "amount": 1}', "order: expected a whole number, got a number, in 1.5"),
        ('{"amount": 1}', "order is missing"),
        ('{"order": 1, "amount": 1, "amuont": 2}', "'amuont' is not known"),
        ('{"order": 1, "amount": "NaN"}', "amount: nan is not a number that can be worked with"),
        ('{"order": 1, "amount": "-inf"}', "amount: -inf is not a number that can be worked with"),
        ('{"order": 1, "amount": [2]}', "amount: expected a number, got a list, in [2]"),
        ('{"order": 1, "amount": 1, "lines": [{"weight": 1}, {"weight": "x"}]}', "lines[1].weight: expected a number"),
        ('{"order": 1, "amount": 1, "lines": [{"weight": 1, "wieght": 2}]}', "'lines[0].wieght' is not known"),
        ('{"order": 1, "amount": 1, "lines": [{}]}', "lines[0]: object missing required field `weight`"),
        ('{"order": 17, "amou', "not JSON (input data was truncated)"),
        ("order=17", "not JSON"),
        ("[17]", "not an object"),
        ('"{}"', "not an object"),
        ("\ud800", "not JSON"),
        ('{"order": \0', "not JSON"),
        ('{"order": 1e999, "amount": 1}', "not JSON"),
        ("[" * 100_000, "nested too deeply"),
        (
            '{"order": 1, "amount": 1, "lines": ' + '[{"weight": 1, "children": ' * 400 + "1" + "}]" * 400 + "}",
            "nested too",
        ),
    ],
)
def test_arguments_that_do_not_fit_are_told_in_words_to_act_on(given: str, said: str) -> None:
    with pytest.raises(ArgumentsUnfit) as unfit:
        pay.read(given)
    text = failure_text(unfit.value)
    assert said in text
    assert text.startswith("The arguments")
    assert "Correct them and call again" in text or "JSON object" in text
    assert len(text) < 1_500
    assert "\0" not in str(unfit.value)
    assert text.encode()
    assert isinstance(unfit.value, InvalidValue)


def test_what_does_not_fit_is_told_with_what_would() -> None:
    with pytest.raises(ArgumentsUnfit) as unfit:
        pay.read("{}")
    wanted = "{order: integer; amount: number; note?: string or null; urgent?: boolean; lines?: array or null}"
    assert wanted in str(unfit.value)


@pytest.mark.parametrize("nothing", ["", "  ", "null", "{}"])
def test_no_arguments_may_be_written_in_any_way(nothing: str) -> None:
    @tool
    def ping() -> str:
        return "pong"

    assert ping.read(nothing) == {}
    assert ping.parameters == {"type": "object", "properties": {}, "required": [], "additionalProperties": False}


def test_a_model_that_says_more_than_its_fields_is_refused_as_the_schema_says() -> None:
    @tool
    def move(address: Address) -> None:
        """Move."""

    with pytest.raises(ArgumentsUnfit, match=r"'address\.city' is not known"):
        move.read('{"address": {"street": "Elm", "city": "Ur"}}')
    with pytest.raises(ArgumentsUnfit, match="address: zip Input should be a valid integer"):
        move.read('{"address": {"street": "Elm", "zip": "x"}}')


# strict


def test_strict_has_everything_required_and_reads_null_as_left_out() -> None:
    @tool(strict=True)
    def book(seat: str, meals: int = 2, leaf: Leaf | None = None) -> None:
        """Book."""

    assert book.definition.strict is True
    assert book.parameters["required"] == ["seat", "meals", "leaf"]
    assert book.parameters["properties"]["meals"] == {"anyOf": [{"type": "integer"}, {"type": "null"}]}
    assert book.parameters["$defs"]["Leaf"]["required"] == ["weight", "children"]
    assert "default" not in json.dumps(book.parameters)
    given = {"seat": "1A", "meals": None, "leaf": {"weight": 1, "children": None}}
    assert accepts(book.parameters, given)
    assert book.read(json.dumps(given)) == {"seat": "1A", "leaf": Leaf(1.0)}


@pytest.mark.parametrize("kind", [dict[str, int], Any, tuple[int, str], list[dict[str, str]]])
def test_strict_refuses_what_it_cannot_hold_a_model_to(kind: Any) -> None:
    def loose(given: Any) -> None:
        """Take it."""

    loose.__annotations__["given"] = kind
    with pytest.raises(InvalidValue, match=r"strict cannot hold.*leave strict out"):
        tool(strict=True)(loose)


PAY = ToolDef(
    name="pay", parameters={"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]}
)


UNFIT = [("null", "order is missing"), ("[]", "not an object"), ("{}", "order is missing")]


# words


@pytest.mark.parametrize(("arguments", "wrong"), UNFIT)
def test_a_question_about_arguments_that_do_not_fit_is_one_sentence(hf: Holdfast, arguments: str, wrong: str) -> None:
    hf.session(SESSION, tools=[PAY])
    leave_at(hf, "Pay.", CallTool, replies(asks(("pay", arguments))), key="k", if_interrupted="retry")
    ask = take(hf, "Pay.", replies(), lambda step: pytest.fail("it ran"), key="k", if_interrupted="retry")
    assert " may have run, and the arguments " in ask.question
    assert wrong in ask.question


def test_no_arguments_at_all_fit_what_needs_none() -> None:
    assert describe_misfit("look", {"type": "object", "properties": {"at": {"type": "integer"}}}, None) is None
    assert describe_misfit("pay", PAY.parameters, None) == describe_misfit("pay", PAY.parameters, {})


def test_a_capital_in_mid_sentence_is_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "lower_first_letter", lambda sentence: sentence)
    with pytest.raises(AssertionError):
        test_a_question_about_arguments_that_do_not_fit_is_one_sentence(hf, "[]", "not an object")

"""What a schema alone says about arguments: never more than the tool itself would say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.wire import tools
from holdfast.core.wire.tools import default_arguments, describe_misfit, describe_parameters
from holdfast.errors import ArgumentsUnfit
from holdfast.runtime.tools.tool import tool
from tests.scale import volume


@dataclass
class Address:
    """Where to."""

    street: str
    number: int = 1


@tool
def everything(
    order: int,
    amount: float = 500.0,
    name: str = "x",
    urgent: bool = False,
    why: Literal["late", "broken"] = "late",
    tags: list[str] | None = None,
    to: Address | None = None,
) -> str:
    """Do everything."""
    return ""


@tool(name="everything", strict=True)
def strictly(order: int, amount: float = 500.0, tags: list[str] | None = None, to: Address | None = None) -> str:
    """Do everything, strictly."""
    return ""


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-9, 9) | st.sampled_from(["5", "true", "late", "x", ""]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["street", "number", "odd"]), inner, max_size=2)
    ),
    max_leaves=4,
)
USUAL: dict[str, list[Any]] = {
    "amount": [5, "5", 5.5, None],
    "name": ["x", None],
    "urgent": [True, "true", 1, None],
    "why": ["late", "broken"],
    "tags": [[], ["a"], None],
    "to": [{"street": "a"}, {"street": "a", "number": "4"}, None],
}
ARGS = st.fixed_dictionaries(
    {"order": st.sampled_from([5, "5", 5.0])},
    optional={name: st.sampled_from(usual) | PLAIN for name, usual in USUAL.items()},
)


@settings(max_examples=volume(150, 20_000), deadline=None)
@given(ARGS, st.booleans())
def test_what_the_tool_takes_is_never_said_not_to_fit(args: dict[str, Any], strict: bool) -> None:
    made: Any = strictly if strict else everything
    try:
        made.read(msgspec.json.encode(args).decode())
    except ArgumentsUnfit:
        return
    assert describe_misfit(made.name, made.parameters, args) is None


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({}, "order is missing"),
        ({"order": "lots"}, "order: expected a whole number"),
        ({"order": 1.5}, "order: expected a whole number"),
        ({"order": True}, "order: expected a whole number"),
        ({"order": None}, "order: expected a whole number"),
        ({"order": 1, "odd": 2}, "'odd' is not known"),
        ({"order": 1, "name": 5}, "name: expected text"),
        ({"order": 1, "urgent": "perhaps"}, "urgent: expected true or false"),
        ({"order": 1, "why": "never"}, 'why: expected "broken" or "late"'),
        ({"order": 1, "tags": ["a", 5]}, "tags"),
        ({"order": 1, "to": {"number": 4}}, "to"),
        ("order", "not an object"),
    ],
)
def test_what_can_never_fit_is_said_with_why(args: Any, why: str) -> None:
    found = describe_misfit("everything", everything.parameters, args)
    assert found is not None
    assert why in found
    if isinstance(args, dict):
        with pytest.raises(ArgumentsUnfit):
            everything.read(msgspec.json.encode(args).decode())


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"type": ["object", "odd"], "properties": "odd"},
        {"properties": {"order": {"$ref": "#/$defs/Gone"}}},
        {"properties": {"order": {"anyOf": []}}},
        {"properties": {"order": True}},
    ],
)
def test_a_schema_that_says_nothing_known_takes_everything(schema: Any) -> None:
    assert describe_misfit("x", schema, {"order": ["anything"]}) is None


def test_a_schema_that_goes_round_ends() -> None:
    round_ = {"$defs": {"Node": {"anyOf": [{"$ref": "#/$defs/Node"}]}}, "properties": {"a": {"$ref": "#/$defs/Node"}}}
    assert describe_misfit("x", round_, {"a": 1}) is None


def test_what_nobody_said_is_what_the_schema_says() -> None:
    schema = {"properties": {"a": {"default": 5}, "b": {"default": None}, "c": {}}}
    assert default_arguments(schema, {"c": 1}) == {"a": 5, "b": None}
    assert default_arguments(schema, {"a": None, "b": 2}) == {"a": 5}
    assert default_arguments({"properties": "odd"}, {}) == {}


def test_what_a_tool_takes_fits_on_a_line() -> None:
    assert describe_parameters(strictly.parameters) == (
        "{order: integer; amount: number or null; tags: array or null; to: object or null}"
    )
    assert len(describe_parameters({"properties": {f"name{at}": {"type": "string"} for at in range(99)}})) < 610


def test_a_reading_that_knows_no_leniency_would_refuse_what_the_tool_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    strict = {**tools._TYPE_CHECKS, "number": lambda value: isinstance(value, list)}
    monkeypatch.setattr(tools, "_TYPE_CHECKS", strict)
    with pytest.raises(AssertionError):
        test_what_the_tool_takes_is_never_said_not_to_fit()

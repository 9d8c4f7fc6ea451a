"""Tool definitions are one thing in every form; what a provider hosts itself is told to that provider only."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast.core.wire.formats import FORMATS
from holdfast.core.wire.tools import read_tool_defs, render_tools
from holdfast.errors import HoldfastError, InvalidValue
from holdfast.records.messages import ToolDef
from tests.scale import volume
from tests.sessions.garbage import JSON
from tests.sessions.generated import INVENTED

SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]}
FIND = ToolDef(name="find", description="Finds.", parameters=SCHEMA, strict=True)
FORMS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "find", "description": "Finds.", "parameters": SCHEMA, "strict": True}},
    {"type": "function", "name": "find", "description": "Finds.", "parameters": SCHEMA, "strict": True},
    {"name": "find", "description": "Finds.", "input_schema": SCHEMA, "strict": True},
]


@pytest.mark.parametrize("form", FORMS)
def test_a_function_is_the_same_in_every_form(form: dict[str, Any]) -> None:
    assert read_tool_defs([form]) == (FIND,)
    assert read_tool_defs([FIND]) == (FIND,)


def test_each_provider_gets_its_own_form_back() -> None:
    assert [render_tools([FIND], form) for form in FORMATS] == [[form] for form in FORMS]


def test_a_tool_that_takes_nothing_and_says_nothing_is_complete() -> None:
    (bare,) = read_tool_defs([{"type": "function", "function": {"name": "now"}}])
    empty = {"type": "object", "properties": {}}
    assert render_tools([bare], "openai") == [{"type": "function", "function": {"name": "now", "parameters": empty}}]
    assert render_tools([bare], "responses") == [
        {"type": "function", "name": "now", "parameters": empty, "strict": False}
    ]
    assert render_tools([bare], "anthropic") == [{"name": "now", "input_schema": empty}]


def test_what_a_provider_hosts_is_told_to_it_alone() -> None:
    search = {"type": "web_search", "search_context_size": "low"}
    dated = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    custom = {"type": "custom", "name": "shell", "format": {"type": "text"}}
    tools = read_tool_defs([search, dated, custom])
    assert [tool.raw for tool in tools] == [search, dated, custom]
    assert render_tools(tools, "responses") == [search, custom]
    assert render_tools(tools, "anthropic") == [dated]
    assert render_tools(tools, "openai") == [
        {"type": "custom", "custom": {"name": "shell", "format": {"type": "text"}}}
    ]
    assert render_tools(read_tool_defs(render_tools(tools, "openai")), "responses") == [custom]


def test_none_and_nothing_are_no_tools() -> None:
    assert read_tool_defs(None) == read_tool_defs([]) == ()


@pytest.mark.parametrize(
    "given",
    [
        "find",
        3,
        {"name": "find", "input_schema": SCHEMA},
        [print],
        ["find"],
        [None],
        [{"name": "find"}],
        [{"type": "function"}],
        [{"type": "function", "name": ""}],
        [{"type": "function", "name": "x" * 200}],
        [{"type": "function", "name": "f", "parameters": "object"}],
        [{"type": "function", "name": "f", "description": 3}],
        [{"type": "function", "name": "f", "strict": "yes"}],
        [{"type": "function", "name": "f\0"}],
        [ToolDef(name="f", parameters={"x": object()})],
        [FIND, FIND],
    ],
)
def test_what_is_no_list_of_tools_is_refused_with_advice(given: Any) -> None:
    with pytest.raises(InvalidValue) as error:
        read_tool_defs(given)
    assert str(error.value).rstrip().endswith(".")


@pytest.mark.parametrize("name", [*INVENTED, "server.tool", "", " ", "a" * 128])
def test_no_tool_can_be_defined_under_a_name_that_providers_refuse(name: str) -> None:
    custom = {"type": "custom", "name": name, "format": {"type": "text"}}
    function = {"name": name, "parameters": SCHEMA}
    written = ({"type": "function", "function": function}, {"name": name, "input_schema": SCHEMA}, custom)
    for form in (ToolDef(name=name), *(written if name else written[:2])):
        with pytest.raises(InvalidValue, match="Use 1 to 64 letters"):
            read_tool_defs([form])
    with holdfast.open("memory:") as hf:
        with pytest.raises(InvalidValue, match="Use 1 to 64 letters"):
            hf.session("s", tools=[ToolDef(name=name)])
        with pytest.raises(InvalidValue, match="Use 1 to 64 letters"):
            hf.session("t").packs.set_brief(tools=[ToolDef(name=name)])
    with pytest.raises(InvalidValue, match="Use 1 to 64 letters"):
        holdfast.tool(name=name)(lambda: None)


def test_a_tool_that_a_provider_hosts_has_the_name_that_it_likes() -> None:
    (hosted,) = read_tool_defs([{"type": "web_search", "name": "web.search"}])
    assert render_tools([hosted], "responses") == [{"type": "web_search", "name": "web.search"}]


TOOL_LIKE = st.fixed_dictionaries({"type": st.just("function"), "name": JSON, "parameters": JSON})


@given(st.lists(JSON | TOOL_LIKE, max_size=3))
@settings(max_examples=volume(60, 5_000), deadline=None)
def test_reading_anything_gives_tools_or_an_error_of_holdfasts(given: list[Any]) -> None:
    try:
        tools = read_tool_defs(given)
    except HoldfastError:
        return
    assert sum(len(render_tools(tools, form)) for form in FORMATS) >= len(tools)

"""Import and export by the name of a format, with the system prompt and the tools beside the messages."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.wire.formats import FORMATS, read_conversation, render_conversation
from holdfast.errors import InvalidValue
from tests.scale import seeded, volume
from tests.sessions.garbage import JSON
from tests.sessions.wire_forms import anthropic_form, openai_form, responses_form

FORMS = {"openai": openai_form, "responses": responses_form, "anthropic": anthropic_form}
TOOLS = [{"name": "find", "description": "Finds.", "input_schema": {"type": "object", "properties": {}}}]


@pytest.mark.parametrize("format", FORMATS)
def test_a_request_comes_back_whole_and_so_does_a_list(format: str) -> None:
    rng = seeded(format)
    for _ in range(volume(20, 1_000)):
        items = FORMS[format](rng)
        key = "input" if format == "responses" else "messages"
        request: dict[str, Any] = {key: items}
        if format != "openai":
            request["instructions" if format == "responses" else "system"] = "Be brief."
        reading = read_conversation(format, {**request, "model": "m", "tools": TOOLS})
        assert (reading.repairs, reading.model, reading.tools[0].name) == ([], "m", "find")
        written = render_conversation(format, reading.messages, system=reading.system, tools=reading.tools)
        assert {name: written[name] for name in request} == request
        assert len(written["tools"]) == 1
        assert render_conversation(format, read_conversation(format, items).messages)[key] == items


def test_tools_that_cannot_be_read_are_left_out_and_reported() -> None:
    reading = read_conversation("openai", {"messages": [], "tools": [*TOOLS, 3, *TOOLS]})
    assert [tool.name for tool in reading.tools] == ["find"]
    assert [repair.problem for repair in reading.repairs] == ["malformed", "malformed"]


def test_a_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InvalidValue, match="openai, responses, anthropic"):
        read_conversation("yaml", [])
    with pytest.raises(InvalidValue, match="yaml"):
        render_conversation("yaml", [])


@given(st.sampled_from(FORMATS), JSON | st.fixed_dictionaries({"messages": JSON, "input": JSON, "tools": JSON}))
@settings(max_examples=volume(60, 5_000), deadline=None)
def test_no_data_at_all_makes_importing_raise(format: str, given: Any) -> None:
    reading = read_conversation(format, given)
    render_conversation(format, reading.messages, system=reading.system, tools=reading.tools)

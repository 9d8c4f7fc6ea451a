"""Answers that must fit a schema: the same text from every provider, whether it fits or not."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.model.providers import close_schema, is_strict, strip_limits
from tests.model_server import model_server
from tests.turns.model_kit import KINDS, SCHEMA, Asked, Shown


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["stream", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.mark.parametrize("name", ["claude-3-5-haiku-latest", "claude-sonnet-4-5", "gpt-5", "gpt-4o"])
def test_an_answer_that_must_fit_a_schema_is_the_text_of_the_message(name: str, stream: bool) -> None:
    told: Any = '{"sum": 3}'
    if name.startswith("claude-3"):
        told = [{"name": "answer", "arguments": {"sum": 3}}]
    kind = "anthropic" if name.startswith("claude") else "responses" if name == "gpt-5" else "openai"
    with model_server([told]) as server:
        asked = Asked(kind, server, name=name, stream=stream)
        reply = asked.reply(output=SCHEMA)
    assert reply.message.text == asked.said == '{"sum": 3}' or (not stream and reply.message.text == '{"sum":3}')
    assert not reply.message.tool_calls
    assert reply.finish is None
    request, wanted = server.requests[0], {**SCHEMA, "additionalProperties": False}
    if kind == "openai":
        form = request["response_format"]["json_schema"]
        assert (form["schema"], form["strict"]) == (wanted, True)
    elif kind == "responses":
        form = request["text"]["format"]
        assert (form["type"], form["schema"], form["strict"]) == ("json_schema", wanted, True)
    elif name.startswith("claude-3"):
        assert request["tool_choice"] == {"type": "tool", "name": "answer"}
        assert request["tools"][0]["input_schema"] == wanted
    else:
        assert request["output_config"]["format"] == {"type": "json_schema", "schema": wanted}


def test_a_tool_for_the_answer_stands_beside_the_others() -> None:
    class Tooled(Shown):
        def to_anthropic(self) -> dict[str, Any]:
            tools = [{"name": "answer", "input_schema": {"type": "object"}}]
            return {**super().to_anthropic(), "tools": tools}

    both = [{"name": "answer", "arguments": {"to": 1}}, {"name": "answer_", "arguments": {"sum": 3}}]
    with model_server([both, both[:1]]) as server:
        asked = Asked("anthropic", server, structured="tool")
        reply = asked.reply(output=SCHEMA, pack=Tooled())
        again = asked.reply(output=SCHEMA, pack=Tooled())
    assert server.requests[0]["tool_choice"] == {"type": "any"}
    assert [call.name for call in reply.message.tool_calls] == ["answer"]
    assert reply.message.text == '{"sum": 3}'
    assert [call.name for call in again.message.tool_calls] == ["answer"]


@pytest.mark.parametrize("told", ["three", '{"sum": "3"}', "[3]", "{}"])
def test_an_answer_that_does_not_fit_comes_as_it_is(kind: str, stream: bool, told: str) -> None:
    with model_server([told]) as server:
        asked = Asked(kind, server, stream=stream)
        reply = asked.reply(output=SCHEMA)
    assert (reply.message.text, reply.finish, reply.attempts, reply.usage.spent) == (told, None, 1, 25)
    assert (asked.said, len(server.requests)) == (told, 1), "whoever asked can say what is wrong with it"


def test_schemas_are_put_as_providers_want_them() -> None:
    root = {"$ref": "#/$defs/Sum", "$defs": {"Sum": {**SCHEMA, "properties": {"sum": {"$ref": "#/$defs/N"}}}}}
    root["$defs"]["N"] = {"type": "integer"}
    made = close_schema(root)
    assert (made["type"], made["additionalProperties"]) == ("object", False)
    assert "additionalProperties" not in root["$defs"]["Sum"], "the caller's schema is left alone"
    assert is_strict(made)
    assert not is_strict(close_schema({"type": "object", "properties": {"a": {"type": "string"}}}))
    assert not is_strict({"type": "array"})
    limited = {"type": "integer", "minimum": 1, "description": "How many"}
    within = strip_limits({**SCHEMA, "properties": {"minimum": limited}})["properties"]["minimum"]
    assert within == {"type": "integer", "description": "How many (minimum: 1)"}

"""Own loops with the real SDKs against a model on loopback: what is sent is valid, what comes back is stored."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import anthropic
import openai
import pytest

import holdfast
from tests.model_server import ModelServer, model_server

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALLS = [{"name": "weather", "arguments": {"city": city}} for city in ("Lyon", "Paris")]


CLIENTS: list[openai.OpenAI | anthropic.Anthropic] = []


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with model_server([CALLS, "Sun in both."]) as server:
        yield server
        assert server.problems == []


@pytest.fixture(autouse=True)
def _close_clients() -> Iterator[None]:
    yield
    while CLIENTS:
        CLIENTS.pop().close()


def openai_client(model: ModelServer) -> openai.OpenAI:
    """A client that is closed after the test."""
    CLIENTS.append(client := openai.OpenAI(base_url=model.url, api_key="none"))
    return client


def anthropic_client(model: ModelServer) -> anthropic.Anthropic:
    """The same for Anthropic."""
    CLIENTS.append(client := anthropic.Anthropic(base_url=model.url.removesuffix("/v1"), api_key="none"))
    return client


def test_the_first_rung_of_the_ladder(tmp_path: Path, model: ModelServer) -> None:
    model.script = ["Noted: no nuts."]
    client = openai_client(model)
    with holdfast.open(tmp_path / "agent.db") as hf:
        chat = hf.session("alice", system="You are terse.", model="gpt-5-mini")
        chat.append("My daughter is allergic to nuts.")
        chat.append(client.chat.completions.create(model=chat.model, **chat.pack().to_openai()))
    with holdfast.open(tmp_path / "agent.db") as hf:
        chat = hf.session("alice", create=False)
        assert chat.model == "gpt-5-mini"
        assert [message.text for message in chat] == ["My daughter is allergic to nuts.", "Noted: no nuts."]
        assert chat.usage.spent == 25
        assert model.requests[0]["messages"][0] == {"role": "system", "content": "You are terse."}


def test_a_loop_on_chat_completions(model: ModelServer) -> None:
    client = openai_client(model)
    chat = holdfast.open("memory:").session("alice", model="gpt-4o", tools=TOOLS)
    chat.append("Weather in Lyon and Paris?")
    asked = chat.append(client.chat.completions.create(model=chat.model, **chat.pack().to_openai()))
    for call in reversed(asked.tool_calls):
        chat.append_result(call, {"sky": "sun", "city": call.args["city"]})
    chat.append(client.chat.completions.create(model=chat.model, **chat.pack().to_openai()))
    shown = model.requests[1]["messages"]
    assert [message["role"] for message in shown] == ["user", "assistant", "tool", "tool"]
    cities = {message["tool_call_id"]: json.loads(message["content"])["city"] for message in shown[2:]}
    wanted = {call["id"]: json.loads(call["function"]["arguments"])["city"] for call in shown[1]["tool_calls"]}
    assert cities == wanted
    assert chat.messages()[-1].text == "Sun in both."


def test_a_loop_on_responses_gets_its_reasoning_back_unaltered(model: ModelServer) -> None:
    client = openai_client(model)
    chat = holdfast.open("memory:").session("alice", model="gpt-5", tools=TOOLS, system="Be brief.")
    chat.append("Weather in Lyon and Paris?")
    asked = chat.append(client.responses.create(model=chat.model, **chat.pack().to_responses()))
    for call in asked.tool_calls:
        chat.append_result(call, "sun")
    chat.append(client.responses.create(model=chat.model, **chat.pack().to_responses()))
    kinds = [item.get("type", "message") for item in model.requests[1]["input"]]
    assert kinds == ["message", "reasoning", "function_call", "function_call", *["function_call_output"] * 2]
    assert model.requests[1]["input"][1]["id"] == "rs_1"
    assert chat.usage.cached_input == 16


def test_a_loop_on_anthropic(model: ModelServer) -> None:
    client = anthropic_client(model)
    chat = holdfast.open("memory:").session("alice", model="claude-opus-4-7", tools=TOOLS, system="Be brief.")
    chat.append("Weather in Lyon and Paris?")
    asked = chat.append(client.messages.create(model=chat.model, max_tokens=100, **chat.pack().to_anthropic()))
    first, second = asked.tool_calls
    chat.append_result(second, "rain", is_error=True)
    chat.append_result(first, "sun")
    chat.append(client.messages.create(model=chat.model, max_tokens=100, **chat.pack().to_anthropic()))
    results = model.requests[1]["messages"][-1]["content"]
    failed = {block["tool_use_id"]: block.get("is_error", False) for block in results}
    assert failed == {"toolu_1_0": False, "toolu_1_1": True}
    assert chat.usage.input == 40
    assert not chat.pack().exact


def test_a_conversation_begun_with_one_provider_goes_on_with_another(model: ModelServer) -> None:
    client = openai_client(model)
    chat = holdfast.open("memory:").session("alice", model="gpt-5", tools=TOOLS)
    chat.append("Weather in Lyon and Paris?")
    asked = chat.append(client.responses.create(model=chat.model, **chat.pack().to_responses()))
    chat.append_result(asked.tool_calls[0], "sun")
    other = anthropic_client(model)
    chat.append(other.messages.create(model="claude-opus-4-7", max_tokens=100, **chat.pack().to_anthropic()))
    shown = model.requests[1]["messages"][-1]["content"]
    assert [block["type"] for block in shown] == ["tool_result", "tool_result"]
    assert shown[1]["is_error"], "the call that never got a result is said to be interrupted"

"""Which model a text names, what it can be given, and that no key and no client is there unasked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model.http import HttpModel
from holdfast.model.providers import ADAPTERS, AnthropicMessages, OpenAIChat, OpenAIResponses, create_model
from holdfast.records.messages import ModelCall
from tests.model_server import model_server
from tests.turns.model_kit import KINDS, Shown


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize(
    ("text", "kind", "name", "place"),
    [
        ("openai:gpt-5-mini", OpenAIChat, "gpt-5-mini", "api.openai.com"),
        ("responses:gpt-5", OpenAIResponses, "gpt-5", "api.openai.com"),
        ("anthropic:claude-sonnet-4-5", AnthropicMessages, "claude-sonnet-4-5", "api.anthropic.com"),
        ("openai:qwen3:8b@http://localhost:11434/v1", OpenAIChat, "qwen3:8b", "localhost:11434"),
        ("gpt-4o", OpenAIChat, "gpt-4o", "api.openai.com"),
        ("o3", OpenAIChat, "o3", "api.openai.com"),
        ("ft:gpt-4o-mini:shop::1", OpenAIChat, "ft:gpt-4o-mini:shop::1", "api.openai.com"),
        ("claude-opus-4-7", AnthropicMessages, "claude-opus-4-7", "api.anthropic.com"),
        ("claude-opus-4-7@https://gate.example", AnthropicMessages, "claude-opus-4-7", "gate.example"),
    ],
)
def test_a_model_is_named_by_text(
    text: str, kind: type[HttpModel], name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    model = create_model(text)
    assert type(model) is kind
    assert model.name == name
    assert place in repr(model)


@pytest.mark.parametrize("text", ["", "gemini-2.5-pro", "qwen3", "azure:gpt-4o", "openai:", "gpt-4o@", None, 7])
def test_a_model_that_nobody_speaks_for_is_refused_with_what_to_write(text: Any) -> None:
    with pytest.raises(InvalidValue, match="Write openai:<name>"):
        create_model(text)


@pytest.mark.parametrize(
    "how",
    [
        {"base_url": "ftp://host/v1"},
        {"base_url": "nothing"},
        {"base_url": "http://user:pass@host/v1"},
        {"base_url": "http://host/v1?key=1"},
        {"base_url": "http://host:port/v1"},
        {"api_key": "two\nlines"},
        {"headers": {"X": "ü"}},
        {"timeout": 0},
        {"timeout": True},
        {"patience": -1},
        {"attempts": 0},
        {"attempts": 2.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(kind: str, how: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        ADAPTERS[kind]("m", **how)
    for name in ("", " ", "two\nlines", None):
        with pytest.raises(InvalidValue):
            ADAPTERS[kind](name)  # type: ignore[arg-type]
    for wrong in ({"max_tokens": 0}, {"structured": "yaml"}):
        with pytest.raises(InvalidValue):
            AnthropicMessages("m", **wrong)  # type: ignore[arg-type]


def test_without_a_key_nothing_is_sent_to_a_provider(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI", "ANTHROPIC"):
        monkeypatch.delenv(f"{name}_API_KEY", raising=False)
        monkeypatch.delenv(f"{name}_BASE_URL", raising=False)
    with pytest.raises(ModelFailed, match="_API_KEY") as failed:
        asyncio.run(ADAPTERS[kind]("m").reply(ModelCall(pack=Shown())))
    assert (failed.value.kind, failed.value.retryable) == ("unauthorised", False)
    with model_server(["no key needed here"]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url.removesuffix("/v1"))
        model = ADAPTERS[kind]("m")

        async def main() -> str:
            reply = await model.reply(ModelCall(pack=Shown()))
            await model.close()
            return reply.message.text

        assert asyncio.run(main()) == "no key needed here"
    assert not {"Authorization", "X-Api-Key", "x-api-key"} & server.headers[0].keys()


def test_importing_holdfast_imports_no_http_client() -> None:
    code = "import sys, holdfast; print([name for name in ('httpx2', 'openai', 'anthropic') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

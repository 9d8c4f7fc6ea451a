"""Which model a text names, what it can be given, and that no key and no client is there unasked."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest

import holdfast
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model import exchange, http
from holdfast.model.exchange import Fault as Unsent
from holdfast.model.http import HttpModel
from holdfast.model.providers import ADAPTERS, AnthropicMessages, OpenAIChat, OpenAIResponses, create_model
from holdfast.records.messages import ModelCall
from tests.model_server import Fault, model_server
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


NAMES = {"openai": "openai:gpt-5-mini", "responses": "responses:gpt-5", "anthropic": "anthropic:claude-sonnet-4-5"}


def set_connection(monkeypatch: pytest.MonkeyPatch, key: str | None, url: str) -> None:
    """Set the variables of every provider, as an operator does."""
    monkeypatch.setenv("OPENAI_BASE_URL", url)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", url.removesuffix("/v1"))
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY"):
        if key is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, key)


def correct_the_key(kind: str, first: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send without a key, or with a wrong one; then set it right: the same client goes on, with the same message."""
    with model_server(["Hello."], [Fault(status=401), None]) as server, holdfast.open("memory:") as hf:
        set_connection(monkeypatch, first, server.url)
        with pytest.raises(ModelFailed) as failed:
            hf.agent("a", model=NAMES[kind]).send("s", "Hi.", key="k")
        assert (failed.value.kind, "_API_KEY" in str(failed.value)) == ("unauthorised", first is None)
        set_connection(monkeypatch, "right", server.url)
        assert hf.agent("a", model=NAMES[kind]).send("s", "Hi.", key="k").text == "Hello."
    sent = [{name.lower(): value for name, value in headers.items()} for headers in server.headers]
    keys = [headers.get("x-api-key") or headers.get("authorization", "").removeprefix("Bearer ") for headers in sent]
    assert keys == [first or "", "right"]


@pytest.mark.parametrize("first", [None, "wrong"])
def test_a_key_is_read_when_it_is_used(kind: str, first: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    correct_the_key(kind, first, monkeypatch)


def test_a_key_that_sticks_is_noticed(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = HttpModel._read_connection
    kept: dict[HttpModel, tuple[str, str]] = {}
    monkeypatch.setattr(HttpModel, "_read_connection", lambda self: kept.setdefault(self, real(self)))
    with pytest.raises(AssertionError):
        correct_the_key(kind, "wrong", monkeypatch)


def test_a_new_key_does_not_go_to_an_old_address(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with model_server(["one"]) as old, model_server(["two"]) as new, holdfast.open("memory:") as hf:
        for server, word in ((old, "one"), (new, "two")):
            set_connection(monkeypatch, f"key-{word}", server.url)
            assert hf.agent("a", model=NAMES[kind]).send("s", "Hi.").text == word
    assert "key-two" not in str(old.headers)
    assert "key-one" not in str(new.headers)


def call_without_a_key(kind: str, monkeypatch: pytest.MonkeyPatch, url: str | None = None, **how: Any) -> ModelFailed:
    """Call a model whose address is in the variables, or in `how`, while no variable has a key."""
    sent: list[str] = []

    async def send(client: Any, url: str, *request: Any) -> Any:
        sent.append(url)
        raise Unsent("It was called.", kind="unavailable")

    monkeypatch.setattr(exchange, "send_request", send)
    set_connection(monkeypatch, None, url or "https://variable.example/v1")
    with pytest.raises(ModelFailed) as failed:
        asyncio.run(ADAPTERS[kind]("m", attempts=1, **how).reply(ModelCall(pack=Shown())))
    assert len(sent) == (failed.value.kind == "unavailable")
    return failed.value


@pytest.mark.parametrize("url", ["https://gate.example/v1", "http://gate.example/v1", "http://10.0.0.5:8000/v1"])
def test_without_a_key_nothing_is_sent_to_another_machine(kind: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for failed in (
        call_without_a_key(kind, monkeypatch, url),
        call_without_a_key(kind, monkeypatch, base_url=url),
    ):
        assert (failed.kind, failed.retryable) == ("unauthorised", False)
        assert f"set {ADAPTERS[kind].key_variable}" in str(failed)
    for how in ({"api_key": ""}, {"headers": {"X-Gate": "open"}}):
        assert call_without_a_key(kind, monkeypatch, base_url=url, **how).kind == "unavailable", "that is said in code"


LOCAL = ["http://localhost:11434/v1", "http://127.0.0.1:8000/v1", "http://[::1]:8080/v1", "https://models.localhost/v1"]


@pytest.mark.parametrize("url", LOCAL)
def test_a_server_on_this_machine_needs_no_key(kind: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert call_without_a_key(kind, monkeypatch, url).kind == "unavailable", "it was called"
    assert call_without_a_key(kind, monkeypatch, base_url=url).kind == "unavailable"


def test_a_rule_that_takes_every_http_address_for_this_machine_is_noticed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_is_loopback", lambda host: host != "gate.example")
    with pytest.raises(AssertionError):
        test_without_a_key_nothing_is_sent_to_another_machine(kind, "http://10.0.0.5:8000/v1", monkeypatch)


def test_a_variable_that_became_no_key_is_named(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_connection(monkeypatch, "right", "http://127.0.0.1:9/v1")
    model = ADAPTERS[kind]("m")
    set_connection(monkeypatch, "two\nlines", "http://127.0.0.1:9/v1")
    with pytest.raises(ModelFailed, match=r"_API_KEY must be one line") as failed:
        asyncio.run(model.reply(ModelCall(pack=Shown())))
    assert failed.value.kind == "unauthorised"
    with pytest.raises(InvalidValue, match=r"_API_KEY must be one line"):
        ADAPTERS[kind]("m")


def test_importing_holdfast_imports_no_http_client() -> None:
    code = "import sys, holdfast; print([name for name in ('httpx2', 'openai', 'anthropic') if name in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

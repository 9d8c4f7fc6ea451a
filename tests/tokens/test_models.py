"""The table of models: names as people and hosts write them, windows, and what is assumed of the unknown."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.errors import InvalidValue
from holdfast.model import registry
from holdfast.model.registry import FAMILIES, ModelRegistry, model_info, register_model
from holdfast.model.tokenizers import resolve_tokenizer

O200K, CL100K = "o200k_base", "cl100k_base"
CLAUDE, CLAUDE_NEW, USUAL = "estimate:1.6", "estimate:2", "estimate:1.5"


@pytest.fixture
def own_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Additions of one test stay in it."""
    monkeypatch.setattr(registry, "_registered", {})
    registry._look_up.cache_clear()
    yield
    registry._look_up.cache_clear()


@pytest.mark.parametrize(
    ("name", "provider", "counted", "window"),
    [
        ("gpt-5", "openai", O200K, 400_000),
        ("gpt-5-mini-2025-08-07", "openai", O200K, 400_000),
        ("gpt-5-chat-latest", "openai", O200K, 128_000),
        ("gpt-5.1", "openai", O200K, 400_000),
        ("gpt-5.2-chat-latest", "openai", O200K, 128_000),
        ("gpt-5.4-mini", "openai", O200K, 400_000),
        ("gpt-5.5-pro-2026-04-23", "openai", O200K, 1_050_000),
        ("gpt-6-sol", "openai", USUAL, 1_050_000),
        ("gpt-4.1-nano", "openai", O200K, 1_047_576),
        ("gpt-4o", "openai", O200K, 128_000),
        ("openai/gpt-4o-2024-08-06", "openai", O200K, 128_000),
        ("ft:gpt-4o-mini-2024-07-18:shop::a1", "openai", O200K, 128_000),
        ("ft:gpt-3.5-turbo-0125:shop::a1", "openai", CL100K, 16_385),
        ("chatgpt-4o-latest", "openai", O200K, 128_000),
        ("o1", "openai", O200K, 200_000),
        ("o3-mini", "openai", O200K, 200_000),
        ("o4-mini-deep-research", "openai", O200K, 200_000),
        ("gpt-4", "openai", CL100K, 8_192),
        ("gpt-4-0613", "openai", CL100K, 8_192),
        ("gpt-4-32k-0613", "openai", CL100K, 32_768),
        ("gpt-4-1106-preview", "openai", CL100K, 128_000),
        ("gpt-4-turbo-2024-04-09", "openai", CL100K, 128_000),
        ("azure/gpt-35-turbo", "openai", CL100K, 16_385),
        ("openai.gpt-oss-120b-1:0", "openai", O200K, 131_072),
        ("claude-3-opus-20240229", "anthropic", CLAUDE, 200_000),
        ("anthropic/claude-3.5-sonnet", "anthropic", CLAUDE, 200_000),
        ("claude-3-7-sonnet@20250219", "anthropic", CLAUDE, 200_000),
        ("us.anthropic.claude-sonnet-4-5-20250929-v1:0", "anthropic", CLAUDE, 200_000),
        ("anthropic.claude-opus-4-1-20250805-v1:0", "anthropic", CLAUDE, 200_000),
        ("anthropic/claude-sonnet-4.6", "anthropic", CLAUDE, 1_000_000),
        ("claude-opus-4-7", "anthropic", CLAUDE_NEW, 1_000_000),
        ("claude-sonnet-5-5", "anthropic", CLAUDE_NEW, 1_000_000),
        ("claude-something-new", "anthropic", CLAUDE_NEW, 200_000),
        ("models/gemini-1.5-flash", "google", USUAL, 1_048_576),
        ("vertex_ai/gemini-2.5-pro", "google", USUAL, 1_048_576),
        ("gemini-3-flash-preview", "google", USUAL, 1_048_576),
        ("llama3:8b", "meta", USUAL, 8_192),
        ("meta-llama/Meta-Llama-3.1-8B-Instruct", "meta", USUAL, 131_072),
        ("meta.llama3-3-70b-instruct-v1:0", "meta", USUAL, 131_072),
        ("accounts/fireworks/models/llama-v3p1-8b-instruct", "meta", USUAL, 131_072),
        ("meta-llama/Llama-4-Scout-17B", "meta", USUAL, 131_072),
        ("mistral-large-latest", "mistral", USUAL, 128_000),
        ("Qwen/Qwen3-32B", "qwen", USUAL, 32_768),
        ("deepseek-chat", "deepseek", USUAL, 65_536),
    ],
)
def test_a_name_is_found_however_it_is_written(name: str, provider: str, counted: str, window: int) -> None:
    found = model_info(name)
    assert (found.provider, found.tokenizer, found.window, found.known) == (provider, counted, window, True)
    assert found.name == name


@pytest.mark.parametrize(
    "name", ["my-model", "gpt-4z", "gpt-50", "o11", "phi-4", "GPT", "llam", "ft:", "/", "x" * 10_000]
)
def test_an_unknown_model_is_labelled_and_gets_a_safe_window_and_an_estimate(name: str) -> None:
    found = model_info(name)
    assert (found.known, found.window, found.tokenizer) == (False, 128_000, USUAL)
    assert not resolve_tokenizer(found.tokenizer).exact


def test_no_model_is_counted_as_openais_without_a_claim() -> None:
    for nothing in (None, "", "  "):
        assert (model_info(nothing).known, model_info(nothing).tokenizer) == (False, O200K)


def test_what_is_no_name_is_refused() -> None:
    with pytest.raises(InvalidValue, match="by its name, not as int"):
        model_info(7)  # type: ignore[arg-type]


def test_every_family_can_be_counted_and_leaves_room_for_the_reply_and_for_the_conversation() -> None:
    for prefix, row in FAMILIES.items():
        found = model_info(prefix)
        resolve_tokenizer(found.tokenizer)
        assert found.input_budget + found.reply_reserve == found.window == row[2]
        assert 0 < found.reply_reserve <= row[3]
        assert found.input_budget >= found.window * 0.6
        if len(row) == 5:
            assert found.input_budget <= row[4]


def test_a_request_to_gpt5_stays_within_the_input_it_takes() -> None:
    """Its window is 400,000, of which input may be 272,000: a quarter for the reply would be refused by OpenAI."""
    assert model_info("gpt-5").input_budget == 272_000


def test_a_caller_may_know_better() -> None:
    found = model_info("gpt-4o", {"window": 32_000, "tokenizer": CL100K})
    assert (found.window, found.reply_reserve, found.tokenizer, found.provider) == (32_000, 8_000, CL100K, "openai")
    assert model_info("gpt-4o", {"reply_reserve": 0}).input_budget == 128_000
    assert model_info("gpt-4o").window == 128_000


@pytest.mark.parametrize(
    "wrong",
    [
        {"window": 0},
        {"window": -1},
        {"window": "128k"},
        {"window": True},
        {"window": 2.5},
        {"reply_reserve": 128_000},
        {"reply_reserve": -1},
        {"tokenizer": None},
        {"tokenizer": len},
        {"provider": ""},
        {"windows": 7},
        {"name": "x"},
    ],
)
def test_settings_that_cannot_be_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidValue):
        model_info("gpt-4o", wrong)


@pytest.mark.usefixtures("own_table")
def test_models_can_be_made_known_and_the_longest_beginning_wins() -> None:
    assert not model_info("acme-7b").known
    register_model("acme", window=16_000)
    register_model("ACME-7B.2", window=64_000, reply_reserve=1_000, tokenizer=CL100K, provider="acme")
    assert (model_info("acme-7b").window, model_info("acme-7b").reply_reserve) == (16_000, 4_000)
    assert model_info("host/acme-7b.2-chat").input_budget == 63_000
    register_model("gpt-4o", window=64_000, tokenizer=O200K, provider="openai")
    assert model_info("gpt-4o-mini").window == 64_000
    assert ModelRegistry().info("acme").known


@pytest.mark.usefixtures("own_table")
@pytest.mark.parametrize("wrong", [{"prefix": ""}, {"window": 0}, {"window": "8k"}, {"reply_reserve": 9_000}])
def test_a_model_that_cannot_be_is_not_made_known(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"prefix": "acme", "window": 8_000} | wrong
    with pytest.raises(InvalidValue):
        register_model(given.pop("prefix"), **given)
    assert not model_info("acme").known

"""Spans of packs and calls by the real OpenTelemetry SDK: what they say, and that they never say a text."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from holdfast.core import telemetry
from holdfast.errors import InvalidValue
from holdfast.extras.opentelemetry import OpenTelemetry
from holdfast.flow.journal import telemetry as journal_telemetry
from holdfast.records.packs import AssembledPack
from holdfast.records.usage import Usage

from .tracing_kit import CALL, SECRET, Traced, check_wordless, secret_pack


@pytest.fixture
def traced() -> Iterator[Traced]:
    found = Traced()
    yield found
    found.provider.shutdown()


@pytest.fixture(scope="module")
def packed() -> AssembledPack:
    return secret_pack()


# packs


def test_a_pack_is_told_in_numbers(traced: Traced, packed: AssembledPack) -> None:
    with journal_telemetry.trace_pack(traced.env) as tell:
        tell(packed)
    (span,) = traced.spans
    summary, told = packed.token_summary, traced.attributes
    assert span.name == "holdfast.pack"
    assert span.status.status_code is StatusCode.UNSET
    assert told["holdfast.pack.tokens"] == summary.used
    assert told["holdfast.pack.budget"] == 400
    assert told["holdfast.pack.level"] == str(summary.compaction_level)
    assert told["holdfast.pack.segments"] == len(packed.segments)
    assert told["holdfast.pack.omitted"] == 2
    assert told["holdfast.pack.truncated"] == packed.conversation.truncated_count > 0
    assert 0.4 < told["holdfast.pack.cached_share"] <= 0.5
    assert told["gen_ai.request.model"] == "gpt-5-mini"
    assert told["gen_ai.conversation.id"] == "session/alice/thread/main"
    parts = {name: value for name, value in told.items() if name.startswith("holdfast.pack.breakdown.")}
    assert sum(parts.values()) == summary.used
    assert "holdfast.frame.id" not in told, "what is not known is not told"
    check_wordless(traced.spans)


def test_a_pack_that_fails_fails_as_it_did_and_its_span_names_only_the_kind(traced: Traced) -> None:
    error = InvalidValue(SECRET)
    with pytest.raises(InvalidValue) as caught, journal_telemetry.trace_pack(traced.env):
        raise error
    assert caught.value is error
    (span,) = traced.spans
    assert (span.status.status_code, span.status.description, span.events) == (StatusCode.ERROR, None, ())
    assert traced.attributes == {"error.type": "InvalidValue"}
    check_wordless(traced.spans)


def test_a_pack_is_part_of_what_the_application_was_doing(traced: Traced, packed: AssembledPack) -> None:
    with (
        traced.provider.get_tracer("app").start_as_current_span("request") as outer,
        journal_telemetry.trace_pack(traced.env),
    ):
        pass
    inner = traced.spans[0]
    assert inner.parent is not None
    assert inner.parent.span_id == outer.get_span_context().span_id


# calls


def test_a_call_is_a_span_by_the_conventions(traced: Traced, packed: AssembledPack) -> None:
    journal_telemetry.begin_span(
        traced.env, CALL, frame="f1", model="gpt-5-mini", conversation="session/alice/thread/main", packed=packed
    )
    assert traced.spans == []
    usage = Usage(input=120, cached_input=100, cache_write=7, output=9, reasoning=4, cost=2_500_000, model="gpt-5-x")
    journal_telemetry.end_span(traced.env, CALL, usage=usage, finish="stop")
    (span,) = traced.spans
    assert (span.name, span.kind) == ("chat gpt-5-mini", SpanKind.CLIENT)
    assert span.status.status_code is StatusCode.UNSET
    told = traced.attributes
    sizes = {name: told.pop(name) for name in list(told) if name.startswith("holdfast.pack.")}
    assert sizes["holdfast.pack.tokens"] == packed.token_summary.used
    assert told == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5-mini",
        "gen_ai.conversation.id": "session/alice/thread/main",
        "gen_ai.response.model": "gpt-5-x",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 120,
        "gen_ai.usage.output_tokens": 9,
        "gen_ai.usage.cache_read.input_tokens": 100,
        "gen_ai.usage.cache_creation.input_tokens": 7,
        "gen_ai.usage.reasoning.output_tokens": 4,
        "holdfast.call.id": CALL,
        "holdfast.call.cost_usd": 0.0025,
        "holdfast.frame.id": "f1",
    }
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    assert {name for name in told if name.startswith("gen_ai.")} <= known
    check_wordless(traced.spans)


def test_a_call_that_failed_says_of_what_kind(traced: Traced) -> None:
    journal_telemetry.begin_span(traced.env, CALL)
    journal_telemetry.end_span(traced.env, CALL, error="RateLimitError")
    (span,) = traced.spans
    assert span.name == "chat"
    assert (span.status.status_code, span.status.description) == (StatusCode.ERROR, None)
    assert traced.attributes["error.type"] == "RateLimitError"
    assert "gen_ai.usage.input_tokens" not in traced.attributes, "nobody reported any"


@pytest.mark.parametrize(("given", "told"), [("google", "gcp.gen_ai"), ("anthropic", "anthropic"), ("other", None)])
def test_providers_are_spelled_as_the_conventions_do(given: str, told: str | None) -> None:
    assert telemetry.call_attributes(call=CALL, provider=given).get("gen_ai.provider.name") == told


def test_names_that_could_be_texts_are_not_told(traced: Traced) -> None:
    journal_telemetry.begin_span(traced.env, CALL, model=SECRET, conversation=SECRET, frame=SECRET)
    journal_telemetry.end_span(traced.env, CALL, usage=Usage(input=1, model=SECRET), finish=SECRET, error=SECRET)
    (span,) = traced.spans
    assert span.name == "chat"
    assert traced.attributes["error.type"] == "_OTHER"
    check_wordless(traced.spans)


def test_a_call_begins_and_ends_in_different_threads(traced: Traced) -> None:
    calls = [f"call{number}" for number in range(200)]
    orders = [random.Random(number).sample(calls, len(calls)) for number in range(4)]

    def each(work: Any) -> None:
        threads = [threading.Thread(target=lambda order=order: [work(one) for one in order]) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    each(lambda one: journal_telemetry.begin_span(traced.env, one))
    each(lambda one: journal_telemetry.end_span(traced.env, one, finish="stop"))
    told = [dict(span.attributes or {})["holdfast.call.id"] for span in traced.spans]
    assert sorted(told) == sorted(calls), "each once, although each was begun and ended by four"


def test_calls_that_never_end_make_room() -> None:
    traced = Traced(most_open=8)
    for number in range(100):
        journal_telemetry.begin_span(traced.env, f"call{number}")
    for number in range(100):
        journal_telemetry.end_span(traced.env, f"call{number}")
    told = [dict(span.attributes or {})["holdfast.call.id"] for span in traced.spans]
    assert told == [f"call{number}" for number in range(92, 100)]
    assert not traced.telemetry._open  # type: ignore[attr-defined]


def test_a_call_of_another_process_is_not_told_of(traced: Traced) -> None:
    journal_telemetry.end_span(traced.env, CALL, usage=Usage(input=1))
    assert traced.spans == []


# planted bugs


def test_a_text_in_an_attribute_is_noticed(
    traced: Traced, packed: AssembledPack, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = telemetry.pack_attributes
    monkeypatch.setattr(
        journal_telemetry, "pack_attributes", lambda found: {**original(found), "holdfast.system": found.system}
    )
    with pytest.raises(AssertionError):
        test_a_pack_is_told_in_numbers(traced, packed)


def test_a_name_that_is_told_unseen_is_noticed(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_safe_name", lambda value: value)
    with pytest.raises(AssertionError):
        test_names_that_could_be_texts_are_not_told(traced)


def test_an_exception_that_is_recorded_is_noticed(traced: Traced, monkeypatch: pytest.MonkeyPatch) -> None:
    def careless(self: OpenTelemetry, span: Any, kind: str) -> None:
        span.record_exception(InvalidValue(SECRET))

    monkeypatch.setattr(OpenTelemetry, "_mark_failed", careless)
    with pytest.raises(AssertionError):
        test_a_pack_that_fails_fails_as_it_did_and_its_span_names_only_the_kind(traced)

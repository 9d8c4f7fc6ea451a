"""A client with a telemetry: its packs and calls are traced, and it works as it does without one."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast.errors import BudgetTooSmall

from .test_telemetry_failing import KINDS, broken
from .tracing_kit import SECRET, Traced, check_wordless


def opened(traced: Traced) -> holdfast.Holdfast:
    return holdfast.open("memory:", telemetry=traced.telemetry)


def work(hf: holdfast.Holdfast) -> tuple[int, Any]:
    """One pack, and one call in a frame; gives the pack's tokens and what the frame spent."""
    chat = hf.session("s1", model="gpt-5-mini", system=SECRET)
    chat.append(SECRET)
    pack = chat.pack()
    with hf.frame(SECRET, session="s1") as frame:
        call = hf.index.begin_model_call(frame.id, model="gpt-5-mini", request=SECRET, key="k1")
        assert hf.index.begin_model_call(frame.id, model="gpt-5-mini", request=SECRET, key="k1") == call
        hf.index.end_model_call(frame.id, call, usage=holdfast.Usage(input=120, output=9), response=SECRET)
        failed = hf.index.begin_model_call(frame.id, model="gpt-5-mini", key="k2")
        hf.index.end_model_call(frame.id, failed, error=f"Timeout: {SECRET}")
    return pack.tokens, hf.index.get_frame(frame.id).usage


def test_packs_and_calls_are_traced_without_a_word() -> None:
    traced = Traced()
    with opened(traced) as hf:
        tokens, _ = work(hf)
    packs = [span for span in traced.spans if span.name == "holdfast.pack"]
    calls = [span for span in traced.spans if span.name == "chat gpt-5-mini"]
    assert [(span.attributes or {})["holdfast.pack.tokens"] for span in packs] == [tokens]
    assert [(span.attributes or {}).get("gen_ai.usage.input_tokens") for span in calls] == [120, None]
    assert [(span.attributes or {}).get("error.type") for span in calls] == [None, "Timeout"]
    check_wordless(traced.spans)


def test_a_call_that_was_given_a_pack_says_how_large_it_was() -> None:
    traced = Traced()
    with opened(traced) as hf:
        chat = hf.session("s1", model="gpt-5-mini")
        chat.append("hello")
        with hf.frame("greet", session="s1") as frame:
            pack = frame.pack()
            call = hf.index.begin_model_call(frame.id, pack)
            hf.index.end_model_call(frame.id, call, usage=3)
    (span,) = [span for span in traced.spans if span.name == "chat gpt-5-mini"]
    assert (span.attributes or {})["holdfast.pack.tokens"] == pack.tokens


def test_a_pack_that_is_refused_is_refused_all_the_same() -> None:
    traced = Traced()
    with opened(traced) as hf:
        chat = hf.session("s1")
        chat.append(SECRET)
        with pytest.raises(BudgetTooSmall):
            chat.pack(budget=1)
    (span,) = traced.spans
    assert (span.attributes or {})["error.type"] == "BudgetTooSmall"
    check_wordless(traced.spans)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.filterwarnings("ignore:Telemetry failed:RuntimeWarning")
def test_a_client_whose_telemetry_fails_works_as_one_without(kind: str) -> None:
    with holdfast.open("memory:") as plain, opened(broken(kind)) as hf:
        assert work(hf) == work(plain)


async def traced_in_async(traced: Traced) -> None:
    async with holdfast.open_async("memory:", telemetry=traced.telemetry) as hf:
        chat = await hf.session("s1")
        await chat.append("hello")
        with traced.provider.get_tracer("app").start_as_current_span("request"):
            await chat.pack()


def test_spans_of_an_async_client_stand_inside_the_applications() -> None:
    import asyncio

    traced = Traced()
    asyncio.run(traced_in_async(traced))
    inner, outer = traced.spans
    assert (inner.name, outer.name) == ("holdfast.pack", "request")
    assert inner.parent is not None
    assert inner.parent.span_id == outer.get_span_context().span_id

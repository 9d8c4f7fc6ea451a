"""Every fault of the wire has a typed outcome, in every form, streamed or whole, and what passes is survived."""

from __future__ import annotations

import pytest

from holdfast.model import exchange
from tests.model_server import Fault, model_server
from tests.turns.model_kit import CALLS, FOREVER, KEY, KINDS, SCHEMA, Asked


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["stream", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


OUTCOMES: list[tuple[str, Fault, str, bool, int | None]] = [
    # what goes wrong, for ever; the kind; whether waiting may help; attempts (None: as long as there is patience)
    ("429", Fault(status=429), "rate_limited", True, None),
    ("429 for good", Fault(status=429, code="insufficient_quota"), "quota", False, 1),
    ("429 until later", Fault(status=429, headers={"Retry-After": "3600"}), "rate_limited", True, 1),
    ("500", Fault(status=500), "unavailable", True, None),
    ("500 that says no", Fault(status=500, headers={"x-should-retry": "false"}), "unavailable", False, 1),
    ("503", Fault(status=503), "unavailable", True, None),
    ("529", Fault(status=529), "unavailable", True, None),
    ("409", Fault(status=409), "unavailable", True, None),
    ("408", Fault(status=408), "timeout", True, 3),
    ("400", Fault(status=400), "rejected", False, 1),
    ("402", Fault(status=402), "quota", False, 1),
    ("404", Fault(status=404), "unknown_model", False, 1),
    ("404 in words", Fault(status=400, code="model_not_found"), "unknown_model", False, 1),
    ("413", Fault(status=413), "rejected", False, 1),
    ("422", Fault(status=422), "rejected", False, 1),
    ("302", Fault(status=302, headers={"Location": "http://127.0.0.1:1/"}), "rejected", False, 1),
    ("401", Fault(status=401, message=f"Wrong key {KEY}"), "unauthorised", False, 1),
    ("403", Fault(status=403, message=f"The key {KEY} may not"), "unauthorised", False, 1),
    ("filtered", Fault(status=400, code="content_filter"), "refused", False, 1),
    ("cut", Fault("cut"), "cut", True, 3),
    ("truncated", Fault("truncated"), "malformed", True, 3),
    ("invalid", Fault("invalid"), "malformed", True, 3),
    ("empty", Fault("empty"), "malformed", True, 3),
    ("overloaded within", Fault("error", status=529), "unavailable", True, None),
    ("limited within", Fault("error", status=429), "rate_limited", True, None),
    ("rejected within", Fault("error", status=400), "rejected", False, 1),
]


@pytest.mark.parametrize(("fault", "wanted", "curable", "attempts"), [row[1:] for row in OUTCOMES], ids=lambda _: "")
def test_each_fault_has_its_outcome(
    kind: str, stream: bool, fault: Fault, wanted: str, curable: bool, attempts: int | None
) -> None:
    with model_server(["never said"], [fault] * FOREVER) as server:
        asked = Asked(kind, server, stream=stream)
        failed = asked.failure()
    assert (failed.kind, failed.retryable) == (wanted, curable)
    assert failed.status == (fault.status if fault.kind == "status" else None)
    assert len(server.requests) in ((7, 8) if attempts is None else (attempts,))
    assert sum(asked.waits) < 60.001
    assert "m gave no answer" in str(failed)
    assert failed.partial == asked.said


@pytest.mark.parametrize("fault", [row[1] for row in OUTCOMES if row[3] and row[4] != 1], ids=lambda _: "")
def test_a_fault_that_passes_is_survived(kind: str, stream: bool, fault: Fault) -> None:
    with model_server(["here it is"], [fault]) as server:
        asked = Asked(kind, server, stream=stream)
        reply = asked.reply()
    assert reply.message.text == "here it is"
    assert reply.attempts == len(server.requests) == 2
    assert 0.8 <= asked.waits[0] <= 1.2
    assert reply.usage.input >= 20


def test_a_wrong_shape_is_malformed(kind: str, stream: bool) -> None:
    with model_server(["never"], [Fault("wrong")] * FOREVER) as server:
        failed = Asked(kind, server, stream=stream).failure()
    # A stream of unknown events that ends is one that was cut.
    assert failed.kind == ("cut" if stream else "malformed")
    assert failed.retryable
    assert len(server.requests) == 3


def test_arguments_that_are_not_json_are_asked_for_again(stream: bool) -> None:
    for kind in ("openai", "responses"):
        with model_server([CALLS], [Fault("nonsense")]) as server:
            reply = Asked(kind, server, stream=stream).reply()
        assert (len(reply.message.tool_calls), reply.attempts) == (2, 2)
        assert reply.usage.input == 40, "what the first attempt used was paid for"


def test_a_provider_that_never_answers_is_not_waited_for(kind: str, stream: bool) -> None:
    with model_server(["late"], [Fault("hang")] * FOREVER) as server:
        asked = Asked(kind, server, stream=stream, timeout=0.05)
        failed = asked.failure()
    assert (failed.kind, failed.retryable, len(server.requests)) == ("timeout", True, 3)


def test_a_stream_that_stalls_is_not_waited_for(kind: str) -> None:
    with model_server(["half of this is said"], [Fault("stall", after=0.7), None]) as server:
        asked = Asked(kind, server, timeout=0.05)
        reply = asked.reply()
    assert reply.message.text == asked.said == "half of this is said"
    assert [delta.kind for delta in asked.heard].count("reset") == 1
    # Anthropic says at the beginning what it was given to read.
    assert reply.usage.input == (40 if kind == "anthropic" else 20)


def test_a_provider_that_is_not_there_is_unavailable(kind: str) -> None:
    with model_server() as server:
        pass
    asked = Asked(kind, server)
    failed = asked.failure()
    assert (failed.kind, failed.retryable) == ("unavailable", True)
    assert len(asked.waits) in (6, 7)


def test_a_refusal_is_an_answer(kind: str, stream: bool) -> None:
    with model_server(["never"], [Fault("refusal")]) as server:
        asked = Asked(kind, server, stream=stream)
        reply = asked.reply(output=SCHEMA)
    assert reply.finish == "refusal"
    assert reply.message.text == asked.said == "I cannot help with that."
    assert (reply.attempts, reply.usage.spent) == (1, 25)


def test_a_reply_that_reached_its_length_says_so(kind: str, stream: bool) -> None:
    with model_server(["never"], [Fault("length")]) as server:
        reply = Asked(kind, server, stream=stream).reply()
    assert reply.finish in ("length", "max_tokens", "max_output_tokens")
    assert reply.message.text == "It goes on and"


def test_a_reply_that_reached_its_length_in_silence_is_not_asked_for_again(kind: str) -> None:
    with model_server([{"finish": "length"}]) as server:
        failed = Asked(kind, server).failure()
    assert (failed.kind, failed.retryable, len(server.requests)) == ("malformed", False, 1)
    assert "max_tokens" in str(failed)


def test_a_slow_reply_is_heard_to_its_end(kind: str) -> None:
    with model_server(["one two three four"], [Fault("slow")]) as server:
        asked = Asked(kind, server)
        assert asked.reply().message.text == "one two three four"
    assert len([delta for delta in asked.heard if delta.kind == "text"]) == 5


def test_an_answer_without_end_is_not_taken(kind: str, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "MOST_BYTES", 10_000)
    with model_server(["never"], [Fault("huge")] * FOREVER) as server:
        failed = Asked(kind, server, stream=stream).failure()
    assert failed.kind == "malformed"
    assert "10,000" in str(failed)


def test_what_comes_after_the_end_of_a_reply_does_not_spoil_it() -> None:
    # All but the last events of the stream arrive, and they hold the whole reply.
    for kind, share in (("openai", 0.99), ("anthropic", 0.99)):
        with model_server(
            ["a reply of some length, so that there are many events"], [Fault("cut", after=share)]
        ) as server:
            reply = Asked(kind, server).reply()
        assert reply.attempts == 1
        assert reply.message.text.endswith("many events")

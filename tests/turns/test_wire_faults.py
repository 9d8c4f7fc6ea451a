"""An agent against the wire and its faults, in all three formats: a typed outcome, journaled, and paid for once."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Usage
from holdfast.errors import ModelFailed
from holdfast.flow.turns.engine import CORRECTIONS
from holdfast.model.providers import ADAPTERS
from holdfast.runtime.tools.tool import tool
from holdfast.testing.clock import FrozenClock
from tests.model_server import Fault, ModelServer, model_server
from tests.turns.agent_world import SESSION, facts, journaled, kinds
from tests.turns.loops import check_whole, place, spoken
from tests.turns.model_kit import KEY, KINDS

Holdfast = holdfast.Holdfast
FOR_EVER = 30


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@contextlib.contextmanager
def world(
    kind: str, script: list[Any], faults: list[Fault | None], **how: Any
) -> Iterator[tuple[Any, Any, ModelServer]]:
    """A client, an agent on a model over HTTP that waits in no time, and the server behind it."""
    clock = FrozenClock()

    async def no_wait(seconds: float) -> None:
        clock.sleep(seconds)

    timeout = how.pop("timeout", 5.0)
    with model_server(script, faults) as server, holdfast.open("memory:") as hf:
        model = ADAPTERS[kind](
            "m",
            base_url=server.url,
            api_key=KEY,
            clock=clock,
            sleep=no_wait,
            stream=how.pop("stream", True),
            timeout=timeout,
        )
        yield hf, hf.agent("a", model=model, **{"history": False, **how}), server
        check_whole(hf)
        for event in hf.journal.events():
            assert KEY not in repr(event)


def reported(server: ModelServer, answers: int) -> int:
    """Tokens that the server says were used for so many answers."""
    return 25 * answers


def total(usage: Usage) -> int:
    return usage.input + usage.output


def outcomes(hf: Holdfast) -> list[Any]:
    return [event for event in hf.journal.events(place()) if event.type in ("model.responded", "model.failed")]


CURABLE = [
    ("429", Fault(status=429), "rate_limited"),
    ("429 with a wait", Fault(status=429, headers={"Retry-After": "7"}), "rate_limited"),
    ("429 until tomorrow", Fault(status=429, headers={"Retry-After": "86400"}), "rate_limited"),
    ("500", Fault(status=500), "unavailable"),
    ("529", Fault(status=529), "unavailable"),
    ("cut", Fault("cut"), "cut"),
    ("truncated", Fault("truncated"), "malformed"),
    ("invalid", Fault("invalid"), "malformed"),
    ("empty", Fault("empty"), "malformed"),
    ("an error within", Fault("error", status=529), "unavailable"),
]
FINAL = [
    ("400", Fault(status=400), "rejected"),
    ("a filter", Fault(status=400, code="content_filter"), "refused"),
]


@pytest.mark.parametrize(("fault", "wanted"), [row[1:] for row in CURABLE], ids=[row[0] for row in CURABLE])
def test_what_waiting_may_cure_leaves_the_turn_live(kind: str, fault: Fault, wanted: str) -> None:
    with world(kind, ["Here it is."], [fault] * FOR_EVER) as (hf, agent, server):
        with pytest.raises(ModelFailed) as caught:
            agent.send(SESSION, "Hello", key="k")
        assert (caught.value.kind, caught.value.retryable) == (wanted, True)
        assert caught.value.status == (fault.status if fault.kind == "status" else None)
        (failed,) = facts(hf, "model.failed")
        assert (failed.retryable, failed.error) == (True, wanted)
        assert failed.usage == (caught.value.usage or Usage())
        assert spoken(hf) == [("user", "Hello")]
        assert hf.index.stack(place())[0].status == "active"
        server.faults.clear()
        reply = agent.send(SESSION, "Hello", key="k")
        assert (reply.status, reply.text) == ("done", "Here it is.")
        assert [event.type for event in outcomes(hf)] == ["model.failed", "model.responded"]
        responded = outcomes(hf)[1].facts.usage
        assert total(responded) == reported(server, 1)
        assert total(reply.usage) == total(failed.usage) + total(responded), "what failed was paid for as well"
        assert agent.send(SESSION, "Hello", key="k").usage == reply.usage


MENDABLE = [
    ("401", Fault(status=401), "unauthorised"),
    ("403", Fault(status=403), "unauthorised"),
    ("404", Fault(status=404), "unknown_model"),
    ("404 in words", Fault(status=400, code="model_not_found"), "unknown_model"),
    ("402", Fault(status=402), "quota"),
    ("429 for good", Fault(status=429, code="insufficient_quota"), "quota"),
]


@pytest.mark.parametrize(("fault", "wanted"), [row[1:] for row in MENDABLE], ids=[row[0] for row in MENDABLE])
def test_what_an_operator_can_mend_leaves_the_turn_live(kind: str, fault: Fault, wanted: str) -> None:
    with world(kind, ["Here it is."], [fault] * FOR_EVER) as (hf, agent, server):
        for _ in range(2):
            with pytest.raises(ModelFailed) as caught:
                agent.send(SESSION, "Hello", key="k")
            assert (caught.value.kind, caught.value.retryable) == (wanted, False)
        assert len(server.requests) == 2, "nothing is asked twice in one call"
        assert [(one.retryable, one.error) for one in facts(hf, "model.failed")] == [(True, wanted)] * 2
        server.faults.clear()
        reply = agent.send(SESSION, "Hello", key="k")
        assert (reply.status, reply.text) == ("done", "Here it is.")
        assert spoken(hf) == [("user", "Hello"), ("assistant", "Here it is.")]


@pytest.mark.parametrize(("fault", "wanted"), [row[1:] for row in FINAL], ids=[row[0] for row in FINAL])
def test_what_no_waiting_cures_stops_the_turn(kind: str, fault: Fault, wanted: str) -> None:
    with world(kind, ["never"], [fault] * FOR_EVER) as (hf, agent, server):
        reply = agent.send(SESSION, "Hello", key="k")
        assert (reply.status, reply.text) == ("stopped", "")
        assert str(reply.reason).startswith(f"model: {wanted}: The model m gave no answer")
        assert len(server.requests) == 1
        (failed,) = facts(hf, "model.failed")
        assert (failed.retryable, failed.error) == (False, wanted)
        server.faults.clear()
        assert agent.send(SESSION, "Hello", key="k") == reply, "it has ended, and nobody is asked again"
        assert len(server.requests) == 1
        assert agent.send(SESSION, "Hello again").text == "never"


@pytest.mark.parametrize("fault", [row[1] for row in CURABLE if "tomorrow" not in row[0]], ids=lambda fault: fault.kind)
def test_what_passes_is_one_call_to_the_turn(kind: str, fault: Fault) -> None:
    with world(kind, ["Here it is."], [fault]) as (hf, agent, server):
        events = list(agent.stream(SESSION, "Hello", key="k"))
        assert [event.text for event in events if event.kind == "reply"] == ["Here it is."]
        assert [event.type for event in outcomes(hf)] == ["model.responded"]
        shown = ""
        for event in events:
            shown = "" if event.kind == "reset" else shown + event.text if event.kind == "delta" else shown
        assert shown == "Here it is.", "what was cut off is taken back"
        assert total(outcomes(hf)[0].facts.usage) >= reported(server, 1)
        keys = [request.get("Idempotency-Key") for request in server.headers]
        assert len(keys) == 2
        assert len(set(keys)) == 1, "both attempts are the same call"


def test_a_minute_of_429_is_waited_out(kind: str) -> None:
    with world(kind, ["Here it is."], [Fault(status=429, headers={"Retry-After": "9"})] * 5) as (hf, agent, server):
        assert agent.send(SESSION, "Hello").text == "Here it is."
        assert len(server.requests) == 6
        assert [event.type for event in outcomes(hf)] == ["model.responded"]


def test_a_model_that_never_answers_is_not_waited_for(kind: str) -> None:
    with world(kind, ["Here it is."], [Fault("hang")] * 3, timeout=0.02) as (hf, agent, _server):
        with pytest.raises(ModelFailed) as caught:
            agent.send(SESSION, "Hello", key="k")
        assert caught.value.kind == "timeout"
        assert agent.send(SESSION, "Hello", key="k").text == "Here it is."
        assert len(facts(hf, "model.failed")) == 1


def test_a_wrong_key_leaves_the_turn_for_the_right_one(kind: str) -> None:
    with world(kind, ["Here it is."], [Fault(status=401, message=f"Wrong key {KEY}")]) as (_hf, agent, _server):
        with pytest.raises(ModelFailed) as caught:
            agent.send(SESSION, "Hello", key="k")
        assert (caught.value.kind, KEY in str(caught.value)) == ("unauthorised", False)
        assert agent.send(SESSION, "Hello", key="k").text == "Here it is."


def test_a_refusal_is_an_answer(kind: str) -> None:
    with world(kind, [], [Fault("refusal")]) as (hf, agent, server):
        reply = agent.send(SESSION, "Hello")
        assert (reply.status, reply.text) == ("done", "I cannot help with that.")
        (responded,) = facts(hf, "model.responded")
        assert responded.finish in ("refusal", "content_filter")
        assert total(responded.usage) == reported(server, 1)


def test_a_reply_that_reached_its_length_says_so(kind: str) -> None:
    with world(kind, [], [Fault("length")]) as (hf, agent, _server):
        assert agent.send(SESSION, "Hello").text == "It goes on and"
        (responded,) = facts(hf, "model.responded")
        assert responded.finish in ("length", "max_tokens", "max_output_tokens")


# tools, reasoning, structured output


@tool(if_interrupted="retry")
def weather(city: str) -> str:
    """Foretell the weather."""
    return f"rain in {city}"


CALLS = [{"name": "weather", "arguments": {"city": city}} for city in ("Lyon", "Paris")]


def test_what_the_model_thought_goes_back_unaltered(kind: str) -> None:
    first = {"thinking": "Two cities, so two calls.", "calls": CALLS}
    with world(kind, [first, "Rain."], [], tools=[weather]) as (_hf, agent, server):
        assert agent.send(SESSION, "Weather?").text == "Rain."
        assert agent.send(SESSION, "And tomorrow?").status == "done"
        assert server.problems == []
        for request in server.requests[1:]:
            if kind == "responses":
                (thought,) = [
                    item for item in request["input"] if item.get("type") == "reasoning" and item.get("summary")
                ]
                assert thought["id"] == "rs_1"
                assert thought["summary"] == [{"type": "summary_text", "text": first["thinking"]}]
                assert thought["encrypted_content"] == "gAAAA-1-opaque=="
            elif kind == "anthropic" and request is server.requests[1]:
                thought = request["messages"][1]["content"][0]
                assert thought == {"type": "thinking", "thinking": first["thinking"], "signature": "sig-1=="}


def test_tools_are_called_and_answered_by_the_providers_ids(kind: str) -> None:
    with world(kind, [CALLS, "Rain."], [], tools=[weather]) as (hf, agent, server):
        events = list(agent.stream(SESSION, "Weather?"))
        assert kinds(events) == [
            *("message", "tool_call", "reply", "tool", "tool", "result", "result", "delta", "reply", "done")
        ]
        assert len(server.requests) == 2
        assert "rain in Paris" in json.dumps(server.requests[1])
        assert server.problems == []
        assert total(agent.send(SESSION, "Thanks").usage) == reported(server, 1)
        assert total(hf.usage()) == reported(server, 3)
        assert len(journaled(events)) == 8


def test_truncated_arguments_are_asked_for_again_and_paid_for() -> None:
    for kind in ("openai", "responses"):
        with world(kind, [CALLS, "Rain."], [Fault("nonsense")], tools=[weather]) as (_hf, agent, server):
            reply = agent.send(SESSION, "Weather?")
            assert (reply.text, len(server.requests)) == ("Rain.", 3)
            assert total(reply.usage) == reported(server, 3)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_replies_of_a_type_come_as_values(kind: str, stream: bool) -> None:
    with world(kind, ['{"value": [1, 2]}'], [], output=list[int], stream=stream) as (_hf, agent, server):
        reply = agent.send(SESSION, "Count.")
        assert (reply.status, reply.data) == ("done", [1, 2])
        asked = json.dumps(server.requests[0])
        assert '"integer"' in asked, "the provider is told the schema"
        assert total(reply.usage) == reported(server, 1)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
@pytest.mark.parametrize("wrong", ["Let me think.", '{"value": ["one"]}', '{"values": [1]}'])
def test_a_reply_that_does_not_fit_is_sent_back_with_what_is_wrong(kind: str, wrong: str, stream: bool) -> None:
    script = [wrong, '{"value": [1, 2]}']
    with world(kind, script, [], output=list[int], stream=stream) as (hf, agent, server):
        reply = agent.send(SESSION, "Count.")
        assert (reply.status, reply.data) == ("done", [1, 2])
        assert len(server.requests) == 2
        shown = json.dumps(server.requests[1], ensure_ascii=False)
        assert "This reply does not have the form that was asked for. The reply" in shown
        assert json.dumps(wrong)[1:-1] in shown, "with its own words before it"
        assert [total(event.facts.usage) for event in outcomes(hf)] == [reported(server, 1)] * 2
        assert total(reply.usage) == reported(server, 2), "both were paid for"


def test_a_reply_that_never_fits_stops_the_turn_and_is_paid_for(kind: str) -> None:
    with world(kind, ["No."] * FOR_EVER, [], output=list[int]) as (hf, agent, server):
        reply = agent.send(SESSION, "Count.", key="k")
        assert (reply.status, reply.text, reply.data) == ("stopped", "No.", None)
        assert str(reply.reason).startswith("output: This reply does not have the form")
        assert len(server.requests) == CORRECTIONS + 1
        assert [event.type for event in outcomes(hf)] == ["model.responded"] * (CORRECTIONS + 1)
        assert total(reply.usage) == reported(server, CORRECTIONS + 1)
        server.script[:] = ['{"value": [3]}']
        assert agent.send(SESSION, "Count.", key="k") == reply, "nobody pays for it again"
        assert agent.send(SESSION, "Again.").data == [3]


def test_a_reply_that_does_not_fit_costs_no_attempt_of_the_wire(kind: str) -> None:
    faults = [Fault(status=529), None, Fault(status=529), None]
    with world(kind, ["No.", '{"value": [1]}'], faults, output=list[int]) as (hf, agent, server):
        assert agent.send(SESSION, "Count.").data == [1]
        assert len(server.requests) == 4
        assert [event.type for event in outcomes(hf)] == ["model.responded"] * 2


def test_a_stop_in_the_middle_of_a_stream_keeps_the_words(kind: str) -> None:
    with world(kind, ["Here it is, word by word by word."], [Fault("stall")], timeout=30.0) as (_hf, agent, _server):
        shown = ""
        for event in agent.stream(SESSION, "Hello", key="k"):
            if event.kind == "delta":
                shown += event.text
                agent.stop(SESSION, "enough")
        reply = agent.send(SESSION, "Hello", key="k")
        assert (reply.status, reply.reason) == ("stopped", "enough")
        assert reply.text == shown != ""

"""Models over HTTP: what they are asked and answer, how long they wait, what they say and what was used."""

from __future__ import annotations

import asyncio

import pytest

import holdfast
from holdfast.errors import ModelFailed
from holdfast.model import exchange, http
from holdfast.model.exchange import parse_retry_after
from holdfast.records.messages import Delta, ModelCall, ModelReply
from tests.model_server import Fault, ModelServer, model_server
from tests.turns.model_kit import CALLS, FOREVER, KEY, KINDS, Asked, Shown


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["stream", "whole"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


# answers


def test_text_calls_and_usage_come_back(kind: str, stream: bool) -> None:
    with model_server([{"text": "Let me look.", "calls": CALLS}]) as server:
        asked = Asked(kind, server, stream=stream)
        reply = asked.reply(call="01CALL")
    assert reply.message.text == asked.said == "Let me look."
    assert [call.args for call in reply.message.tool_calls] == [{"city": "Lyon"}, {"city": "Paris"}]
    assert [delta.text for delta in asked.heard if delta.kind == "tool"] == ["weather", "weather"]
    assert (reply.usage.input, reply.usage.output, reply.usage.model) == (20, 5, "m")
    assert (reply.finish, reply.attempts, asked.waits) == (None, 1, [])
    assert server.requests[0]["stream"] is stream
    assert server.problems == []


def test_the_key_and_the_call_are_in_the_headers_and_nowhere_else(kind: str) -> None:
    with model_server(["yes"]) as server:
        asked = Asked(kind, server, headers={"X-Team": "blue"})
        asked.reply(call="01CALL")
    headers = {name.lower(): value for name, value in server.headers[0].items()}
    assert headers["idempotency-key"] == "01CALL"
    assert headers["x-team"] == "blue"
    assert headers.get("authorization" if kind != "anthropic" else "x-api-key", "").endswith(KEY)
    assert KEY not in str(server.requests)
    assert KEY not in repr(asked.model)
    assert ("anthropic-version" in headers) == (kind == "anthropic")


def test_options_of_the_model_and_of_the_call_go_into_the_request(kind: str) -> None:
    with model_server(["yes"]) as server:
        asked = Asked(kind, server, options={"temperature": 0.5, "top_p": 0.1, "max_tokens": 77})
        asked.reply(options={"temperature": 1.0, "top_p": None, "model": "another"})
    request = server.requests[0]
    assert request["temperature"] == 1.0
    assert "top_p" not in request
    assert request["model"] == "m"
    assert request["max_output_tokens" if kind == "responses" else "max_tokens"] == 77


def test_words_that_every_model_understands_are_put_in_its_own() -> None:
    with model_server() as server:
        for kind, name in (("openai", "gpt-5-mini"), ("responses", "gpt-5-mini"), ("anthropic", "claude-opus-4-7")):
            Asked(kind, server, name=name).reply(options={"reasoning": "low", "max_tokens": 9})
        Asked("anthropic", server, name="claude-opus-4-7").reply()
    chat, responses, anthropic, default = server.requests
    assert (chat["reasoning_effort"], chat["max_completion_tokens"]) == ("low", 9)
    assert (responses["reasoning"], responses["max_output_tokens"]) == ({"effort": "low"}, 9)
    assert (responses["store"], responses["include"]) == (False, ["reasoning.encrypted_content"])
    assert (anthropic["output_config"], anthropic["max_tokens"]) == ({"effort": "low"}, 9)
    assert default["max_tokens"] == 16_000
    assert not {"reasoning", "max_tokens"} & chat.keys()


def test_a_host_that_does_not_stream_is_understood(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ModelServer.outcome
    monkeypatch.setattr(
        ModelServer,
        "outcome",
        lambda self, path, request: whole(self, path, {**request, "stream": request.pop("stream")}),
    )
    with model_server(["in one piece"]) as server:
        asked = Asked(kind, server)
        assert asked.reply().message.text == asked.said == "in one piece"


def test_reasoning_goes_back_unaltered_with_the_next_request(kind: str, stream: bool) -> None:
    tools = [{"name": "weather", "description": "Weather", "input_schema": {"type": "object", "properties": {}}}]
    with model_server([{"thinking": "Two cities.", "calls": CALLS}, "Sun in both."]) as server:
        chat = holdfast.open("memory:").session("s", model="gpt-5", tools=tools)
        chat.append("Weather?")
        asked = Asked(kind, server, stream=stream)
        said = chat.append(asked.reply(pack=chat.pack()).message)
        for call in said.tool_calls:
            chat.append_result(call, "sun")
        assert asked.reply(pack=chat.pack()).message.text == "Sun in both."
    assert server.problems == []
    second = server.requests[1]
    if kind == "responses":
        (item,) = [item for item in second["input"] if item.get("type") == "reasoning"]
        assert item["encrypted_content"] == "gAAAA-1-opaque=="
        assert item["summary"] == [{"type": "summary_text", "text": "Two cities."}]
    if kind == "anthropic":
        (block,) = [block for block in second["messages"][1]["content"] if block["type"] == "thinking"]
        assert block == {"type": "thinking", "thinking": "Two cities.", "signature": "sig-1=="}


# waiting


def test_a_minute_of_429_is_waited_for_and_no_longer(kind: str) -> None:
    with model_server(["never"], [Fault(status=429)] * FOREVER) as server:
        asked = Asked(kind, server)
        failed = asked.failure()
    assert (failed.kind, failed.retryable, failed.status) == ("rate_limited", True, 429)
    assert 59.4 < sum(asked.waits) < 60.001
    assert sorted(asked.waits[:5]) == asked.waits[:5], "each wait is longer than the one before"
    assert asked.waits[:5] != [1, 2, 4, 8, 16], "and a little random"


def test_what_a_provider_asks_for_is_respected(kind: str) -> None:
    later = [Fault(status=429, headers={"Retry-After": "7"}), Fault(status=529, headers={"retry-after-ms": "9500"})]
    with model_server(["here"], [*later, None]) as server:
        asked = Asked(kind, server)
        assert asked.reply().attempts == 3
    assert asked.waits == [7.0, 9.5]


def test_a_provider_may_name_a_date() -> None:
    now = 1_800_000_000_000
    assert parse_retry_after({"retry-after": "Fri, 15 Jan 2027 08:00:30 GMT"}, now) == 30.0
    assert parse_retry_after({"retry-after": "Fri, 15 Jan 2027 07:00:00 GMT"}, now) == 0.0
    for nothing in ("", "soon", "-1", "1e9", "nan", "99999999999999"):
        assert parse_retry_after({"retry-after": nothing}, now) is None


def test_attempts_and_patience_can_be_set() -> None:
    for how, wanted in (({"attempts": 1}, 1), ({"attempts": 3}, 3), ({"patience": 0}, 1), ({"patience": 2.5}, 3)):
        with model_server(["never"], [Fault(status=500)] * FOREVER) as server:
            Asked("openai", server, **how).failure()
        assert len(server.requests) == wanted, how


def test_a_reply_that_took_longer_than_the_patience_is_tried_once_more() -> None:
    with model_server(["a reply that is cut"], [Fault("cut")] * FOREVER) as server:
        asked = Asked("openai", server)

        def take_long(delta: Delta) -> None:
            asked.clock.advance(100_000)

        with pytest.raises(ModelFailed) as failed:
            asked.reply(take_long)
    assert failed.value.kind == "cut"
    assert len(server.requests) == 2


# what was said and used


def check_reset(kind: str) -> None:
    with model_server(["the whole reply, at last"], [Fault("cut", after=0.7), Fault(status=500)]) as server:
        asked = Asked(kind, server)
        reply = asked.reply()
    kinds = [delta.kind for delta in asked.heard]
    assert kinds.count("reset") == 1, "what was said before is taken back once, when there is something new"
    at = kinds.index("reset")
    before = "".join(delta.text for delta in asked.heard[:at] if delta.kind == "text")
    after = "".join(delta.text for delta in asked.heard[at:] if delta.kind == "text")
    assert before
    assert reply.message.text.startswith(before)
    assert after == reply.message.text == "the whole reply, at last"
    assert reply.attempts == 3


def test_a_reply_that_begins_anew_takes_back_what_was_said(kind: str) -> None:
    check_reset(kind)


def test_what_a_person_saw_before_it_failed_is_kept(kind: str) -> None:
    cut, gone = Fault("cut", after=0.7), Fault(status=500)
    with model_server(["words that a person has seen"], [cut, *[gone] * FOREVER]) as server:
        asked = Asked(kind, server)
        failed = asked.failure()
    assert failed.kind == "unavailable"
    assert failed.partial == asked.said
    assert failed.partial
    assert "reset" not in [delta.kind for delta in asked.heard]


def check_usage_of_failures() -> None:
    with model_server(["never said to its end"], [Fault("cut")] * FOREVER) as server:
        failed = Asked("anthropic", server).failure()
    assert isinstance(failed.usage, holdfast.Usage)
    assert (failed.usage.input, failed.usage.cached_input, failed.usage.output) == (60, 24, 3)
    with model_server(["never"], [Fault("empty")] * FOREVER) as server:
        failed = Asked("openai", server).failure()
    assert isinstance(failed.usage, holdfast.Usage)
    assert failed.usage.spent == 75
    with model_server(["never"], [Fault(status=429)] * FOREVER) as server:
        assert Asked("openai", server).failure().usage is None, "nobody said that anything was used"


def test_what_failed_attempts_used_is_counted() -> None:
    check_usage_of_failures()


def test_what_the_listener_raises_is_the_callers_and_ends_it(kind: str, stream: bool) -> None:
    class Stop(Exception):
        pass

    def say(delta: Delta) -> None:
        raise Stop

    with model_server(["words"]) as server:
        with pytest.raises(Stop):
            Asked(kind, server, stream=stream).reply(say)
        assert len(server.requests) == 1


def test_a_listener_that_raises_a_timeout_is_not_taken_for_the_provider() -> None:
    def say(delta: Delta) -> None:
        raise TimeoutError

    with model_server(["words"]) as server:
        with pytest.raises(TimeoutError):
            Asked("openai", server).reply(say)
        assert len(server.requests) == 1


def test_a_call_that_is_cancelled_ends_at_once(kind: str) -> None:
    with model_server(["late"], [Fault("hang")]) as server:
        model = Asked(kind, server).model

        async def main() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(model.reply(ModelCall(pack=Shown())), 0.05)
            await model.close()

        asyncio.run(main())
        assert len(server.requests) == 1


def test_one_model_serves_several_loops_and_many_calls_at_a_time(kind: str) -> None:
    with model_server() as server:
        asked = Asked(kind, server)

        async def main() -> list[ModelReply]:
            replies = await asyncio.gather(*(asked.model.reply(ModelCall(pack=Shown())) for _ in range(5)))
            await asked.model.close()
            await asked.model.close()
            return replies

        for _ in range(2):
            assert {reply.message.text for reply in asyncio.run(main())} == {"I was shown 1 messages."}


# planted


def test_a_model_that_does_not_take_back_what_it_said_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange.DeltaRelay, "restart", lambda self: None)
    with pytest.raises(AssertionError):
        check_reset("openai")


def test_a_model_that_forgets_what_failed_attempts_used_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    real = http.HttpModel._build_error
    monkeypatch.setattr(
        http.HttpModel,
        "_build_error",
        lambda self, fault, attempt, used, said, key: real(self, fault, attempt, fault.usage, said, key),
    )
    with pytest.raises(AssertionError):
        check_usage_of_failures()


def test_a_model_that_shows_its_key_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.HttpModel, "_redact", lambda self, text, key: text)
    fault = Fault(status=403, message=f"The key {KEY} may not")
    with model_server([], [fault]) as server, pytest.raises(AssertionError):
        Asked("openai", server).failure()

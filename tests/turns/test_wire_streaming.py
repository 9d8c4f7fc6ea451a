"""However a reply is cut into events, it comes to the same whole; what was not whole is never taken for it."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.core.wire import stream as wire_stream
from holdfast.core.wire.plain_data import ReadNotes
from holdfast.core.wire.read import read_input, read_reply
from holdfast.core.wire.stream import StreamAccumulator, event_format
from holdfast.errors import InvalidMessage, InvalidValue, ModelFailed
from holdfast.model import exchange
from holdfast.model.exchange import Fault
from holdfast.records.messages import Message
from holdfast.records.usage import Usage
from tests.model_events import EVENTS, Events, as_data
from tests.model_replies import MAKE
from tests.model_server import model_server
from tests.scale import seeded, volume

FORMS = ("openai", "responses", "anthropic")
WORDS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=30)
PLAIN = st.dictionaries(WORDS, WORDS | st.integers(-(2**40), 2**40) | st.booleans() | st.none(), max_size=3)
CALLS = st.lists(
    st.fixed_dictionaries({"name": st.sampled_from(("pay", "weather", "search")), "arguments": PLAIN}), max_size=3
)
REPLIES = st.fixed_dictionaries(
    {"text": WORDS.filter(bool)},
    optional={
        "calls": CALLS,
        "thinking": WORDS.filter(bool),
        "refusal": WORDS.filter(bool),
        "finish": st.just("length"),
    },
)
FULL = {
    "text": "Let me look.",
    "thinking": "Two cities, so two calls.",
    "calls": [{"name": "weather", "arguments": {"city": city, "days": 3}} for city in ("Lyon", "Paris")],
}


def cutter(seed: int) -> Callable[[str], list[str]]:
    """Cuts texts into pieces of any size, some of them empty."""
    chance = random.Random(seed)

    def cut(text: str) -> list[str]:
        pieces, at = [], 0
        while at < len(text):
            size = chance.choice((0, 1, 1, 2, 5, 50))
            pieces.append(text[at : at + size])
            at += size
        return pieces

    return cut


def whole_of(form: str, reply: Any) -> dict[str, Any]:
    return MAKE[form]({"model": "m"}, reply, 1)


def message_of(whole: dict[str, Any], form: str) -> Message:
    return read_reply(whole, form, ReadNotes(strict=True))


def check_same(form: str, reply: dict[str, Any], seed: int) -> None:
    """The events of a reply come to what it would have been in one piece, and say all that is in it."""
    whole = whole_of(form, reply)
    pieces = StreamAccumulator()
    said = [delta for event in EVENTS[form](whole, cutter(seed)) for delta in pieces.add(event)]
    assert pieces.form == form
    assert pieces.ended
    assert pieces.build_response() == whole
    message = message_of(pieces.build_response(), form)
    assert message == message_of(whole, form)
    assert pieces.usage == message.usage
    # Anthropic's words about a refusal stand beside the message.
    spoken = reply["text"] + (reply.get("refusal", "") if form != "anthropic" else "")
    assert "".join(delta.text for delta in said if delta.kind == "text") == spoken == pieces.text
    assert [delta.text for delta in said if delta.kind == "tool"] == [call.name for call in message.tool_calls]
    if form != "openai":
        assert "".join(delta.text for delta in said if delta.kind == "reasoning") == reply.get("thinking", "")


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=volume(60, 3000), deadline=None, suppress_health_check=list(HealthCheck))
@given(reply=REPLIES, seed=st.integers(0, 2**32))
def test_any_cutting_of_a_reply_comes_to_the_same_whole(form: str, reply: dict[str, Any], seed: int) -> None:
    check_same(form, reply, seed)


@pytest.mark.parametrize("form", FORMS)
def test_a_stream_that_stops_anywhere_before_its_end_is_cut_and_says_what_was_said(form: str) -> None:
    events = EVENTS[form](whole_of(form, FULL))
    ends = next(at for at in range(len(events) + 1) if _fed(events[:at]).ended)
    assert ends > len(events) - 3
    for at in range(ends):
        pieces = _fed(events[:at])
        with pytest.raises(ModelFailed) as failed:
            pieces.build_response()
        assert failed.value.kind == "cut"
        assert failed.value.retryable
        assert failed.value.partial == pieces.text
        assert FULL["text"].startswith(pieces.text)
    assert _fed(events[:-1]).text == FULL["text"]


def test_what_was_used_is_known_as_far_as_it_was_reported() -> None:
    events = EVENTS["anthropic"](whole_of("anthropic", FULL))
    used = _fed(events[:5]).usage
    assert used is not None
    assert (used.input, used.cached_input, used.output) == (20, 8, 1)
    assert _fed(EVENTS["openai"](whole_of("openai", FULL))[:5]).usage is None
    without = _fed(EVENTS["openai"](whole_of("openai", FULL), usage=False))
    assert without.ended
    assert without.usage is None


@pytest.mark.parametrize("form", FORMS)
def test_events_are_taken_as_data_lines_too(form: str) -> None:
    whole = whole_of(form, FULL)
    pieces = StreamAccumulator(form)
    for event in EVENTS[form](whole):
        pieces.add(as_data(event).split(b"data:", 1)[1])
    pieces.add("data: [DONE]")
    pieces.add("")
    assert pieces.build_response() == whole
    with pytest.raises(InvalidMessage):
        pieces.add('data: {"half')
    with pytest.raises(InvalidMessage):
        pieces.add("[1]")


@pytest.mark.parametrize("form", FORMS)
def test_the_first_event_says_whose_stream_it_is(form: str) -> None:
    events = EVENTS[form](whole_of(form, FULL))
    assert event_format(events[0]) == form
    assert event_format({"type": "ping"}) is None
    assert event_format({"hello": 1}) is None


def test_a_form_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidValue, match="responses"):
        StreamAccumulator("gemini")


@pytest.mark.parametrize(
    "event",
    [
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
        {"type": "error", "code": "server_error", "message": "Overloaded"},
        {"error": {"message": "Overloaded"}},
    ],
)
@pytest.mark.parametrize("form", [*FORMS, None])
def test_an_error_within_a_stream_ends_it(form: str | None, event: dict[str, Any]) -> None:
    pieces = StreamAccumulator()
    for before in EVENTS[form](whole_of(form, FULL))[:4] if form else ():
        pieces.add(before)
    assert pieces.add(event) == []
    with pytest.raises(ModelFailed, match="Overloaded") as failed:
        pieces.build_response()
    assert failed.value.retryable


def test_a_response_that_failed_is_no_reply() -> None:
    whole = {**whole_of("responses", "x"), "status": "failed", "error": {"code": "server_error", "message": "Sorry"}}
    pieces = _fed(EVENTS["responses"](whole))
    with pytest.raises(ModelFailed, match="Sorry") as failed:
        pieces.build_response()
    assert failed.value.usage is not None


def test_a_response_whose_last_event_has_no_output_is_made_of_its_items() -> None:
    whole = whole_of("responses", FULL)
    events = EVENTS["responses"](whole)
    events[-1] = {**events[-1], "response": {**whole, "output": []}}
    only_done = [event for event in events if "delta" not in event and not event["type"].endswith("added")]
    pieces, said = StreamAccumulator(), []
    for event in only_done:
        said += pieces.add(event)
    assert pieces.build_response()["output"] == whole["output"]
    assert [(delta.kind, delta.text) for delta in said] == [
        ("text", FULL["text"]),
        ("tool", "weather"),
        ("tool", "weather"),
    ]


def _chunk(**delta: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}


@pytest.mark.parametrize(
    "calls",
    [
        # all calls at index 0, each with its own id
        [
            {"index": 0, "id": "a", "function": {"name": "pay", "arguments": '{"to"'}},
            {"index": 0, "function": {"arguments": ": 1}"}},
            {"index": 0, "id": "b", "function": {"name": "pay", "arguments": '{"to": 2}'}},
        ],
        # no index at all
        [
            {"id": "a", "function": {"name": "pay", "arguments": '{"to"'}},
            {"function": {"arguments": ": 1}"}},
            {"id": "b", "function": {"name": "pay", "arguments": '{"to": 2}'}},
        ],
        # ids and names in every piece, interleaved
        [
            {"index": 0, "id": "a", "type": "function", "function": {"name": "pay", "arguments": '{"to"'}},
            {"index": 1, "id": "b", "type": "function", "function": {"name": "pay", "arguments": '{"to": '}},
            {"index": 0, "id": "a", "type": "function", "function": {"name": "pay", "arguments": ": 1}"}},
            {"index": 1, "id": "b", "type": "function", "function": {"name": "pay", "arguments": "2}"}},
        ],
        # empty ids after the first
        [
            {"index": 0, "id": "a", "function": {"name": "pay"}},
            {"index": 0, "id": "", "function": {"name": None, "arguments": '{"to": 1}'}},
            {"index": 1, "id": "b", "function": {"name": "pa"}},
            {"index": 1, "id": None, "function": {"name": "y", "arguments": '{"to": 2}'}},
        ],
    ],
)
def test_hosts_number_their_calls_as_they_like(calls: list[dict[str, Any]]) -> None:
    pieces = _fed([_chunk(tool_calls=[call]) for call in calls])
    pieces.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]})
    pieces.add({"choices": None, "usage": {"prompt_tokens": 3, "completion_tokens": 4}})
    message = message_of(pieces.build_response(), "openai")
    found = [(call.provider_id, call.name, call.args) for call in message.tool_calls]
    assert found == [("a", "pay", {"to": 1}), ("b", "pay", {"to": 2})]
    assert message.usage is not None
    assert message.usage.spent == 7


def test_reasoning_beside_or_within_the_content_is_kept() -> None:
    pieces = StreamAccumulator("openai")
    said = pieces.add(_chunk(reasoning_content="hm, ")) + pieces.add(_chunk(reasoning_content="yes"))
    said += pieces.add(_chunk(content="Hello")) + pieces.add(_chunk(content=[{"type": "text", "text": " you"}]))
    said += pieces.add(_chunk(content="!"))
    pieces.add({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    assert [delta.kind for delta in said] == ["reasoning", "reasoning", "text", "text", "text"]
    message = pieces.build_response()["choices"][0]["message"]
    assert message["reasoning_content"] == "hm, yes"
    assert message_of(pieces.build_response(), "openai").text == "Hello you!"


def test_other_choices_are_kept_and_not_said() -> None:
    pieces = StreamAccumulator("openai")
    for index in (0, 1):
        choice = {"index": index, "delta": {"content": f"answer {index}"}, "finish_reason": "stop"}
        pieces.add({"choices": [choice]})
    assert pieces.text == "answer 0"
    assert [choice["message"]["content"] for choice in pieces.build_response()["choices"]] == ["answer 0", "answer 1"]


def test_arguments_that_are_not_json_stay_the_text_that_they_are() -> None:
    whole = whole_of("anthropic", {"calls": [{"name": "pay", "arguments": {}}]})
    events = EVENTS["anthropic"](whole, lambda _: ['{"to": 1'])
    pieces = _fed(events)
    with pytest.raises(InvalidMessage, match="not JSON"):
        message_of(pieces.build_response(), "anthropic")


def test_an_answer_given_to_a_tool_is_text() -> None:
    reply = {"text": "Here:", "calls": [{"name": "answer", "arguments": {"sum": 3}}]}
    pieces, said = StreamAccumulator("anthropic", answer_tool="answer"), []
    for event in EVENTS["anthropic"](whole_of("anthropic", reply)):
        said += pieces.add(event)
    assert {delta.kind for delta in said} == {"text"}
    message = message_of(pieces.build_response(), "anthropic")
    assert message.text == pieces.text == 'Here:{"sum": 3}'
    assert not message.tool_calls
    assert pieces.build_response()["stop_reason"] == "end_turn"


GARBAGE = (None, True, 0, -1, 2**70, 1.5, "", "x", [], [1], [{}], [None], {}, {"a": 1}, {"type": "text"}, [{"text": 3}])


def _spoiled(value: Any, chance: random.Random, share: float) -> Any:
    """The same data with something wrong in it here and there."""
    if chance.random() < share:
        return copy.deepcopy(chance.choice(GARBAGE))
    if isinstance(value, dict):
        return {key: _spoiled(item, chance, share) for key, item in value.items() if chance.random() > share}
    return [_spoiled(item, chance, share) for item in value] if isinstance(value, list) else value


def test_events_that_make_no_sense_are_never_more_than_a_failed_reply() -> None:
    chance, whole = seeded("spoiled streams"), 0
    for _ in range(volume(400, 20_000)):
        form = chance.choice(FORMS)
        pieces = StreamAccumulator(chance.choice((form, None)))
        share = chance.choice((0.002, 0.01, 0.05))
        try:
            for event in EVENTS[form](whole_of(form, FULL), cutter(chance.randrange(2**32))):
                pieces.add(spoiled if isinstance(spoiled := _spoiled(event, chance, share), dict) else {})
            exchange.parse_reply(pieces.build_response(), pieces.form or "openai")
            whole += 1
        except (InvalidMessage, ModelFailed, Fault):
            assert isinstance(pieces.text, str)
            assert isinstance(pieces.usage, Usage | None)
    assert whole


def test_a_very_long_reply_is_not_put_together_again_for_each_piece() -> None:
    pieces = StreamAccumulator("openai")
    for _ in range(5_000):
        pieces.add(_chunk(content="word "))
    held = pieces._pieces._choices[0].message["content"]  # type: ignore[union-attr]
    assert len(held) == 5_000, "the text is in its pieces until it is asked for"
    assert len(pieces.text) == 25_000


# the real SDKs


def test_streams_of_the_openai_sdk_are_taken_as_they_are() -> None:
    with model_server([FULL] * 3) as server, openai.OpenAI(base_url=server.url, api_key="none") as client:
        asked: dict[str, Any] = {"model": "gpt-4o", "messages": [{"role": "user", "content": "hi"}]}
        plain = client.chat.completions.create(**asked)
        usage = {"stream_options": {"include_usage": True}}
        _check_sdk(plain, client.chat.completions.create(**asked, stream=True, **usage))
        with client.chat.completions.stream(**asked, **usage) as stream:
            _check_sdk(plain, stream)


def test_streams_of_responses_of_the_openai_sdk_are_taken_as_they_are() -> None:
    with model_server([FULL] * 3) as server, openai.OpenAI(base_url=server.url, api_key="none") as client:
        ask: dict[str, Any] = {"model": "gpt-5", "input": [{"role": "user", "content": "hi"}]}
        whole = client.responses.create(**ask)
        _check_sdk(whole, client.responses.create(**ask, stream=True))
        with client.responses.stream(**ask) as stream:
            _check_sdk(whole, stream)


def test_streams_of_the_anthropic_sdk_are_taken_as_they_are() -> None:
    with model_server([FULL] * 3) as server:
        address = server.url.removesuffix("/v1")
        with anthropic.Anthropic(base_url=address, api_key="none") as client:
            asked: dict[str, Any] = {"model": "claude", "max_tokens": 99}
            asked["messages"] = [{"role": "user", "content": "hi"}]
            plain = client.messages.create(**asked)
            _check_sdk(plain, client.messages.create(**asked, stream=True))
            with client.messages.stream(**asked) as stream:
                _check_sdk(plain, stream)


def _check_sdk(plain: Any, stream: Any) -> None:
    """A stream of an SDK comes to the same message as its response in one piece, but for the ids of the reply."""
    pieces, said = StreamAccumulator(), ""
    for event in stream:
        said += "".join(delta.text for delta in pieces.add(event) if delta.kind == "text")
    (whole,), (wanted,) = read_input(pieces.build_response()), read_input(plain)
    assert whole.text == wanted.text == said
    assert [(call.name, call.args) for call in whole.tool_calls] == [(c.name, c.args) for c in wanted.tool_calls]
    assert whole.usage == wanted.usage
    kinds = [part["type"] for part in whole.content or () if isinstance(part, dict)]
    assert kinds == [part["type"] for part in wanted.content or () if isinstance(part, dict)]


# planted


def _planted(name: str) -> tuple[Any, str, Any]:
    def last_wins(held: dict[str, Any], more: dict[str, Any]) -> None:
        held.update({key: value for key, value in more.items() if value is not None})

    def no_usage(self: Any, usage: Any) -> None:
        self.usage = None

    def unsigned(self: Any, index: int) -> dict[str, Any]:
        return {key: value for key, value in self._blocks[index].items() if key != "signature"}

    def one_call(self: Any, piece: dict[str, Any]) -> tuple[dict[str, Any], bool]:
        self.calls = self.calls or [{"id": "", "type": "function"}]
        return self.calls[0], False

    return {
        "pieces replace one another": (wire_stream, "merge_pieces", last_wins),
        "usage is forgotten": (wire_stream.StreamPieces, "add_usage", no_usage),
        "signatures are lost": (wire_stream.MessagePieces, "_build_block", unsigned),
        "parallel calls are one": (wire_stream._ChatChoice, "_find_or_add_call", one_call),
    }[name]


@pytest.mark.parametrize(
    ("bug", "form"),
    [
        ("pieces replace one another", "openai"),
        ("usage is forgotten", "anthropic"),
        ("usage is forgotten", "openai"),
        ("signatures are lost", "anthropic"),
        ("parallel calls are one", "openai"),
    ],
)
def test_planted_bugs_are_noticed(bug: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_same(form, FULL, 1)
    place, name, broken = _planted(bug)
    monkeypatch.setattr(place, name, broken)
    with pytest.raises((AssertionError, TypeError, KeyError)):
        check_same(form, FULL, 1)


def _fed(events: Events) -> StreamAccumulator:
    pieces = StreamAccumulator()
    for event in events:
        pieces.add(event)
    return pieces

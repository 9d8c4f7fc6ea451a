"""What a loop may hand back as a model's answer: whole responses and streams of every provider, and nonsense."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, CallTool
from holdfast.errors import InvalidMessage, InvalidValue, ModelFailed
from holdfast.records.usage import Usage
from tests.backends import IN_MEMORY
from tests.turns.loops import SESSION, asks, kinds, leave_at, loop, place, replies, spoken, take

Holdfast = holdfast.Holdfast


def openai_reply(message: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "r",
        "object": "chat.completion",
        "model": "gpt-4o",
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10, "completion_tokens": 5},
    }


def responses_reply(*items: dict[str, Any]) -> dict[str, Any]:
    usage = {"input_tokens": 10, "output_tokens": 5}
    return {"id": "r", "object": "response", "status": "completed", "model": "gpt-5", "output": items, "usage": usage}


def anthropic_reply(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": "r",
        "type": "message",
        "role": "assistant",
        "model": "claude-sonnet-4",
        "content": list(blocks),
        "stop_reason": "end_turn",
        "usage": {"input_tokens": 10, "output_tokens": 5},
    }


FUNCTION = {"name": "look", "arguments": '{"at": 1}'}
MESSAGE = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Seen."}]}
WHOLE = {
    "openai": (
        openai_reply({"content": None, "tool_calls": [{"id": "c", "type": "function", "function": FUNCTION}]}),
        openai_reply({"content": "Seen."}),
    ),
    "responses": (
        responses_reply(
            {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
            {"type": "function_call", "call_id": "c", "id": "fc_1", **FUNCTION},
        ),
        responses_reply(
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Seen."}]}
        ),
    ),
    "anthropic": (
        anthropic_reply(
            {"type": "thinking", "thinking": "hm", "signature": "s"},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {"at": 1}},
        ),
        anthropic_reply({"type": "text", "text": "Seen."}),
    ),
}


@pytest.mark.parametrize("form", WHOLE)
def test_whole_responses_of_every_form_are_taken(hf: Holdfast, form: str) -> None:
    given = list(WHOLE[form])
    with hf.session(SESSION).turn("Look.") as turn:
        steps = loop(turn, replies(*given))
    assert kinds(steps) == ["CallModel", "CallTool", "CallModel", "Done"]
    assert turn.text == "Seen."
    assert (turn.usage.input, turn.usage.output) == (20, 10)
    assert spoken(hf)[2] == ("tool", [{"got": {"at": 1}}])


def test_what_only_its_provider_understands_goes_back_to_it_unaltered(hf: Holdfast) -> None:
    seen = []

    def model(step: CallModel) -> None:
        seen.append(step.pack.to_anthropic()["messages"])
        step.done(WHOLE["anthropic"][len(seen) - 1])

    take(hf, "Look.", model)
    assert {"type": "thinking", "thinking": "hm", "signature": "s"} in seen[1][1]["content"]


NONSENSE: list[Any] = [
    "",
    None,
    17,
    b"bytes",
    [],
    {},
    {"role": "user", "content": "me"},
    {"role": "assistant"},
    {"role": "assistant", "content": ""},
    {"choices": []},
    {"choices": [{"delta": {"content": "a"}}]},
    {"error": {"message": "overloaded"}},
    object(),
    ["a", "b"],
    {"type": "message", "role": "assistant", "content": [], "stop_reason": "end_turn"},
]


@IN_MEMORY
@pytest.mark.parametrize("wrong", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_refused_and_the_step_stays_open(hf: Holdfast, wrong: Any) -> None:
    with hf.session(SESSION).turn("Hello") as turn:
        (step,) = turn.steps()
        before = hf.journal.position()
        with pytest.raises(InvalidValue):
            step.done(wrong)
        assert hf.journal.position() == before
        assert not step.answered
        step.done("Hi.")
    assert spoken(hf)[-1] == ("assistant", "Hi.")


def test_a_reply_that_did_not_end_by_itself_is_kept_with_its_reason(hf: Holdfast) -> None:
    cut = openai_reply({"content": "And then"})
    cut["choices"][0]["finish_reason"] = "length"
    done = take(hf, "Tell me.", replies(cut))
    assert (done.status, done.text) == ("done", "And then")
    (responded,) = [event.facts for event in hf.journal.events(place(), types=["model.responded"])]
    assert responded.finish == "length"


# streams


def chat_chunks() -> list[dict[str, Any]]:
    def chunk(delta: dict[str, Any], **more: Any) -> dict[str, Any]:
        return {
            "id": "r",
            "object": "chat.completion.chunk",
            "model": "gpt-4o",
            "choices": [{"index": 0, "delta": delta, **more}],
        }

    usage = {"prompt_tokens": 10, "completion_tokens": 5}
    return [
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "See"}),
        chunk({"content": "n."}),
        chunk({}, finish_reason="stop"),
        {"id": "r", "object": "chat.completion.chunk", "model": "gpt-4o", "choices": [], "usage": usage},
    ]


def anthropic_chunks() -> list[dict[str, Any]]:
    begun = {**anthropic_reply(), "stop_reason": None, "usage": {"input_tokens": 10, "output_tokens": 1}}
    return [
        {"type": "message_start", "message": begun},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "See"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "n."}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 5}},
        {"type": "message_stop"},
    ]


def responses_chunks() -> list[dict[str, Any]]:
    item = {**MESSAGE, "id": "m"}
    place = {"item_id": "m", "output_index": 0, "content_index": 0}
    return [
        {"type": "response.created", "response": {**responses_reply(), "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
        {"type": "response.output_text.delta", **place, "delta": "See"},
        {"type": "response.output_text.delta", **place, "delta": "n."},
        {"type": "response.output_item.done", "output_index": 0, "item": item},
        {"type": "response.completed", "response": responses_reply(item)},
    ]


STREAMS = {"openai": chat_chunks(), "anthropic": anthropic_chunks(), "responses": responses_chunks()}


@pytest.mark.parametrize("form", STREAMS)
def test_streams_of_every_form_are_passed_on_and_kept_whole(hf: Holdfast, form: str) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        (step,) = turn.steps()
        assert list(step.stream(iter(STREAMS[form]))) == ["See", "n."]
        (done,) = turn.steps()
    assert (done.status, done.text) == ("done", "Seen.")
    assert (turn.usage.input, turn.usage.output) == (10, 5)
    assert not hf.session(SESSION).messages()[-1].partial


@IN_MEMORY
@pytest.mark.parametrize("form", STREAMS)
@pytest.mark.parametrize("at", [1, 3, 4])
def test_a_cut_stream_is_a_failure_and_the_model_is_asked_again(hf: Holdfast, form: str, at: int) -> None:
    with hf.session(SESSION).turn("Look.", key="k") as turn:
        (step,) = turn.steps()
        if form == "openai" and at == 4:
            assert list(step.stream(STREAMS[form][:at])) == ["See", "n."], "all that was missing is the usage"
            return
        with pytest.raises(ModelFailed) as failed:
            list(step.stream(STREAMS[form][:at]))
        assert failed.value.retryable
        (again,) = turn.steps()
        assert isinstance(again, CallModel)
        assert again.call != step.call
        again.done("Seen.")
    assert spoken(hf) == [("user", "Look."), ("assistant", "Seen.")], "half a reply is not said beside the whole one"


def test_a_stream_that_breaks_leaves_the_turn_live_and_the_call_torn(hf: Holdfast) -> None:
    def breaks() -> Iterator[Any]:
        yield from chat_chunks()[:2]
        raise ConnectionError("reset by peer")

    def model(step: CallModel) -> None:
        list(step.stream(breaks()))

    with pytest.raises(ConnectionError):
        take(hf, "Look.", model, key="k")
    with hf.session(SESSION).turn("Look.", key="k") as turn:
        (step,) = turn.steps()
        assert step.repeated
        step.done("Seen.")


@IN_MEMORY
@pytest.mark.parametrize("chunks", [[], [{"type": "ping"}], ["data: [DONE]"], [{"unknown": 1}]])
def test_an_empty_stream_is_no_answer(hf: Holdfast, chunks: list[Any]) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        (step,) = turn.steps()
        with pytest.raises((InvalidValue, ModelFailed)):
            list(step.stream(chunks))
        if not step.answered:
            step.fail("Nothing came.", retryable=True)
        turn.steps()[0].done("Seen.")


@IN_MEMORY
@pytest.mark.parametrize("chunk", ["data: {", b"\xff", "data: 17"])
def test_a_stream_of_nonsense_is_refused_and_the_step_stays_open(hf: Holdfast, chunk: Any) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        (step,) = turn.steps()
        with pytest.raises(InvalidMessage):
            list(step.stream([*chat_chunks()[:2], chunk]))
        assert not step.answered
        step.done("Seen.")


def test_a_stream_with_calls_and_words(hf: Holdfast) -> None:
    def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return {"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

    def call(arguments: str, **more: Any) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, **more, "function": {**more.pop("fn", {}), "arguments": arguments}}]}

    chunks = [
        chunk({"content": "Let me look."}),
        chunk(call("", id="c1", type="function", fn={"name": "look"})),
        chunk(call('{"at"')),
        chunk(call(": 1}")),
        chunk({}, "tool_calls"),
    ]
    with hf.session(SESSION).turn("Look.") as turn:
        (step,) = turn.steps()
        assert list(step.stream(chunks)) == ["Let me look."]
        (tool,) = turn.steps()
        assert isinstance(tool, CallTool)
        assert (tool.name, tool.args) == ("look", {"at": 1})
        tool.done("x")
        turn.steps()[0].done("Seen.")


def test_who_leaves_a_stream_has_not_answered(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        (step,) = turn.steps()
        for _ in step.stream(chat_chunks()):
            break
        with pytest.raises(holdfast.errors.StepUnanswered):
            turn.steps()
        done = turn.stop("The person left.")
    assert done.text == "See"


# a rule that fails after the reply is written


def test_a_reply_that_was_written_counts_whatever_fails_after_it(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*args: Any, **how: Any) -> None:
        raise RuntimeError("a rule of yours")

    with hf.session(SESSION).turn("Look.", key="k") as turn:
        (step,) = turn.steps()
        with monkeypatch.context() as patch:
            patch.setattr(holdfast.flow.compaction.rules, "fire_rules", fails)
            with pytest.raises(RuntimeError):
                step.done(asks(("look", {})))
        (tool,) = turn.steps()
        with monkeypatch.context() as patch:
            patch.setattr(holdfast.flow.compaction.rules, "fire_rules", fails)
            with pytest.raises(RuntimeError):
                tool.done("ok")
        turn.steps()[0].done("Seen.", usage=Usage(input=1, output=1))
    assert [role for role, _ in spoken(hf)] == ["user", "assistant", "tool", "assistant"]
    leave_at(hf, "Again.", CallModel, replies())

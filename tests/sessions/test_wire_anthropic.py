"""Messages: what is read comes back, what is sent keeps the strictest rules, whatever it was read from."""

from __future__ import annotations

from typing import Any

import pytest
from anthropic.types import MessageParam, ToolUnionParam
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from holdfast.core.sessions.rounds import repair_messages
from holdfast.core.wire import anthropic, openai_chat, openai_responses
from holdfast.core.wire.anthropic import EARLIER_NOT_SHOWN
from holdfast.core.wire.calls import match_results
from holdfast.core.wire.parts import message_parts
from holdfast.core.wire.tools import read_tool_defs
from holdfast.records.messages import INTERRUPTED_RESULT, Message, ToolCallRequest, ToolCallResult
from tests.scale import seeded, volume
from tests.sessions.garbage import ANTHROPIC, JSON, kept_as_they_are
from tests.sessions.generated import conversation
from tests.sessions.provider_rules import anthropic_problems
from tests.sessions.sdk_types import checked_against
from tests.sessions.wire_forms import anthropic_form, openai_form, responses_form


def back(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Read and written again, as an export does."""
    reading = anthropic.read_messages(messages)
    assert reading.repairs == []
    written: list[dict[str, Any]] = anthropic.render_request(reading.messages, ids="provider")["messages"]
    return written


def user(text: str = "hi") -> Message:
    return Message(role="user", content=text)


def asks(*ids: str, content: Any = None) -> Message:
    made = (ToolCallRequest(name="find", provider_id=given) for given in ids)
    return Message(role="assistant", content=content, tool_calls=tuple(made))


def gives(*ids: str, **fields: Any) -> Message:
    return Message(role="tool", tool_results=tuple(ToolCallResult(provider_id=given, **fields) for given in ids))


def test_every_valid_conversation_comes_back_equal() -> None:
    rng = seeded("anthropic")
    for _ in range(volume(150, 20_000)):
        wire = anthropic_form(rng)
        assert back(wire) == wire


def test_a_reader_that_drops_thinking_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    read = anthropic._read_block

    def thoughtless(block: Any, notes: Any) -> Any:
        found = read(block, notes)
        return None if found and found["type"] == "reasoning" else found

    monkeypatch.setattr(anthropic, "_read_block", thoughtless)
    with pytest.raises(AssertionError):
        test_every_valid_conversation_comes_back_equal()


def test_what_is_sent_is_valid_whatever_was_read() -> None:
    rng = seeded("anthropic sent")
    for nth in range(volume(200, 20_000)):
        if nth % 3 == 0:
            messages = anthropic.read_messages(anthropic_form(rng)).messages
        elif nth % 3 == 1:
            messages = openai_chat.read_messages(openai_form(rng)).messages
        else:
            messages = conversation(rng, own_ids=nth % 2 == 0)
        valid = repair_messages(messages).messages
        start = rng.randrange(len(valid)) if valid else 0
        window = repair_messages(valid[start:]).messages
        assert anthropic_problems(anthropic.render_request(window)) == []


@pytest.mark.parametrize("broken", ["results behind texts", "first message as it is", "blank texts"])
def test_breaking_a_rule_is_noticed(broken: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if broken == "results behind texts":
        monkeypatch.setattr(anthropic, "sorted", lambda blocks, key: list(reversed(blocks)), raising=False)
    elif broken == "first message as it is":
        monkeypatch.setattr(anthropic, "EARLIER_NOT_SHOWN", " ")
    else:
        monkeypatch.setattr(anthropic, "_render_text", lambda part: [{"type": "text", "text": " "}])
    with pytest.raises(AssertionError):
        test_what_is_sent_is_valid_whatever_was_read()


def test_messages_and_tools_have_the_sdks_types() -> None:
    rng = seeded("anthropic types")
    messages_type = TypeAdapter(list[MessageParam])
    for nth in range(volume(60, 2_000)):
        messages = conversation(rng) if nth % 2 else anthropic.read_messages(anthropic_form(rng)).messages
        checked_against(messages_type, anthropic.render_request(repair_messages(messages).messages)["messages"])
    function = {"type": "function", "function": {"name": "find", "parameters": {"type": "object"}, "strict": True}}
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    told = anthropic.render_request([], tools=read_tool_defs([function, hosted, {"type": "web_search"}]))["tools"]
    assert len(checked_against(TypeAdapter(list[ToolUnionParam]), told)) == 2


@pytest.mark.parametrize("form", [openai_form, responses_form])
def test_texts_calls_arguments_results_and_pairs_survive_the_crossing(form: Any) -> None:
    rng = seeded("crossing")
    read = openai_chat.read_messages if form is openai_form else openai_responses.read_messages
    for _ in range(volume(100, 10_000)):
        given = repair_messages(read(form(rng)).messages).messages
        crossed = anthropic.read_messages(anthropic.render_request(given)["messages"])
        assert crossed.repairs == []
        assert repair_messages(crossed.messages).repairs == []
        assert _pairs(crossed.messages) == _pairs(given)
        said = "".join(message.text for message in crossed.messages)
        for part in (
            part for message in given for part in message_parts(message) if message.role in ("user", "assistant")
        ):
            assert part["type"] != "text" or part["text"] in said


def _pairs(messages: list[Message]) -> list[tuple[str, Any, list[str]]]:
    """Each call with its arguments and the texts of its result, by position."""
    found = []
    for (index, at), (where, nth) in sorted(match_results(messages).answers.items()):
        call, result = messages[index].tool_calls[at], messages[where].tool_results[nth].result
        texts = [result] if isinstance(result, str) else [part["text"] for part in result if part["type"] == "text"]
        found.append((call.name, call.args, [text for text in texts if text and not text.startswith("[")]))
    return found


def test_results_are_first_in_the_message_behind_their_calls_and_neighbours_are_one_message() -> None:
    note = Message(role="developer", content="Be kind.")
    shown = anthropic.render_request(
        [user(), asks("a", "b"), gives("a", result="1"), gives("b", result="2"), note, user("so?")]
    )
    assert shown == {
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [
                    {"type": "tool_use", "id": "a", "name": "find", "input": {}},
                    {"type": "tool_use", "id": "b", "name": "find", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": "1"},
                    {"type": "tool_result", "tool_use_id": "b", "content": "2"},
                    {"type": "text", "text": "[Developer message]\nBe kind."},
                    {"type": "text", "text": "so?"},
                ],
            },
        ]
    }


def test_prompts_at_the_head_join_the_system_prompt() -> None:
    head = [Message(role="system", content="Be brief."), Message(role="developer", content="Use metres.")]
    shown = anthropic.render_request([*head, user()], system="You are Ann.")
    assert shown["system"] == "You are Ann.\n\nBe brief.\n\nUse metres."
    assert shown["messages"] == [{"role": "user", "content": "hi"}]


def test_a_list_that_begins_with_the_assistant_says_that_more_came_before() -> None:
    greeting = Message(role="assistant", content="Hello!  ")
    assert anthropic.render_request([greeting, user()])["messages"][0] == {"role": "user", "content": EARLIER_NOT_SHOWN}
    assert anthropic.render_request([greeting])["messages"][-1] == {"role": "assistant", "content": "Hello!"}
    assert anthropic.render_request([greeting, user()], ids="provider")["messages"][0]["content"] == "Hello!  "


def test_ids_become_valid_and_stay_paired() -> None:
    messages = [user()]
    for nth in range(3):
        messages += [asks("chat:1/é"), gives("chat:1/é", result=str(nth))]
    shown = anthropic.render_request(messages)
    assert anthropic_problems(shown) == []
    assert [block["content"] for turn in shown["messages"][2::2] for block in turn["content"]] == ["0", "1", "2"]


def test_failures_and_torn_calls_are_errors() -> None:
    blocks = [
        anthropic.render_request([gives("a", **fields)])["messages"][0]["content"][0]
        for fields in ({"result": "no", "is_error": True}, {"interrupted": True}, {"result": ""}, {"is_error": True})
    ]
    assert [(block.get("content"), block.get("is_error")) for block in blocks] == [
        ("no", True),
        (INTERRUPTED_RESULT, True),
        (None, None),
        ("The tool failed without saying why.", True),
    ]


def test_arguments_that_are_no_object_are_wrapped_in_one() -> None:
    call = ToolCallRequest(name="f", arguments="[1, 2]", provider_id="a")
    (_, shown) = anthropic.render_request([Message(role="assistant", tool_calls=(call,))])["messages"]
    assert shown["content"][0]["input"] == {"value": [1, 2]}


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ({"type": "image", "data": b"x", "media_type": "image/jpg"}, "image"),
        ({"type": "image", "data": b"x", "media_type": "image/bmp"}, "[image image/bmp not shown]"),
        ({"type": "file", "data": b"x", "media_type": "image/png"}, "image"),
        ({"type": "file", "data": b"x", "media_type": "application/pdf", "name": "a"}, "document"),
        ({"type": "file", "data": b"x", "media_type": "text/csv"}, "document"),
        ({"type": "file", "data": b"\xff", "media_type": "text/csv", "name": "a.csv"}, "[file a.csv not shown]"),
        ({"type": "file", "data": b"x", "media_type": "application/zip"}, "[file application/zip not shown]"),
        ({"type": "file", "file_id": "f", "provider": "openai"}, "[file not shown]"),
        ({"type": "image", "artifact": "gone"}, "[erased]"),
        ({"type": "other", "provider": "openai", "item": {"type": "input_audio"}}, "[input_audio not shown]"),
    ],
)
def test_images_and_files_are_given_where_they_can_be_and_named_where_not(part: dict[str, Any], shown: str) -> None:
    kwargs = anthropic.render_request([Message(role="user", content=[part])])
    (block,) = kwargs["messages"][0]["content"]
    assert block.get("text", block["type"]) == shown
    assert anthropic_problems(kwargs) == []


@pytest.mark.parametrize(
    ("given", "normal"),
    [
        (
            [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}]}],
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "user", "content": "b"}],
            [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}],
        ),
        (
            [
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "a", "content": [], "is_error": False}],
                }
            ],
            [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}],
        ),
        (
            [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}],
            [
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "[System message]\nb"}],
                }
            ],
        ),
    ],
)
def test_what_is_normalised_is_what_the_module_says(given: Any, normal: list[dict[str, Any]]) -> None:
    assert back(given) == normal
    assert back(normal) == normal


def test_the_system_prompt_is_text_or_blocks() -> None:
    blocks = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}, {"type": "text", "text": "b"}]
    assert anthropic.read_messages([], system=blocks).system == "a\n\nb"
    assert anthropic.read_messages([], system="a").system == "a"
    assert anthropic.read_messages([]).system is None


@pytest.mark.parametrize(
    ("wire", "problem"),
    [
        (None, "malformed"),
        ({"role": "critic", "content": "hm"}, "unknown_role"),
        ({"role": "user", "content": []}, "empty_message"),
        ({"role": "user", "content": 3}, "malformed"),
        ({"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}, "malformed"),
        ({"role": "assistant", "content": [{"type": "tool_result", "tool_use_id": "a"}]}, "malformed"),
        ({"role": "assistant", "content": [{"type": "tool_use", "id": "a", "input": {}}]}, "nameless_call"),
        ({"role": "user", "content": [{"type": "image", "source": {"type": "base64"}}]}, "malformed"),
    ],
)
def test_what_is_broken_is_repaired_or_left_out_and_reported(wire: Any, problem: str) -> None:
    fine = {"role": "user", "content": "fine"}
    reading = anthropic.read_messages([fine, wire, fine])
    assert (1, problem) in {(repair.index, repair.problem) for repair in reading.repairs}
    assert {repair.index for repair in reading.repairs} == {1}
    assert anthropic_problems(anthropic.render_request(repair_messages(reading.messages).messages)) == []


@given(JSON)
@settings(max_examples=volume(60, 5_000), deadline=None)
def test_no_data_at_all_makes_reading_raise(items: Any) -> None:
    anthropic.render_request(anthropic.read_messages(items, system=items).messages)


@given(st.lists(ANTHROPIC, max_size=4))
@settings(max_examples=volume(100, 10_000), deadline=None)
def test_nothing_that_looks_like_messages_makes_reading_raise(items: list[Any]) -> None:
    valid = repair_messages(anthropic.read_messages(items).messages).messages
    shown = anthropic.render_request(valid)
    assert anthropic_problems(shown) == [] or kept_as_they_are(valid)

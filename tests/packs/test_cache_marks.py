"""Marks for Anthropic's cache, case by case: where ours stand, and that the caller's own come first."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.wire import anthropic
from holdfast.core.wire.tools import read_tool_defs
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult
from tests.sessions.cache_rules import marks
from tests.sessions.provider_rules import anthropic_problems

from .shown_messages import HOUR, MARK, NOTHING_SAID, TOOLS, flat, said, textual, unmarked

TALK = [said("user", "a"), said("assistant", "b"), said("user", "c")]


def test_the_system_prompt_the_boundary_and_the_end_are_marked() -> None:
    assert anthropic.render_request(TALK, system="s", tools=TOOLS[:1], stable=1) == {
        "system": [{**textual("s"), **MARK}],
        "messages": [
            {"role": "user", "content": [{**textual("a"), **MARK}]},
            {"role": "assistant", "content": "b"},
            {"role": "user", "content": [{**textual("c"), **MARK}]},
        ],
        "tools": [{"name": "find", "input_schema": {"type": "object", "properties": {}}}],
    }


def test_without_a_system_prompt_the_last_tool_is_marked() -> None:
    request = anthropic.render_request(TALK, tools=TOOLS, stable=0)
    assert ["cache_control" in tool for tool in request["tools"]] == [False, True]
    assert [isinstance(message["content"], str) for message in request["messages"]] == [True, True, False]


def test_a_tool_that_is_loaded_later_is_not_marked() -> None:
    late = {"type": "tool_search_tool_bm25_20251119", "name": "search", "defer_loading": True}
    request = anthropic.render_request(TALK, tools=read_tool_defs([*TOOLS, late]), stable=0)
    assert ["cache_control" in tool for tool in request["tools"]] == [False, True, False]


def test_a_system_prompt_that_volatile_messages_joined_is_not_marked() -> None:
    messages = [said("system", "Today is Monday."), *TALK]
    assert anthropic.render_request(messages, system="s", tools=TOOLS, stable=0)["system"] == "s\n\nToday is Monday."
    assert "cache_control" in anthropic.render_request(messages, system="s", tools=TOOLS, stable=0)["tools"][-1]
    assert isinstance(anthropic.render_request(messages, system="s", stable=1)["system"], list)


def test_thinking_is_not_marked_and_what_comes_before_it_is() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
    part = {"type": "reasoning", "provider": "anthropic", "item": thought}
    messages = [said("user", "a"), Message(role="assistant", content=[part]), said("user", "b")]
    request = anthropic.render_request(messages, stable=2)
    assert request["messages"][0]["content"] == [{**textual("a"), **MARK}]
    assert request["messages"][1]["content"] == [thought]


def test_a_stable_block_behind_a_volatile_one_is_not_marked() -> None:
    call = ToolCallRequest(name="find", provider_id="c1")
    late = Message(role="tool", tool_results=(ToolCallResult(provider_id="c1", result="here"),))
    messages = [said("user", "a"), Message(role="assistant", tool_calls=(call,)), said("user", "wait"), late]
    request = anthropic.render_request(messages, stable=3)
    assert [block["type"] for block in request["messages"][2]["content"]] == ["tool_result", "text"]
    assert "cache_control" not in request["messages"][2]["content"][0]
    assert "cache_control" in request["messages"][1]["content"][0], "the last that nothing volatile comes before"


def test_an_end_that_had_to_be_trimmed_is_not_marked() -> None:
    begun = [said("user", "a"), said("assistant", "It is ")]
    request = anthropic.render_request(begun, stable=2)
    assert request["messages"][1] == {"role": "assistant", "content": "It is"}
    assert request["messages"][0]["content"] == [{**textual("a"), **MARK}]


def test_a_trimmed_end_that_is_marked_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    add = anthropic._make_sendable
    monkeypatch.setattr(anthropic, "_make_sendable", lambda turns, count: add(turns, 0))
    with pytest.raises(AssertionError):
        test_an_end_that_had_to_be_trimmed_is_not_marked()


def test_words_that_stand_for_nothing_are_not_marked() -> None:
    assert anthropic.render_request([said("user", " ")], stable=1) == {
        "messages": [{"role": "user", "content": NOTHING_SAID}]
    }


@pytest.mark.parametrize("stable", [-3, 0, 3, 99])
def test_a_boundary_outside_of_the_messages_is_their_beginning_or_end(stable: int) -> None:
    request = anthropic.render_request(TALK, system="s", stable=stable)
    assert anthropic_problems({**request}) == []
    assert flat(request)[1] == [0, 3]


# marks of the caller's own


def own(count: int, mark: dict[str, Any] = MARK) -> list[Message]:
    """A message whose blocks the caller has marked."""
    return [Message(role="user", content=[{**textual(f"u{nth}"), "anthropic": mark} for nth in range(count)])]


@pytest.mark.parametrize(
    ("theirs", "found"), [(0, [0, 1, 3]), (1, [0, 1, 3]), (2, [0, 1, 2, 4]), (3, [1, 2, 3, 5]), (4, [1, 2, 3, 4])]
)
def test_ours_give_way_to_the_callers(theirs: int, found: list[int]) -> None:
    first = own(theirs) if theirs else [said("user", "a")]
    messages = [*first, said("assistant", "b"), said("user", "c")]
    request = anthropic.render_request(messages, system="s", stable=1)
    assert anthropic_problems({**request}) == []
    assert flat(request)[1] == found


def test_of_too_many_the_last_four_stay() -> None:
    request = anthropic.render_request([*own(6), *TALK[1:]], system="s", stable=3)
    assert flat(request)[1] == [3, 4, 5, 6]
    assert len(list(marks({**anthropic.render_request(own(6))}))) == 6, (
        "without a boundary they are the caller's own affair"
    )


def test_marks_inside_results_count_too() -> None:
    call = ToolCallRequest(name="find", provider_id="c1")
    inner = [{**textual(f"r{nth}"), "anthropic": MARK} for nth in range(5)]
    result = Message(role="tool", tool_results=(ToolCallResult(provider_id="c1", result=inner),))
    messages = [said("user", "a"), Message(role="assistant", tool_calls=(call,)), result]
    request = anthropic.render_request(messages, system="s", stable=1)
    assert anthropic_problems({**request}) == []
    kept = request["messages"][2]["content"][0]["content"]
    assert ["cache_control" in block for block in kept] == [False, True, True, True, True]


def test_ours_do_not_stand_before_one_that_lives_longer() -> None:
    messages = [said("user", "a"), said("assistant", "b"), *own(1, HOUR), said("assistant", "d"), said("user", "e")]
    request = anthropic.render_request(messages, system="s", tools=TOOLS, stable=1)
    assert anthropic_problems({**request}) == []
    assert flat(request)[1] == [5, 7]


def test_a_mark_of_the_callers_that_is_not_valid_is_left_out() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "c2ln", **MARK}
    part = {"type": "reasoning", "provider": "anthropic", "item": thought}
    messages = [said("user", "a"), Message(role="assistant", content=[part, textual("b")]), said("user", "c")]
    request = anthropic.render_request(messages, stable=2)
    assert anthropic_problems({**request}) == []
    assert request["messages"][1]["content"][0] == unmarked(thought)
    assert thought.keys() > {"cache_control"}, "what is stored is not touched"

"""Windows over a list of the caller's own: same kind out as in, same objects where nothing had to change."""

from __future__ import annotations

import copy
import json
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import windows
from holdfast.core.sessions.tokens import ANTHROPIC, OPENAI, request_tokens
from holdfast.core.wire import openai_chat
from holdfast.errors import BudgetTooSmall, InvalidValue
from holdfast.records.messages import INTERRUPTED_RESULT, Message
from holdfast.windows import slide_window, summarise_window
from tests.scale import seeded, volume
from tests.sessions.generated import as_dicts, conversation
from tests.sessions.provider_rules import openai_problems

SYSTEM = {"role": "system", "content": "Be kind."}


def quarter(text: str) -> int:
    return (len(text) + 3) // 4


def call(call_id: str, name: str = "find") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}


def asks(*ids: str) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [call(each) for each in ids]}


def gives(call_id: str, content: Any = "found") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


def user(text: str = "hi") -> dict[str, Any]:
    return {"role": "user", "content": text}


def refused(messages: list[dict[str, Any]]) -> list[str]:
    """What OpenAI refuses. It takes ids again in later messages, only not twice in one."""
    per_message = ({*ids} for each in messages if (ids := [one["id"] for one in each.get("tool_calls", ())]))
    twice = sum(len(each.get("tool_calls", ())) for each in messages) - sum(map(len, per_message))
    found = [problem for problem in openai_problems(messages) if "comes twice" not in problem]
    return [*found, *(["an id twice in one message"] if twice else [])]


def test_a_tool_that_was_invented_has_a_name_that_is_taken_back() -> None:
    call = {"id": "a", "type": "function", "function": {"name": "functions.find", "arguments": "{}"}}
    asked = {"role": "assistant", "content": None, "tool_calls": [call]}
    history = [user("1"), asked, {**gives("a"), "name": "functions.find"}, asks("b"), gives("b"), user("2")]
    assert refused(history)
    window = slide_window(history, max_messages=20)
    assert refused(window) == []
    assert window[1]["tool_calls"][0]["function"]["name"] == window[2]["name"] != "functions.find"
    assert [window[at] is history[at] for at in range(6)] == [True, False, False, True, True, True]


def test_unchanged_dicts_are_the_same_objects() -> None:
    history = [SYSTEM, user("1"), asks("a"), gives("a"), {"role": "assistant", "content": "ok", "mine": 1}, user("2")]
    window = slide_window(history, max_messages=5)
    assert all(one is other for one, other in zip(window, [SYSTEM, *history[2:]], strict=True))
    assert isinstance(window, list)
    assert json.dumps(window)
    assert window.window.left_out == 1


def test_messages_come_back_as_messages() -> None:
    history = [Message(role="system", content="x"), *(Message(role="user", content=str(n)) for n in range(9))]
    window = slide_window(history, max_messages=3)
    assert all(one is other for one, other in zip(window, [history[0], *history[-2:]], strict=True))


def test_every_window_over_dicts_is_valid_within_its_limit_and_leaves_the_list_alone() -> None:
    rng = seeded("dicts")
    for _ in range(volume(60, 2_000)):
        history = as_dicts(conversation(rng, huge=rng.random() < 0.3))
        before = copy.deepcopy(history)
        for limits in ({"max_messages": rng.randint(2, 20)}, {"max_tokens": rng.randint(100, 2_000)}):
            try:
                window = slide_window(history, tokenizer=quarter, **limits)
            except BudgetTooSmall:
                continue
            assert refused(window) == []
            assert len(window) <= limits.get("max_messages", 1 << 60)
            if "max_tokens" in limits:
                tokens = request_tokens(openai_chat.read_messages(window).messages, quarter, OPENAI)
                assert tokens == window.window.tokens
                assert tokens <= limits["max_tokens"]
        assert history == before


def test_what_had_to_be_made_or_changed_is_a_plain_dict() -> None:
    history = [user(), asks("a", "b"), user("and?"), gives("b", "two")]
    window = slide_window(history, max_messages=9)
    assert window == [
        user(),
        asks("a", "b"),
        gives("a", f"Error: {INTERRUPTED_RESULT}"),
        gives("b", "two"),
        user("and?"),
    ]
    assert window[1] is history[1]
    assert window[3] is history[3]
    assert [(repair.index, repair.problem) for repair in window.window.repairs] == [
        (1, "missing_result"),
        (3, "misplaced_result"),
    ]


def test_a_shortened_result_keeps_everything_else_its_dict_had() -> None:
    history = [asks("a"), {**gives("a", "x" * 9_000), "name": "find", "mine": {"deep": [1]}}]
    window = slide_window(history, max_tokens=300, tokenizer=quarter)
    assert "characters left out" in window[1]["content"]
    assert {**window[1], "content": ""} == {**history[1], "content": ""}


def test_repairs_are_told_by_the_places_in_the_callers_list() -> None:
    nameless = {"role": "assistant", "content": "x", "tool_calls": [{"id": "n", "type": "function", "function": {}}]}
    history = [{"role": "user"}, 7, nameless, gives("nobody"), user()]
    window = slide_window(history, max_messages=9)
    assert window == [{"role": "assistant", "content": "x"}, user()]
    assert [(repair.index, repair.problem) for repair in window.window.repairs] == [
        (0, "empty_message"),
        (1, "malformed"),
        (2, "nameless_call"),
        (3, "orphan_result"),
    ]


def test_one_id_for_two_calls_of_a_message_is_made_two() -> None:
    history = [user(), asks("a", "a"), gives("a", "1"), gives("a", "2"), asks("a"), gives("a", "3")]
    window = slide_window(history, max_messages=9)
    assert refused(window) == []
    assert [each["content"] for each in window if each["role"] == "tool"] == ["1", "2", "3"]
    assert window[-2] is history[-2]


def test_old_function_calls_are_told_as_tool_calls() -> None:
    old = {"role": "assistant", "content": None, "function_call": {"name": "find", "arguments": "{}"}}
    window = slide_window([user(), old, {"role": "function", "name": "find", "content": "x"}, user()], max_messages=9)
    assert refused(window) == []
    assert [each["role"] for each in window] == ["user", "assistant", "tool", "user"]


def test_a_providers_objects_may_stand_in_the_list() -> None:
    class Reply:
        def model_dump(self, **_: Any) -> dict[str, Any]:
            return {"role": "assistant", "content": "hello"}

    reply = Reply()
    assert slide_window([user(), reply], max_messages=1)[0] is reply


def test_tokens_are_counted_for_the_model_that_is_named() -> None:
    history = [user("日本語 " * 20) for _ in range(200)]
    newest = slide_window(history, max_tokens=2_000)
    named = slide_window(history, max_tokens=2_000, model="gpt-5-mini")
    other = slide_window(history, max_tokens=2_000, model="claude-sonnet-4-5")
    assert len(newest) == len(named)
    assert len(other) < len(newest)
    assert other.window.tokens - ANTHROPIC.reply > 0
    assert len(slide_window(history, max_tokens=2_000, tokenizer="cl100k_base")) < len(newest)


def test_any_function_may_count() -> None:
    history = [user("x" * 40) for _ in range(50)]
    assert len(slide_window(history, max_tokens=100, tokenizer=lambda text: len(text) // 4)) == 6
    with pytest.raises(InvalidValue):
        slide_window(history, max_tokens=100, tokenizer=lambda _: 1 / 0)


def test_nothing_is_loaded_for_a_limit_in_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "tokenizer_of", lambda _: pytest.fail("loaded"))
    assert len(slide_window([user(), user()], max_messages=1)) == 1


def test_a_summary_is_the_literal_system_message_of_the_document() -> None:
    history = [SYSTEM, *(user(str(number)) for number in range(10))]
    window = summarise_window(history, summarize=lambda messages: f"{len(messages)} things", keep=2, max_messages=5)
    summary = {"role": "system", "content": "Summary of previous context: 8 things"}
    assert window == [SYSTEM, summary, user("8"), user("9")]
    assert window[0] is SYSTEM
    again = summarise_window([*window, *history[1:]], summarize=lambda given: given[0].text, keep=2, max_messages=5)
    assert again[1]["content"].startswith("Summary of previous context: Summary of previous context: 8 things")


def test_without_a_summarizer_the_built_in_one_is_used_and_fits() -> None:
    said = "Order 4711 was refunded with 95 EUR. The parcel to Hamburg is late. Anna wants a call on Monday."
    history = [SYSTEM, *(user(said) for _ in range(40))]
    window = summarise_window(history, keep=2, max_tokens=400)
    assert "4711" in window[1]["content"]
    assert window.window.failure is None
    assert window.window.tokens <= 400


def test_a_summarizer_that_fails_or_must_be_awaited_is_reported_and_the_window_slides() -> None:
    async def later(_: Any) -> str:
        return "never"

    def broken(_: Any) -> str:
        raise RuntimeError("the model is down")

    history = [SYSTEM, *(user(str(number)) for number in range(10))]
    for summarize, said in ((later, "awaited"), (broken, "the model is down"), (lambda _: "", "nothing")):
        window = summarise_window(history, summarize=summarize, max_messages=4)
        assert window == slide_window(history, max_messages=4)
        assert said in window.window.failure


@pytest.mark.parametrize("wrong", ["text", b"x", {"role": "user"}, 5, None])
def test_what_is_not_a_list_of_messages_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidValue):
        slide_window(wrong, max_messages=3)


def test_handing_back_the_source_of_a_changed_message_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    history = [asks("a"), gives("a", "x" * 9_000)]
    honest = windows._MessageList._render_round

    def careless(self: Any, part: list[Message]) -> list[Any]:
        honest(self, part)
        return history

    monkeypatch.setattr(windows._MessageList, "_render_round", careless)
    window = slide_window(history, max_tokens=300, tokenizer=quarter)
    tokens = request_tokens(openai_chat.read_messages(window).messages, quarter, OPENAI)
    assert tokens > 300 >= window.window.tokens
    assert msgspec.json.encode(window.window.shortened)


def test_what_a_request_costs_is_known_before_it_is_sent() -> None:
    history = [{"role": "system", "content": "You are terse."}, {"role": "user", "content": "Hello."}]
    before = holdfast.count_tokens(history, model="gpt-4o")
    window = holdfast.slide_window(history, max_tokens=before, model="gpt-4o")
    assert window == history
    assert window.window.tokens == before
    with pytest.raises(holdfast.errors.BudgetTooSmall):
        holdfast.slide_window(history[:1], max_tokens=5, model="gpt-4o")
    tools = [{"name": "find", "input_schema": {"type": "object"}}]
    assert holdfast.count_tokens(history, model="gpt-4o", tools=tools) > before
    assert holdfast.count_tokens(history[1:], model="gpt-4o", system="You are terse.") == before
    assert holdfast.count_tokens(history, model="claude-opus-4-7") > before

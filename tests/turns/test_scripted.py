"""The scripted model: what it answers follows from what it is shown, so a process that starts again goes on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast
from holdfast import Message, ToolCallRequest, ToolCallResult, Usage
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model import scripted
from holdfast.model.scripted import Scripted, call
from holdfast.records.messages import Delta, ModelCall, ModelReply

REFUND = holdfast.ToolDef(name="refund", description="Pays back.")


@pytest.fixture
def hf() -> Iterator[holdfast.Holdfast]:
    with holdfast.open("memory:") as opened:
        yield opened


@pytest.fixture
def chat(hf: holdfast.Holdfast) -> holdfast.Session:
    return hf.session("s", system="Be kind.", tools=[REFUND])


def ask(model: Any, pack: Any, pieces: list[Delta] | None = None) -> ModelReply:
    reply = asyncio.run(model.reply(ModelCall(pack=pack), None if pieces is None else pieces.append))
    assert isinstance(reply, ModelReply)
    return reply


def go_on(chat: holdfast.Session, message: Message) -> None:
    """What a loop does with a reply: it is kept, and its calls are answered."""
    stored = chat.append(message)
    for each in stored.tool_calls:
        chat.append(Message(role="tool", tool_results=(ToolCallResult(tool_call_id=each.id, result="paid"),)))


def turn(chat: holdfast.Session, replies: Any, user: str) -> list[Message]:
    """A turn in which every request is made by a process of its own, and twice."""
    chat.append(user)
    said: list[Message] = []
    while not said or said[-1].tool_calls:
        first, second = (ask(Scripted(replies), chat.pack()).message for _ in range(2))
        assert first == second
        said.append(first)
        go_on(chat, first)
    return said


# what is said next


def test_a_script_goes_on_with_the_conversation_and_begins_anew_in_each_turn(chat: holdfast.Session) -> None:
    script = [call("refund", order=17), ["Once more.", call("refund", order=18)], "Done."]
    for user in ("Pay me back.", "Again!"):
        said = turn(chat, script, user)
        assert [message.text for message in said] == ["", "Once more.", "Done."]
        assert [each.args for message in said for each in message.tool_calls] == [{"order": 17}, {"order": 18}]


@settings(max_examples=20, deadline=None)
@given(st.lists(st.sampled_from(["a", "b"]), max_size=4), st.lists(st.integers(1, 3), min_size=1, max_size=3))
def test_a_new_object_answers_as_the_old_one_would(names: list[str], turns: list[int]) -> None:
    with holdfast.open("memory:") as hf:
        chat, old = hf.session("s"), Scripted([*(call(name) for name in names), "end"])
        for number in range(len(turns)):
            chat.append(f"turn {number}")
            while True:
                one = ask(old, chat.pack()).message
                assert one == ask(Scripted([*(call(name) for name in names), "end"]), chat.pack()).message
                go_on(chat, one)
                if not one.tool_calls:
                    break


def test_a_model_that_counts_its_requests_is_found_out(chat: holdfast.Session, monkeypatch: pytest.MonkeyPatch) -> None:
    def counting(self: Any, seen: Any) -> Any:
        return self._rules[0][1][len(self.requests) - 1]

    script = [call("refund", order=17), "Done."]
    assert _said_in_new_processes(chat, script, 5) == ["", "Done."]
    monkeypatch.setattr(Scripted, "_next_reply", counting)
    assert _said_in_new_processes(chat, script, 5) == [""] * 5


def _said_in_new_processes(chat: holdfast.Session, replies: Any, steps: int) -> list[str]:
    """A turn of at most so many requests, each made by a process of its own."""
    chat.append("Pay me back.")
    said: list[Message] = []
    while len(said) < steps and (not said or said[-1].tool_calls):
        said.append(ask(Scripted(replies), chat.pack()).message)
        go_on(chat, said[-1])
    return [message.text for message in said]


def test_what_was_cut_off_is_said_again(chat: holdfast.Session) -> None:
    chat.append("Hello?")
    chat.append(Message(role="assistant", content="Hel", partial=True))
    assert ask(Scripted(["Hello.", "wrong"]), chat.pack()).message.text == "Hello."


def test_evidence_is_not_taken_for_a_users_words(hf: holdfast.Holdfast, chat: holdfast.Session) -> None:
    chat.append("hello")
    frame = hf.index.push_frame("work", scope="actor/main/session/s/thread/main")
    hf.index.add_handle(frame, "event_ref", body="please refund order 17")
    pack = hf.index.assemble_context_pack(frame=frame)
    assert "refund order" in str(pack.to_openai())
    assert ask(Scripted({"refund": "wrong"}, otherwise="right"), pack).message.text == "right"


def test_rules_go_by_the_words_of_the_newest_message(chat: holdfast.Session) -> None:
    rules = {"refund": [call("refund", order=17), "Paid."], "Hello": "Hi.", "": "Pardon?"}
    assert [message.text for message in turn(chat, rules, "A REFUND, please")] == ["", "Paid."]
    assert [message.text for message in turn(chat, rules, "hello")] == ["Hi."]
    assert [message.text for message in turn(chat, rules, "refund?? no: hello")] == ["", "Paid."]
    assert [message.text for message in turn(chat, rules, "what")] == ["Pardon?"]


def test_what_no_rule_and_no_reply_is_for_fails_and_says_so(chat: holdfast.Session) -> None:
    chat.append("what?")
    with pytest.raises(ModelFailed, match=r"No rule of m .*'what\?'") as caught:
        ask(Scripted({"hello": "Hi."}, name="m"), chat.pack())
    assert (caught.value.kind, caught.value.retryable) == ("rejected", False)
    go_on(chat, Message(role="assistant", content="so"))
    with pytest.raises(ModelFailed, match="has no reply number 2 to") as caught:
        ask(Scripted(["Hi."]), chat.pack())
    assert caught.value.kind == "rejected"


# what a reply can be


def test_a_function_looks_at_what_it_is_shown(chat: holdfast.Session) -> None:
    async def later(pack: Any) -> Any:
        return [f"{len(pack.messages)}", call("refund")]

    chat.append("one")
    assert ask(Scripted(lambda pack: pack.messages[-1].text), chat.pack()).message.text == "one"
    reply = ask(Scripted([later]), chat.pack()).message
    assert (reply.text, reply.tool_calls[0].name) == ("1", "refund")


@pytest.mark.parametrize(
    ("reply", "text", "calls"),
    [
        ("Hi.", "Hi.", []),
        ("", "", []),
        ({"name": "refund", "arguments": {"order": 17}}, "", [("refund", '{"order":17}')]),
        ({"name": "refund", "arguments": '{"order": 1'}, "", [("refund", '{"order": 1')]),
        ([call("a"), "text", call("b", x=[1])], "text", [("a", "{}"), ("b", '{"x":[1]}')]),
        (Message(role="assistant", content="Hi."), "Hi.", []),
        (ModelReply(message=Message(role="assistant", content="Hi."), usage=Usage(7, cost=3)), "Hi.", []),
    ],
)
def test_replies_of_every_kind(chat: holdfast.Session, reply: Any, text: str, calls: list[Any]) -> None:
    chat.append("one")
    for script in ([reply], reply if not isinstance(reply, list) else [reply]):
        made = ask(Scripted(script), chat.pack())
        assert (made.message.role, made.message.text) == ("assistant", text)
        assert [(each.name, each.arguments) for each in made.message.tool_calls] == calls
        assert made.usage.input > 0
        assert made.usage.cost == (3 if isinstance(reply, ModelReply) else None)


@pytest.mark.parametrize(
    "bad", [7, {"name": "x"}, {"name": "x", "arguments": 3}, Message(role="user", content="no"), [[]], [[3]], str]
)
def test_what_is_no_reply_is_refused_at_once(chat: holdfast.Session, bad: Any) -> None:
    with pytest.raises(InvalidValue, match=r"is no reply|begin with words"):
        Scripted([bad] if not isinstance(bad, list) else bad)
    chat.append("one")
    with pytest.raises(InvalidValue, match="is no reply"):
        ask(Scripted(lambda pack: bad[0] if isinstance(bad, list) else bad), chat.pack())


def test_bad_names_and_rules_are_refused() -> None:
    for bad in (lambda: Scripted(name=""), lambda: Scripted({3: "x"}), lambda: Scripted(name=3)):  # type: ignore[arg-type]
        with pytest.raises(InvalidValue):
            bad()


def test_errors_are_raised_anew_each_time_after_what_was_said(chat: holdfast.Session) -> None:
    chat.append("one")
    model = Scripted([ModelFailed("cut", kind="cut", retryable=True, partial="Half an", usage=Usage(5))])
    for _ in range(2):
        pieces: list[Delta] = []
        with pytest.raises(ModelFailed, match="cut") as caught:
            ask(model, chat.pack(), pieces)
        assert (caught.value.kind, caught.value.retryable, caught.value.usage) == ("cut", True, Usage(5))
        assert not hasattr(caught.value, "__notes__")
        caught.value.add_note("of this turn")
        assert "".join(piece.text for piece in pieces) == "Half an"
    with pytest.raises(ZeroDivisionError):
        ask(Scripted([ZeroDivisionError]), chat.pack())


# how it comes


def test_pieces_are_the_whole_text_and_then_the_tools(chat: holdfast.Session) -> None:
    chat.append("one")
    pieces: list[Delta] = []
    text = "  Two words,\nand  blanks. "
    ask(Scripted([[text, call("refund")]]), chat.pack(), pieces)
    assert [piece.kind for piece in pieces] == ["text"] * 4 + ["tool"]
    assert "".join(piece.text for piece in pieces[:-1]) == text
    assert pieces[-1].text == "refund"


def test_usage_is_what_the_pack_takes(chat: holdfast.Session) -> None:
    chat.append("one")
    model = Scripted(["x" * 40], name="m")
    pack = chat.pack()
    assert ask(model, pack).usage == Usage(input=pack.tokens, output=10, model="m")
    assert model.requests[-1].pack is pack


def test_only_the_newest_requests_are_kept(chat: holdfast.Session) -> None:
    chat.append("one")
    model, pack = Scripted(["x"]), chat.pack()
    for _ in range(scripted.REQUESTS_KEPT + 5):
        ask(model, pack)
    assert len(model.requests) == scripted.REQUESTS_KEPT


def test_a_request_that_is_no_pack_is_read_as_it_would_be_sent() -> None:
    class Wire:
        def to_openai(self) -> Any:
            calls = [{"id": "c", "type": "function", "function": {"name": "refund", "arguments": "{}"}}]
            return {
                "messages": [
                    {"role": "system", "content": "Be kind."},
                    {"role": "user", "content": "refund"},
                    {"role": "assistant", "content": None, "tool_calls": calls},
                    {"role": "tool", "tool_call_id": "c", "content": "paid"},
                ]
            }

        to_responses = to_anthropic = to_openai

    assert ask(Scripted({"refund": [call("refund"), "Done."]}), Wire()).message.text == "Done."
    assert ask(Scripted(), Wire()).message.text == "The tool said: paid"
    assert ask(Scripted(["a", "b"]), Wire()).usage.input > 10


# without a script


def test_without_a_script_it_says_what_it_was_told_and_calls_tools(chat: holdfast.Session) -> None:
    chat.append("Good morning")
    said = ask(Scripted(), chat.pack()).message
    assert said.text.startswith("You said: Good morning\n(I was shown 1 messages, ")
    assert 'Say "call refund {…}"' in said.text
    go_on(chat, said)
    chat.append('call refund {"order": 17}')
    said = ask(Scripted(), chat.pack()).message
    assert said.tool_calls == (ToolCallRequest(name="refund", arguments='{"order": 17}'),)
    go_on(chat, said)
    assert ask(Scripted(), chat.pack()).message.text == "The tool said: paid"
    chat.append("call nobody {}")
    assert "You said: call nobody {}" in ask(Scripted(), chat.pack()).message.text


def test_without_a_script_an_empty_conversation_is_answered(hf: holdfast.Holdfast) -> None:
    assert "0 messages" in ask(Scripted(), hf.session("t").pack()).message.text

"""Replies that were cut off or held back say so, wherever a reply is given, and are no value of a type."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast
from holdfast import Done, Holdfast, Scripted
from holdfast.flow.turns import turns
from holdfast.flow.turns.engine import TurnEngine
from holdfast.model.providers import ADAPTERS
from holdfast.models import ModelReply
from holdfast.records.messages import Message
from holdfast.runtime import reply as runtime_reply
from holdfast.runtime.reply import ReplyOutput
from tests.backends import IN_MEMORY
from tests.model_server import Fault, model_server
from tests.turns.loops import SESSION, replies, take

WORDS = "The dose is 5"
CUT = ("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded")
EARLY = (*CUT, "refusal", "content_filter", "pause_turn")


def ended(text: str, finish: str | None) -> ModelReply:
    """A reply of a model of one's own, which says in `finish` alone why it ended."""
    return ModelReply(message=Message(role="assistant", content=text), finish=finish)


@dataclass
class Parcel:
    weight: float
    country: str


# how it is seen


@pytest.mark.parametrize("finish", [None, *EARLY])
@IN_MEMORY
def test_a_reply_says_why_it_ended_also_when_it_is_given_again(hf: Holdfast, finish: str | None) -> None:
    agent = hf.agent("a", model=Scripted([ended(WORDS, finish)]))
    for reply in (agent.send(SESSION, "Dose?", key="k"), agent.send(SESSION, "Dose?", key="k")):
        assert (reply.status, reply.text, reply.reason, reply.finish) == ("done", WORDS, None, finish)
    assert hf.session(SESSION).messages(1)[0].finish == finish


@IN_MEMORY
def test_whoever_listens_hears_why_it_ended_also_behind_the_reply(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted([ended(WORDS, "length")]))
    heard = list(agent.stream(SESSION, "Dose?"))
    said = {event.kind: event for event in heard if event.kind in ("reply", "done")}
    assert {kind: event.data["finish"] for kind, event in said.items()} == {"reply": "length", "done": "length"}
    (last,) = agent.tail(SESSION, after=said["reply"].id)
    assert (last.kind, last.data["finish"]) == ("done", "length")
    assert "finish" not in heard[0].data, "a user's message ends by itself"


def test_a_loop_of_one_s_own_sees_it(hf: Holdfast) -> None:
    done = take(hf, "Dose?", lambda step: step.done(WORDS, finish="length"), key="k")
    again = take(hf, "Dose?", lambda step: pytest.fail("it was answered"), key="k")
    assert [(one.status, one.text, one.finish) for one in (done, again)] == [("done", WORDS, "length")] * 2
    assert take(hf, "Dose?", replies(WORDS)).finish is None
    (first, second) = [one.facts for one in hf.journal.events() if one.type == "model.responded"]
    assert (first.finish, second.finish) == ("length", None)


def test_a_loop_with_asyncio_sees_it() -> None:
    async def asked() -> Any:
        async with holdfast.open_async("memory:") as hf:
            chat = await hf.session(SESSION)
            async with chat.turn("Dose?") as turn:
                steps: Any = await turn.steps()
                await steps[0].done(WORDS, finish="content_filter")
                return await turn.steps()

    (done,) = asyncio.run(asked())
    assert (done.status, done.finish) == ("done", "content_filter")


@pytest.mark.parametrize("kind", ["openai", "responses", "anthropic"])
@pytest.mark.parametrize(("fault", "said"), [("length", CUT), ("refusal", ("refusal",))])
def test_the_word_of_every_provider_is_passed_on(kind: str, fault: str, said: tuple[str, ...]) -> None:
    with model_server(["never"], [Fault(fault)]) as server, holdfast.open("memory:") as hf:
        agent = hf.agent("a", model=ADAPTERS[kind]("m", base_url=server.url, api_key="none"))
        replies = [agent.send(SESSION, "Hi", key="k") for _ in range(2)]
    assert [(one.status, one.finish in said) for one in replies] == [("done", True)] * 2


def test_a_turn_that_was_stopped_says_why_its_last_words_ended(hf: Holdfast) -> None:
    agent = hf.agent("a", model=Scripted(lambda pack: ended('{"weight": 2.', "max_tokens")), output=Parcel)
    reply = agent.send(SESSION, "2.5 kg")
    assert (reply.status, reply.finish, reply.data) == ("stopped", "max_tokens", None)
    assert reply.reason is not None
    assert reply.reason.startswith("output: This reply was cut off before its end (max_tokens).")


# values of a type


@pytest.mark.parametrize("finish", CUT)
@IN_MEMORY
def test_a_cut_reply_is_asked_for_again_and_told_to_be_shorter(hf: Holdfast, finish: str) -> None:
    whole = '{"weight": 2.5, "country": "IT"}'
    tries = iter([ended(whole[:-1], finish), ended(whole, None)])
    reply = hf.agent("a", model=Scripted(lambda pack: next(tries)), output=Parcel).send(SESSION, "2.5 kg")
    assert (reply.status, reply.data, reply.finish) == ("done", Parcel(2.5, "IT"), None)
    (told,) = [one.text for one in hf.session(SESSION).messages() if one.role == "user" and one.synthetic]
    assert told.startswith(f"This reply was cut off before its end ({finish}).")
    assert "shorter" in told


FITTING = [(int, "12"), (str, "It goes on and"), (list[int], "12"), (float, "2."), (str, '{"value": "no')]


@pytest.mark.parametrize(("kind", "text"), FITTING)
def test_what_may_be_the_beginning_of_more_is_no_value(kind: Any, text: str) -> None:
    complaint = ReplyOutput(kind).find_problem(ended(text, None).message)
    cut = ReplyOutput(kind).find_problem(Message(role="assistant", content=text, metadata={"finish": "length"}))
    assert cut is not None, f"and without a cut: {complaint}"
    assert "cut off" in cut


@given(st.integers(), st.text(), st.booleans())
def test_json_that_is_whole_is_a_value_although_it_was_cut_behind_it(number: int, text: str, fenced: bool) -> None:
    written = json.dumps({"number": number, "text": text})
    shown = f"```json\n{written}" if fenced else written
    cut = Message(role="assistant", content=shown, metadata={"finish": "length"})
    assert ReplyOutput(dict[str, Any]).find_problem(cut) is None
    for at in range(1, len(written)):
        part = Message(role="assistant", content=written[:at], metadata={"finish": "length"})
        assert "cut off" in (ReplyOutput(dict[str, Any]).find_problem(part) or "")


def test_a_refusal_that_does_not_fit_is_named_as_one() -> None:
    held = Message(role="assistant", content="I cannot.", metadata={"finish": "refusal"})
    complaint = ReplyOutput(Parcel).find_problem(held)
    assert complaint is not None
    assert complaint.startswith("This reply did not end by itself (refusal) and does not have the form")
    plain = ReplyOutput(Parcel).find_problem(Message(role="assistant", content="I cannot."))
    assert plain is not None
    assert plain.startswith("This reply does not have the form")


# planted bugs


def forgets_the_word(patch: pytest.MonkeyPatch) -> None:
    sound = TurnEngine.finish_model
    patch.setattr(
        TurnEngine, "finish_model", lambda self, call, said, usage, finish, **how: sound(self, call, said, usage, **how)
    )


def hides_the_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Done, "finish", None)


@pytest.mark.parametrize("plant", [forgets_the_word, hides_the_word])
@IN_MEMORY
def test_a_word_that_is_lost_is_found_out(
    hf: Holdfast, plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        test_a_reply_says_why_it_ended_also_when_it_is_given_again(hf, "length")


@IN_MEMORY
def test_an_end_that_does_not_say_why_is_found_out(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = turns.read_outcome
    nameless = Message(role="assistant", content=WORDS)
    monkeypatch.setattr(turns, "read_outcome", lambda *given: msgspec.structs.replace(sound(*given), message=nameless))
    with pytest.raises(AssertionError):
        test_whoever_listens_hears_why_it_ended_also_behind_the_reply(hf)


def test_a_value_that_is_taken_from_a_cut_reply_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_reply, "CUT_OFF_REASONS", frozenset())
    with pytest.raises(AssertionError):
        test_what_may_be_the_beginning_of_more_is_no_value(int, "12")

"""Turns that get long: large and many tool results, words that join them, and a question that must stay in sight."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from holdfast import CallModel, CallTool, ContextPack, Holdfast, Session, Turn
from holdfast.errors import BudgetTooSmall
from tests.packs.pack_rules import MARKER, validity_problems

WORDS = ("parcel", "order", "Hull", "refund", "17", "nuts", "häuser", "value", "{'a': 1}", "row:", "数据", "- item")
MARK = "earlier messages are not shown"
UNMARKED = "what is left out is not marked"
QUESTION = "QUESTION"
SHORT, LEFT = 400, 190
"""Characters: up to so many a question is whole, and of a longer one about so many are left at least."""
MARK_ROOM = 40
"""Tokens that are more than the mark takes."""


def text(rng: random.Random, words: int) -> str:
    """So many words."""
    return " ".join(rng.choices(WORDS, k=words))


def asked(rng: random.Random, number: int, sizes: tuple[int, ...] = (4, 30, 400)) -> str:
    """A question that can be told from all others, short or long."""
    return f"{QUESTION}-{number}! {text(rng, rng.choice(sizes))} ?{number}-END"


def call(number: int) -> dict[str, Any]:
    """A model's wish to call a tool."""
    made = {"id": f"c{number}", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
    return {"role": "assistant", "content": None, "tool_calls": [made]}


def packs_of_a_turn(
    hf: Holdfast, rng: random.Random, *, budget: int, rounds: int
) -> Iterator[tuple[Turn, ContextPack, list[str]]]:
    """Every pack of one turn that goes on and on, with what the turn is to answer by then."""
    chat: Session = hf.session(f"s{rng.randrange(10**6)}", system="Be terse.", model="gpt-4o")
    for _ in range(rng.choice((0, 3, 20))):
        chat.append([text(rng, 20), {"role": "assistant", "content": text(rng, 40)}])
    questions = [asked(rng, 0)]
    with chat.turn(questions[0], budget=budget) as turn:
        for number in range(1, rounds):
            step: Any = turn.steps(at_once=1)[0]
            assert isinstance(step, CallModel)
            yield turn, step.pack, questions
            step.done(call(number))
            step = turn.steps(at_once=1)[0]
            assert isinstance(step, CallTool)
            step.done(text(rng, rng.choice((5, 50, 2_000))))
            if rng.random() < 0.3:
                questions = [*questions, asked(rng, number)]
                chat.append(questions[-1])
        turn.stop()


def problems(pack: ContextPack, questions: list[str]) -> list[str]:
    """Everything that is wrong with what a turn's model is shown."""
    found = [*validity_problems(pack)]
    if pack.tokens > pack.budget:
        found.append(f"{pack.tokens} of {pack.budget}")
    requests = [str(pack.to_openai()), str(pack.to_responses()), str(pack.to_anthropic())]
    said = [message.text for message in pack.messages if message.role == "user"]
    shown = [next((one for one in said if is_of(question, one)), None) for question in questions]
    if shown[0] is None or shown[-1] is None:
        found.append("what began the turn is not shown, or what was said last in it")
    if None in shown[1:] and any(shown[1 : shown.index(None, 1)]):
        found.append("an older question is shown, and not a newer one")
    for question, one in zip(questions, shown, strict=True):
        if one is not None and not all(one[:8] in request for request in requests):
            found.append(f"{question:.12} is not told to everybody")
        if one is not None and not has_words(question, one):
            found.append(f"{question:.12} has no words: {one:.60}")
    if pack.conversation.truncated_count and may_be_marked(pack) and not all(MARK in one for one in requests):
        found.append(UNMARKED)
    return found


def is_of(question: str, shown: str) -> bool:
    """Whether this is the question, whole or with its middle left out."""
    mark = MARKER.search(shown)
    if mark is None:
        return " ".join(shown.split()) == " ".join(question.split())
    return question.startswith(shown[: mark.start()]) and question.endswith(shown[mark.end() :]) and mark.start() > 0


def has_words(question: str, shown: str) -> bool:
    """Whether enough is left of a question to be answered."""
    mark = MARKER.search(shown)
    return mark is None or (len(question) > SHORT and len(shown) - len(mark[0]) >= LEFT)


def may_be_marked(pack: ContextPack) -> bool:
    """Whether there is an output that can give way to the mark; of what people say nothing is cut for it."""
    newest = pack.segments[-1].messages
    return any(one.tool_results for one in newest) or pack.budget - pack.tokens > MARK_ROOM


def least(turn: Turn) -> int:
    """The smallest budget with which there is a pack; one token less is refused with the same number."""
    with pytest.raises(BudgetTooSmall) as refused:
        turn.frame.pack(1)
    required = refused.value.required
    with pytest.raises(BudgetTooSmall) as one_less:
        turn.frame.pack(required - 1)
    assert one_less.value.required == required
    return required


def same(one: ContextPack, other: ContextPack) -> bool:
    """Whether two packs show the same in every byte."""
    ways = ("to_openai", "to_responses", "to_anthropic")
    return one.digest == other.digest and all(getattr(one, way)() == getattr(other, way)() for way in ways)


def told(pack: ContextPack) -> list[str]:
    """What a pack shows of the conversation, by name."""
    return [one.id for one in pack.segments if one.kind == "conversation"]

"""Who is told that a budget is too small is told what it would go to, and what makes that less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Limits, Scripted, Session
from holdfast.core.packs.fit import too_small_error
from holdfast.core.packs.window import RequiredPart
from holdfast.errors import BudgetTooSmall

LONG = "what must always hold, however long it takes to say " * 40


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:") as client:
        yield client


def refusal(session: Session, budget: int = 100) -> BudgetTooSmall:
    with pytest.raises(BudgetTooSmall) as raised:
        session.pack(budget)
    assert session.pack(raised.value.required).tokens <= raised.value.required
    with pytest.raises(BudgetTooSmall):
        session.pack(raised.value.required - 1)
    return raised.value


def test_pinned_messages_that_do_not_fit_are_named_and_the_brief_is_not_blamed(hf: Holdfast) -> None:
    chat = hf.session("s", system="Be terse.", model="gpt-4o")
    for number in range(30):
        chat.append(f"fact {number}: the code of locker {number} is {number * 7919}.", policy="pinned")
    chat.append("Hello.")
    said = str(refusal(chat))
    assert "the most: pinned messages 450 (30), the brief 10, the newest round 6" in said
    assert "unpin some" in said
    assert "shorten the brief" not in said


def test_a_brief_that_does_not_fit_is_named(hf: Holdfast) -> None:
    chat = hf.session("s", system=LONG, model="gpt-4o")
    chat.append("Hello.")
    said = str(refusal(chat))
    assert "the most: the brief" in said
    assert said.endswith("or shorten the brief.")
    assert "unpin" not in said


def test_tools_that_do_not_fit_are_named_and_those_of_the_past_can_be_left_out(hf: Holdfast) -> None:
    tools = [{"name": name, "description": LONG, "input_schema": {"type": "object"}} for name in ("one", "two")]
    chat = hf.session("s", tools=tools, model="gpt-4o")
    chat.append("Hello.")
    assert "offer fewer tools" in str(refusal(chat))

    limits = Limits(context_tokens=300)
    agent: Any = hf.agent("clerk", model=Scripted({}, otherwise="ok"), limits=limits)
    with pytest.raises(BudgetTooSmall, match=r"tools \d+ \(2\).*search_history \(history=False\)"):
        agent.send("t", "Hello.")
    without: Any = hf.agent("porter", model=Scripted({}, otherwise="ok"), limits=limits, history=False)
    assert without.send("u", "Hello.").text == "ok"


def test_first_instructions_and_what_the_turn_answers_are_named(hf: Holdfast) -> None:
    chat = hf.session("s", model="gpt-4o")
    chat.append({"role": "system", "content": LONG})
    chat.append("Hello.")
    assert "the first instructions" in str(refusal(chat))

    other = hf.session("t", model="gpt-4o")
    with other.turn(LONG, budget=2_000) as turn:
        other.append([f"And number {number}, please." for number in range(20)])
        with pytest.raises(BudgetTooSmall, match=r"the most: what the turn answers \d+, the newest round"):
            turn.frame.pack(40)
        turn.stop()


def test_only_what_is_large_is_worth_making_smaller() -> None:
    parts = [
        RequiredPart("one", 900, "cut one", 3),
        RequiredPart("two", 50, "cut two"),
        RequiredPart("three", 0, "cut three"),
    ]
    said = str(too_small_error(100, 950, parts))
    assert "(the most: one 900 (3), two 50)" in said
    assert said.endswith("Raise the budget to 950, or cut one.")
    assert str(too_small_error(1, 2, ())).endswith("Raise the budget to 2.")

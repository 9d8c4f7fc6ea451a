"""Intents of calls that an agent starts at once are journaled with the reply that asks for them, and no others are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Holdfast, Limits, tool
from holdfast.compaction import Always, Rule
from holdfast.errors import Waiting
from holdfast.flow.turns.engine import TurnEngine
from holdfast.flow.turns.tool_calls import ToolCallSettler
from holdfast.model.scripted import Scripted, call
from holdfast.runtime.driver import TurnDriver
from holdfast.testing import kill_everywhere
from holdfast.testing.clock import FrozenClock
from tests.turns.agent_world import SESSION
from tests.turns.loops import place

REPLY, INTENT = "model.responded", "tool.requested"


class Bank:
    """What was paid stays paid, whoever dies."""

    def __init__(self) -> None:
        self.paid: list[int] = []


def payer(hf: Any, bank: Bank, *, orders: tuple[int, ...] = (17,), approve: Any = False, policy: Any = "ask") -> Any:
    """An agent that is to pay some orders at once."""

    @tool(if_interrupted=policy, needs_approval=approve)
    def pay(order: int) -> str:
        """Pay."""
        bank.paid.append(order)
        return f"{order} is paid"

    wanted = [call("pay", order=order) for order in orders]
    return hf.agent("payer", model=Scripted([wanted, "Done."]), tools=[pay], history=False)


def commits(hf: Holdfast) -> list[list[str]]:
    """The events of a conversation's turns, those of one commit together: they have one time."""
    found: dict[int, list[str]] = {}
    for event in hf.journal.events(place()):
        found.setdefault(event.at, []).append(event.type)
    return list(found.values())


def together(hf: Holdfast) -> bool:
    """True if the intents are in the commit of the reply."""
    (commit,) = [types for types in commits(hf) if INTENT in types]
    return REPLY in commit


@pytest.fixture
def ticking(hf: Holdfast, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch) -> Holdfast:
    """A client whose commits can be told apart by their times."""
    sound = hf.env.journal.append

    def append(batch: Any) -> Any:
        clock.advance(1)
        return sound(batch)

    monkeypatch.setattr(hf.env.journal, "append", append)
    return hf


@pytest.mark.parametrize("orders", [(17,), (17, 18)])
def test_intents_of_calls_that_start_at_once_are_in_the_commit_of_the_reply(
    ticking: Holdfast, orders: tuple[int, ...]
) -> None:
    bank = Bank()
    assert payer(ticking, bank, orders=orders).send(SESSION, "Pay.").text == "Done."
    assert together(ticking)
    assert sorted(bank.paid) == list(orders)


def asked_first(order: int) -> bool:
    """No approval is needed, but that is a decision of the caller's code."""
    return False


def test_a_call_that_a_function_decides_about_begins_after_the_reply_is_kept(ticking: Holdfast) -> None:
    assert payer(ticking, Bank(), approve=asked_first).send(SESSION, "Pay.").text == "Done."
    assert not together(ticking)


def test_a_call_that_a_person_decides_about_has_no_intent_before_the_yes(ticking: Holdfast) -> None:
    bank = Bank()
    agent = payer(ticking, bank, orders=(17, 18), approve=True)
    assert agent.send(SESSION, "Pay.", key="k").status == "waiting"
    assert not [types for types in commits(ticking) if INTENT in types]
    assert bank.paid == []


def test_calls_beyond_the_limit_have_no_intent(ticking: Holdfast) -> None:
    bank = Bank()
    wanted = [call("pay", order=order) for order in (17, 18)]

    @tool
    def pay(order: int) -> str:
        """Pay."""
        bank.paid.append(order)
        return "paid"

    limits = Limits(tool_calls=1)
    agent: Any = ticking.agent("payer", model=Scripted([wanted, "Done."]), tools=[pay], limits=limits)
    reply = agent.send(SESSION, "Pay.")
    assert (reply.status, reply.code, bank.paid) == ("stopped", "tool_calls", [])
    assert not [types for types in commits(ticking) if INTENT in types]


def test_a_rule_that_runs_after_the_reply_keeps_calls_from_beginning_before_it(ticking: Holdfast) -> None:
    bank, began = Bank(), list[bool]()
    chat = ticking.session(SESSION)

    def look(occasion: Any) -> None:
        began.append(any(INTENT in types for types in commits(ticking)) and not bank.paid)

    chat.compaction.add_rule(Rule("look", Always(), look))
    assert payer(ticking, bank).send(SESSION, "Pay.").text == "Done."
    assert began
    assert not any(began), "a rule ran while a call had begun and not started"


def test_a_stop_that_was_requested_before_the_reply_keeps_its_calls_from_beginning(
    ticking: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank()
    agent, chat = payer(ticking, bank), ticking.session(SESSION)
    sound = agent._made.model.reply

    async def stopped(asked: Any, say: Any = None) -> Any:
        found = await sound(asked, say)
        await asyncio.to_thread(chat.stop, "enough")
        return found

    agent._made.model.reply = stopped
    monkeypatch.setattr(TurnDriver, "stop", lambda self: None)  # As if another process had asked for it just now.
    assert agent.send(SESSION, "Pay.").status == "stopped"
    assert bank.paid == []
    assert not [types for types in commits(ticking) if INTENT in types]


# Crashes


def pay_once(hf: Holdfast, bank: Bank) -> None:
    reply = payer(hf, bank, orders=(17, 18)).send(SESSION, "Pay.", key="k")
    if reply.status == "waiting":
        raise Waiting("for a person", question=reply.questions[0].id)
    assert reply.text == "Done."


def look_at_the_bank(question: Any, bank: Bank) -> bool:
    return int(question.arguments["order"]) not in bank.paid


def paid_once(hf: Holdfast, bank: Bank) -> None:
    assert sorted(bank.paid) == [17, 18]
    assert hf.journal.verify().findings == ()


def test_calls_that_begin_with_the_reply_are_made_once_wherever_the_process_dies() -> None:
    report = kill_everywhere(pay_once, world=Bank, check=paid_once, answer=look_at_the_bank, journal="memory")
    assert report.questions, "some deaths leave nobody sure"


def runs_by_itself(hf: Holdfast, bank: Bank) -> None:
    assert payer(hf, bank, policy="retry").send(SESSION, "Pay.", key="k").text == "Done."


def paid_at_least_once(hf: Holdfast, bank: Bank) -> None:
    assert set(bank.paid) == {17}
    assert len(bank.paid) <= 2
    assert not list(hf.questions())


def test_a_call_that_may_be_repeated_is_not_asked_about() -> None:
    report = kill_everywhere(runs_by_itself, world=Bank, check=paid_at_least_once, journal="memory")
    assert not report.questions


def test_a_death_before_the_commit_of_the_reply_asks_nobody_and_one_after_it_does(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank()

    class Gone(Exception):
        """The process is gone."""

    def dies(self: Any, *args: Any) -> Any:
        raise Gone

    with monkeypatch.context() as patch:
        patch.setattr(TurnDriver, "_finish_model", dies)
        with pytest.raises(Gone):
            payer(hf, bank).send(SESSION, "Pay.", key="k")
    with monkeypatch.context() as patch:
        patch.setattr(TurnDriver, "_load_following", dies)
        with pytest.raises(Gone):
            payer(hf, bank).send(SESSION, "Pay.", key="k")
    assert bank.paid == []
    (question,) = payer(hf, bank).send(SESSION, "Pay.", key="k").questions
    assert "may have run" in question.reason
    hf.answer(question.id, approve=True)
    assert payer(hf, bank).send(SESSION, "Pay.", key="k").text == "Done."
    assert bank.paid == [17]


# Planted bugs


def begins_before_a_decision(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ToolCallSettler, "find_starter", lambda self, message: self._start_new)


def begins_before_rules(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TurnEngine, "_has_rules", lambda self: False)


def forgets_what_began(patch: pytest.MonkeyPatch) -> None:
    sound = TurnEngine.finish_model

    def finish(self: Any, *args: Any, **how: Any) -> Any:
        said = sound(self, *args, **how)
        self._begun = []
        return said

    patch.setattr(TurnEngine, "finish_model", finish)


@pytest.mark.parametrize(
    ("plant", "check"),
    [
        (begins_before_a_decision, test_a_call_that_a_person_decides_about_has_no_intent_before_the_yes),
        (begins_before_a_decision, test_a_call_that_a_function_decides_about_begins_after_the_reply_is_kept),
        (begins_before_rules, test_a_rule_that_runs_after_the_reply_keeps_calls_from_beginning_before_it),
    ],
)
def test_a_call_that_begins_too_early_is_found(
    ticking: Holdfast, monkeypatch: pytest.MonkeyPatch, plant: Callable[[pytest.MonkeyPatch], None], check: Any
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        check(ticking)


def test_a_call_that_began_and_is_forgotten_is_found(ticking: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    forgets_what_began(monkeypatch)
    reply = payer(ticking, Bank()).send(SESSION, "Pay.")
    assert reply.status == "waiting"
    assert "may have run" in reply.reason

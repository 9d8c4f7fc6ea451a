"""A call that may have run is never for a model to correct: whoever could repeat it unasked is a person.

The tools here change between two lives of an agent, as they do with a release. The model is one that obeys: told to
correct its arguments and call again, it does, under another key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import CallTool, Scripted, ToolCall, tool
from holdfast.flow.turns.tool_calls import CHECK_FIRST, ToolCallSettler
from holdfast.model.scripted import call
from holdfast.testing.clock import FrozenClock
from tests.backends import IN_MEMORY
from tests.turns.loops import SESSION, asks, leave_at, replies, take

Holdfast = holdfast.Holdfast
PAY = asks(("pay", {"order": 17, "amount": 240, "note": "x"}))


def obeys(pack: Any) -> Any:
    """A model that pays, and pays again if it is told that it may."""
    results = [one for message in pack.messages for one in message.tool_results]
    if not results:
        return call("pay", order=17, amount=240, note="x")
    if "call again" in str(results[-1].result) and CHECK_FIRST not in str(results[-1].result):
        return call("pay", order=17, amount=240)
    return "Done."


class Bank:
    """What was paid, by key, and a tool in two releases: the second takes no note."""

    def __init__(self, hf: Holdfast) -> None:
        self.hf = hf
        self.paid: list[tuple[str, int]] = []

    def old(self, does: Callable[[ToolCall], object] = lambda call: None, **how: Any) -> Any:
        @tool(name="pay", **how)
        def pay(order: int, amount: int, note: str, call: ToolCall) -> str:
            """Pay."""
            call.frame.run(lambda: self.paid.append((call.key, amount)), key="pay")
            return f"paid {amount} {does(call)}"

        return pay

    def new(self, does: Callable[[ToolCall], object] = lambda call: None, **how: Any) -> Any:
        @tool(name="pay", **how)
        def pay(order: int, amount: int, call: ToolCall) -> str:
            """Pay."""
            call.frame.run(lambda: self.paid.append((call.key, amount)), key="pay")
            return f"paid {amount} {does(call)}"

        return pay

    def send(self, *tools: Any) -> Any:
        agent = self.hf.agent("a", model=Scripted(obeys), tools=tools, history=False)
        return agent.send(SESSION, "Pay.", key="k")

    def result(self) -> Any:
        (found,) = [one for message in self.hf.session(SESSION).messages() for one in message.tool_results]
        return found


def left(bank: Bank, **how: Any) -> None:
    """A call that was begun, and whose process then died: it may have paid."""
    leave_at(bank.hf, "Pay.", CallTool, replies(PAY), key="k", **how)


def nested(call: ToolCall) -> object:
    with call.frame.frame("Ask somebody.", key="ask") as inner:
        return inner.ask("Send a receipt?", key="q").approved


def torn(bank: Bank, clock: FrozenClock) -> None:
    left(bank, if_interrupted="retry")


def torn_and_changed(bank: Bank, clock: FrozenClock) -> None:
    """A person changed the arguments, then it was torn: what the model wrote is not what is used."""
    how = {"key": "k", "needs_approval": ["pay"], "if_interrupted": "retry"}
    hf = bank.hf
    ask = take(hf, "Pay.", replies(asks(("pay", {"order": 17, "amount": 240}))), **how)
    hf.answer(ask.id, approve=True, args={"order": 17, "amount": 24, "note": "y"})
    leave_at(hf, "Pay.", CallTool, replies(), **how)


def asked_itself(bank: Bank, clock: FrozenClock) -> None:
    reply = bank.send(bank.old(lambda call: call.ask("Send a receipt?").approved))
    bank.hf.answer(reply.questions[0].id, approve=True)


def slept(bank: Bank, clock: FrozenClock) -> None:
    assert bank.send(bank.old(lambda call: call.sleep(5))).status == "waiting"
    clock.advance(6_000)


def asked_below(bank: Bank, clock: FrozenClock) -> None:
    reply = bank.send(bank.old(nested))
    bank.hf.answer(reply.questions[0].id, approve=True)


def run_again(bank: Bank, clock: FrozenClock) -> None:
    left(bank)
    reply = bank.send(bank.old())
    assert "Run again?" in reply.questions[0].reason
    bank.hf.answer(reply.questions[0].id, approve=True)


WAYS = [torn, torn_and_changed, asked_itself, slept, asked_below, run_again]
BEGUN = pytest.mark.parametrize("begin", WAYS, ids=lambda way: way.__name__)
Begin = Callable[[Bank, FrozenClock], None]


@BEGUN
@pytest.mark.parametrize("gone", [False, True])
def test_a_begun_call_whose_tool_changed_is_asked_about_and_never_told_to_call_again(
    hf: Holdfast, clock: FrozenClock, begin: Begin, gone: bool
) -> None:
    bank = Bank(hf)
    begin(bank, clock)
    before = list(bank.paid)
    reply = bank.send(*([] if gone else [bank.new(if_interrupted="retry")]))
    assert (reply.status, bank.paid) == ("waiting", before)
    (question,) = reply.questions
    assert "may have run, and" in question.reason
    assert ("there is no tool pay any more" if gone else "'note' is not known") in question.reason
    assert "call again" not in question.reason
    assert (question.call, list(question.options)) == (question.frame, ["run again", "do not"])
    hf.answer(question.id, approve=False, note="The bank has it.")
    assert bank.send(*([] if gone else [bank.new(if_interrupted="retry")])).text == "Done."
    told = bank.result()
    assert (bank.paid, told.is_error, told.interrupted) == (before, True, True)
    assert "may or may not have taken effect" in told.result
    assert told.result.endswith(f"{CHECK_FIRST} The bank has it.")


@BEGUN
def test_it_runs_again_under_its_key_with_arguments_that_fit(hf: Holdfast, clock: FrozenClock, begin: Begin) -> None:
    bank = Bank(hf)
    begin(bank, clock)
    does: Any = {"asked_itself": lambda call: call.ask("Send a receipt?").approved, "asked_below": nested}
    new = bank.new(does.get(begin.__name__, lambda call: "again"), if_interrupted="retry")
    (question,) = bank.send(new).questions
    hf.answer(question.id, approve=True)  # As it is: it still does not fit, so that is asked again.
    (again,) = bank.send(new).questions
    assert (again.id != question.id, again.reason) == (True, question.reason)
    hf.answer(again.id, approve=True, args={"order": 17, "amount": 24})
    assert bank.send(new).text == "Done."
    assert len({key for key, _ in bank.paid}) == 1, "one call, one key"
    assert len(bank.paid) == 1, "what was done is not done again"
    if begin.__name__ in does:
        assert "True" in bank.result().result, "the answer that it had is kept"


@BEGUN
def test_what_a_person_found_out_is_the_result(hf: Holdfast, clock: FrozenClock, begin: Begin) -> None:
    bank = Bank(hf)
    begin(bank, clock)
    (question,) = bank.send(bank.new()).questions
    hf.answer(question.id, approve=False, payload={"receipt": 9})
    assert bank.send(bank.new()).text == "Done."
    assert (bank.result().result, bank.result().is_error) == ({"receipt": 9}, False)


@IN_MEMORY
@pytest.mark.parametrize("begin", [way for way in WAYS if way is not asked_below], ids=lambda way: way.__name__)
def test_without_the_check_it_would_be_paid_twice(
    hf: Holdfast, clock: FrozenClock, begin: Begin, monkeypatch: pytest.MonkeyPatch
) -> None:
    bank = Bank(hf)
    begin(bank, clock)
    monkeypatch.setattr(ToolCallSettler, "_find_misfit", lambda self, one: None)
    while (reply := bank.send(bank.new())).status == "waiting":
        hf.answer(reply.questions[0].id, approve=True)
    keys = [call.id for message in hf.session(SESSION).messages() for call in message.tool_calls]
    assert len(keys) == 2, "the model was told to call again, and did, under another key"
    assert keys[1] in [key for key, _ in bank.paid]


def test_a_call_that_was_never_begun_is_still_for_the_model_to_correct(hf: Holdfast) -> None:
    bank = Bank(hf)
    assert bank.send(bank.new()).text == "Done."
    assert [amount for _, amount in bank.paid] == [240]
    first, second = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    assert (first.is_error, "Correct them and call again" in first.result, second.is_error) == (True, True, False)


def test_changed_arguments_that_do_not_fit_are_asked_about_again(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody could know it when the answer was given: the tool is newer than what is stored of it."""
    bank = Bank(hf)
    (first,) = bank.send(bank.old(needs_approval=True)).questions
    hf.answer(first.id, approve=True, args={"order": 17, "amount": 24, "note": "y"})
    new = bank.new(needs_approval=True)
    (second,) = bank.send(new).questions
    assert second.reason.startswith("The arguments that were given do not fit")
    assert second.reason.endswith("pay(17, 240, x): may it run?")
    assert (second.call, list(second.options), bank.paid) == (None, ["approve", "deny"], [])
    hf.answer(second.id, approve=True, args={"order": 17, "amount": 23})
    assert bank.send(new).text == "Done."
    assert [amount for _, amount in bank.paid] == [23]


def test_run_again_with_arguments_that_do_not_fit_is_asked_again(hf: Holdfast) -> None:
    bank = Bank(hf)
    left(bank)
    (question,) = bank.send(bank.old()).questions
    # The one who answers goes by what is stored, and the next process has another release.
    hf.answer(question.id, approve=True, args={"order": 17, "amount": 24, "note": "y"})
    (again,) = bank.send(bank.new()).questions
    assert again.reason.startswith("The arguments that were given do not fit")
    assert "pay(17, 240, x) may have run, and" in again.reason, "what a yes alone would use is what is shown"
    assert again.arguments == {"order": 17, "amount": 240, "note": "x"}


# loops of one's own


def test_an_own_loop_asks_as_well_if_what_is_stored_of_the_tool_takes_something_else(hf: Holdfast) -> None:
    bank = Bank(hf)
    hf.session(SESSION, tools=[bank.old()])
    left(bank, if_interrupted="retry")
    hf.session(SESSION, tools=[bank.new()])
    ask = take(hf, "Pay.", replies(), lambda step: pytest.fail("it ran"), key="k", if_interrupted="retry")
    assert "may have run, and" in ask.question
    hf.answer(ask.id, approve=True, args={"order": 17, "amount": 24})
    given: list[Any] = []

    def runs(step: CallTool) -> object:
        given.append((step.args, step.attempt))
        return step.done("paid")

    assert take(hf, "Pay.", replies("Done."), runs, key="k").text == "Done."
    assert given == [({"order": 17, "amount": 24}, 2)]


def test_an_own_loop_whose_tools_nobody_stored_decides_itself(hf: Holdfast) -> None:
    left(Bank(hf), if_interrupted="retry")
    assert take(hf, "Pay.", replies("Done."), key="k", if_interrupted="retry").text == "Done."


def test_a_no_to_a_call_that_was_begun_before_does_not_say_that_it_was_not_made(hf: Holdfast) -> None:
    left(Bank(hf), if_interrupted="retry")
    ask = take(hf, "Pay.", replies(), lambda step: step.ask("Really?"), key="k", if_interrupted="retry")
    hf.answer(ask.id, approve=False)
    take(hf, "Pay.", replies("Done."), key="k", if_interrupted="retry")
    (result,) = hf.session(SESSION).messages()[2].tool_results
    assert "may have taken effect" in result.result
    assert CHECK_FIRST in result.result


def test_a_begun_call_whose_words_were_erased_is_not_said_to_be_not_made(hf: Holdfast) -> None:
    left(Bank(hf.as_user("ann")), if_interrupted="retry")
    hf.journal.erase("ann")
    take(hf, None, lambda step: step.done("Done."), lambda step: pytest.fail("it ran"), if_interrupted="retry")
    (result,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    assert "was erased. What it did before may have taken effect." in result.result

"""Budgets: granted, used, reserved, lent; conserved, settled and shown."""

from __future__ import annotations

import pytest

import holdfast
from holdfast import Usage
from holdfast.errors import BudgetExhausted, InsufficientTokens, Waiting
from holdfast.types import TokenBudget
from tests.frames.conftest import ACTOR


def test_the_example_of_the_first_document(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=8000)
    hf.index.reserve(root, "tools", 500)
    hf.index.reserve(root, "reply", 200)
    child = hf.index.push_frame("child", parent=root, tokens=3000)
    hf.index.record_usage(root, 2000)
    assert hf.index.get_frame(root).tokens == TokenBudget(granted=8000, used=2000, reserved=700, lent=3000)
    assert hf.index.get_frame(root).tokens.available == 2300
    hf.index.record_usage(child, 2500)
    hf.index.pop_frame(child)
    assert hf.index.get_frame(root).tokens.available == 2800


def test_the_arithmetic_of_a_budget() -> None:
    budget = TokenBudget(granted=100, used=40, reserved=30, lent=20)
    assert (budget.available, budget.overdraft, budget.unused) == (10, 0, 40)
    assert budget.can_afford(10)
    assert not budget.can_afford(11)
    spent = TokenBudget(granted=100, used=140)
    assert (spent.available, spent.overdraft, spent.unused) == (0, 40, 0)
    unlimited = TokenBudget(used=10**9)
    assert unlimited.available is None
    assert unlimited.can_afford(10**12)
    assert unlimited.overdraft == 0


def test_exactly_what_is_available_can_be_reserved_and_no_more(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, tokens=100)
    before = hf.journal.position()
    with pytest.raises(InsufficientTokens) as refused:
        hf.index.reserve(frame, "reply", 101)
    assert (refused.value.requested, refused.value.available) == (101, 100)
    assert hf.journal.position() == before
    hf.index.reserve(frame, "reply", 100)
    assert hf.index.get_frame(frame).tokens.available == 0
    hf.index.reserve(frame, "nothing", 0)
    assert hf.index.get_frame(frame).reservations == {"reply": 100}


def test_reservations_have_names_and_are_spent_or_given_back(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, tokens=1000)
    hf.index.reserve(frame, "reply", 300)
    hf.index.reserve(frame, "reply", 100)
    hf.index.reserve(frame, "tools", 50)
    hf.index.spend_reserved(frame, "reply", 150)
    assert hf.index.get_frame(frame).reservations == {"reply": 250, "tools": 50}
    hf.index.spend_reserved(frame, "tools", 80)
    assert hf.index.get_frame(frame).tokens == TokenBudget(granted=1000, used=230, reserved=250)
    hf.index.release_reservation(frame, "reply", 50)
    hf.index.release_reservation(frame, "reply")
    assert hf.index.get_frame(frame).tokens == TokenBudget(granted=1000, used=230)
    for act in (
        lambda: hf.index.release_reservation(frame, "reply"),
        lambda: hf.index.spend_reserved(frame, "reply", 1),
    ):
        with pytest.raises(holdfast.errors.NotFound, match="reply"):
            act()


def test_usage_is_a_record_and_what_spends_is_input_plus_output(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, tokens=1000)
    hf.index.record_usage(frame, Usage(input=100, cached_input=80, cache_write=5, output=20, reasoning=9, cost=1234))
    hf.index.record_usage(frame, Usage(input=1, model="m"))
    found = hf.index.get_frame(frame)
    assert found.tokens.used == 121
    assert found.usage == Usage(
        input=101, cached_input=80, cache_write=5, output=20, reasoning=9, cost=1234, unpriced=1
    )


def test_spending_is_never_refused_and_an_overdraft_is_shown(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=100)
    child = hf.index.push_frame("child", parent=root, tokens=60)
    hf.index.record_usage(child, 130)
    found = hf.index.get_frame(child).tokens
    assert (found.available, found.overdraft) == (0, 70)
    (spent,) = hf.journal.events(ACTOR, types=["frame.spent"])
    assert spent.facts.overdraft == 70
    hf.index.pop_frame(child)
    after = hf.index.get_frame(root).tokens
    assert (after.used, after.lent, after.available, after.overdraft) == (130, 0, 0, 30)


def test_a_model_call_needs_something_left(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, tokens=100)
    hf.index.reserve(frame, "reply", 40)
    hf.index.record_usage(frame, 60)
    with pytest.raises(BudgetExhausted) as spent:
        hf.index.begin_model_call(frame)
    assert spent.value.left == 0
    hf.index.release_reservation(frame, "reply")
    call = hf.index.begin_model_call(frame)
    hf.index.end_model_call(frame, call, usage=Usage(input=40, output=5))
    assert hf.index.get_frame(frame).tokens.used == 105
    (responded,) = hf.journal.events(ACTOR, types=["model.responded"])
    assert responded.facts.overdraft == 5


def test_a_child_takes_a_number_a_fraction_or_what_is_left(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    half = hf.index.push_frame("half", parent=root, tokens=0.5)
    quarter = hf.index.push_frame("half of the rest", parent=root, tokens=0.5)
    rest = hf.index.push_frame("the rest", parent=root)
    assert [hf.index.get_frame(frame).tokens.granted for frame in (half, quarter, rest)] == [500, 250, 250]
    with pytest.raises(InsufficientTokens, match="1000 lent"):
        hf.index.push_frame("nothing is left", parent=root)
    hf.index.pop_frame(rest)
    assert hf.index.get_frame(root).tokens.available == 250
    free = hf.index.push_frame("counted only", scope=ACTOR)
    assert hf.index.get_frame(hf.index.push_frame("as free", parent=free)).tokens.granted is None
    with pytest.raises(holdfast.errors.InvalidValue, match="fraction"):
        hf.index.push_frame("fraction of nothing", parent=free, tokens=0.5)


def test_a_push_beyond_the_budget_is_refused_and_writes_nothing(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=100)
    before = hf.journal.position()
    for scope in (None, "actor/other"):
        with pytest.raises(InsufficientTokens) as refused:
            hf.index.push_frame("child", parent=root, scope=scope, tokens=101)
        assert (refused.value.requested, refused.value.available) == (101, 100)
    assert hf.journal.position() == before
    assert hf.index.get_frame(root).status == "active"


def test_only_a_roots_tokens_can_be_raised(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=100)
    child = hf.index.push_frame("child", parent=root, tokens=50)
    assert hf.index.update_frame(root, tokens=300).tokens.available == 250
    with pytest.raises(holdfast.Refused, match="root"):
        hf.index.update_frame(child, tokens=60)
    with pytest.raises(holdfast.Refused, match="50 lent"):
        hf.index.update_frame(root, tokens=49)


def test_what_a_subtree_used_is_settled_once_at_each_level(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    child = hf.index.push_frame("child", parent=root, tokens=800)
    grandchild = hf.index.push_frame("grandchild", parent=child, tokens=600)
    hf.index.record_usage(grandchild, Usage(input=100, output=50, cost=7))
    hf.index.pop_frame(grandchild)
    hf.index.record_usage(child, Usage(input=10, cost=1))
    hf.index.pop_frame(child)
    found = hf.index.get_frame(root)
    assert found.tokens == TokenBudget(granted=1000, used=160)
    assert found.usage == Usage(input=110, output=50, cost=8)


def _torn() -> None:
    raise KeyboardInterrupt


def test_a_child_whose_tokens_are_lent_elsewhere_waits_and_kills_nothing(hf: holdfast.Holdfast) -> None:
    def work(torn: bool) -> None:
        with hf.frame("root", key="r", tokens=1000) as root:
            try:
                with root.frame("A", key="a", tokens=800) as a:
                    a.ask("ok?", key="q")
            except Waiting:
                pass
            with root.frame("B", key="b", tokens=600) as b:
                b.run(_torn if torn else (lambda: None), key="s", if_interrupted="retry")

    with pytest.raises(KeyboardInterrupt):
        work(True)
    (question,) = hf.questions()
    hf.answer(question.id, approve=True)
    work(False)
    assert [frame.status for frame in hf.index.stack(ACTOR)] == ["waiting", "suspended"]
    work(False)
    assert hf.index.stack(ACTOR) == []


def test_what_was_given_back_is_not_there_twice(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    child = hf.index.push_frame("child", parent=root, tokens=800)
    question = hf.index.suspend_frame(child, "?").question
    assert hf.index.get_frame(child).tokens == TokenBudget(granted=800, released=800)
    assert hf.index.get_frame(child).tokens.available == 0
    with pytest.raises(holdfast.errors.FrameSuspended):
        hf.index.reserve(child, "reply", 1)
    hf.index.resume_frame(question, approve=True)
    call = hf.index.begin_model_call(child)
    hf.index.suspend_frame(child, "?")
    assert hf.index.get_frame(root).tokens.available == 200
    hf.index.end_model_call(child, call, usage=Usage(output=700))
    hf.index.pop_frame(child, "cancelled")
    assert hf.index.get_frame(root).tokens == TokenBudget(granted=1000, used=700)

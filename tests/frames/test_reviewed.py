"""What reviewers broke, each as its shortest story, so that it stays mended."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Limits, Usage
from holdfast.connect import assemble_env
from holdfast.errors import ActorBusy, InvalidValue, Waiting
from holdfast.flow.frames import run_once
from holdfast.testing.clock import FrozenClock
from holdfast.types import TokenBudget
from tests.frames.conftest import ACTOR

Act = Callable[[holdfast.Holdfast, str], object]

NOT_TEXT: dict[str, Act] = {
    "summary": lambda hf, f: hf.index.pop_frame(f, "failed", summary=5),  # type: ignore[arg-type]
    "pop error": lambda hf, f: hf.index.pop_frame(f, "failed", error=5),  # type: ignore[arg-type]
    "recommended": lambda hf, f: hf.index.suspend_frame(f, "?", recommended=7),  # type: ignore[arg-type]
    "options of numbers": lambda hf, f: hf.index.suspend_frame(f, "?", options=[1, 2]),  # type: ignore[list-item]
    "options of a text": lambda hf, f: hf.index.suspend_frame(f, "?", options="yes"),
    "options of a number": lambda hf, f: hf.index.suspend_frame(f, "?", options=5),  # type: ignore[arg-type]
    "recommended elsewhere": lambda hf, f: hf.index.suspend_frame(f, "?", options=["a"], recommended="b"),
    "description": lambda hf, f: hf.index.add_handle(f, "document", description=5),  # type: ignore[arg-type]
    "target": lambda hf, f: hf.index.add_handle(f, "document", target=5),  # type: ignore[arg-type]
    "handle metadata": lambda hf, f: hf.index.add_handle(f, "document", metadata=[1]),  # type: ignore[arg-type]
    "tool error": lambda hf, f: hf.index.end_tool_call(f, hf.index.get_frame(f).calls[0].id, error=5),  # type: ignore[arg-type]
    "tool tokens": lambda hf, f: hf.index.end_tool_call(f, hf.index.get_frame(f).calls[0].id, tokens="x"),  # type: ignore[arg-type]
    "model": lambda hf, f: hf.index.begin_model_call(f, model=5),  # type: ignore[arg-type]
    "provider id": lambda hf, f: hf.index.begin_tool_call(f, "t", provider_id=5),  # type: ignore[arg-type]
    "reason": lambda hf, f: hf.index.remove_handle(f, "h", reason=5),  # type: ignore[arg-type]
    "no handle": lambda hf, f: hf.index.remove_handle(f, None),  # type: ignore[arg-type]
    "result summary": lambda hf, f: hf.index.add_result(f, "k", "r", summary=5),  # type: ignore[arg-type]
    "note": lambda hf, f: hf.answer(f, approve=True, note=5),  # type: ignore[arg-type]
    "no goal": lambda hf, f: hf.frame(None).open(),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", sorted(NOT_TEXT))
def test_what_is_not_a_text_is_refused_before_it_is_written(hf: holdfast.Holdfast, name: str) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    hf.index.add_handle(frame, "document", handle="h")
    hf.index.begin_tool_call(frame, "t")
    before = hf.journal.position()
    with pytest.raises(InvalidValue):
        NOT_TEXT[name](hf, frame)
    assert hf.journal.position() == before


def test_a_block_refuses_what_is_not_a_text(hf: holdfast.Holdfast) -> None:
    with hf.frame("x", on_error="leave") as frame:
        with pytest.raises(InvalidValue):
            frame.suspend("pick", options=[1, 2])  # type: ignore[list-item]
        with pytest.raises(InvalidValue):
            frame.ask(5, key="q")  # type: ignore[arg-type]
        frame.result(1, summary="fine")


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


def test_a_torn_step_beside_a_child_elsewhere_is_asked_about(hf: holdfast.Holdfast) -> None:
    def work(fn: Callable[[], Any]) -> Any:
        with hf.frame("root", key="r", tokens=1000) as root:
            helper = hf.index.push_frame("helper", parent=root.id, scope="actor/helper", tokens=100, key="h")
            given = root.run(fn, key="pay")
            hf.index.pop_frame(helper)
            return given

    with pytest.raises(KeyboardInterrupt):
        work(_torn)
    with pytest.raises(Waiting) as waiting:
        work(_torn)
    assert [frame.status for frame in hf.index.stack("actor/helper")] == ["active"]
    hf.answer(waiting.value.question, approve=False, payload="paid")
    assert work(_torn) == "paid"


def test_the_sweep_works_where_the_last_owner_is_gone(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    env: Any = hf.env
    dead = holdfast.Holdfast(assemble_env(env.journal, env.settings, env.clock), owner=False)
    timer = dead.index.push_frame("timer", scope=ACTOR)
    late = dead.index.push_frame("late", scope=ACTOR)
    dead.index.suspend_frame(timer, "later", kind="timer", until=clock.now_ms() + 10)
    dead.index.suspend_frame(late, "?", expires_ms=10, on_expiry="fail")
    dead.index.resume_actor(ACTOR, incarnation="gone")
    clock.advance(11)
    swept = hf.index.sweep()
    assert (swept.resumed, swept.expired, swept.skipped) == ((timer,), (late,), ())
    assert hf.index.resume_actor(ACTOR).holder is None


def test_a_question_in_other_words_is_the_same_question(hf: holdfast.Holdfast) -> None:
    for words in ("Refund 49.90 (2 left)?", "Refund 49.90 (1 left)?"):
        with pytest.raises(Waiting), hf.frame("r", key="r") as frame:
            frame.ask(words, key="q", token=True)
    (question,) = hf.questions()
    assert question.reason == "Refund 49.90 (2 left)?"
    hf.answer(question.id, approve=True)
    with hf.frame("r", key="r") as frame:
        assert frame.ask("Refund?", key="q").approved


def test_an_erased_value_says_so(hf: holdfast.Holdfast) -> None:
    user = hf.as_user("u-1")
    ran = []

    def work() -> Any:
        with user.frame("job", key="k") as frame:
            value = frame.run(lambda: ran.append(1) or {"paid": 17}, key="pay")  # type: ignore[func-returns-value]
            frame.result("done")
            return value

    assert work() == {"paid": 17}
    hf.journal.erase("u-1")
    assert work() is holdfast.types.ERASED
    assert ran == [1]


def test_an_approval_needs_an_answer_that_says_something(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    question = hf.index.suspend_frame(frame, "?").question
    before = hf.journal.position()
    for act in (
        lambda: hf.answer(question),
        lambda: hf.answer(question, note="hm"),
        lambda: hf.index.resume_frame(question),
    ):
        with pytest.raises(InvalidValue, match="approve"):
            act()
    assert hf.journal.position() == before
    hf.index.resume_frame(question, payload={"ok": 1})
    pause = hf.index.suspend_frame(frame, "pause", kind="pause").question
    assert hf.index.resume_frame(pause) == frame


def test_callbacks_run_when_no_lock_is_held(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        both = threading.Barrier(2, timeout=5)
        errors: list[BaseException] = []

        def entered(event: holdfast.types.Event) -> None:
            if event.content.goal == "work":
                both.wait()
                with hf.frame("told", actor="b" if event.stream == "actor/a" else "a", key=f"of {event.stream}"):
                    pass

        stop = hf.on("frame.pushed", entered)

        def work(actor: str) -> None:
            try:
                with hf.frame("work", actor=actor):
                    stop()
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(actor,), daemon=True) for actor in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
        assert not any(thread.is_alive() for thread in threads)
        assert errors == []
        assert hf.env.leases.count_users() == 0
        hf.on("frame.popped", lambda event: hf.frame("after", actor="c", key="once").open())
        with hf.frame("again", actor="c"):
            pass
        assert [frame.goal for frame in hf.index.stack("actor/c")] == ["after"]


def test_a_step_that_ended_meanwhile_does_not_run_again(hf: holdfast.Holdfast, monkeypatch: Any) -> None:
    ran: list[str] = []
    enter = run_once.RUNNING_STEPS.enter
    with hf.frame("f") as frame:

        def late(owner: str, key: str) -> None:
            monkeypatch.setattr(run_once.RUNNING_STEPS, "enter", enter)
            frame.run(lambda: ran.append("first"), key="s")
            enter(owner, key)

        monkeypatch.setattr(run_once.RUNNING_STEPS, "enter", late)
        frame.run(lambda: ran.append("late"), key="s")
    assert ran == ["first"]


def test_ancestors_clocks_move_by_exactly_as_long_as_all_below_waited(
    hf: holdfast.Holdfast, clock: FrozenClock
) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, limits=Limits(timeout_ms=100_000))
    first = hf.index.get_frame(root).deadline
    assert first is not None
    waits, works = (hf.index.push_frame(name, parent=root) for name in ("waits", "works"))
    question = hf.index.suspend_frame(waits, "?").question
    clock.advance(90_000)
    hf.index.pop_frame(works)
    clock.advance(1_000)
    hf.index.resume_frame(question, approve=True)
    assert hf.index.get_frame(root).deadline == first + 1_000
    again = hf.index.suspend_frame(waits, "?").question
    clock.advance(5_000)
    hf.index.pop_frame(waits, "cancelled")
    assert hf.index.get_frame(root).deadline == first + 6_000
    with pytest.raises(holdfast.errors.QuestionNotFound):
        hf.answer(again, approve=True)


def test_a_parent_whose_clock_stands_still_may_work(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    def work(plan: int) -> None:
        with hf.frame("root", key="r", limits=Limits(timeout_ms=60_000)) as root:
            assert root.run(lambda: plan, key=f"plan {plan}") == plan
            with root.frame("child", key="c") as child:
                child.ask("?", key="q")

    with pytest.raises(Waiting):
        work(1)
    clock.advance(3_600_000)
    (question,) = hf.questions()
    hf.answer(question.id, approve=True)
    work(2)
    assert hf.index.stack(ACTOR) == []
    late = hf.index.push_frame("late", scope=ACTOR, limits=Limits(timeout_ms=10))
    clock.advance(11)
    with pytest.raises(holdfast.errors.DeadlineExceeded):
        hf.index.push_frame("child", parent=late)


def test_what_was_given_back_is_not_there_twice(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, tokens=1000)
    child = hf.index.push_frame("child", parent=root, tokens=800)
    question = hf.index.suspend_frame(child, "?").question
    assert hf.index.get_frame(child).tokens == TokenBudget(granted=800, released=800)
    assert hf.index.get_frame(child).tokens.available == 0
    with pytest.raises(holdfast.errors.InsufficientTokens):
        hf.index.reserve(child, "reply", 1)
    hf.index.resume_frame(question, approve=True)
    call = hf.index.begin_model_call(child)
    hf.index.suspend_frame(child, "?")
    assert hf.index.get_frame(root).tokens.available == 200
    hf.index.end_model_call(child, call, usage=Usage(output=700))
    hf.index.pop_frame(child, "cancelled")
    assert hf.index.get_frame(root).tokens == TokenBudget(granted=1000, used=700)


def test_a_key_stands_for_everything_that_was_asked_for(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, tokens=100)
    hf.index.reserve(frame, "p", 3, key="rv")
    hf.index.update_frame(frame, limits=Limits(depth=2), key="u")
    hf.index.add_handle(frame, "document", handle="h", priority="low", key="h")
    call = hf.index.begin_tool_call(frame, "t", if_interrupted="retry", key="t")
    before = hf.journal.position()
    for act in (
        lambda: hf.index.release_reservation(frame, "p", key="rv"),
        lambda: hf.index.update_frame(frame, limits=Limits(depth=1), key="u"),
        lambda: hf.index.update_frame(frame, tokens=500, key="u"),
        lambda: hf.index.add_handle(frame, "document", handle="h", priority="high", key="h"),
        lambda: hf.index.begin_tool_call(frame, "t", if_interrupted="fail", key="t"),
    ):
        with pytest.raises(holdfast.errors.KeyReused):
            act()
    hf.index.update_frame(frame, limits=Limits(depth=2), key="u")
    assert hf.index.begin_tool_call(frame, "t", if_interrupted="retry", key="t") == call
    assert hf.journal.position() == before


class Mute(Exception):
    """Cannot say what happened."""

    def __str__(self) -> str:
        raise RuntimeError("mute")


@pytest.mark.parametrize("error", [ValueError("no file \udcff"), ValueError("x" * 2_000_000), ValueError("\0"), Mute()])
def test_an_error_of_any_words_is_journaled(hf: holdfast.Holdfast, error: Exception) -> None:
    def fails() -> None:
        raise error

    with pytest.raises(type(error)), hf.frame("f") as frame:
        frame.run(fails, key="s")
    found = hf.index.get_frame(frame.id)
    assert (found.status, found.calls) == ("failed", ())
    assert str(found.error).startswith(type(error).__name__)


def test_a_token_of_odd_text_opens_nothing(hf: holdfast.Holdfast) -> None:
    for token in ("\udcff", "\0", "x" * 100_000):
        with pytest.raises(holdfast.errors.TokenNotFound):
            hf.answer(token=token, approve=True)


def test_a_step_gives_what_it_will_give_again(hf: holdfast.Holdfast) -> None:
    for _ in range(2):
        with hf.frame("f", key="k") as frame:
            assert frame.run(lambda: {"a": (1, 2)}, key="s") == {"a": [1, 2]}


@dataclasses.dataclass
class Order:
    """Something of the caller's own."""

    number: int


def test_records_are_taken_apart_wherever_they_are(hf: holdfast.Holdfast) -> None:
    for _ in range(2):
        with hf.frame("f", key="k", inputs=[Order(1), (2,)]) as frame:
            assert frame.info().inputs == [{"number": 1}, [2]]
            assert frame.run(lambda: {"orders": [Order(3)]}, key="s") == {"orders": [{"number": 3}]}
    pushed = hf.index.push_frame("g", scope=ACTOR, inputs={"o": (Order(4), {"t": (5,)})})
    assert hf.index.pop_frame(pushed) == hf.index.get_frame(pushed)


def test_keys_of_children_steps_and_questions_do_not_meet(hf: holdfast.Holdfast) -> None:
    with hf.frame("f", key="k") as frame:
        for key in ("ask/x", "run/x", "do/x", "x"):
            with frame.frame("child", key=key):
                pass
        frame.run(lambda: 1, key="x")
        frame.spend(1, key="x")
        assert frame.suspend("?", key="x").answer is None
    assert hf.index.get_frame(frame.id).status == "suspended"


def test_an_async_function_is_refused_before_its_intent(hf: holdfast.Holdfast) -> None:
    async def later() -> int:
        return 1

    with hf.frame("f") as frame:
        with pytest.raises(InvalidValue, match="open_async"):
            frame.run(later, key="s")
        assert frame.info().calls == ()


def test_closing_gives_back_what_was_taken_for_good(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.index.resume_actor(ACTOR, incarnation="a")
        assert hf.drain(0) == 0
    with holdfast.open(tmp_path / "a.db") as hf:
        assert hf.index.resume_actor(ACTOR).holder is None


def test_falsy_inputs_stay(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR, inputs=0)
    assert hf.index.update_frame(frame, goal="g").inputs == 0


def test_the_same_answer_by_another_way_is_the_same_answer(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    asked = hf.index.suspend_frame(frame, "?", token=True)
    hf.answer(token=asked.token, approve=True)
    assert hf.answer(asked.question, approve=True) == asked.question
    with pytest.raises(holdfast.errors.AlreadyAnswered):
        hf.answer(asked.question, approve=False)


def test_a_step_that_runs_is_not_run_beside_itself(hf: holdfast.Holdfast) -> None:
    with hf.frame("f") as frame:

        def nested() -> None:
            with pytest.raises(ActorBusy):
                frame.run(lambda: None, key="s")

        frame.run(nested, key="s")
    assert hf.index.get_frame(frame.id).status == "completed"


def test_the_same_status_again_under_its_key_is_the_same_request(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    hf.index.update_frame(frame, status="active", key="k")
    hf.index.update_frame(frame, status="waiting")
    assert hf.index.update_frame(frame, status="active", key="k").status == "waiting"
    with pytest.raises(holdfast.errors.KeyReused):
        hf.index.update_frame(frame, status="waiting", key="k")


def test_a_child_elsewhere_ends_also_after_the_lease_of_its_parents_scope_was_lost(hf: holdfast.Holdfast) -> None:
    root = hf.index.push_frame("root", scope=ACTOR, limits=Limits(timeout_ms=1000))
    hf.index.suspend_frame(hf.index.push_frame("asks", parent=root), "?")
    away = hf.index.push_frame("away", parent=root, scope="actor/away")
    hf.index.resume_actor(ACTOR, incarnation="1")
    env: Any = hf.env
    other = holdfast.Holdfast(assemble_env(env.journal, env.settings, env.clock), owner=False)
    other.index.resume_actor(ACTOR, incarnation="2")
    other.index.release_actor(ACTOR)
    with pytest.raises(holdfast.errors.StaleEpoch):
        hf.index.record_usage(root, 1)
    assert hf.index.pop_frame(away).status == "completed"


@pytest.mark.parametrize(
    "act",
    [
        lambda hf, f: hf.index.add_handle(f, "document", priority=["low"]),
        lambda hf, f: hf.index.release_reservation(f, ["p"]),
        lambda hf, f: hf.index.spend_reserved(f, 5, 1),
        lambda hf, f: hf.index.pop_frame(f, ["completed"]),
        lambda hf, f: hf.index.end_model_call(f, ["c"]),
        lambda hf, f: hf.index.restore_handles(f, 5),
        lambda hf, f: hf.index.update_frame(f, goal="g", expected_version="5"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(hf: holdfast.Holdfast, act: Act) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    with pytest.raises(InvalidValue):
        act(hf, frame)

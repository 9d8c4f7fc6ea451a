"""A turn: new, continued or answered already is the same code; however it is left, the same key goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import holdfast
from holdfast import Ask, CallModel, CallTool, Done
from holdfast.errors import ActorBusy, InvalidMessage, InvalidValue, KeyReused, Refused, StepUnanswered
from holdfast.flow.turns.calls import TurnCall
from holdfast.flow.turns.engine import TurnEngine
from holdfast.flow.turns.open import TurnOpener
from holdfast.flow.turns.turns import TurnTerms
from tests.backends import IN_MEMORY
from tests.scale import volume
from tests.turns.loops import SESSION, asks, echo, kinds, leave_at, loop, place, replies, spoken, take, types

Holdfast = holdfast.Holdfast


def test_a_turn_goes_from_a_message_to_the_reply(hf: Holdfast) -> None:
    chat = hf.session(SESSION, system="Be terse.", model="gpt-4o")
    with chat.turn("Look.", key="k") as turn:
        steps = loop(turn, replies(asks(("look", {"at": 1})), "I saw it."))
    assert kinds(steps) == ["CallModel", "CallTool", "CallModel", "Done"]
    done: Any = steps[-1]
    assert (done.status, done.text, done.reason) == ("done", "I saw it.", None)
    assert (turn.text, turn.key, turn.status) == ("I saw it.", "k", "completed")
    assert steps[0].model == "gpt-4o"
    assert spoken(hf) == [
        ("user", "Look."),
        ("assistant", ["look"]),
        ("tool", [{"got": {"at": 1}}]),
        ("assistant", "I saw it."),
    ]
    assert hf.index.resume_actor(place()).holder is None, "its lease ended with it"


def test_a_finished_turn_gives_its_old_answer_and_writes_nothing(hf: Holdfast) -> None:
    take(hf, "Hello", replies("Hi."), key="k")
    before = hf.journal.position()
    done = take(hf, "Hello", replies(), key="k")
    assert (done.status, done.text) == ("done", "Hi.")
    assert take(hf, None, replies(), key="k").text == "Hi.", "the key alone says which"
    assert hf.journal.position() == before


def test_a_key_stands_for_the_words_that_it_came_with(hf: Holdfast) -> None:
    take(hf, "Hello", replies("Hi."), key="k")
    with pytest.raises(KeyReused):
        take(hf, "Goodbye", replies("no"), key="k")
    leave_at(hf, "More", CallModel, replies(), key="live")
    with pytest.raises(KeyReused):
        take(hf, "Less", replies("no"), key="live")
    assert take(hf, "More", replies("Yes."), key="live").text == "Yes."


def test_a_key_that_stands_for_something_else_is_no_turn(hf: Holdfast) -> None:
    hf.session(SESSION)
    hf.index.push_frame("work", scope=place(), key="k")
    with pytest.raises(KeyReused):
        take(hf, "Hello", replies("no"), key="k")


def test_without_a_key_each_message_is_a_turn(hf: Holdfast) -> None:
    for _ in range(2):
        assert take(hf, "Hello", replies("Hi.")).text == "Hi."
    assert [role for role, _ in spoken(hf)] == ["user", "assistant"] * 2


def test_a_turn_without_a_message_goes_on_with_the_one_that_is_live(hf: Holdfast) -> None:
    leave_at(hf, "Hello", CallModel, replies())
    assert take(hf, None, replies("Hi.")).text == "Hi."
    assert spoken(hf) == [("user", "Hello"), ("assistant", "Hi.")]


def test_without_a_message_there_must_be_a_turn_to_go_on_with(hf: Holdfast) -> None:
    with pytest.raises(Refused, match="nothing to continue"):
        take(hf, None, replies())
    take(hf, "Hello", replies("Hi."))
    with pytest.raises(Refused, match="nothing to continue"):
        take(hf, None, replies())


def test_a_frame_in_the_place_of_turns_is_refused_and_not_waited_for(hf: Holdfast) -> None:
    hf.session(SESSION)
    frame = hf.index.push_frame("something else", scope=place())
    with pytest.raises(Refused, match=frame):
        take(hf, "Hello", replies())
    hf.index.pop_frame(frame)
    assert take(hf, "Hello", replies("Hi.")).text == "Hi."


@pytest.mark.parametrize("given", ["", [], {"role": "assistant", "content": "a"}, 17, ["a", {"role": "system"}]])
@IN_MEMORY
def test_a_turn_begins_with_what_a_user_says(hf: Holdfast, given: Any) -> None:
    before = [event.type for event in hf.journal.events()]
    with pytest.raises((InvalidMessage, InvalidValue)):
        take(hf, given, replies())
    assert [event.type for event in hf.journal.events() if event.type == "message.appended"] == []
    assert before == []


@pytest.mark.parametrize("how", [{"loops": 0}, {"loops": True}, {"if_busy": "sometimes"}, {"on_error": "what"}])
@IN_MEMORY
def test_bad_terms_are_refused_before_anything_is_written(hf: Holdfast, how: Any) -> None:
    chat = hf.session(SESSION)
    before = hf.journal.position()
    with pytest.raises(InvalidValue):
        chat.turn("Hello", **how)
    for wrong in ({"if_interrupted": "always"}, {"if_interrupted": {"a": "never"}}):
        with pytest.raises(InvalidValue):
            chat.turn("Hello", **wrong)
    assert hf.journal.position() == before


# steps


def test_calls_beside_each_other_are_given_together_and_answered_in_any_order(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        (model,) = turn.steps()
        assert isinstance(model, CallModel)
        model.done(asks(("a", {"n": 1}), ("b", {"n": 2}), ("c", {"n": 3})))
        tools: Any = turn.steps()
        assert [(step.name, step.args) for step in tools] == [("a", {"n": 1}), ("b", {"n": 2}), ("c", {"n": 3})]
        assert len({step.key for step in tools}) == 3
        assert len(turn.frame.info().calls) == 3, "every intent is journaled before any tool runs"
        for step in reversed(tools):
            step.done(step.name)
        (model,) = turn.steps()
        model.done("Done.")
        (done,) = turn.steps()
        assert done.text == "Done."
        assert turn.steps() == []


def test_a_step_must_be_answered_before_the_next_one(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        (model,) = turn.steps()
        with pytest.raises(StepUnanswered):
            turn.steps()
        model.done(asks(("a", {}), ("b", {})))
        first, second = turn.steps()
        first.done("1")
        with pytest.raises(StepUnanswered, match="'b'"):
            turn.steps()
        second.done("2")
        turn.steps()[0].done("Done.")
    assert spoken(hf)[-1] == ("assistant", "Done.")


def test_a_body_that_forgets_an_outcome_is_told_so_and_can_go_on(hf: Holdfast) -> None:
    with pytest.raises(StepUnanswered), hf.session(SESSION).turn("Look.", key="k") as turn:
        for _ in turn:
            pass
    assert take(hf, "Look.", replies("Here."), key="k").text == "Here."


def test_a_step_is_answered_once(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Look.") as turn:
        (model,) = turn.steps()
        model.done(asks(("a", {})))
        for again in (lambda: model.done("x"), lambda: model.fail("x"), lambda: list(model.stream([]))):
            with pytest.raises(Refused):
                again()
        (tool,) = turn.steps()
        tool.fail("no")
        for again in (lambda: tool.done("x"), lambda: tool.fail("x"), lambda: tool.ask("x")):
            with pytest.raises(Refused):
                again()
        turn.steps()[0].done("Done.")
    assert types(hf).count("tool.returned") == 1


# leaving


def test_left_by_break_it_is_live_its_lease_is_free_and_it_goes_on(hf: Holdfast) -> None:
    step = leave_at(hf, "Look.", CallTool, replies(asks(("a", {}))), key="k", if_interrupted="retry")
    (live,) = [frame for frame in hf.index.resume_actor(place()).frames if frame.parent is None]
    assert live.live
    assert hf.index.resume_actor(place()).holder is None
    with hf.session(SESSION).turn("Look.", key="k", if_interrupted="retry") as turn:
        again, *rest = loop(turn, replies("Done."))
    assert isinstance(again, CallTool)
    assert (again.key, again.attempt) == (step.key, 2)
    assert kinds(rest) == ["CallModel", "Done"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_left_by_an_exception_it_is_live_and_goes_on(hf: Holdfast, error: type[BaseException]) -> None:
    def fails(step: CallModel) -> None:
        raise error("the network")

    with pytest.raises(error):
        take(hf, "Hello", fails, key="k")
    assert hf.index.resume_actor(place()).holder is None
    assert take(hf, "Hello", replies("Hi."), key="k").text == "Hi."
    assert spoken(hf) == [("user", "Hello"), ("assistant", "Hi.")]


def test_a_turn_may_be_failed_by_an_exception(hf: Holdfast) -> None:
    def fails(step: Any) -> None:
        raise RuntimeError("the network")

    with pytest.raises(RuntimeError):
        take(hf, "Hello", replies(asks(("a", {}), ("b", {}))), fails, key="k", on_error="fail")
    done = take(hf, "Hello", replies(), key="k")
    assert (done.status, done.reason) == ("stopped", "RuntimeError: the network")
    assert hf.session(SESSION).details.open_calls() == [], "its calls have results that say so"
    assert hf.index.resume_actor(place()).frames == ()
    assert take(hf, "Again", replies("Hi.")).text == "Hi."


def test_a_new_message_joins_a_turn_that_nobody_works_on(hf: Holdfast) -> None:
    leave_at(hf, "Hello", CallModel, replies(), key="first")
    done = take(hf, "Are you there?", replies("Hi.", "I am."), key="second")
    assert done.text == "I am."
    assert [text for _, text in spoken(hf)] == ["Hello", "Are you there?", "Hi.", "I am."]
    for message, key in (("Hello", "first"), ("Are you there?", "second")):
        assert take(hf, message, replies(), key=key).text == "I am.", "both keys stand for the turn"
    assert types(hf).count("turn.joined") == 1


def test_a_turn_is_entered_once_and_exists_then(hf: Holdfast) -> None:
    turn = hf.session(SESSION).turn("Hello")
    with pytest.raises(Refused):
        turn.steps()
    with turn:
        loop(turn, replies("Hi."))
    with pytest.raises(Refused), turn:
        pass


def test_nothing_is_said_until_the_block_is_entered(hf: Holdfast) -> None:
    hf.session(SESSION).turn("Hello")
    assert spoken(hf) == []


def test_work_of_the_turns_own_is_part_of_it(hf: Holdfast) -> None:
    def run() -> str:
        ran.append(1)
        return "fetched"

    ran: list[int] = []
    for last in (False, True):
        with hf.session(SESSION).turn("Look.", key="k") as turn:
            assert turn.frame.run(run, key="fetch") == "fetched"
            with turn.frame.frame("beside", key="beside") as child:
                child.result(1)
            turn.frame.spend(10, key="spend")
            if last:
                loop(turn, replies("Done."), echo)
    assert ran == [1]
    assert turn.frame.info().tokens.used - turn.usage.estimated == 10
    assert isinstance(take(hf, "Look.", replies(), key="k"), Done)
    assert Ask is holdfast.Ask


# turns beside other work


def test_work_of_the_turns_own_is_not_taken_for_a_call(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Hello.") as turn:
        (step,) = turn.steps()
        child = turn.frame.frame("look around", key="c")
        child.open()
        step.done("Hi.")
        assert hf.index.get_frame(child.id).live


def test_a_turn_within_a_turn_of_the_same_conversation_is_refused(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("One."):
        with pytest.raises(Refused, match="wait for itself"), chat.turn("Two."):
            pass
        with hf.session("another").turn("Three."):
            pass
        with pytest.raises(ActorBusy), chat.turn("Two.", if_busy="reject"):
            pass
    with chat.turn() as turn:
        assert isinstance(turn.steps()[0], CallModel)


def test_whoever_would_be_rejected_is_also_rejected_with_a_key_that_is_under_way(hf: Holdfast) -> None:
    chat = hf.session(SESSION)
    with chat.turn("One.", key="k"), pytest.raises(ActorBusy), chat.turn("One.", key="k", if_busy="reject"):
        pass


THREADS = 8


# one answer


def at_once(answer: Callable[[int], object]) -> tuple[list[object], list[Exception]]:
    """Several threads that answer at the same moment; gives what they got, and what they were refused with."""
    together, got, refused = threading.Barrier(THREADS), list[object](), list[Exception]()

    def go(number: int) -> None:
        together.wait()
        try:
            got.append(answer(number))
        except Refused as error:
            refused.append(error)

    threads = [threading.Thread(target=go, args=(number,)) for number in range(THREADS)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return got, refused


def check_answered_once(hf: Holdfast, trial: int) -> None:
    chat = hf.session(f"s{trial}")
    with chat.turn("Go.") as turn:
        model: Any = turn.steps()[0]
        got, refused = at_once(lambda number: model.done(asks((f"pay{number}", {}))))
        assert (len(got), len(refused)) == (1, THREADS - 1)
        pays: Any = turn.steps()[0]
        ways = [lambda number: pays.done(f"r{number}"), lambda number: pays.fail(f"r{number}")]
        got, refused = at_once(lambda number: ways[number % 2](number))
        assert (len(got), len(refused)) == (1, THREADS - 1)
    assert len([one for one in chat.messages() if one.role == "tool"]) == 1


@IN_MEMORY
def test_of_many_who_answer_a_step_at_once_all_but_one_are_refused(hf: Holdfast) -> None:
    for trial in range(volume(10, 300)):
        check_answered_once(hf, trial)


@IN_MEMORY
def test_answers_that_pass_each_other_are_found(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = threading.Barrier(THREADS)

    @contextmanager
    def passed(self: TurnCall) -> Iterator[None]:
        self.check_unanswered()
        slow.wait()
        yield
        self.answered = True

    monkeypatch.setattr(TurnCall, "answer_once", passed)
    with pytest.raises(AssertionError):
        check_answered_once(hf, 0)


def test_a_step_whose_answer_was_not_taken_can_be_answered_again(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    with hf.session(SESSION).turn("Go.") as turn:
        model: Any = turn.steps()[0]
        with pytest.raises(InvalidValue):
            model.done({"role": "user", "content": "no answer"})
        model.done(asks(("pay", {})))
        pays: Any = turn.steps()[0]
        with pytest.raises(InvalidValue):
            pays.done(object())
        with monkeypatch.context() as patch:
            patch.setattr(TurnEngine, "end_tool", lambda *given, **how: (_ for _ in ()).throw(holdfast.errors.Busy))
            with pytest.raises(holdfast.errors.Busy):
                pays.fail("away")
        assert pays.done("paid").tool_results[0].result == "paid"
        with pytest.raises(Refused, match="answered already"):
            pays.fail("late")


# bad values


@IN_MEMORY
@pytest.mark.parametrize("wait", [-1, -0.1, float("nan"), float("inf"), 10**400, True, "1"])
def test_a_wait_that_is_no_time_is_refused(hf: Holdfast, wait: Any) -> None:
    with pytest.raises(InvalidValue, match="wait must be seconds"):
        TurnOpener(hf.env, f"session/{SESSION}/thread/main", TurnTerms(wait=wait))
    with pytest.raises(InvalidValue, match="wait must be seconds"):
        take(hf, "Go.", replies("no"), wait=wait)
    assert take(hf, "Go.", replies("Hi."), wait=0).text == "Hi."


# how a turn ended


@pytest.mark.parametrize("how", ["reply", "stop", "limit"])
@IN_MEMORY
def test_how_a_turn_ended_in_both_words(hf: Holdfast, how: str) -> None:
    with hf.session(SESSION).turn("Hi", loops=1) as turn:
        for step in turn:
            if isinstance(step, CallModel):
                if how == "stop":
                    turn.stop()
                    break
                step.done("Hello." if how == "reply" else asks(("work", {})))
            elif isinstance(step, holdfast.CallTool):
                step.done("ok")
        ended = turn.result
        assert ended is not None
        expected = {"reply": ("done", "completed"), "stop": ("stopped", "cancelled"), "limit": ("stopped", "failed")}
        assert (ended.status, turn.status) == expected[how]

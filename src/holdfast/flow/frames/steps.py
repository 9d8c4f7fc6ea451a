"""Memoised steps: each runs once and is remembered for ever, its value found by its key.

An intent without an outcome was interrupted by a crash; the policy given beforehand says whether to run the step again,
ask a person, or count it as failed.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from holdfast.core.frames.calls import check_can_work
from holdfast.core.frames.next_step import interruption_policy
from holdfast.core.journal.codec import decode, decode_event, encode
from holdfast.core.values import exception_text, to_plain
from holdfast.errors import ActorBusy, EffectFailed, HoldfastError, InvalidValue, KeyReused, TooLarge, Waiting
from holdfast.flow.frames import questions
from holdfast.flow.frames.calls import begin_run, end_run
from holdfast.flow.frames.read import find_frame_stream, load_current_state
from holdfast.ports import Env
from holdfast.records.events import frames
from holdfast.records.events.envelope import ERASED
from holdfast.records.frames import Call
from holdfast.records.ids import MAX_ID_CHARS, check_key, own_key
from holdfast.records.recovery import DO_NOT_RUN, RUN_AGAIN, Answer
from holdfast.system import renew_in_child


class RunStart(msgspec.Struct, frozen=True, kw_only=True):
    """The start of a step: the call to run it under, or its earlier value in `known`."""

    call: str = ""
    known: tuple[Any, ...] = ()


StepOwner = tuple[str, str, str]
"""Client, tenant and frame: callers may choose frame ids, and two may choose the same."""


class _RunningSteps:
    """The steps that this process runs now: their intents are not interrupted."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        self._keys: set[tuple[StepOwner, str]] = set()
        self._mutex = threading.Lock()

    def enter(self, owner: StepOwner, key: str) -> None:
        with self._mutex:
            if (owner, key) in self._keys:
                raise ActorBusy(f"Step {key!r} of frame {owner[2]} is running in this process. Wait until it is done.")
            self._keys.add((owner, key))

    def leave(self, owner: StepOwner, key: str) -> None:
        with self._mutex:
            self._keys.discard((owner, key))


RUNNING_STEPS = _RunningSteps()


def memo_key(frame: str, key: str) -> str:
    """Return the key under which a step's outcome is remembered."""
    return own_key(frame, "run", key)


def begin_step(env: Env, frame: str, key: str, if_interrupted: str) -> RunStart:
    """Return a step's earlier value, or a call to run it under. Pair with finish_step, fail_step or leave_step."""
    check_key(key, limit=MAX_ID_CHARS)
    RUNNING_STEPS.enter(_step_owner(env, frame), key)
    try:
        # Looked up after `enter`: another thread records the value before it leaves the step.
        known = _find_run_value(env, frame, memo_key(frame, key))
        if known:
            leave_step(env, frame, key)
            return RunStart(known=known)
        live = load_current_state(env, find_frame_stream(env, frame)).frames.get(frame)
        begun = () if live is None else live.calls.values()
        torn = next((call for call in begun if call.kind == "run" and call.name == key), None)
        if torn is None:
            return RunStart(call=begin_run(env, frame, key, if_interrupted))
        return _resume_interrupted(env, frame, key, torn)
    except BaseException:
        leave_step(env, frame, key)
        raise


def _find_run_value(env: Env, frame: str, key: str) -> tuple[Any, ...]:
    """Return the value of a memoised step in a tuple, or an empty tuple."""
    stored = env.journal.events_by_key(env.tenant, find_frame_stream(env, frame), key)
    if not stored:
        return ()
    event = next((event for event in map(decode_event, stored) if event.type == "run.returned"), None)
    if event is None:
        raise KeyReused(f"Key {key!r} already stands for something else. Use another key for this step.")
    return (ERASED if event.content is ERASED else getattr(event.content, "value", None),)


def _resume_interrupted(env: Env, frame: str, key: str, torn: Call) -> RunStart:
    way = interruption_policy(torn)
    if way == "retry":
        check_can_work(load_current_state(env, find_frame_stream(env, frame)), frame, env.clock.now_ms())
        return RunStart(call=torn.id)
    if way == "fail":
        end_run(env, frame, torn.id, error="interrupted", key=memo_key(frame, key))
        raise EffectFailed(f"Step {key!r} was interrupted, and its if_interrupted policy is fail. It can be run again.")
    answer = ask_to_run_again(env, frame, f"Step {key!r}", torn)
    if answer.approved:
        # An approval covers one run: if that run is interrupted too, the question is asked again.
        end_run(env, frame, torn.id, error="interrupted", key=memo_key(frame, key))
        return RunStart(call=begin_run(env, frame, key, torn.if_interrupted))
    finish_step(env, frame, key, torn.id, answer.payload)
    return RunStart(known=(answer.payload,))


def ask_to_run_again(env: Env, frame: str, what: str, torn: Call) -> Answer:
    """Ask whether an interrupted call may run again; raise Waiting until it is answered."""
    content = frames.QuestionContent(
        reason=f"{what} may have run. Run again?", options=[RUN_AGAIN, DO_NOT_RUN], recommended=DO_NOT_RUN
    )
    asked = questions.suspend_frame(
        env, frame, content, call=torn.id, subtree=True, leave_away=True, key=own_key(torn.id, "torn")
    )
    answer = questions.read_answer(env, find_frame_stream(env, frame), asked.question)
    if answer is None:
        raise Waiting(
            f"{what} may have run. Question {asked.question} asks whether to run it again: answer it, then run the "
            "same code again.",
            question=asked.question,
        )
    if questions.is_waiting_for(env, frame, asked.question):
        questions.resume_frame(env, frame)
    return answer


def finish_step(env: Env, frame: str, key: str, call: str, value: Any) -> Any:
    """Remember a step's value, and return it in its stored form."""
    try:
        kept = decode(encode(to_plain(value), env.settings.nesting))
        end_run(env, frame, call, value=kept, key=memo_key(frame, key))
    except (InvalidValue, TooLarge):
        end_run(env, frame, call, error="unstorable: no plain data, or too much", key=memo_key(frame, key))
        raise
    finally:
        leave_step(env, frame, key)
    return kept


def fail_step(env: Env, frame: str, key: str, call: str, error: BaseException) -> None:
    """Journal that a step failed; it is not remembered and can run again."""
    try:
        end_run(env, frame, call, error=exception_text(error), key=memo_key(frame, key))
    except HoldfastError as second:
        error.add_note(f"The failure could not be journaled: {second}")
    finally:
        leave_step(env, frame, key)


def leave_step(env: Env, frame: str, key: str) -> None:
    """Mark a step as no longer running, however it ended."""
    RUNNING_STEPS.leave(_step_owner(env, frame), key)


def _step_owner(env: Env, frame: str) -> StepOwner:
    return env.leases.process.name, env.tenant, frame

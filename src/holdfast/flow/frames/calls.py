"""Work inside a frame: budgets, evidence, results, and model, tool and memoised calls.

Intent is journaled before a call, the outcome after it. A memoised step runs once and is remembered for ever: its value
is found by its key. An intent without an outcome was interrupted by a crash; the policy given beforehand says whether
to run the step again, ask a person, or count it as failed.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.core.frames import budgets, calls
from holdfast.core.frames.next_step import interruption_policy
from holdfast.core.journal.codec import decode, decode_event, encode
from holdfast.core.packs.segments import is_reserved_name
from holdfast.core.values import exception_text, to_plain
from holdfast.errors import (
    ActorBusy,
    CallNotFound,
    EffectFailed,
    HoldfastError,
    InvalidValue,
    KeyReused,
    TooLarge,
    Waiting,
)
from holdfast.flow.frames import questions
from holdfast.flow.frames.lifecycle import change_frame, match_event
from holdfast.flow.frames.read import find_frame_stream, load_current_state, parse_id
from holdfast.flow.journal import telemetry
from holdfast.flow.journal.append import ChangeResult, redact_as_configured
from holdfast.ports import Env
from holdfast.records.compaction import priority_of
from holdfast.records.events import frames
from holdfast.records.events.calls import CallContent
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import PRIORITY_SCORE, Call
from holdfast.records.ids import MAX_ID_CHARS, check_key, own_key, ulid_text
from holdfast.records.recovery import DO_NOT_RUN, RUN_AGAIN, Answer
from holdfast.records.usage import Usage
from holdfast.system import renew_in_child


def reserve_tokens(env: Env, frame: str, purpose: str, amount: int, key: str | None) -> ChangeResult:
    """Reserve tokens."""
    same = match_event("frame.reserved", frame=frame, purpose=purpose, amount=amount)
    return change_frame(env, frame, lambda state: budgets.reserve(state, frame, purpose, amount), key=key, same=same)


def release_reservation(env: Env, frame: str, purpose: str, amount: int | None, key: str | None) -> ChangeResult:
    """Release a reservation, or part of it."""

    def same(events: list[Event]) -> bool:
        given = [event.facts for event in events if event.type == "frame.reserved"]
        return any(
            (facts.frame, facts.purpose) == (frame, purpose) and facts.amount < 0 and amount in (None, -facts.amount)
            for facts in given
        )

    return change_frame(env, frame, lambda state: budgets.release(state, frame, purpose, amount), key=key, same=same)


def spend_tokens(env: Env, frame: str, usage: Usage | int, purpose: str | None, key: str | None) -> ChangeResult:
    """Record usage that was paid for."""
    same = match_event("frame.spent", frame=frame, usage=budgets.to_usage(usage), purpose=purpose)
    return change_frame(env, frame, lambda state: budgets.spend(state, frame, usage, purpose), key=key, same=same)


def add_handle(
    env: Env,
    frame: str,
    kind: str,
    content: frames.HandleContent,
    *,
    handle: str | None = None,
    priority: str | None = None,
    policy: str | None = None,
    tokens: int | None = None,
    trust: str | None = None,
    call: str | None = None,
    key: str | None = None,
) -> str:
    """Attach evidence and return the handle's id."""
    if isinstance(handle, str) and handle and is_reserved_name(handle):
        raise InvalidValue(f"{handle!r} is what packs call a piece of their own. Choose another id for this evidence.")
    name, content = handle or ulid_text(env.ids.ulid()), redact_as_configured(env, content)
    changed = change_frame(
        env,
        frame,
        lambda state: calls.add_handle(
            state,
            frame,
            name,
            kind,
            priority=priority,
            policy=policy,
            tokens=tokens,
            trust=trust,
            by=env.trust,
            call=call,
            content=content,
        ),
        key=key,
        same=match_event(
            "frame.handle_added",
            content,
            frame=frame,
            kind=kind,
            priority=PRIORITY_SCORE.get(str(priority_of(policy, priority))),
            policy=policy,
            tokens=tokens,
            **({} if handle is None else {"handle": handle}),
        ),
    )
    return str(changed.last_facts("frame.handle_added").handle)


def remove_handles(env: Env, frame: str, handles: Sequence[str], reason: str | None, key: str | None) -> str | None:
    """Detach evidence; return the removal's id, by which it can be restored, or None."""
    if not isinstance(handles, list | tuple) or not all(isinstance(name, str) for name in handles):
        raise InvalidValue("Name the handles to detach, each by its id.")
    removal = ulid_text(env.ids.ulid())
    content = None if reason is None else redact_as_configured(env, ReasonContent(reason=reason))
    changed = change_frame(
        env,
        frame,
        lambda state: calls.remove_handles(state, frame, handles, removal, content),
        key=key,
        same=match_event("frame.handles_removed", content, frame=frame, handles=tuple(dict.fromkeys(handles))),
    )
    return changed.last_facts("frame.handles_removed").removal if changed.appended else None


def restore_handles(env: Env, frame: str, removal: str, key: str | None) -> tuple[str, ...]:
    """Attach again the handles that one removal detached, and return their ids."""
    changed = change_frame(
        env,
        frame,
        lambda state: calls.restore_handles(state, frame, removal),
        key=key,
        same=match_event("frame.handles_restored", frame=frame, removal=removal),
    )
    handles: tuple[str, ...] = changed.last_facts("frame.handles_restored").handles
    return handles


def add_result(env: Env, frame: str, kind: str, ref: str, summary: str | None, key: str | None) -> int:
    """Add a pointer to something the frame produced, and return its position."""
    content = None if summary is None else redact_as_configured(env, frames.OutcomeContent(summary=summary))
    changed = change_frame(
        env,
        frame,
        lambda state: calls.add_result(state, frame, kind, ref, content),
        key=key,
        same=match_event("frame.result_added", content, frame=frame, kind=kind, ref=ref),
    )
    return int(changed.last_facts("frame.result_added").position)


def begin_model_call(
    env: Env,
    frame: str,
    *,
    model: str | None = None,
    if_interrupted: str = "retry",
    request: Any = None,
    key: str | None = None,
) -> str:
    """Journal that a model is about to be called, and return the call's id."""
    call = ulid_text(env.ids.ulid())
    content = None if request is None else redact_as_configured(env, CallContent(arguments=request))
    changed = change_frame(
        env,
        frame,
        lambda state: calls.begin_model(
            state, frame, call, model=model, if_interrupted=if_interrupted, content=content, now=env.clock.now_ms()
        ),
        key=key,
        same=match_event("model.requested", content, frame=frame, model=model, if_interrupted=if_interrupted),
    )
    made: str = changed.last_facts("model.requested").call
    if made == call:  # Otherwise the call was begun before, under this key.
        telemetry.begin_model_span(env, call, frame=frame, model=model)
    return made


def end_model_call(
    env: Env,
    frame: str,
    call: str,
    *,
    usage: Usage | int = 0,
    finish: str | None = None,
    response: Any = None,
    provider_id: str | None = None,
    error: str | None = None,
    retryable: bool = False,
    doubtful: Usage | None = None,
) -> ChangeResult:
    """Journal a model's answer or failure. Ending a call again in the same way changes nothing."""
    record = budgets.to_usage(usage)
    doubtful = None if doubtful is None else budgets.to_usage(doubtful)
    content = redact_as_configured(env, _call_content(response=response, provider_id=provider_id, error=error))
    type_name = "model.responded" if error is None else "model.failed"
    code = None if error is None else _error_code(content.error)
    changed = _end_call(
        env,
        frame,
        call,
        lambda state: calls.end_model(
            state,
            frame,
            call,
            usage=record,
            finish=finish,
            error=code,
            retryable=retryable,
            doubtful=doubtful,
            content=content,
        ),
        match_event(type_name, content, frame=frame, call=call, usage=record),
    )
    telemetry.end_model_span(env, call, usage=record, finish=finish, error=code)
    return changed


def begin_tool_call(
    env: Env,
    frame: str,
    name: str,
    *,
    arguments: Any = None,
    if_interrupted: str = "ask",
    provider_id: str | None = None,
    key: str | None = None,
) -> str:
    """Journal that a tool is about to be called; return the call's id, which is also its idempotency key."""
    call = ulid_text(env.ids.ulid())
    content = redact_as_configured(env, _call_content(arguments=arguments, provider_id=provider_id))
    changed = change_frame(
        env,
        frame,
        lambda state: calls.begin_tool(
            state, frame, call, name, if_interrupted=if_interrupted, content=content, now=env.clock.now_ms()
        ),
        key=key,
        same=match_event("tool.requested", content, frame=frame, name=name, if_interrupted=if_interrupted),
    )
    return str(changed.last_facts("tool.requested").call)


def end_tool_call(
    env: Env,
    frame: str,
    call: str,
    *,
    value: Any = None,
    error: str | None = None,
    interrupted: bool = False,
    tokens: int | None = None,
) -> ChangeResult:
    """Journal that a tool returned, failed or was given up."""
    content = redact_as_configured(env, _call_content(value=value, error=error))
    failed = error is not None
    return _end_call(
        env,
        frame,
        call,
        lambda state: calls.end_tool(
            state, frame, call, failed=failed, interrupted=interrupted, tokens=tokens, content=content
        ),
        match_event(
            "tool.returned", content, frame=frame, call=call, failed=failed, interrupted=interrupted, tokens=tokens
        ),
    )


def begin_run(env: Env, frame: str, name: str, if_interrupted: str) -> str:
    """Journal that a memoised step is about to run."""
    call = ulid_text(env.ids.ulid())
    changed = change_frame(
        env,
        frame,
        lambda state: calls.begin_run(state, frame, call, name, if_interrupted=if_interrupted, now=env.clock.now_ms()),
    )
    return str(changed.last_facts("run.requested").call)


def end_run(env: Env, frame: str, call: str, *, value: Any = None, error: str | None = None, key: str) -> ChangeResult:
    """Journal a memoised step's outcome. Only success takes the key, so that a failed step can run again."""
    content = redact_as_configured(env, _call_content(value=value, error=error))
    failed = error is not None
    return change_frame(
        env,
        frame,
        lambda state: calls.end_run(state, frame, call, failed=failed, content=content),
        key=None if failed else key,
        same=match_event("run.returned", content, frame=frame, call=call),
    )


def _find_run_value(env: Env, frame: str, key: str) -> tuple[Any, ...]:
    """Return the value of a memoised step in a tuple, or an empty tuple."""
    stored = env.journal.events_by_key(env.tenant, find_frame_stream(env, frame), key)
    if not stored:
        return ()
    event = next((event for event in map(decode_event, stored) if event.type == "run.returned"), None)
    if event is None:
        raise KeyReused(f"Key {key!r} already stands for something else. Use another key for this step.")
    return (ERASED if event.content is ERASED else getattr(event.content, "value", None),)


def outcome_key(call: str) -> str:
    """Return the key of a call's outcome: one call has one."""
    return own_key(call, "end")


def _end_call(env: Env, frame: str, call: str, decide: Any, same: Any) -> ChangeResult:
    parse_id(call, "call")
    try:
        return change_frame(env, frame, decide, key=outcome_key(call), same=same)
    except KeyReused:
        raise CallNotFound(f"Call {call} was ended already, with another outcome. One call has one.") from None


def _call_content(**given: Any) -> CallContent | None:
    known = {name: value for name, value in given.items() if value is not None}
    return CallContent(**known) if known else None


def _error_code(error: str) -> str:
    """Return an error's first word, which is a fact; its full text is content."""
    if not isinstance(error, str):
        raise InvalidValue("error must be a text that says what went wrong.")
    return error.split(":", 1)[0].split(" ", 1)[0][:64] or "error"


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


def leave_step(env: Env, frame: str, key: str) -> None:
    """Mark a step as no longer running, however it ended."""
    RUNNING_STEPS.leave(_step_owner(env, frame), key)


def _step_owner(env: Env, frame: str) -> StepOwner:
    return env.leases.name, env.tenant, frame


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


def _resume_interrupted(env: Env, frame: str, key: str, torn: Call) -> RunStart:
    way = interruption_policy(torn)
    if way == "retry":
        calls.check_can_work(load_current_state(env, find_frame_stream(env, frame)), frame, env.clock.now_ms())
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

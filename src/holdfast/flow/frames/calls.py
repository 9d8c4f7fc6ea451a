"""Calls of models, tools and memoised steps: intent is journaled before a call, the outcome after it.

One call has one outcome. An intent without one was interrupted by a crash.
"""

from __future__ import annotations

from typing import Any

from holdfast.core.frames import budgets, calls
from holdfast.errors import CallNotFound, InvalidValue, KeyReused
from holdfast.flow.frames.lifecycle import change_frame, match_event
from holdfast.flow.frames.read import parse_id
from holdfast.flow.journal import telemetry
from holdfast.flow.journal.append import ChangeResult, redact_as_configured
from holdfast.ports import Env
from holdfast.records.events import calls as event_calls
from holdfast.records.ids import own_key, ulid_text
from holdfast.records.usage import Usage


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
    content = None if request is None else redact_as_configured(env, event_calls.CallContent(arguments=request))
    facts = event_calls.ModelRequested(call=call, frame=frame, model=model, if_interrupted=if_interrupted)
    same = match_event("model.requested", content, frame=frame, model=model, if_interrupted=if_interrupted)
    begin, now = calls.begin_call, env.clock.now_ms
    changed = change_frame(env, frame, lambda state: begin(state, facts, content, now()), key=key, same=same)
    made: str = changed.last_facts("model.requested").call
    if made == call:  # Otherwise the call was begun before, under this key.
        telemetry.begin_span(env, call, frame=frame, model=model)
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
    facts: calls.CallEnd = event_calls.ModelResponded(
        call=call, frame=frame, usage=record, finish=finish, doubtful=doubtful
    )
    if code is not None:
        facts = event_calls.CallFailed(call=call, frame=frame, usage=record, error=code, retryable=retryable)
    changed = _end_call(env, facts, content, match_event(type_name, content, frame=frame, call=call, usage=record))
    telemetry.end_span(env, call, usage=record, finish=finish, error=code)
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
    facts = event_calls.ToolRequested(call=call, frame=frame, name=name, if_interrupted=if_interrupted)
    same = match_event("tool.requested", content, frame=frame, name=name, if_interrupted=if_interrupted)
    begin, now = calls.begin_call, env.clock.now_ms
    changed = change_frame(env, frame, lambda state: begin(state, facts, content, now()), key=key, same=same)
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
    known: dict[str, Any] = {
        "frame": frame,
        "call": call,
        "failed": error is not None,
        "interrupted": interrupted,
        "tokens": tokens,
    }
    return _end_call(env, event_calls.ToolReturned(**known), content, match_event("tool.returned", content, **known))


def begin_run(env: Env, frame: str, name: str, if_interrupted: str) -> str:
    """Journal that a memoised step is about to run."""
    call = ulid_text(env.ids.ulid())
    facts = event_calls.RunRequested(call=call, frame=frame, name=name, if_interrupted=if_interrupted)
    changed = change_frame(env, frame, lambda state: calls.begin_call(state, facts, None, env.clock.now_ms()))
    return str(changed.last_facts("run.requested").call)


def end_run(env: Env, frame: str, call: str, *, value: Any = None, error: str | None = None, key: str) -> ChangeResult:
    """Journal a memoised step's outcome. Only success takes the key, so that a failed step can run again."""
    content = redact_as_configured(env, _call_content(value=value, error=error))
    facts = event_calls.RunReturned(call=call, frame=frame, failed=error is not None)
    same, key_if_done = match_event("run.returned", content, frame=frame, call=call), None if facts.failed else key
    return change_frame(env, frame, lambda state: calls.end_call(state, facts, content), key=key_if_done, same=same)


def outcome_key(call: str) -> str:
    """Return the key of a call's outcome: one call has one."""
    return own_key(call, "end")


def _end_call(env: Env, facts: calls.CallEnd, content: event_calls.CallContent | None, same: Any) -> ChangeResult:
    parse_id(facts.call, "call")
    key = outcome_key(facts.call)
    try:
        return change_frame(env, facts.frame, lambda state: calls.end_call(state, facts, content), key=key, same=same)
    except KeyReused:
        raise CallNotFound(f"Call {facts.call} was ended already, with another outcome. One call has one.") from None


def _call_content(**given: Any) -> event_calls.CallContent | None:
    known = {name: value for name, value in given.items() if value is not None}
    return event_calls.CallContent(**known) if known else None


def _error_code(error: str) -> str:
    """Return an error's first word, which is a fact; its full text is content."""
    if not isinstance(error, str):
        raise InvalidValue("error must be a text that says what went wrong.")
    return error.split(":", 1)[0].split(" ", 1)[0][:64] or "error"

"""Work inside a frame: budgets, evidence, results, and model, tool and memoised calls with their costs.

Intent is journaled before a call, the outcome after it. A cost that is unknown is left out and never fails a call: an
exception or an invalid amount from the prices is warned about once per client.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.checks import is_number
from holdfast.core.frames import budgets, calls
from holdfast.core.journal.codec import decode_event
from holdfast.core.packs.segments import is_reserved_name
from holdfast.core.values import exception_text
from holdfast.errors import CallNotFound, InvalidValue, KeyReused
from holdfast.flow.frames.lifecycle import change_frame, match_event
from holdfast.flow.frames.read import find_frame_stream, parse_id
from holdfast.flow.journal import telemetry
from holdfast.flow.journal.append import ChangeResult, redact_as_configured
from holdfast.ports import Env
from holdfast.records.compaction import priority_of
from holdfast.records.events import frames
from holdfast.records.events.calls import CallContent
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.ids import ulid_text
from holdfast.records.usage import Usage
from holdfast.system import warn_caller

MAX_COST = 2**62
_warned_prices: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Price functions that failed and were warned about."""


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


def find_run_value(env: Env, frame: str, key: str) -> list[Any]:
    """Return the value of a memoised step in a list, or an empty list."""
    stored = env.journal.events_by_key(env.tenant, find_frame_stream(env, frame), key)
    if not stored:
        return []
    event = next((event for event in map(decode_event, stored) if event.type == "run.returned"), None)
    if event is None:
        raise KeyReused(f"Key {key!r} already stands for something else. Use another key for this step.")
    return [ERASED if event.content is ERASED else getattr(event.content, "value", None)]


def _end_call(env: Env, frame: str, call: str, decide: Any, same: Any) -> ChangeResult:
    """End a call under a key made of its id: one call has one outcome."""
    parse_id(call, "call")
    try:
        return change_frame(env, frame, decide, key=f"{call}/end", same=same)
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


def is_reported(usage: Usage) -> bool:
    """Return True if a call reported usage. A call that reports no tokens at all is not known to be free."""
    return bool(usage.input or usage.output or usage.cached_input or usage.cache_write)


def add_cost(env: Env, usage: Usage, model: str | None) -> Usage:
    """Return a call's usage with its cost, if the cost is not set and can be determined.

    An estimate is good enough for a token budget but not for a bill: it gets no cost.
    """
    if usage.cost is not None or usage.estimated or env.prices is None or not is_reported(usage):
        return usage
    try:
        cost = env.prices(model, usage)
        if cost is None:
            return usage
        if is_number(cost, least=0, most=MAX_COST):
            return replace(usage, cost=cost)
        why = f"they gave {cost!r:.40}"
    except Exception as error:  # noqa: BLE001  it is not our code
        why = exception_text(error)
    if env.prices not in _warned_prices:
        _warned_prices.add(env.prices)
        warn_caller(f"The prices that this client was given failed, so that some costs are not known: {why}")
    return usage

"""Calls: intent before, outcome after. Calls are named by our id; a provider's id may repeat and is not used."""

from __future__ import annotations

from holdfast.core.frames.budgets import check_can_spend
from holdfast.core.frames.stack import ancestry, check_awake, late_frames, live_frame, tightest_limits
from holdfast.errors import CallNotFound, DeadlineExceeded, InvalidValue, ToolCallLimitExceeded
from holdfast.records.events import calls
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import FrameState, StreamState
from holdfast.records.ids import check_id
from holdfast.records.usage import Usage

INTERRUPTION_POLICIES = ("ask", "retry", "fail")


def check_can_work(state: StreamState, frame_id: str, now: int) -> FrameState:
    """Return a frame in which work may begin: live, not suspended, before its deadline."""
    frame = live_frame(state, frame_id)
    check_awake(frame)
    if late := late_frames(ancestry(state.frames, frame_id), now):
        whose = "Its" if late[-1].id == frame_id else f"Frame {late[-1].id}'s"
        raise DeadlineExceeded(
            f"{whose} deadline passed {now - (late[-1].deadline or 0)} ms ago: no work may begin in frame {frame_id}. "
            "End the frame; work that was begun can still be recorded."
        )
    return frame


def begin_model(
    state: StreamState,
    frame_id: str,
    call_id: str,
    *,
    model: str | None,
    if_interrupted: str,
    content: calls.CallContent | None,
    now: int,
    pack: str | None = None,
    context_hash: str | None = None,
) -> list[Draft]:
    """Begin a model call; refused if no tokens are left to pay for it."""
    frame = check_can_work(state, frame_id, now)
    check_can_spend(frame)
    _check_policy(if_interrupted)
    facts = calls.ModelRequested(
        call=call_id, frame=frame_id, model=model, pack=pack, context_hash=context_hash, if_interrupted=if_interrupted
    )
    return [Draft(type="model.requested", facts=facts, content=content, id=call_id)]


def end_model(
    state: StreamState,
    frame_id: str,
    call_id: str,
    *,
    usage: Usage,
    finish: str | None = None,
    error: str | None = None,
    retryable: bool = False,
    doubtful: Usage | None = None,
    content: calls.CallContent | None = None,
) -> list[Draft]:
    """Record a model's answer or failure, with its usage either way."""
    frame = _check_open(state, frame_id, call_id, "model")
    spent, left = usage.spent + (0 if doubtful is None else doubtful.spent), frame.tokens.available
    over = 0 if left is None else max(0, spent - left)
    if error is not None:
        failed = calls.CallFailed(
            call=call_id, frame=frame_id, error=error, retryable=retryable, usage=usage, overdraft=over
        )
        return [Draft(type="model.failed", facts=failed, content=content)]
    facts = calls.ModelResponded(
        call=call_id, frame=frame_id, usage=usage, finish=finish, doubtful=doubtful, overdraft=over
    )
    return [Draft(type="model.responded", facts=facts, content=content)]


def begin_tool(
    state: StreamState,
    frame_id: str,
    call_id: str,
    name: str,
    *,
    if_interrupted: str,
    content: calls.CallContent | None,
    now: int,
) -> list[Draft]:
    """Begin a tool call; counted, and refused beyond the limit."""
    check_id(name, "name")
    frame = check_can_work(state, frame_id, now)
    _check_policy(if_interrupted)
    check_tool_calls(state, frame)
    facts = calls.ToolRequested(call=call_id, frame=frame_id, name=name, if_interrupted=if_interrupted)
    return [Draft(type="tool.requested", facts=facts, content=content)]


def check_tool_calls(state: StreamState, frame: FrameState, wanted: int = 1) -> None:
    """Refuse `wanted` more tool calls, all of them, if they exceed the limit."""
    made, most = frame.tool_calls, tightest_limits(ancestry(state.frames, frame.id)).tool_calls
    if made + wanted <= most:
        return
    said = f"has made {made} tool calls and may make {most}"
    if wanted > 1:
        said = f"may make {most} tool calls and has made {made}: {wanted} more at once are too many, and none was begun"
    raise ToolCallLimitExceeded(f"Frame {frame.id} {said}. End it, or raise limits.tool_calls.")


def end_tool(
    state: StreamState,
    frame_id: str,
    call_id: str,
    *,
    failed: bool,
    interrupted: bool,
    tokens: int | None = None,
    content: calls.CallContent | None = None,
) -> list[Draft]:
    """Record that a tool returned or failed, or that its interrupted call was given up."""
    _check_open(state, frame_id, call_id, "tool")
    facts = calls.ToolReturned(call=call_id, frame=frame_id, failed=failed, interrupted=interrupted, tokens=tokens)
    return [Draft(type="tool.returned", facts=facts, content=content)]


def begin_run(
    state: StreamState, frame_id: str, call_id: str, name: str, *, if_interrupted: str, now: int
) -> list[Draft]:
    """Begin a memoised step."""
    check_can_work(state, frame_id, now)
    _check_policy(if_interrupted)
    facts = calls.RunRequested(call=call_id, frame=frame_id, name=name, if_interrupted=if_interrupted)
    return [Draft(type="run.requested", facts=facts)]


def end_run(
    state: StreamState, frame_id: str, call_id: str, *, failed: bool, content: calls.CallContent | None = None
) -> list[Draft]:
    """Record that a memoised step returned or failed."""
    _check_open(state, frame_id, call_id, "run")
    facts = calls.RunReturned(call=call_id, frame=frame_id, failed=failed)
    return [Draft(type="run.returned", facts=facts, content=content)]


def _check_open(state: StreamState, frame_id: str, call_id: str, kind: str) -> FrameState:
    frame = live_frame(state, frame_id)
    call = frame.calls.get(call_id)
    if call is None:
        raise CallNotFound(f"No call {call_id} is open in frame {frame_id}. It was ended already, or never begun.")
    if call.kind != kind:
        raise InvalidValue(f"Call {call_id} is a {call.kind} call. End it as one.")
    return frame


def _check_policy(policy: str) -> None:
    if policy not in INTERRUPTION_POLICIES:
        raise InvalidValue(f"if_interrupted must be one of {', '.join(INTERRUPTION_POLICIES)}, not {policy!r}.")

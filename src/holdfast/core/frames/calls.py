"""Calls: intent before, outcome after. Calls are named by our id; a provider's id may repeat and is not used."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.frames.budgets import check_can_spend
from holdfast.core.frames.stack import ancestry, check_awake, late_frames, live_frame, tightest_limits
from holdfast.core.journal.fold import CALL_KINDS, call_outcome
from holdfast.errors import CallNotFound, DeadlineExceeded, InvalidValue, ToolCallLimitExceeded
from holdfast.records.events import calls
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import FrameState, StreamState
from holdfast.records.ids import check_id

INTERRUPTION_POLICIES = ("ask", "retry", "fail")
CallIntent = calls.ModelRequested | calls.ToolRequested | calls.RunRequested
CallEnd = calls.ModelResponded | calls.CallFailed | calls.ToolReturned | calls.RunReturned
_END_TYPES: dict[type[CallEnd], str] = {
    calls.ModelResponded: "model.responded",
    calls.CallFailed: "model.failed",
    calls.ToolReturned: "tool.returned",
    calls.RunReturned: "run.returned",
}


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


def begin_call(state: StreamState, facts: CallIntent, content: calls.CallContent | None, now: int) -> list[Draft]:
    """Begin a call. A model needs tokens to pay for it; tool calls are counted, and refused beyond the limit."""
    kind = CALL_KINDS[type(facts)]
    if isinstance(facts, calls.ToolRequested):
        check_id(facts.name, "name")
    frame = check_can_work(state, facts.frame, now)
    if isinstance(facts, calls.ModelRequested):
        check_can_spend(frame)
    if facts.if_interrupted not in INTERRUPTION_POLICIES:
        policies = ", ".join(INTERRUPTION_POLICIES)
        raise InvalidValue(f"if_interrupted must be one of {policies}, not {facts.if_interrupted!r}.")
    if isinstance(facts, calls.ToolRequested):
        check_tool_calls(state, frame)
    id = facts.call if kind == "model" else None
    return [Draft(type=f"{kind}.requested", facts=facts, content=content, id=id)]


def check_tool_calls(state: StreamState, frame: FrameState, wanted: int = 1) -> None:
    """Refuse `wanted` more tool calls, all of them, if they exceed the limit."""
    made, most = frame.tool_calls, tightest_limits(ancestry(state.frames, frame.id)).tool_calls
    if made + wanted <= most:
        return
    said = f"has made {made} tool calls and may make {most}"
    if wanted > 1:
        said = f"may make {most} tool calls and has made {made}: {wanted} more at once are too many, and none was begun"
    raise ToolCallLimitExceeded(f"Frame {frame.id} {said}. End it, or raise limits.tool_calls.")


def end_call(state: StreamState, facts: CallEnd, content: calls.CallContent | None = None) -> list[Draft]:
    """Record that a call returned, failed or was given up. A model's usage is recorded either way."""
    type_name = _END_TYPES[type(facts)]
    frame = live_frame(state, facts.frame)
    call = frame.calls.get(facts.call)
    if call is None:
        raise CallNotFound(f"No call {facts.call} is open in frame {frame.id}. It was ended already, or never begun.")
    if call.kind != type_name.partition(".")[0]:
        raise InvalidValue(f"Call {call.id} is a {call.kind} call. End it as one.")
    left = frame.tokens.available
    if isinstance(facts, calls.ModelResponded | calls.CallFailed) and left is not None:
        facts = replace(facts, overdraft=max(0, call_outcome(facts)[0].spent - left))
    return [Draft(type=type_name, facts=facts, content=content)]

"""Work inside a frame: calls with their outcomes, the evidence of the frame, what a child inherits of it, and results.

Intent before, outcome after. Calls are named by our id; a provider's id may repeat and is not used. Detaching evidence
is reversible. Inheriting copies nothing: each handle names the event that holds it, so that what is erased is erased in
the child as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from msgspec.structs import replace

from holdfast.core.frames.budgets import check_can_spend
from holdfast.core.frames.stack import ancestry, check_awake, late_frames, live_frame, tightest_limits
from holdfast.core.numbers import MAX_AMOUNT, check_number
from holdfast.core.trust import FILE_PREFIX, KIND_TRUST, TRUSTED_LEVELS, lowest_trust
from holdfast.errors import (
    CallNotFound,
    DeadlineExceeded,
    InvalidValue,
    NotFound,
    ToolCallLimitExceeded,
)
from holdfast.records.compaction import priority_of
from holdfast.records.events import calls, frames
from holdfast.records.events.envelope import TRUST_LEVELS, Draft, Event
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import PRIORITY_SCORE, FrameState, Handle, HandleKind, StreamState
from holdfast.records.ids import check_id
from holdfast.records.usage import Usage

INTERRUPTION_POLICIES = ("ask", "retry", "fail")
HANDLE_KINDS: tuple[str, ...] = get_args(HandleKind)


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
    finish: str | None,
    error: str | None,
    retryable: bool,
    doubtful: Usage | None,
    content: calls.CallContent | None,
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
    tokens: int | None,
    content: calls.CallContent | None,
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
    state: StreamState, frame_id: str, call_id: str, *, failed: bool, content: calls.CallContent | None
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


def add_handle(
    state: StreamState,
    frame_id: str,
    handle_id: str,
    kind: str,
    *,
    priority: str | None = None,
    policy: str | None = None,
    tokens: int | None = None,
    trust: str | None = None,
    by: str = "system",
    call: str | None = None,
    content: frames.HandleContent,
) -> list[Draft]:
    """Attach evidence. A handle that is already attached is changed in place and keeps its position.

    Without a priority, the policy determines it. `by` is the trust of the caller, who cannot declare a higher trust.
    """
    check_id(handle_id, "handle")
    if kind not in HANDLE_KINDS:
        raise InvalidValue(f"{kind!r} is not a kind of handle. Known kinds: {', '.join(HANDLE_KINDS)}.")
    priority = priority_of(policy, priority)
    if not isinstance(priority, str) or priority not in PRIORITY_SCORE:
        raise InvalidValue(f"{priority!r} is not a priority. Known priorities: {', '.join(PRIORITY_SCORE)}.")
    if trust is not None and trust not in TRUST_LEVELS:
        raise InvalidValue(f"{trust!r} is not a level of trust. Known levels: {', '.join(TRUST_LEVELS)}.")
    if priority == "critical":
        _check_critical(kind, lowest_trust(trust or by, by), content)
    frame = live_frame(state, frame_id)
    check_awake(frame)
    known = frame.handles.get(handle_id)
    newest = max((handle.position for handle in frame.handles.values()), default=0)
    facts = frames.HandleAdded(
        frame=frame_id,
        handle=handle_id,
        kind=kind,
        priority=PRIORITY_SCORE[priority],
        position=newest + 1 if known is None else known.position,
        tokens=None if tokens is None else check_number("tokens", tokens, least=0, most=MAX_AMOUNT),
        policy=policy,
        trust=trust,
        call=call,
    )
    return [Draft(type="frame.handle_added", facts=facts, content=content)]


def _check_critical(kind: str, vouched: str, content: frames.HandleContent) -> None:
    """Refuse critical evidence from sources that may not give instructions, by the caller's trust or by its kind."""
    if vouched not in TRUSTED_LEVELS:
        raise InvalidValue(
            f"Evidence from {vouched} cannot be critical: only {' and '.join(sorted(TRUSTED_LEVELS))} decide what "
            "every pack must show. Attach it as high."
        )
    of_file = kind == "document" and content.body is None and (content.target or "").startswith(FILE_PREFIX)
    if kind in KIND_TRUST or of_file:
        what = "A file" if of_file else f"Evidence of the kind {kind}"
        raise InvalidValue(
            f"{what} cannot be critical: others say what is in it, and it may not be there. Attach it as high, or name "
            "it in include= of a pack."
        )


def remove_handles(
    state: StreamState, frame_id: str, handles: Sequence[str], removal: str, content: ReasonContent | None
) -> list[Draft]:
    """Detach evidence. `removal` names what was detached, so that it can be restored."""
    frame = live_frame(state, frame_id)
    attached = [name for name, handle in frame.handles.items() if handle.removed is None]
    unknown = [name for name in handles if name not in attached]
    if unknown:
        raise NotFound(f"Frame {frame_id} has no handle {', '.join(unknown)}. It has: {', '.join(attached) or 'none'}.")
    if not handles:
        return []
    check_awake(frame)
    facts = frames.HandlesRemoved(frame=frame_id, handles=tuple(dict.fromkeys(handles)), removal=removal)
    return [Draft(type="frame.handles_removed", facts=facts, content=content)]


def restore_handles(state: StreamState, frame_id: str, removal: str) -> list[Draft]:
    """Attach again everything that one removal or compaction detached."""
    check_id(removal, "removal")
    frame = live_frame(state, frame_id)
    check_awake(frame)
    gone = tuple(name for name, handle in frame.handles.items() if handle.removed == removal)
    if not gone:
        raise NotFound(f"Nothing of frame {frame_id} is detached under {removal!r}.")
    facts = frames.HandlesRestored(frame=frame_id, handles=gone, removal=removal)
    return [Draft(type="frame.handles_restored", facts=facts)]


def add_result(
    state: StreamState, frame_id: str, kind: str, ref: str, content: frames.OutcomeContent | None
) -> list[Draft]:
    """Add a pointer to something that the frame produced."""
    check_id(kind, "kind")
    check_id(ref, "ref")
    frame = live_frame(state, frame_id)
    position = max((result.position for result in frame.results), default=0) + 1
    facts = frames.ResultAdded(frame=frame_id, position=position, kind=kind, ref=ref)
    return [Draft(type="frame.result_added", facts=facts, content=content)]


def check_handle_names(given: object) -> tuple[str, ...]:
    """Check the handle ids that a caller gives; each is returned once."""
    if not isinstance(given, list | tuple):
        raise InvalidValue("inherit must be a list of ids of the parent's handles, as attach gave them.")
    return tuple(dict.fromkeys(check_id(name, "handle") for name in given))


def select_handles(parent: FrameState, wanted: Sequence[str]) -> list[Handle]:
    """Return the parent's handles that a child is to inherit; refuse those that are not attached to it."""
    attached = {name: handle for name, handle in parent.handles.items() if handle.removed is None}
    unknown = [name for name in wanted if name not in attached]
    if unknown:
        raise NotFound(
            f"Frame {parent.id} has no handle {', '.join(unknown)} to pass on. It has: {', '.join(attached) or 'none'}."
        )
    return [attached[name] for name in wanted]


def inherit_handle(child: str, position: int, event: Event) -> Draft:
    """Return the event that gives a new frame a handle of its parent, which `event` attached there."""
    facts: frames.HandleAdded = event.facts
    # A handle that was itself inherited keeps its original source, so that there is no chain to follow.
    own = facts.source_stream is None
    passed = replace(
        facts,
        frame=child,
        position=position,
        trust=lowest_trust(facts.trust or event.trust, event.trust) if own else facts.trust,
        source_stream=event.stream if own else facts.source_stream,
        source_version=event.version if own else facts.source_version,
        artifacts=(),
    )
    return Draft(type="frame.handle_added", facts=passed)

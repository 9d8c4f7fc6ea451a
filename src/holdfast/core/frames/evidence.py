"""Handles and results: the evidence of a frame, its products, and what a child inherits.

Detaching is reversible. Inheriting copies nothing: each handle names the event that holds it, so that what is erased
is erased in the child as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from msgspec.structs import replace

from holdfast.core.frames.stack import check_awake, live_frame
from holdfast.core.numbers import MAX_AMOUNT, check_number
from holdfast.core.trust import FILE_PREFIX, KIND_TRUST, TRUSTED_LEVELS, lowest_trust
from holdfast.errors import InvalidValue, NotFound
from holdfast.records.compaction import priority_of
from holdfast.records.events import frames
from holdfast.records.events.envelope import TRUST_LEVELS, Draft, Event
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import PRIORITY_SCORE, FrameState, Handle, HandleKind, StreamState
from holdfast.records.ids import check_id

HANDLE_KINDS: tuple[str, ...] = get_args(HandleKind)


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

"""Handles and results: attach evidence to a frame, detach and restore it, and point to what the frame produced."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from holdfast.core.frames import evidence
from holdfast.core.packs.segments import is_reserved_name
from holdfast.errors import InvalidValue
from holdfast.flow.frames.lifecycle import change_frame, match_event
from holdfast.flow.journal.append import redact_as_configured
from holdfast.ports import Env
from holdfast.records.compaction import priority_of
from holdfast.records.events import frames
from holdfast.records.events.journal import ReasonContent
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.ids import ulid_text


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
        lambda state: evidence.add_handle(
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
    same = match_event("frame.handles_removed", content, frame=frame, handles=tuple(dict.fromkeys(handles)))
    decide = partial(evidence.remove_handles, frame_id=frame, handles=handles, removal=removal, content=content)
    changed = change_frame(env, frame, decide, key=key, same=same)
    return changed.last_facts("frame.handles_removed").removal if changed.appended else None


def restore_handles(env: Env, frame: str, removal: str, key: str | None) -> tuple[str, ...]:
    """Attach again the handles that one removal detached, and return their ids."""
    same = match_event("frame.handles_restored", frame=frame, removal=removal)
    decide = partial(evidence.restore_handles, frame_id=frame, removal=removal)
    changed = change_frame(env, frame, decide, key=key, same=same)
    handles: tuple[str, ...] = changed.last_facts("frame.handles_restored").handles
    return handles


def add_result(env: Env, frame: str, kind: str, ref: str, summary: str | None, key: str | None) -> int:
    """Add a pointer to something the frame produced, and return its position."""
    content = None if summary is None else redact_as_configured(env, frames.OutcomeContent(summary=summary))
    same = match_event("frame.result_added", content, frame=frame, kind=kind, ref=ref)
    decide = partial(evidence.add_result, frame_id=frame, kind=kind, ref=ref, content=content)
    changed = change_frame(env, frame, decide, key=key, same=same)
    return int(changed.last_facts("frame.result_added").position)

"""Blocks: code of this process that works on one frame. Its default limits, its claim, and the errors that leave it.

A frame is worked on by one block at a time; two would run the same steps in parallel.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.errors import (
    ActorBusy,
    FrameSuspended,
    InvalidTransition,
    InvalidValue,
    NotOwner,
    OutcomeUnknown,
    StaleEpoch,
    Unavailable,
    Waiting,
)
from holdfast.flow.frames import takeover
from holdfast.flow.frames.read import load_current_state, read_frame
from holdfast.ports import Env
from holdfast.records.frames import FrameLimits
from holdfast.records.ids import check_id
from holdfast.records.scope import Scope, parse_scope

ON_ERROR = ("fail", "leave")
BLOCK_LIMITS = FrameLimits(context_tokens=128_000, tool_calls=50, depth=3, timeout_ms=None)
"""The limits of a frame if none are given and no model is named."""


def check_on_error(on_error: str) -> str:
    """Refuse an unknown policy for errors that leave a block."""
    if on_error not in ON_ERROR:
        raise InvalidValue(f"on_error must be one of {', '.join(ON_ERROR)}, not {on_error!r}.")
    return on_error


def default_limits(env: Env, stream: str) -> FrameLimits:
    """Return the default limits of a block: within a session, as much context as its model accepts."""
    session = parse_scope(stream).get("session")
    known = None if session is None else load_current_state(env, Scope.session(session).text).session
    if known is None or known.model is None or env.models is None:
        return BLOCK_LIMITS
    return replace(BLOCK_LIMITS, context_tokens=env.models.info(known.model).input_budget)


def read_status(env: Env, stream: str, frame: str) -> str:
    """Return a frame's current status, live or ended."""
    live = load_current_state(env, stream).frames.get(frame)
    return live.status if live is not None else read_frame(env, frame).status


def claim_block(env: Env, frame: str) -> None:
    """Claim a frame for one block of this process."""
    if not env.leases.enter_block(env.tenant, frame):
        raise ActorBusy(f"Frame {frame} is at work in another block of this process. Wait for it, or use another key.")


def release_lease(env: Env, stream: str, epoch: int, error: BaseException | None) -> None:
    """Release a block's lease. If an error leaves the block, a failure becomes a note on it."""
    try:
        takeover.release_stream(env, stream, epoch)
    except Exception as second:
        if error is None:
            raise
        error.add_note(f"The lease of {stream} could not be given back: {second}")


def is_interruption(error: Exception, status: str) -> bool:
    """Return True if the work itself did not fail: it waits, the client shuts down, or the write failed for now."""
    if isinstance(error, ExceptionGroup):  # A task group wraps the errors of its tasks.
        return all(is_interruption(part, status) for part in error.exceptions)
    if isinstance(error, Unavailable | OutcomeUnknown | StaleEpoch | NotOwner):
        return True
    waits = isinstance(error, Waiting) or (isinstance(error, InvalidTransition) and error.before == "suspended")
    return waits and status in ("suspended", "waiting")


def frame_key(frame: str, key: str | None) -> str | None:
    """Prefix a key with the frame's id, so that other frames may use the same key."""
    return None if key is None else f"{frame}/do/{check_id(key, 'key')}"


def check_not_suspended(env: Env, stream: str, frame: str, key: str | None) -> None:
    """Refuse changes while the frame waits for an answer, even if the code caught `Waiting` and went on.

    A change that was made before the question is allowed: the same code may repeat it with its key.
    """
    live = load_current_state(env, stream).frames.get(frame)
    if live is None or live.question is None:
        return
    own = frame_key(frame, key)
    if own is None or not env.journal.events_by_key(env.tenant, stream, own):
        raise FrameSuspended(
            f"Frame {frame} waits for an answer to question {live.question.id}. Leave its block, and run it "
            "again once there is one.",
            question=live.question.id,
        )

"""Budgets: reserve and release tokens, record usage, and look up the limits of a frame to which none are given.

A reservation beyond the budget is refused. Usage is not, since the work is done: the rest is an overdraft. With a key,
a second call changes nothing if it asks for the same, and is refused if it does not.
"""

from __future__ import annotations

from msgspec.structs import replace

from holdfast.core.frames import budgets
from holdfast.flow.frames.lifecycle import change_frame, match_event
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal.append import ChangeResult
from holdfast.ports import Env
from holdfast.records.events.envelope import Event
from holdfast.records.frames import FrameLimits
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.usage import Usage

BLOCK_LIMITS = FrameLimits(context_tokens=128_000, tool_calls=50, depth=3, timeout_ms=None)
"""The limits of a frame if none are given and no model is named."""


def reserve_tokens(env: Env, frame: str, purpose: str, amount: int, key: str | None) -> ChangeResult:
    """Reserve tokens for a purpose.

    Until they are released, neither another purpose nor a child can have them.
    """
    same = match_event("frame.reserved", frame=frame, purpose=purpose, amount=amount)
    return change_frame(env, frame, lambda state: budgets.reserve(state, frame, purpose, amount), key=key, same=same)


def release_reservation(env: Env, frame: str, purpose: str, amount: int | None, key: str | None) -> ChangeResult:
    """Release a reservation: `amount` of it, or all of it if that is None."""

    def same(events: list[Event]) -> bool:
        given = [event.facts for event in events if event.type == "frame.reserved"]
        return any(
            (facts.frame, facts.purpose) == (frame, purpose) and facts.amount < 0 and amount in (None, -facts.amount)
            for facts in given
        )

    return change_frame(env, frame, lambda state: budgets.release(state, frame, purpose, amount), key=key, same=same)


def spend_tokens(env: Env, frame: str, usage: Usage | int, purpose: str | None, key: str | None) -> ChangeResult:
    """Record usage that was paid for.

    With a purpose, it is taken from that reservation first, and from the free tokens only beyond it.
    """
    same = match_event("frame.spent", frame=frame, usage=budgets.to_usage(usage), purpose=purpose)
    return change_frame(env, frame, lambda state: budgets.spend(state, frame, usage, purpose), key=key, same=same)


def default_limits(env: Env, stream: str) -> FrameLimits:
    """Return the default limits of a block: within a session, as much context as its model accepts."""
    session = parse_scope(stream).get("session")
    known = None if session is None else load_current_state(env, Scope.session(session).text).session
    if known is None or known.model is None:
        return BLOCK_LIMITS
    return replace(BLOCK_LIMITS, context_tokens=env.models.info(known.model).input_budget)

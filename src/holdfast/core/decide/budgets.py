"""Spending: reservations by name, usage as reported, and whether there is anything left to spend."""

from __future__ import annotations

from holdfast.core.decide.amounts import check_available, usage_of, whole
from holdfast.core.stack import live_frame
from holdfast.errors import BudgetExhausted, NotFound
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import Frame, StreamState
from holdfast.records.ids import check_id


def reserve(state: StreamState, frame_id: str, purpose: str, amount: object) -> list[Draft]:
    """Set tokens aside for a purpose. Nothing is nothing."""
    check_id(purpose, "purpose")
    frame = live_frame(state, frame_id)
    wanted = whole(amount, "amount")
    if not wanted:
        return []
    check_available(frame, wanted)
    return [_reserved(frame_id, purpose, wanted)]


def release(state: StreamState, frame_id: str, purpose: str, amount: object = None) -> list[Draft]:
    """Give a reservation back, all of it or a part."""
    frame = live_frame(state, frame_id)
    held = _held(frame, purpose)
    back = held if amount is None else whole(amount, "amount")
    if back > held:
        raise NotFound(f"Frame {frame_id} has {held} tokens reserved for {purpose!r}, not {back}.")
    return [_reserved(frame_id, purpose, -back)] if back else []


def spend(state: StreamState, frame_id: str, usage: object, purpose: str | None = None) -> list[Draft]:
    """Record work that was paid for; never refused for its amount, since it is done."""
    frame = live_frame(state, frame_id)
    record = usage_of(usage)
    part = 0 if purpose is None else min(_held(frame, purpose), record.spent)
    if not record.spent and not record.cost:
        return []
    facts = frames.FrameSpent(
        frame=frame_id,
        usage=record,
        purpose=purpose,
        from_reserved=part,
        overdraft=overdraft(frame, record.spent - part),
    )
    return [Draft(type="frame.spent", facts=facts)]


def overdraft(frame: Frame, more: int) -> int:
    """How far this very spending goes beyond what was left."""
    return 0 if frame.tokens.available is None else max(0, more - frame.tokens.available)


def check_can_spend(frame: Frame) -> None:
    """Refuse to begin what nothing is left for."""
    if frame.tokens.available == 0:
        raise BudgetExhausted(
            f"Frame {frame.id} has nothing left of its {frame.granted} tokens ({frame.used} used, {frame.reserved} "
            f"reserved, {frame.lent} lent). End it, release a reservation, or push work with a larger grant.",
            left=0,
        )


def _held(frame: Frame, purpose: str) -> int:
    check_id(purpose, "purpose")
    held = frame.reservations.get(purpose)
    if held is None:
        known = ", ".join(sorted(frame.reservations)) or "none"
        raise NotFound(f"Frame {frame.id} has no reservation {purpose!r}. It has: {known}.")
    return held


def _reserved(frame_id: str, purpose: str, amount: int) -> Draft:
    facts = frames.FrameReserved(frame=frame_id, purpose=purpose, amount=amount)
    return Draft(type="frame.reserved", facts=facts)

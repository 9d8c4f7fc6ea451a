"""Budgets: grants, reservations, reported usage, and checks of amounts given by callers.

Spending is recorded even if it exceeds the budget, since the work is done; beginning more work is refused.
"""

from __future__ import annotations

from msgspec import UNSET

from holdfast.core.frames.stack import check_awake, live_frame
from holdfast.core.numbers import MAX_AMOUNT, check_number, is_number
from holdfast.errors import BudgetExhausted, InsufficientTokens, InvalidValue, NotFound
from holdfast.records.events import frames
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import FrameState, Limits, StreamState
from holdfast.records.ids import check_id
from holdfast.records.usage import NANO_USD, Usage

_MIN_LIMITS = {"context_tokens": 1, "tool_calls": 0, "depth": 0, "timeout_ms": 1}


def reserve(state: StreamState, frame_id: str, purpose: str, amount: object) -> list[Draft]:
    """Reserve tokens for a purpose. An amount of 0 writes nothing."""
    check_id(purpose, "purpose")
    frame = live_frame(state, frame_id)
    wanted = check_number("amount", amount, least=0, most=MAX_AMOUNT)
    if not wanted:
        return []
    check_awake(frame)
    check_available(frame, wanted)
    return [_reservation_draft(frame_id, purpose, wanted)]


def release(state: StreamState, frame_id: str, purpose: str, amount: object = None) -> list[Draft]:
    """Release a reservation, all of it or a part."""
    frame = live_frame(state, frame_id)
    held = _reservation_amount(frame, purpose)
    back = held if amount is None else check_number("amount", amount, least=0, most=MAX_AMOUNT)
    if back > held:
        raise NotFound(f"Frame {frame_id} has {held} tokens reserved for {purpose!r}, not {back}.")
    if not back:
        return []
    check_awake(frame)
    return [_reservation_draft(frame_id, purpose, -back)]


def spend(state: StreamState, frame_id: str, usage: object, purpose: str | None = None) -> list[Draft]:
    """Record usage. It is never refused for its amount, since the work is done.

    A suspended frame does no work, so it spends only what a call in flight does.
    """
    frame = live_frame(state, frame_id)
    record = to_usage(usage)
    part = 0 if purpose is None else min(_reservation_amount(frame, purpose), record.spent)
    if not record.spent and not record.cost:
        return []
    if not frame.calls:
        check_awake(frame)
    return [draft_spent(frame, record, purpose, part)]


def draft_spent(frame: FrameState, usage: Usage, purpose: str | None = None, part: int = 0) -> Draft:
    """Return the event of usage that was paid for, `part` of it by a reservation."""
    left = frame.tokens.available
    over = 0 if left is None else max(0, usage.spent - part - left)
    facts = frames.FrameSpent(frame=frame.id, usage=usage, purpose=purpose, from_reserved=part, overdraft=over)
    return Draft(type="frame.spent", facts=facts)


def check_can_spend(frame: FrameState) -> None:
    """Refuse to begin work in a frame without tokens left."""
    if frame.tokens.available == 0:
        raise BudgetExhausted(
            f"Frame {frame.id} has nothing left of its {frame.granted} tokens ({frame.used} used, {frame.reserved} "
            f"reserved, {frame.lent} lent). End it, release a reservation, or push work with a larger grant.",
            left=0,
        )


def _reservation_amount(frame: FrameState, purpose: str) -> int:
    check_id(purpose, "purpose")
    held = frame.reservations.get(purpose)
    if held is None:
        known = ", ".join(sorted(frame.reservations)) or "none"
        raise NotFound(f"Frame {frame.id} has no reservation {purpose!r}. It has: {known}.")
    return held


def _reservation_draft(frame_id: str, purpose: str, amount: int) -> Draft:
    facts = frames.FrameReserved(frame=frame_id, purpose=purpose, amount=amount)
    return Draft(type="frame.reserved", facts=facts)


def to_nano_usd(value: object, what: str) -> int:
    """Convert an amount above 0 in US dollars to billionths of a dollar."""
    if not is_number(value, most=MAX_AMOUNT / NANO_USD, whole=False) or value <= 0:
        most = f"{MAX_AMOUNT // NANO_USD:,}"
        raise InvalidValue(f"{what} must be an amount above 0 and up to {most} in US dollars, not {value!r:.40}.")
    return round(value * NANO_USD)


_AMOUNTS = ("input", "cached_input", "cache_write", "output", "reasoning", "unpriced", "estimated")


def to_usage(value: object) -> Usage:
    """Check a usage record, or turn a number of tokens into one, as output."""
    if isinstance(value, Usage):
        for name in _AMOUNTS:
            amount = getattr(value, name)
            if type(amount) is not int or not 0 <= amount <= MAX_AMOUNT:
                check_number(f"usage.{name}", amount, least=0, most=MAX_AMOUNT)
        if value.cost is not None:
            check_number("usage.cost", value.cost, least=0, most=MAX_AMOUNT)
        return value
    return Usage(output=check_number("usage", value, least=0, most=MAX_AMOUNT))


def compute_grant(tokens: object, lender: FrameState | None) -> int | None:
    """Return the tokens of a new frame: a number, a fraction of what its parent has left, or by default all of that."""
    left = None if lender is None else lender.tokens.available
    amount = left
    if isinstance(tokens, float):
        if not 0 < tokens <= 1:
            raise InvalidValue(f"A fraction of the parent's tokens must be above 0 and at most 1, not {tokens!r}.")
        if left is None:
            raise InvalidValue("A fraction needs a parent with a limited budget. Give a number of tokens instead.")
        amount = int(left * tokens)
    elif tokens is not None:
        amount = check_number("tokens", tokens, least=0, most=MAX_AMOUNT)
    if lender is None or left is None or amount is None:
        return amount
    # None are granted only to a caller who asks for 0.
    if amount > left or (not amount and not isinstance(tokens, int)):
        raise InsufficientTokens(
            f"Frame {lender.id} has {left} tokens available, not {amount or 'any'}: {_describe_tokens(lender)}. "
            "Ask for less, release a reservation, or let a child end.",
            requested=amount,
            available=left,
        )
    return amount


def outstanding_loan(frame: FrameState) -> int:
    """Return the tokens that a parent gets back when a frame ends. A suspended frame has given some back already."""
    return (frame.granted or 0) - (0 if frame.question is None else frame.question.released)


def _describe_tokens(frame: FrameState) -> str:
    return f"{frame.used} used, {frame.reserved} reserved and {frame.lent} lent of {frame.granted}"


def check_available(frame: FrameState, amount: int) -> None:
    """Refuse an amount that a frame cannot afford; exactly all that is left is fine."""
    if not frame.tokens.can_afford(amount):
        available = frame.tokens.available or 0
        raise InsufficientTokens(
            f"Frame {frame.id} has {available} tokens available, not {amount}: {_describe_tokens(frame)}.",
            requested=amount,
            available=available,
        )


def check_limits(limits: Limits) -> Limits:
    """Check the limits that are set."""
    if not isinstance(limits, Limits):
        raise InvalidValue(f"limits must be holdfast.Limits, not {type(limits).__name__}.")
    for name, least in _MIN_LIMITS.items():
        value = getattr(limits, name)
        if value is not UNSET and not (name == "timeout_ms" and value is None):
            check_number(f"limits.{name}", value, least=least, most=MAX_AMOUNT)
    return limits

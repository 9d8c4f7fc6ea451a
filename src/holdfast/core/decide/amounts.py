"""Amounts as callers give them: whole numbers, fractions of what is left, usage records."""

from __future__ import annotations

from msgspec import UNSET

from holdfast.errors import InsufficientTokens, InvalidValue
from holdfast.records.frames import Frame, Limits
from holdfast.records.usage import NANO_USD, Usage

MOST = 2**53
_LEAST = {"context_tokens": 1, "tool_calls": 0, "depth": 0, "timeout_ms": 1}


def whole(value: object, what: str, least: int = 0) -> int:
    """A whole number of at least so much."""
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= MOST:
        raise InvalidValue(f"{what} must be a whole number from {least} to {MOST}, not {value!r}.")
    return value


def nano_usd(value: object, what: str) -> int:
    """An amount above 0 in US dollars, in billionths of one."""
    money = isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
    if not money:
        raise InvalidValue(f"{what} must be an amount above 0 in US dollars, not {value!r:.40}.")
    return round(value * NANO_USD)  # type: ignore[operator]


def usage_of(value: object) -> Usage:
    """What was used: a record, or a number of tokens, which counts as output."""
    if isinstance(value, Usage):
        for name in ("input", "cached_input", "cache_write", "output", "reasoning", "unpriced", "estimated"):
            whole(getattr(value, name), f"usage.{name}")
        if value.cost is not None:
            whole(value.cost, "usage.cost")
        return value
    return Usage(output=whole(value, "usage"))


def grant(tokens: object, lender: Frame | None) -> int | None:
    """What a new frame is granted: a number, a fraction of what its parent has left, or what follows from it."""
    left = None if lender is None else lender.tokens.available
    if tokens is None:
        return None if left is None else _some(left, left, lender)
    if isinstance(tokens, float):
        if not 0 < tokens <= 1:
            raise InvalidValue(f"A fraction of the parent's tokens must be above 0 and at most 1, not {tokens!r}.")
        if left is None:
            raise InvalidValue("A fraction needs a parent with a limited budget. Give a number of tokens instead.")
        return _some(int(left * tokens), left, lender)
    amount = whole(tokens, "tokens")
    return amount if left is None else _some(amount, left, lender, may_be_none=True)


def _some(amount: int, left: int, lender: Frame | None, *, may_be_none: bool = False) -> int:
    assert lender is not None
    if amount > left or (not amount and not may_be_none):
        raise InsufficientTokens(
            f"Frame {lender.id} has {left} tokens available, not {amount or 'any'}: {_where(lender)}. Ask for less, "
            "release a reservation, or let a child end.",
            requested=amount,
            available=left,
        )
    return amount


def _where(frame: Frame) -> str:
    return f"{frame.used} used, {frame.reserved} reserved and {frame.lent} lent of {frame.granted}"


def check_available(frame: Frame, amount: int) -> None:
    """Refuse what a frame cannot afford; exactly all of it is fine."""
    if not frame.tokens.affords(amount):
        available = frame.tokens.available or 0
        raise InsufficientTokens(
            f"Frame {frame.id} has {available} tokens available, not {amount}: {_where(frame)}.",
            requested=amount,
            available=available,
        )


def check_limits(limits: Limits) -> Limits:
    """Limits that can be meant, as far as they are given."""
    if not isinstance(limits, Limits):
        raise InvalidValue(f"limits must be holdfast.Limits, not {type(limits).__name__}.")
    for name, least in _LEAST.items():
        value = getattr(limits, name)
        if value is not UNSET and not (name == "timeout_ms" and value is None):
            whole(value, f"limits.{name}", least)
    return limits

"""When an effect is tried again: after how long, and whether at all. Pure."""

from __future__ import annotations

import math
from typing import Final

from holdfast.errors import (
    EffectRefused,
    FrameSuspended,
    HasLiveChildren,
    HasOpenCalls,
    ParentNotActive,
    Refused,
    Unsupported,
)
from holdfast.records.rows import Row

FIRST_MS: Final = 1_000
LONGEST_MS: Final = 300_000
JITTER: Final = 0.2
LONGEST_ASKED_MS: Final = 24 * 3_600_000
"""A sink that asks for more time than this gets this."""


def retry_ms(attempts: int, chance: float, asked: object = None) -> int:
    """How long to wait after so many attempts: twice as long each time, a little random, at least what was asked."""
    steady = min(FIRST_MS << min(attempts - 1, 30), LONGEST_MS)
    delay = round(steady * (1 - JITTER + 2 * JITTER * chance))
    if isinstance(asked, int | float) and not isinstance(asked, bool) and math.isfinite(asked):
        delay = max(delay, min(round(asked * 1000), LONGEST_ASKED_MS))
    return delay


def is_final(error: BaseException) -> bool:
    """Whether a sink that raises this would raise it again. What a frame waits for passes."""
    if isinstance(error, FrameSuspended | HasLiveChildren | HasOpenCalls):
        return False
    if isinstance(error, ParentNotActive) and error.before == "suspended":
        return False
    return isinstance(error, Refused | EffectRefused | Unsupported)


def is_due(row: Row, now: int) -> bool:
    """Whether an effect may be tried now. A clock that was set back delays nothing for longer than we ever wait."""
    at = row["retry_at"]
    return not isinstance(at, int) or at <= now or at - now > LONGEST_ASKED_MS

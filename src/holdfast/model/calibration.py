"""Calibration of token estimates by the counts that providers report, so that a window is neither wasted nor exceeded.

Tokens of models without a public tokenizer are estimated, and the provider reports the true number afterwards. The
factor of a model is the largest ratio of reported to estimated tokens in its last calls, plus a margin: a budget in
estimated tokens is the model's limit divided by the factor. The factor is known after a few calls, or as soon as one
call had more tokens than estimated, since the next one might not fit.

Small requests say little: a provider's wrapping and a reply schema may outweigh the conversation. A small request that
took no more than estimated is ignored. One that took more is scaled up with text assumed to be estimated correctly, so
that a hundred tokens too many stay a hundred.

The calibration is bounded, is kept in this process only, and starts over after a restart. The same calls give the same
factor.
"""

from __future__ import annotations

from typing import Final

from holdfast.system import ForkLock, Lru

CALL_LIMIT: Final = 32
"""Calls remembered for each model."""
CALLS_NEEDED: Final = 8
"""Calls after which an estimate counts as too high."""
MARGIN_PERCENT: Final = 3
SMALL_REQUEST: Final = 1_000
"""Requests with fewer estimated tokens are too small to compare directly."""
LEAST_PERCENT, MOST_PERCENT = 50, 400
"""A budget is at most doubled, and at most quartered."""
IMPLAUSIBLE_RATIO: Final = 4
"""If less than one in this many estimated tokens is reported, the report is ignored: it leaves out cached tokens."""
MODEL_LIMIT: Final = 512
"""Models remembered; the least recently used one is dropped first."""

CalibrationKey = tuple[str, str, str]
"""A tenant, a model, and the tokenizer that estimates for it."""
RATIO_SCALE: Final = 1_000_000
"""A ratio of one. Ratios are whole numbers, so that they are the same on every machine."""


class Calibration:
    """The ratios of the last calls of each model. Safe to share between threads."""

    def __init__(self) -> None:
        self._ratios = Lru[CalibrationKey, tuple[int, ...]](MODEL_LIMIT)
        self._guard = ForkLock()

    def note(self, counted: CalibrationKey, estimated: int, reported: int) -> None:
        """Record how many tokens a request was estimated to have, and how many the provider reported."""
        if estimated < 1 or reported < 1 or reported * IMPLAUSIBLE_RATIO < estimated:
            return
        if estimated < SMALL_REQUEST:
            if reported <= estimated:
                return
            estimated, reported = SMALL_REQUEST, reported + SMALL_REQUEST - estimated
        with self._guard.lock:
            ratios = (*(self._ratios.get(counted) or ()), -(-reported * RATIO_SCALE // estimated))
            self._ratios.put(counted, ratios[-CALL_LIMIT:])

    def factor(self, counted: CalibrationKey) -> float | None:
        """Return the factor for estimated tokens, rounded up to hundredths; None until it is known."""
        ratios = self._ratios.get(counted) or ()
        most = max(ratios, default=0)
        if len(ratios) < CALLS_NEEDED and most <= RATIO_SCALE:
            return None
        percent = -(-most * (100 + MARGIN_PERCENT) // RATIO_SCALE)
        return min(max(percent, LEAST_PERCENT), MOST_PERCENT) / 100

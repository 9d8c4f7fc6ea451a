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

from collections import OrderedDict, deque
from threading import Lock
from typing import Final

CALLS: Final = 32
"""Calls remembered for each model."""
ENOUGH: Final = 8
"""Calls after which an estimate counts as too high."""
MARGIN_PERCENT: Final = 3
SMALL: Final = 1_000
"""Requests with fewer estimated tokens are too small to compare directly."""
LEAST_PERCENT, MOST_PERCENT = 50, 400
"""A budget is at most doubled, and at most quartered."""
INCREDIBLE: Final = 4
"""If less than one in this many estimated tokens is reported, the report is ignored: it leaves out cached tokens."""
MODELS: Final = 512
"""Models remembered; the one noted longest ago is dropped first."""

Counted = tuple[str, ...]
"""A tenant, a model, and the tokenizer that estimates for it."""


class Calibration:
    """The ratios of the last calls of each model. Safe to share between threads."""

    def __init__(self) -> None:
        self._shares: OrderedDict[Counted, deque[int]] = OrderedDict()
        self._lock = Lock()

    def note(self, counted: Counted, estimated: int, reported: int) -> None:
        """Record how many tokens a request was estimated to have, and how many the provider reported."""
        share = _share(estimated, reported)
        if share is None:
            return
        with self._lock:
            shares = self._shares.setdefault(counted, deque(maxlen=CALLS))
            shares.append(share)
            self._shares.move_to_end(counted)
            while len(self._shares) > MODELS:
                self._shares.popitem(last=False)

    def factor(self, counted: Counted) -> float | None:
        """Return the factor for estimated tokens, rounded up to hundredths; None until it is known."""
        with self._lock:
            shares = tuple(self._shares.get(counted, ()))
        most = max(shares, default=0)
        if len(shares) < ENOUGH and most <= WHOLE:
            return None
        percent = -(-most * (100 + MARGIN_PERCENT) // WHOLE)
        return min(max(percent, LEAST_PERCENT), MOST_PERCENT) / 100


WHOLE: Final = 1_000_000
"""A ratio of one. Ratios are whole numbers, so that they are the same on every machine."""


def _share(estimated: int, reported: int) -> int | None:
    """Return the ratio of reported to estimated tokens; None if the two cannot be compared."""
    if estimated < 1 or reported < 1 or reported * INCREDIBLE < estimated:
        return None
    if estimated >= SMALL:
        return -(-reported * WHOLE // estimated)
    if reported <= estimated:
        return None
    return -(-(reported + SMALL - estimated) * WHOLE // SMALL)

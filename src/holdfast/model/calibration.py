"""How far off estimates are, from what providers report; so that a window is neither wasted nor passed.

Tokens of models whose tokenizer is not public are estimated, and a provider says afterwards how many there were. The
factor of a model is the largest share of reported to estimated tokens in its last calls, and a little more: a budget in
estimated tokens is what the model takes, divided by it. It is known after some calls; but if one had more tokens than
were estimated, from then on, since the next one might not fit.

What is small says little: what providers put around every request, and what a reply must look like, may be more than
the conversation. A small request that took no more than was estimated is not counted. One that took more is counted as
if it were larger by text that was estimated rightly, so that a hundred tokens too many stay a hundred.

This is a memory of the process, bounded, and of no other: after a restart it begins anew. With the same calls noted,
the factor is the same.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from threading import Lock
from typing import Final

CALLS: Final = 32
"""Calls that are remembered of each model."""
ENOUGH: Final = 8
"""Calls after which an estimate that was too high is believed to be."""
MARGIN_PERCENT: Final = 3
SMALL: Final = 1_000
"""Estimated tokens of a request that is too small to compare."""
LEAST_PERCENT, MOST_PERCENT = 50, 400
"""A budget is at most doubled, and at most quartered."""
INCREDIBLE: Final = 4
"""If fewer than one in so many estimated tokens is reported, something else was: only what was not in a cache."""
MODELS: Final = 512
"""Models that are remembered; the one that was noted longest ago goes first."""

Counted = tuple[str, ...]
"""A tenant, a model, and the tokenizer that estimates for it."""


class Calibration:
    """The last calls of some models. Safe to share between threads."""

    def __init__(self) -> None:
        self._shares: OrderedDict[Counted, deque[int]] = OrderedDict()
        self._lock = Lock()

    def note(self, counted: Counted, estimated: int, reported: int) -> None:
        """A request was estimated to have so many tokens, and had so many."""
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
        """What estimated tokens are to be multiplied by, in hundredths; None as long as that is not known."""
        with self._lock:
            shares = tuple(self._shares.get(counted, ()))
        most = max(shares, default=0)
        if len(shares) < ENOUGH and most <= WHOLE:
            return None
        percent = -(-most * (100 + MARGIN_PERCENT) // WHOLE)
        return min(max(percent, LEAST_PERCENT), MOST_PERCENT) / 100


WHOLE: Final = 1_000_000
"""A share of one: shares are whole numbers, so that they are the same everywhere."""


def _share(estimated: int, reported: int) -> int | None:
    """Reported to estimated tokens; None if they say nothing about each other."""
    if estimated < 1 or reported < 1 or reported * INCREDIBLE < estimated:
        return None
    if estimated >= SMALL:
        return -(-reported * WHOLE // estimated)
    if reported <= estimated:
        return None
    return -(-(reported + SMALL - estimated) * WHOLE // SMALL)

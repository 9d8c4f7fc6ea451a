"""What a call cost, noted with what it used. A price that is not known is left out, and never makes a call fail.

Whoever gives prices is asked once for each call, when it has ended. An exception, or an answer that is no amount of
money, leaves the cost unknown and says so once for that client: the call was paid, and must be journaled.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from holdfast.core.values import words
from holdfast.flow.warned import warn
from holdfast.ports import Ports
from holdfast.records.usage import Usage

MOST = 2**62
_told: weakref.WeakSet[Callable[..., Any]] = weakref.WeakSet()
"""Prices that failed, and were warned about."""


def is_reported(usage: Usage) -> bool:
    """Whether a call said what it used. One that reports no tokens at all did not; nor is it known to be free."""
    return bool(usage.input or usage.output or usage.cached_input or usage.cache_write)


def priced(ports: Ports, usage: Usage, model: str | None) -> Usage:
    """What a call of this model used, with what it cost if that is not said yet and can be known.

    An estimate is good enough for a budget of tokens, but no bill: it has no cost.
    """
    if usage.cost is not None or usage.estimated or ports.prices is None or not is_reported(usage):
        return usage
    cost = _cost(ports.prices, usage, model)
    return usage if cost is None else replace(usage, cost=cost)


def _cost(prices: Callable[[str | None, Usage], Any], usage: Usage, model: str | None) -> int | None:
    try:
        found = prices(model, usage)
    except Exception as error:  # noqa: BLE001  it is not our code
        _tell(prices, words(error))
        return None
    if found is None or (isinstance(found, int) and not isinstance(found, bool) and 0 <= found <= MOST):
        return found
    _tell(prices, f"they gave {found!r:.40}")
    return None


def _tell(prices: Callable[..., Any], why: str) -> None:
    if prices not in _told:
        _told.add(prices)
        warn(f"The prices that this client was given failed, so that some costs are not known: {why}")

"""The prices that a client was given: a mapping beside the table of list prices, or a function in place of it.

A mapping goes from beginnings of models' names to prices in US dollars for a million tokens; a model that is not in it
has its list price. A function of (model, usage) gives the cost of one call in dollars, and None if it does not know:
then nobody does. What it raises, and what is no amount, is for `flow/stack/pricing.py`, where it costs a warning.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from holdfast.errors import InvalidValue
from holdfast.model.prices import cost_of, nano, prefix_of, price
from holdfast.records.usage import Usage


def prices(given: object) -> Callable[[str | None, Usage], int | None]:
    """What was given as one kind of thing; refuses what can give no prices."""
    if isinstance(given, Mapping):
        return _Beside(given)
    if not callable(given) or isinstance(given, type) or _awaited(given):
        raise InvalidValue(
            'prices must be a mapping such as {"my-model": {"input": 1, "output": 4}}, or a function of (model, usage) '
            f"that gives US dollars or None when it returns, not {given!r:.80}."
        )
    return _Instead(given)


def _awaited(given: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(type(given).__call__)


class _Beside:
    """Own prices of some models; others cost what the table says."""

    def __init__(self, given: Mapping[Any, Any]) -> None:
        self._own = {prefix_of(prefix): price(row) for prefix, row in given.items()}

    def __call__(self, model: str | None, usage: Usage) -> int | None:
        return cost_of(usage, model, self._own)


class _Instead:
    """A function that knows what calls cost."""

    def __init__(self, given: Callable[..., Any]) -> None:
        self._given = given

    def __call__(self, model: str | None, usage: Usage) -> int | None:
        found = self._given(model, usage)
        if inspect.iscoroutine(found):
            found.close()  # Nobody will await it, and Python would say so later, elsewhere.
        return None if found is None else nano(found)

"""The cost of a call, from its token usage and a table of list prices; never a guess.

A model is found as in `registry.py`, by its longest known prefix. In this release's table (`price_list.py`, which
states its date) only a date or a release may follow the prefix: `gpt-4o-2024-08-06` costs what `gpt-4o` costs, but the
price of `gpt-4o-audio-preview` or of a fine-tuned model is unknown. Own prices hold for all names with their prefix,
unless the table has a longer prefix for the name: a price for `gpt-4o` is none for `gpt-4o-mini`, nor for `ft:gpt-4o`.

A client may be given prices as a mapping, which extends the list prices, or as a function of (model, usage), which
replaces them: it returns the cost of one call in dollars, or None for unknown.

Amounts are whole numbers throughout: prices in trillionths of a dollar per token, costs in billionths, rounded once.
`usage.input` includes tokens read from and written to a cache; each token is charged at exactly one price. A cost is
that of one call: where long prompts cost more, two calls do not cost as much as one call with the tokens of both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Any, Final

import msgspec

from holdfast.core.values import discard_awaitable, is_async
from holdfast.errors import InvalidValue
from holdfast.model.price_list import PRICES, PriceRow, Rates
from holdfast.model.registry import has_prefix, normalise_name
from holdfast.records.usage import NANO_USD, Usage

MOST_USD: Final = 1_000_000
"""The highest price per million tokens, and the highest cost of one call: more is a mistake."""
_PICO_PER_NANO: Final = 1_000
_PICO_PER_MICRO: Final = 1_000_000
_RELEASE = re.compile(r"(?:[-@](?:\d{4}-\d\d-\d\d|\d{8}|\d{4}|latest|v\d+(?::\d+)?))*")
_TUNING = re.compile(r"(?:^|/)ft:|[:.]ft-")
_TUNED_PREFIX: Final = "ft:"
_registered: dict[str, Price] = {}


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """The prices of one model's tokens, each in trillionths of a US dollar, so that no price is rounded."""

    input: int
    cached_input: int
    cache_write: int
    output: int

    def cost(self, usage: Usage) -> int:
        """Return the cost of a call in billionths of a dollar."""
        fresh = max(usage.input - usage.cached_input - usage.cache_write, 0)
        total = fresh * self.input + usage.cached_input * self.cached_input
        total += usage.cache_write * self.cache_write + usage.output * self.output
        return (total + _PICO_PER_NANO // 2) // _PICO_PER_NANO


OwnPrices = Mapping[str, Price]


def compute_cost(usage: Usage, model: str | None, own: OwnPrices | None = None) -> int | None:
    """Return the cost of a call in billionths of a US dollar; None if no price is known for its model.

    `model` is the model that was called, `usage.model` the one that answered by its own account. Own prices for either
    come first, then the list price of the one that answered.
    """
    mine = {**_registered, **own} if own else _registered
    for name in (model, usage.model):
        found = None if not name or not mine else _own_price(_lookup_name(name), mine)
        if found is not None:
            return found.cost(usage)
    row = _find_row(usage.model or model or "")
    if row is None:
        return None
    rates, above, long = row
    if above is not None and usage.input > above:
        return None if long is None else _price_from_rates(long).cost(usage)
    return _price_from_rates(rates).cost(usage)


def register_price(
    prefix: str,
    *,
    input: float | Decimal,
    output: float | Decimal,
    cached_input: float | Decimal | None = None,
    cache_write: float | Decimal | None = None,
) -> None:
    """Set the price of models whose names begin with `prefix`, in US dollars per million tokens, in this process.

    Replaces the list price and an earlier call. Tokens read from or written to a cache cost as much as other input
    unless their prices are given.
    """
    _registered[parse_prefix(prefix)] = parse_price(
        {"input": input, "output": output, "cached_input": cached_input, "cache_write": cache_write}
    )


def parse_prefix(given: object) -> str:
    """Return a name prefix in the table's spelling; refuse an empty one."""
    plain = _lookup_name(given) if isinstance(given, str) else ""
    if plain in ("", _TUNED_PREFIX):
        raise InvalidValue("A price applies to models by a prefix of their names, which must not be empty.")
    return plain


def parse_price(given: object) -> Price:
    """Parse a price as callers write it: a mapping with input and output, perhaps cached_input and cache_write."""
    names = Price.__struct_fields__
    if not isinstance(given, Mapping) or not set(given) <= set(names) or not {"input", "output"} <= set(given):
        raise InvalidValue(
            'A price is a mapping such as {"input": 2.5, "output": 10, "cached_input": 1.25, "cache_write": 2.5}, in '
            f"US dollars for a million tokens, not {given!r:.80}."
        )
    # Dollars for a million tokens are millionths of a dollar for one, and those are 1,000,000 trillionths each.
    said = {
        name: round(_parse_usd(value, f"The price of {name}") * _PICO_PER_MICRO)
        for name, value in given.items()
        if value is not None or name in ("input", "output")
    }
    return Price(**{"cached_input": said["input"], "cache_write": said["input"], **said})


def _parse_usd(value: object, what: str) -> Decimal:
    number = isinstance(value, int | float | Decimal) and not isinstance(value, bool)
    try:
        found = Decimal(str(value)) if number else Decimal("nan")
    except InvalidOperation:
        found = Decimal("nan")
    if not found.is_finite() or not 0 <= found <= MOST_USD:
        raise InvalidValue(f"{what} is an amount of US dollars from 0 to {MOST_USD:,}, not {value!r:.40}.")
    return found


def _lookup_name(name: str) -> str:
    """Return the name to look up; fine-tuned models get a prefix, since they cost more than their base model."""
    tuned = _TUNING.search(name.strip().lower()) is not None
    return (_TUNED_PREFIX if tuned else "") + normalise_name(name)


def _longest_prefix(plain: str, known: Iterable[str]) -> str | None:
    return max((prefix for prefix in known if has_prefix(plain, prefix)), key=len, default=None)


def _own_price(plain: str, prices: OwnPrices) -> Price | None:
    prefix = _longest_prefix(plain, prices)
    if prefix is None or len(_longest_prefix(plain, PRICES) or "") > len(prefix):
        return None
    return prices[prefix]


@lru_cache(maxsize=256)
def _find_row(name: str) -> PriceRow | None:
    """Return the table row of a model, ignoring a date or release at the end of its name."""
    plain = _lookup_name(name)
    prefix = _longest_prefix(plain, PRICES)
    if prefix is None or not _RELEASE.fullmatch(plain, len(prefix)):
        return None
    return PRICES[prefix]


def _price_from_rates(rates: Rates) -> Price:
    found: Any = dict(zip(Price.__struct_fields__, (rate * _PICO_PER_NANO for rate in rates), strict=True))
    return Price(**found)


def make_price_hook(given: object) -> Callable[[str | None, Usage], int | None]:
    """Make a price function from the mapping or function that was given; refuse anything else."""
    if isinstance(given, Mapping):
        own = {parse_prefix(prefix): parse_price(row) for prefix, row in given.items()}
        return lambda model, usage: compute_cost(usage, model, own)
    if not callable(given) or isinstance(given, type) or is_async(given):
        raise InvalidValue(
            'prices must be a mapping such as {"my-model": {"input": 1, "output": 4}}, or a function of (model, usage) '
            f"that gives US dollars or None when it returns, not {given!r:.80}."
        )
    function: Callable[..., Any] = given

    def price(model: str | None, usage: Usage) -> int | None:
        found = function(model, usage)
        discard_awaitable(found)
        return None if found is None else round(_parse_usd(found, "A cost") * NANO_USD)

    return price

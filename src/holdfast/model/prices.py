"""The cost of a call, from its token usage and a table of list prices; never a guess.

A model is found as in `registry.py`, by its longest known prefix. In this release's table, which holds the standard
prices that OpenAI and Anthropic published until 15 November 2026, only a date or a release may follow the prefix:
`gpt-4o-2024-08-06` costs what `gpt-4o` costs, but the price of `gpt-4o-audio-preview` or of a fine-tuned model is
unknown. Own prices hold for all names with their prefix, unless the table has a longer prefix for the name: a price for
`gpt-4o` is none for `gpt-4o-mini`, nor for `ft:gpt-4o`. Batches, faster or slower tiers, regions, other hosts and
caches kept for longer than five minutes have prices of their own: set those with `register_price` or `open(prices=…)`.

Each row of the table holds prices per token in billionths of a US dollar (a dollar per million tokens is 1 000): input,
input read from the cache, input written to the cache, output. Where a provider charges more for long prompts, the row
also holds the number of input tokens above which it does, and the prices of all tokens of such a call; None if unknown.
Dots in names are dashes, since hosts write both.

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

Rates = tuple[int, int, int, int]
PriceRow = tuple[Rates, int | None, Rates | None]
"""The prices, the number of input tokens above which a call costs more, and the prices of such a call."""

LONG_PROMPT = 272_000
"""Input tokens above which OpenAI charges a whole call twice for input and half as much again for output."""


def _make_row(
    input: int, output: int, cached: int | None = None, write: int | None = None, *, long: bool = False
) -> PriceRow:
    """Build a row. Tokens read from or written to a cache cost as much as input unless their prices are given."""
    read, written = input if cached is None else cached, input if write is None else write
    above = (LONG_PROMPT, (2 * input, 2 * read, 2 * written, output * 3 // 2)) if long else (None, None)
    return (input, read, written, output), *above


_ROWS: dict[str, PriceRow] = {
    "gpt-6-astra": _make_row(10_000, 50_000, 1_000, 12_500, long=True),
    "gpt-6-1-sol": _make_row(2_000, 10_000, 100, 2_500, long=True),
    "gpt-6-sol": _make_row(2_000, 10_000, 200, 2_500, long=True),
    "gpt-6-luna": _make_row(100, 500, 10, 125, long=True),
    "gpt-5-6 gpt-5-6-sol": _make_row(4_000, 20_000, 400, 5_000, long=True),
    "gpt-5-6-terra": _make_row(2_000, 12_000, 200, 2_500, long=True),
    "gpt-5-6-luna": _make_row(200, 1_200, 20, 250, long=True),
    "gpt-5-6-cyber": _make_row(12_500, 75_000, 1_250, 15_625),
    "gpt-5-5": _make_row(5_000, 30_000, 500, long=True),
    "gpt-5-5-pro": ((30_000, 30_000, 30_000, 180_000), LONG_PROMPT, None),
    "gpt-5-4": _make_row(2_500, 15_000, 250, long=True),
    "gpt-5-4-pro": _make_row(30_000, 180_000, long=True),
    "gpt-5-4-mini": _make_row(750, 4_500, 75),
    "gpt-5-4-nano": _make_row(200, 1_250, 20),
    "gpt-5-3-chat gpt-5-3-codex gpt-5-2 gpt-5-2-chat gpt-5-2-codex": _make_row(1_750, 14_000, 175),
    "gpt-5-2-pro": _make_row(21_000, 168_000),
    "gpt-5-1 gpt-5-1-chat gpt-5-1-codex gpt-5-1-codex-max gpt-5 gpt-5-chat": _make_row(1_250, 10_000, 125),
    "gpt-5-codex": _make_row(1_250, 10_000, 125),
    "gpt-5-1-codex-mini gpt-5-mini": _make_row(250, 2_000, 25),
    "gpt-5-nano": _make_row(50, 400, 5),
    "gpt-5-pro": _make_row(15_000, 120_000),
    "gpt-4-1 o3 o4-mini-deep-research": _make_row(2_000, 8_000, 500),
    "gpt-4-1-mini": _make_row(400, 1_600, 100),
    "gpt-4-1-nano": _make_row(100, 400, 25),
    "gpt-4o": _make_row(2_500, 10_000, 1_250),
    "gpt-4o-2024-05-13 chatgpt-4o": _make_row(5_000, 15_000),
    "gpt-4o-mini": _make_row(150, 600, 75),
    "o1": _make_row(15_000, 60_000, 7_500),
    "o1-mini o3-mini": _make_row(1_100, 4_400, 550),
    "o1-pro": _make_row(150_000, 600_000),
    "o3-pro": _make_row(20_000, 80_000),
    "o3-deep-research": _make_row(10_000, 40_000, 2_500),
    "o4-mini": _make_row(1_100, 4_400, 275),
    "gpt-4-turbo gpt-4-turbo-preview gpt-4-0125-preview gpt-4-1106-preview": _make_row(10_000, 30_000),
    "gpt-4": _make_row(30_000, 60_000),
    "gpt-4-32k": _make_row(60_000, 120_000),
    "gpt-3-5-turbo gpt-35-turbo": _make_row(500, 1_500),
    "gpt-3-5-turbo-0301 gpt-3-5-turbo-0613 gpt-3-5-turbo-instruct": _make_row(1_500, 2_000),
    "gpt-3-5-turbo-1106": _make_row(1_000, 2_000),
    "gpt-3-5-turbo-16k": _make_row(3_000, 4_000),
    "claude-fable-5-1 claude-mythos-5-1": _make_row(10_000, 50_000, 250, 12_500),
    "claude-fable-5 claude-mythos-5": _make_row(10_000, 50_000, 1_000, 12_500),
    "claude-opus-5-5": _make_row(4_000, 20_000, 200, 5_000),
    "claude-opus-5 claude-opus-4-8 claude-opus-4-7 claude-opus-4-6": _make_row(5_000, 25_000, 500, 6_250),
    "claude-opus-4-5": _make_row(5_000, 25_000, 500, 6_250),
    "claude-opus-4-1 claude-opus-4-0 claude-opus-4 claude-3-opus": _make_row(15_000, 75_000, 1_500, 18_750),
    "claude-sonnet-5-5 claude-sonnet-5": _make_row(2_000, 10_000, 200, 2_500),
    "claude-sonnet-4-6 claude-3-7-sonnet claude-3-5-sonnet claude-3-sonnet": _make_row(3_000, 15_000, 300, 3_750),
    "claude-sonnet-4-5 claude-sonnet-4-0": ((3_000, 300, 3_750, 15_000), 200_000, (6_000, 600, 7_500, 22_500)),
    "claude-sonnet-4": ((3_000, 300, 3_750, 15_000), 200_000, (6_000, 600, 7_500, 22_500)),
    "claude-haiku-5-5": ((100, 10, 125, 500), 100_000, (500, 50, 625, 2_500)),
    "claude-haiku-4-5": _make_row(1_000, 5_000, 100, 1_250),
    "claude-3-5-haiku": _make_row(800, 4_000, 80, 1_000),
    "claude-3-haiku": _make_row(250, 1_250, 30, 300),
}
PRICES = {name: row for names, row in _ROWS.items() for name in names.split()}


class Price(msgspec.Struct, frozen=True):
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
    for name in (model, usage.model) if mine else ():
        plain = _lookup_name(name or "")
        prefix = _longest_prefix(plain, mine)
        if prefix is not None and len(_longest_prefix(plain, PRICES) or "") <= len(prefix):
            return mine[prefix].cost(usage)
    row = _find_row(usage.model or model or "")
    if row is None:
        return None
    rates, above, long = row
    if above is not None and usage.input > above:
        if long is None:
            return None
        rates = long
    return Price(*[rate * _PICO_PER_NANO for rate in rates]).cost(usage)


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


@lru_cache(maxsize=256)
def _find_row(name: str) -> PriceRow | None:
    """Return the table row of a model, ignoring a date or release at the end of its name."""
    plain = _lookup_name(name)
    prefix = _longest_prefix(plain, PRICES)
    if prefix is None or not _RELEASE.fullmatch(plain, len(prefix)):
        return None
    return PRICES[prefix]


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

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


def _openai_row(input: int, cached: int, output: int, write: int | None = None) -> PriceRow:
    """Build a row. Until GPT-5.6, writing to the cache costs as much as input."""
    return (input, cached, input if write is None else write, output), None, None


def _add_long_rates(row: PriceRow) -> PriceRow:
    (input, cached, write, output), _, _ = row
    return row[0], LONG_PROMPT, (2 * input, 2 * cached, 2 * write, output * 3 // 2)


def _flat_row(input: int, output: int) -> PriceRow:
    """Build a row without separate prices for cached tokens."""
    return (input, input, input, output), None, None


def _claude_row(input: int, cached: int, write: int, output: int) -> PriceRow:
    return (input, cached, write, output), None, None


_ROWS: dict[str, PriceRow] = {
    "gpt-6-astra": _add_long_rates(_openai_row(10_000, 1_000, 50_000, 12_500)),
    "gpt-6-1-sol": _add_long_rates(_openai_row(2_000, 100, 10_000, 2_500)),
    "gpt-6-sol": _add_long_rates(_openai_row(2_000, 200, 10_000, 2_500)),
    "gpt-6-luna": _add_long_rates(_openai_row(100, 10, 500, 125)),
    "gpt-5-6 gpt-5-6-sol": _add_long_rates(_openai_row(4_000, 400, 20_000, 5_000)),
    "gpt-5-6-terra": _add_long_rates(_openai_row(2_000, 200, 12_000, 2_500)),
    "gpt-5-6-luna": _add_long_rates(_openai_row(200, 20, 1_200, 250)),
    "gpt-5-6-cyber": _openai_row(12_500, 1_250, 75_000, 15_625),
    "gpt-5-5": _add_long_rates(_openai_row(5_000, 500, 30_000)),
    "gpt-5-5-pro": (_flat_row(30_000, 180_000)[0], LONG_PROMPT, None),
    "gpt-5-4": _add_long_rates(_openai_row(2_500, 250, 15_000)),
    "gpt-5-4-pro": _add_long_rates(_flat_row(30_000, 180_000)),
    "gpt-5-4-mini": _openai_row(750, 75, 4_500),
    "gpt-5-4-nano": _openai_row(200, 20, 1_250),
    "gpt-5-3-chat gpt-5-3-codex gpt-5-2 gpt-5-2-chat gpt-5-2-codex": _openai_row(1_750, 175, 14_000),
    "gpt-5-2-pro": _flat_row(21_000, 168_000),
    "gpt-5-1 gpt-5-1-chat gpt-5-1-codex gpt-5-1-codex-max gpt-5 gpt-5-chat": _openai_row(1_250, 125, 10_000),
    "gpt-5-codex": _openai_row(1_250, 125, 10_000),
    "gpt-5-1-codex-mini gpt-5-mini": _openai_row(250, 25, 2_000),
    "gpt-5-nano": _openai_row(50, 5, 400),
    "gpt-5-pro": _flat_row(15_000, 120_000),
    "gpt-4-1 o3 o4-mini-deep-research": _openai_row(2_000, 500, 8_000),
    "gpt-4-1-mini": _openai_row(400, 100, 1_600),
    "gpt-4-1-nano": _openai_row(100, 25, 400),
    "gpt-4o": _openai_row(2_500, 1_250, 10_000),
    "gpt-4o-2024-05-13 chatgpt-4o": _flat_row(5_000, 15_000),
    "gpt-4o-mini": _openai_row(150, 75, 600),
    "o1": _openai_row(15_000, 7_500, 60_000),
    "o1-mini o3-mini": _openai_row(1_100, 550, 4_400),
    "o1-pro": _flat_row(150_000, 600_000),
    "o3-pro": _flat_row(20_000, 80_000),
    "o3-deep-research": _openai_row(10_000, 2_500, 40_000),
    "o4-mini": _openai_row(1_100, 275, 4_400),
    "gpt-4-turbo gpt-4-turbo-preview gpt-4-0125-preview gpt-4-1106-preview": _flat_row(10_000, 30_000),
    "gpt-4": _flat_row(30_000, 60_000),
    "gpt-4-32k": _flat_row(60_000, 120_000),
    "gpt-3-5-turbo gpt-35-turbo": _flat_row(500, 1_500),
    "gpt-3-5-turbo-0301 gpt-3-5-turbo-0613 gpt-3-5-turbo-instruct": _flat_row(1_500, 2_000),
    "gpt-3-5-turbo-1106": _flat_row(1_000, 2_000),
    "gpt-3-5-turbo-16k": _flat_row(3_000, 4_000),
    "claude-fable-5-1 claude-mythos-5-1": _claude_row(10_000, 250, 12_500, 50_000),
    "claude-fable-5 claude-mythos-5": _claude_row(10_000, 1_000, 12_500, 50_000),
    "claude-opus-5-5": _claude_row(4_000, 200, 5_000, 20_000),
    "claude-opus-5 claude-opus-4-8 claude-opus-4-7 claude-opus-4-6": _claude_row(5_000, 500, 6_250, 25_000),
    "claude-opus-4-5": _claude_row(5_000, 500, 6_250, 25_000),
    "claude-opus-4-1 claude-opus-4-0 claude-opus-4 claude-3-opus": _claude_row(15_000, 1_500, 18_750, 75_000),
    "claude-sonnet-5-5 claude-sonnet-5": _claude_row(2_000, 200, 2_500, 10_000),
    "claude-sonnet-4-6 claude-3-7-sonnet claude-3-5-sonnet claude-3-sonnet": _claude_row(3_000, 300, 3_750, 15_000),
    "claude-sonnet-4-5 claude-sonnet-4-0": ((3_000, 300, 3_750, 15_000), 200_000, (6_000, 600, 7_500, 22_500)),
    "claude-sonnet-4": ((3_000, 300, 3_750, 15_000), 200_000, (6_000, 600, 7_500, 22_500)),
    "claude-haiku-5-5": ((100, 10, 125, 500), 100_000, (500, 50, 625, 2_500)),
    "claude-haiku-4-5": _claude_row(1_000, 100, 1_250, 5_000),
    "claude-3-5-haiku": _claude_row(800, 80, 1_000, 4_000),
    "claude-3-haiku": _claude_row(250, 30, 300, 1_250),
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
    return Price(*(rate * _PICO_PER_NANO for rate in rates)).cost(usage)


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

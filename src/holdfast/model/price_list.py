"""List prices by model name, as OpenAI and Anthropic published them until 15 November 2026.

Each row holds prices per token in billionths of a US dollar (a dollar per million tokens is 1 000): input, input read
from the cache, input written to the cache, output. Where a provider charges more for long prompts, the row also holds
the number of input tokens above which it does, and the prices of all tokens of such a call; None if unknown.

These are the makers' standard prices. Batches, faster or slower tiers, regions, other hosts and caches kept for longer
than five minutes have prices of their own: set those with `register_price` or `open(prices=…)`. Dots in names are
dashes here, since hosts write both.
"""

from __future__ import annotations

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

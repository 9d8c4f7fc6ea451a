"""What a model call used. Input plus output, as reported, is what spends a budget."""

from __future__ import annotations

import msgspec

NANO_USD = 1_000_000_000


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one call, or of many added up; `cost` is in billionths of a US dollar."""

    input: int = 0
    cached_input: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    cost: int | None = None
    model: str | None = None

    @property
    def spent(self) -> int:
        """Tokens that count against a budget."""
        return self.input + self.output

    def __add__(self, other: Usage) -> Usage:
        unknown = self.cost is None and other.cost is None
        return Usage(
            input=self.input + other.input,
            cached_input=self.cached_input + other.cached_input,
            cache_write=self.cache_write + other.cache_write,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            cost=None if unknown else (self.cost or 0) + (other.cost or 0),
            model=self.model if self.model == other.model else None,
        )

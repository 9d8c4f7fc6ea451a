"""Tokens and cost of model calls. Input plus output counts against a budget.

An unknown amount is never counted as zero: a sum reports how many of its tokens were estimated and how many have no
known cost.
"""

from __future__ import annotations

import msgspec

NANO_USD = 1_000_000_000


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one call, or a sum over calls; `cost` is in billionths of a US dollar, `cost_usd` in dollars.

    A cost of None is unknown. In a sum, `cost` covers the calls with a known price, and `unpriced` counts the tokens of
    the others. `estimated` tokens were counted by holdfast because the reply reported no usage.
    """

    input: int = 0
    cached_input: int = 0
    cache_write: int = 0
    output: int = 0
    reasoning: int = 0
    cost: int | None = None
    model: str | None = None
    unpriced: int = 0
    estimated: int = 0

    @classmethod
    def estimate(cls, input: int, output: int = 0) -> Usage:
        """Return an estimated usage, for a call whose reply reported none."""
        return cls(input=input, output=output, estimated=input + output)

    @property
    def spent(self) -> int:
        """Tokens that count against a budget."""
        return self.input + self.output

    @property
    def cost_usd(self) -> float | None:
        """The known cost in US dollars, for display; add up `cost` instead, which is exact."""
        return None if self.cost is None else self.cost / NANO_USD

    @property
    def cost_known(self) -> bool:
        """True if `cost` covers all tokens."""
        return not self.unpriced_tokens

    @property
    def unpriced_tokens(self) -> int:
        """Tokens whose cost is unknown: for one call all or none, for a sum possibly some."""
        return self.unpriced or (self.spent if self.cost is None else 0)

    def __add__(self, other: Usage) -> Usage:
        if NO_USAGE in (self, other):  # Adding an empty usage keeps everything, including the model's name.
            return self if other == NO_USAGE else other
        unpriced = 0
        for one in (self, other):  # As `unpriced_tokens` has it, without the calls: sums are made in each fold.
            unpriced += one.unpriced or (one.input + one.output if one.cost is None else 0)
        cost = None if self.cost is None and other.cost is None else (self.cost or 0) + (other.cost or 0)
        return Usage(
            input=self.input + other.input,
            cached_input=self.cached_input + other.cached_input,
            cache_write=self.cache_write + other.cache_write,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            cost=None if unpriced and not cost else cost,
            model=self.model if self.model == other.model else None,
            unpriced=unpriced,
            estimated=self.estimated + other.estimated,
        )


NO_USAGE = Usage()


def sum_usage(*, cost: int | None, unpriced: int, **amounts: int | str | None) -> Usage:
    """Return a sum of calls. If the only known cost is 0 and some tokens are unpriced, the cost is unknown."""
    return Usage(cost=None if unpriced and not cost else cost, unpriced=unpriced, **amounts)  # type: ignore[arg-type]

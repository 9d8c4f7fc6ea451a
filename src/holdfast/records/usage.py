"""What a model call used. Input plus output is what spends a budget.

What is not known is never taken for nothing: a sum says how many of its tokens were only estimated, and how many have
no known cost.
"""

from __future__ import annotations

import msgspec

NANO_USD = 1_000_000_000


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of one call, or of many added up; `cost` is in billionths of a US dollar, `cost_usd` in dollars.

    A cost of None is not known. In a sum `cost` is of what is known, and `unpriced` is the number of tokens that it
    says nothing about. `estimated` tokens were counted here, because whoever gave the reply did not say what it used.
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
        """What a call is taken to have used that said nothing of it."""
        return cls(input=input, output=output, estimated=input + output)

    @property
    def spent(self) -> int:
        """Tokens that count against a budget."""
        return self.input + self.output

    @property
    def cost_usd(self) -> float | None:
        """What is known of the cost, in US dollars, to be shown; `cost` is what adds up without loss."""
        return None if self.cost is None else self.cost / NANO_USD

    @property
    def cost_known(self) -> bool:
        """Whether `cost` is of all that was used."""
        return not self.unpriced_tokens

    @property
    def unpriced_tokens(self) -> int:
        """Tokens whose cost is not known: of one call all or none, of a sum perhaps some."""
        return self.unpriced or (self.spent if self.cost is None else 0)

    def __add__(self, other: Usage) -> Usage:
        if _NOTHING in (self, other):  # Adding nothing loses nothing, such as the model's name.
            return self if other == _NOTHING else other
        return summed(
            input=self.input + other.input,
            cached_input=self.cached_input + other.cached_input,
            cache_write=self.cache_write + other.cache_write,
            output=self.output + other.output,
            reasoning=self.reasoning + other.reasoning,
            cost=None if self.cost is None and other.cost is None else (self.cost or 0) + (other.cost or 0),
            model=self.model if self.model == other.model else None,
            unpriced=self.unpriced_tokens + other.unpriced_tokens,
            estimated=self.estimated + other.estimated,
        )


_NOTHING = Usage()


def summed(*, cost: int | None, unpriced: int, **amounts: int | str | None) -> Usage:
    """A sum of calls. Where no cost but 0 is known and something has no price, nothing is known of the cost."""
    return Usage(cost=None if unpriced and not cost else cost, unpriced=unpriced, **amounts)  # type: ignore[arg-type]

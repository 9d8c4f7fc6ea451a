"""What the calls of a turn use, and whether its model may be called once more. What cannot be counted is not spent on.

What calls cost is in the journal, so a turn that was taken up again has spent what it spent before. A reply that does
not say what it used has used something all the same: what was shown and said is counted here, and marked as estimated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from holdfast.core.counting import framing_of, message_tokens
from holdfast.errors import InsufficientTokens
from holdfast.flow.conversation.conversing import counting
from holdfast.flow.stack.pricing import is_reported
from holdfast.flow.turn.limits import check_cost, outcomes
from holdfast.ports import Acting, Ports
from holdfast.records.messages import Message
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.client.turn import Turn


class OverBudget(InsufficientTokens):
    """A turn of which nobody knows what it cost: it ends."""


def used_by(
    ports: Ports, acting: Acting, line: str, shown: int, message: Message, usage: Usage | int | None
) -> Usage | int:
    """What a reply says that it used, or whoever got it; else what its model was shown and what it said, counted."""
    said = message.usage if usage is None else usage
    if isinstance(said, int) or (said is not None and (is_reported(said) or said.cost is not None)):
        return said
    tokenizer, info = counting(ports, acting, line)
    return Usage.estimate(shown, message_tokens(message, tokenizer.count, framing_of(info.provider, info.name)))


class Spending:
    """What one turn has cost, against what it may cost in billionths of a US dollar."""

    def __init__(self, turn: Turn, budget_nano: int) -> None:
        self._turn, self._budget = turn, budget_nano
        self._read: int | None = None
        """How far the journal was looked through."""

    def check(self) -> None:
        """Refuse to call the model again."""
        why = self._unknown()
        if why is not None:
            raise OverBudget(why)
        check_cost(self._turn.usage, self._budget)

    def _unknown(self) -> str | None:
        """A call of which nobody can say what it cost."""
        turn = self._turn
        ports, acting, place = turn._ports, turn._acting, turn._place
        for event in outcomes(ports, acting, place, after=self._read):
            why = self._why(event.type, event.facts) if event.facts.frame == turn.id else None
            if why is not None:
                return why
            self._read = event.version
        return None

    def _why(self, type: str, facts: Any) -> str | None:
        usage: Usage = facts.usage
        if usage.cost is not None:
            return None
        model = usage.model or self._turn._model.name or "its model"
        if is_reported(usage) and not usage.estimated:
            return f"no price is known for {model}; give one with holdfast.open(prices=…) or holdfast.register_price."
        if type == "model.failed":  # Most that fail are not paid for, and say nothing.
            return None
        return f"{model} did not report what it used, so what it costs is not known; give its replies a usage."

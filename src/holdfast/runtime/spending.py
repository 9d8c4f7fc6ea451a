"""Money of a turn: whether its model may be called once more. What cannot be counted is not spent on.

What calls cost is in the journal, so a turn that was taken up again has spent what it spent before.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.client.turn import Turn
from holdfast.core.codec import decode_event
from holdfast.flow.stack.pricing import is_reported
from holdfast.flow.stack.showing import current
from holdfast.records.reports import Query
from holdfast.records.usage import Usage

CALLS = ("model.responded", "model.failed")


class Spending:
    """What one turn has cost, against what it may cost in billionths of a US dollar."""

    def __init__(self, turn: Turn, model: str, budget_nano: int) -> None:
        self._turn, self._model, self._budget = turn, model, budget_nano
        self._read: int | None = None
        """How far the journal was looked through."""

    def refusal(self) -> str | None:
        """Why the model may not be called again; None if it may."""
        unknown = self._unknown()
        if unknown is not None:
            return unknown
        spent = self._turn.usage.cost or 0
        return "the turn has cost what it may cost." if spent >= self._budget else None

    def _unknown(self) -> str | None:
        """A call of which nobody can say what it cost."""
        turn = self._turn
        if self._read is None:
            self._read = current(turn._ports, turn._acting, turn._turn.actor).frames[turn.id].pushed
        query = Query(tenant=turn._acting.tenant, stream=turn._turn.actor, after=self._read, types=CALLS, limit=256)
        while page := turn._ports.journal.read(query):
            for event in map(decode_event, page):
                why = self._why(event.type, event.facts) if event.facts.frame == turn.id else None
                if why is not None:
                    return why
            self._read = page[-1].version
            query = replace(query, after=self._read)
        return None

    def _why(self, type: str, facts: Any) -> str | None:
        usage: Usage = facts.usage
        if usage.cost is not None:
            return None
        if is_reported(usage):
            return (
                f"no price is known for {usage.model or self._model}; give one with holdfast.open(prices=…) or "
                "holdfast.register_price."
            )
        if type == "model.failed":  # Most that fail are not paid for, and say nothing.
            return None
        return f"{self._model} did not report what it used, so what it costs is not known; give its replies a usage."

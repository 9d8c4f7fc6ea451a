"""What a turn may still do. One that can only stop takes no more messages: they would never be answered."""

from __future__ import annotations

import msgspec

from holdfast.core.codec import decode_event
from holdfast.core.decide.budgets import check_can_spend
from holdfast.core.decide.calls import check_working
from holdfast.errors import (
    DeadlineExceeded,
    InsufficientTokens,
    LimitExceeded,
    MaxDepthExceeded,
    ToolCallLimitExceeded,
)
from holdfast.flow.context import packed
from holdfast.flow.stack.showing import current
from holdfast.flow.turn import turns
from holdfast.flow.turn.writing import Place
from holdfast.ports import Acting, Ports
from holdfast.records.reports import Query

FAILURES = 25
"""Model calls of one turn that may fail in a row, each time that it is taken up, before it is given up."""
OUTCOMES = ("model.failed", "model.responded")


class FailsAlways(LimitExceeded):
    """A model that fails however often it is called: the turn ends."""


REASONS = {
    ToolCallLimitExceeded: "tool_calls",
    DeadlineExceeded: "deadline",
    InsufficientTokens: "budget",
    MaxDepthExceeded: "depth",
    FailsAlways: "model",
}


def reason_of(error: LimitExceeded) -> str:
    """Why a turn is stopped, in one word and then in a sentence."""
    return f"{next((why for kind, why in REASONS.items() if isinstance(error, kind)), 'loops')}: {error}"


class Tally(msgspec.Struct, frozen=True):
    """Model calls of a turn."""

    made: int
    """Those that count: a model that is away costs no loops."""
    in_a_row: int
    """How many of the newest ones failed."""


def tallied(ports: Ports, acting: Acting, turn: Place) -> Tally:
    """The model calls of a turn, from the journal."""
    made = 0
    for event in packed.journaled(ports, acting, turn.line):
        if event.version < turn.started:
            break
        made += event.facts.frame == turn.frame
    failed, in_a_row = _failures(ports, acting, turn)
    return Tally(max(made - failed, 0), in_a_row)


def _failures(ports: Ports, acting: Acting, turn: Place) -> tuple[int, int]:
    begun = current(ports, acting, turn.actor).frames[turn.frame].pushed
    query = Query(tenant=acting.tenant, stream=turn.actor, after=begun, types=OUTCOMES, limit=256)
    failed = in_a_row = 0
    while page := ports.journal.read(query):
        for event in map(decode_event, page):
            if event.facts.frame == turn.frame:
                again = event.type == "model.failed" and event.facts.retryable
                failed, in_a_row = failed + again, in_a_row + 1 if again else 0
        query = msgspec.structs.replace(query, after=page[-1].version)
    return failed, in_a_row


def check_loops(made: int, loops: int) -> None:
    """Refuse one more model call."""
    if made >= loops:
        raise LimitExceeded(f"The model was called {made} times in this turn, and may be {loops} times.")


def check_not_failing(tally: Tally) -> None:
    """Give up a model that does nothing but fail: else those who recover turns would pay for it for ever."""
    if tally.in_a_row >= FAILURES:
        raise FailsAlways(f"failed {tally.in_a_row} times in a row. Say something to try again.")


def why_spent(ports: Ports, acting: Acting, turn: Place, loops: int | None) -> str | None:
    """Why a turn whose model is to be called next can only be stopped; None if it can go on."""
    view = turns.look(ports, acting, turn)
    if view is None or view.step.next != "model":
        return None
    try:
        state = current(ports, acting, turn.actor)
        check_can_spend(check_working(state, turn.frame, ports.clock.now_ms()))
        tally = tallied(ports, acting, turn)
        check_not_failing(tally)
        if loops is not None:
            check_loops(tally.made, loops)
    except LimitExceeded as error:
        return reason_of(error)
    return None

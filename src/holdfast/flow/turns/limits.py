"""The limits of a turn: model calls, tokens, cost and failures in a row, and how a turn that has reached one ends.

A turn that has exhausted a limit can only be stopped. It takes no more messages: they would never be answered. Costs
are in the journal, so a continued turn has spent what it spent before.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.core.frames.budgets import check_can_spend
from holdfast.core.frames.calls import begin_call, check_can_work
from holdfast.core.journal.codec import decode_event
from holdfast.errors import (
    DeadlineExceeded,
    FrameEnded,
    InsufficientTokens,
    InvalidValue,
    LimitExceeded,
    MaxDepthExceeded,
    ToolCallLimitExceeded,
)
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal.read import iterate_stored
from holdfast.flow.packs import manifest
from holdfast.flow.turns import turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.ports import Env
from holdfast.records.events.calls import ToolRequested
from holdfast.records.events.envelope import Event
from holdfast.records.recovery import StopCode
from holdfast.records.reports import EventQuery
from holdfast.records.usage import Usage

LOOPS = 25
"""The default number of model calls of one turn."""
MAX_FAILURES = 25
"""The consecutive failures of a turn's model calls after which the turn is given up."""
MENDABLE_KINDS = frozenset({"unauthorised", "unknown_model", "quota"})
"""Failures that an operator can mend: the turn waits for that, and is not given up."""
OUTCOME_TYPES = ("model.failed", "model.responded")


def check_bounds(budget: object, loops: object) -> None:
    """Refuse amounts that make no sense, before anything is said."""
    if budget is not None and (type(budget) is not int or budget < 1):
        raise InvalidValue(f"budget must be a whole number of tokens for each pack, 1 or more, not {budget!r:.40}.")
    if type(loops) is not int or loops < 1:
        raise InvalidValue(f"loops must be a number of model calls, at least 1, not {loops!r:.40}.")


class ModelLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of a turn's model calls."""

    loops: int = LOOPS
    budget: int | None = None
    """The most tokens of each pack."""
    cost: int | None = None
    """The most that all calls may cost, in billionths of a US dollar."""


class UnknownCost(InsufficientTokens):
    """The cost of a turn is unknown, so the turn ends."""


class ModelFailureLimit(LimitExceeded):
    """The model fails however often it is called: the turn ends."""


LIMIT_CODES: dict[type[LimitExceeded], StopCode] = {
    ToolCallLimitExceeded: "tool_calls",
    DeadlineExceeded: "deadline",
    InsufficientTokens: "budget",
    MaxDepthExceeded: "depth",
    ModelFailureLimit: "model",
}


ForcedEnd = tuple[str, str, StopCode | None]
"""The reason, final status and code of a turn that can only be stopped."""


def describe_limit(error: LimitExceeded) -> ForcedEnd:
    """Return the end of a turn that has reached a limit. The reason is the code, then a sentence."""
    code: StopCode = next((code for kind, code in LIMIT_CODES.items() if isinstance(error, kind)), "loops")
    return f"{code}: {error}", "failed", code


class ModelCallTally(msgspec.Struct, frozen=True):
    """Counts of a turn's model calls."""

    made: int
    """Calls that count towards the limit: retryable failures cost no loops."""
    in_a_row: int
    """Consecutive failures among the newest calls, without those that an operator can mend."""


def tally_model_calls(env: Env, turn: TurnPlace) -> ModelCallTally:
    """Count a turn's model calls, from the journal."""
    made = 0
    for event in manifest.iter_packs(env, turn.thread):
        if event.version < turn.started:
            break
        made += event.facts.frame == turn.frame
    failed, in_a_row = _count_failures(env, turn)
    return ModelCallTally(max(made - failed, 0), in_a_row)


def _count_failures(env: Env, turn: TurnPlace) -> tuple[int, int]:
    failed = in_a_row = 0
    for event in read_model_outcomes(env, turn):
        if event.facts.frame == turn.frame:
            again = event.type == "model.failed" and event.facts.retryable
            counts = again and event.facts.error not in MENDABLE_KINDS
            failed, in_a_row = failed + again, in_a_row + counts if again else 0
    return failed, in_a_row


def read_model_outcomes(env: Env, turn: TurnPlace, *, after: int | None = None) -> Iterator[Event]:
    """Yield the outcomes of model calls in a turn's stream, since the turn began or after a version."""
    if after is None:
        frame = load_current_state(env, turn.actor).frames.get(turn.frame)
        if frame is None:
            raise FrameEnded(f"Turn {turn.frame} has ended meanwhile.")
        after = frame.pushed
    query = EventQuery(tenant=env.tenant, stream=turn.actor, after=after, types=OUTCOME_TYPES, limit=256)
    yield from map(decode_event, iterate_stored(env.journal, query))


def check_tally(tally: ModelCallTally, loops: int | None) -> None:
    """Refuse a model call beyond the limit, or if the model only fails: recovering agents would pay for it for ever."""
    if tally.in_a_row >= MAX_FAILURES:
        raise ModelFailureLimit(f"failed {tally.in_a_row} times in a row. Send a message to try again.")
    if loops is not None and tally.made >= loops:
        raise LimitExceeded(f"The model was called {tally.made} times in this turn; the limit is {loops}.")


def check_cost(usage: Usage, most: int | None) -> None:
    """Refuse to go on once the cost limit is reached, in billionths of a US dollar."""
    if most is not None and (usage.cost or 0) >= most:
        raise InsufficientTokens("the turn has reached its cost limit.")


def find_exhausted_limit(env: Env, turn: TurnPlace, loops: int | None, cost: int | None) -> ForcedEnd | None:
    """Return the end of a turn without a worker that can only be stopped; None if it can go on or waits."""
    try:
        with env.journal.snapshot():  # Another process may take and end the turn at any time.
            _check_next_step(env, turn, loops, cost)
    except LimitExceeded as error:
        return describe_limit(error)
    return None


def _check_next_step(env: Env, turn: TurnPlace, loops: int | None, cost: int | None) -> None:
    """Apply the checks of a turn's next step; nothing is begun."""
    view = turns.read_turn(env, turn)
    state, now = load_current_state(env, turn.actor), env.clock.now_ms()
    if view is not None and view.step.next == "model":
        frame = check_can_work(state, turn.frame, now)
        check_can_spend(frame)
        check_cost(frame.usage, cost)
        check_tally(tally_model_calls(env, turn), loops)
    elif view is not None and view.step.next == "tools" and all(tool.next == "begin" for tool in view.step.tools):
        call = view.step.tools[0].call
        if call not in state.frames:
            begin_call(state, ToolRequested(call=call, frame=turn.frame, name="tool"), None, now)

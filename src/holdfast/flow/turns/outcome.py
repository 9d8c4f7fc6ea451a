"""The messages, outcome and limits of a turn, read from the journal, whichever process ran it.

A turn that has exhausted a limit can only be stopped. It takes no more messages: they would never be answered.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from holdfast.core.frames import calls
from holdfast.core.frames.budgets import check_can_spend
from holdfast.core.frames.calls import check_can_work
from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.load import row_usage
from holdfast.errors import (
    DeadlineExceeded,
    FrameEnded,
    InsufficientTokens,
    LimitExceeded,
    MaxDepthExceeded,
    ToolCallLimitExceeded,
)
from holdfast.flow.frames import read as frame_read
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.packs import manifest
from holdfast.flow.sessions import read
from holdfast.flow.turns import turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.calls import REPLY
from holdfast.ports import Env
from holdfast.records.events.envelope import Event
from holdfast.records.ids import ulid_bytes
from holdfast.records.messages import Message
from holdfast.records.reports import EventQuery
from holdfast.records.usage import Usage


class TurnOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a turn."""

    completed: bool
    message: Message | None
    """The final reply; for a stopped turn, the model's last message."""
    reason: str | None
    """The reason it was stopped."""


def read_outcome(env: Env, turn: TurnPlace) -> TurnOutcome:
    """Return the outcome of an ended turn."""
    info = frame_read.read_frame(env, turn.frame)
    named = next((result.ref for result in reversed(info.results) if result.kind == REPLY), None)
    return TurnOutcome(
        completed=info.status == "completed",
        message=find_last_reply(env, turn) if named is None else _read_message(env, named),
        reason=info.error if isinstance(info.error, str) else None,
    )


def read_turn_usage(env: Env, turn: TurnPlace) -> Usage:
    """Return the usage of a turn's model calls so far. A turn that has ended has only its row."""
    live = load_current_state(env, turn.actor).frames.get(turn.frame)
    return live.usage if live is not None else row_usage(frame_read.find_frame_row(env, turn.frame)[1])


def find_last_reply(env: Env, turn: TurnPlace) -> Message | None:
    """Return the model's last message with text in a turn without a final reply, or None."""
    words = [message for message in read_turn_messages(env, turn) if message.role == "assistant" and message.text]
    return words[-1] if words else None


def read_turn_messages(env: Env, turn: TurnPlace) -> list[Message]:
    """Return the messages of a turn, oldest first."""
    found: list[Message] = []
    query = EventQuery(tenant=env.tenant, stream=turn.thread, after=turn.started - 1, types=read.MESSAGE_TYPES)
    while page := env.journal.read(query):
        for event in map(decode_event, page):
            (message,) = read.decode_messages(env, [event])
            if message.role == "user" and event.facts.frame not in (None, turn.frame):
                return found  # Another turn begins.
            if event.facts.frame == turn.frame or message.role == "user":
                found.append(message)  # Messages that others appended meanwhile are not this turn's.
        query = msgspec.structs.replace(query, after=page[-1].version)
    return found


def _read_message(env: Env, id: str) -> Message | None:
    stored = env.journal.event(env.tenant, ulid_bytes(id))
    return None if stored is None else read.read_message(env, stored, pinned=False)


MAX_FAILURES = 25
"""The consecutive failures of a turn's model calls after which the turn is given up."""
OUTCOME_TYPES = ("model.failed", "model.responded")


class ModelFailureLimit(LimitExceeded):
    """The model fails however often it is called: the turn ends."""


LIMIT_REASONS = {
    ToolCallLimitExceeded: "tool_calls",
    DeadlineExceeded: "deadline",
    InsufficientTokens: "budget",
    MaxDepthExceeded: "depth",
    ModelFailureLimit: "model",
}


def describe_limit(error: LimitExceeded) -> str:
    """Return why a turn is stopped: one word, then a sentence."""
    return f"{next((why for kind, why in LIMIT_REASONS.items() if isinstance(error, kind)), 'loops')}: {error}"


class ModelCallTally(msgspec.Struct, frozen=True):
    """Counts of a turn's model calls."""

    made: int
    """Calls that count towards the limit: retryable failures cost no loops."""
    in_a_row: int
    """Consecutive failures among the newest calls."""


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
            failed, in_a_row = failed + again, in_a_row + 1 if again else 0
    return failed, in_a_row


def read_model_outcomes(env: Env, turn: TurnPlace, *, after: int | None = None) -> Iterator[Event]:
    """Yield the outcomes of model calls in a turn's stream, since the turn began or after a version."""
    if after is None:
        frame = load_current_state(env, turn.actor).frames.get(turn.frame)
        if frame is None:
            raise FrameEnded(f"Turn {turn.frame} has ended meanwhile.")
        after = frame.pushed
    query = EventQuery(tenant=env.tenant, stream=turn.actor, after=after, types=OUTCOME_TYPES, limit=256)
    while page := env.journal.read(query):
        yield from map(decode_event, page)
        query = msgspec.structs.replace(query, after=page[-1].version)


def check_loops(made: int, loops: int) -> None:
    """Refuse a model call beyond the limit."""
    if made >= loops:
        raise LimitExceeded(f"The model was called {made} times in this turn; the limit is {loops}.")


def check_not_failing(tally: ModelCallTally) -> None:
    """Give up a model that only fails; otherwise recovering agents would pay for the turn for ever."""
    if tally.in_a_row >= MAX_FAILURES:
        raise ModelFailureLimit(f"failed {tally.in_a_row} times in a row. Send a message to try again.")


def check_cost(usage: Usage, most: int | None) -> None:
    """Refuse to go on once the cost limit is reached, in billionths of a US dollar."""
    if most is not None and (usage.cost or 0) >= most:
        raise InsufficientTokens("the turn has reached its cost limit.")


def find_exhausted_limit(env: Env, turn: TurnPlace, loops: int | None, cost: int | None) -> str | None:
    """Return why a turn without a worker can only be stopped; None if it can go on or waits for a person."""
    with env.journal.snapshot():  # Another process may take and end the turn at any time.
        return _find_exhausted_limit(env, turn, loops, cost)


def _find_exhausted_limit(env: Env, turn: TurnPlace, loops: int | None, cost: int | None) -> str | None:
    view = turns.read_turn(env, turn)
    if view is None:
        return None
    try:
        if view.step.next == "model":
            _check_model(env, turn, loops, cost)
        elif view.step.next == "tools" and all(tool.next == "begin" for tool in view.step.tools):
            _check_tool(env, turn, view.step.tools[0].call)
    except LimitExceeded as error:
        return describe_limit(error)
    return None


def _check_model(env: Env, turn: TurnPlace, loops: int | None, cost: int | None) -> None:
    frame = check_can_work(load_current_state(env, turn.actor), turn.frame, env.clock.now_ms())
    check_can_spend(frame)
    check_cost(frame.usage, cost)
    tally = tally_model_calls(env, turn)
    check_not_failing(tally)
    if loops is not None:
        check_loops(tally.made, loops)


def _check_tool(env: Env, turn: TurnPlace, call: str) -> None:
    """Apply the checks of beginning the call; nothing is begun."""
    state, now = load_current_state(env, turn.actor), env.clock.now_ms()
    if call not in state.frames:
        calls.begin_tool(state, turn.frame, call, "tool", if_interrupted="ask", content=None, now=now)

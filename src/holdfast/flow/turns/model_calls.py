"""A turn's model calls: their context, their count, their usage, and the limits of all of them.

A turn that has exhausted a limit can only be stopped. It takes no more messages: they would never be answered. Costs
are in the journal, so a continued turn has spent what it spent before. A turn whose cost cannot be known calls no
model again. A reply that reports no usage is counted from its pack and its text, and marked as estimated.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.core.frames.budgets import check_can_spend
from holdfast.core.frames.calls import begin_call, check_can_work
from holdfast.core.journal.codec import decode_event
from holdfast.core.packs.manifest import compute_digest
from holdfast.core.sessions.tokens import framing_of, message_tokens
from holdfast.errors import (
    DeadlineExceeded,
    FrameEnded,
    InsufficientTokens,
    InvalidValue,
    LimitExceeded,
    MaxDepthExceeded,
    ToolCallLimitExceeded,
)
from holdfast.flow.compaction import rules
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.journal.read import iterate_stored
from holdfast.flow.packs import manifest, pack, visibility
from holdfast.flow.packs.manifest import PackOutdated
from holdfast.flow.packs.visibility import PackRequest
from holdfast.flow.sessions.append import is_reported, thread_tokenizer
from holdfast.flow.sessions.read import session_stream, thread_state
from holdfast.flow.turns import turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.calls import TurnModelCall
from holdfast.flow.turns.turns import TurnView
from holdfast.ports import Env
from holdfast.records.events.calls import ToolRequested
from holdfast.records.events.envelope import Event
from holdfast.records.messages import Message
from holdfast.records.packs import AssembledPack
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


def read_model_name(env: Env, place: TurnPlace) -> str:
    """Return the model of a turn's conversation; empty if none was named."""
    session = load_current_state(env, session_stream(place.thread)).session
    return "" if session is None or session.model is None else session.model


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


class ModelCallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a model call that is about to begin."""

    model: str
    newest: int
    """The version of the newest message that the pack was made from."""
    packed: AssembledPack


def has_unanswered_message(view: TurnView) -> bool:
    """Return True if a message came while the last reply was written: no provider accepts that as a question."""
    last = view.tail[-1] if view.tail else None
    return last is not None and last.role == "assistant" and not last.tool_calls


class TurnModelCalls:
    """The model calls of one turn."""

    def __init__(self, env: Env, place: TurnPlace, limits: ModelLimits, *, new: bool) -> None:
        self._env, self._place, self._limits = env, place, limits
        self._checked: int | None = None
        """The version up to which the costs in the journal were checked."""
        self._tally = ModelCallTally(0, 0) if new else None
        """Calls so far; None until they are counted."""

    def can_build_now(self, view: TurnView) -> bool:
        """Return True if a model call is next and its context can be read from the journal alone.

        No snapshot of the journal is held while a web page, an embedder or telemetry is awaited.
        """
        if view.step.next != "model" or view.step.call is not None or view.unwanted or has_unanswered_message(view):
            return False
        fetched = view.frame.handles or rules.recall_settings(self._env, self._place.thread)[0]
        return not fetched and self._env.telemetry is None

    def begin(self, context: ModelCallContext | None) -> TurnModelCall:
        """Journal the beginning of a call; if messages arrive meanwhile, include them and try again."""
        env, context, compacted = self._env, context or self.build_context(), False
        while True:
            packed = context.packed
            fired = rules.fire_rules(env, packed.metadata.scope, packed=packed)
            if not compacted and any(one.made for one in fired):
                # This call is shown what its rule compacted.
                context, compacted = self.build_context(), True
                continue
            digest = compute_digest(env.journal.secret, env.tenant, packed)
            how: Any = {"frame": self._place.frame, "model": context.model or None, "newest": context.newest}
            try:
                call = manifest.begin_call(env, packed, digest, **how)
            except PackOutdated:
                context = self.build_context()
                continue
            self.update_tally(made=1)
            return TurnModelCall(call, packed, context.model, digest)

    def build_context(self) -> ModelCallContext:
        """Build the context of one more call, from everything said by now."""
        self.check_loops()
        env, place = self._env, self._place
        newest = thread_state(env, place.thread).newest
        seen = visibility.frame_visibility(env, place.frame, turn=place.started)
        packed = pack.build_pack(env, seen, PackRequest(budget=self._limits.budget))
        return ModelCallContext(model=read_model_name(env, place), newest=newest, packed=packed)

    def check_loops(self) -> None:
        """Refuse one more call if the limit is reached. The journal is read once; later calls are counted here."""
        if self._tally is None:
            self._tally = tally_model_calls(self._env, self._place)
        check_tally(self._tally, self._limits.loops)

    def check_cost(self) -> None:
        """Refuse another model call if the cost so far is unknown or at its limit; costs are read once."""
        why = self._find_unknown_cost()
        if why is not None:
            raise UnknownCost(why)
        check_cost(turns.read_turn_usage(self._env, self._place), self._limits.cost)

    def _find_unknown_cost(self) -> str | None:
        """Find a call whose cost is unknown, and return the reason."""
        for event in read_model_outcomes(self._env, self._place, after=self._checked):
            own = event.facts.frame == self._place.frame
            why = self._explain_unknown_cost(event.type, event.facts.usage) if own else None
            if why is not None:
                return why
            self._checked = event.version
        return None

    def _explain_unknown_cost(self, type: str, usage: Usage) -> str | None:
        if usage.cost is not None:
            return None
        model = usage.model or read_model_name(self._env, self._place) or "its model"
        if is_reported(usage) and not usage.estimated:
            advice = "give one with holdfast.open(prices=…) or holdfast.models.register_price."
            return f"no price is known for {model}; {advice}"
        if type == "model.failed":  # Most failed calls are not billed, and report nothing.
            return None
        return f"{model} did not report what it used, so what it costs is not known; give its replies a usage."

    def update_tally(self, *, made: int = 0, in_a_row: int | None = None) -> None:
        """Update the tally. No-op until it is loaded: the first load reads these calls from the journal."""
        if self._tally is not None:
            row = self._tally.in_a_row if in_a_row is None else in_a_row
            self._tally = ModelCallTally(max(self._tally.made + made, 0), row)

    def note_failure(self) -> None:
        """Note a failure that costs no loop: an unavailable model is given up eventually."""
        self.update_tally(made=-1, in_a_row=1 + (0 if self._tally is None else self._tally.in_a_row))


def reply_usage(env: Env, thread: str, shown: int, message: Message, usage: Usage | int | None) -> Usage | int:
    """Return the usage that the caller or the reply reports; else an estimate from the pack and the reply."""
    said = message.usage if usage is None else usage
    if isinstance(said, int) or (said is not None and (is_reported(said) or said.cost is not None)):
        return said
    tokenizer, info = thread_tokenizer(env, thread)
    return Usage.estimate(shown, message_tokens(message, tokenizer.count, framing_of(info.provider, info.name)))

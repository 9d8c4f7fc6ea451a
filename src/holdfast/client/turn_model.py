"""A turn's model calls: their context, replies and failures, and what they use and cost.

Costs are in the journal, so a continued turn has spent what it spent before. A reply that reports no usage is counted
from its pack and its text, and marked as estimated. A turn whose cost cannot be known calls no model again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client import pack as client_pack
from holdfast.client.pack import ContextPack
from holdfast.client.steps import CallModel, Done
from holdfast.core.checks import is_number
from holdfast.core.frames import budgets
from holdfast.core.sessions.tokens import framing_of, message_tokens
from holdfast.errors import InsufficientTokens, InvalidValue
from holdfast.flow.compaction import rules
from holdfast.flow.frames import calls
from holdfast.flow.frames import read as frame_read
from holdfast.flow.frames.calls import add_cost, is_reported
from holdfast.flow.packs.manifest import PackOutdated
from holdfast.flow.sessions import read
from holdfast.flow.sessions.append import thread_tokenizer
from holdfast.flow.turns import calls as turn_calls
from holdfast.flow.turns import outcome, turns
from holdfast.flow.turns.append import ConversationOver
from holdfast.flow.turns.outcome import check_cost, read_model_outcomes
from holdfast.flow.turns.turns import TurnView
from holdfast.ports import Env
from holdfast.records.messages import Message
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.client.turn import Turn

LOOPS = 25
"""The default number of model calls of one turn."""
UNSEEN_NOTICE = "[The message above came while this reply was written. Answer it now.]"


class ModelCallContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a model call that is about to begin."""

    model: str
    newest: int
    """The version of the newest message that the pack was made from."""
    pack: ContextPack


def check_bounds(budget: object, loops: object) -> None:
    """Refuse amounts that make no sense, before anything is said."""
    if budget is not None and not is_number(budget, least=1):
        raise InvalidValue(f"budget must be a whole number of tokens for each pack, 1 or more, not {budget!r:.40}.")
    if not is_number(loops, least=1):
        raise InvalidValue(f"loops must be a number of model calls, at least 1, not {loops!r:.40}.")


def _add_finish(message: Message, finish: str | None) -> Message:
    """Add the finish reason to a reply, so that later readers know it as well."""
    if not isinstance(finish, str) or not finish or finish == message.finish:
        return message
    return msgspec.structs.replace(message, metadata={**(message.metadata or {}), "finish": finish})


def _has_unanswered_message(view: TurnView) -> bool:
    """Return True if a message came while the last reply was written: no provider accepts that as a question."""
    last = view.tail[-1] if view.tail else None
    return last is not None and last.role == "assistant" and not last.tool_calls


class TurnModelCalls:
    """The model calls of one turn."""

    def __init__(self, turn: Turn, *, loops: int, budget: int | None, budget_usd: float | None) -> None:
        check_bounds(budget, loops)
        self._turn, self._loops, self._budget = turn, loops, budget
        self._env = turn._env
        self._spending = None if budget_usd is None else TurnCost(turn, budgets.to_nano_usd(budget_usd, "budget_usd"))
        self._tally: outcome.ModelCallTally | None = None
        """Calls so far; None until they are counted."""

    @property
    def name(self) -> str:
        """The model of the conversation; empty if none was named."""
        session = frame_read.load_current_state(self._env, read.session_stream(self._turn._place.thread)).session
        return "" if session is None or session.model is None else session.model

    def can_build_now(self, view: TurnView) -> bool:
        """Return True if a model call is next and its context can be read from the journal alone.

        No snapshot of the journal is held while a web page, an embedder or telemetry is awaited.
        """
        if view.step.next != "model" or view.step.call is not None or view.unwanted or _has_unanswered_message(view):
            return False
        fetched = view.frame.handles or rules.recall_settings(self._env, self._turn._place.thread)[0]
        return not fetched and self._env.telemetry is None

    def begin(self, view: TurnView, shown: ModelCallContext | None) -> CallModel:
        """Begin the next model call with its context, or repeat a call that was begun before."""
        if self._spending is not None:
            self._spending.check()
        if view.step.call is not None:
            # An earlier process may have sent it: repeat the same call, with the pack that was shown then.
            call = view.step.call
            pack = client_pack.pack_at(self._env, call.id)
            return self._turn._hand_out(call.id, CallModel(self._turn, call.id, pack, call.name or "", repeated=True))
        if _has_unanswered_message(view):
            self._check_loops()
            self._turn.append(Message(role="user", content=UNSEEN_NOTICE, synthetic=True))
        call_id, shown = self._begin_call(shown or self.build_context())
        self._update_tally(made=1)
        self._turn._remember_pack()
        return self._turn._hand_out(call_id, CallModel(self._turn, call_id, shown.pack, shown.model, repeated=False))

    def build_context(self) -> ModelCallContext:
        """Build the context of one more call, from everything said by now."""
        self._check_loops()
        newest = read.thread_state(self._env, self._turn._place.thread).newest
        pack = client_pack.pack_turn(self._env, self._turn.id, self._turn._place.started, self._budget)
        return ModelCallContext(model=self.name, newest=newest, pack=pack)

    def _begin_call(self, shown: ModelCallContext) -> tuple[str, ModelCallContext]:
        """Begin a call; if messages arrive meanwhile, include them and try again."""
        while True:
            how: Any = {"frame": self._turn.id, "model": shown.model or None, "newest": shown.newest}
            try:
                return client_pack.begin_packed_call(self._env, shown.pack, **how), shown
            except PackOutdated:
                shown = self.build_context()

    def _check_loops(self) -> None:
        """Refuse one more call if the limit is reached. The journal is read once; later calls are counted here."""
        if self._tally is None and self._turn._opening.new:
            self._tally = outcome.ModelCallTally(0, 0)
        if self._tally is None:
            self._tally = outcome.tally_model_calls(self._env, self._turn._place)
        outcome.check_not_failing(self._tally)
        outcome.check_loops(self._tally.made, self._loops)

    def _update_tally(self, *, made: int = 0, in_a_row: int | None = None) -> None:
        """Update the tally. No-op until it is loaded: the first load reads these calls from the journal."""
        if self._tally is not None:
            row = self._tally.in_a_row if in_a_row is None else in_a_row
            self._tally = outcome.ModelCallTally(max(self._tally.made + made, 0), row)

    def end_call(self, step: CallModel, message: Message, usage: Usage | int | None, finish: str | None) -> Message:
        """Record a model's reply; the turn ends with it, unless it calls tools or is not acceptable."""
        turn, place = self._turn, self._turn._place
        turn._check_claimed()
        used = reply_usage(self._env, place.thread, step.pack.tokens, message, usage)
        message = _add_finish(message, finish)
        complaint = None if message.tool_calls else turn._accepts(message)
        try:
            said, turn._used = turn_calls.end_turn_model_call(
                self._env,
                place,
                step.call,
                message,
                model=step.model or step.pack.model,
                usage=used,
                finish=message.finish,
                doubtful=Usage.estimate(step.pack.tokens) if step.repeated else None,
                may_end=complaint is None,
                release=turn._epoch,
            )
        except ConversationOver:
            paid = add_cost(self._env, budgets.to_usage(used), message.model or step.model or None)
            turn._stop_turn(turns.CONVERSATION_ENDED, "cancelled", usage=paid)
            return message
        turn._words, step.answered = str, True
        self._update_tally(in_a_row=0)
        turn._remember_messages(said)
        turn._tools.settler.unbegun.update(call.id for call in said.tool_calls)
        if turn._used is not None:
            turn._note_end(Done(turn, "done", said))
        rules.fire_after_append(self._env, place.thread, [said])
        return said

    def fail_call(self, step: CallModel, error: str, retryable: bool, usage: Usage | int) -> None:
        """Record that a model gave no reply; the turn ends if calling it again cannot help."""
        turn = self._turn
        turn._check_claimed()
        record = add_cost(self._env, budgets.to_usage(usage), step.model or None)
        calls.end_model_call(self._env, turn.id, step.call, usage=record, error=error, retryable=retryable)
        turn._words = str
        if retryable:  # An unavailable model costs no loops, but is given up eventually.
            self._update_tally(made=-1, in_a_row=1 + (0 if self._tally is None else self._tally.in_a_row))
        else:
            turn._stop_turn(f"model: {error}", "failed")


class UnknownCost(InsufficientTokens):
    """The cost of a turn is unknown, so the turn ends."""


def reply_usage(env: Env, thread: str, shown: int, message: Message, usage: Usage | int | None) -> Usage | int:
    """Return the usage that the caller or the reply reports; else an estimate from the pack and the reply."""
    said = message.usage if usage is None else usage
    if isinstance(said, int) or (said is not None and (is_reported(said) or said.cost is not None)):
        return said
    tokenizer, info = thread_tokenizer(env, thread)
    return Usage.estimate(shown, message_tokens(message, tokenizer.count, framing_of(info.provider, info.name)))


class TurnCost:
    """The cost of one turn, checked against its limit in billionths of a US dollar."""

    def __init__(self, turn: Turn, budget_nano: int) -> None:
        self._turn, self._budget = turn, budget_nano
        self._read: int | None = None
        """The version up to which the journal was checked."""

    def check(self) -> None:
        """Refuse another model call if the cost is unknown or at its limit."""
        why = self._find_unknown_cost()
        if why is not None:
            raise UnknownCost(why)
        check_cost(self._turn.usage, self._budget)

    def _find_unknown_cost(self) -> str | None:
        """Find a call whose cost is unknown, and return the reason."""
        turn = self._turn
        env, place = turn._env, turn._place
        for event in read_model_outcomes(env, place, after=self._read):
            why = self._explain_unknown_cost(event.type, event.facts) if event.facts.frame == turn.id else None
            if why is not None:
                return why
            self._read = event.version
        return None

    def _explain_unknown_cost(self, type: str, facts: Any) -> str | None:
        usage: Usage = facts.usage
        if usage.cost is not None:
            return None
        model = usage.model or self._turn._model.name or "its model"
        if is_reported(usage) and not usage.estimated:
            given = "holdfast.open(prices=…) or holdfast.models.register_price"
            return f"no price is known for {model}; give one with {given}."
        if type == "model.failed":  # Most failed calls are not billed, and report nothing.
            return None
        return f"{model} did not report what it used, so what it costs is not known; give its replies a usage."

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
from holdfast.core.frames import budgets
from holdfast.core.sessions.tokens import framing_of, message_tokens
from holdfast.errors import InsufficientTokens, InvalidValue
from holdfast.flow.compaction import rules
from holdfast.flow.frames import calls
from holdfast.flow.frames import read as frame_read
from holdfast.flow.frames.calls import is_reported, priced
from holdfast.flow.packs.manifest import SaidMeanwhile
from holdfast.flow.sessions import read
from holdfast.flow.sessions.append import counting
from holdfast.flow.turns import calls as turn_calls
from holdfast.flow.turns import outcome, turns
from holdfast.flow.turns.append import ConversationOver
from holdfast.flow.turns.outcome import check_cost, outcomes
from holdfast.flow.turns.turns import View
from holdfast.ports import Acting, Ports
from holdfast.records.messages import Message
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.client.turn import Turn

LOOPS = 25
"""The default number of model calls of one turn."""
UNSEEN = "[The message above came while this reply was written. Answer it now.]"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """The context of a model call that is about to begin."""

    model: str
    newest: int
    """The version of the newest message that the pack was made from."""
    pack: ContextPack


def check_bounds(budget: object, loops: object) -> None:
    """Refuse amounts that make no sense, before anything is said."""
    if budget is not None and (type(budget) is not int or budget < 1):
        raise InvalidValue(f"budget must be a whole number of tokens for each pack, 1 or more, not {budget!r:.40}.")
    if type(loops) is not int or loops < 1:
        raise InvalidValue(f"loops must be a number of model calls, at least 1, not {loops!r:.40}.")


def _with_finish(message: Message, finish: str | None) -> Message:
    """Add the finish reason to a reply, so that later readers know it as well."""
    if not isinstance(finish, str) or not finish or finish == message.finish:
        return message
    return msgspec.structs.replace(message, metadata={**(message.metadata or {}), "finish": finish})


def _is_unanswered(view: View) -> bool:
    """Return True if a message came while the last reply was written: no provider accepts that as a question."""
    last = view.tail[-1] if view.tail else None
    return last is not None and last.role == "assistant" and not last.tool_calls


class ModelCalls:
    """The model calls of one turn."""

    def __init__(self, turn: Turn, *, loops: int, budget: int | None, budget_usd: float | None) -> None:
        check_bounds(budget, loops)
        self._turn, self._loops, self._budget = turn, loops, budget
        self._ports, self._acting = turn._ports, turn._acting
        self._spending = None if budget_usd is None else Spending(turn, budgets.nano_usd(budget_usd, "budget_usd"))
        self._tally: outcome.Tally | None = None
        """Calls so far; None until they are counted."""

    @property
    def name(self) -> str:
        """The model of the conversation; empty if none was named."""
        session = frame_read.current(self._ports, self._acting, read.session_of(self._turn._place.line)).session
        return "" if session is None or session.model is None else session.model

    def is_at_hand(self, view: View) -> bool:
        """Return True if a model call is next and its context can be read from the journal alone.

        No snapshot of the journal is held while a web page, an embedder or telemetry is awaited.
        """
        if view.step.next != "model" or view.step.call is not None or view.unwanted or _is_unanswered(view):
            return False
        fetched = view.frame.handles or rules.recall_of(self._ports, self._acting, self._turn._place.line)[0]
        return not fetched and self._ports.telemetry is None

    def begin(self, view: View, shown: Shown | None) -> CallModel:
        """Begin the next model call with its context, or repeat a call that was begun before."""
        if self._spending is not None:
            self._spending.check()
        if view.step.call is not None:
            # An earlier process may have sent it: repeat the same call, with the pack that was shown then.
            call = view.step.call
            pack = client_pack.pack_at(self._ports, self._acting, call.id)
            return self._turn._handed_out(call.id, CallModel(self._turn, call.id, pack, call.name or "", repeated=True))
        if _is_unanswered(view):
            self._count_loop()
            self._turn.append(Message(role="user", content=UNSEEN, synthetic=True))
        call_id, shown = self._begun(shown or self.shown())
        self._note(made=1)
        self._turn._learn_of_pack()
        return self._turn._handed_out(call_id, CallModel(self._turn, call_id, shown.pack, shown.model, repeated=False))

    def shown(self) -> Shown:
        """Build the context of one more call, from everything said by now."""
        self._count_loop()
        newest = read.line_of(self._ports, self._acting, self._turn._place.line).newest
        pack = client_pack.pack_turn(self._ports, self._acting, self._turn.id, self._turn._place.started, self._budget)
        return Shown(model=self.name, newest=newest, pack=pack)

    def _begun(self, shown: Shown) -> tuple[str, Shown]:
        """Begin a call; if messages arrive meanwhile, include them and try again."""
        while True:
            how: Any = {"frame": self._turn.id, "model": shown.model or None, "newest": shown.newest}
            try:
                return client_pack.begin_call(self._ports, self._acting, shown.pack, **how), shown
            except SaidMeanwhile:
                shown = self.shown()

    def _count_loop(self) -> None:
        """Refuse one more call if the limit is reached. The journal is read once; later calls are counted here."""
        if self._tally is None and self._turn._opening.new:
            self._tally = outcome.Tally(0, 0)
        if self._tally is None:
            self._tally = outcome.tallied(self._ports, self._acting, self._turn._place)
        outcome.check_not_failing(self._tally)
        outcome.check_loops(self._tally.made, self._loops)

    def _note(self, *, made: int = 0, in_a_row: int | None = None) -> None:
        """Update the tally. No-op until it is loaded: the first load reads these calls from the journal."""
        if self._tally is not None:
            row = self._tally.in_a_row if in_a_row is None else in_a_row
            self._tally = outcome.Tally(max(self._tally.made + made, 0), row)

    def done(self, step: CallModel, message: Message, usage: Usage | int | None, finish: str | None) -> Message:
        """Record a model's reply; the turn ends with it, unless it calls tools or is not acceptable."""
        turn, place = self._turn, self._turn._place
        turn._check_held()
        used = used_by(self._ports, self._acting, place.line, step.pack.tokens, message, usage)
        message = _with_finish(message, finish)
        complaint = None if message.tool_calls else turn._accepts(message)
        try:
            said, turn._used = turn_calls.end_model(
                self._ports,
                self._acting,
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
            paid = priced(self._ports, budgets.usage_of(used), message.model or step.model or None)
            turn._stop(turns.OVER, "cancelled", usage=paid)
            return message
        turn._words, step.answered = str, True
        self._note(in_a_row=0)
        turn._learn(said)
        turn._tools.settling.unbegun.update(call.id for call in said.tool_calls)
        if turn._used is not None:
            turn._left(Done(turn, "done", said))
        rules.after_append(self._ports, self._acting, place.line, [said])
        return said

    def failed(self, step: CallModel, error: str, retryable: bool, usage: Usage | int) -> None:
        """Record that a model gave no reply; the turn ends if calling it again cannot help."""
        turn = self._turn
        turn._check_held()
        record = priced(self._ports, budgets.usage_of(usage), step.model or None)
        calls.end_model(self._ports, self._acting, turn.id, step.call, usage=record, error=error, retryable=retryable)
        turn._words = str
        if retryable:  # An unavailable model costs no loops, but is given up eventually.
            self._note(made=-1, in_a_row=1 + (0 if self._tally is None else self._tally.in_a_row))
        else:
            turn._stop(f"model: {error}", "failed")


class OverBudget(InsufficientTokens):
    """The cost of a turn is unknown, so the turn ends."""


def used_by(
    ports: Ports, acting: Acting, line: str, shown: int, message: Message, usage: Usage | int | None
) -> Usage | int:
    """Return the usage that the caller or the reply reports; else an estimate from the pack and the reply."""
    said = message.usage if usage is None else usage
    if isinstance(said, int) or (said is not None and (is_reported(said) or said.cost is not None)):
        return said
    tokenizer, info = counting(ports, acting, line)
    return Usage.estimate(shown, message_tokens(message, tokenizer.count, framing_of(info.provider, info.name)))


class Spending:
    """The cost of one turn, checked against its limit in billionths of a US dollar."""

    def __init__(self, turn: Turn, budget_nano: int) -> None:
        self._turn, self._budget = turn, budget_nano
        self._read: int | None = None
        """The version up to which the journal was checked."""

    def check(self) -> None:
        """Refuse another model call if the cost is unknown or at its limit."""
        why = self._unknown()
        if why is not None:
            raise OverBudget(why)
        check_cost(self._turn.usage, self._budget)

    def _unknown(self) -> str | None:
        """Find a call whose cost is unknown, and return the reason."""
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
        if type == "model.failed":  # Most failed calls are not billed, and report nothing.
            return None
        return f"{model} did not report what it used, so what it costs is not known; give its replies a usage."

"""A turn and its model: what it is shown, what it said, and what became of calls that failed or were stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from holdfast.client import context
from holdfast.client.frame import Frame
from holdfast.client.pack import ContextPack
from holdfast.client.steps import CallModel, Done, Step
from holdfast.client.turn_opening import Opening
from holdfast.client.turn_spending import Spending, used_by
from holdfast.client.turn_stream import LOOK_EVERY, streamed
from holdfast.client.turn_tools import Settling
from holdfast.core.decide import amounts
from holdfast.flow.compaction import ruling
from holdfast.flow.context.packed import SaidMeanwhile
from holdfast.flow.conversation import lines
from holdfast.flow.stack import showing, working
from holdfast.flow.stack.pricing import priced
from holdfast.flow.turn import calling, limits, turns
from holdfast.flow.turn.turns import Known, View
from holdfast.flow.turn.writing import ConversationOver, Place
from holdfast.records.messages import Message
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.client.turn import Turn

S = TypeVar("S", bound=Step)

UNSEEN = "[The message above came while this reply was written. Answer it now.]"


class Shown(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is about to be begun with."""

    model: str
    newest: int
    """The last message that the pack was made from."""
    pack: ContextPack


def _is_unanswered(view: View) -> bool:
    """Whether a reply stands last though somebody spoke while it was written: no provider takes that as a question."""
    last = view.tail[-1] if view.tail else None
    return last is not None and last.role == "assistant" and not last.tool_calls


class ModelTurn(Frame):
    """The part of a turn that has to do with its model."""

    _opening: Opening
    _budget: int | None
    _loops: int
    _spending: Spending | None
    _made: int
    """Model calls so far; below 0 until they are counted."""
    _open: dict[str, Step]
    _known: Known | None
    _ended: Done | None
    _used: Usage | None
    """What its model calls used, once it has ended with a reply."""
    _words: Callable[[], str]
    """What was shown of the reply that is on its way: put together when somebody wants it."""
    _accepts: Callable[[Message], str | None]

    @property
    def _whole(self) -> Turn:
        """The same turn, for its steps: there is no other kind."""
        return cast("Turn", self)

    def stop(self, reason: str = turns.STOPPED) -> Done:
        """End the turn here."""
        raise NotImplementedError

    def _stop(self, reason: str, status: str, *, usage: Usage | int = 0) -> Done:
        raise NotImplementedError

    def _over(self) -> Done:
        raise NotImplementedError

    def _check_held(self) -> None:
        raise NotImplementedError

    @property
    def _calls(self) -> Settling:
        raise NotImplementedError

    @property
    def _turn(self) -> Place:
        return self._opening.taken

    @property
    def _partial(self) -> Message | None:
        """What was shown of a reply that is not whole, as a message."""
        text = self._words()
        return Message(role="assistant", content=text) if text else None

    def _learn(self, *messages: Message) -> None:
        """Messages that were just written need not be read, if nothing came between them and what is known."""
        known = self._known
        for message in messages:
            follows = known is not None and message.version == known[0] + 1
            known = (message.version, (*known[1], message)) if known is not None and follows else None
        self._known = known

    def _learn_of_pack(self) -> None:
        """Nothing was said since the pack that was just journaled."""
        state = self._ports.states.get(self._acting.tenant, self._turn.line)
        packed_last = state is not None and state.line is not None and state.line.packed == state.version
        self._known = (state.version, ()) if state is not None and packed_last else None

    def _is_at_hand(self, view: View) -> bool:
        """Whether a model is called next, and all that it is shown is in the journal already, to be read at once.

        Nobody waits for a page of the web, an embedder or telemetry while a moment of the journal is held.
        """
        if view.step.next != "model" or view.step.call is not None or view.unwanted or _is_unanswered(view):
            return False
        fetched = view.frame.handles or ruling.recall_of(self._ports, self._acting, self._turn.line)[0]
        return not fetched and self._ports.telemetry is None

    def _call_model(self, view: View, shown: Shown | None) -> CallModel:
        if self._spending is not None:
            self._spending.check()
        if view.step.call is not None:
            # An earlier process may have sent it: the same call again, with what was shown then.
            call = view.step.call
            pack = context.pack_at(self._ports, self._acting, call.id)
            return self._opened_step(call.id, CallModel(self._whole, call.id, pack, call.name or "", repeated=True))
        if _is_unanswered(view):
            self._count_loop()
            self.append(Message(role="user", content=UNSEEN, synthetic=True))
        call_id, shown = self._begun(shown or self._shown())
        self._made += 1
        self._learn_of_pack()
        return self._opened_step(call_id, CallModel(self._whole, call_id, shown.pack, shown.model, repeated=False))

    def _shown(self) -> Shown:
        """What one more call is shown: everything that was said by now."""
        self._count_loop()
        newest = lines.line_of(self._ports, self._acting, self._turn.line).newest
        pack = context.pack_turn(self._ports, self._acting, self.id, self._turn.started, self._budget)
        return Shown(model=self._model_name(), newest=newest, pack=pack)

    def _begun(self, shown: Shown) -> tuple[str, Shown]:
        """Begin a call. What is said meanwhile belongs into it as well."""
        while True:
            how: Any = {"frame": self.id, "model": shown.model or None, "newest": shown.newest}
            try:
                return context.begin_call(self._ports, self._acting, shown.pack, **how), shown
            except SaidMeanwhile:
                shown = self._shown()

    def _opened_step(self, key: str, step: S) -> S:
        self._open[key] = step
        return step

    def _model_name(self) -> str:
        session = showing.current(self._ports, self._acting, lines.session_of(self._turn.line)).session
        return "" if session is None or session.model is None else session.model

    def _count_loop(self) -> None:
        if self._made < 0 and self._opening.new:
            self._made = 0
        if self._made < 0:
            tally = limits.tallied(self._ports, self._acting, self._turn)
            limits.check_not_failing(tally)
            self._made = tally.made
        limits.check_loops(self._made, self._loops)

    def _model_done(self, step: CallModel, message: Message, usage: Usage | int | None, finish: str | None) -> Message:
        self._check_held()
        used = used_by(self._ports, self._acting, self._turn.line, step.pack.tokens, message, usage)
        why = finish or (message.metadata or {}).get("finish")
        complaint = None if message.tool_calls else self._accepts(message)
        try:
            said, self._used = calling.end_model(
                self._ports,
                self._acting,
                self._turn,
                step.call,
                message,
                model=step.model or step.pack.model,
                usage=used,
                finish=why if isinstance(why, str) else None,
                doubtful=Usage.estimate(step.pack.tokens) if step.repeated else None,
                may_end=complaint is None,
                release=self._epoch,
            )
        except ConversationOver:
            paid = priced(self._ports, amounts.usage_of(used), message.model or step.model or None)
            self._stop(turns.OVER, "cancelled", usage=paid)
            return message
        self._words, step.answered = str, True
        self._learn(said)
        self._calls.unbegun.update(call.id for call in said.tool_calls)
        if self._used is not None:
            self._left(Done(self._whole, "done", said))
        ruling.after_append(self._ports, self._acting, self._turn.line, [said])
        return said

    def _left(self, done: Done) -> None:
        """The turn has ended, and its lease with it."""
        self._ended = done
        if self._epoch is not None and not self._ports.leases.holds(self._acting.tenant, self._stream):
            self._epoch = None

    def _model_failed(self, step: CallModel, error: str, retryable: bool, usage: Usage | int) -> None:
        self._check_held()
        record = priced(self._ports, amounts.usage_of(usage), step.model or None)
        working.end_model(self._ports, self._acting, self.id, step.call, usage=record, error=error, retryable=retryable)
        self._words = str
        if not retryable:
            self._stop(f"model: {error}", "failed")

    def _streamed(self, step: CallModel, chunks: Iterable[Any]) -> Iterator[str]:
        return streamed(self, step, chunks)

    # being stopped

    def is_stopping(self) -> bool:
        """Whether the turn can only stop: somebody wants that, or what it answers is gone. Then end it with `stop`."""
        return self._stop_asked() is not None

    def stopping(self, timeout: float | None = None) -> str | None:
        """Wait until somebody asks for the turn to stop, and give the reason.

        None after `timeout` seconds, or once the turn has ended with its reply, whoever ended it.
        """
        clock = self._ports.clock
        end = None if timeout is None else clock.monotonic() + timeout
        while (reason := self._stop_asked()) is None and not self._is_over:
            left = LOOK_EVERY if end is None else min(LOOK_EVERY, end - clock.monotonic())
            if left <= 0:
                return None
            clock.sleep(left)
        return reason

    @property
    def _is_over(self) -> bool:
        return self._ended is not None or self._replayed

    def _stop_asked(self) -> str | None:
        """Why the turn is to stop, or was stopped; None if nobody asked."""
        if self._ended is None and self.id not in showing.current(self._ports, self._acting, self._stream).frames:
            self._over()
        if self._ended is not None:
            return self._ended.reason
        return turns.why_stopping(self._ports, self._acting, self._turn)

    def _heed_stop(self) -> None:
        """Stop if somebody asked for it."""
        reason = turns.stop_requested(self._ports, self._acting, self._turn)
        if reason is not None and self._ended is None:
            self._stop(reason, "cancelled", usage=self._unreported())

    def _unreported(self) -> Usage:
        """What the call that is under way has used, as far as can be said: it was shown its pack.

        What it used when somebody else made it before is counted where it is given up.
        """
        shown = [step for step in self._open.values() if isinstance(step, CallModel) and not step.answered]
        return Usage.estimate(sum(step.pack.tokens for step in shown))

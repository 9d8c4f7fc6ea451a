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
from holdfast.client.turn_tools import Settling
from holdfast.core.codec import decode_event
from holdfast.core.decide import amounts
from holdfast.core.wire.streaming import accumulator
from holdfast.errors import InvalidValue, LimitExceeded, ModelFailed
from holdfast.flow.compaction import ruling
from holdfast.flow.context import packed
from holdfast.flow.context.packed import SaidMeanwhile
from holdfast.flow.conversation import lines
from holdfast.flow.stack import showing, working
from holdfast.flow.stack.pricing import priced
from holdfast.flow.turn import calling, turns
from holdfast.flow.turn.turns import Known, View
from holdfast.flow.turn.writing import ConversationOver, Place
from holdfast.records.messages import Message
from holdfast.records.reports import Query
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.client.turn import Turn

S = TypeVar("S", bound=Step)

UNSEEN = "[The message above came while this reply was written. Answer it now.]"
OUTCOMES = ("model.failed", "model.responded")
EMPTY_STREAM = "The stream was empty. Use step.fail(…), so that the model is called again."
FAILURES = 25
"""Model calls of one turn that may fail in a row, each time that it is taken up, before it is given up."""
LOOK_EVERY = 0.5
"""Seconds between looks for a request to stop, while a reply is streamed."""


class FailsAlways(LimitExceeded):
    """A model that fails however often it is called: the turn ends."""


class ModelTurn(Frame):
    """The part of a turn that has to do with its model."""

    _opening: Opening
    _budget: int | None
    _loops: int
    _made: int
    """Model calls so far; below 0 until they are counted."""
    _open: dict[str, Step]
    _known: Known | None
    _ended: Done | None
    _partial: Message | None
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

    @property
    def _calls(self) -> Settling:
        raise NotImplementedError

    @property
    def _turn(self) -> Place:
        return self._opening.taken

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

    def _call_model(self, view: View) -> CallModel:
        if view.step.call is not None:
            # An earlier process may have sent it: the same call again, with what was shown then.
            call = view.step.call
            pack = context.pack_at(self._ports, self._acting, call.id)
            return self._opened_step(call.id, CallModel(self._whole, call.id, pack, call.name or "", repeated=True))
        self._count_loop()
        self._turn_to_the_unseen(view)
        model = self._model_name()
        call_id, pack = self._shown(model)
        self._made += 1
        self._learn_of_pack()
        return self._opened_step(call_id, CallModel(self._whole, call_id, pack, model, repeated=False))

    def _turn_to_the_unseen(self, view: View) -> None:
        """A reply stands last though somebody spoke while it was written: no provider takes that as a question."""
        last = view.tail[-1] if view.tail else None
        if last is not None and last.role == "assistant" and not last.tool_calls:
            self.append(Message(role="user", content=UNSEEN, synthetic=True))

    def _shown(self, model: str) -> tuple[str, ContextPack]:
        """Begin a call with everything that was said. What is said meanwhile belongs into it as well."""
        while True:
            newest = lines.line_of(self._ports, self._acting, self._turn.line).newest
            pack = self.pack(self._budget)
            try:
                call = context.begin_call(
                    self._ports, self._acting, pack, frame=self.id, model=model or None, newest=newest
                )
            except SaidMeanwhile:
                continue
            return call, pack

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
            self._made = -self._failed_before()
            for event in packed.journaled(self._ports, self._acting, self._turn.line):
                if event.version < self._turn.started:
                    break
                self._made += event.facts.frame == self.id
            self._made = max(self._made, 0)
        if self._made >= self._loops:
            raise LimitExceeded(
                f"The model was called {self._made} times in this turn, and may be {self._loops} times."
            )

    def _failed_before(self) -> int:
        """Calls that came to nothing before this process took the turn up: a model that is away costs no loops.

        One that does nothing but fail is given up: else those who recover turns would pay for it for ever.
        """
        frame = showing.current(self._ports, self._acting, self._stream).frames[self.id]
        query = Query(tenant=self._acting.tenant, stream=self._stream, after=frame.pushed, types=OUTCOMES, limit=256)
        failed = in_a_row = 0
        while page := self._ports.journal.read(query):
            for event in map(decode_event, page):
                if event.facts.frame == self.id:
                    again = event.type == "model.failed" and event.facts.retryable
                    failed, in_a_row = failed + again, in_a_row + 1 if again else 0
            query = msgspec.structs.replace(query, after=page[-1].version)
        if in_a_row >= FAILURES:
            raise FailsAlways(f"failed {in_a_row} times in a row. Say something to try again.")
        return failed

    def _model_done(self, step: CallModel, message: Message, usage: Usage | int | None, finish: str | None) -> Message:
        used = usage if usage is not None else message.usage or 0
        why = finish or (message.metadata or {}).get("finish")
        complaint = None if message.tool_calls else self._accepts(message)
        try:
            said, ended = calling.end_model(
                self._ports,
                self._acting,
                self._turn,
                step.call,
                message,
                usage=used,
                finish=why if isinstance(why, str) else None,
                doubtful=Usage(input=step.pack.tokens) if step.repeated else None,
                may_end=complaint is None,
                release=self._epoch,
            )
        except ConversationOver:
            paid = priced(self._ports, amounts.usage_of(used), message.model or step.model or None)
            self._stop(turns.OVER, "cancelled", usage=paid)
            return message
        self._partial, step.answered = None, True
        self._learn(said)
        self._calls.unbegun.update(call.id for call in said.tool_calls)
        if ended:
            self._left(Done(self._whole, "done", said))
        ruling.after_append(self._ports, self._acting, self._turn.line, [said])
        return said

    def _left(self, done: Done) -> None:
        """The turn has ended, and its lease with it."""
        self._ended = done
        if self._epoch is not None and not self._ports.leases.holds(self._acting.tenant, self._stream):
            self._epoch = None

    def _model_failed(self, step: CallModel, error: str, retryable: bool, usage: Usage | int) -> None:
        record = priced(self._ports, amounts.usage_of(usage), step.model or None)
        working.end_model(self._ports, self._acting, self.id, step.call, usage=record, error=error, retryable=retryable)
        self._partial = None
        if not retryable:
            self._stop(f"model: {error}", "failed")

    def _streamed(self, step: CallModel, chunks: Iterable[Any]) -> Iterator[str]:
        gathered, looked = None, self._ports.clock.monotonic()
        for chunk in chunks:
            gathered = gathered or accumulator()
            for delta in gathered.add(chunk):
                if delta.kind == "text" and delta.text:
                    self._partial = Message(role="assistant", content=gathered.text)
                    yield delta.text
            if self._ended is None and self._ports.clock.monotonic() - looked > LOOK_EVERY:
                looked = self._ports.clock.monotonic()
                self._heed_stop()
            if self._ended is not None:
                step.answered = True
                return
        if gathered is None:
            raise InvalidValue(EMPTY_STREAM)
        try:
            whole = gathered.whole()
        except ModelFailed as error:
            step.fail(error, retryable=True, usage=used(error.usage))
            raise
        step.done(whole)

    def _heed_stop(self) -> None:
        """Stop if somebody asked for it."""
        reason = turns.stop_requested(self._ports, self._acting, self._turn)
        if reason is not None and self._ended is None:
            self._stop(reason, "cancelled", usage=self._unreported())

    def _unreported(self) -> Usage:
        """What the call that is under way has used, as far as can be said: it was shown its pack."""
        shown = [step for step in self._open.values() if isinstance(step, CallModel) and not step.answered]
        return Usage(input=sum(step.pack.tokens * (2 if step.repeated else 1) for step in shown))


def used(usage: object) -> Usage:
    """What an error reports as used, if it does."""
    return usage if isinstance(usage, Usage) else Usage()

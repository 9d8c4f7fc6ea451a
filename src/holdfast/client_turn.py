"""Turn: from a user's message to the final reply, as a loop that survives its process.

Each turn of the loop asks the journal what comes next, so a new turn, one continued after a crash and one that was
answered already are the same code. Leaving the block before the end leaves the turn live, also by an exception:
whatever stopped it, the same key goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast import client_context
from holdfast.client_frame import Frame
from holdfast.client_pack import ContextPack
from holdfast.client_steps import Ask, CallModel, CallTool, Done, Step
from holdfast.client_turn_opening import Opening, Terms
from holdfast.client_turn_tools import TORN, Settling, ToolFrame, ToolRules, asked_by, noted
from holdfast.core.codec import decode_event
from holdfast.core.decide import amounts
from holdfast.core.decide.questions import due
from holdfast.core.wire.streaming import accumulator
from holdfast.errors import (
    DeadlineExceeded,
    FrameEnded,
    InsufficientTokens,
    InvalidValue,
    LimitExceeded,
    MaxDepthExceeded,
    ModelFailed,
    Refused,
    StepUnanswered,
    ToolCallLimitExceeded,
)
from holdfast.flow import asking, lines, packed, ruling, showing, turn_calls, turns, working
from holdfast.flow.packed import SaidMeanwhile
from holdfast.flow.pricing import priced
from holdfast.flow.turn_calls import Beginning, Returned
from holdfast.flow.turn_writing import ConversationOver, Place
from holdfast.flow.turns import Known, View
from holdfast.ports import Acting, Ports
from holdfast.records.events.frames import OutcomeContent
from holdfast.records.frames import Limits
from holdfast.records.ids import ulid_bytes
from holdfast.records.messages import Message
from holdfast.records.reports import Query
from holdfast.records.resume import Answer, QuestionInfo
from holdfast.records.usage import Usage

S = TypeVar("S", bound=Step)

UNSEEN = "[The message above came while this reply was written. Answer it now.]"
LOOPS = 25
"""Model calls of one turn, unless told otherwise."""
CORRECTIONS = 3
"""How often a model is told that its reply does not have the form that was asked for."""
LOOK_EVERY = 0.5
"""Seconds between looks for a request to stop, while a reply is streamed."""
_REASONS = {
    ToolCallLimitExceeded: "tool_calls",
    DeadlineExceeded: "deadline",
    InsufficientTokens: "budget",
    MaxDepthExceeded: "depth",
}


class Turn(Frame):
    """One turn of a conversation. Use it in a `with` block and iterate; make one with `session.turn`."""

    def __init__(
        self,
        ports: Ports,
        acting: Acting,
        line: str,
        terms: Terms,
        *,
        rules: ToolRules | None = None,
        loops: int = LOOPS,
        budget: int | None = None,
        on_error: str = "leave",
    ) -> None:
        self._opening = Opening(ports, acting, line, terms, self._frame_limits)
        place = self._opening.place
        super().__init__(ports, acting, place.actor, turns.goal_of(terms.messages), key=terms.key, on_error=on_error)
        if not isinstance(loops, int) or isinstance(loops, bool) or loops < 1:
            raise InvalidValue(f"loops must be a number of model calls, at least 1, not {loops!r}.")
        self._terms, self._rules, self._budget = terms, rules or ToolRules(), budget
        self._loops, self._made = loops, -1
        self._open: dict[str, Step] = {}
        self._settling: Settling | None = None
        self._known: Known | None = None
        self._ended: Done | None = None
        self._told = False
        self._partial: Message | None = None
        self._accepts: Callable[[Message], str | None] = lambda message: None

    # entering and leaving

    def open(self) -> None:
        """Begin the turn, join the one that is under way, or take up the one that the key stands for."""
        if self._id is not None:
            raise Refused("This turn was entered already. Call session.turn again for another one.")
        waits = self._opening.steps()
        try:
            for wait in waits:
                self._opening.sleep(wait)
        finally:
            waits.close()  # Whatever stopped it: it gives up its place at once.
        self._opened()

    def _opened(self) -> None:
        """Note what the opening came to."""
        taken = self._opening.taken
        self._id, self._epoch = taken.frame, self._opening.epoch
        self._replayed = self._opening.ended
        if self._opening.new:
            self._known = (self._opening.said[-1].version, self._opening.said)
        if not self._replayed:
            self._claim()

    def _frame_limits(self) -> Limits:
        return self._terms.limits or self._default_limits()

    def _complete(self) -> None:
        """A turn ends with its reply. Left before that, it stays live."""

    def _pop(self, status: str, content: OutcomeContent) -> None:
        """However a turn ends, its calls have results then."""
        self._stop(str(content.error), status)

    def _let_go(self, error: BaseException | None = None) -> None:
        try:
            super()._let_go(error)
        finally:
            self._opening.leave()

    # what it is

    @property
    def key(self) -> str | None:
        """The key that it was begun with."""
        return self._terms.key

    @property
    def usage(self) -> Usage:
        """What its model calls used so far."""
        return self.info().usage

    @property
    def text(self) -> str:
        """The final reply; empty until there is one."""
        return "" if self._ended is None else self._ended.text

    # what comes next

    def __iter__(self) -> Iterator[Step]:
        while steps := self.steps(at_once=1):
            yield steps[0]
            if isinstance(steps[0], Done) or (isinstance(steps[0], Ask) and not self._can_go_on()):
                return

    def _can_go_on(self) -> bool:
        """Whether something that the turn waited for has been answered meanwhile."""
        view = self._looked()
        return view is None or view.step.next != "wait"

    def steps(self, at_once: int | None = None) -> list[Step]:
        """Everything that can be done now: one step, or several tools that may run beside each other.

        The last ones are `Done`, or `Ask` for as long as all of it waits; after `Done` there are none.
        """
        left = [step for step in self._open.values() if not step.answered]
        if left:
            raise StepUnanswered(f"{left[0]!r} was not answered. Call done(…) or fail(…) before the next step.")
        self._open.clear()
        if self._ended is None and self._replayed:
            self._over()
        if self._ended is None:
            steps = self._limited(at_once)
            if self._ended is None:
                return steps
        if self._told:
            return []
        self._told = True
        assert self._ended is not None
        return [self._ended]

    def _limited(self, at_once: int | None) -> list[Step]:
        """What comes next, or the end if a limit is reached."""
        try:
            return self._next(at_once)
        except LimitExceeded as error:
            reason = next((why for kind, why in _REASONS.items() if isinstance(error, kind)), "loops")
            return [self._stop(f"{reason}: {error}", "failed")]
        except FrameEnded:
            return [self._over()]

    def _looked(self) -> View | None:
        with self._ports.journal.snapshot():
            view = turns.look(self._ports, self._acting, self._turn, self._known)
        if view is not None:
            self._known = (view.versions[1], view.tail)
        return view

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

    @property
    def _turn(self) -> Place:
        return self._opening.taken

    @property
    def _calls(self) -> Settling:
        if self._settling is None:
            self._settling = Settling(self._ports, self._acting, self._turn, self._rules)
        return self._settling

    def _next(self, at_once: int | None) -> list[Step]:
        while True:
            view = self._looked()
            if view is None:
                return [self._over()]
            if view.step.next == "stop":
                why = turns.stop_requested(self._ports, self._acting, self._turn)
                return [self._stop(why or turns.OVER, "cancelled")]
            for call in view.unwanted:
                turn_calls.drop_tool(self._ports, self._acting, self._turn, call, TORN)
            if view.unwanted:
                continue
            if view.step.next == "wait":
                if self._wakes(view):
                    continue
                return [Ask(self, self._questions(view))]
            if view.step.next == "finish":
                done = self._finished(view)
                if done is None:
                    continue
                return [done]
            if view.step.next == "model":
                return [self._call_model(view)]
            steps = self._call_tools(view, at_once)
            if steps:
                return list(steps)

    def _wakes(self, view: View) -> bool:
        """Go on with a frame that was suspended itself, if it is answered or its timer rang."""
        question = view.frame.question
        if question is None or not due(question, self._ports.clock.now_ms()):
            return False
        asking.resume(self._ports, self._acting, self.id)
        return True

    def _questions(self, view: View) -> tuple[QuestionInfo, ...]:
        waiting = [question for tool in view.step.tools for question in tool.questions]
        own = [view.frame.question] if view.frame.question is not None else waiting
        return tuple(showing.question(self._ports, self._acting, one.id) for one in own)

    # the model

    def _call_model(self, view: View) -> CallModel:
        if view.step.call is not None:
            # An earlier process may have sent it: the same call again, with what was shown then.
            call = view.step.call
            pack = client_context.pack_at(self._ports, self._acting, call.id)
            return self._opened_step(call.id, CallModel(self, call.id, pack, call.name or "", repeated=True))
        self._count_loop()
        self._turn_to_the_unseen(view)
        model = self._model_name()
        call_id, pack = self._shown(model)
        self._made += 1
        self._learn_of_pack()
        return self._opened_step(call_id, CallModel(self, call_id, pack, model, repeated=False))

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
                call = client_context.begin_call(
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
        """Calls that came to nothing before this process took the turn up: a model that is away costs no loops."""
        frame = showing.current(self._ports, self._acting, self._stream).frames[self.id]
        query = Query(
            tenant=self._acting.tenant, stream=self._stream, after=frame.pushed, types=("model.failed",), limit=256
        )
        failed = 0
        while page := self._ports.journal.read(query):
            events: list[Any] = [decode_event(one).facts for one in page]
            failed += sum(facts.frame == self.id and facts.retryable for facts in events)
            query = msgspec.structs.replace(query, after=page[-1].version)
        return failed

    def _model_done(self, step: CallModel, message: Message, usage: Usage | int | None, finish: str | None) -> Message:
        used = usage if usage is not None else message.usage or 0
        why = finish or (message.metadata or {}).get("finish")
        complaint = None if message.tool_calls else self._accepts(message)
        try:
            said, ended = turn_calls.end_model(
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
            self._stop(turns.OVER, "cancelled", usage=used)
            return message
        self._partial, step.answered = None, True
        self._learn(said)
        self._calls.unbegun.update(call.id for call in said.tool_calls)
        if ended:
            self._left(Done(self, "done", said))
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
            raise InvalidValue("The stream was empty. Use step.fail(…), so that the model is called again.")
        try:
            whole = gathered.whole()
        except ModelFailed as error:
            step.fail(error, retryable=True, usage=used(error.usage))
            raise
        step.done(whole)

    def _heed_stop(self) -> None:
        """Stop if somebody asked for it."""
        reason = turns.stop_requested(self._ports, self._acting, self._turn)
        if reason is not None:
            self.stop(reason)

    # tools

    def _call_tools(self, view: View, at_once: int | None) -> list[CallTool]:
        begin: list[tuple[Beginning, Answer | None]] = []
        for tool in view.step.tools:
            if tool.next == "wait" or (at_once is not None and len(begin) >= at_once):
                continue
            ready = self._calls.ready(view, tool)
            if ready is not None:
                begin.append(ready)
        if begin:
            turn_calls.begin_tools(self._ports, self._acting, self._turn, [one for one, _ in begin])
        return [
            self._opened_step(
                one.request.id,
                CallTool(self, one.request, attempt=one.attempt, answer=answer, args=one.arguments),
            )
            for one, answer in begin
        ]

    def _tool_done(self, step: CallTool, value: Any, *, failed: bool = False, files: Sequence[bytes] = ()) -> Message:
        came = Returned(result=noted(step, value), failed=failed)
        said = turn_calls.end_tool(self._ports, self._acting, self._turn, step.request, came, files=files)
        step.answered = True
        if not said.id:
            return said
        self._learn(said)
        ruling.after_append(self._ports, self._acting, self._turn.line, [said])
        return said

    def _tool_asks(self, step: CallTool, reason: str, kind: str, how: Mapping[str, Any]) -> str:
        content = asked_by(step, reason, self._ports.settings.nesting, **how)
        one = Beginning(request=step.request)
        return turn_calls.ask_first(self._ports, self._acting, self._turn, one, content, kind=kind)

    def tool_frame(self, step: CallTool) -> ToolFrame:
        """The frame that works for a tool call, for code that runs in it."""
        return ToolFrame(self._ports, self._acting, self._stream, step.key)

    def _waits(self, step: CallTool) -> bool:
        """Whether a tool waits for an answer, whatever its code did with the exception that said so."""
        frame = showing.current(self._ports, self._acting, self._stream).frames.get(step.key)
        return frame is not None and frame.question is not None

    # the end

    def _finished(self, view: View) -> Done | None:
        """The last word is the model's: end the turn, unless what it said is not acceptable."""
        reply = view.tail[-1]
        complaint = self._accepts(reply)
        if complaint is not None:
            corrected = [one for one in self._said() if one.role == "user" and one.synthetic and one.text != UNSEEN]
            if len(corrected) >= CORRECTIONS:
                return self._stop(f"output: {complaint}", "failed")
            self.append(Message(role="user", content=complaint, synthetic=True))
            return None
        if not turn_calls.finish(self._ports, self._acting, self._turn, reply, release=self._epoch):
            return None
        self._left(Done(self, "done", reply))
        return self._ended

    def stop(self, reason: str = turns.STOPPED) -> Done:
        """End the turn here: what was shown is kept as a partial message, open calls get a result that says so."""
        if self._ended is None and self._replayed:
            self._over()
        if self._ended is not None:
            return self._ended
        return self._stop(reason, "cancelled")

    def _stop(self, reason: str, status: str, *, usage: Usage | int = 0) -> Done:
        for step in self._open.values():
            step.answered = True
        turn_calls.stop(
            self._ports,
            self._acting,
            self._turn,
            reason=reason,
            status=status,
            partial=self._partial,
            usage=usage,
            release=self._epoch,
        )
        self._left(Done(self, "stopped", self._last_words(), reason))
        assert self._ended is not None
        return self._ended

    def _last_words(self) -> Message | None:
        """What a turn without a final reply has to show: the last thing that the model said in it."""
        spoken = [message for message in self._said() if message.role == "assistant" and message.text]
        return spoken[-1] if spoken else None

    def _said(self) -> list[Message]:
        """What was said in this turn, oldest first."""
        found: list[Message] = []
        query = Query(
            tenant=self._acting.tenant, stream=self._turn.line, after=self._turn.started - 1, types=lines.APPENDED
        )
        while page := self._ports.journal.read(query):
            for event in map(decode_event, page):
                (message,) = lines.decoded(self._ports, self._acting, [event])
                if message.role == "user" and event.facts.frame not in (None, self.id):
                    return found  # Another turn begins.
                found.append(message)
            query = msgspec.structs.replace(query, after=page[-1].version)
        return found

    def _over(self) -> Done:
        """A turn that has ended before, with what came of it."""
        info = showing.frame_info(self._ports, self._acting, self.id)
        named = next((result.ref for result in reversed(info.results) if result.kind == turn_calls.REPLY), None)
        message = self._last_words() if named is None else self._message(named)
        reason = info.error if isinstance(info.error, str) else None
        self._ended = Done(self, "done" if info.status == "completed" else "stopped", message, reason)
        return self._ended

    def _message(self, id: str) -> Message | None:
        stored = self._ports.journal.event(self._acting.tenant, ulid_bytes(id))
        return None if stored is None else lines.read_message(self._ports, self._acting, stored, pinned=False)

    def __repr__(self) -> str:
        return f"Turn({self._content.goal!r}, id={self._id!r})"


def used(usage: object) -> Usage:
    """What an error reports as used, if it does."""
    return usage if isinstance(usage, Usage) else Usage()

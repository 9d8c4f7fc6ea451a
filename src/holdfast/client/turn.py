"""Turn: from a user's message to the final reply, as a loop that survives its process.

Each turn of the loop asks the journal what comes next, so a new turn, one continued after a crash and one that was
answered already are the same code. Leaving the block before the end leaves the turn live, also by an exception:
whatever stopped it, the same key goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.client.steps import Ask, CallModel, CallTool, Done, Step
from holdfast.client.tool_words import MAY_HAVE, TORN, asked_by, noted, unknown
from holdfast.client.turn_model import UNSEEN, ModelTurn, Shown
from holdfast.client.turn_opening import Opening
from holdfast.client.turn_spending import Spending
from holdfast.client.turn_terms import Terms
from holdfast.client.turn_tools import Settling, ToolFrame, ToolRules
from holdfast.core.codec import decode_event
from holdfast.core.decide.amounts import check_limits, nano_usd
from holdfast.core.decide.questions import due
from holdfast.core.states import usage_of
from holdfast.errors import (
    FrameEnded,
    InvalidValue,
    LimitExceeded,
    Refused,
    StepUnanswered,
    TurnLeft,
)
from holdfast.flow.compaction import ruling
from holdfast.flow.conversation import lines
from holdfast.flow.stack import asking, showing
from holdfast.flow.turn import calling, questioning, stopping, turns
from holdfast.flow.turn.calling import Beginning, Returned
from holdfast.flow.turn.limits import reason_of
from holdfast.flow.turn.turns import Known, View
from holdfast.ports import Acting, Ports
from holdfast.records.events.frames import OutcomeContent
from holdfast.records.frames import FrameLimits
from holdfast.records.ids import ulid_bytes
from holdfast.records.messages import Message
from holdfast.records.reports import Query
from holdfast.records.resume import Answer, QuestionInfo
from holdfast.records.usage import Usage

LOOPS = 25
"""Model calls of one turn, unless told otherwise."""
CORRECTIONS = 3
"""How often a model is told that its reply does not have the form that was asked for."""


class Turn(ModelTurn):
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
        budget_usd: float | None = None,
        on_error: str = "leave",
    ) -> None:
        self._opening = Opening(ports, acting, line, terms, self._frame_limits)
        place = self._opening.place
        super().__init__(ports, acting, place.actor, turns.goal_of(terms.messages), key=terms.key, on_error=on_error)
        if not isinstance(loops, int) or isinstance(loops, bool) or loops < 1:
            raise InvalidValue(f"loops must be a number of model calls, at least 1, not {loops!r}.")
        self._terms, self._rules, self._budget = terms, rules or ToolRules(), budget
        self._loops, self._made = loops, -1
        self._spending = None if budget_usd is None else Spending(self, nano_usd(budget_usd, "budget_usd"))
        self._open: dict[str, Step] = {}
        self._settling: Settling | None = None
        self._known: Known | None = None
        self._ended: Done | None = None
        self._used: Usage | None = None
        self._told = False
        self._words: Callable[[], str] = str
        self._accepts: Callable[[Message], str | None] = lambda message: None

    # entering and leaving

    def open(self) -> None:
        """Begin the turn, join the one that is under way, or take up the one that the key stands for."""
        self._check_not_entered()
        waits = self._opening.steps()
        try:
            for wait in waits:
                self._opening.sleep(wait)
        finally:
            waits.close()  # Whatever stopped it: it gives up its place at once.
        self._opened()

    def _check_not_entered(self) -> None:
        if self._id is not None:
            raise Refused("This turn was entered already. Call session.turn again for another one.")

    def _opened(self) -> None:
        """Note what the opening came to."""
        taken = self._opening.taken
        self._id, self._epoch = taken.frame, self._opening.epoch
        self._replayed = self._opening.ended
        if self._opening.new:
            self._known = (self._opening.said[-1].version, self._opening.said)
        if not self._replayed:
            self._claim()

    def _frame_limits(self) -> FrameLimits:
        """What was given, and for the rest what a turn may do: journaled whole, whatever the defaults are later."""
        given, default = self._terms.limits, self._default_limits()
        return default if given is None else check_limits(given).over(default)

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
        if self._used is not None:
            return self._used
        live = None if self._ended else showing.current(self._ports, self._acting, self._stream).frames.get(self.id)
        if live is not None:
            return live.usage
        _, row = showing.row_of(self._ports, self._acting, self.id)  # Of one that has ended, the row alone.
        return usage_of(row)

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

    def _check_held(self) -> None:
        """Refuse work in a block that was left: whoever took the turn up since has these steps now."""
        if not self._claimed:
            raise TurnLeft

    def _check_inside(self) -> None:
        if not self._replayed:
            self._check_held()

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
            self._check_held()
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
            return [self._stop(reason_of(error), "failed")]
        except FrameEnded:
            return [self._over()]

    def _looked(self) -> View | None:
        with self._ports.journal.snapshot():
            return self._view()

    def _looked_ahead(self) -> tuple[View | None, Shown | None]:
        """What comes next, and what a model is shown if that is it: both of one moment, where nothing is fetched."""
        with self._ports.journal.snapshot():
            view = self._view()
            return view, None if view is None or not self._is_at_hand(view) else self._shown()

    def _view(self) -> View | None:
        view = turns.look(self._ports, self._acting, self._turn, self._known)
        if view is not None:
            self._known = (view.versions[1], view.tail)
        return view

    @property
    def _calls(self) -> Settling:
        if self._settling is None:
            self._settling = Settling(self._ports, self._acting, self._turn, self._rules)
        return self._settling

    def _next(self, at_once: int | None) -> list[Step]:
        while True:
            view, shown = self._looked_ahead()
            if view is None:
                return [self._over()]
            if view.step.next == "stop":
                why = turns.stop_requested(self._ports, self._acting, self._turn)
                return [self._stop(why or turns.OVER, "cancelled")]
            for call in view.unwanted:
                calling.drop_tool(self._ports, self._acting, self._turn, call, TORN)
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
                return [self._call_model(view, shown)]
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
            calling.begin_tools(self._ports, self._acting, self._turn, [one for one, _ in begin])
        return [
            self._opened_step(
                one.request.id,
                CallTool(self, one.request, attempt=one.attempt, answer=answer, args=one.arguments),
            )
            for one, answer in begin
        ]

    def _tool_done(self, step: CallTool, value: Any, *, failed: bool = False, files: Sequence[bytes] = ()) -> Message:
        return self._tool_ended(step, Returned(result=noted(step, value), failed=failed), files)

    def _tool_unknown(self, step: CallTool, text: str) -> Message:
        """Nobody knows what came of a call: the model is told so."""
        return self._tool_ended(step, unknown(noted(step, text)))

    def _tool_ended(self, step: CallTool, came: Returned, files: Sequence[bytes] = ()) -> Message:
        self._check_held()
        said = calling.end_tool(self._ports, self._acting, self._turn, step.request, came, files=files)
        step.answered = True
        if not said.id:
            return said
        self._learn(said)
        ruling.after_append(self._ports, self._acting, self._turn.line, [said])
        return said

    def _tool_asks(self, step: CallTool, reason: str, kind: str, how: Mapping[str, Any]) -> str:
        self._check_held()
        one = Beginning(request=step.request, arguments=step._args)
        content = asked_by(reason, self._calls.shown(one), **how)
        return questioning.ask_first(self._ports, self._acting, self._turn, one, content, kind=kind)

    def _tool_doubted(self, step: CallTool, why: str) -> None:
        """Nobody knows what came of a call, and a person is to say what to do: its question is about the call."""
        self._check_held()
        one = Beginning(request=step.request, arguments=step._args, attempt=step.attempt + 1)
        self._calls.ask_whether(one, why.removesuffix(MAY_HAVE))

    def tool_frame(self, step: CallTool) -> ToolFrame:
        """The frame that works for a tool call, for code that runs in it."""
        return ToolFrame(self._ports, self._acting, self._stream, step.key)

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
        if not calling.finish(self._ports, self._acting, self._turn, reply, release=self._epoch):
            return None
        self._left(Done(self, "done", reply))
        return self._ended

    def stop(self, reason: str = turns.STOPPED) -> Done:
        """End the turn here: what was shown is kept as a partial message, open calls get a result that says so."""
        if self._ended is None and self._replayed:
            self._over()
        if self._ended is not None:
            return self._ended
        # Words were shown, so that the call was made. Before that nobody knows.
        return self._stop(reason, "cancelled", usage=0 if self._partial is None else self._unreported())

    def _stop(self, reason: str, status: str, *, usage: Usage | int = 0) -> Done:
        self._check_held()
        for step in self._open.values():
            step.answered = True
        stopping.stop(
            self._ports,
            self._acting,
            self._turn,
            reason=reason,
            status=status,
            partial=self._partial,
            usage=usage,
            begun=[one.call for one in self._open.values() if isinstance(one, CallModel) and not one.repeated],
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
                if event.facts.frame == self.id or message.role == "user":
                    found.append(message)  # What others noted down meanwhile is not this turn's.
            query = msgspec.structs.replace(query, after=page[-1].version)
        return found

    def _over(self) -> Done:
        """A turn that has ended before, with what came of it."""
        info = showing.frame_info(self._ports, self._acting, self.id)
        named = next((result.ref for result in reversed(info.results) if result.kind == calling.REPLY), None)
        message = self._last_words() if named is None else self._message(named)
        reason = info.error if isinstance(info.error, str) else None
        self._ended = Done(self, "done" if info.status == "completed" else "stopped", message, reason)
        return self._ended

    def _message(self, id: str) -> Message | None:
        stored = self._ports.journal.event(self._acting.tenant, ulid_bytes(id))
        return None if stored is None else lines.read_message(self._ports, self._acting, stored, pinned=False)

    def __repr__(self) -> str:
        return f"Turn({self._content.goal!r}, id={self._id!r})"

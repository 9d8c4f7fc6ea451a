"""Turn: from a user's message to the final reply, as a loop that survives its process.

Each iteration asks the journal for the next step, so the same code begins a turn, continues it after a crash, and
returns a finished one. Leaving the block early, also by an exception, leaves the turn live: the same key continues it.
Tool calls that are ready begin together; each runs in a frame of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.client.frame import Frame
from holdfast.client.steps import STOP_POLL_SECONDS, Ask, CallModel, CallTool, Done, Step
from holdfast.client.turn_model import LOOPS, UNSEEN_NOTICE, ModelCallContext, TurnModelCalls
from holdfast.core.frames.budgets import check_limits
from holdfast.core.frames.questions import is_resumable
from holdfast.core.journal.load import row_usage
from holdfast.errors import FrameEnded, InvalidValue, LimitExceeded, Refused, StepUnanswered, TurnLeft
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.flow.frames import questions, read
from holdfast.flow.turns import calls, outcome, turns
from holdfast.flow.turns import stop as turn_stop
from holdfast.flow.turns.append import TurnPlace
from holdfast.flow.turns.calls import ToolCallReturn, ToolCallStart
from holdfast.flow.turns.open import TurnOpener, TurnTerms
from holdfast.flow.turns.outcome import describe_limit
from holdfast.flow.turns.tool_calls import (
    INTERRUPTED_RETURN,
    MAY_HAVE_RUN,
    ReadyCall,
    ToolCallSettler,
    build_tool_question,
    build_unknown_return,
)
from holdfast.flow.turns.tool_rules import ToolRules
from holdfast.flow.turns.turns import KnownTail, TurnView
from holdfast.ports import Env
from holdfast.records.events.frames import OutcomeContent
from holdfast.records.frames import FrameLimits
from holdfast.records.messages import Message
from holdfast.records.recovery import QuestionInfo
from holdfast.records.usage import Usage

S = TypeVar("S", bound=Step)

CORRECTIONS = 3
"""How often the model is told that its reply does not have the required form."""


class Turn(Frame):
    """One turn of a conversation. Iterate over it in a `with` block; `session.turn` creates one."""

    def __init__(
        self,
        env: Env,
        thread: str,
        terms: TurnTerms,
        *,
        rules: ToolRules | None = None,
        loops: int = LOOPS,
        budget: int | None = None,
        budget_usd: float | None = None,
        on_error: str = "leave",
    ) -> None:
        self._opening = TurnOpener(env, thread, terms, self._frame_limits)
        place = self._opening.place
        super().__init__(env, place.actor, turns.turn_goal(terms.messages), key=terms.key, on_error=on_error)
        self._terms = terms
        self._model = TurnModelCalls(self, loops=loops, budget=budget, budget_usd=budget_usd)
        self._tools = TurnToolCalls(self, rules or ToolRules())
        self._open: dict[str, Step] = {}
        self._known: KnownTail | None = None
        self._ended: Done | None = None
        self._used: Usage | None = None
        """The usage of its model calls, once it has ended with a reply."""
        self._told = False
        self._words: Callable[[], str] = str
        """Returns the text streamed so far of the reply in progress; joined only on demand."""
        self._accepts: Callable[[Message], str | None] = lambda message: None

    # entering and leaving

    def open(self) -> None:
        """Begin the turn, join the one that is under way, or continue the one that the key stands for."""
        self._check_not_entered()
        waits = self._opening.wait_steps()
        try:
            for wait in waits:
                self._opening.sleep(wait)
        finally:
            waits.close()  # Give up its place in the queue at once, whatever stopped it.
        self._adopt_opening()

    def _check_not_entered(self) -> None:
        if self._id is not None:
            raise Refused("This turn was entered already. Call session.turn again for another one.")

    def _adopt_opening(self) -> None:
        """Adopt the result of the opening."""
        taken = self._opening.turn_place
        self._id, self._epoch = taken.frame, self._opening.epoch
        self._replayed = self._opening.ended
        if self._opening.new:
            self._known = (self._opening.said[-1].version, self._opening.said)
        if not self._replayed:
            self._claim()

    def _frame_limits(self) -> FrameLimits:
        """Return the given limits over the defaults. Journaled whole, so that later defaults do not change them."""
        given, default = self._terms.limits, self._default_limits()
        return default if given is None else check_limits(given).apply_to(default)

    def _complete(self) -> None:
        """Do nothing: a turn ends with its reply. Left before that, it stays live."""

    def _pop(self, status: str, content: OutcomeContent) -> None:
        """End the turn by stopping it, so that all its calls have results."""
        self._stop_turn(str(content.error), status)

    def _release_block(self, error: BaseException | None = None) -> None:
        try:
            super()._release_block(error)
        finally:
            self._opening.leave()

    # properties

    @property
    def _place(self) -> TurnPlace:
        """The place of the turn, once it was begun or continued."""
        return self._opening.turn_place

    @property
    def key(self) -> str | None:
        """The key of the turn."""
        return self._terms.key

    @property
    def usage(self) -> Usage:
        """The usage of its model calls so far."""
        if self._used is not None:
            return self._used
        live = None if self._ended else read.load_current_state(self._env, self._stream).frames.get(self.id)
        if live is not None:
            return live.usage
        _, row = read.find_frame_row(self._env, self.id)  # A turn that has ended has only its row.
        return row_usage(row)

    @property
    def text(self) -> str:
        """The final reply; empty until there is one."""
        return "" if self._ended is None else self._ended.text

    # next steps

    def __iter__(self) -> Iterator[Step]:
        while steps := self.steps(at_once=1):
            yield steps[0]
            if isinstance(steps[0], Done) or (isinstance(steps[0], Ask) and not self._can_continue()):
                return

    def _can_continue(self) -> bool:
        """Return True if something that the turn waited for has been answered meanwhile."""
        view = self._load_view()
        return view is None or view.step.next != "wait"

    def _check_claimed(self) -> None:
        """Refuse work in a block that was left: another owner may have these steps now."""
        if not self._claimed:
            raise TurnLeft

    def _check_inside(self) -> None:
        if not self._replayed:
            self._check_claimed()

    def steps(self, at_once: int | None = None) -> list[Step]:
        """Return every step that can be done now: one, or several tools that may run in parallel.

        The last ones are `Done`, or `Ask` for as long as the whole turn waits; after `Done` there are none.
        """
        left = [step for step in self._open.values() if not step.answered]
        if left:
            raise StepUnanswered(f"{left[0]!r} was not answered. Call done(…) or fail(…) before the next step.")
        self._open.clear()
        if self._ended is None and self._replayed:
            self._load_outcome()
        if self._ended is None:
            self._check_claimed()
            steps = self._next_or_stop(at_once)
            if self._ended is None:
                return steps
        if self._told:
            return []
        self._told = True
        assert self._ended is not None
        return [self._ended]

    def _next_or_stop(self, at_once: int | None) -> list[Step]:
        """Return the next steps, or end the turn if a limit is reached."""
        try:
            return self._next_steps(at_once)
        except LimitExceeded as error:
            return [self._stop_turn(describe_limit(error), "failed")]
        except FrameEnded:
            return [self._load_outcome()]

    def _load_view(self) -> TurnView | None:
        with self._env.journal.snapshot():
            return self._refresh_view()

    def _load_view_and_context(self) -> tuple[TurnView | None, ModelCallContext | None]:
        """Return the next step and, if it is a model call that needs no fetching, its context, from one snapshot."""
        with self._env.journal.snapshot():
            view = self._refresh_view()
            return view, None if view is None or not self._model.can_build_now(view) else self._model.build_context()

    def _refresh_view(self) -> TurnView | None:
        view = turns.read_turn(self._env, self._place, self._known)
        if view is not None:
            self._known = (view.versions[1], view.tail)
        return view

    def _next_steps(self, at_once: int | None) -> list[Step]:
        while True:
            view, shown = self._load_view_and_context()
            if view is None:
                return [self._load_outcome()]
            if view.step.next == "stop":
                why = turns.find_stop_request(self._env, self._place)
                return [self._stop_turn(why or turns.CONVERSATION_ENDED, "cancelled")]
            for call in view.unwanted:
                calls.drop_tool_call(self._env, self._place, call, INTERRUPTED_RETURN)
            if view.unwanted:
                continue
            if view.step.next == "wait":
                if self._resume_own_frame(view):
                    continue
                return [Ask(self, self._load_questions(view))]
            if view.step.next == "finish":
                done = self._finish(view)
                if done is None:
                    continue
                return [done]
            if view.step.next == "model":
                return [self._model.begin(view, shown)]
            steps = self._tools.begin(view, at_once)
            if steps:
                return list(steps)

    def _resume_own_frame(self, view: TurnView) -> bool:
        """Resume the turn's frame if it was suspended itself and is answered or its timer is due."""
        question = view.frame.question
        if question is None or not is_resumable(question, self._env.clock.now_ms()):
            return False
        questions.resume_frame(self._env, self.id)
        return True

    def _load_questions(self, view: TurnView) -> tuple[QuestionInfo, ...]:
        waiting = [question for tool in view.step.tools for question in tool.questions]
        own = [view.frame.question] if view.frame.question is not None else waiting
        return tuple(read.read_question(self._env, one.id) for one in own)

    # outcomes of steps

    def _hand_out(self, key: str, step: S) -> S:
        """Register a step that the loop has to answer."""
        self._open[key] = step
        return step

    def _remember_messages(self, *messages: Message) -> None:
        """Remember messages just written, so that they need not be read, if nothing came between them."""
        known = self._known
        for message in messages:
            follows = known is not None and message.version == known[0] + 1
            known = (message.version, (*known[1], message)) if known is not None and follows else None
        self._known = known

    def _remember_pack(self) -> None:
        """Remember that nothing was said since the pack that was just journaled."""
        state = self._env.states.get(self._env.tenant, self._place.thread)
        packed_last = state is not None and state.thread is not None and state.thread.packed == state.version
        self._known = (state.version, ()) if state is not None and packed_last else None

    def tool_frame(self, step: CallTool) -> ToolFrame:
        """Return the frame of a tool call, for code that runs in it."""
        return ToolFrame(self._env, self._stream, step.key)

    # the end

    def _finish(self, view: TurnView) -> Done | None:
        """End the turn with the model's reply, or append a complaint if the reply is not acceptable."""
        reply = view.tail[-1]
        complaint = self._accepts(reply)
        if complaint is not None:
            if self._count_corrections() >= CORRECTIONS:
                return self._stop_turn(f"output: {complaint}", "failed")
            self.append(Message(role="user", content=complaint, synthetic=True))
            return None
        if not calls.finish_turn(self._env, self._place, reply, release=self._epoch):
            return None
        self._note_end(Done(self, "done", reply))
        return self._ended

    def _count_corrections(self) -> int:
        """Count how often the model was told so far that its reply is not acceptable."""
        said = outcome.read_turn_messages(self._env, self._place)
        return sum(one.role == "user" and one.synthetic and one.text != UNSEEN_NOTICE for one in said)

    def stop(self, reason: str = turns.STOPPED) -> Done:
        """End the turn now: keep the streamed text as a partial message, and give open calls a result that says so."""
        if self._ended is None and self._replayed:
            self._load_outcome()
        if self._ended is not None:
            return self._ended
        # Text was streamed, so the call was made. Before that it is unknown.
        return self._stop_turn(
            reason, "cancelled", usage=0 if self._partial_message is None else self._estimate_usage()
        )

    def _stop_turn(self, reason: str, status: str, *, usage: Usage | int = 0) -> Done:
        self._check_claimed()
        for step in self._open.values():
            step.answered = True
        turn_stop.stop_turn(
            self._env,
            self._place,
            reason=reason,
            status=status,
            partial=self._partial_message,
            usage=usage,
            begun=[one.call for one in self._open.values() if isinstance(one, CallModel) and not one.repeated],
            release=self._epoch,
        )
        self._note_end(Done(self, "stopped", outcome.find_last_reply(self._env, self._place), reason))
        assert self._ended is not None
        return self._ended

    def _load_outcome(self) -> Done:
        """Load the outcome of a turn that has ended before."""
        came = outcome.read_outcome(self._env, self._place)
        self._ended = Done(self, "done" if came.completed else "stopped", came.message, came.reason)
        return self._ended

    def _note_end(self, done: Done) -> None:
        """Note that the turn has ended, and its lease with it."""
        self._ended = done
        if self._epoch is not None and not self._env.leases.holds(self._env.tenant, self._stream):
            self._epoch = None

    # stopping

    def is_stopping(self) -> bool:
        """Return True if the turn can only stop, by request or because its message is gone. End it with `stop`."""
        return self._load_stop_reason() is not None

    def wait_for_stop(self, timeout: float | None = None) -> str | None:
        """Wait until the turn is asked to stop, and return the reason.

        Returns None after `timeout` seconds, or once the turn has ended with its reply, in any process.
        """
        clock = self._env.clock
        end = None if timeout is None else clock.monotonic() + timeout
        while (reason := self._load_stop_reason()) is None and not self._has_ended:
            left = STOP_POLL_SECONDS if end is None else min(STOP_POLL_SECONDS, end - clock.monotonic())
            if left <= 0:
                return None
            clock.sleep(left)
        return reason

    @property
    def _has_ended(self) -> bool:
        return self._ended is not None or self._replayed

    def _load_stop_reason(self) -> str | None:
        """Return why the turn is to stop, or was stopped; None if no stop was requested."""
        if self._ended is None and self.id not in read.load_current_state(self._env, self._stream).frames:
            self._load_outcome()
        if self._ended is not None:
            return self._ended.reason
        return turns.find_stop_reason(self._env, self._place)

    def _stop_if_requested(self) -> None:
        """Stop the turn if that was requested."""
        reason = turns.find_stop_request(self._env, self._place)
        if reason is not None and self._ended is None:
            self._stop_turn(reason, "cancelled", usage=self._estimate_usage())

    @property
    def _partial_message(self) -> Message | None:
        """The streamed text of an incomplete reply, as a message."""
        text = self._words()
        return Message(role="assistant", content=text) if text else None

    def _estimate_usage(self) -> Usage:
        """Estimate the usage of the call in progress from its pack.

        Usage by an earlier process that made the same call is counted where that call is given up.
        """
        shown = [step for step in self._open.values() if isinstance(step, CallModel) and not step.answered]
        return Usage.estimate(sum(step.pack.tokens for step in shown))

    def __repr__(self) -> str:
        return f"Turn({self._content.goal!r}, id={self._id!r})"


class ToolFrame(Frame):
    """The frame of a tool call. The turn begins and ends it; the tool works in it."""

    def __init__(self, env: Env, stream: str, frame: str) -> None:
        super().__init__(env, stream, "")
        self._id = frame

    def open(self) -> None:
        """Refuse: the frame is open already."""
        raise Refused("The frame of a tool call is begun and ended by its turn. Push a child with frame(…) instead.")


class TurnToolCalls:
    """The tool calls of one turn."""

    def __init__(self, turn: Turn, rules: ToolRules) -> None:
        self._turn, self._rules = turn, rules
        self._env = turn._env
        self._settles: ToolCallSettler | None = None

    @property
    def settler(self) -> ToolCallSettler:
        """The settler of calls before they begin. Created on first use, because it needs the turn's place."""
        if self._settles is None:
            self._settles = ToolCallSettler(self._env, self._turn._place, self._rules)
        return self._settles

    def begin(self, view: TurnView, at_once: int | None) -> list[CallTool]:
        """Begin the calls that can begin now; return none if calls were only settled."""
        begun: list[ReadyCall] = []
        for tool in view.step.tools:
            if tool.next == "wait" or (at_once is not None and len(begun) >= at_once):
                continue
            ready = self.settler.settle(view, tool)
            if ready is not None:
                begun.append(ready)
        if begun:
            calls.begin_tool_calls(self._env, self._turn._place, [one for one, _ in begun])
        return [self._make_step(one, answer) for one, answer in begun]

    def _make_step(self, one: ToolCallStart, answer: Any) -> CallTool:
        step = CallTool(self._turn, one.request, attempt=one.attempt, answer=answer, args=one.arguments)
        return self._turn._hand_out(one.request.id, step)

    def end_call(self, step: CallTool, value: Any, *, failed: bool = False, files: Sequence[bytes] = ()) -> Message:
        """Record a call's value or failure."""
        return self._end_call(step, ToolCallReturn(result=add_edit_note(step, value), failed=failed), files)

    def end_unknown(self, step: CallTool, text: str) -> Message:
        """Record that a call's outcome is unknown, and tell the model so."""
        return self._end_call(step, build_unknown_return(add_edit_note(step, text)))

    def _end_call(self, step: CallTool, came: ToolCallReturn, files: Sequence[bytes] = ()) -> Message:
        turn = self._turn
        turn._check_claimed()
        said = calls.end_turn_tool_call(self._env, turn._place, step.request, came, files=files)
        step.answered = True
        if not said.id:
            return said
        turn._remember_messages(said)
        compaction_rules.fire_after_append(self._env, turn._place.thread, [said])
        return said

    def ask(self, step: CallTool, reason: str, kind: str, how: Mapping[str, Any]) -> str:
        """Ask a person on behalf of a tool before it goes on; return the question's id."""
        self._turn._check_claimed()
        one = ToolCallStart(request=step.request, arguments=step._args)
        content = build_tool_question(reason, self.settler.display_arguments(one), **how)
        return calls.ask_about_call(self._env, self._turn._place, one, content, kind=kind)

    def ask_about_outcome(self, step: CallTool, why: str) -> None:
        """Ask a person what to do about a call whose outcome is unknown."""
        self._turn._check_claimed()
        one = ToolCallStart(request=step.request, arguments=step._args, attempt=step.attempt + 1)
        self.settler.ask_to_rerun(one, why.removesuffix(MAY_HAVE_RUN))


def add_edit_note(step: CallTool, value: Any) -> Any:
    """Return a result, with a note if a person changed the arguments or approved more than the model wrote."""
    if not step.edited:
        return value
    used = msgspec.json.encode(step.args).decode()
    note = f"[A person changed the arguments of this call to {used}.]"
    if _is_filled_in(step):
        note = f"[This call was made with the arguments that a person approved: {used}.]"
    if isinstance(value, str):
        return f"{note}\n{value}"
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return [{"type": "text", "text": note}, *value]
    return {"note": note, "result": value}


def _is_filled_in(step: CallTool) -> bool:
    """Return True if all arguments of the model are used, and others besides."""
    try:
        wrote = step.request.args
    except InvalidValue:
        return False
    if not isinstance(wrote, dict) or not isinstance(step.args, dict):
        return False
    return all(value is None or step.args.get(name) == value for name, value in wrote.items())

"""The engine of a turn: from a user's message to the final reply, as a loop that survives its process.

It makes every decision: open or continue the turn, find the next steps in the journal, journal their outcomes, stop,
leave. Blocking loops, asyncio loops and agents only drive it. Starting, continuing after a crash and returning a
finished turn are the same code. A turn that is left early, also by an exception, stays live: the same key continues
it. Tool calls that are ready begin together; each runs in a frame of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

from holdfast.core.frames import budgets
from holdfast.core.frames.questions import is_resumable
from holdfast.core.values import exception_text, to_plain
from holdfast.core.wire.read import read_input
from holdfast.errors import FrameEnded, LimitExceeded, Refused, StepUnanswered, TurnLeft
from holdfast.flow.compaction import rules as compaction_rules
from holdfast.flow.frames import calls as frame_calls
from holdfast.flow.frames import questions, read
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.frames.takeover import check_on_error, claim_block, is_interruption, read_status, release_lease
from holdfast.flow.packs import rebuild
from holdfast.flow.sessions import append
from holdfast.flow.sessions.read import session_stream
from holdfast.flow.turns import calls, model_calls, turns
from holdfast.flow.turns import stop as turn_stop
from holdfast.flow.turns.append import ConversationOver
from holdfast.flow.turns.calls import (
    EngineStep,
    ToolCallReturn,
    ToolCallStart,
    TurnModelCall,
    TurnQuestions,
    TurnToolCall,
    add_edit_note,
    error_text,
)
from holdfast.flow.turns.limits import ModelLimits, check_bounds, describe_limit
from holdfast.flow.turns.model_calls import ModelCallContext, TurnModelCalls, has_unanswered_message
from holdfast.flow.turns.open import Ticket, TurnOpener
from holdfast.flow.turns.tool_calls import (
    CHECK_FIRST,
    INTERRUPTED_RETURN,
    MAY_HAVE_RUN,
    ToolCallSettler,
    ToolRules,
    build_tool_question,
)
from holdfast.flow.turns.turns import KnownTail, TurnEnd, TurnTerms, TurnView
from holdfast.ports import Env
from holdfast.records.frames import LIVE_STATUSES
from holdfast.records.messages import Message
from holdfast.records.recovery import StopCode
from holdfast.records.usage import Usage

CORRECTIONS = 3
"""How often the model is told that its reply does not have the required form."""
UNSEEN_NOTICE = "[The message above came while this reply was written. Answer it now.]"
STOP_POLL_SECONDS = 0.5
"""Seconds between checks for a stop request while a reply streams."""


class TurnEngine:
    """The engine of one turn."""

    def __init__(
        self,
        env: Env,
        thread: str,
        terms: TurnTerms,
        *,
        rules: ToolRules | None = None,
        limits: ModelLimits | None = None,
        on_error: str = "leave",
        find_problem: Callable[[Message], str | None] | None = None,
    ) -> None:
        self.env, self.key, self.goal = env, terms.key, turns.turn_goal(terms.messages)
        self.opener = TurnOpener(env, thread, terms)
        self._on_error = check_on_error(on_error)
        self._rules, self._limits = rules or ToolRules(), limits or ModelLimits()
        check_bounds(self._limits.budget, self._limits.loops)
        self.find_problem = find_problem
        """Returns what is wrong with a final reply, for the model to correct; None if nothing is."""
        self.entered = self._claimed = self._told = False
        self.replayed = False
        """True if the turn had ended before it was opened."""
        self._epoch: int | None = None
        self._open: dict[str, TurnModelCall | TurnToolCall] = {}
        self._begun: list[TurnToolCall] = []
        """Tool calls that began with the model's reply, to be handed out next."""
        self._known: KnownTail | None = None
        self.ended: TurnEnd | None = None
        self.used: Usage | None = None
        """The usage of its model calls, once it has ended with a reply."""
        self.streamed: Callable[[], str] = str
        """Returns the text streamed so far of the reply in progress; joined only on demand."""

    # Opening and leaving

    def open(self) -> None:
        """Begin the turn, join the one that is under way, or continue the one that the key stands for."""
        self.check_not_entered()
        waits = self.opener.wait_steps()
        try:
            for wait in waits:
                if isinstance(wait, Ticket):
                    wait.event.wait(self.opener.remaining_wait())
                else:
                    self.env.clock.sleep(wait)
        finally:
            waits.close()  # Give up its place in the queue at once, whatever stopped it.
        self.enter()

    def check_not_entered(self) -> None:
        """Refuse to open a turn twice."""
        if self.entered:
            raise Refused("This turn was entered already. Call session.turn again for another one.")

    def enter(self) -> None:
        """Enter the turn that the opener found, and claim it for this block."""
        opener = self.opener
        assert opener.found is not None, "the opener found it"
        self.place, self.entered = opener.found, True
        self.env = opener.env
        self._epoch, self.replayed = opener.epoch, opener.ended
        self._models = TurnModelCalls(self.env, self.place, self._limits, new=opener.new)
        self._settler = ToolCallSettler(self.env, self.place, self._rules)
        if opener.new:
            self._known = (opener.said[-1].version, opener.said)
        if self.replayed:
            return
        try:
            claim_block(self.env, self.place.frame)
        except BaseException:
            self.leave()
            raise
        self._claimed = True

    def leave(self, error: BaseException | None = None) -> None:
        """Leave the turn: it stays live unless it has ended, or an error ends it. See client/frame.py.

        The claim and the lease are released, and the next waiter of this process goes on.
        """
        try:
            if isinstance(error, Exception):
                self._fail(error)
        finally:
            try:
                if self._claimed:
                    self._claimed = False
                    self.env.leases.blocks.discard((self.env.tenant, self.place.frame))
                epoch, self._epoch = self._epoch, None
                if epoch is not None:
                    release_lease(self.env, self.place.actor, epoch, error)
            finally:
                self.opener.leave()

    def _fail(self, error: Exception) -> None:
        frame = self.place.frame
        try:
            status = read_status(self.env, self.place.actor, frame)
            kept = self._on_error == "leave" or is_interruption(error, status) or self.replayed
            if kept or status not in LIVE_STATUSES:
                error.add_note(f"Frame {frame} is {status}.")
                return
            self._stop(exception_text(error), "failed")
            error.add_note(f"Frame {frame} failed with this.")
        except Exception as second:  # noqa: BLE001  # The error that leaves the block is the one to raise.
            error.add_note(f"Frame {frame} could not be ended: {second}")

    def check_claimed(self) -> None:
        """Refuse work in a block that was left: another owner may have these steps now."""
        if not self._claimed:
            raise TurnLeft

    @property
    def is_released(self) -> bool:
        """True if leaving the turn writes nothing: its lease was given back with its end."""
        return self._epoch is None

    def check_inside(self) -> None:
        """Refuse work outside the block; a turn that had ended before refuses by itself."""
        if not self.replayed:
            self.check_claimed()

    # State

    @property
    def id(self) -> str:
        """The id of the turn's frame; refused before the turn is opened."""
        return self.opener.turn_place.frame

    @property
    def usage(self) -> Usage:
        """The usage of its model calls so far."""
        return self.used if self.used is not None else turns.read_turn_usage(self.env, self.opener.turn_place)

    def load_view(self) -> TurnView | None:
        """Load the current state of the turn; None once it has ended."""
        view = turns.read_turn(self.env, self.place, self._known)
        if view is not None:
            self._known = (view.versions[1], view.tail)
        return view

    def can_continue(self) -> bool:
        """Return True if something that the turn waited for has been answered meanwhile."""
        with self.env.journal.snapshot():
            view = self.load_view()
        return view is None or view.step.next != "wait"

    def load_outcome(self) -> TurnEnd:
        """Load the outcome of a turn that has ended before."""
        self.ended = turns.read_outcome(self.env, self.place)
        return self.ended

    # Next steps

    def next_steps(self, at_once: int | None = None) -> list[EngineStep]:
        """Return every step that can be done now: one, or several tools that may run in parallel.

        The last ones are the end, or the questions for as long as the whole turn waits; after the end there are none.
        """
        left = [call for call in self._open.values() if not call.answered]
        if left:
            raise StepUnanswered(f"{left[0]!r} was not answered. Call done(…) or fail(…) before the next step.")
        self._open.clear()
        if self.ended is None and self.replayed:
            self.load_outcome()
        if self.ended is None:
            self.check_claimed()
            try:
                steps = self._hand_out(self._begun) if self._begun else self._find_steps(at_once)
            except LimitExceeded as error:
                self._stop(*describe_limit(error))
            except FrameEnded:
                self.load_outcome()
            if self.ended is None:
                return steps
        if self._told:
            return []
        self._told = True
        return [self.ended]

    @property
    def is_answered(self) -> bool:
        """True if every step that was handed out has its outcome."""
        return all(call.answered for call in self._open.values())

    def _hand_out(self, begun: list[TurnToolCall]) -> list[EngineStep]:
        """Hand out tool calls whose intents are in the journal."""
        self._begun = []
        self._open.update((call.request.id, call) for call in begun)
        return list(begun)

    def _find_steps(self, at_once: int | None) -> list[EngineStep]:
        """Return the next steps; none once the turn has ended."""
        while self.ended is None:
            context: ModelCallContext | None = None
            with self.env.journal.snapshot():
                view = self.load_view()
                if view is not None and self._models.can_build_now(view):
                    context = self._models.build_context()
            if view is None:
                self.load_outcome()
                break
            match view.step.next:
                case "stop":
                    why = turns.find_stop_request(self.env, self.place)
                    self._stop(why or turns.CONVERSATION_ENDED, "cancelled")
                case _ if view.unwanted:
                    for call in view.unwanted:
                        calls.drop_tool_call(self.env, self.place, call, INTERRUPTED_RETURN)
                case "wait":
                    question = view.frame.question
                    if question is None or not is_resumable(question, self.env.clock.now_ms()):
                        waiting = [one for tool in view.step.tools for one in tool.questions]
                        asked = waiting if question is None else [question]
                        return [TurnQuestions(tuple(read.read_question(self.env, one.id) for one in asked))]
                    # The turn's frame was suspended itself, and is answered or its timer is due.
                    questions.resume_frame(self.env, self.place.frame)
                case "finish":
                    self._finish(view)
                case "model":
                    return [self._begin_model(view, context)]
                case _:
                    begun = self._begin_tools(view, at_once)
                    if begun:
                        return self._hand_out(begun)
        return []

    def _finish(self, view: TurnView) -> None:
        """End the turn with the model's reply, or append a complaint if the reply is not acceptable."""
        reply = view.tail[-1]
        complaint = None if self.find_problem is None else self.find_problem(reply)
        if complaint is None:
            if calls.finish_turn(self.env, self.place, reply, release=self._epoch):
                self._note_end(TurnEnd("done", reply))
            return
        said = turns.read_turn_messages(self.env, self.place)
        corrections = sum(one.role == "user" and one.synthetic and one.text != UNSEEN_NOTICE for one in said)
        if corrections >= CORRECTIONS:
            self._stop(f"output: {complaint}", "failed", "output")
        else:
            self._append_notice(complaint)

    def _append_notice(self, text: str) -> None:
        """Append a notice for the model, as a message that no person wrote."""
        self.check_claimed()
        notice = read_input(Message(role="user", content=text, synthetic=True))
        found = append.append_frame_messages(self.env, self.place.frame, notice)
        compaction_rules.fire_rules(self.env, found[-1].stream, found)

    # Model calls

    def _begin_model(self, view: TurnView, context: ModelCallContext | None) -> TurnModelCall:
        """Begin the next model call with its context, or repeat a call that was begun before."""
        if self._limits.cost is not None:
            self._models.check_cost()
        sent = view.step.call
        if sent is not None:  # An earlier process may have sent it: the same call, with the pack that was shown then.
            call = TurnModelCall(sent.id, rebuild.pack_at(self.env, sent.id, None), sent.name or "", repeated=True)
        else:
            if has_unanswered_message(view):
                self._models.check_loops()
                self._append_notice(UNSEEN_NOTICE)
            call = self._models.begin(context)
            state = self.env.states.streams.get((self.env.tenant, self.place.thread))
            nothing_since = state is not None and state.thread is not None and state.thread.packed == state.version
            self._known = (state.version, ()) if state is not None and nothing_since else None
        self._open[call.call] = call
        return call

    def finish_model(
        self,
        call: TurnModelCall,
        response: Any,
        usage: Usage | int | None = None,
        finish: str | None = None,
        *,
        begin_tools: bool = False,
    ) -> Message:
        """Journal a model's reply; the turn ends with it, unless it calls tools or is not acceptable.

        With `begin_tools`, the caller runs the calls it asks for as soon as this returns: `next_steps` hands them out.
        Their intents are journaled with the reply, unless one of them needs a decision first.
        """
        with call.answer_once():
            message = calls.read_response(response, finish)
            self.check_claimed()
            env, place = self.env, self.place
            shown = call.packed.token_summary.used
            used = model_calls.reply_usage(env, place.thread, shown, message, usage)
            unfit = self.find_problem is not None and not message.tool_calls and self.find_problem(message) is not None
            try:
                said, self.used, begun = calls.end_turn_model_call(
                    env,
                    place,
                    call.call,
                    message,
                    model=call.model or call.packed.model,
                    usage=used,
                    doubtful=Usage.estimate(shown) if call.repeated else None,
                    may_end=not unfit,
                    release=self._epoch,
                    start=self._settler.find_starter(message) if begin_tools and not self._has_rules() else None,
                )
            except ConversationOver:
                paid = append.add_cost(env, budgets.to_usage(used), message.model or call.model or None)
                self._stop(turns.CONVERSATION_ENDED, "cancelled", usage=paid)
                return message
            self.streamed, call.answered = str, True
            self._models.update_tally(in_a_row=0)
            self._remember_message(said)
            self._begun = [TurnToolCall(one.request, one.attempt, None, None) for one in begun]
            if not begun:
                self._settler.unbegun.update(one.id for one in said.tool_calls)
            if self.used is not None:
                self._note_end(TurnEnd("done", said))
            compaction_rules.fire_rules(env, place.thread, [said])
            return said

    def _has_rules(self) -> bool:
        """Return True if rules run after each append: a call that had begun would wait for them."""
        env = self.env
        return bool(env.rules and compaction_rules.rules_of(env, session_stream(self.place.thread)))

    def fail_model(
        self, call: TurnModelCall, error: BaseException | str, *, retryable: bool = False, usage: Usage | int = 0
    ) -> None:
        """Journal that a model gave no reply; the turn ends if calling it again cannot help."""
        with call.answer_once():
            text = error_text(error)
            self.check_claimed()
            record = append.add_cost(self.env, budgets.to_usage(usage), call.model or None)
            frame_calls.end_model_call(
                self.env, self.place.frame, call.call, usage=record, error=text, retryable=retryable
            )
            self.streamed = str
            if retryable:
                self._models.note_failure()
            else:
                self._stop(f"model: {text}", "failed", "model")

    def _remember_message(self, said: Message) -> None:
        """Remember a message just written, so that it need not be read, if nothing came between."""
        known = self._known
        follows = known is not None and said.version == known[0] + 1
        self._known = (said.version, (*known[1], said)) if known is not None and follows else None

    # Tool calls

    def _begin_tools(self, view: TurnView, at_once: int | None) -> list[TurnToolCall]:
        """Begin the calls that can begin now; return none if calls were only settled."""
        wanted = (tool for tool in view.step.tools if tool.next != "wait")
        settled = (self._settler.settle(view, tool) for tool in wanted)
        ready = list(islice((one for one in settled if one is not None), at_once))
        if ready:
            calls.begin_tool_calls(self.env, self.place, [one for one, _ in ready])
        return [TurnToolCall(one.request, one.attempt, answer, one.arguments) for one, answer in ready]

    def finish_tool(
        self, call: TurnToolCall, value: Any, *, files: Sequence[bytes] = (), policy: str | None = None
    ) -> Message:
        """Journal a tool's value, text or plain data, with files to keep and a policy for compaction."""
        with call.answer_once():
            came = ToolCallReturn(result=add_edit_note(call, to_plain(value)), policy=policy)
            return self.end_tool(call, came, files)

    def fail_tool(self, call: TurnToolCall, error: BaseException | str) -> Message:
        """Journal that a tool failed: the model is told, and the turn continues."""
        with call.answer_once():
            return self.end_tool(call, ToolCallReturn(result=add_edit_note(call, error_text(error)), failed=True))

    def finish_unknown_tool(self, call: TurnToolCall, text: str) -> Message:
        """Journal that a call's outcome is unknown, and tell the model so."""
        said = add_edit_note(call, text).removesuffix(MAY_HAVE_RUN) + MAY_HAVE_RUN
        return self.end_tool(call, ToolCallReturn(result=f"{said} {CHECK_FIRST}", failed=True, interrupted=True))

    def end_tool(self, call: TurnToolCall, came: ToolCallReturn, files: Sequence[bytes] = ()) -> Message:
        """Journal the outcome of a tool call."""
        self.check_claimed()
        said = calls.end_turn_tool_call(self.env, self.place, call.request, came, files=files)
        call.answered = True
        if said.id:
            self._remember_message(said)
            compaction_rules.fire_rules(self.env, self.place.thread, [said])
        return said

    def ask(self, call: TurnToolCall, reason: str, kind: str, how: Mapping[str, Any]) -> str:
        """Ask a person on behalf of a tool before it goes on; return the question's id."""
        with call.answer_once():
            self.check_claimed()
            one = ToolCallStart(request=call.request, arguments=call.args)
            content = build_tool_question(reason, self._settler.display_arguments(one), **how)
            return calls.ask_about_call(self.env, self.place, one, content, kind=kind)

    def ask_about_outcome(self, call: TurnToolCall, why: str) -> None:
        """Ask a person what to do about a call whose outcome is unknown."""
        self.check_claimed()
        one = ToolCallStart(request=call.request, arguments=call.args, attempt=call.attempt + 1)
        self._settler.ask_to_rerun(one, why.removesuffix(MAY_HAVE_RUN))

    # Stopping

    def stop(self, reason: str = turns.STOPPED) -> TurnEnd:
        """End the turn now: keep the streamed text as a partial message, and give open calls a result that says so."""
        if self.ended is None and self.replayed:
            self.load_outcome()
        if self.ended is not None:
            return self.ended
        # Text was streamed, so the call was made. Before that it is unknown.
        return self._stop(reason, "cancelled", usage=self._estimate_usage() if self.streamed() else 0)

    def stop_if_requested(self) -> None:
        """Stop the turn if that was requested."""
        reason = turns.find_stop_request(self.env, self.place)
        if reason is not None and self.ended is None:
            self._stop(reason, "cancelled", usage=self._estimate_usage())

    def load_stop_reason(self) -> str | None:
        """Return why the turn is to stop, or was stopped; None if no stop was requested."""
        if self.ended is None and self.id not in load_current_state(self.env, self.place.actor).frames:
            self.load_outcome()
        if self.ended is not None:
            return self.ended.reason
        return turns.find_stop_reason(self.env, self.place)

    def wait_for_stop(self, timeout: float | None) -> str | None:
        """Wait until the turn is asked to stop, and return the reason; None after the timeout, or once it has ended."""
        clock = self.env.clock
        end = None if timeout is None else clock.monotonic() + timeout
        while (reason := self.load_stop_reason()) is None and self.ended is None:
            left = STOP_POLL_SECONDS if end is None else min(STOP_POLL_SECONDS, end - clock.monotonic())
            if left <= 0:
                return None
            clock.sleep(left)
        return reason

    def _stop(self, reason: str, status: str, code: StopCode | None = None, *, usage: Usage | int = 0) -> TurnEnd:
        self.check_claimed()
        for call in self._open.values():
            call.answered = True
        text = self.streamed()
        turn_stop.stop_turn(
            self.env,
            self.place,
            reason=reason,
            status=status,
            code=code,
            partial=Message(role="assistant", content=text) if text else None,
            usage=usage,
            begun=[one.call for one in self._open.values() if isinstance(one, TurnModelCall) and not one.repeated],
            release=self._epoch,
        )
        last = turns.find_last_reply(self.env, self.place)
        return self._note_end(TurnEnd("stopped", last, reason, turns.stop_code(status, code)))

    def _note_end(self, end: TurnEnd) -> TurnEnd:
        """Note that the turn has ended, and its lease with it."""
        self.ended = end
        if self._epoch is not None and not self.env.leases.holds(self.env.tenant, self.place.actor):
            self._epoch = None
        return end

    def _estimate_usage(self) -> Usage:
        """Estimate the usage of the call in progress from its pack.

        Usage by an earlier process that made the same call is counted where that call is given up.
        """
        shown = [call for call in self._open.values() if isinstance(call, TurnModelCall) and not call.answered]
        return Usage.estimate(sum(call.packed.token_summary.used for call in shown))

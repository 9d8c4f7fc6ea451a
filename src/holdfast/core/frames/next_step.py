"""The next step of a frame, as a pure function of its journaled state.

Starting and resuming ask the same question: given the journal, what may be done? The hard case is an intent without
an outcome, because the effect may have happened. There is no guessing: each call declares beforehand what is to be
done if it is interrupted. A turn (a root frame with a conversation) asks the same question and adds its messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.core.frames.questions import is_expired, is_resumable
from holdfast.core.frames.stack import is_all_suspended, walk_leaf_first
from holdfast.records.frames import Call, FrameState, Question
from holdfast.records.messages import Message

FrameNext = Literal["work", "children", "answer", "resume", "retry", "ask", "fail"]

TurnNext = Literal["model", "tools", "finish", "wait", "stop"]
ToolNext = Literal["begin", "resume", "again", "late", "wait", "retry", "ask", "fail"]


class FrameStep(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do.

    work      nothing is open: go on
    children  wait for the frames below
    answer    a question is open: wait
    resume    the question is answered, or its timer rang: resume the frame
    retry     a call was interrupted and may run again under the same id
    ask       a call was interrupted and may have happened: a person must decide
    fail      a call was interrupted and counts as failed
    """

    next: FrameNext
    frame: str
    call: Call | None = None
    question: Question | None = None


def next_steps(frame: FrameState, *, live_children: bool, now: int) -> list[FrameStep]:
    """Return everything to do in one live frame after a restart, in the order in which it was begun."""
    if frame.question is not None:
        ready = is_resumable(frame.question, now)
        return [FrameStep(next="resume" if ready else "answer", frame=frame.id, question=frame.question)]
    torn = sorted(frame.calls.values(), key=lambda call: call.version)
    if torn:
        return [FrameStep(next=interruption_policy(call), frame=frame.id, call=call) for call in torn]
    return [FrameStep(next="children" if live_children else "work", frame=frame.id)]


def interruption_policy(call: Call) -> Literal["retry", "ask", "fail"]:
    """Return the policy for a call that has an intent and no outcome."""
    if call.if_interrupted == "retry":
        return "retry"
    return "fail" if call.if_interrupted == "fail" else "ask"


class ToolStep(msgspec.Struct, frozen=True, kw_only=True):
    """The next step for one tool call without a result. The frame that works for the call has the call's id.

    begin    the call was never begun, or continues after a question: begin
    wait     the call or its frames below wait for an answer
    resume   its question is answered, or its timer rang
    again    the frames below it can go on: run the call again
    late     its question expired, and its frame is to end then
    retry, ask, fail   the call was begun and interrupted; if its frame was ended from outside, it has failed
    """

    next: ToolNext
    call: str
    frame: FrameState | None = None
    torn: Call | None = None
    questions: tuple[Question, ...] = ()
    """The questions that the call waits for."""


class TurnStep(msgspec.Struct, frozen=True, kw_only=True):
    """The next step of a turn: one thing, or several tools in parallel."""

    next: TurnNext
    call: Call | None = None
    """A model call that was begun and has no outcome: it is made again under its id."""
    tools: tuple[ToolStep, ...] = ()


def next_turn_step(
    frame: FrameState,
    *,
    children: Mapping[str, FrameState],
    waiting: Sequence[str],
    said: Sequence[Message],
    stopping: bool,
    now: int,
    frames: Mapping[str, FrameState] | None = None,
) -> TurnStep:
    """Return the next step of a turn.

    `waiting` are its tool calls without a result, `said` the messages after its last pack. `children` work for its
    calls; `frames` are all live frames, to see what the children began themselves.
    """
    if stopping:
        return TurnStep(next="stop")
    if frame.question is not None:
        return TurnStep(next="wait")
    model = next((call for call in frame.calls.values() if call.kind == "model"), None)
    if model is not None:
        return TurnStep(next="model", call=model)
    if waiting:
        live = children if frames is None else frames
        tools = tuple(_next_tool_step(frame, children.get(call), call, live, now) for call in waiting)
        ready = any(tool.next != "wait" for tool in tools)
        return TurnStep(next="tools" if ready else "wait", tools=tools)
    # The last message is the model's answer, and no user message came that the model was not shown.
    roles = [one.role for one in said]
    answered = roles[-1:] == ["assistant"] and not said[-1].tool_calls and "user" not in roles
    return TurnStep(next="finish" if answered else "model")


def _next_tool_step(
    turn: FrameState, frame: FrameState | None, call: str, live: Mapping[str, FrameState], now: int
) -> ToolStep:
    torn = turn.calls.get(call)
    if frame is None:
        # A call ends together with its frame. If only the frame has ended, it was ended from outside, without a result.
        return ToolStep(next="begin" if torn is None else "fail", call=call, torn=torn)
    asked = pending_questions(live, frame)
    if asked:
        then: ToolNext = "late" if frame.question is not None and is_late(frame.question, now) else "wait"
        if any(is_resumable(question, now) for question in asked):
            then = "resume" if frame.question is not None else "again"
        return ToolStep(next=then, call=call, frame=frame, questions=tuple(asked))
    if torn is None:
        return ToolStep(next="begin", call=call, frame=frame)
    return ToolStep(next=interruption_policy(torn), call=call, frame=frame, torn=torn)


def pending_questions(live: Mapping[str, FrameState], frame: FrameState) -> list[Question]:
    """Return a tool's open question, or those of the frames below it if all of them wait."""
    if frame.question is not None:
        return [frame.question]
    if frame.id not in live or not is_all_suspended(live, frame.id):
        return []
    asked = [below.question for below in walk_leaf_first(live, frame.id) if below.question is not None]
    return [question for question in asked if question.within is None]


def is_late(question: Question, now: int) -> bool:
    """Return True if the question expired unanswered and its policy is to fail or cancel."""
    return question.on_expiry in ("fail", "cancel") and is_expired(question, now)

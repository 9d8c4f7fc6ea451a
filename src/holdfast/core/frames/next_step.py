"""What comes next in a frame, as a pure function of its journaled state.

Starting and resuming are the same question: given what the journal says, what may be done?
An intent without an outcome is the hard case, because the effect may have happened. It is
never guessed: each call said beforehand what is to be done with it if it is interrupted.
A turn (a root frame with a conversation) asks the same question and adds its messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from holdfast.core.frames.questions import due, expired
from holdfast.core.frames.stack import all_suspended, leaf_first
from holdfast.records.frames import Call, Frame, Question

Next = Literal["work", "children", "answer", "resume", "retry", "ask", "fail"]


class Step(msgspec.Struct, frozen=True, kw_only=True):
    """One thing to do.

    work      nothing is open: go on
    children  wait for what is below
    answer    a question is open: wait
    resume    the question is answered, or its timer rang: resume the frame
    retry     a call was torn and may run again under the same id
    ask       a call was torn and may have happened: a person must say
    fail      a call was torn and counts as failed
    """

    next: Next
    frame: str
    call: Call | None = None
    question: Question | None = None


def steps(frame: Frame, *, live_children: bool, now: int) -> list[Step]:
    """Everything to be done in one live frame after a restart, in the order in which it was begun."""
    if frame.question is not None:
        ready = due(frame.question, now)
        return [Step(next="resume" if ready else "answer", frame=frame.id, question=frame.question)]
    torn = sorted(frame.calls.values(), key=lambda call: call.version)
    if torn:
        return [Step(next=torn_call(call), frame=frame.id, call=call) for call in torn]
    return [Step(next="children" if live_children else "work", frame=frame.id)]


def torn_call(call: Call) -> Literal["retry", "ask", "fail"]:
    """What to do with a call that has an intent and no outcome."""
    if call.if_interrupted == "retry":
        return "retry"
    return "fail" if call.if_interrupted == "fail" else "ask"


# turns: a root frame with a conversation

TurnNext = Literal["model", "tools", "finish", "wait", "stop"]
ToolNext = Literal["begin", "resume", "again", "late", "wait", "retry", "ask", "fail"]


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a turn, as far as it says what comes next."""

    version: int
    role: str
    calls: tuple[str, ...] = ()


class ToolStep(msgspec.Struct, frozen=True, kw_only=True):
    """What comes next for one tool call that has no result yet. The frame that works for it has its id.

    begin    it was never begun, or went on after a question: begin
    wait     it waits for an answer, or what it began below waits
    resume   its question is answered, or its timer rang
    again    what waited below it can go on: run it again
    late     nobody answered in time, and it is to end then
    retry, ask, fail   it was begun and torn; one whose frame somebody ended has failed
    """

    next: ToolNext
    call: str
    frame: Frame | None = None
    torn: Call | None = None
    questions: tuple[Question, ...] = ()
    """What it waits for."""


class TurnStep(msgspec.Struct, frozen=True, kw_only=True):
    """What comes next in a turn: one thing, or several tools beside each other."""

    next: TurnNext
    call: Call | None = None
    """A model call that was begun and has no outcome: it is made again under its id."""
    tools: tuple[ToolStep, ...] = ()


def turn_step(
    frame: Frame,
    *,
    children: Mapping[str, Frame],
    waiting: Sequence[str],
    said: Sequence[Said],
    stopping: bool,
    now: int,
    frames: Mapping[str, Frame] | None = None,
) -> TurnStep:
    """What a turn needs next. `waiting` are its tool calls without a result, `said` what came after its last pack.

    `children` work for its calls; `frames` are all that are live, for what those have begun themselves.
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
        tools = tuple(_tool_step(frame, children.get(call), call, live, now) for call in waiting)
        ready = any(tool.next != "wait" for tool in tools)
        return TurnStep(next="tools" if ready else "wait", tools=tools)
    return TurnStep(next="finish" if is_answered(said) else "model")


def is_answered(said: Sequence[Said]) -> bool:
    """Whether the last word is the model's, and nobody said anything that it was not shown."""
    if not said or said[-1].role != "assistant" or said[-1].calls:
        return False
    return not any(one.role == "user" for one in said)


def _tool_step(turn: Frame, frame: Frame | None, call: str, live: Mapping[str, Frame], now: int) -> ToolStep:
    torn = turn.calls.get(call)
    if frame is None:
        # A call ends with its frame. If the frame alone has ended, somebody else did that, and nothing came of it.
        return ToolStep(next="begin" if torn is None else "fail", call=call, torn=torn)
    asked = waited_for(live, frame)
    if asked:
        return ToolStep(next=_answered(frame, asked, now), call=call, frame=frame, questions=tuple(asked))
    if torn is None:
        return ToolStep(next="begin", call=call, frame=frame)
    return ToolStep(next=torn_call(torn), call=call, frame=frame, torn=torn)


def waited_for(live: Mapping[str, Frame], frame: Frame) -> list[Question]:
    """What a tool waits for: its own question, or those of its frames below if all that it has begun waits."""
    if frame.question is not None:
        return [frame.question]
    if frame.id not in live or not all_suspended(live, frame.id):
        return []
    asked = [below.question for below in leaf_first(live, frame.id) if below.question is not None]
    return [question for question in asked if question.within is None]


def _answered(frame: Frame, asked: Sequence[Question], now: int) -> ToolNext:
    if any(due(question, now) for question in asked):
        return "resume" if frame.question is not None else "again"
    return "late" if frame.question is not None and is_late(frame.question, now) else "wait"


def is_late(question: Question, now: int) -> bool:
    """Whether nobody answered in time, and it was agreed that this is the end then."""
    return question.on_expiry in ("fail", "cancel") and expired(question, now)

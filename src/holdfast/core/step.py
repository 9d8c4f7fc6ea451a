"""What comes next in a frame, as a pure function of its journaled state.

Starting and resuming are the same question: given what the journal says, what may be done?
An intent without an outcome is the hard case, because the effect may have happened. It is
never guessed: each call said beforehand what is to be done with it if it is interrupted.
A turn (a root frame with a conversation) asks the same question and adds its messages.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from holdfast.core.decide.questions import due
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

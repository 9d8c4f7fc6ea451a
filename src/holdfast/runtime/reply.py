"""What came of sending something to an agent, and what can be heard while it works."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec

from holdfast.client.steps import Ask, Done
from holdfast.errors import ArgumentsUnfit
from holdfast.records.resume import QuestionInfo
from holdfast.records.usage import Usage
from holdfast.runtime.output import Output

T = TypeVar("T")

Status = Literal["done", "waiting", "stopped"]


class Reply(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """What came of it. Waiting for a person is a value, not an exception: answer the questions, then send again.

    done      `text` is the reply, and `data` the same as the type that the agent was asked for; `finish` says why it
              ended if not by itself: cut off, refused
    waiting   `questions` are open; `hf.answer(question.id, approve=True)` answers one
    stopped   `reason` says why: tool_calls, deadline, budget, loops, output, model or what a stop said; `text` is
              what there is
    """

    status: Status
    text: str = ""
    data: T | None = None
    questions: tuple[QuestionInfo, ...] = ()
    reason: str | None = None
    finish: str | None = None
    """Why the reply ended, in its provider's word, as `length` or `refusal`; None if it ended by itself."""
    usage: Usage = Usage()
    turn_id: str = ""
    session: str = ""


EventKind = Literal[
    "message", "delta", "reset", "reply", "tool", "result", "progress", "question", "answered", "done", "stopped"
]


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a conversation, for who streams or tails it.

    With an `id` it is in the journal: `tail(session, after=id)` goes on right behind it. Deltas and progress have
    none; whoever comes later finds what they led to.
    """

    kind: EventKind
    id: str | None = None
    text: str = ""
    name: str | None = None
    data: dict[str, Any] = {}


def reply_of(ended: Done | Ask, output: Output, *, turn: str, session: str, usage: Usage) -> Reply[Any]:
    """What came of a turn, as the type that was asked for."""
    if isinstance(ended, Ask):
        return Reply(
            status="waiting",
            questions=ended.questions,
            reason=ended.question,
            usage=usage,
            turn_id=turn,
            session=session,
        )
    done, data, reason = ended.status == "done", None, ended.reason
    try:
        data = output.read(ended.message) if done else None
    except ArgumentsUnfit as error:  # It was accepted when another form was asked for.
        reason = f"output: the stored reply does not fit what this agent asks for. {error}"
    return Reply(
        status="done" if done else "stopped",
        text=ended.text,
        data=data,
        reason=reason,
        finish=ended.finish,
        usage=usage,
        turn_id=turn,
        session=session,
    )

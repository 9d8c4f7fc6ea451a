"""What came of sending something to an agent, and what can be heard while it works.

The type that an agent's replies must have: as a schema for the model, and as values for whoever asked.

Providers want an object, so a type that is none stands in one: `{"value": …}`. Models that were told so write the value
alone all the same, so both are read. What is wrong with a reply is said in words that the model can act on. One that
was cut off is no value unless its JSON is whole: the 12 of a 1200 that was cut off fits, and is wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from holdfast.client.steps import Ask, Done
from holdfast.core.wire.tools import listed
from holdfast.errors import ArgumentsUnfit
from holdfast.records.messages import Message
from holdfast.records.recovery import QuestionInfo
from holdfast.records.usage import Usage
from holdfast.runtime.tools.arguments import quoted, read_json, read_value, several
from holdfast.runtime.tools.schema import Schema, object_of, schema_of

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


_VALUE: Final = "value"
_FENCE: Final = re.compile(r"```(?:[ \t]*[\w.+-]*[ \t]*\r?\n|[ \t]*json\b|[A-Za-z]+(?=[ \t]*[{\[])|)", re.IGNORECASE)
"""The beginning of a fence, with the language's name: on a line of its own, or where it cannot be the value."""
_CUT: Final = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
"""What providers say of a reply that came to the end of its length."""
_FORM: Final = "does not have the form that was asked for."
_MAYBE: Final = "So nobody knows whether it is all of the value."


class Output:
    """What replies must be: anything, or of one type. Types that are no objects stand in one, as `value`."""

    def __init__(self, kind: Any = None) -> None:
        self._kind = kind
        self.schema: Schema | None = None
        self._own: Schema = {}
        self._wrapped = False
        if kind is None:
            return
        self._own = schema_of(kind)
        self._wrapped = self._own.get("type") != "object"
        self.schema = object_of({_VALUE: self._own}, [_VALUE]) if self._wrapped else self._own

    def complaint(self, message: Message) -> str | None:
        """What is wrong with a reply, for the model to correct; None if nothing is."""
        if self.schema is None:
            return None
        cut = message.finish in _CUT
        try:
            self._value(message.text)
            wrong = f"{_MAYBE} It must be {listed(self.schema)}." if cut and not _is_closed(message.text) else None
        except ArgumentsUnfit as error:
            wrong = str(error)
        if wrong is None:
            return None
        if cut:
            said = f"This reply was cut off before its end ({message.finish:.40})."
            return f"{said} {wrong} Reply again, shorter, with fitting JSON alone."
        early = "" if message.finish is None else f" did not end by itself ({message.finish:.40}) and"
        return f"This reply{early} {_FORM} {wrong} Reply again, with fitting JSON alone."

    def read(self, message: Message | None) -> Any:
        """The value of a reply; None if no type was asked for."""
        return None if self.schema is None or message is None else self._value(message.text)

    def _value(self, text: str) -> Any:
        """By the first way to read it that fits; else what is wrong with the most likely one."""
        assert self.schema is not None
        wrong: list[str] = []
        for given, where in self._meant(text):
            found, problems = read_value(given, self._own, self._kind, where)
            if not problems:
                return found
            wrong = wrong or problems
        _, why = read_json(_bare(text))
        if why is not None:
            raise ArgumentsUnfit(f"The reply is not JSON ({why}): {quoted(text)}. It must be {listed(self.schema)}.")
        raise ArgumentsUnfit(f"The reply does not fit: {several(wrong)}. It must be {listed(self.schema)}.")

    def _meant(self, text: str) -> Iterator[tuple[Any, str]]:
        """What a reply may mean, the most likely first, and where that stands in it."""
        bare = _bare(text)
        given, why = read_json(bare)
        if not self._wrapped:
            if why is None:
                yield given, ""
            return
        if isinstance(given, dict) and set(given) == {_VALUE}:
            yield given[_VALUE], _VALUE
        if why is None:
            yield given, "" if isinstance(given, dict) else _VALUE
        # Words without quotes are text, unless they look like JSON that was cut off.
        if (why is not None and not bare.startswith(("{", "["))) or isinstance(given, int | float):
            yield text, _VALUE
            yield bare, _VALUE


def _is_closed(text: str) -> bool:
    """Whether it is JSON that says itself where it ends. A number, or a bare word, may be the beginning of another."""
    bare = _bare(text)
    return bare.startswith(("{", "[", '"')) and read_json(bare)[1] is None


def _bare(text: str) -> str:
    """JSON without the fence that models like to put around it."""
    found = text.strip()
    fence = _FENCE.match(found)
    return found if fence is None else found[fence.end() :].removesuffix("```").strip()

"""The reply of an agent, its output type, and the events that it streams while it works.

The output type is a schema for the model and typed values for the caller. Providers want an object, so any other type
is wrapped in one: `{"value": …}`. Models often write the bare value all the same, so both are read. Problems with a
reply are described in words that the model can act on. A reply that was cut off has no value unless its JSON is whole:
the 12 of a cut-off 1200 would fit, and be wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, Generic, Literal, TypeVar

import msgspec

from holdfast.core.wire.read import CUT_OFF_REASONS
from holdfast.core.wire.tools import describe_parameters
from holdfast.errors import ArgumentsUnfit
from holdfast.records.ids import SessionId
from holdfast.records.messages import Message
from holdfast.records.recovery import QuestionInfo, StopCode
from holdfast.records.usage import Usage
from holdfast.runtime.tools.arguments import join_problems, quote, read_json, read_value
from holdfast.runtime.tools.schema import Schema, build_schema, object_schema

T = TypeVar("T")
ReplyStatus = Literal["done", "waiting", "stopped"]


class Reply(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a send. Waiting for a person is a value, not an exception: answer the questions, then send again.

    done      `text` is the reply, and `data` the same as the agent's output type; `finish` is the provider's reason if
              it did not end normally: cut off, refused
    waiting   `questions` are open; `hf.answer(question.id, approve=True)` answers one
    stopped   `reason` says why in a sentence, and `code` in one word: tool_calls, deadline, budget, depth or loops for
              a limit, model, output, stopped or failed; `text` is the text so far
    """

    status: ReplyStatus
    text: str = ""
    data: T | None = None
    questions: tuple[QuestionInfo, ...] = ()
    reason: str | None = None
    code: StopCode | None = None
    finish: str | None = None
    """The provider's finish reason, such as `length` or `refusal`; None if the reply ended normally."""
    usage: Usage = Usage()
    turn_id: str = ""
    session: SessionId = SessionId("")


EventKind = Literal[
    "message",
    "delta",
    "thinking",
    "tool_call",
    "reset",
    "reply",
    "tool",
    "result",
    "progress",
    "question",
    "answered",
    "done",
    "stopped",
]
DELTA_EVENTS: Final[Mapping[str, EventKind]] = {
    "text": "delta",
    "reasoning": "thinking",
    "tool": "tool_call",
    "reset": "reset",
}
"""The event for each kind of a model's delta. Only `delta` is the reply's text."""


class AgentEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event in a conversation, from `stream` or `tail`.

    An event with an `id` is in the journal: `tail(session, after=id)` continues right after it. Deltas and progress
    have no id; a later listener finds the reply or result that they led to. `name` is the tool's, on events about one.
    """

    kind: EventKind
    id: str | None = None
    text: str = ""
    name: str | None = None
    data: dict[str, Any] = {}


_VALUE_KEY: Final = "value"
_FENCE: Final = re.compile(r"```(?:[ \t]*[\w.+-]*[ \t]*\r?\n|[ \t]*json\b|[A-Za-z]+(?=[ \t]*[{\[])|)", re.IGNORECASE)
"""The start of a code fence with the language's name, on its own line or where it cannot be part of the value."""
_WRONG_FORM: Final = "does not have the form that was asked for."
_MAYBE_INCOMPLETE: Final = "It may not be the whole value."


class ReplyOutput:
    """The output type of replies, or none. Types that are not objects are wrapped in one, as `value`."""

    def __init__(self, kind: Any = None) -> None:
        self._kind = kind
        self.schema: Schema | None = None
        self._own: Schema = {}
        self._wrapped = False
        if kind is None:
            return
        self._own = build_schema(kind)
        self._wrapped = self._own.get("type") != "object"
        self.schema = object_schema({_VALUE_KEY: self._own}, [_VALUE_KEY]) if self._wrapped else self._own

    def find_problem(self, message: Message) -> str | None:
        """Return what is wrong with a reply, for the model to correct; None if nothing is."""
        if self.schema is None:
            return None
        cut, bare = message.finish in CUT_OFF_REASONS, _strip_fence(message.text)
        try:
            self.parse(message)
            # JSON with its own end mark is whole; a number or a bare word may have been cut short.
            if not cut or (bare.startswith(("{", "[", '"')) and read_json(bare)[1] is None):
                return None
            wrong = f"{_MAYBE_INCOMPLETE} It must be {describe_parameters(self.schema)}."
        except ArgumentsUnfit as error:
            wrong = str(error)
        if cut:
            said = f"This reply was cut off before its end ({message.finish:.40})."
            return f"{said} {wrong} Reply again, shorter, with fitting JSON alone."
        early = "" if message.finish is None else f" did not end by itself ({message.finish:.40}) and"
        return f"This reply{early} {_WRONG_FORM} {wrong} Reply again, with fitting JSON alone."

    def parse(self, message: Message) -> Any:
        """Parse by the first interpretation that fits; else raise with the problems of the most likely one."""
        assert self.schema is not None
        text = message.text
        wrong: list[str] = []
        for given, where in self._interpret(text):
            found, problems = read_value(given, self._own, self._kind, where)
            if not problems:
                return found
            wrong = wrong or problems
        _, why = read_json(_strip_fence(text))
        if why is not None:
            raise ArgumentsUnfit(
                f"The reply is not JSON ({why}): {quote(text)}. It must be {describe_parameters(self.schema)}."
            )
        raise ArgumentsUnfit(
            f"The reply does not fit: {join_problems(wrong)}. It must be {describe_parameters(self.schema)}."
        )

    def _interpret(self, text: str) -> Iterator[tuple[Any, str]]:
        """Yield the possible interpretations of a reply, most likely first, and the path for their problems."""
        bare = _strip_fence(text)
        given, why = read_json(bare)
        if not self._wrapped:
            if why is None:
                yield given, ""
            return
        if isinstance(given, dict) and set(given) == {_VALUE_KEY}:
            yield given[_VALUE_KEY], _VALUE_KEY
        if why is None:
            yield given, "" if isinstance(given, dict) else _VALUE_KEY
        # Unquoted words are text, unless they look like JSON that was cut off.
        if (why is not None and not bare.startswith(("{", "["))) or isinstance(given, int | float):
            yield text, _VALUE_KEY
            yield bare, _VALUE_KEY


def _strip_fence(text: str) -> str:
    """Return JSON without the code fence that models like to put around it."""
    found = text.strip()
    fence = _FENCE.match(found)
    return found if fence is None else found[fence.end() :].removesuffix("```").strip()

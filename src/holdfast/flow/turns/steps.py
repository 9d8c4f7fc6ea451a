"""The steps of a turn as its engine hands them out: a model call, a tool call, questions, the end.

A call's intent is in the journal before it is handed out, and it is answered once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from holdfast.core.values import exception_text
from holdfast.core.wire.read import read_input
from holdfast.errors import InvalidMessage, InvalidValue, Refused
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.packs import AssembledPack
from holdfast.records.recovery import Answer, QuestionInfo
from holdfast.records.usage import Usage


class TurnCall:
    """A call that waits for its outcome."""

    __slots__ = ("_answering", "answered")

    def __init__(self) -> None:
        self.answered = False
        self._answering = threading.Lock()

    def check_unanswered(self) -> None:
        """Refuse a second outcome."""
        if self.answered:
            raise Refused("This step was answered already. Go on to the next one.")

    @contextmanager
    def answer_once(self) -> Iterator[None]:
        """Answer the call in this block. Refuse others meanwhile; if the block raises, it can be answered again."""
        if not self._answering.acquire(blocking=False):
            raise Refused("Another caller is answering this step. Go on to the next one.")
        try:
            self.check_unanswered()
            yield
            self.answered = True
        finally:
            self._answering.release()


class TurnModelCall(TurnCall):
    """A model call with its pack. `repeated`: an earlier process may have made it."""

    __slots__ = ("call", "digest", "model", "packed", "repeated")

    def __init__(self, call: str, packed: AssembledPack, model: str, digest: str | None = None) -> None:
        super().__init__()
        self.call, self.packed, self.model, self.digest = call, packed, model, digest
        self.repeated = digest is None

    @property
    def tokens(self) -> int:
        """The tokens of its pack."""
        return self.packed.token_summary.used

    def __repr__(self) -> str:
        return f"CallModel({self.model!r}, call={self.call!r})"


class TurnToolCall(TurnCall):
    """A tool call. `args` replace the model's arguments if a person changed or approved them."""

    __slots__ = ("answer", "args", "attempt", "request")

    def __init__(self, request: ToolCallRequest, attempt: int, answer: Answer | None, args: Any) -> None:
        super().__init__()
        self.request, self.attempt, self.answer, self.args = request, attempt, answer, args

    def __repr__(self) -> str:
        return f"CallTool({self.request.name!r}, key={self.request.id!r})"


class TurnQuestions(msgspec.Struct, frozen=True):
    """The open questions that the whole turn waits for."""

    questions: tuple[QuestionInfo, ...]


class TurnEnd(msgspec.Struct, frozen=True):
    """The end of a turn: done or stopped."""

    status: str
    message: Message | None = None
    """The final reply; for a stopped turn, the model's last message."""
    reason: str | None = None
    """The reason it was stopped."""


EngineStep = TurnModelCall | TurnToolCall | TurnQuestions | TurnEnd


def read_response(response: Any) -> Message:
    """Read the assistant's message from a response, a message in some form, or text."""
    if isinstance(response, str):
        if not response:
            raise InvalidMessage("The model's answer is empty. Use step.fail(…) if it gave none.")
        return Message(role="assistant", content=response)
    found = read_input(response)
    if len(found) != 1 or found[0].role != "assistant":
        raise InvalidMessage(
            "A model's answer is one assistant message. Give the provider's response, or the message in it."
        )
    return found[0]


def error_text(error: BaseException | str) -> str:
    """Return an error as text."""
    if isinstance(error, BaseException):
        return exception_text(error)
    if not isinstance(error, str) or not error:
        raise InvalidValue("Say what went wrong: an exception, or a text.")
    return error


def error_usage(usage: object) -> Usage:
    """Return the usage that an error reports, or none."""
    return usage if isinstance(usage, Usage) else Usage()


def add_finish(message: Message, finish: str | None) -> Message:
    """Add the finish reason to a reply, so that later readers know it as well."""
    if not isinstance(finish, str) or not finish or finish == message.finish:
        return message
    return msgspec.structs.replace(message, metadata={**(message.metadata or {}), "finish": finish})


def add_edit_note(call: TurnToolCall, value: Any) -> Any:
    """Return a result, with a note if a person changed the arguments or approved more than the model wrote."""
    if call.args is None:
        return value
    used = msgspec.json.encode(call.args).decode()
    note = f"[A person changed the arguments of this call to {used}.]"
    if _is_filled_in(call):
        note = f"[This call was made with the arguments that a person approved: {used}.]"
    if isinstance(value, str):
        return f"{note}\n{value}"
    if isinstance(value, list) and value and all(isinstance(part, dict) and "type" in part for part in value):
        return [{"type": "text", "text": note}, *value]
    return {"note": note, "result": value}


def _is_filled_in(call: TurnToolCall) -> bool:
    """Return True if all arguments of the model are used, and others besides."""
    try:
        wrote = call.request.args
    except InvalidValue:
        return False
    if not isinstance(wrote, dict) or not isinstance(call.args, dict):
        return False
    return all(value is None or call.args.get(name) == value for name, value in wrote.items())

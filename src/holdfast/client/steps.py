"""The steps of a turn: call the model, call a tool, wait for a person, done.

A step's intent is in the journal before the loop gets it, and its outcome by `done` or `fail`. A step is answered once.
While a reply streams, a stop is checked for periodically, and once more when the stream breaks or ends too early: a
stop keeps the streamed text, where an error would not. A stream that is not read to its end is closed, because unread
output is billed too.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.client.pack import ContextPack
from holdfast.core.values import exception_text, to_plain
from holdfast.core.wire.read import read_input
from holdfast.core.wire.stream import make_accumulator
from holdfast.errors import HoldfastError, InvalidMessage, InvalidValue, ModelFailed, Refused
from holdfast.records.messages import Message, ToolCallRequest
from holdfast.records.recovery import Answer, QuestionInfo
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.client.turn import Turn


class Step:
    """One step of a turn."""

    __slots__ = ("_answering", "_turn", "answered")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.answered = False
        self._answering = threading.Lock()

    def _check_unanswered(self) -> None:
        if self.answered:
            raise Refused("This step was answered already. Go on to the next one.")

    @contextmanager
    def _answer_once(self) -> Iterator[None]:
        """Answer the step in this block. Refuse others meanwhile; if the block raises, it can be answered again."""
        if not self._answering.acquire(blocking=False):
            raise Refused("Another caller is answering this step. Go on to the next one.")
        try:
            self._check_unanswered()
            yield
            self.answered = True
        finally:
            self._answering.release()


class CallModel(Step):
    """A model call: call with `pack`, then `done(response)`. `repeated`: an earlier process may have made it."""

    __slots__ = ("call", "model", "pack", "repeated")

    def __init__(self, turn: Turn, call: str, pack: ContextPack, model: str, *, repeated: bool) -> None:
        super().__init__(turn)
        self.call, self.pack, self.model, self.repeated = call, pack, model, repeated

    def done(self, response: Any, *, usage: Usage | int | None = None, finish: str | None = None) -> Message:
        """Record the model's reply: a provider's response, a message or text. Return it as stored."""
        with self._answer_once():
            return self._turn._model.end_call(self, read_reply(response), usage, finish)

    def fail(self, error: BaseException | str, *, retryable: bool = False, usage: Usage | int = 0) -> None:
        """Record that the model gave no reply. It is called again if `retryable`; else the turn ends."""
        with self._answer_once():
            self._turn._model.fail_call(self, error_text(error), retryable, usage)

    def stream(self, chunks: Iterable[Any]) -> Iterator[str]:
        """Yield the text of a provider's stream as it arrives; journal the whole reply at its end.

        If the turn is stopped meanwhile, the streamed text is kept as a partial message and the stream ends.
        """
        self._check_unanswered()
        yield from stream_reply(self._turn, self, chunks)

    def __repr__(self) -> str:
        return f"CallModel({self.model!r}, call={self.call!r})"


class CallTool(Step):
    """A tool call: call with `args`, then `done(value)` or `fail(error)`. `key` is its idempotency key.

    `attempt` is above 1 if it runs again: after a crash, or with the `answer` to a question about it.
    """

    __slots__ = ("_args", "answer", "attempt", "request")

    def __init__(
        self, turn: Turn, request: ToolCallRequest, *, attempt: int = 1, answer: Answer | None = None, args: Any = None
    ) -> None:
        super().__init__(turn)
        self.request, self.attempt, self.answer, self._args = request, attempt, answer, args

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.request.name

    @property
    def key(self) -> str:
        """The call's id: the same for every attempt."""
        return self.request.id

    @property
    def args(self) -> Any:
        """The arguments as data, with a person's changes if any. Raises if they are not JSON."""
        return self.request.args if self._args is None else self._args

    @property
    def edited(self) -> bool:
        """True if a person changed the arguments."""
        return self._args is not None

    def done(self, value: Any, *, files: Sequence[bytes] = ()) -> Message:
        """Record the tool's value, text or plain data, with files to keep. Return the result as stored."""
        with self._answer_once():
            return self._turn._tools.end_call(self, to_plain(value), files=files)

    def fail(self, error: BaseException | str) -> Message:
        """Record that the tool failed: the model is told, and the turn continues."""
        with self._answer_once():
            return self._turn._tools.end_call(self, error_text(error), failed=True)

    def ask(self, reason: str, *, kind: str = "approval", **how: Any) -> str:
        """Ask a person first. The turn waits; if approved the tool is called again, else the model is told."""
        with self._answer_once():
            return self._turn._tools.ask(self, reason, kind, how)

    def __repr__(self) -> str:
        return f"CallTool({self.name!r}, key={self.key!r})"


class Ask(Step):
    """A wait for a person. Leave the loop, or answer and continue; a later run of the turn continues as well."""

    __slots__ = ("questions",)

    def __init__(self, turn: Turn, questions: tuple[QuestionInfo, ...]) -> None:
        super().__init__(turn)
        self.questions = questions
        self.answered = True

    @property
    def id(self) -> str:
        """The id of the first question, for `hf.answer`."""
        return self.questions[0].id

    @property
    def question(self) -> str:
        """The text of the first question."""
        reason = self.questions[0].reason
        return reason if isinstance(reason, str) else f"Question {self.id}"

    def __repr__(self) -> str:
        return f"Ask({self.question!r}, id={self.id!r})"


class Done(Step):
    """The end of a turn. `status` is done or stopped, `reason` says why it was stopped, `text` is the reply so far.

    A reply that was cut off, or held back by its provider, is done as well: `finish` says so.
    """

    __slots__ = ("message", "reason", "status")

    def __init__(self, turn: Turn, status: str, message: Message | None = None, reason: str | None = None) -> None:
        super().__init__(turn)
        self.status, self.message, self.reason = status, message, reason
        self.answered = True

    @property
    def text(self) -> str:
        """The final reply."""
        return "" if self.message is None else self.message.text

    @property
    def finish(self) -> str | None:
        """The provider's reason for ending the reply, such as `length` or `refusal`; None if it ended by itself."""
        return None if self.message is None else self.message.finish

    def __repr__(self) -> str:
        return f"Done({self.status!r}, {self.text[:60]!r})"


def read_reply(response: Any) -> Message:
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


EMPTY_STREAM = "The stream was empty. Use step.fail(…), so that the model is called again."
STOP_POLL_SECONDS = 0.5
"""Seconds between checks for a stop request while a reply streams."""


def stream_reply(turn: Turn, step: CallModel, chunks: Iterable[Any]) -> Iterator[str]:
    """Yield the text of a stream; journal the whole reply at its end."""
    gathered = None
    with closing(_read_chunks(turn, chunks)) as heard:
        for chunk in heard:
            if gathered is None:
                gathered = make_accumulator()
                turn._words = partial(getattr, gathered, "text")
            for delta in gathered.add(chunk):
                if delta.kind == "text" and delta.text:
                    yield delta.text
    if turn._ended is None and (gathered is None or not gathered.ended):
        turn._stop_if_requested()
    if turn._ended is not None:
        step.answered = True
        return
    if gathered is None:
        raise InvalidValue(EMPTY_STREAM)
    try:
        whole = gathered.build_response()
    except ModelFailed as error:
        step.fail(error, retryable=True, usage=error_usage(error.usage))
        raise
    step.done(whole)


def _read_chunks(turn: Turn, chunks: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield the chunks until they end or the turn does."""
    given, clock, at_end = iter(chunks), turn._env.clock, False
    looked = clock.monotonic()
    try:
        while True:
            try:
                chunk = next(given)
            except StopIteration:
                at_end = True
                return
            except Exception:
                with suppress(HoldfastError):  # The error to raise is the stream's.
                    turn._stop_if_requested()
                if turn._ended is None:
                    raise
                return
            yield chunk
            if turn._ended is None and clock.monotonic() - looked > STOP_POLL_SECONDS:
                looked = clock.monotonic()
                turn._stop_if_requested()
            if turn._ended is not None:
                return
    finally:
        if not at_end:
            _close_stream(given)
            if chunks is not given:
                _close_stream(chunks)


def _close_stream(stream: object) -> None:
    """Close a stream if possible; ignore its errors."""
    close = getattr(stream, "close", None)
    if callable(close):
        with suppress(Exception):
            made = close()
            if inspect.iscoroutine(made):
                made.close()


def error_usage(usage: object) -> Usage:
    """Return the usage that an error reports, or none."""
    return usage if isinstance(usage, Usage) else Usage()

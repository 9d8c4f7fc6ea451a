"""The steps of a turn: call the model, call a tool, wait for a person, done.

A step's intent is in the journal before the loop gets it, and its outcome by `done` or `fail`. A step is answered once.
While a reply streams, a stop is checked for periodically, and once more when the stream breaks or ends too early: a
stop keeps the streamed text, where an error would not. A stream that is not read to its end is closed, because unread
output is billed too.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any

from holdfast.client.pack import ContextPack
from holdfast.core.wire.stream import make_accumulator
from holdfast.errors import HoldfastError, InvalidValue, ModelFailed
from holdfast.flow.turns.calls import TurnModelCall, TurnToolCall, error_usage
from holdfast.flow.turns.engine import STOP_POLL_SECONDS, TurnEngine
from holdfast.flow.turns.turns import TurnEnd
from holdfast.records.messages import Message
from holdfast.records.recovery import QuestionInfo
from holdfast.records.usage import Usage


class Step:
    """One step of a turn. `answered`: it needs no outcome any more."""

    __slots__ = ()

    @property
    def answered(self) -> bool:
        """True if the step has its outcome, or needs none."""
        return True


class CallModel(Step):
    """A model call: call with `pack`, then `done(response)`. `repeated`: an earlier process may have made it."""

    __slots__ = ("_call", "_engine", "call", "model", "pack", "repeated")

    def __init__(self, engine: TurnEngine, call: TurnModelCall, pack: ContextPack) -> None:
        self._engine, self._call, self.pack = engine, call, pack
        self.call, self.model, self.repeated = call.call, call.model, call.repeated

    @property
    def answered(self) -> bool:
        """True if the call has its outcome."""
        return self._call.answered

    def done(self, response: Any, *, usage: Usage | int | None = None, finish: str | None = None) -> Message:
        """Record the model's reply: a provider's response, a message or text. Return it as stored."""
        return self._engine.finish_model(self._call, response, usage, finish)

    def fail(self, error: BaseException | str, *, retryable: bool = False, usage: Usage | int = 0) -> None:
        """Record that the model gave no reply. It is called again if `retryable`; else the turn ends."""
        self._engine.fail_model(self._call, error, retryable=retryable, usage=usage)

    def stream(self, chunks: Iterable[Any]) -> Iterator[str]:
        """Yield the text of a provider's stream as it arrives; journal the whole reply at its end.

        If the turn is stopped meanwhile, the streamed text is kept as a partial message and the stream ends.
        """
        self._call.check_unanswered()
        yield from stream_reply(self._engine, self._call, chunks)

    def __repr__(self) -> str:
        return repr(self._call)


class CallTool(Step):
    """A tool call: call with `args`, then `done(value)` or `fail(error)`. `key` is its idempotency key.

    `attempt` is above 1 if it runs again: after a crash, or with the `answer` to a question about it.
    """

    __slots__ = ("_call", "_engine", "answer", "attempt", "request")

    def __init__(self, engine: TurnEngine, call: TurnToolCall) -> None:
        self._engine, self._call = engine, call
        self.request, self.attempt, self.answer = call.request, call.attempt, call.answer

    @property
    def answered(self) -> bool:
        """True if the call has its outcome, or asked a question."""
        return self._call.answered

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
        return self.request.args if self._call.args is None else self._call.args

    @property
    def edited(self) -> bool:
        """True if a person changed the arguments."""
        return self._call.args is not None

    def done(self, value: Any, *, files: Sequence[bytes] = ()) -> Message:
        """Record the tool's value, text or plain data, with files to keep. Return the result as stored."""
        return self._engine.finish_tool(self._call, value, files=files)

    def fail(self, error: BaseException | str) -> Message:
        """Record that the tool failed: the model is told, and the turn continues."""
        return self._engine.fail_tool(self._call, error)

    def ask(self, reason: str, *, kind: str = "approval", **how: Any) -> str:
        """Ask a person first. The turn waits; if approved the tool is called again, else the model is told."""
        return self._engine.ask(self._call, reason, kind, how)

    def __repr__(self) -> str:
        return repr(self._call)


class Ask(Step):
    """A wait for a person. Leave the loop, or answer and continue; a later run of the turn continues as well."""

    __slots__ = ("questions",)

    def __init__(self, questions: tuple[QuestionInfo, ...]) -> None:
        self.questions = questions

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

    def __init__(self, end: TurnEnd) -> None:
        self.status, self.message, self.reason = end.status, end.message, end.reason

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


EMPTY_STREAM = "The stream was empty. Use step.fail(…), so that the model is called again."


def stream_reply(engine: TurnEngine, call: TurnModelCall, chunks: Iterable[Any]) -> Iterator[str]:
    """Yield the text of a stream; journal the whole reply at its end."""
    gathered = None
    with closing(_read_chunks(engine, chunks)) as heard:
        for chunk in heard:
            if gathered is None:
                gathered = make_accumulator()
                engine.streamed = partial(getattr, gathered, "text")
            for delta in gathered.add(chunk):
                if delta.kind == "text" and delta.text:
                    yield delta.text
    if engine.ended is None and (gathered is None or not gathered.ended):
        engine.stop_if_requested()
    if engine.ended is not None:
        call.answered = True
        return
    if gathered is None:
        raise InvalidValue(EMPTY_STREAM)
    try:
        whole = gathered.build_response()
    except ModelFailed as error:
        engine.fail_model(call, error, retryable=True, usage=error_usage(error.usage))
        raise
    engine.finish_model(call, whole)


def _read_chunks(engine: TurnEngine, chunks: Iterable[Any]) -> Generator[Any, None, None]:
    """Yield the chunks until they end or the turn does."""
    given, clock, at_end = iter(chunks), engine.env.clock, False
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
                    engine.stop_if_requested()
                if engine.ended is None:
                    raise
                return
            yield chunk
            if engine.ended is None and clock.monotonic() - looked > STOP_POLL_SECONDS:
                looked = clock.monotonic()
                engine.stop_if_requested()
            if engine.ended is not None:
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

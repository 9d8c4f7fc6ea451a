"""Turn: from a user's message to the final reply, as a loop that survives its process.

Each iteration asks the journal for the next step, so the same code begins a turn, continues it after a crash, and
returns a finished one. Leaving the block early, also by an exception, leaves the turn live: the same key continues it.
The decisions are those of the engine in `flow/turns/engine.py`; `turn.frame` is the frame to work in.

The steps are: call the model, call a tool, wait for a person, done. A step's intent is in the journal before the loop
gets it, and its outcome by `done` or `fail`. A step is answered once. While a reply streams, a stop is checked for
periodically, and once more when the stream breaks or ends too early: a stop keeps the streamed text, where an error
would not. A stream that is not read to its end is closed, because unread output is billed too.
"""

from __future__ import annotations

import inspect
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import partial
from typing import Any, Self

from holdfast.client.frame import TurnFrame
from holdfast.client.pack import ContextPack
from holdfast.core.wire.read import read_input
from holdfast.core.wire.stream import StreamAccumulator
from holdfast.errors import HoldfastError, InvalidMessage, InvalidValue, ModelFailed
from holdfast.flow.turns import turns
from holdfast.flow.turns.calls import EngineStep, TurnModelCall, TurnQuestions, TurnToolCall, error_usage
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

    def done(self, value: Any, *, files: Sequence[bytes] = (), policy: str | None = None) -> Message:
        """Record the tool's value, text or plain data, with files to keep. Return the result as stored.

        `policy` decides how compaction may treat it: see Session.append.
        """
        return self._engine.finish_tool(self._call, value, files=files, policy=policy)

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
    """The end of a turn. `status` is done or stopped, `text` is the reply so far.

    `reason` says why it was stopped, and `code` says so in one word, as `Reply.code` does; None if it is done.
    A reply that was cut off, or held back by its provider, is done as well: `finish` says so.
    """

    __slots__ = ("code", "message", "reason", "status")

    def __init__(self, end: TurnEnd) -> None:
        self.status, self.message, self.reason, self.code = end.status, end.message, end.reason, end.code

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


class Turn:
    """One turn of a conversation. Iterate over it in a `with` block; `session.turn` creates one."""

    def __init__(self, engine: TurnEngine) -> None:
        self.engine = engine
        self._done: Done | None = None

    def __enter__(self) -> Self:
        self.engine.open()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.engine.leave(error)

    # properties

    @property
    def key(self) -> str | None:
        """The key of the turn."""
        return self.engine.key

    @property
    def id(self) -> str:
        """The id of the turn, which is that of its frame."""
        return self.engine.id

    @property
    def frame(self) -> TurnFrame:
        """The turn's frame: run steps once in it, append, pack, attach, and push children."""
        return make_turn_frame(self.engine)

    @property
    def status(self) -> str:
        """The current status of the turn's frame."""
        return self.frame.status

    @property
    def text(self) -> str:
        """The final reply; empty until there is one."""
        return "" if self.result is None else self.result.text

    @property
    def result(self) -> Done | None:
        """The end of the turn; None until it was reached here."""
        if self._done is None and self.engine.ended is not None:
            self._done = Done(self.engine.ended)
        return self._done

    @property
    def usage(self) -> Usage:
        """The usage of its model calls so far."""
        return self.engine.usage

    # next steps

    def __iter__(self) -> Iterator[Step]:
        while steps := self.steps(at_once=1):
            yield steps[0]
            if isinstance(steps[0], Done) or (isinstance(steps[0], Ask) and not self.engine.can_continue()):
                return

    def steps(self, at_once: int | None = None) -> list[Step]:
        """Return every step that can be done now: one, or several tools that may run in parallel.

        The last ones are `Done`, or `Ask` for as long as the whole turn waits; after `Done` there are none.
        """
        steps = self.engine.next_steps(at_once)
        if self.result is not None:
            return [self.result] if steps else []
        return [make_step(self.engine, step) for step in steps]

    # stopping

    def stop(self, reason: str = turns.STOPPED) -> Done:
        """End the turn now: keep the streamed text as a partial message, and give open calls a result that says so."""
        self.engine.stop(reason)
        assert self.result is not None
        return self.result

    def is_stopping(self) -> bool:
        """Return True if the turn can only stop, by request or because its message is gone. End it with `stop`."""
        return self.engine.load_stop_reason() is not None

    def wait_for_stop(self, timeout: float | None = None) -> str | None:
        """Wait until the turn is asked to stop, and return the reason.

        Returns None after `timeout` seconds, or once the turn has ended with its reply, in any process.
        """
        return self.engine.wait_for_stop(timeout)

    def __repr__(self) -> str:
        found = self.engine.id if self.engine.opener.found else None
        return f"Turn({self.engine.goal!r}, id={found!r})"


def read_turn_messages(message: Any) -> list[Message]:
    """Read the messages that begin a turn; the last must be a user's."""
    if message is None:
        return []
    found = read_input(message)
    if not found or found[-1].role != "user":
        raise InvalidMessage("A turn begins with a user's message: a text, or a message with the role user.")
    return found


def make_turn_frame(engine: TurnEngine) -> TurnFrame:
    """Return the frame of a turn, for work in it."""
    place, check = engine.opener.turn_place, engine.check_inside
    return TurnFrame(
        engine.env, place.actor, place.frame, goal=engine.goal, replayed=engine.replayed, check_inside=check
    )


def make_step(engine: TurnEngine, step: EngineStep) -> Step:
    """Return an engine's step as the loop gets it."""
    if isinstance(step, TurnModelCall):
        return CallModel(engine, step, ContextPack(engine.env, step.packed, step.digest))
    if isinstance(step, TurnToolCall):
        return CallTool(engine, step)
    return Ask(step.questions) if isinstance(step, TurnQuestions) else Done(step)


EMPTY_STREAM = "The stream was empty. Use step.fail(…), so that the model is called again."


def stream_reply(engine: TurnEngine, call: TurnModelCall, chunks: Iterable[Any]) -> Iterator[str]:
    """Yield the text of a stream; journal the whole reply at its end."""
    gathered = None
    with closing(_read_chunks(engine, chunks)) as heard:
        for chunk in heard:
            if gathered is None:
                gathered = StreamAccumulator()
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

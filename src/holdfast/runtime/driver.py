"""The driver of a turn: it calls the model and tools until the turn ends or waits for a person.

Every step is in the journal before the next one begins. A crash, a cancellation or a model error therefore leaves a
turn that can be resumed where it stood. Any exception of a model becomes ModelFailed, so that it is journaled and
counted; its message is not repeated, since it may hold the request and its key.

"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from holdfast.aio.executor import STEPS, Threads
from holdfast.aio.turn import AsyncCallModel, AsyncCallTool, AsyncTurn
from holdfast.client.steps import Ask, Done, used
from holdfast.client.turn import Turn
from holdfast.errors import (
    ArgumentsUnfit,
    FrameSuspended,
    InvalidValue,
    ModelFailed,
    TooLarge,
    ToolInterrupted,
    ToolPairingError,
    ToolTimedOut,
)
from holdfast.flow.frames.read import current
from holdfast.flow.turns import turns
from holdfast.flow.turns.deadlock import Work, depth, tool_at_work
from holdfast.ports import Model
from holdfast.records.models import Delta, ModelCall, ModelReply
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from holdfast.runtime.tools.result import failure_text, outcome_of
from holdfast.runtime.tools.tool import AnyTool

Tell = Callable[[str, dict[str, Any]], None]
LIVE_KINDS = frozenset({"rate_limited", "unavailable", "timeout", "cut", "unauthorised"})
"""Failures that say nothing about the request: the turn stays live and can be resumed."""
TRIES = 3
"""How often a retryable tool is started if its outcome is unknown each time."""


class Driver:
    """The driver of one turn with one model and its tools."""

    def __init__(
        self,
        turn: AsyncTurn,
        model: Model,
        tools: Mapping[str, AnyTool],
        threads: Threads,
        tell: Tell,
        *,
        session: str,
        output: dict[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        wrote: Callable[[int, int], None] = lambda line, actor: None,
    ) -> None:
        self._turn, self._model, self._tools, self._threads, self._tell = turn, model, tools, threads, tell
        self._session, self._output, self._options = session, output, dict(options or {})
        self._heard_of = wrote
        self._stopping = asyncio.Event()

    @property
    def _inner(self) -> Turn:
        return self._turn._turn

    @property
    def work(self) -> Work | None:
        """The turn as something that others may wait for; None if it has already ended."""
        return self._inner._opening.work

    def stop(self) -> None:
        """Check for a stop request at once."""
        self._stopping.set()

    def is_stopping(self) -> bool:
        """Return True if any process has requested a stop."""
        return turns.stop_requested(self._inner._ports, self._inner._acting, self._inner._place) is not None

    async def run(self) -> Done | Ask:
        """Drive the turn until it is done, stopped or waiting."""
        while True:
            steps = await self._turn.steps()
            await self.wrote()
            first = steps[0] if steps else None
            if isinstance(first, Done | Ask):
                return first
            assert first is not None, "a turn that has not ended needs something"
            if isinstance(first, AsyncCallModel):
                await self._call_model(first)
            else:
                await self._call_tools([step for step in steps if isinstance(step, AsyncCallTool)])

    # The model

    async def _call_model(self, step: AsyncCallModel) -> None:
        asked = ModelCall(pack=step.pack, call=step.call, output=self._output, options=self._options)
        try:
            reply = await self._heard(asked)
        except ModelFailed as error:
            live = error.retryable or error.kind in LIVE_KINDS
            await step.fail(f"{error.kind}: {error}", retryable=live, usage=used(error.usage))
            if live:
                raise
            return
        if reply is None:
            step.answered = step._step.answered = True
            return
        await self._answered(step, reply)
        await self.wrote()

    async def _answered(self, step: AsyncCallModel, reply: ModelReply) -> None:
        """Journal a reply. A reply that no conversation can hold is a failure, but its usage is counted."""
        try:
            await step.done(reply.message, usage=reply.usage, finish=reply.finish)
        except (InvalidValue, TooLarge, ToolPairingError) as error:
            failed = ModelFailed(
                f"The model {self._model.name} gave a reply that cannot be kept: {error}",
                kind="malformed",
                retryable=True,
                usage=reply.usage,
            )
            await step.fail(f"{failed.kind}: {failed}", retryable=True, usage=reply.usage)
            raise failed from error
        self._calibrate(step, reply)

    async def wrote(self) -> None:
        """Tell listeners how far the journal is, in order with the deltas of the reply."""
        turn, inner = self._inner._place, self._inner
        states = [inner._ports.states.get(inner._acting.tenant, stream) for stream in (turn.line, turn.actor)]
        if None in states:  # The cache had no room for these states.
            states = await self._threads.run(
                lambda: [current(inner._ports, inner._acting, stream) for stream in (turn.line, turn.actor)]
            )
        line, actor = (0 if state is None else state.version for state in states)
        self._heard_of(line, actor)

    def _calibrate(self, step: AsyncCallModel, reply: ModelReply) -> None:
        models = self._inner._ports.models
        if models is not None and reply.usage.input:
            models.note(step.model, step.pack.tokens, reply.usage.input, tenant=self._inner._acting.tenant)

    async def _heard(self, asked: ModelCall) -> ModelReply | None:
        """Return the reply while relaying its deltas; None if the turn was stopped."""
        said: list[str] = []
        self._inner._words = lambda: "".join(said)

        def say(delta: Delta) -> None:
            if delta.kind == "reset":
                said.clear()
            elif delta.kind == "text":
                said.append(delta.text)
            self._tell("reset" if delta.kind == "reset" else "delta", {"text": delta.text, "kind": delta.kind})

        replying = asyncio.ensure_future(answer(self._model, asked, say))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((replying, stopping), return_when=asyncio.FIRST_COMPLETED)
            if replying.cancelled():  # By the model itself: cancelling this task would have ended the wait.
                raise cancelled_itself(self._model)
            if replying.done():
                return replying.result()
            self._stopping.clear()
            await _cancelled(replying)
            await self._threads.run(self._inner._heed_stop)
        finally:
            stopping.cancel()
            if not replying.done():
                await _cancelled(replying)
        if self._inner._ended is not None:
            return None
        say(Delta(kind="reset"))  # The stop request is gone: ask the model again.
        return await self._heard(asked)

    # Tools

    async def _call_tools(self, steps: list[AsyncCallTool]) -> None:
        """Call all tools in parallel. The failure of one does not end the others; a stop ends all."""
        running = asyncio.gather(*(self._call_tool(step) for step in steps), return_exceptions=True)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await _cancelled(running)
                await self._threads.run(self._inner._heed_stop)
                return
        finally:
            stopping.cancel()
            if not running.done():
                await _cancelled(running)
        for one in running.result():
            if isinstance(one, BaseException):
                raise one

    async def _call_tool(self, step: AsyncCallTool) -> None:
        """Call a tool. Only mistakes of the model itself are reported back for it to correct.

        A call that was begun before, or whose arguments a person gave, has been checked: else its turn would have
        asked.
        """
        tool = self._tools.get(step.name)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            await step.fail(f"There is no tool {step.name!r:.80}. The tools are: {known}.")
            return
        try:
            args = tool.read(step.request.arguments if step._args is None else _json(step._args))
        except ArgumentsUnfit as error:
            await step.fail(str(error))
            return
        await self._ran(step, tool, args)

    async def _ran(self, step: AsyncCallTool, tool: AnyTool, args: Mapping[str, Any]) -> None:
        call = self._call(step, tool)
        try:
            with tool_at_work():
                value = await tool.run(args, call, self._in_thread)
        except (ToolInterrupted, ToolTimedOut) as error:
            await self._left_open(step, tool, failure_text(error))
            return
        except Exception as error:  # noqa: BLE001  # Whatever a tool raises is its result, if the journal takes it.
            text = failure_text(error)
            await self._settled(step, lambda: step.fail(text))
            return
        came = await self._threads.run(outcome_of, value)
        if came.is_error:
            await self._settled(step, lambda: step.fail(str(came.result)))
        else:
            files = [file.data for file in came.files]
            await self._settled(step, lambda: step.done(came.result, files=files))

    async def _left_open(self, step: AsyncCallTool, tool: AnyTool, text: str) -> None:
        """Handle a call with an unknown outcome, as its tool says."""
        if tool.if_unknown == "retry" and step.attempt < TRIES:
            step.waits()  # Its intent stays open, as after a crash: the call is started again under its key.
            return
        kept = self._inner._tools.doubt if tool.if_unknown == "ask" else self._inner._tools.unknown
        await self._settled(step, lambda: self._threads.run(kept, step._step, text))
        step.waits()

    async def _settled(self, step: AsyncCallTool, outcome: Callable[[], Awaitable[object]]) -> None:
        """Journal an outcome; if the tool asked a question meanwhile, wait instead, whatever it returned or raised.

        `Waiting` alone is no question: it may come from another turn that this tool ran into.
        """
        try:
            await outcome()
        except FrameSuspended:
            step.waits()
        except (InvalidValue, TooLarge) as error:
            text = f"The tool ran, but what it gave cannot be kept: {error}"
            await self._settled(step, lambda: step.fail(text))
        await self.wrote()

    def _call(self, step: AsyncCallTool, tool: AnyTool) -> ToolCall | AsyncToolCall:
        call = ToolCall(
            self._inner.tool_frame(step),
            self._inner,
            name=step.name,
            session=self._session,
            attempt=step.attempt,
            answer=step.answer,
            tell=self._tell,
        )
        return AsyncToolCall(call, self._threads) if tool.is_async else call

    async def _in_thread(self, work: Callable[[], Any]) -> Any:
        # Tools called by a tool get their own threads: else waiting tools could occupy all of them.
        inner = depth() - 1
        return await self._threads.leavable(f"{STEPS}-{inner}" if inner > 0 else STEPS, work)


async def _cancelled(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def answer(model: Model, asked: ModelCall, say: Callable[[Delta], None]) -> ModelReply:
    """Return the model's reply or raise ModelFailed. A cancellation passes through: the caller knows its source."""
    try:
        reply: object = await model.reply(asked, say)
    except (ModelFailed, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C by the user, not an error of the model.
        raise _failed(model, f"raised {type(error).__name__}") from error
    if isinstance(reply, ModelReply):
        return reply
    raise ModelFailed(
        f"The model {model.name} gave {type(reply).__name__} and no ModelReply. Correct its method reply.",
        kind="malformed",
        retryable=True,
    )


def cancelled_itself(model: Model) -> ModelFailed:
    """Return the failure for a reply that was cancelled by no one outside the model."""
    return _failed(model, "was cancelled by something that it waited for")


def _failed(model: Model, what: str) -> ModelFailed:
    return ModelFailed(
        f"The model {model.name} {what}. Have it raise ModelFailed with a kind, or send the message again.",
        kind="failed",
        retryable=True,
    )

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

from holdfast.aio.executor import STEPS, ThreadPools
from holdfast.aio.turn import AsyncCallModel, AsyncCallTool, AsyncTurn
from holdfast.client.steps import Ask, Done, error_usage
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
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.turns import turns
from holdfast.flow.turns.deadlock import TurnWork, enter_tool_work, nesting_depth
from holdfast.ports import Model
from holdfast.records.models import Delta, ModelCall, ModelReply
from holdfast.runtime.tools.call import AsyncToolCall, ToolCall
from holdfast.runtime.tools.result import build_outcome, failure_text
from holdfast.runtime.tools.tool import AnyTool

Tell = Callable[[str, dict[str, Any]], None]
LIVE_KINDS = frozenset({"rate_limited", "unavailable", "timeout", "cut", "unauthorised"})
"""Failures that say nothing about the request: the turn stays live and can be resumed."""
ATTEMPT_LIMIT = 3
"""How often a retryable tool is started if its outcome is unknown each time."""


class TurnDriver:
    """The driver of one turn with one model and its tools."""

    def __init__(
        self,
        turn: AsyncTurn,
        model: Model,
        tools: Mapping[str, AnyTool],
        threads: ThreadPools,
        tell: Tell,
        *,
        session: str,
        output: dict[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        wrote: Callable[[int, int], None] = lambda thread, actor: None,
    ) -> None:
        self._turn, self._model, self._tools, self._threads, self._tell = turn, model, tools, threads, tell
        self._session, self._output, self._options = session, output, dict(options or {})
        self._heard_of = wrote
        self._stopping = asyncio.Event()

    @property
    def _sync_turn(self) -> Turn:
        return self._turn._turn

    @property
    def work(self) -> TurnWork | None:
        """The turn as something that others may wait for; None if it has already ended."""
        return self._sync_turn._opening.work

    def stop(self) -> None:
        """Check for a stop request at once."""
        self._stopping.set()

    def has_stop_request(self) -> bool:
        """Return True if any process has requested a stop."""
        return turns.find_stop_request(self._sync_turn._env, self._sync_turn._place) is not None

    async def run(self) -> Done | Ask:
        """Drive the turn until it is done, stopped or waiting."""
        while True:
            steps = await self._turn.steps()
            await self.publish_versions()
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
            reply = await self._await_reply(asked)
        except ModelFailed as error:
            live = error.retryable or error.kind in LIVE_KINDS
            await step.fail(f"{error.kind}: {error}", retryable=live, usage=error_usage(error.usage))
            if live:
                raise
            return
        if reply is None:
            step.answered = step._step.answered = True
            return
        await self._store_reply(step, reply)
        await self.publish_versions()

    async def _store_reply(self, step: AsyncCallModel, reply: ModelReply) -> None:
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

    async def publish_versions(self) -> None:
        """Tell listeners how far the journal is, in order with the deltas of the reply."""
        turn, inner = self._sync_turn._place, self._sync_turn
        states = [inner._env.states.get(inner._env.tenant, stream) for stream in (turn.thread, turn.actor)]
        if None in states:  # The cache had no room for these states.
            states = await self._threads.run(
                lambda: [load_current_state(inner._env, stream) for stream in (turn.thread, turn.actor)]
            )
        thread, actor = (0 if state is None else state.version for state in states)
        self._heard_of(thread, actor)

    def _calibrate(self, step: AsyncCallModel, reply: ModelReply) -> None:
        models = self._sync_turn._env.models
        if models is not None and reply.usage.input:
            models.note(step.model, step.pack.tokens, reply.usage.input, tenant=self._sync_turn._env.tenant)

    async def _await_reply(self, asked: ModelCall) -> ModelReply | None:
        """Return the reply while relaying its deltas; None if the turn was stopped."""
        said: list[str] = []
        self._sync_turn._words = lambda: "".join(said)

        def say(delta: Delta) -> None:
            if delta.kind == "reset":
                said.clear()
            elif delta.kind == "text":
                said.append(delta.text)
            self._tell("reset" if delta.kind == "reset" else "delta", {"text": delta.text, "kind": delta.kind})

        replying = asyncio.ensure_future(request_reply(self._model, asked, say))
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((replying, stopping), return_when=asyncio.FIRST_COMPLETED)
            if replying.cancelled():  # By the model itself: cancelling this task would have ended the wait.
                raise cancellation_failure(self._model)
            if replying.done():
                return replying.result()
            self._stopping.clear()
            await _cancel_and_wait(replying)
            await self._threads.run(self._sync_turn._stop_if_requested)
        finally:
            stopping.cancel()
            if not replying.done():
                await _cancel_and_wait(replying)
        if self._sync_turn._ended is not None:
            return None
        say(Delta(kind="reset"))  # The stop request is gone: ask the model again.
        return await self._await_reply(asked)

    # Tools

    async def _call_tools(self, steps: list[AsyncCallTool]) -> None:
        """Call all tools in parallel. The failure of one does not end the others; a stop ends all."""
        running = asyncio.gather(*(self._call_tool(step) for step in steps), return_exceptions=True)
        stopping = asyncio.ensure_future(self._stopping.wait())
        try:
            await asyncio.wait((running, stopping), return_when=asyncio.FIRST_COMPLETED)
            if not running.done():
                await _cancel_and_wait(running)
                await self._threads.run(self._sync_turn._stop_if_requested)
                return
        finally:
            stopping.cancel()
            if not running.done():
                await _cancel_and_wait(running)
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
            args = tool.read(step.request.arguments if step._args is None else _encode_json(step._args))
        except ArgumentsUnfit as error:
            await step.fail(str(error))
            return
        await self._run_tool(step, tool, args)

    async def _run_tool(self, step: AsyncCallTool, tool: AnyTool, args: Mapping[str, Any]) -> None:
        call = self._make_call(step, tool)
        try:
            with enter_tool_work():
                value = await tool.run(args, call, self._run_in_thread)
        except (ToolInterrupted, ToolTimedOut) as error:
            await self._handle_unknown(step, tool, failure_text(error))
            return
        except Exception as error:  # noqa: BLE001  # Whatever a tool raises is its result, if the journal takes it.
            text = failure_text(error)
            await self._journal_outcome(step, lambda: step.fail(text))
            return
        came = await self._threads.run(build_outcome, value)
        if came.is_error:
            await self._journal_outcome(step, lambda: step.fail(str(came.result)))
        else:
            files = [file.data for file in came.files]
            await self._journal_outcome(step, lambda: step.done(came.result, files=files))

    async def _handle_unknown(self, step: AsyncCallTool, tool: AnyTool, text: str) -> None:
        """Handle a call with an unknown outcome, as its tool says."""
        if tool.if_unknown == "retry" and step.attempt < ATTEMPT_LIMIT:
            step.mark_waiting()  # Its intent stays open, as after a crash: the call is started again under its key.
            return
        kept = (
            self._sync_turn._tools.ask_about_outcome if tool.if_unknown == "ask" else self._sync_turn._tools.end_unknown
        )
        await self._journal_outcome(step, lambda: self._threads.run(kept, step._step, text))
        step.mark_waiting()

    async def _journal_outcome(self, step: AsyncCallTool, outcome: Callable[[], Awaitable[object]]) -> None:
        """Journal an outcome; if the tool asked a question meanwhile, wait instead, whatever it returned or raised.

        `Waiting` alone is no question: it may come from another turn that this tool ran into.
        """
        try:
            await outcome()
        except FrameSuspended:
            step.mark_waiting()
        except (InvalidValue, TooLarge) as error:
            text = f"The tool ran, but what it gave cannot be kept: {error}"
            await self._journal_outcome(step, lambda: step.fail(text))
        await self.publish_versions()

    def _make_call(self, step: AsyncCallTool, tool: AnyTool) -> ToolCall | AsyncToolCall:
        call = ToolCall(
            self._sync_turn.tool_frame(step),
            self._sync_turn,
            name=step.name,
            session=self._session,
            attempt=step.attempt,
            answer=step.answer,
            tell=self._tell,
        )
        return AsyncToolCall(call, self._threads) if tool.is_async else call

    async def _run_in_thread(self, work: Callable[[], Any]) -> Any:
        # Tools called by a tool get their own threads: else waiting tools could occupy all of them.
        inner = nesting_depth() - 1
        return await self._threads.run_callback(f"{STEPS}-{inner}" if inner > 0 else STEPS, work)


async def _cancel_and_wait(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def _encode_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


async def request_reply(model: Model, asked: ModelCall, say: Callable[[Delta], None]) -> ModelReply:
    """Return the model's reply or raise ModelFailed. A cancellation passes through: the caller knows its source."""
    try:
        reply: object = await model.reply(asked, say)
    except (ModelFailed, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C by the user, not an error of the model.
        raise _model_failure(model, f"raised {type(error).__name__}") from error
    if isinstance(reply, ModelReply):
        return reply
    raise ModelFailed(
        f"The model {model.name} gave {type(reply).__name__} and no ModelReply. Correct its method reply.",
        kind="malformed",
        retryable=True,
    )


def cancellation_failure(model: Model) -> ModelFailed:
    """Return the failure for a reply that was cancelled by no one outside the model."""
    return _model_failure(model, "was cancelled by something that it waited for")


def _model_failure(model: Model, what: str) -> ModelFailed:
    return ModelFailed(
        f"The model {model.name} {what}. Have it raise ModelFailed with a kind, or send the message again.",
        kind="failed",
        retryable=True,
    )

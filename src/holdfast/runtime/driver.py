"""The driver of a turn: it calls the model and tools until the turn ends or waits for a person.

Every step is in the journal before the next one begins. A crash, a cancellation or a model error therefore leaves a
turn that can be resumed where it stood. Any exception of a model becomes ModelFailed, so that it is journaled and
counted; its message is not repeated, since it may hold the request and its key.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from holdfast import errors
from holdfast.aio.executor import SHORT, STEPS, ThreadPools, has_result, settle
from holdfast.client.frame import TurnFrame
from holdfast.client.pack import ContextPack
from holdfast.client.turn import Ask, Done
from holdfast.flow.journal.append import load_state
from holdfast.flow.turns import turns
from holdfast.flow.turns.calls import TurnModelCall, TurnQuestions, TurnToolCall, error_usage
from holdfast.flow.turns.deadlock import TurnWork, current_work, enter_work
from holdfast.flow.turns.engine import TurnEngine
from holdfast.flow.turns.limits import MENDABLE_KINDS
from holdfast.flow.turns.turns import TurnEnd
from holdfast.ports import Model
from holdfast.records.ids import SessionId
from holdfast.records.messages import Delta, ModelCall, ModelReply
from holdfast.runtime.reply import DELTA_EVENTS, EventKind
from holdfast.runtime.tools.arguments import arguments_json
from holdfast.runtime.tools.call import AsyncToolCall, Tell, ToolCall
from holdfast.runtime.tools.result import build_outcome, failure_text
from holdfast.runtime.tools.tool import AnyTool

LIVE_KINDS = MENDABLE_KINDS | {"rate_limited", "unavailable", "timeout", "cut"}
"""Failures that say nothing about the request: the turn stays live and can be resumed."""
ATTEMPT_LIMIT = 3
"""How often a retryable tool is started if its outcome is unknown each time."""


Configure = Callable[[], object]
"""Writes a conversation's instructions and tools."""


def _configure_nothing() -> None:
    """Leave the conversation as it is."""


class TurnDriver:
    """The driver of one turn with one model and its tools."""

    def __init__(
        self,
        engine: TurnEngine,
        model: Model,
        tools: Mapping[str, AnyTool],
        threads: ThreadPools,
        tell: Tell,
        *,
        session: SessionId,
        output: dict[str, Any] | None,
        options: Mapping[str, Any],
        relay: Callable[[EventKind, str], None],
        wrote: Callable[[tuple[int, int]], None],
        is_followed: Callable[[], bool],
    ) -> None:
        """Make a driver. `relay` gets the reply's deltas, and `wrote` is told how far the journal is, from any thread.

        `is_followed` returns True if somebody listens.
        """
        self._engine, self._model, self._tools, self._threads, self._tell = engine, model, tools, threads, tell
        self._session, self._output, self._options = session, output, dict(options)
        self._relay, self._note_versions, self._is_followed = relay, wrote, is_followed
        self._stop_wanted = False
        self._woken: asyncio.Future[None] | None = None
        """Ends the wait for the work at hand."""
        self._ready: list[Any] | None = None
        """The next steps, if they are known already."""
        self._following = threading.Lock()
        """Taken by the thread that finds the next steps after the last outcome of several tools."""

    def stop(self) -> None:
        """Check for a stop request at once."""
        self._stop_wanted = True
        if self._woken is not None:
            _wake(self._woken)

    def has_stop_request(self) -> bool:
        """Return True if any process has requested a stop."""
        return turns.find_stop_request(self._engine.env, self._engine.place) is not None

    async def _finish_or_stop(self, work: asyncio.Future[Any]) -> bool:
        """Wait for some work. If a stop comes first, cancel the work, stop the turn and return False."""
        woken = self._woken = asyncio.get_running_loop().create_future()
        work.add_done_callback(lambda _: _wake(woken))
        if self._stop_wanted:
            _wake(woken)
        try:
            await woken
            if work.done():
                return True
            self._stop_wanted = False
            await _cancel_and_wait(work)
            await self._threads.run(self._engine.stop_if_requested)
            return False
        finally:
            self._woken = None
            if not work.done():
                await _cancel_and_wait(work)

    async def run(
        self,
        configure: Configure = _configure_nothing,
        *,
        load: Callable[[], Coroutine[Any, Any, Configure]] | None = None,
    ) -> Done | Ask:
        """Load what the turn needs before its first step, if anything, then drive it until it is done or waits.

        `configure`, or what `load` returns, is called right before the first step is looked for.
        """
        engine, first = self._engine, configure
        while load is not None and engine.ended is None:
            loading = asyncio.ensure_future(load())
            if await self._finish_or_stop(loading):  # If not, and the turn is live, the stop request is gone.
                first = loading.result()
                break
        while True:
            steps = await self._next_steps(first)
            first = _configure_nothing
            await self.publish_versions()
            step = steps[0]
            if isinstance(step, tuple):
                await self._call_model(*step)
            elif isinstance(step, TurnEnd):
                return Done(step)
            elif isinstance(step, TurnQuestions):
                return Ask(step.questions)
            else:  # Tools run in parallel. The failure of one does not end the others; a stop ends all.
                self._following = threading.Lock()
                calls = [self._call_tool(step) for step in steps if isinstance(step, TurnToolCall)]
                running = asyncio.ensure_future(calls[0] if len(calls) == 1 else _gather(calls))
                if await self._finish_or_stop(running):
                    running.result()

    # The next steps

    async def _next_steps(self, configure: Configure) -> list[Any]:
        """Return the next steps, which the thread that journaled the last outcome may have found already."""
        engine = self._engine
        ready, self._ready = self._ready, None
        if ready is not None and (engine.ended is None or isinstance(ready[0], TurnEnd)):
            return ready
        if engine.ended is not None:
            return [*engine.next_steps()]
        return await self._threads.run(self._load_steps, configure)

    def _load_steps(self, configure: Configure = _configure_nothing) -> list[Any]:
        """Return the next steps; a model call with its pack, whose files are loaded: rendering must not block."""
        configure()
        steps = self._engine.next_steps()
        return [
            (step, ContextPack(self._engine.env, step.packed, step.digest).load_files())
            if isinstance(step, TurnModelCall)
            else step
            for step in steps
        ]

    def _load_following(self) -> list[Any]:
        """Return the steps after the last outcome, in the thread that journaled it; listeners hear of it before."""
        if self._is_followed():
            self._note_versions(self._read_versions())
        return self._load_steps()

    # The model

    async def _call_model(self, call: TurnModelCall, pack: ContextPack) -> None:
        asked = ModelCall(pack=pack, call=call.call, output=self._output, options=self._options)
        try:
            reply = await self._await_reply(asked)
        except errors.ModelFailed as error:
            live = error.retryable or error.kind in LIVE_KINDS
            await self._fail_model(call, error, live)
            if live:
                raise
            return
        if reply is None:
            call.answered = True
            return
        try:
            self._ready = await self._threads.run(self._finish_model, call, reply)
        except (errors.InvalidValue, errors.TooLarge, errors.ToolPairingError) as error:
            if call.answered:
                raise
            # A reply that no conversation can hold is a failure, but its usage is counted.
            text = f"The model {self._model.name} gave a reply that cannot be kept: {error}"
            failed = errors.ModelFailed(text, kind="malformed", retryable=True, usage=reply.usage)
            await self._fail_model(call, failed, True)
            raise failed from error
        env = self._engine.env
        if reply.usage.input:
            env.models.note(call.model, call.packed.token_summary.used, reply.usage.input, tenant=env.tenant)

    def _finish_model(self, call: TurnModelCall, reply: ModelReply) -> list[Any]:
        """Journal a reply, and find what follows from it."""
        self._engine.finish_model(call, reply.message, reply.usage, reply.finish, begin_tools=True)
        return self._load_following()

    async def _fail_model(self, call: TurnModelCall, error: errors.ModelFailed, retryable: bool) -> None:
        text, usage = f"{error.kind}: {error}", error_usage(error.usage)
        await self._threads.run(self._engine.fail_model, call, text, retryable=retryable, usage=usage)

    async def publish_versions(self) -> None:
        """Tell listeners how far the journal is, in order with the deltas of the reply."""
        env, place = self._engine.env, self._engine.place
        known = env.states.streams
        thread, actor = known.get((env.tenant, place.thread)), known.get((env.tenant, place.actor))
        if thread is None or actor is None:  # The cache had no room for these states.
            self._note_versions(await self._threads.run(self._read_versions))
        else:
            self._note_versions((thread.version, actor.version))

    def _read_versions(self) -> tuple[int, int]:
        env, place = self._engine.env, self._engine.place
        return load_state(env, place.thread).version, load_state(env, place.actor).version

    async def _await_reply(self, asked: ModelCall) -> ModelReply | None:
        """Return the reply while relaying its deltas; None if the turn was stopped."""
        said: list[str] = []
        self._engine.streamed = lambda: "".join(said)
        relay, events = self._relay, DELTA_EVENTS

        def say(delta: Delta) -> None:
            kind = delta.kind
            if kind == "text":
                said.append(delta.text)
            elif kind == "reset":
                said.clear()
            relay(events[kind], delta.text)

        replying = asyncio.ensure_future(request_reply(self._model, asked, say))
        if await self._finish_or_stop(replying):
            if replying.cancelled():  # By the model itself: cancelling this task would have ended the wait.
                raise _model_failure(self._model, "was cancelled by something that it waited for")
            return replying.result()
        if self._engine.ended is not None:
            return None
        say(Delta(kind="reset"))  # The stop request is gone: ask the model again.
        return await self._await_reply(asked)

    # Tools

    async def _call_tool(self, call: TurnToolCall) -> None:
        """Run a tool and journal what came of it."""
        end = await self._run_tool(call)
        if end is None:
            call.answered = True  # Its intent stays open, as after a crash: the call is started again under its key.
        else:
            await self._journal_outcome(call, end)

    async def _journal_outcome(self, call: TurnToolCall, end: Callable[[], object]) -> None:
        """Journal an outcome, and wait for that even if a stop comes: one thread at a time uses the turn's engine."""
        ending = self._threads.submit(SHORT, partial(self._end_call, call, end))
        stop = await settle(ending)
        if stop is None or has_result(ending):
            self._ready = ending.result() or self._ready
        if stop is not None:
            raise stop
        if self._ready is None:
            await self.publish_versions()

    async def _run_tool(self, call: TurnToolCall) -> Callable[[], object] | None:
        """Run a tool and return how to journal the outcome; None to start the call again.

        Only mistakes of the model itself are reported back for it to correct. A call that was begun before, or whose
        arguments a person gave, has been checked: else its turn would have asked.
        """
        engine, request = self._engine, call.request
        tool = self._tools.get(request.name)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return partial(engine.fail_tool, call, f"There is no tool {request.name!r:.80}. The tools are: {known}.")
        try:
            args = tool.read(arguments_json(request, call.args))
        except errors.ArgumentsUnfit as error:
            return partial(engine.fail_tool, call, str(error))
        made = ToolCall(
            engine.env,
            TurnFrame(engine.env, engine.place.actor, request.id),
            turn_id=engine.place.frame,
            name=request.name,
            session=self._session,
            attempt=call.attempt,
            answer=call.answer,
            tell=self._tell,
        )
        try:
            with enter_work(TurnWork()):
                wanted = AsyncToolCall(made, self._threads) if tool.is_async else made
                value = await tool.run(args, wanted, self._run_in_thread)
        except (errors.ToolInterrupted, errors.ToolTimedOut) as error:
            return self._handle_unknown(call, tool, failure_text(error))
        except Exception as error:  # noqa: BLE001  # Whatever a tool raises is its result, if the journal takes it.
            return partial(engine.fail_tool, call, failure_text(error))
        return partial(self._end_with_value, call, tool, value)

    def _handle_unknown(self, call: TurnToolCall, tool: AnyTool, text: str) -> Callable[[], object] | None:
        """Return how to end a call with an unknown outcome, as its tool says; None to start it again."""
        if tool.if_unknown == "retry" and call.attempt < ATTEMPT_LIMIT:
            return None
        engine = self._engine
        if tool.if_unknown != "ask":
            return partial(engine.finish_unknown_tool, call, text)

        def ask() -> None:
            engine.ask_about_outcome(call, text)
            call.answered = True

        return ask

    def _end_with_value(self, call: TurnToolCall, tool: AnyTool, value: Any) -> None:
        came = build_outcome(value)
        if came.is_error:
            self._engine.fail_tool(call, str(came.result))
        else:
            files = [one.data for one in came.files]
            self._engine.finish_tool(call, came.result, files=files, policy=tool.policy)

    def _end_call(self, call: TurnToolCall, end: Callable[[], object]) -> list[Any] | None:
        """Journal an outcome; if the tool asked a question meanwhile, wait instead, whatever it returned or raised.

        `Waiting` alone is no question: it may come from another turn that this tool ran into.
        """
        try:
            end()
        except errors.FrameSuspended:
            call.answered = True
        except (errors.InvalidValue, errors.TooLarge) as error:
            text = f"The tool ran, but what it gave cannot be kept: {error}"
            return self._end_call(call, partial(self._engine.fail_tool, call, text))
        is_last = self._engine.is_answered and self._following.acquire(blocking=False)
        return self._load_following() if is_last else None

    async def _run_in_thread(self, work: Callable[[], Any]) -> Any:
        # Tools called by a tool get their own threads: else waiting tools could occupy all of them.
        inner = sum(one.going_on and one.heeds_stops for one in current_work.get()) - 1
        return await self._threads.run_callback(f"{STEPS}-{inner}" if inner > 0 else STEPS, work)


async def _gather(calls: list[Coroutine[Any, Any, None]]) -> None:
    """Wait for all calls, and raise the first failure."""
    for failure in await asyncio.gather(*calls, return_exceptions=True):
        if failure is not None:
            raise failure


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _cancel_and_wait(task: asyncio.Future[Any]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def request_reply(model: Model, asked: ModelCall, say: Callable[[Delta], None]) -> ModelReply:
    """Return the model's reply or raise ModelFailed. A cancellation passes through: the caller knows its source."""
    try:
        reply: object = await model.reply(asked, say)
    except (errors.ModelFailed, asyncio.CancelledError, GeneratorExit):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread():
            raise  # Ctrl-C by the user, not an error of the model.
        raise _model_failure(model, f"raised {type(error).__name__}") from error
    if isinstance(reply, ModelReply):
        return reply
    text = f"The model {model.name} gave {type(reply).__name__} and no ModelReply. Correct its method reply."
    raise errors.ModelFailed(text, kind="malformed", retryable=True)


def _model_failure(model: Model, what: str) -> errors.ModelFailed:
    text = f"The model {model.name} {what}. Have it raise ModelFailed with a kind, or send the message again."
    return errors.ModelFailed(text, kind="failed", retryable=True)

"""`async with chat.turn(…) as turn: async for step in turn:` the loop of `client/turn.py` for asyncio.

The same steps under the same names; `done`, `fail` and `ask` are awaited. Waiting in the queue takes no thread. Chunks
of a stream are read in the task that consumes the text, so nothing changes for the provider's SDK; a stop is noticed
even while the provider is silent, and ends the wait like a timeout.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, Self

from holdfast.aio.executor import SHORT, ThreadPools, leave_in_thread, settle
from holdfast.aio.frame import AsyncFrame
from holdfast.client.pack import ContextPack
from holdfast.client.turn import EMPTY_STREAM, Ask, CallModel, CallTool, Done, Step, make_step, make_turn_frame
from holdfast.core.wire.stream import StreamAccumulator
from holdfast.errors import HoldfastError, InvalidValue, ModelFailed
from holdfast.flow.frames.takeover import read_status
from holdfast.flow.turns import turns
from holdfast.flow.turns.calls import EngineStep, TurnModelCall, TurnToolCall, error_usage
from holdfast.flow.turns.deadlock import current_caller
from holdfast.flow.turns.engine import STOP_POLL_SECONDS, TurnEngine
from holdfast.flow.turns.open import OpeningWait, Ticket
from holdfast.records.messages import Message
from holdfast.records.usage import Usage


class AsyncCallModel(CallModel):
    """A CallModel whose outcome is awaited."""

    __slots__ = ("_threads",)

    def __init__(self, engine: TurnEngine, call: TurnModelCall, pack: ContextPack, threads: ThreadPools) -> None:
        super().__init__(engine, call, pack)
        self._threads = threads

    async def done(  # type: ignore[override]  # the same word, awaited here
        self, response: Any, *, usage: Usage | int | None = None, finish: str | None = None
    ) -> Message:
        """See CallModel.done."""
        return await self._threads.run(self._engine.finish_model, self._call, response, usage, finish)

    async def fail(  # type: ignore[override]  # the same word, awaited here
        self, error: BaseException | str, *, retryable: bool = False, usage: Usage | int = 0
    ) -> None:
        """See CallModel.fail."""
        await self._threads.run(self._engine.fail_model, self._call, error, retryable=retryable, usage=usage)

    async def stream(self, chunks: Any) -> AsyncIterator[str]:  # type: ignore[override]  # the same word, awaited here
        """See CallModel.stream. `chunks` is an async stream."""
        self._call.check_unanswered()
        engine, gathered = self._engine, None
        async with aclosing(read_chunks(engine, self._threads, chunks)) as pieces:
            async for chunk in pieces:
                if gathered is None:
                    gathered = StreamAccumulator()
                    engine.streamed = partial(getattr, gathered, "text")
                for delta in gathered.add(chunk):
                    if delta.kind == "text" and delta.text:
                        yield delta.text
        if engine.ended is None and (gathered is None or not gathered.ended):
            await self._threads.run(engine.stop_if_requested)
        if engine.ended is not None:
            self._call.answered = True
            return
        if gathered is None:
            raise InvalidValue(EMPTY_STREAM)
        try:
            whole = gathered.build_response()
        except ModelFailed as error:
            await self.fail(error, retryable=True, usage=error_usage(error.usage))
            raise
        await self.done(whole)


class AsyncCallTool(CallTool):
    """A CallTool whose outcome is awaited."""

    __slots__ = ("_threads",)

    def __init__(self, engine: TurnEngine, call: TurnToolCall, threads: ThreadPools) -> None:
        super().__init__(engine, call)
        self._threads = threads

    async def done(  # type: ignore[override]  # the same word, awaited here
        self, value: Any, *, files: Sequence[bytes] = (), policy: str | None = None
    ) -> Message:
        """See CallTool.done."""
        return await self._threads.run(self._engine.finish_tool, self._call, value, files=files, policy=policy)

    async def fail(self, error: BaseException | str) -> Message:  # type: ignore[override]  # same word, awaited here
        """See CallTool.fail."""
        return await self._threads.run(self._engine.fail_tool, self._call, error)

    async def ask(  # type: ignore[override]  # the same word, awaited here
        self, reason: str, *, kind: str = "approval", **how: Any
    ) -> str:
        """See CallTool.ask."""
        return await self._threads.run(self._engine.ask, self._call, reason, kind, how)


class AsyncTurn:
    """A Turn for asyncio, created by `chat.turn(…)` and used with `async with`."""

    def __init__(
        self,
        engine: TurnEngine,
        threads: ThreadPools,
        note_queued: Callable[[], object] = lambda: None,
        note_wait: Callable[[bool], object] = lambda waits: None,
    ) -> None:
        """Make a turn of its engine.

        `note_queued` is called when the turn has begun, or has its place in the queue; `note_wait` before and after
        each wait for others.
        """
        self.engine, self._threads = engine, threads
        self._note_queued, self._note_wait = note_queued, note_wait

    async def __aenter__(self) -> Self:
        """Open the turn. Waiting for others can be cancelled at any time."""
        engine, threads = self.engine, self._threads
        engine.check_not_entered()
        engine.opener.caller = current_caller(engine.env, asyncio.current_task())
        waits = engine.opener.wait_steps()
        while True:
            moving = threads.submit(SHORT, partial(next, waits, None))
            stop = await settle(moving)
            if stop is not None or moving.exception() is not None:
                await settle(threads.submit_or_run(partial(self._abandon_opening, waits)))
                if stop is not None:
                    raise stop
            wait: OpeningWait | None = moving.result()
            self._note_queued()
            if wait is None:
                break
            try:
                self._note_wait(True)
                await self._wait_for_others(wait)
                self._note_wait(False)
            except BaseException:
                await settle(threads.submit_or_run(partial(self._abandon_opening, waits)))
                raise
        engine.enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None and self.engine.is_released:
            self.engine.leave()
        else:
            await leave_in_thread(self._threads, self.engine, error)

    def _abandon_opening(self, waits: Generator[OpeningWait, None, None]) -> None:
        """Abandon the opening; a turn that was begun already stays live, for its key to continue."""
        engine = self.engine
        waits.close()
        if engine.opener.epoch is not None:
            engine.enter()
            engine.leave(asyncio.CancelledError())
        engine.opener.leave()

    async def _wait_for_others(self, wait: OpeningWait) -> None:
        if not isinstance(wait, Ticket):
            await asyncio.sleep(wait)
            return
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        wait.call_when_ready(lambda: loop.call_soon_threadsafe(ready.set))
        try:  # Not wait_for, which loses a cancellation that coincides with our turn.
            async with asyncio.timeout(self.engine.opener.remaining_wait()):
                await ready.wait()
        except TimeoutError:
            return  # The opening notices that it was not called, and reports it.

    # properties

    @property
    def key(self) -> str | None:
        """See Turn.key."""
        return self.engine.key

    @property
    def id(self) -> str:
        """See Turn.id."""
        return self.engine.id

    @property
    def frame(self) -> AsyncFrame:
        """See Turn.frame."""
        return AsyncFrame(make_turn_frame(self.engine), self._threads)

    async def status(self) -> str:
        """See Turn.status."""
        place = self.engine.opener.turn_place
        return await self._threads.run(read_status, self.engine.env, place.actor, place.frame)

    @property
    def text(self) -> str:
        """See Turn.text."""
        return "" if self.result is None else self.result.text

    @property
    def result(self) -> Done | None:
        """See Turn.result."""
        return None if self.engine.ended is None else Done(self.engine.ended)

    async def usage(self) -> Usage:
        """See Turn.usage."""
        known = self.engine.used
        return await self._threads.run(lambda: self.engine.usage) if known is None else known

    # next steps

    async def __aiter__(self) -> AsyncIterator[Step]:
        while steps := await self.steps(at_once=1):
            yield steps[0]
            if isinstance(steps[0], Done):
                return
            if isinstance(steps[0], Ask) and not await self._threads.run(self.engine.can_continue):
                return

    async def steps(self, at_once: int | None = None) -> list[Step]:
        """See Turn.steps."""
        if self.engine.ended is not None:  # Nothing more is read.
            return [self._make_step(step) for step in self.engine.next_steps(at_once)]
        return await self._threads.run(lambda: [self._make_step(step) for step in self.engine.next_steps(at_once)])

    def _make_step(self, step: EngineStep) -> Step:
        if isinstance(step, TurnModelCall):  # Its files are loaded: rendering must not block on the disk.
            pack = ContextPack(self.engine.env, step.packed, step.digest).load_files()
            return AsyncCallModel(self.engine, step, pack, self._threads)
        if isinstance(step, TurnToolCall):
            return AsyncCallTool(self.engine, step, self._threads)
        return make_step(self.engine, step)

    # stopping

    async def stop(self, reason: str = turns.STOPPED) -> Done:
        """See Turn.stop."""
        return Done(await self._threads.run(self.engine.stop, reason))

    async def is_stopping(self) -> bool:
        """See Turn.is_stopping."""
        return await self._threads.run(self.engine.load_stop_reason) is not None

    async def wait_for_stop(self, timeout: float | None = None) -> str | None:
        """See Turn.wait_for_stop. Race it against slow work; it takes no thread while it waits."""
        engine = self.engine
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (reason := await self._threads.run(engine.load_stop_reason)) is None and engine.ended is None:
                    await asyncio.sleep(STOP_POLL_SECONDS)
                return reason
        return None

    def __repr__(self) -> str:
        found = self.engine.id if self.engine.opener.found else None
        return f"AsyncTurn({self.engine.goal!r}, id={found!r})"


CLOSE_SECONDS = 2.0
"""Seconds that a stream has to close."""
_END: Final = object()


async def read_chunks(engine: TurnEngine, threads: ThreadPools, chunks: Any) -> AsyncGenerator[Any, None]:
    """Yield the chunks until they end or the turn does."""
    given, at_end = aiter(chunks), False
    looked = _now()
    try:
        while True:
            try:
                chunk = await _next_chunk(engine, threads, given)
            except Exception:
                with suppress(HoldfastError):  # The error to raise is the stream's.
                    await threads.run(engine.stop_if_requested)
                if engine.ended is None:
                    raise
                return
            if chunk is _END:
                at_end = True
                return
            yield chunk
            if engine.ended is None and _now() - looked > STOP_POLL_SECONDS:
                looked = _now()
                await threads.run(engine.stop_if_requested)
            if engine.ended is not None:
                return
    finally:
        if not at_end:
            await _close_stream(given)
            if chunks is not given:
                await _close_stream(chunks)


async def _next_chunk(engine: TurnEngine, threads: ThreadPools, given: AsyncIterator[Any]) -> Any:
    """Return the next chunk; raise TimeoutError if the turn was asked to stop before it came."""
    loop, watching = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    async with asyncio.timeout(None) as timer:
        # Most chunks come sooner and need no watcher.
        silent = loop.call_later(
            STOP_POLL_SECONDS, lambda: watching.add(loop.create_task(_watch_for_stop(engine, threads, timer)))
        )
        try:
            return await anext(given, _END)
        finally:
            silent.cancel()
            for task in watching:
                task.cancel()


async def _watch_for_stop(engine: TurnEngine, threads: ThreadPools, timer: asyncio.Timeout) -> None:
    while True:
        with suppress(HoldfastError):  # The journal cannot be read now; the next look may succeed.
            if await threads.run(engine.load_stop_reason) is not None:
                timer.reschedule(_now())
                return
        await asyncio.sleep(STOP_POLL_SECONDS)


async def _close_stream(stream: object) -> None:
    """Close a stream if possible; ignore its errors."""
    close = getattr(stream, "aclose", None) or getattr(stream, "close", None)
    if not callable(close):
        return
    with suppress(Exception):
        async with asyncio.timeout(CLOSE_SECONDS):
            made = close()
            if inspect.isawaitable(made):
                await made


def _now() -> float:
    return asyncio.get_running_loop().time()

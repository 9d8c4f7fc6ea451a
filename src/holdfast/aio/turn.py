"""`async with chat.turn(…) as turn: async for step in turn:` the loop of `client/turn.py` for asyncio.

The same steps under the same names; `done`, `fail` and `ask` are awaited. Waiting in the queue takes no thread. Chunks
of a stream are read in the task that consumes the text, so nothing changes for the provider's SDK; a stop is noticed
even while the provider is silent, and ends the wait like a timeout.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final

from holdfast.aio.executor import SHORT, ThreadPools, has_result, settle
from holdfast.aio.frame import AsyncFrame
from holdfast.client.steps import EMPTY_STREAM, STOP_POLL_SECONDS, Ask, CallModel, CallTool, Done, Step, error_usage
from holdfast.client.turn import Turn
from holdfast.core.wire.stream import make_accumulator
from holdfast.errors import HoldfastError, InvalidValue, ModelFailed
from holdfast.flow.turns import turns
from holdfast.flow.turns.deadlock import current_caller
from holdfast.flow.turns.open import OpeningWait, QueueWait
from holdfast.records.messages import Message
from holdfast.records.usage import Usage


class AsyncCallModel(CallModel):
    """A CallModel whose outcome is awaited."""

    __slots__ = ("_step", "_threads")

    def __init__(self, step: CallModel, threads: ThreadPools) -> None:
        super().__init__(step._turn, step.call, step.pack, step.model, repeated=step.repeated)
        self._step, self._threads = step, threads

    async def done(  # type: ignore[override]  # the same word, awaited here
        self, response: Any, *, usage: Usage | int | None = None, finish: str | None = None
    ) -> Message:
        """See CallModel.done."""
        said = await self._threads.run(self._step.done, response, usage=usage, finish=finish)
        self.answered = True
        return said

    async def fail(  # type: ignore[override]  # the same word, awaited here
        self, error: BaseException | str, *, retryable: bool = False, usage: Usage | int = 0
    ) -> None:
        """See CallModel.fail."""
        await self._threads.run(self._step.fail, error, retryable=retryable, usage=usage)
        self.answered = True

    async def stream(self, chunks: Any) -> AsyncIterator[str]:  # type: ignore[override]  # the same word, awaited here
        """See CallModel.stream. `chunks` is an async stream."""
        self._check_unanswered()
        turn, gathered = self._turn, None
        async with aclosing(read_chunks(turn, self._threads, chunks)) as pieces:
            async for chunk in pieces:
                if gathered is None:
                    gathered = make_accumulator()
                    turn._words = partial(getattr, gathered, "text")
                for delta in gathered.add(chunk):
                    if delta.kind == "text" and delta.text:
                        yield delta.text
        if turn._ended is None and (gathered is None or not gathered.ended):
            await self._threads.run(turn._stop_if_requested)
        if turn._ended is not None:
            self.answered = self._step.answered = True
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

    __slots__ = ("_step", "_threads")

    def __init__(self, step: CallTool, threads: ThreadPools) -> None:
        super().__init__(step._turn, step.request, attempt=step.attempt, answer=step.answer, args=step._args)
        self._step, self._threads = step, threads

    async def done(  # type: ignore[override]  # the same word, awaited here
        self, value: Any, *, files: Sequence[bytes] = ()
    ) -> Message:
        """See CallTool.done."""
        said = await self._threads.run(self._step.done, value, files=files)
        self.answered = True
        return said

    async def fail(self, error: BaseException | str) -> Message:  # type: ignore[override]  # same word, awaited here
        """See CallTool.fail."""
        said = await self._threads.run(self._step.fail, error)
        self.answered = True
        return said

    async def ask(  # type: ignore[override]  # the same word, awaited here
        self, reason: str, *, kind: str = "approval", **how: Any
    ) -> str:
        """See CallTool.ask."""
        question = await self._threads.run(partial(self._step.ask, reason, kind=kind, **how))
        self.answered = True
        return question

    def mark_waiting(self) -> None:
        """Mark the step as answered while its tool waits for an answer: there is no outcome yet."""
        self.answered = self._step.answered = True


class AsyncTurn(AsyncFrame):
    """A Turn for asyncio, created by `chat.turn(…)` and used with `async with`."""

    def __init__(self, turn: Turn, threads: ThreadPools) -> None:
        super().__init__(turn, threads)
        self._turn = turn
        self.lined: Callable[[], object] = lambda: None
        """Called when the turn has begun, or has its place in the queue."""

    async def open(self) -> None:
        """See Turn.open. Waiting for others can be cancelled at any time."""
        self._turn._check_not_entered()
        self._turn._opening.caller = current_caller(self._turn._env, asyncio.current_task())
        steps = self._turn._opening.wait_steps()
        while True:
            moving = self._threads.submit(SHORT, partial(next, steps, None))
            stop = await settle(moving)
            if stop is not None or not has_result(moving):
                await settle(self._threads.submit_or_run(partial(self._abandon_opening, steps)))
                if stop is not None:
                    raise stop
            wait: OpeningWait | None = moving.result()
            self.lined()
            if wait is None:
                break
            try:
                await self._wait_for_turn(wait)
            except BaseException:
                await settle(self._threads.submit_or_run(partial(self._abandon_opening, steps)))
                raise
        self._turn._adopt_opening()

    def _abandon_opening(self, steps: Iterator[OpeningWait]) -> None:
        """Abandon the opening; a turn that was begun already stays live, for its key to continue."""
        steps.close()  # type: ignore[attr-defined]  # it is a generator
        if self._turn._opening.epoch is not None:
            self._turn._adopt_opening()
            self._turn.leave(asyncio.CancelledError())
        self._turn._opening.leave()

    async def _wait_for_turn(self, wait: OpeningWait) -> None:
        if not isinstance(wait, QueueWait):
            await asyncio.sleep(wait)
            return
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        wait.call_when_ready(lambda: loop.call_soon_threadsafe(ready.set))
        try:  # Not wait_for, which loses a cancellation that coincides with our turn.
            async with asyncio.timeout(self._turn._opening.remaining_wait()):
                await ready.wait()
        except TimeoutError:
            return  # The opening notices that it was not called, and reports it.

    # properties

    @property
    def key(self) -> str | None:
        """See Turn.key."""
        return self._turn.key

    @property
    def text(self) -> str:
        """See Turn.text."""
        return self._turn.text

    async def usage(self) -> Usage:
        """See Turn.usage."""
        known = self._turn._used
        return await self._threads.run(lambda: self._turn.usage) if known is None else known

    # next steps

    async def __aiter__(self) -> AsyncIterator[Step]:
        while steps := await self.steps(at_once=1):
            yield steps[0]
            if isinstance(steps[0], Done):
                return
            if isinstance(steps[0], Ask) and not await self._threads.run(self._turn._can_continue):
                return

    async def steps(self, at_once: int | None = None) -> list[Step]:
        """See Turn.steps."""
        if self._turn._ended is not None:
            return self._turn.steps(at_once)  # Nothing more is read.
        return [self._wrap_step(step) for step in await self._threads.run(self._load_steps, at_once)]

    def _load_steps(self, at_once: int | None) -> list[Step]:
        steps = self._turn.steps(at_once)
        for step in steps:
            if isinstance(step, CallModel):
                step.pack = step.pack.load_files()  # Rendering must not block on the disk.
        return steps

    def _wrap_step(self, step: Step) -> Step:
        if isinstance(step, CallModel):
            return AsyncCallModel(step, self._threads)
        if isinstance(step, CallTool):
            return AsyncCallTool(step, self._threads)
        return step

    async def stop(self, reason: str = turns.STOPPED) -> Done:
        """See Turn.stop."""
        return await self._threads.run(self._turn.stop, reason)

    async def is_stopping(self) -> bool:
        """See Turn.is_stopping."""
        return await self._threads.run(self._turn.is_stopping)

    async def wait_for_stop(self, timeout: float | None = None) -> str | None:
        """See Turn.stopping. Race it against slow work; it takes no thread while it waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (
                    reason := await self._threads.run(self._turn._load_stop_reason)
                ) is None and not self._turn._has_ended:
                    await asyncio.sleep(STOP_POLL_SECONDS)
                return reason
        return None

    def __repr__(self) -> str:
        return f"Async{self._turn!r}"


CLOSE_SECONDS = 2.0
"""Seconds that a stream has to close."""
_END: Final = object()


async def read_chunks(turn: Turn, threads: ThreadPools, chunks: Any) -> AsyncGenerator[Any, None]:
    """Yield the chunks until they end or the turn does."""
    given, at_end = aiter(chunks), False
    looked = _now()
    try:
        while True:
            try:
                chunk = await _next_chunk(turn, threads, given)
            except Exception:
                with suppress(HoldfastError):  # The error to raise is the stream's.
                    await threads.run(turn._stop_if_requested)
                if turn._ended is None:
                    raise
                return
            if chunk is _END:
                at_end = True
                return
            yield chunk
            if turn._ended is None and _now() - looked > STOP_POLL_SECONDS:
                looked = _now()
                await threads.run(turn._stop_if_requested)
            if turn._ended is not None:
                return
    finally:
        if not at_end:
            await _close_stream(given)
            if chunks is not given:
                await _close_stream(chunks)


async def _next_chunk(turn: Turn, threads: ThreadPools, given: AsyncIterator[Any]) -> Any:
    """Return the next chunk; raise TimeoutError if the turn was asked to stop before it came."""
    loop, watching = asyncio.get_running_loop(), set[asyncio.Task[None]]()
    async with asyncio.timeout(None) as timer:
        # Most chunks come sooner and need no watcher.
        silent = loop.call_later(
            STOP_POLL_SECONDS, lambda: watching.add(loop.create_task(_watch_for_stop(turn, threads, timer)))
        )
        try:
            return await anext(given, _END)
        finally:
            silent.cancel()
            for task in watching:
                task.cancel()


async def _watch_for_stop(turn: Turn, threads: ThreadPools, timer: asyncio.Timeout) -> None:
    while True:
        with suppress(HoldfastError):  # The journal cannot be read now; the next look may succeed.
            if await threads.run(turn._load_stop_reason) is not None:
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

"""`async with chat.turn(…) as turn: async for step in turn:` the loop of `client/turn.py` for asyncio.

The same steps under the same names; `done`, `fail` and `ask` are awaited. Lining up behind others takes no thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any

from holdfast.aio.frame import AsyncFrame
from holdfast.aio.threads import SHORT, Threads, gave, settle
from holdfast.aio.turn_stream import heard
from holdfast.client.steps import Ask, CallModel, CallTool, Done, Step
from holdfast.client.turn import Turn
from holdfast.client.turn_stream import EMPTY_STREAM, LOOK_EVERY, used
from holdfast.client.turn_terms import Lined, Wait
from holdfast.core.wire.streaming import accumulator
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.flow.turn import turns
from holdfast.flow.turn.waiting import caller
from holdfast.records.messages import Message
from holdfast.records.usage import Usage


class AsyncCallModel(CallModel):
    """CallModel whose outcome is awaited."""

    __slots__ = ("_step", "_threads")

    def __init__(self, step: CallModel, threads: Threads) -> None:
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
        self._once()
        turn, gathered = self._turn, None
        async with aclosing(heard(turn, self._threads, chunks)) as pieces:
            async for chunk in pieces:
                if gathered is None:
                    gathered = accumulator()
                    turn._words = partial(getattr, gathered, "text")
                for delta in gathered.add(chunk):
                    if delta.kind == "text" and delta.text:
                        yield delta.text
        if turn._ended is None and (gathered is None or not gathered.ended):
            await self._threads.run(turn._heed_stop)
        if turn._ended is not None:
            self.answered = self._step.answered = True
            return
        if gathered is None:
            raise InvalidValue(EMPTY_STREAM)
        try:
            whole = gathered.whole()
        except ModelFailed as error:
            await self.fail(error, retryable=True, usage=used(error.usage))
            raise
        await self.done(whole)


class AsyncCallTool(CallTool):
    """CallTool whose outcome is awaited."""

    __slots__ = ("_step", "_threads")

    def __init__(self, step: CallTool, threads: Threads) -> None:
        super().__init__(step._turn, step.request, attempt=step.attempt, answer=step.answer, args=step._args)
        self._step, self._threads = step, threads

    async def done(  # type: ignore[override]  # the same word, awaited here
        self, value: Any, *, files: Sequence[bytes] = ()
    ) -> Message:
        """See CallTool.done."""
        said = await self._threads.run(self._step.done, value, files=files)
        self.answered = True
        return said

    async def fail(self, error: BaseException | str) -> Message:  # type: ignore[override]  # the same word, awaited here
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

    def waits(self) -> None:
        """Its tool waits for an answer: there is no outcome yet."""
        self.answered = self._step.answered = True


class AsyncTurn(AsyncFrame):
    """Turn for asyncio. Made by `chat.turn(…)`, used with `async with`."""

    def __init__(self, turn: Turn, threads: Threads) -> None:
        super().__init__(turn, threads)
        self._turn = turn
        self.lined: Callable[[], object] = lambda: None
        """Called when it has begun, or has its place behind others."""

    async def open(self) -> None:
        """See Turn.open. Waiting for others can be cancelled at any time."""
        self._turn._check_not_entered()
        self._turn._opening.caller = caller(self._turn._ports, asyncio.current_task())
        steps = self._turn._opening.steps()
        while True:
            moving = self._threads.submit(SHORT, partial(next, steps, None))
            stop = await settle(moving)
            if stop is not None or not gave(moving):
                await settle(self._threads.must(partial(self._abandon, steps)))
                if stop is not None:
                    raise stop
            wait: Wait | None = moving.result()
            self.lined()
            if wait is None:
                break
            try:
                await self._waited(wait)
            except BaseException:
                await settle(self._threads.must(partial(self._abandon, steps)))
                raise
        self._turn._opened()

    def _abandon(self, steps: Iterator[Wait]) -> None:
        """Nobody wants the turn any more: what was begun already stays live, for its key to take up."""
        steps.close()  # type: ignore[attr-defined]  # it is a generator
        if self._turn._opening.epoch is not None:
            self._turn._opened()
            self._turn.leave(asyncio.CancelledError())
        self._turn._opening.leave()

    async def _waited(self, wait: Wait) -> None:
        if not isinstance(wait, Lined):
            await asyncio.sleep(wait)
            return
        loop, ready = asyncio.get_running_loop(), asyncio.Event()
        wait.tell(lambda: loop.call_soon_threadsafe(ready.set))
        try:  # Not by wait_for, which loses a cancellation that comes together with our turn.
            async with asyncio.timeout(self._turn._opening.patience()):
                await ready.wait()
        except TimeoutError:
            return  # The opening sees that it was not called, and says so.

    # what it is

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

    # what comes next

    async def __aiter__(self) -> AsyncIterator[Step]:
        while steps := await self.steps(at_once=1):
            yield steps[0]
            if isinstance(steps[0], Done):
                return
            if isinstance(steps[0], Ask) and not await self._threads.run(self._turn._can_go_on):
                return

    async def steps(self, at_once: int | None = None) -> list[Step]:
        """See Turn.steps."""
        if self._turn._ended is not None:
            return self._turn.steps(at_once)  # Nothing is read any more.
        return [self._awaited(step) for step in await self._threads.run(self._read_in, at_once)]

    def _read_in(self, at_once: int | None) -> list[Step]:
        steps = self._turn.steps(at_once)
        for step in steps:
            if isinstance(step, CallModel):
                step.pack = step.pack.read_in()  # So that nothing waits for the disk when it is rendered.
        return steps

    def _awaited(self, step: Step) -> Step:
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

    async def stopping(self, timeout: float | None = None) -> str | None:
        """See Turn.stopping. Race it against what takes long; it takes no thread while it waits."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                while (reason := await self._threads.run(self._turn._stop_asked)) is None and not self._turn._is_over:
                    await asyncio.sleep(LOOK_EVERY)
                return reason
        return None

    def __repr__(self) -> str:
        return f"Async{self._turn!r}"

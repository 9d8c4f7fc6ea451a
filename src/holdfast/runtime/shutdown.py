"""Shutting down: nothing new begins, running work may end within the grace period, and the rest is left for later.

| when | what happens |
|---|---|
| a signal, `stop.request()`, or the block is left | new sends, turns and frames, and queued ones, get `Draining` |
| until the grace is over | running work may end, and so may the block |
| then, or with a second signal | agents' work is cancelled, then the block; turns stay live and unowned |
| a third signal | its handling from before the block |

Functions that run in threads cannot be stopped. The process does not wait for them: their intents are journaled, so
the next process retries, asks or fails them as their tools say. `Draining` that reaches the end of the block after a
stop request is the normal way out and no error. The grace is counted from the first signal to the end of the block.

Without asyncio, the block must be in the main thread: when the grace is over it is interrupted as by Ctrl-C, and its
open frames and turns stay live. The program's own threads get `Draining` at their next operation; a thread that never
starts one is for the program to end.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any, Self

from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.core.numbers import is_number
from holdfast.errors import Draining, InvalidValue, Refused
from holdfast.runtime.loop_thread import get_loop_thread
from holdfast.runtime.tasks import get_agent_tasks

if TYPE_CHECKING:
    from holdfast.client.holdfast import Holdfast

SHUTDOWN_POLL_SECONDS, BLOCK_SECONDS = 0.02, 0.2
CANCEL_SHARE, CANCEL_SECONDS_LIMIT = 0.2, 2.0
"""The part of the grace reserved for cancelling work that did not end in time: a fifth, two seconds at most."""


class WindDown:
    """The shutdown of one client's work, on its event loop. `leave` stops the block that it belongs to."""

    def __init__(self, hf: AsyncHoldfast, grace: float, leave: Callable[[], None]) -> None:
        if not hf.env.whole:
            raise Refused("This stops every tenant's work. Call it on the client itself, not on a tenant's view.")
        if not is_number(grace, least=0, most=10**6, whole=False):
            raise InvalidValue(f"grace must be a number of seconds, 0 or more, not {grace!r:.40}.")
        self._hf, self._crew, self._leave = hf, get_agent_tasks(hf), leave
        self._grace = float(grace)
        self._task: asyncio.Task[None] | None = None
        self._hurried, self.asked = asyncio.Event(), asyncio.Event()
        self.inside = True
        """True while the block is at work."""

    def request(self) -> None:
        """Begin the shutdown; if it was requested before, hurry."""
        if self.asked.is_set():
            self._hurried.set()
            return
        self.asked.set()
        self._hf._sync.drain(0)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def hurry(self) -> None:
        """Cancel at once all work that has not ended."""
        if not self.asked.is_set():
            self.request()
        self._hurried.set()

    async def wait_until_over(self) -> None:
        """Wait until everything has ended or was cancelled. The wait may be cancelled safely, and repeated."""
        if self._task is not None:
            await asyncio.wait({self._task})

    @property
    def is_over(self) -> bool:
        """True once everything has ended or was cancelled."""
        return self._task is not None and self._task.done()

    async def _run(self) -> None:
        leaving = min(self._grace * CANCEL_SHARE, CANCEL_SECONDS_LIMIT)
        loop = asyncio.get_running_loop()
        until = loop.time() + self._grace - leaving
        while not self._hurried.is_set() and loop.time() < until:
            if not (self.inside or self._crew.tasks or self._hf._sync.drain(0) > 0):
                break
            await self._pause(until - loop.time())
        await self._crew.cancel_all(leaving)
        until = loop.time() + min(leaving / 2, BLOCK_SECONDS)
        while self.inside and loop.time() < until:
            await self._pause(until - loop.time())  # The block has been told, and may clean up.
        if self.inside:
            self._leave()

    async def _pause(self, most: float) -> None:
        await asyncio.sleep(min(SHUTDOWN_POLL_SECONDS, max(0.0, most)))


class SignalRelay:
    """Signals that are forwarded, and their previous handlers."""

    def __init__(self, numbers: Iterable[int] | None, tell: Callable[[], object]) -> None:
        self.numbers = (signal.SIGTERM, signal.SIGINT) if numbers is None else tuple(numbers)
        self._tell, self._came = tell, 0
        self._before: dict[int, Any] = {}
        self.is_own: Callable[[], bool] = lambda: False
        """Called first, in the main thread: returns True if this process sent the signal to itself."""

    def install(self) -> None:
        """Forward signals from now on; refused outside the main thread, where Python does not deliver them."""
        if self.numbers and threading.current_thread() is not threading.main_thread():
            raise Refused(
                "Signals come to the main thread only. Enter graceful_shutdown there, or pass signals=() and call "
                "stop.request() when the program is to end."
            )
        for number in self.numbers:
            self._before[number] = signal.signal(number, self._receive)

    def restore(self) -> None:
        """Restore the previous handlers."""
        while self._before:
            number, before = self._before.popitem()
            signal.signal(number, signal.SIG_DFL if before is None else before)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.is_own():
            return
        self._came += 1
        if self._came > 2:
            self.restore()
            signal.raise_signal(number)
            return
        self._tell()


class AsyncShutdown:
    """A block that ends cleanly with its process: `async with hf.graceful_shutdown(grace=25) as stop:`."""

    def __init__(self, hf: AsyncHoldfast, grace: float, signals: Iterable[int] | None) -> None:
        self._wind = WindDown(hf, grace, self._cancel_block)
        self._signals = SignalRelay(signals, lambda: self._loop.call_soon_threadsafe(self._wind.request))
        self._block: asyncio.Task[Any] | None = None
        self._cancelled = 0

    @property
    def requested(self) -> bool:
        """True once a shutdown was requested: begin nothing new."""
        return self._wind.asked.is_set()

    def request(self) -> None:
        """Request the shutdown, like a signal; the second time, hurry. Call it from the loop's thread."""
        self._wind.request()

    async def wait(self) -> None:
        """Wait until a shutdown is requested. Leave the block then; running work may go on within the grace period."""
        await self._wind.asked.wait()

    async def __aenter__(self) -> Self:
        self._loop, self._block = asyncio.get_running_loop(), asyncio.current_task()
        assert self._block is not None, "whoever enters a block is a task"
        self._cancelling = self._block.cancelling()
        self._signals.install()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        wind, stopped = self._wind, None
        wind.inside = False
        quiet = error is not None and wind.asked.is_set() and self._is_expected(error)
        if error is not None and not quiet:
            wind.hurry()
        elif not wind.asked.is_set():
            wind.request()
        try:
            while not wind.is_over:
                try:
                    await wind.wait_until_over()
                except asyncio.CancelledError as again:
                    if not self._is_ours():
                        wind.hurry()
                        stopped = again
        finally:
            self._signals.restore()
        for _ in range(self._cancelled):
            self._block.uncancel()  # type: ignore[union-attr]  # it was entered
        if stopped is not None and (error is None or quiet):
            raise stopped
        return quiet

    def _cancel_block(self) -> None:
        assert self._block is not None
        self._cancelled += 1
        self._block.cancel()

    def _is_ours(self) -> bool:
        """Return True if only this object cancelled the block, and nothing from outside."""
        assert self._block is not None
        return self._cancelled > 0 and self._block.cancelling() - self._cancelled <= self._cancelling

    def _is_expected(self, error: BaseException) -> bool:
        if isinstance(error, BaseExceptionGroup):
            return all(self._is_expected(one) for one in error.exceptions)
        if isinstance(error, asyncio.CancelledError):
            return self._is_ours()
        return isinstance(error, Draining)


class GraceExpired(BaseException):
    """The end of the grace, which ends the block. `except Exception` does not catch it."""


class Shutdown:
    """A block that ends cleanly with its process: `with hf.graceful_shutdown(grace=25) as stop:`."""

    def __init__(self, hf: Holdfast, grace: float, signals: Iterable[int] | None) -> None:
        self._loop = get_loop_thread(hf)
        self._asked, self._inside, self._interrupted = threading.Event(), True, False
        self._signals = SignalRelay(signals, self._request_on_loop)
        self._signals.is_own = self._take_interrupt
        self._wind = self._loop.run(self._make_wind_down(AsyncHoldfast(hf, self._loop.threads), grace))

    async def _make_wind_down(self, hf: AsyncHoldfast, grace: float) -> WindDown:
        return WindDown(hf, grace, self._interrupt)

    @property
    def requested(self) -> bool:
        """True once a shutdown was requested: begin nothing new."""
        return self._asked.is_set()

    def request(self) -> None:
        """Request the shutdown, like a signal; the second time, hurry."""
        self._request_on_loop()
        self._asked.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until a shutdown is requested, or for some seconds; return True if it was. Leave the block then."""
        return self._asked.wait(timeout)

    def __enter__(self) -> Self:
        self._signals.install()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        self._inside = False
        way_out = self._asked.is_set() and isinstance(error, Draining | GraceExpired)
        try:
            if self._loop.alive:
                self._loop.run(self._finish(hurry=error is not None and not way_out))
        finally:
            self._signals.restore()
        return way_out

    async def _finish(self, *, hurry: bool) -> None:
        self._wind.inside = False
        if hurry:
            self._wind.hurry()
        elif not self._wind.asked.is_set():
            self._start_wind_down()
        await self._wind.wait_until_over()

    # On the event loop

    def _start_wind_down(self) -> None:
        self._wind.request()
        self._asked.set()

    def _interrupt(self) -> None:
        """Interrupt the block, whatever it waits for, with a signal to the main thread."""
        main = threading.main_thread().ident
        if self._signals.numbers and main is not None and hasattr(signal, "pthread_kill"):
            self._interrupted = True
            signal.pthread_kill(main, self._signals.numbers[0])

    # In the main thread, where signals arrive

    def _request_on_loop(self) -> None:
        self._loop.call(self._start_wind_down)  # Take no lock here: the signal may have interrupted its holder.

    def _take_interrupt(self) -> bool:
        if not self._interrupted:
            return False
        self._interrupted = False
        if self._inside:
            raise GraceExpired
        return True

"""Shutting down for code without asyncio: the same as `shutdown`, for a block in the main thread.

When the grace is over, whatever the block does is interrupted as Ctrl-C would do it, by an exception that ends at the
block: frames and turns that it has open stay live. Only the main thread can be interrupted so. Threads of the
program's own get `Draining` at their next piece of work, and a thread that never asks for one is for the program to
end.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterable
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import Draining
from holdfast.runtime.loop_thread import loop_of
from holdfast.runtime.shutdown import Signals, WindingDown

if TYPE_CHECKING:
    from holdfast.client.holdfast import Holdfast


class GraceOver(BaseException):
    """The grace is over, and so is the block. It is not caught by `except Exception`."""


class Shutdown:
    """`with hf.shutting_down(grace=25) as stop:` a block that ends well when the process is told to end."""

    def __init__(self, hf: Holdfast, grace: float, signals: Iterable[int] | None) -> None:
        self._loop = loop_of(hf)
        self._asked, self._inside, self._interrupted = threading.Event(), True, False
        self._signals = Signals(signals, self._tell)
        self._signals.is_own = self._interrupts
        self._wind = self._loop.run(self._made(AsyncHoldfast(hf, self._loop.threads), grace))

    async def _made(self, hf: AsyncHoldfast, grace: float) -> WindingDown:
        return WindingDown(hf, grace, self._interrupt)

    @property
    def requested(self) -> bool:
        """Whether it is to end: begin nothing new."""
        return self._asked.is_set()

    def request(self) -> None:
        """As a signal would: the first time to end, the second time to hurry."""
        self._tell()
        self._asked.wait()

    def wait(self, timeout: float | None = None) -> bool:
        """Return once it is to end, or after some seconds; gives whether it is. Leave the block then."""
        return self._asked.wait(timeout)

    def __enter__(self) -> Self:
        self._signals.install()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        self._inside = False
        way_out = self._asked.is_set() and isinstance(error, Draining | GraceOver)
        try:
            if self._loop.alive:
                self._loop.run(self._over(hurry=error is not None and not way_out))
        finally:
            self._signals.restore()
        return way_out

    async def _over(self, *, hurry: bool) -> None:
        self._wind.inside = False
        if hurry:
            self._wind.hurry()
        elif not self._wind.asked.is_set():
            self._ask()
        await self._wind.over()

    # from the loop

    def _ask(self) -> None:
        self._wind.ask()
        self._asked.set()

    def _interrupt(self) -> None:
        """Interrupt the block, whatever it waits for: a signal is what the main thread listens to."""
        main = threading.main_thread().ident
        if self._signals.numbers and main is not None and hasattr(signal, "pthread_kill"):
            self._interrupted = True
            signal.pthread_kill(main, self._signals.numbers[0])

    # in the main thread, where signals come

    def _tell(self) -> None:
        self._loop.call(self._ask)  # Nothing that takes a lock: this may interrupt whoever holds it.

    def _interrupts(self) -> bool:
        if not self._interrupted:
            return False
        self._interrupted = False
        if self._inside:
            raise GraceOver
        return True

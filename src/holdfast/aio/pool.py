"""Threads for callers' functions, which nobody can stop: they can be left, and then they are in nobody's way."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, ParamSpec, TypeVar

from holdfast.errors import ToolFailed

MOST_LEFT = 256
"""Functions that were left and still run. With more of them nothing is begun."""

P = ParamSpec("P")
T = TypeVar("T")


class LeavablePool(Executor):
    """A pool that nobody waits for when the process ends, whatever runs in it then.

    What hangs can be left before that: its thread is lost, and another takes its place.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._lined = _Lined(threads, name)
        weakref.finalize(self, self._lined.end)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Start something, or line it up."""
        made: Future[T] = Future()
        self._lined.put(made, lambda: _carry_out(made, lambda: fn(*args, **kwargs)))
        return made

    def leave(self, work: Future[Any]) -> None:
        """Wait no longer for something that has begun."""
        self._lined.leave(work)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Begin nothing more. What is lined up is still done, if the process lasts that long."""
        self._lined.end()


class _Lined:
    """What a pool has to do, and how many threads do it. They know this and not the pool, which may go away."""

    def __init__(self, threads: int, name: str) -> None:
        self._most, self._name = threads, name
        self._work: deque[tuple[Future[Any], Callable[[], None]]] = deque()
        self._news = threading.Condition()
        self._left: set[Future[Any]] = set()
        self._begun = self._named = self._free = 0
        self._over = False

    def put(self, made: Future[Any], work: Callable[[], None]) -> None:
        with self._news:
            if self._over:
                raise RuntimeError("This pool begins nothing more.")
            if len(self._left) >= MOST_LEFT:
                raise ToolFailed(
                    f"Too many tools hang: {len(self._left)} were left after their time and still run. Nothing was "
                    "begun. Correct them, or start the process again."
                )
            self._work.append((made, work))
            self._see_to_it()

    def leave(self, made: Future[Any]) -> None:
        with self._news:
            if made.running() and made not in self._left:
                self._left.add(made)
                self._begun -= 1
                self._see_to_it()

    def end(self) -> None:
        with self._news:
            self._over = True
            self._news.notify_all()

    def _see_to_it(self) -> None:
        if len(self._work) <= self._free:
            self._news.notify()
        elif self._begun < self._most:
            self._begun, self._named = self._begun + 1, self._named + 1
            threading.Thread(target=self._serve, name=f"{self._name}_{self._named}", daemon=True).start()

    def _serve(self) -> None:
        while (item := self._next()) is not None:
            made, work = item
            work()
            with self._news:
                if made in self._left:  # Another has taken this thread's place.
                    self._left.discard(made)
                    return
            del item, made, work  # They hold what came of it.

    def _next(self) -> tuple[Future[Any], Callable[[], None]] | None:
        with self._news:
            while not self._work and not self._over:
                self._free += 1
                self._news.wait()
                self._free -= 1
            return self._work.popleft() if self._work else None


def _carry_out(made: Future[T], work: Callable[[], T]) -> None:
    if not made.set_running_or_notify_cancel():
        return
    try:
        made.set_result(work())
    except BaseException as error:  # noqa: BLE001  # Whoever reads the future gets it.
        made.set_exception(error)

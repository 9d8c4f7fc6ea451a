"""An event loop in a background thread, for agents in code without asyncio.

The loop starts with the first send and ends with the client, which leaves running turns live. A caller that waits for
work on it can be interrupted at any time; the work is then cancelled, and its end awaited. No caller waits for a loop
that has ended, for whatever reason.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.aio.executor import ThreadPools, enter_next_level, retrieve_exception
from holdfast.errors import Closed, Refused
from holdfast.runtime.tasks import CLOSE_TIMEOUT, UNCERTAIN_ADVICE

if TYPE_CHECKING:
    from holdfast.client.holdfast import Holdfast

R = TypeVar("R")
JOIN_TIMEOUT = 1.0
"""Seconds for the loop itself to end."""
CANCEL_TIMEOUT = 0.1
"""Seconds for work to heed a cancellation, even when the time is up."""

_loops: weakref.WeakKeyDictionary[Any, LoopThread] = weakref.WeakKeyDictionary()
_mutex = threading.Lock()


class LoopThread:
    """An event loop in a thread, with the client's thread pool."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self.threads = ThreadPools()
        self.models: dict[int, Any] = {}
        """Models passed as objects and used on this loop: their connections on it are closed with it."""
        self.closed = False
        self._waiters = _Waiters()
        self._mutex = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(
            target=_run_loop, args=(self._loop, self._waiters), name="holdfast-agents", daemon=True
        )
        self._thread.start()

    @property
    def alive(self) -> bool:
        """True if the thread runs in this process: no thread survives a fork."""
        return self._pid == os.getpid() and self._thread.is_alive() and not self._waiters.dismissed

    def run(self, work: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the loop to its end. If the wait is interrupted, cancel the work and wait for it."""
        if threading.current_thread() is self._thread:
            work.close()
            raise Refused(
                "This would wait for the loop that it runs on. Make the tool with def, which runs in a thread, or use "
                "the agent of an open_async client."
            )
        began: list[asyncio.Task[R]] = []
        ended = self._waiters.add()

        def begin() -> None:
            began.append(self._loop.create_task(work))
            began[0].add_done_callback(retrieve_exception)
            began[0].add_done_callback(lambda _: ended.set())

        def give_up() -> None:
            began[0].cancel()

        try:
            with enter_next_level(), self._mutex:
                if self.closed or not self.alive:
                    raise Closed
                self._loop.call_soon_threadsafe(begin)
        except (Closed, RuntimeError):  # It is closed, or was just now.
            work.close()
            raise Closed from None
        try:
            ended.wait()
        except BaseException:
            with suppress(RuntimeError):  # The loop is closed, and its waiters were released.
                self.call(give_up)
            ended.wait()
            raise
        if began and began[0].done() and not began[0].cancelled():
            return began[0].result()
        failure = self._waiters.failure
        if failure is not None:
            raise Closed(f"The thread that agents work in has ended: {failure!r:.200}. {UNCERTAIN_ADVICE}") from failure
        raise Closed(f"The client was closed meanwhile. {UNCERTAIN_ADVICE}")

    def call(self, work: Callable[[], object]) -> None:
        """Schedule a call on the loop."""
        self._loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """Stop the loop, leaving running turns live and resumable."""
        if not self.alive:
            return  # Its waiters were released.
        if threading.current_thread() is self._thread:
            raise Refused("A tool cannot close the client that it works for.")
        with self._mutex:  # Work submitted before is ended here, and none is submitted after.
            if self.closed:
                return
            self.closed = True
            ending = self._schedule(_close_all(self.threads, list(self.models.values())))
        try:
            ending.result(timeout=CLOSE_TIMEOUT + JOIN_TIMEOUT)
        except (TimeoutError, CancelledError):
            pass  # Something blocks the loop, or has just ended it.
        finally:
            self._finish()

    def _finish(self) -> None:
        """Release the waiters. Work that ignores cancellation keeps the loop until it ends, or the process does."""
        self.threads.close()
        ended = self._schedule(_wait_for_tasks())
        ended.add_done_callback(lambda _: self._stop_loop())
        with suppress(TimeoutError, CancelledError):
            ended.result(timeout=CANCEL_TIMEOUT)
            self._thread.join(timeout=JOIN_TIMEOUT)
        self._waiters.dismiss()
        self.threads.kept.clear()  # It would hold the client for as long as this object is known.
        self.models.clear()

    def _schedule(self, work: Coroutine[Any, Any, R]) -> Future[R]:
        """Schedule a coroutine on the loop; return a cancelled future if the loop has just ended."""
        try:
            return asyncio.run_coroutine_threadsafe(work, self._loop)
        except RuntimeError:
            work.close()
            nothing: Future[R] = Future()
            nothing.cancel()
            return nothing

    def _stop_loop(self) -> None:
        with suppress(RuntimeError):  # It has already stopped.
            self._loop.call_soon_threadsafe(self._loop.stop)


class _Waiters:
    """Callers that wait for work on the loop. They are released when it ends: some work cannot be cancelled."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._events: weakref.WeakSet[threading.Event] = weakref.WeakSet()
        self.dismissed = False
        self.failure: BaseException | None = None
        """The exception that ended the loop, if its end was not requested."""

    def add(self) -> threading.Event:
        """Register a waiter."""
        event = threading.Event()
        with self._mutex:
            self._events.add(event)
            if self.dismissed:
                event.set()
        return event

    def dismiss(self, failure: BaseException | None = None) -> None:
        """Release all waiters, now and later."""
        with self._mutex:
            self.dismissed, self.failure = True, self.failure or failure
            for event in list(self._events):
                event.set()


def _run_loop(loop: asyncio.AbstractEventLoop, waiters: _Waiters) -> None:
    """Run the loop until it is stopped. SystemExit or KeyboardInterrupt in a task ends only that task."""
    failure: BaseException | None = None
    try:
        while True:
            try:
                loop.run_forever()
            except (KeyboardInterrupt, SystemExit):
                continue  # It is that task's result, for its waiter.
            return
    except BaseException as error:  # noqa: BLE001  # Whatever it is, those who wait are to hear of it.
        failure = error
    finally:
        waiters.dismiss(failure)
        loop.close()


async def _wait_for_tasks() -> None:
    while left := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(left)


async def _close_all(threads: ThreadPools, models: list[Any]) -> None:
    """Close everything, cancel the remaining tasks and wait for them, within one common time limit."""
    late = asyncio.get_running_loop().time() + CLOSE_TIMEOUT
    while threads.endings:
        await threads.endings.pop()()
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    if left:
        await asyncio.wait(left, timeout=max(CANCEL_TIMEOUT, late - asyncio.get_running_loop().time()))
    for model in models:
        await model.close()


def get_loop_thread(hf: Holdfast) -> LoopThread:
    """Return the loop of a client, which its views share."""
    with _mutex:
        found = _loops.get(hf.env.leases)
        if found is not None and found.closed:
            raise Closed
        if found is None or not found.alive:
            hf.env.journal.position()  # Raises if the client is closed, before a thread is started for it.
            found = _loops[hf.env.leases] = LoopThread()
            hf.env.endings.append(found.close)
        return found

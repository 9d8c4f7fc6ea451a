"""Running a tool's function within its time limit, so that its exceptions cannot be mistaken for others.

A tool is user code. Its exceptions pass through, with six exceptions: SystemExit, KeyboardInterrupt, a cancellation of
itself, GeneratorExit and StopIteration would end or hang the waiter, or the event loop that all others share, and
exceeding the time limit raises ToolTimedOut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import ToolFailed, ToolTimedOut

ThreadRunner = Callable[[Callable[[], Any]], Awaitable[Any]]
"""A runner of functions in a thread. Cancelling the await must abandon the thread, even while the function goes on."""


async def run_function(
    name: str,
    function: Callable[..., Any],
    given: dict[str, Any],
    in_thread: ThreadRunner,
    *,
    is_async: bool,
    timeout: float | None,
) -> Any:
    """Await an `async def`, or run a `def` in a thread. The time limit starts when the function does."""
    try:
        async with asyncio.timeout(timeout if is_async else None) as timer:
            if is_async:
                return await _run_async(name, function, given)
            begun = _make_timer_start(timer, timeout)
            return await in_thread(lambda: begun() or _run_sync(name, function, given))
    except TimeoutError:
        if not timer.expired():
            raise  # The tool's own: something it waited for timed out.
        raise ToolTimedOut(
            f"{name} did not end within {timeout:g} seconds. It may or may not have taken effect."
        ) from None


def _make_timer_start(timer: asyncio.Timeout, timeout: float | None) -> Callable[[], None]:
    """Return the function that starts the time limit, called by the thread when it begins."""
    loop = asyncio.get_running_loop()

    def timed() -> None:
        with suppress(RuntimeError):  # It has already ended.
            timer.reschedule(loop.time() + (timeout or 0))

    def begun() -> None:
        if timeout is not None:
            with suppress(RuntimeError):  # The loop is closed, and its waiters are gone.
                loop.call_soon_threadsafe(timed)

    return begun


async def _run_async(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    own = asyncio.current_task()
    try:
        return await function(**given)
    except asyncio.CancelledError as error:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # A cancellation from outside.
        raise _failure(name, error) from None
    except GeneratorExit as error:
        if own is None or _current_task() is not own:
            raise  # The coroutine is being closed, and must not go on.
        raise _failure(name, error) from None
    except (SystemExit, KeyboardInterrupt) as error:
        raise _failure(name, error) from None


def _current_task() -> asyncio.Task[Any] | None:
    """Return the current task, if there is one."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _run_sync(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    try:
        return function(**given)
    except StopIteration as error:
        raise ToolFailed(f"{name} raised StopIteration: it asked an iterator for more than it had.") from error
    except (SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit) as error:
        raise _failure(name, error) from None


def _failure(name: str, error: BaseException) -> ToolFailed:
    if isinstance(error, KeyboardInterrupt):
        return ToolFailed(f"{name} raised KeyboardInterrupt, as if somebody had wanted the whole process to end.")
    if isinstance(error, SystemExit):
        return ToolFailed(f"{name} tried to end the whole process (exit {error.code!r:.80}) and was kept from it.")
    if isinstance(error, GeneratorExit):
        return ToolFailed(f"{name} raised GeneratorExit, as if it were a generator that is being closed.")
    return ToolFailed(f"{name} was cancelled by something that it waited for.")

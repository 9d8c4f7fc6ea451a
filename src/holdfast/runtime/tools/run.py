"""Running a tool's function to its end, within its time, so that nothing it raises looks like something else.

A tool is others' code. Its exceptions come out as they are, with six exceptions: leaving the process,
KeyboardInterrupt, cancelling itself, GeneratorExit and StopIteration would end or hang whoever waits for it, or the
loop that all others wait on, and what comes after its time is ToolTimedOut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from holdfast.errors import ToolFailed, ToolTimedOut

InThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function in a thread. Cancelling the await must let go of it, even while the function goes on."""


async def run_function(
    name: str,
    function: Callable[..., Any],
    given: dict[str, Any],
    in_thread: InThread,
    *,
    is_async: bool,
    timeout: float | None,
) -> Any:
    """Await an `async def`, or run a `def` in a thread. Its time runs from when it begins."""
    try:
        async with asyncio.timeout(timeout if is_async else None) as timer:
            if is_async:
                return await _awaited(name, function, given)
            begun = _starting(timer, timeout)
            return await in_thread(lambda: begun() or _called(name, function, given))
    except TimeoutError:
        if not timer.expired():
            raise  # The tool's own: something that it waited for.
        raise ToolTimedOut(
            f"{name} did not end within {timeout:g} seconds. It may or may not have taken effect."
        ) from None


def _starting(timer: asyncio.Timeout, timeout: float | None) -> Callable[[], None]:
    """What a thread calls when it begins, however long that took."""
    loop = asyncio.get_running_loop()

    def timed() -> None:
        with suppress(RuntimeError):  # It has ended already.
            timer.reschedule(loop.time() + (timeout or 0))

    def begun() -> None:
        if timeout is not None:
            with suppress(RuntimeError):  # The loop is closed, and whoever waited in it is gone.
                loop.call_soon_threadsafe(timed)

    return begun


async def _awaited(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    own = asyncio.current_task()
    try:
        return await function(**given)
    except (SystemExit, KeyboardInterrupt) as error:
        raise _leaving(name, error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # Somebody wants this to stop.
        raise _cancelled(name) from None
    except GeneratorExit:
        if own is None or _task() is not own:
            raise  # Nobody runs this any more: it is being closed, and may not go on.
        raise _exiting(name) from None


def _task() -> asyncio.Task[Any] | None:
    """The task that runs here, if one does."""
    try:
        return asyncio.current_task()
    except RuntimeError:
        return None


def _called(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    try:
        return function(**given)
    except (SystemExit, KeyboardInterrupt) as error:
        raise _leaving(name, error) from None
    except asyncio.CancelledError:
        raise _cancelled(name) from None
    except GeneratorExit:
        raise _exiting(name) from None
    except StopIteration as error:
        raise ToolFailed(f"{name} raised StopIteration: it asked an iterator for more than it had.") from error


def _leaving(name: str, error: SystemExit | KeyboardInterrupt) -> ToolFailed:
    if isinstance(error, KeyboardInterrupt):
        return ToolFailed(f"{name} raised KeyboardInterrupt, as if somebody had wanted the whole process to end.")
    return ToolFailed(f"{name} tried to end the whole process (exit {error.code!r:.80}) and was kept from it.")


def _exiting(name: str) -> ToolFailed:
    return ToolFailed(f"{name} raised GeneratorExit, as if it were a generator that is being closed.")


def _cancelled(name: str) -> ToolFailed:
    return ToolFailed(f"{name} was cancelled by something that it waited for.")

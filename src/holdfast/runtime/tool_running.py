"""Running a tool's function to its end, within its time, so that nothing it raises looks like something else.

A tool is others' code. Its exceptions come out as they are, with four exceptions: leaving the process, cancelling
itself and StopIteration would end or hang whoever waits for it, and what comes after its time is ToolTimedOut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
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
    """Await an `async def`, or run a `def` in a thread."""
    made = _awaited(name, function, given) if is_async else in_thread(lambda: _called(name, function, given))
    try:
        async with asyncio.timeout(timeout) as timer:
            return await made
    except TimeoutError:
        if not timer.expired():
            raise  # The tool's own: something that it waited for.
        raise ToolTimedOut(
            f"{name} did not end within {timeout:g} seconds. It may or may not have taken effect."
        ) from None


async def _awaited(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    try:
        return await function(**given)
    except SystemExit as error:
        raise _leaving(name, error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise  # Somebody wants this to stop.
        raise _cancelled(name) from None


def _called(name: str, function: Callable[..., Any], given: dict[str, Any]) -> Any:
    try:
        return function(**given)
    except SystemExit as error:
        raise _leaving(name, error) from None
    except asyncio.CancelledError:
        raise _cancelled(name) from None
    except StopIteration as error:
        raise ToolFailed(f"{name} raised StopIteration: it asked an iterator for more than it had.") from error


def _leaving(name: str, error: SystemExit) -> ToolFailed:
    return ToolFailed(f"{name} tried to end the whole process (exit {error.code!r:.80}) and was kept from it.")


def _cancelled(name: str) -> ToolFailed:
    return ToolFailed(f"{name} was cancelled by something that it waited for.")

"""One connection to an MCP server, owned by one task from beginning to end.

The SDK's client must be left in the task that entered it, and tools run in many. So a task of its own holds the
connection, and everybody else asks it for the client. A connection belongs to the loop that made it. However it ends,
the process of a server that was started here is waited for, or killed after a few seconds, before its loop is closed.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, nullcontext
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.core.values import words
from holdfast.errors import InvalidValue, Unsupported

try:
    import anyio
    import httpx2
    import mcp_types
    from mcp import Client, MCPError, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
except ImportError:  # An extra: who uses no MCP servers need not have it.
    mcp_types = None  # type: ignore[assignment]

__all__ = ["Link", "Target", "is_gone", "is_unknown", "mcp_types", "said_by", "target_of"]

_CONNECTING: Final = 30.0
_READING: Final = 300.0
"""Seconds of silence over HTTP: a server may hold an answer back for long while it works."""
_PARTING: Final = 2.0
"""Seconds for taking leave of a server, before its process is stopped or its address is left."""
_STUCK: Final = 0.5
"""Seconds after which something that was cancelled and still waits does so in vain."""
_ENDING: Final = 10.0
"""Seconds in which everything of a connection has ended: the SDK bounds each wait for a process."""


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where a server is: a command that starts it, or a URL."""

    shown: str
    command: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] | None = None


def target_of(
    command: Sequence[str] | None,
    url: str | None,
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
    headers: Mapping[str, str] | None,
) -> Target:
    """Where a server is, checked."""
    if mcp_types is None:
        raise Unsupported("MCP servers need the SDK. Run: pip install 'holdfast[mcp]'")
    if (command is None) == (url is None):
        raise InvalidValue("Give McpServer either the command that starts the server, as a list, or its url.")
    if url is not None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")) or env or cwd:
            raise InvalidValue(f"url is {url!r:.80}. Give an http or https address, without env and cwd.")
        return Target(shown=url.partition("?")[0], url=url, headers=dict(headers) if headers else None)
    given = None if isinstance(command, str) else tuple(command or ())
    if not given or not all(isinstance(word, str) for word in given) or headers:
        raise InvalidValue(f"command is {command!r:.80}. Give a list of texts, program first, without headers.")
    place = None if cwd is None else str(cwd)
    return Target(shown=Path(given[0]).name, command=given, env=dict(env) if env else None, cwd=place)


class Link:
    """A connection that is being made, or is there, or was lost."""

    def __init__(self, target: Target) -> None:
        self.loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Client] = self.loop.create_future()
        self._ready.add_done_callback(_seen)
        self._stop = asyncio.Event()
        self._talking = anyio.CancelScope()
        self._talks, self._lost = False, False
        self._over: Future[None] = Future()
        self._task = _Holding(self._hold(target), self.loop, self._interrupted)
        self._task.add_done_callback(lambda _: self._over.set_result(None))

    @property
    def usable(self) -> bool:
        """Whether nothing is known to be wrong with it."""
        return not self._lost and not self.loop.is_closed()

    @property
    def over(self) -> bool:
        """Whether nothing of it is left, or nothing that could still be taken down."""
        return self._over.done() or self.loop.is_closed()

    @property
    def client(self) -> Client:
        """The SDK's client of a connection that was made."""
        return self._ready.result()

    async def connect(self, timeout: float) -> None:
        """Wait until it is connected."""
        try:
            async with asyncio.timeout(timeout):
                await asyncio.shield(self._ready)
        except TimeoutError:
            self.give_up()
            raise TimeoutError(f"it did not answer within {timeout:g} seconds") from None

    def give_up(self) -> None:
        """Take it down without waiting for that."""
        self._lost = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._stop.set()
        if self._ready.done():
            self._talking.deadline = self.loop.time() + _PARTING
        else:
            self._talking.cancel()

    def _interrupted(self) -> None:
        """Its loop is about to end: no time for taking leave."""
        self._lost = True
        self._stop.set()
        self._talking.cancel()
        self.loop.call_later(_STUCK, self._unstick)

    def _unstick(self) -> None:
        """Have it go on if it hangs.

        Whoever cancels this task cancels all others as well, those of asyncio and anyio among them. If that is while
        a process starts, both may wait in vain for one that never ran. So this is cancelled out of each such wait.
        """
        if self._talks:
            self._task.cancel("It never began.")
            self.loop.call_later(_STUCK, self._unstick)

    async def close(self) -> None:
        """Take it down and wait until nothing of it is left, unless it belongs to a loop that does not run."""
        self.give_up()
        if self.loop.is_running():
            await asyncio.wait({asyncio.wrap_future(self._over)}, timeout=_ENDING)

    async def _hold(self, target: Target) -> None:
        try:
            async with AsyncExitStack() as stack:
                if not self._stop.is_set():
                    await self._talk(stack, target)
        except Exception as error:  # noqa: BLE001  whoever asks for the client gets it
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._lost = True
            if not self._ready.done():
                self._ready.set_exception(ConnectionError("the connection was given up"))

    async def _talk(self, stack: AsyncExitStack, target: Target) -> None:
        """Until somebody wants it to end. Only this is ever cancelled: what it stands on is taken down in order."""
        self._talks = True
        try:
            transport = await _transport(stack, target)
            with self._talking:
                async with Client(transport) as client:
                    if not self._ready.done():
                        self._ready.set_result(client)
                    await self._stop.wait()
        finally:
            self._talks = False


class _Holding(asyncio.Task[None]):
    """A task that ends in order when it is cancelled, as `asyncio.run` does with all that are left at its end.

    A cancellation in the middle of stopping a process would leave that to nobody, and one while it starts is waited
    for in vain by asyncio itself. The SDK's own cancellations carry a message, by which anyio knows them.
    """

    def __init__(
        self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, interrupted: Callable[[], None]
    ) -> None:
        super().__init__(work, loop=loop)
        self._when_interrupted = interrupted

    def cancel(self, msg: Any = None) -> bool:
        """Have it end; it does so by itself."""
        if msg is not None:
            return super().cancel(msg)
        if not self.done():
            self.get_loop().call_soon_threadsafe(self._when_interrupted)
        return False


async def _transport(stack: AsyncExitStack, target: Target) -> AbstractAsyncContextManager[Any]:
    if not target.url:
        program, *arguments = target.command
        how = StdioServerParameters(command=program, args=arguments, env=target.env, cwd=target.cwd)
        # A server complains where this process does. In a notebook, sys.stderr is no file that it could be given.
        started = stdio_client(how, errlog=sys.__stderr__ or sys.stderr)
        return nullcontext(await stack.enter_async_context(started))
    patience = httpx2.Timeout(_CONNECTING, read=_READING)
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=target.headers, timeout=patience))
    return streamable_http_client(target.url, http_client=http)


def is_gone(error: BaseException) -> bool:
    """Whether an error says that the connection is no more, rather than that the server did not like a request."""
    if isinstance(error, MCPError):
        return error.code == mcp_types.CONNECTION_CLOSED
    return isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError | OSError | httpx2.HTTPError)


def is_unknown(error: BaseException) -> bool:
    """Whether an error leaves open what became of a request: it may have reached the server."""
    return is_gone(error) or (isinstance(error, MCPError) and error.code == mcp_types.REQUEST_TIMEOUT)


def said_by(error: BaseException) -> str:
    """What an error says, in a few words and without a full stop."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error) if isinstance(error, MCPError) else words(error)
    return " ".join(text.split())[:300].rstrip(".")


def _seen(ready: asyncio.Future[Client]) -> None:
    """A failure that nobody waits for any more is no news to the loop."""
    if not ready.cancelled():
        ready.exception()

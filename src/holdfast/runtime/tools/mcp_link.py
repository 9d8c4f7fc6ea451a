"""One connection to an MCP server, owned by one task from beginning to end.

The SDK's client must be left in the task that entered it, and tools run in many. So a task of its own holds the
connection, and everybody else asks it for the client. A connection belongs to the loop that made it.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
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
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Client] = self._loop.create_future()
        self._ready.add_done_callback(_seen)
        self._stop = asyncio.Event()
        self._lost = False
        self._task = self._loop.create_task(self._hold(target))

    @property
    def usable(self) -> bool:
        """Whether nothing is known to be wrong with it."""
        return not self._lost and not self._loop.is_closed()

    async def client(self, timeout: float) -> Client:
        """The SDK's client, once it is connected."""
        try:
            async with asyncio.timeout(timeout):
                return await asyncio.shield(self._ready)
        except TimeoutError:
            self._lost = True
            self._task.cancel()
            raise TimeoutError(f"it did not answer within {timeout:g} seconds") from None

    def give_up(self) -> None:
        """Take it down without waiting for that."""
        self._lost = True
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._stop.set()
        if not self._ready.done():
            self._task.cancel()

    async def close(self) -> None:
        """Take it down and wait until nothing of it is left, if it belongs to this loop."""
        self.give_up()
        if self._loop is asyncio.get_running_loop():
            await asyncio.wait({self._task})

    async def _hold(self, target: Target) -> None:
        try:
            async with AsyncExitStack() as stack:
                client = await stack.enter_async_context(Client(await _transport(stack, target)))
                if not self._ready.done():
                    self._ready.set_result(client)
                await self._stop.wait()
        except Exception as error:  # noqa: BLE001  whoever asks for the client gets it
            if not self._ready.done():
                self._ready.set_exception(error)
        finally:
            self._lost = True
            if not self._ready.done():
                self._ready.set_exception(ConnectionError("the connection was given up"))


async def _transport(stack: AsyncExitStack, target: Target) -> AbstractAsyncContextManager[Any]:
    if not target.url:
        program, *arguments = target.command
        how = StdioServerParameters(command=program, args=arguments, env=target.env, cwd=target.cwd)
        # A server complains where this process does. In a notebook, sys.stderr is no file that it could be given.
        return stdio_client(how, errlog=sys.__stderr__ or sys.stderr)
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

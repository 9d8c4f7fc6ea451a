"""MCP servers as sources of tools. Needs `pip install 'holdfast[mcp]'`.

    files = McpServer(command=["npx", "-y", "@modelcontextprotocol/server-filesystem", "/data"], prefix="files_")
    agent = hf.agent("clerk", model=…, tools=[refund, files])

A server is connected when its tools are first requested, and again after it was lost. The policy for interrupted calls
follows the server's own hints, which are only as true as the server. A tool marked read-only or idempotent is retried.
For any other tool a person is asked if its process died; if the connection was lost or the call timed out, the model
is told that it may have run, and for a tool marked destructive a person is asked then, too. `if_interrupted` overrides
all of that. Nothing needs approval unless you say so.

The SDK's client must be exited in the task that entered it, and tools run in many tasks. So one task holds the
connection, and all others request the client from it. A connection belongs to the loop that made it. However it ends,
the process of a server started here is waited for, or killed after a few seconds, before its loop is closed.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Final, Self, cast

import msgspec

from holdfast.aio.executor import retrieve_exception
from holdfast.core.journal.codec import encode
from holdfast.core.values import exception_text
from holdfast.core.wire.tools import MAX_NAME_CHARS, read_tool_defs
from holdfast.errors import InvalidValue, Refused, TooLarge, ToolFailed, ToolInterrupted, Unsupported
from holdfast.records.messages import ToolDef
from holdfast.runtime.tools.result import Bytes
from holdfast.runtime.tools.tool import AnyTool, Approval, IfInterrupted, Tool

try:
    import anyio
    import httpx2
    import mcp_types
    from mcp import Client, MCPError, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
except ImportError:  # An optional extra.
    mcp_types = None  # type: ignore[assignment]

_PAGE_LIMIT: Final = 100
_TOOL_LIMIT: Final = 1_000
_LIST_BYTES: Final = 500_000
"""Bytes of all definitions: they are one event of a session."""
_NESTING: Final = 48
"""Depth of a definition, which an event wraps further."""
_INVALID_CHARACTERS: Final = re.compile(r"[^a-zA-Z0-9_-]")
_CONNECT_TIMEOUT: Final = 30.0
_READ_TIMEOUT: Final = 300.0
"""Seconds of silence over HTTP: a server may take long to answer while it works."""
_GOODBYE_TIMEOUT: Final = 2.0
"""Seconds for a clean goodbye, before the server's process is stopped or its connection is dropped."""
_STUCK_AFTER: Final = 0.5
"""Seconds after which a cancelled wait is considered stuck."""
_CLOSE_TIMEOUT: Final = 10.0
"""Seconds within which all of a connection has ended: the SDK bounds each wait for a process."""


class McpServer:
    """A server that is started by a command, or reached at a URL.

    `needs_approval` and `if_interrupted` hold for all of its tools, or are mappings by the server's own tool names.
    `prefix` goes before those names where two servers use the same. `env` is added to the few variables that a server
    always gets, such as PATH. `timeout` is for one call, `connect_timeout` for connecting to the server and
    again for listing its tools. A server that cannot be used raises `ToolFailed`.
    """

    def __init__(
        self,
        *,
        command: Sequence[str] | None = None,
        url: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        prefix: str = "",
        needs_approval: Approval | Mapping[str, Approval] = False,
        if_interrupted: IfInterrupted | Mapping[str, IfInterrupted] | None = None,
        timeout: float | None = 120.0,
        connect_timeout: float = 30.0,
    ) -> None:
        self._target = check_target(command, url, env, cwd, headers)
        self._said = f"The MCP server {self._target.shown}"
        self._prefix, self._timeout, self._connect_timeout = prefix, timeout, connect_timeout
        self._needs_approval, self._if_interrupted = needs_approval, if_interrupted
        self._links: list[McpConnection] = []
        """One for each loop, and those that are being closed."""

    async def __aenter__(self) -> Self:
        """Connect now rather than on the first request for tools."""
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Disconnect; a server started here has ended then. The next request for tools connects again."""
        links, self._links = self._links, []
        await asyncio.gather(*(link.close() for link in links))

    async def tools(self) -> list[AnyTool]:
        """Return the tools that the server has now, with the server's own parameters."""
        listed = await self._list_tools()
        known = {one.name for one in listed}
        for option in (self._needs_approval, self._if_interrupted):
            if isinstance(option, Mapping) and not option.keys() <= known:
                odd = ", ".join(sorted(option.keys() - known))
                raise InvalidValue(f"{self._said} has no tool {odd}. It has {', '.join(sorted(known))}.")
        return [self._make_tool(one, definition) for one, definition in zip(listed, self._define(listed), strict=True)]

    async def _list_tools(self) -> list[mcp_types.Tool]:
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        link = await self._connect()
        try:
            async with _limit_time(self._connect_timeout):
                for _ in range(_PAGE_LIMIT):
                    page = await link.client.list_tools(cursor=cursor, cache_mode="refresh")
                    found += page.tools
                    cursor = page.next_cursor
                    if cursor is None or len(found) > _TOOL_LIMIT:
                        break
        except Exception as error:
            raise ToolFailed(f"{self._describe_failure(link, error, 'did not list its tools')}.") from error
        if cursor is not None or len(found) > _TOOL_LIMIT:
            limits = f"{_TOOL_LIMIT:,} tools or {_PAGE_LIMIT} pages"
            raise ToolFailed(f"{self._said} lists more than {limits}. Correct the server.")
        return found

    def _define(self, listed: Sequence[mcp_types.Tool]) -> Sequence[ToolDef]:
        """Return the definitions for the model; refuse those that no session could keep or no model be given."""
        try:
            found = read_tool_defs(
                ToolDef(
                    name=_INVALID_CHARACTERS.sub("_", f"{self._prefix}{one.name}")[:MAX_NAME_CHARS],
                    description=one.description or one.title,
                    parameters={"properties": {}, **one.input_schema, "type": "object"},
                )
                for one in listed
            )
            size = len(encode(found, _NESTING))
            if size > _LIST_BYTES:
                raise TooLarge(f"They have {size:,} bytes; {_LIST_BYTES:,} are allowed.")
        except Refused as error:
            raise ToolFailed(f"{self._said} lists tools that cannot be used: {error} Correct the server.") from error
        return found

    def _make_tool(self, one: mcp_types.Tool, definition: ToolDef) -> AnyTool:
        async def run(**arguments: Any) -> Any:
            return await self._call_tool(one.name, arguments)

        return Tool(
            run,
            definition,
            needs_approval=cast("Approval", _option_for(self._needs_approval, one.name, False)),
            if_interrupted=_option_for(self._if_interrupted, one.name, None) or _policy_from_hints(one.annotations),
            timeout=self._timeout,
        )

    async def _call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        try:
            link = await self._connect()
        except ToolFailed as error:
            raise ToolFailed(f"{error} {name} was not called.") from error
        try:
            result = await link.client.call_tool(name, arguments)
        except Exception as error:
            timed_out = isinstance(error, MCPError) and error.code == mcp_types.REQUEST_TIMEOUT
            # The request may have reached the server: the outcome is unknown.
            kind = ToolInterrupted if timed_out or is_connection_lost(error) else ToolFailed
            why = self._describe_failure(link, error, f"gave no result of {name}")
            raise kind(f"{why}. It may or may not have taken effect.") from error
        given = _read_content(result)
        if result.is_error:
            raise ToolFailed(_join_text(given) or f"{name} failed and did not say why.")
        return given

    async def _connect(self) -> McpConnection:
        """Return the connection of the running loop, connecting if necessary."""
        loop = asyncio.get_running_loop()
        self._links = [link for link in self._links if not link.is_over]
        found = next((link for link in self._links if link.loop is loop and link.is_usable), None)
        if found is None:
            found = McpConnection(self._target)
            self._links.append(found)
        try:
            await found.connect(self._connect_timeout)
        except Exception as error:
            found.give_up()
            raise ToolFailed(f"{self._said} cannot be reached: {describe_error(error)}. Check that it runs.") from error
        return found

    def _describe_failure(self, link: McpConnection, error: Exception, what: str) -> str:
        """Describe a failed request. A lost connection is given up, so that the next call makes another."""
        if not is_connection_lost(error):
            return f"{self._said} {what}: {describe_error(error)}"
        link.give_up()
        return f"{self._said} is gone and {what}: {describe_error(error)}"

    def __repr__(self) -> str:
        return f"McpServer({self._target.shown!r})"


def _option_for(option: Any, name: str, otherwise: Any) -> Any:
    return option.get(name, otherwise) if isinstance(option, Mapping) else option


def _policy_from_hints(hints: mcp_types.ToolAnnotations | None) -> IfInterrupted | None:
    """Return the policy that a server's hints imply; None without hints, which leaves the default.

    Only a tool that changes nothing, or nothing more, is retried without asking. A destructive one is always asked
    about.
    """
    if hints is not None and (hints.read_only_hint or hints.idempotent_hint):
        return "retry"
    return "ask" if hints is not None and hints.destructive_hint else None


def _read_content(result: mcp_types.CallToolResult) -> Any:
    """Return the content of a result: text, or texts and files in order, or data if there is nothing else."""
    found = [_read_block(block) for block in result.content]
    if not found:
        return result.structured_content
    texts = [one for one in found if isinstance(one, str)]
    return "\n".join(texts) if len(texts) == len(found) else found


def _read_block(block: Any) -> str | Bytes:
    if isinstance(block, mcp_types.TextContent):
        return block.text
    if isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
        return _decode_file(block.data, block.mime_type, block.type)
    if isinstance(block, mcp_types.ResourceLink):
        return f"[{block.title or block.name}: {block.uri}]"
    resource = block.resource
    if isinstance(resource, mcp_types.TextResourceContents):
        return resource.text
    name = resource.uri.rpartition("/")[2] or "result"
    return _decode_file(resource.blob, resource.mime_type or "application/octet-stream", name)


def _decode_file(text: str, media_type: str, name: str) -> str | Bytes:
    try:
        return Bytes(base64.b64decode(text, validate=True), media_type, name)
    except (binascii.Error, ValueError):
        return f"[{name} that is not valid base64]"


def _join_text(given: Any) -> str:
    if isinstance(given, list):
        return "\n".join(one for one in given if isinstance(one, str))
    return given if isinstance(given, str) else str(given)


class McpTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a server: a command that starts it, or a URL."""

    shown: str
    command: tuple[str, ...] = ()
    env: dict[str, str] | None = None
    cwd: str | None = None
    url: str = ""
    headers: dict[str, str] | None = None


def check_target(
    command: Sequence[str] | None,
    url: str | None,
    env: Mapping[str, str] | None,
    cwd: str | Path | None,
    headers: Mapping[str, str] | None,
) -> McpTarget:
    """Check the address of a server."""
    if mcp_types is None:
        raise Unsupported("MCP servers need the SDK. Run: pip install 'holdfast[mcp]'")
    if (command is None) == (url is None):
        raise InvalidValue("Give McpServer either the command that starts the server, as a list, or its url.")
    if url is not None:
        if not isinstance(url, str) or not url.startswith(("http://", "https://")) or env or cwd:
            raise InvalidValue(f"url is {url!r:.80}. Give an http or https address, without env and cwd.")
        return McpTarget(shown=url.partition("?")[0], url=url, headers=dict(headers) if headers else None)
    given = None if isinstance(command, str) else tuple(command or ())
    if not given or not all(isinstance(word, str) for word in given) or headers:
        raise InvalidValue(f"command is {command!r:.80}. Give a list of texts, program first, without headers.")
    place = None if cwd is None else str(cwd)
    return McpTarget(shown=Path(given[0]).name, command=given, env=dict(env) if env else None, cwd=place)


class McpConnection:
    """A connection that is being made, is open, or was lost."""

    def __init__(self, target: McpTarget) -> None:
        self.loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[Client] = self.loop.create_future()
        self._ready.add_done_callback(retrieve_exception)
        self._stop = asyncio.Event()
        self._talking = anyio.CancelScope()
        self._talks, self._lost = False, False
        self._over: Future[None] = Future()
        self._task = _ConnectionTask(self._hold(target), self.loop, self._handle_interrupt)
        self._task.add_done_callback(lambda _: self._over.set_result(None))

    @property
    def is_usable(self) -> bool:
        """True if nothing is known to be wrong with it."""
        return not self._lost and not self.loop.is_closed()

    @property
    def is_over(self) -> bool:
        """True if nothing of it is left that could still be closed."""
        return self._over.done() or self.loop.is_closed()

    @property
    def client(self) -> Client:
        """The SDK's client of an open connection."""
        return self._ready.result()

    async def connect(self, timeout: float) -> None:
        """Wait until it is connected."""
        async with _limit_time(timeout):
            await asyncio.shield(self._ready)

    def give_up(self) -> None:
        """Close it without waiting."""
        self._lost = True
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._stop.set()
        if self._ready.done():
            self._talking.deadline = self.loop.time() + _GOODBYE_TIMEOUT
        else:
            self._talking.cancel()

    def _handle_interrupt(self) -> None:
        """Close without a goodbye: the loop is about to end."""
        self._lost = True
        self._stop.set()
        self._talking.cancel()
        self.loop.call_later(_STUCK_AFTER, self._unstick)

    def _unstick(self) -> None:
        """Cancel waits that would never end.

        Whoever cancels this task cancels all others as well, those of asyncio and anyio among them. If a process is
        being started meanwhile, both may wait forever for a task that never ran. So this task is cancelled out of each
        such wait.
        """
        if self._talks:
            self._task.cancel("It never began.")
            self.loop.call_later(_STUCK_AFTER, self._unstick)

    async def close(self) -> None:
        """Close it and wait until nothing of it is left, unless it belongs to a loop that does not run."""
        self.give_up()
        if self.loop.is_running():
            await asyncio.wait({asyncio.wrap_future(self._over)}, timeout=_CLOSE_TIMEOUT)

    async def _hold(self, target: McpTarget) -> None:
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

    async def _talk(self, stack: AsyncExitStack, target: McpTarget) -> None:
        """Talk to the server until told to stop. Only this is ever cancelled: the transport is closed in order."""
        self._talks = True
        try:
            transport = await _open_transport(stack, target)
            with self._talking:
                async with Client(transport) as client:
                    if not self._ready.done():
                        self._ready.set_result(client)
                    await self._stop.wait()
        finally:
            self._talks = False


class _ConnectionTask(asyncio.Task[None]):
    """A task that ends in order when it is cancelled, as `asyncio.run` does with all tasks left at its end.

    A cancellation while a process is being stopped would leave that process behind, and one while it starts would make
    asyncio itself wait forever. The SDK's own cancellations carry a message, by which anyio recognises them.
    """

    def __init__(
        self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop, interrupted: Callable[[], None]
    ) -> None:
        super().__init__(work, loop=loop)
        self._when_interrupted = interrupted

    def cancel(self, msg: Any = None) -> bool:
        """Ask the task to end by itself; pass on cancellations with a message."""
        if msg is not None:
            return super().cancel(msg)
        if not self.done():
            self.get_loop().call_soon_threadsafe(self._when_interrupted)
        return False


async def _open_transport(stack: AsyncExitStack, target: McpTarget) -> AbstractAsyncContextManager[Any]:
    if not target.url:
        program, *arguments = target.command
        how = StdioServerParameters(command=program, args=arguments, env=target.env, cwd=target.cwd)
        # The server writes its errors where this process does. In a notebook, sys.stderr is no file it could inherit.
        started = stdio_client(how, errlog=sys.__stderr__ or sys.stderr)
        return nullcontext(await stack.enter_async_context(started))
    patience = httpx2.Timeout(_CONNECT_TIMEOUT, read=_READ_TIMEOUT)
    http = await stack.enter_async_context(httpx2.AsyncClient(headers=target.headers, timeout=patience))
    return streamable_http_client(target.url, http_client=http)


@asynccontextmanager
async def _limit_time(seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise TimeoutError(f"it did not answer within {seconds:g} seconds") from None


def is_connection_lost(error: BaseException) -> bool:
    """Return True if an error means that the connection is lost, rather than that the server refused a request."""
    if isinstance(error, MCPError):
        return error.code == mcp_types.CONNECTION_CLOSED
    return isinstance(error, anyio.ClosedResourceError | anyio.BrokenResourceError | OSError | httpx2.HTTPError)


def describe_error(error: BaseException) -> str:
    """Return an error's message, shortened and without a full stop."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error) if isinstance(error, MCPError) else exception_text(error)
    return " ".join(text.split())[:300].rstrip(".")

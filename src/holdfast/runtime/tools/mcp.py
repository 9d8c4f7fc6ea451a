"""MCP servers as sources of tools. Needs `pip install 'holdfast[mcp]'`.

    files = McpServer(command=["npx", "-y", "@modelcontextprotocol/server-filesystem", "/data"], prefix="files_")
    agent = hf.agent("clerk", model=…, tools=[refund, files])

A server is connected to when its tools are first asked for, and again after it was gone. What becomes of a call that
is torn follows the server's own hints, which are only as true as the server. A tool that says it reads only, or is
idempotent, is retried. Any other is asked about if its process died. If its server went, or it ran out of its time, the
model is told that it may have run; one that says it destroys is asked about then, too. `if_interrupted` overrules all
of that. Nothing needs approval unless you say so.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self, cast

from holdfast.core.wire.names import LONGEST
from holdfast.errors import EffectFailed, InvalidValue
from holdfast.records.messages import ToolDef
from holdfast.runtime.tools.approval import Approval
from holdfast.runtime.tools.mcp_link import Link, is_gone, is_unknown, mcp_types, said_by, target_of
from holdfast.runtime.tools.tool import AnyTool, Bytes, IfInterrupted, Tool, ToolFailed, ToolInterrupted

_MOST_PAGES: Final = 100
_ODD: Final = re.compile(r"[^a-zA-Z0-9_-]")


class McpServer:
    """A server that is started by a command, or reached at a URL.

    `needs_approval` and `if_interrupted` are for all of its tools, or a mapping by the names that the server gives
    them. `prefix` goes before those names where two servers use the same. `env` is added to the few variables that
    a server is given anyway, such as PATH. `timeout` is for one call, `connect_timeout` for reaching the server.
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
        self._target = target_of(command, url, env, cwd, headers)
        self._said = f"The MCP server {self._target.shown}"
        self._prefix, self._timeout, self._connect_timeout = prefix, timeout, connect_timeout
        self._needs_approval, self._if_interrupted = needs_approval, if_interrupted
        self._links: list[Link] = []
        """One for each loop, and those that are being taken down."""

    async def __aenter__(self) -> Self:
        """Connect now rather than when tools are asked for."""
        await self._link()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of the server; one that was started here has ended then. Asking for tools connects again."""
        links, self._links = self._links, []
        await asyncio.gather(*(link.close() for link in links))

    async def tools(self) -> list[AnyTool]:
        """The tools that the server has now, with the parameters that it gives them."""
        listed = await self._listed()
        known = {one.name for one in listed}
        for option in (self._needs_approval, self._if_interrupted):
            if isinstance(option, Mapping) and not option.keys() <= known:
                odd = ", ".join(sorted(option.keys() - known))
                raise InvalidValue(f"{self._said} has no tool {odd}. It has {', '.join(sorted(known))}.")
        return [self._tool(one) for one in listed]

    async def _listed(self) -> list[mcp_types.Tool]:
        found: list[mcp_types.Tool] = []
        cursor: str | None = None
        link = await self._link()
        try:
            for _ in range(_MOST_PAGES):
                page = await link.client.list_tools(cursor=cursor, cache_mode="refresh")
                found += page.tools
                cursor = page.next_cursor
                if cursor is None:
                    return found
        except Exception as error:
            raise EffectFailed(f"{self._lost(link, error, 'did not list its tools')}.") from error
        raise EffectFailed(f"{self._said} lists its tools on more than {_MOST_PAGES} pages. Correct the server.")

    def _tool(self, one: mcp_types.Tool) -> AnyTool:
        async def run(**arguments: Any) -> Any:
            return await self._call(one.name, arguments)

        definition = ToolDef(
            name=_ODD.sub("_", f"{self._prefix}{one.name}")[:LONGEST],
            description=one.description or one.title,
            parameters={"properties": {}, **one.input_schema, "type": "object"},
        )
        return Tool(
            run,
            definition,
            needs_approval=cast("Approval", _of_one(self._needs_approval, one.name, False)),
            if_interrupted=_of_one(self._if_interrupted, one.name, None) or _hinted(one.annotations),
            timeout=self._timeout,
        )

    async def _call(self, name: str, arguments: dict[str, Any]) -> Any:
        try:
            link = await self._link()
        except EffectFailed as error:
            raise ToolFailed(f"{error} {name} was not called.") from error
        try:
            result = await link.client.call_tool(name, arguments)
        except Exception as error:
            kind = ToolInterrupted if is_unknown(error) else ToolFailed
            why = self._lost(link, error, f"gave no result of {name}")
            raise kind(f"{why}. It may or may not have taken effect.") from error
        given = _content(result)
        if result.is_error:
            raise ToolFailed(_text_of(given) or f"{name} failed and did not say why.")
        return given

    async def _link(self) -> Link:
        """The connection of the running loop, made."""
        loop = asyncio.get_running_loop()
        self._links = [link for link in self._links if not link.over]
        found = next((link for link in self._links if link.loop is loop and link.usable), None)
        if found is None:
            found = Link(self._target)
            self._links.append(found)
        try:
            await found.connect(self._connect_timeout)
        except Exception as error:
            found.give_up()
            raise EffectFailed(f"{self._said} cannot be reached: {said_by(error)}. Check that it runs.") from error
        return found

    def _lost(self, link: Link, error: Exception, what: str) -> str:
        """What to say of a failed request. A connection that is no more is given up: the next call makes another."""
        if not is_gone(error):
            return f"{self._said} {what}: {said_by(error)}"
        link.give_up()
        return f"{self._said} is gone and {what}: {said_by(error)}"

    def __repr__(self) -> str:
        return f"McpServer({self._target.shown!r})"


def _of_one(option: Any, name: str, otherwise: Any) -> Any:
    return option.get(name, otherwise) if isinstance(option, Mapping) else option


def _hinted(hints: mcp_types.ToolAnnotations | None) -> IfInterrupted | None:
    """Only what changes nothing, or nothing more, may run again unasked. What is said to destroy is always asked about.

    A server that says nothing leaves it at what holds for every tool.
    """
    if hints is not None and (hints.read_only_hint or hints.idempotent_hint):
        return "retry"
    return "ask" if hints is not None and hints.destructive_hint else None


def _content(result: mcp_types.CallToolResult) -> Any:
    """What a server gave: text, or texts and files in order, or data if there is nothing else."""
    found = [_read(block) for block in result.content]
    if not found and result.structured_content is not None:
        return result.structured_content
    texts = [one for one in found if isinstance(one, str)]
    if not found:
        return None
    return "\n".join(texts) if len(texts) == len(found) else found


def _read(block: Any) -> str | Bytes:
    if isinstance(block, mcp_types.TextContent):
        return block.text
    if isinstance(block, mcp_types.ImageContent | mcp_types.AudioContent):
        return _decoded(block.data, block.mime_type, block.type)
    if isinstance(block, mcp_types.ResourceLink):
        return f"[{block.title or block.name}: {block.uri}]"
    resource = block.resource
    if isinstance(resource, mcp_types.TextResourceContents):
        return resource.text
    name = resource.uri.rpartition("/")[2] or "result"
    return _decoded(resource.blob, resource.mime_type or "application/octet-stream", name)


def _decoded(text: str, media_type: str, name: str) -> str | Bytes:
    try:
        return Bytes(base64.b64decode(text, validate=True), media_type, name)
    except (binascii.Error, ValueError):
        return f"[{name} that is not valid base64]"


def _text_of(given: Any) -> str:
    if isinstance(given, list):
        return "\n".join(one for one in given if isinstance(one, str))
    return given if isinstance(given, str) else str(given)

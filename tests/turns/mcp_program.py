"""A real MCP server over stdio, for tests. Each call of `pay` adds a line to the file that it is told."""

from __future__ import annotations

import asyncio
import base64
import os
import sys
from pathlib import Path
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import AudioContent, ImageContent, TextContent, ToolAnnotations
from pydantic import Field

server = MCPServer("Shop", log_level="CRITICAL")
PNG = base64.b64encode(b"\x89PNG picture").decode()


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def look_up(order: Annotated[int, Field(description="Which order")]) -> str:
    """Look an order up."""
    return f"order {order} is paid"


@server.tool(annotations=ToolAnnotations(idempotent_hint=True, destructive_hint=True))
def cancel(order: int) -> str:
    """Cancel an order."""
    return f"cancelled {order}"


@server.tool(annotations=ToolAnnotations(destructive_hint=True))
def pay(order: int, ledger: str) -> str:
    """Pay an order, and lose the process if the order is 13."""
    with Path(ledger).open("a") as file:
        file.write(f"{order}\n")
    if order == 13:
        os._exit(3)
    return f"paid {order}"


@server.tool(name="odd.name")
def odd() -> str:
    """Have a name that no provider takes."""
    return "odd"


@server.tool()
def refuse(why: str) -> str:
    """Fail."""
    raise ToolError(why)


@server.tool()
def picture() -> list[TextContent | ImageContent | AudioContent]:
    """Give a text, a picture and a sound."""
    return [
        TextContent(type="text", text="Here it is."),
        ImageContent(type="image", data=PNG, mime_type="image/png"),
        AudioContent(type="audio", data=PNG, mime_type="audio/wav"),
        ImageContent(type="image", data="!!", mime_type="image/png"),
    ]


@server.tool()
async def hang() -> str:
    """Never end."""
    await asyncio.Event().wait()
    return "never"


@server.tool()
def environment() -> str:
    """Say which variable it was given, and where it runs."""
    return f"{os.environ.get('SHOP', 'none')} {os.environ.get('SECRET', 'none')} {Path.cwd().name}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")

"""MCP servers that hang, lie and flood: listing their tools ends in time, with tools or a tool's error, and is stopped.

A turn whose server cannot be used stays live and free: the same key goes on with it.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import McpServer, Scripted
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.errors import ArgumentsUnfit, ToolFailed
from holdfast.model.scripted import call
from holdfast.runtime.driver import TurnDriver
from holdfast.runtime.tools import mcp as mcp_tools
from tests.turns.loops import SESSION

PROGRAM = str(Path(__file__).with_name("mcp_hostile.py"))
PATIENCE = 0.3
SLOW, GONE, UNUSABLE = "within 0.3 seconds", "Connection closed", "cannot be used"
WAYS = {
    "good": "['look']",
    "none": "[]",
    "odd property": "['look']",
    "silent": SLOW,
    "deaf": SLOW,
    "deeper": SLOW,
    "other id": SLOW,
    "no result": SLOW,
    "no json": SLOW,
    "notifications": SLOW,
    "no line": SLOW,
    "exits": GONE,
    "error": "did not list its tools: secret",
    "no list": "ValidationError",
    "no schema": "ValidationError",
    "odd properties": "ValidationError",
    "odd required": "ValidationError",
    "twice": UNUSABLE,
    "no name": UNUSABLE,
    "deep": UNUSABLE,
    "large": UNUSABLE,
    "many": "more than 1,000 tools",
    "endless pages": "100 pages",
    "empty pages": "100 pages",
}
"""What comes of each: the names of the tools, or words of the ToolFailed."""


def hostile(way: str) -> McpServer:
    return McpServer(command=[sys.executable, PROGRAM, way])


async def list_once(way: str, turns: asyncio.Semaphore) -> str:
    """Connect, however long it takes, and list the tools within a short time; give what came of it, as text."""
    async with turns, hostile(way) as server:
        server._connect_timeout = PATIENCE if WAYS[way] is SLOW else 30
        try:
            async with asyncio.timeout(60):
                return str([tool.name for tool in await server.tools()])
        except Exception as error:
            return str(error) if isinstance(error, ToolFailed) else type(error).__name__


def list_all(*ways: str) -> list[str]:
    """Try servers, several at once; give those from which something else came than it should."""

    async def main() -> list[str]:
        turns = asyncio.Semaphore(4)
        return await asyncio.gather(*(list_once(way, turns) for way in ways))

    return [f"{way}: {came}" for way, came in zip(ways, asyncio.run(main()), strict=True) if WAYS[way] not in came]


def test_whatever_a_server_does_its_tools_are_listed_in_time_or_refused_as_a_tools_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp_tools, "_GOODBYE_TIMEOUT", 0.1)
    assert list_all(*WAYS) == []


@pytest.mark.parametrize(
    ("name", "value", "way"),
    [
        ("_NESTING", 64, "deep"),
        ("_LIST_BYTES", 2**40, "large"),
        ("_TOOL_LIMIT", 2**40, "many"),
        ("read_tool_defs", tuple, "twice"),
        ("ToolFailed", OSError, "exits"),
    ],
)
def test_a_limit_that_is_gone_is_noticed(name: str, value: Any, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_tools, name, value)
    assert list_all(way) != []


def test_a_listing_without_a_timeout_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    @asynccontextmanager
    async def never(seconds: float) -> Any:
        async with asyncio.timeout(1):  # A planted bug would wait for ever.
            yield

    monkeypatch.setattr(mcp_tools, "_limit_time", never)
    assert list_all("silent") != []


def test_a_schema_that_lies_inside_is_read_as_far_as_it_goes() -> None:
    async def main() -> None:
        async with hostile("odd property") as server:
            (look,) = await server.tools()
            assert look.read('{"b": 1}') == {"b": 1}
            with pytest.raises(ArgumentsUnfit, match=r"b is missing. They are \{a\?: anything; b: anything; c\?: 1\}"):
                look.read("{}")

    asyncio.run(main())


def url_of(kind: str, folder: Path) -> str:
    return "memory:" if kind == "memory" else str(folder / "a.db")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_a_turn_whose_server_cannot_be_used_stays_live_and_free(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with holdfast.open_async(url_of(kind, tmp_path), durability="fast") as hf:
            for way in ("twice", "good"):
                async with hostile(way) as server:
                    agent = hf.agent("clerk", model=Scripted([call("look"), "Done."]), tools=[server], history=False)
                    if way == "good":
                        reply = await agent.send(SESSION, "Look.", key="k", if_busy="reject")
                        assert (reply.status, reply.text) == ("done", "Done.")
                    else:
                        with pytest.raises(ToolFailed, match="cannot be used"):
                            await agent.send(SESSION, "Look.", key="k")

    asyncio.run(main())


class Silent:
    """A source of tools that never answers, and says when it was asked."""

    def __init__(self) -> None:
        self.asked, self.cancelled = asyncio.Event(), asyncio.Event()

    async def tools(self) -> list[Any]:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled.set()
        return []


async def stop_while_listing(hf: AsyncHoldfast, other: AsyncHoldfast, patience: float = 20) -> None:
    """Stop a turn whose tools are being listed, from this client or another one."""
    source = Silent()
    agent = hf.agent("clerk", model=Scripted(["Never."]), tools=[source])
    sending = asyncio.create_task(agent.send(SESSION, "Look.", key="k"))
    await source.asked.wait()
    assert await (await other.session(SESSION)).stop("enough")
    async with asyncio.timeout(patience):
        reply = await asyncio.shield(sending)
    assert (reply.status, reply.reason) == ("stopped", "enough")
    assert source.cancelled.is_set()
    assert (await agent.send(SESSION, "Look.", key="k")).status == "stopped"


@pytest.mark.parametrize("kind", ["memory", "sqlite", "another process"])
def test_a_stop_is_heard_while_tools_are_listed(kind: str, tmp_path: Path) -> None:
    async def main() -> None:
        url = url_of(kind, tmp_path)
        async with holdfast.open_async(url, durability="fast") as hf:
            if kind == "another process":
                async with holdfast.open_async(url, durability="fast") as other:
                    await stop_while_listing(hf, other)
            else:
                await stop_while_listing(hf, hf)

    asyncio.run(main())


def test_a_stop_that_is_not_heard_while_tools_are_listed_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    run = TurnDriver.run

    async def loads_first(self: TurnDriver, load: Any) -> Any:
        await load()
        return await run(self, lambda: asyncio.sleep(0))

    monkeypatch.setattr(TurnDriver, "run", loads_first)

    async def main() -> None:
        async with holdfast.open_async("memory:") as hf:
            with pytest.raises(TimeoutError):
                await stop_while_listing(hf, hf, 0.3)

    asyncio.run(main())

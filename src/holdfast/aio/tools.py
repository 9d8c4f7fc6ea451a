"""AsyncHistoryTools: the tools for an agent's own past, for asyncio. One crossing for each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.aio.embedding import searching
from holdfast.aio.threads import Threads
from holdfast.client.tools import HistoryTools
from holdfast.records.messages import ToolDef


class AsyncHistoryTools:
    """HistoryTools for asyncio."""

    __slots__ = ("_threads", "_tools")

    def __init__(self, tools: HistoryTools, threads: Threads) -> None:
        self._tools = tools
        self._threads = threads

    @property
    def definitions(self) -> list[ToolDef]:
        """See HistoryTools.definitions."""
        return self._tools.definitions

    @property
    def names(self) -> frozenset[str]:
        """See HistoryTools.names."""
        return self._tools.names

    async def run(self, name: str, arguments: str | Mapping[str, Any]) -> str:
        """See HistoryTools.run."""
        return await searching(self._threads, lambda: self._tools.run(name, arguments))

    def __repr__(self) -> str:
        return f"Async{self._tools!r}"

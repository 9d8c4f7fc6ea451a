"""`frame` inside its `async with` block: what is said in it, and what it is shown. See `client/line.py`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from holdfast.aio.packing import packing
from holdfast.aio.summing import summarising
from holdfast.aio.threads import Threads
from holdfast.aio.tools import AsyncHistoryTools
from holdfast.client.frame import Frame
from holdfast.client.pack import ContextPack
from holdfast.client.tools import MAX_TOKENS
from holdfast.records.messages import Message
from holdfast.records.packs import MAIN_ROLE


class AsyncFrameLine:
    """The messages of a frame."""

    def __init__(self, frame: Frame, threads: Threads) -> None:
        self._frame = frame
        self._threads = threads

    @overload
    async def append(
        self,
        message: list[Any],
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        key: str | None = None,
    ) -> list[Message]: ...

    @overload
    async def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        key: str | None = None,
    ) -> Message: ...

    async def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        key: str | None = None,
    ) -> Message | list[Message]:
        """See Frame.append."""

        def say() -> Message | list[Message]:
            found: Message | list[Message] = self._frame.append(
                message, files=files, partial=partial, pinned=pinned, key=key
            )
            return found

        return await summarising(self._threads, say)

    async def pack(
        self,
        budget: int | None = None,
        *,
        role: str = MAIN_ROLE,
        query: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        force_exclude: bool = False,
        min_compaction: str = "none",
        tokenizer: str | None = None,
        layout: str = "stable",
        stickiness: float | None = None,
        max_messages: int | None = None,
        recall: int | None = None,
        as_of: int | None = None,
    ) -> ContextPack:
        """See Frame.pack. Images and files are read with it."""
        return await packing(
            self._threads,
            self._frame.pack,
            budget,
            role=role,
            query=query,
            include=include,
            exclude=exclude,
            force_exclude=force_exclude,
            min_compaction=min_compaction,
            tokenizer=tokenizer,
            layout=layout,
            stickiness=stickiness,
            max_messages=max_messages,
            recall=recall,
            as_of=as_of,
        )

    async def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> AsyncHistoryTools:
        """See Frame.history_tools."""
        tools = await self._threads.run(self._frame.history_tools, max_tokens=max_tokens)
        return AsyncHistoryTools(tools, self._threads)

    async def messages(self, limit: int | None = None) -> list[Message]:
        """See Frame.messages."""
        return await self._threads.run(self._frame.messages, limit)

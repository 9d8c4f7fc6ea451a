"""Stores for asyncio: the state of a journal, or one of their own."""

from __future__ import annotations

from typing import Any

import holdfast
from holdfast import open_store_async
from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.types import AsyncStateStore

KINDS = ["memory:", "a.db", "memory: as a store", "sqlite:///store.db", "fs:///folder"]
"""The first two are journals."""


class Opened:
    """The state of a journal, or a store of its own, by its URL."""

    def __init__(self, url: str, clock: FrozenClock | None = None) -> None:
        ids = {"ids": SeededIds(clock)} if clock else {}
        journaled = url in KINDS[:2]
        self._opening: Any = (
            holdfast.open_async(url, clock=clock, **ids)
            if journaled
            else open_store_async(url.split(maxsplit=1)[0], clock=clock)
        )

    async def __aenter__(self) -> AsyncStateStore:
        opened: AsyncHoldfast | AsyncStateStore = await self._opening.__aenter__()
        return opened.state if isinstance(opened, AsyncHoldfast) else opened

    async def __aexit__(self, *error: object) -> None:
        await self._opening.__aexit__(*error)

"""Packs on the async client: made in one crossing, with everything that rendering them needs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.aio.threads import Threads
from holdfast.client.pack import ContextPack


async def packing(threads: Threads, make: Callable[..., ContextPack], *args: Any, **named: Any) -> ContextPack:
    """A pack whose images and files are read already, so that nothing waits for the disk afterwards."""

    def whole() -> ContextPack:
        pack = make(*args, **named)
        return pack.read_in()

    return await threads.run(whole)

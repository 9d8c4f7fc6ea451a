"""`hf.journal` for asyncio: the methods of JournalView, awaited. Each crosses into a thread once, as a whole.

Cancelling an await does not cancel the write; repeat it with its key to learn the outcome.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from functools import partial

from holdfast.aio.executor import ThreadPools, call_soon, make_async
from holdfast.client.journal import JournalView, make_query, newest_cursor
from holdfast.flow.journal import read
from holdfast.records.events.envelope import Event
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Address


class AsyncJournalView:
    """The journal of one tenant, for asyncio: the methods of JournalView, awaited."""

    def __init__(self, view: JournalView, threads: ThreadPools) -> None:
        self._sync = view
        self._threads = threads

    async def events(
        self,
        scope: Address | None = None,
        *,
        after: int = 0,
        until: int | None = None,
        types: Sequence[str] = (),
        backwards: bool = False,
    ) -> AsyncIterator[Event]:
        """See JournalView.events. One crossing per page."""
        query: EventQuery | None = make_query(self._sync.env, scope, after, until, types, backwards)
        while query is not None:
            found = await self._threads.run(read.read_page, self._sync.env, query)
            for event in found:
                yield event
            query = read.next_query(query, found)

    async def subscribe(
        self,
        scope: Address | None = None,
        *,
        after: int | None = None,
        types: Sequence[str] = (),
        timeout: float | None = None,
    ) -> AsyncIterator[Event]:
        """See JournalView.subscribe. Waiting takes no thread."""
        read.check_timeout(timeout)
        env = self._sync.env
        start = await self._threads.run(newest_cursor, self._sync, scope) if after is None else after
        following = read.JournalTail(env, make_query(self._sync.env, scope, start, None, types, False))
        loop, happened = asyncio.get_running_loop(), asyncio.Event()

        unwatch = env.journal.watch(partial(call_soon, loop, happened.set))
        try:
            last = env.clock.monotonic()
            while True:
                happened.clear()
                found = await self._threads.run(following.poll)
                for event in found:
                    yield event
                if found:
                    last = env.clock.monotonic()
                    continue
                if timeout is not None and env.clock.monotonic() - last >= timeout:
                    return
                try:  # Not wait_for, which loses a cancellation that coincides with news.
                    async with asyncio.timeout(read.POLL_SECONDS):
                        await happened.wait()
                except TimeoutError:
                    pass  # Nothing in this process; another may have written.
        finally:
            unwatch()

    append = make_async(JournalView.append)
    events_by_key = make_async(JournalView.events_by_key)
    version = make_async(JournalView.version)

    async def streams(self) -> AsyncIterator[str]:
        """See JournalView.streams. All of them in one crossing."""
        for name in await self._threads.run(lambda: list(self._sync.streams())):
            yield name

    tenants = make_async(JournalView.tenants)
    position = make_async(JournalView.position)
    artifact = make_async(JournalView.artifact)
    collect = make_async(JournalView.collect)
    verify = make_async(JournalView.verify)
    rebuild = make_async(JournalView.rebuild)
    erase = make_async(JournalView.erase)
    backup = make_async(JournalView.backup)
    export = make_async(JournalView.export)
    import_ = make_async(JournalView.import_)

"""`hf.journal` for asyncio: the methods of JournalView, awaited. Each crosses into a thread once, as a whole.

Cancelling an await does not cancel the write; repeat it with its key to learn the outcome.

Methods that only say `See …` are written by tools/generate_aio.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

from holdfast.aio.executor import ThreadPools
from holdfast.client.journal import JournalView, StrPath, make_query, newest_cursor
from holdfast.flow.journal import read
from holdfast.records.batches import AppendResult
from holdfast.records.events.envelope import Erased, Event
from holdfast.records.reports import Erasure, EventQuery, Progress, VerificationReport
from holdfast.records.scope import Address


class AsyncJournalView:
    """The journal of one tenant, for asyncio: the methods of JournalView, awaited."""

    def __init__(self, view: JournalView, threads: ThreadPools) -> None:
        self._view = view
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
        query: EventQuery | None = make_query(self._view.env, scope, after, until, types, backwards)
        while query is not None:
            found = await self._threads.run(read.read_page, self._view.env, query)
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
        env = self._view.env
        start = await self._threads.run(newest_cursor, self._view, scope) if after is None else after
        following = read.JournalTail(env, make_query(self._view.env, scope, start, None, types, False))
        loop, happened = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(happened.set)
            except RuntimeError:
                pass  # The loop is closed, and its waiters are gone.

        unwatch = env.journal.watch(tell)
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

    async def append(
        self,
        scope: Address,
        type: str,
        content: Any = None,
        *,
        facts: dict[str, Any] | None = None,
        key: str | None = None,
        expected: int | None = None,
        subject: str | None = None,
        files: Sequence[bytes] = (),
    ) -> AppendResult:
        """See JournalView.append."""
        return await self._threads.run(
            self._view.append,
            scope,
            type,
            content,
            facts=facts,
            key=key,
            expected=expected,
            subject=subject,
            files=files,
        )

    async def events_by_key(self, scope: Address, key: str) -> list[Event]:
        """See JournalView.events_by_key."""
        return await self._threads.run(self._view.events_by_key, scope, key)

    async def version(self, scope: Address) -> int:
        """See JournalView.version."""
        return await self._threads.run(self._view.version, scope)

    async def streams(self) -> AsyncIterator[str]:
        """See JournalView.streams. All of them in one crossing."""
        for name in await self._threads.run(lambda: list(self._view.streams())):
            yield name

    async def tenants(self) -> list[str]:
        """See JournalView.tenants."""
        return await self._threads.run(self._view.tenants)

    async def position(self) -> int:
        """See JournalView.position."""
        return await self._threads.run(self._view.position)

    async def artifact(self, name: str) -> bytes | Erased:
        """See JournalView.artifact."""
        return await self._threads.run(self._view.artifact, name)

    async def collect(self) -> int:
        """See JournalView.collect."""
        return await self._threads.run(self._view.collect)

    async def verify(self, *, packs: bool = False, progress: Progress | None = None) -> VerificationReport:
        """See JournalView.verify."""
        return await self._threads.run(self._view.verify, packs=packs, progress=progress)

    async def rebuild(self, *, progress: Progress | None = None) -> int:
        """See JournalView.rebuild."""
        return await self._threads.run(self._view.rebuild, progress=progress)

    async def erase(self, subject: str) -> Erasure:
        """See JournalView.erase."""
        return await self._threads.run(self._view.erase, subject)

    async def backup(self, target: StrPath, *, progress: Progress | None = None) -> None:
        """See JournalView.backup."""
        await self._threads.run(self._view.backup, target, progress=progress)

    async def export(self, target: StrPath, *, until: int | None = None, progress: Progress | None = None) -> int:
        """See JournalView.export."""
        return await self._threads.run(self._view.export, target, until=until, progress=progress)

    async def import_(self, source: StrPath, *, progress: Progress | None = None) -> int:
        """See JournalView.import_."""
        return await self._threads.run(self._view.import_, source, progress=progress)

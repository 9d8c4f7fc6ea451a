"""AsyncHoldfast: the same client for asyncio. Each operation crosses into a thread once, as a whole.

Cancelling an await does not cancel the write; its key answers what happened.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from types import TracebackType
from typing import Any, Self

from holdfast.async_frame import AsyncFrame, RootFrame
from holdfast.async_index import AsyncIndexView
from holdfast.async_threads import Threads, on_loop
from holdfast.client import Holdfast, frame_scope
from holdfast.client import open as open_sync
from holdfast.client_index import IndexView
from holdfast.client_journal import JournalView, StrPath
from holdfast.flow import reading
from holdfast.ports import Clock, Ids
from holdfast.records.batches import Appended
from holdfast.records.events.envelope import Erased, Event
from holdfast.records.frames import Limits
from holdfast.records.reports import Erasure, Progress, Query, Verified
from holdfast.records.resume import QuestionInfo
from holdfast.records.scope import Address
from holdfast.records.settings import Settings


class AsyncJournalView:
    """`hf.journal` for asyncio: the methods of JournalView, awaited."""

    def __init__(self, view: JournalView, threads: Threads) -> None:
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
        query: Query | None = self._view._query(scope, after, until, types, backwards)
        while query is not None:
            found = await self._threads.run(reading.page, self._view._ports, query)
            for event in found:
                yield event
            query = reading.next_query(query, found)

    async def subscribe(
        self,
        scope: Address | None = None,
        *,
        after: int | None = None,
        types: Sequence[str] = (),
        timeout: float | None = None,
    ) -> AsyncIterator[Event]:
        """See JournalView.subscribe. Waiting takes no thread."""
        reading.check_timeout(timeout)
        ports = self._view._ports
        start = await self._threads.run(self._view._start, scope) if after is None else after
        following = reading.Following(ports, self._view._query(scope, start, None, types, False))
        loop, happened = asyncio.get_running_loop(), asyncio.Event()

        def tell() -> None:
            try:
                loop.call_soon_threadsafe(happened.set)
            except RuntimeError:
                pass  # The loop has been closed, and whoever waited in it is gone.

        unwatch = ports.journal.watch(tell)
        try:
            last = ports.clock.monotonic()
            while True:
                happened.clear()
                found = await self._threads.run(following.ready)
                for event in found:
                    yield event
                if found:
                    last = ports.clock.monotonic()
                    continue
                if timeout is not None and ports.clock.monotonic() - last >= timeout:
                    return
                try:
                    await asyncio.wait_for(happened.wait(), reading.POLL_SECONDS)
                except TimeoutError:
                    pass  # Nothing here; another process may have written.
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
    ) -> Appended:
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

    async def happened(self, scope: Address, key: str) -> list[Event]:
        """See JournalView.happened."""
        return await self._threads.run(self._view.happened, scope, key)

    async def version(self, scope: Address) -> int:
        """See JournalView.version."""
        return await self._threads.run(self._view.version, scope)

    async def streams(self) -> AsyncIterator[str]:
        """See JournalView.streams."""
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

    async def verify(self, *, progress: Progress | None = None) -> Verified:
        """See JournalView.verify."""
        return await self._threads.run(self._view.verify, progress=progress)

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


class AsyncHoldfast:
    """Holdfast for asyncio. Made by `await holdfast.open_async(…)`, or by `async with` on the same."""

    def __init__(self, client: Holdfast, threads: Threads) -> None:
        self._client = client
        self._threads = threads

    @property
    def journal(self) -> AsyncJournalView:
        """What happened: read it, follow it, verify it, copy it, erase from it."""
        return AsyncJournalView(JournalView(self._client._ports, self._client._acting), self._threads)

    @property
    def index(self) -> AsyncIndexView:
        """Frames at the low level: push, pop, spend, attach, call, suspend, resume."""
        return AsyncIndexView(IndexView(self._client._ports, self._client._acting), self._threads)

    def frame(
        self,
        goal: str,
        *,
        session: str | None = None,
        actor: str = "main",
        key: str | None = None,
        inputs: Any = None,
        tokens: int | None = None,
        limits: Limits | None = None,
        on_error: str = "fail",
    ) -> AsyncFrame:
        """A root frame for an `async with` block. With a key, the frame that it stands for is taken up again."""
        frame = RootFrame(
            self._client._ports,
            self._client._acting,
            frame_scope(actor, session),
            goal,
            key=key,
            inputs=inputs,
            tokens=tokens,
            limits=limits,
            on_error=on_error,
        )
        return AsyncFrame(frame, self._threads)

    def questions(self) -> AsyncIterator[QuestionInfo]:
        """Every open question that somebody can answer, oldest frame first."""
        return self.index.questions()

    async def answer(
        self,
        question: str | None = None,
        *,
        token: str | None = None,
        approve: bool | None = None,
        args: Any = None,
        payload: Any = None,
        note: str | None = None,
        by: str | None = None,
    ) -> str:
        """See Holdfast.answer."""
        return await self._threads.run(
            self._client.answer, question, token=token, approve=approve, args=args, payload=payload, note=note, by=by
        )

    def on(self, event: str, callback: Callable[[Event], object]) -> Callable[[], None]:
        """See Holdfast.on. The callback is called on the loop that runs now, and may be async."""
        return self._client.on(event, on_loop(callback) if callable(callback) else callback)

    async def drain(self, grace: float = 30.0) -> int:
        """See Holdfast.drain."""
        return await self._threads.wait(self._client.drain, grace)

    def tenant(self, name: str) -> AsyncHoldfast:
        """A view that sees this tenant and nothing else. Cheap; closing it closes nothing."""
        return AsyncHoldfast(self._client.tenant(name), self._threads)

    def as_user(self, id: str) -> AsyncHoldfast:
        """A view that notes who acts, and whose content it is. Cheap; closing it closes nothing."""
        return AsyncHoldfast(self._client.as_user(id), self._threads)

    async def close(self) -> None:
        """Let go of the journal, also when the awaiting task is cancelled meanwhile."""
        if self._client._owner and not self._threads.closed:
            closing = asyncio.ensure_future(self._threads.run(self._client.close))
            try:
                await asyncio.shield(closing)
            finally:
                self._threads.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._client!r}"


class Opening:
    """A client on its way: `hf = await opening`, or `async with opening as hf`, which also closes it."""

    def __init__(self, make: Callable[[], Holdfast]) -> None:
        self._make = make
        self._client: AsyncHoldfast | None = None

    async def _open(self) -> AsyncHoldfast:
        threads = Threads()
        opening = asyncio.ensure_future(threads.run(self._make))
        try:
            client = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unclaimed)
            raise
        self._client = AsyncHoldfast(client, threads)
        return self._client

    def __await__(self) -> Generator[Any, None, AsyncHoldfast]:
        return self._open().__await__()

    async def __aenter__(self) -> AsyncHoldfast:
        return await self._open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._client is not None:
            await self._client.close()


def _close_unclaimed(opening: asyncio.Future[Holdfast]) -> None:
    """Nobody waits for this client any more: it must not keep its files open."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


def open_async(
    url: str | os.PathLike[str],
    *,
    durability: str = "full",
    settings: Settings | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
) -> Opening:
    """Open a journal for asyncio, with `await` or `async with`; takes what `holdfast.open` takes."""
    return Opening(lambda: open_sync(url, durability=durability, settings=settings, clock=clock, ids=ids))

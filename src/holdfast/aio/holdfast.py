"""AsyncHoldfast: the client for asyncio. Each operation crosses into a thread once, as a whole.

Cancelling an await does not cancel the write; repeat it with its key to learn the outcome.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from holdfast.aio.callbacks import (
    AnyEmbedder,
    AnySummarizer,
    AsyncMemory,
    run_offer,
    run_search,
    wrap_embedder,
    wrap_memory,
)
from holdfast.aio.effects import AsyncEffects
from holdfast.aio.executor import AsyncOpener, ThreadPools, call_on_loop, close_with_pools, make_async, make_pages
from holdfast.aio.frame import AsyncFrame, CancellableRootFrame
from holdfast.aio.index import AsyncIndexView
from holdfast.aio.journal import AsyncJournalView
from holdfast.aio.session import AsyncSession
from holdfast.aio.state import AsyncStateStore
from holdfast.client.effects import Effects
from holdfast.client.holdfast import Holdfast, frame_scope, open_client
from holdfast.client.index import IndexView
from holdfast.client.journal import JournalView
from holdfast.client.options import AgentOptions, SessionOptions, SharedOpenOptions, refuse_unknown
from holdfast.client.state import StateStore
from holdfast.flow.state import journal_store as state_journal_store
from holdfast.ports import Memory, Model
from holdfast.records.events.envelope import Event
from holdfast.records.frames import Limits
from holdfast.records.scope import MAIN_THREAD

if TYPE_CHECKING:
    from holdfast.runtime.agent import AsyncAgent
    from holdfast.runtime.shutdown import AsyncShutdown

T = TypeVar("T")


class AsyncHoldfast:
    """A Holdfast for asyncio, created by `await holdfast.open_async(…)` or by `async with` on it."""

    def __init__(self, client: Holdfast, threads: ThreadPools) -> None:
        self.env = client.env
        self._sync = client
        self._threads = threads

    @property
    def journal(self) -> AsyncJournalView:
        """The journal of events: read, follow, verify, copy and erase it."""
        return AsyncJournalView(JournalView(self.env), self._threads)

    @property
    def index(self) -> AsyncIndexView:
        """Frames at the low level: push, pop, spend, attach, call, suspend, resume."""
        return AsyncIndexView(IndexView(self.env), self._threads)

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
        """Return a root frame for an `async with` block. With a key, continue the frame that was opened under it."""
        frame = CancellableRootFrame(
            self.env,
            frame_scope(actor, session),
            goal,
            key=key,
            inputs=inputs,
            tokens=tokens,
            limits=limits,
            on_error=on_error,
        )
        return AsyncFrame(frame, self._threads)

    async def session(
        self, id: str, *, thread: str = MAIN_THREAD, create: bool = True, **options: Unpack[SessionOptions]
    ) -> AsyncSession:
        """See Holdfast.session. It returns an AsyncSession."""
        found = await self._threads.run(self._sync.session, id, thread=thread, create=create, **options)
        return AsyncSession(found, self.env, self._threads)

    async def new_session(self, **options: Unpack[SessionOptions]) -> AsyncSession:
        """See Holdfast.new_session. It returns an AsyncSession."""
        found = await self._threads.run(self._sync.new_session, **options)
        return AsyncSession(found, self.env, self._threads)

    sessions = make_pages(Holdfast.sessions)
    usage = make_async(Holdfast.usage)

    @property
    def state(self) -> AsyncStateStore:
        """Scoped key-value data, journaled: `await hf.state("user/42").write("prefs", value)`."""
        kept = StateStore(state_journal_store.journal_storage(self.env), owner=False)
        return AsyncStateStore(kept, self._threads)

    @property
    def effects(self) -> AsyncEffects:
        """Declared effects: sinks, middleware, the outbox and pending effects."""
        return AsyncEffects(Effects(self.env), self._threads)

    search = make_async(Holdfast.search, run_search)
    sweep_sessions = make_async(Holdfast.sweep_sessions, run_offer)
    questions = make_pages(Holdfast.questions)
    answer = make_async(Holdfast.answer)

    def on(self, event: str, callback: Callable[[Event], object]) -> Callable[[], None]:
        """See Holdfast.on. The callback is called on the current loop, and may be async."""
        return self._sync.on(event, call_on_loop(callback) if callable(callback) else callback)

    def agent(
        self, name: str, *, model: str | Model, output: type[T] | None = None, **options: Unpack[AgentOptions]
    ) -> AsyncAgent[T]:
        """See Holdfast.agent. `send` and its relatives are awaited."""
        from holdfast.runtime.agent import AsyncAgent, build_agent_config

        return AsyncAgent(self, build_agent_config(name, model=model, output=output, options=options))

    def graceful_shutdown(self, *, grace: float = 25.0, signals: Iterable[int] | None = None) -> AsyncShutdown:
        """See Holdfast.graceful_shutdown. `stop.wait()` is awaited."""
        from holdfast.runtime.shutdown import AsyncShutdown

        return AsyncShutdown(self, grace, signals)

    drain = make_async(Holdfast.drain, ThreadPools.run_waiting)

    def tenant(self, name: str) -> AsyncHoldfast:
        """Return a view that sees only this tenant. Cheap; closing it closes nothing."""
        return AsyncHoldfast(self._sync.tenant(name), self._threads)

    def as_user(self, id: str) -> AsyncHoldfast:
        """Return a view that records this user as actor and owner of content. Cheap; closing it closes nothing."""
        return AsyncHoldfast(self._sync.as_user(id), self._threads)

    async def close(self) -> None:
        """Release the journal, even if the awaiting task is cancelled meanwhile."""
        if self._sync.owner:
            await close_with_pools(self._threads, self._sync.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"Async{self._sync!r}"


class AsyncOpenOptions(SharedOpenOptions, total=False):
    """Options of `holdfast.open_async`. A memory, a summarizer and an embedder may be async."""

    memory: Memory | AsyncMemory | None
    """The memory that ended conversations are offered to."""
    summarizer: AnySummarizer | None
    """The writer of summaries."""
    embedder: AnyEmbedder | None
    """"wordllama", a model's folder, an endpoint or a function: searches go by meaning as well as by words."""


def open_async(url: str | os.PathLike[str], **options: Unpack[AsyncOpenOptions]) -> AsyncOpener[AsyncHoldfast]:
    """Open a journal for asyncio, with `await` or `async with`; takes the options of `holdfast.open`.

    A memory, a summarizer and an embedder may be async here. Plain ones run in threads, as `tokenizer`, `prices` and
    `redact` do.
    """
    refuse_unknown(options, AsyncOpenOptions, "open_async")
    given: Any = dict(options)  # Only `compact` calls the summarizer, and accepts both kinds.

    def make() -> Holdfast:
        wrapped = {"memory": wrap_memory(given.get("memory")), "embedder": wrap_embedder(given.get("embedder"))}
        return open_client(url, {**given, **wrapped})

    return AsyncOpener(make, AsyncHoldfast)

"""Agents: send something to a conversation and get a reply, through turns that survive their process.

An agent holds no messages. What it needs it reads from the journal, so any process that has the same agent can go on
with what another one left.

An agent for code without asyncio: the same one, on a loop of its own in a background thread.

The loop begins with the first thing that is sent and ends with the client. Ctrl-C while it is waited for leaves the
turn live, as any other interruption does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.client.session import Session, spoken
from holdfast.core.frames.budgets import nano_usd
from holdfast.errors import Closed
from holdfast.flow.turns import turns
from holdfast.flow.turns.deadlock import waited_for_here
from holdfast.flow.turns.open import Terms
from holdfast.ports import Ports
from holdfast.records.frames import FrameLimits
from holdfast.records.ids import check_id, check_key
from holdfast.runtime.agent_config import Makeup
from holdfast.runtime.listeners import Begun, Tail, following
from holdfast.runtime.loop_thread import LoopThread, loop_of
from holdfast.runtime.recovery import OnError, Recovering
from holdfast.runtime.reply import AgentEvent, Reply
from holdfast.runtime.send import Sending
from holdfast.runtime.tasks import crew_of

if TYPE_CHECKING:
    from holdfast.client.holdfast import Holdfast

T = TypeVar("T")


class AsyncAgent(Generic[T]):
    """An agent for asyncio. Made by `hf.agent(…)`; one serves any number of conversations at a time."""

    def __init__(self, hf: AsyncHoldfast, makeup: Makeup) -> None:
        self._hf, self._made = hf, makeup
        self._crew = crew_of(hf)

    @property
    def name(self) -> str:
        """Its name, under which it takes up what it left."""
        return self._made.name

    async def send(
        self,
        session: str,
        message: Any = None,
        *,
        key: str | None = None,
        thread: str = "main",
        if_busy: str = "queue",
        wait: float | None = None,
    ) -> Reply[T]:
        """Say something and get what came of it. Without a message it goes on with the turn that is live.

        With a key it is safe to send again, from any process: what is done is not done again. If it is cancelled while
        it waits for others, nothing is written; once its turn has begun that goes on, and `stop` is what ends it.
        """
        return await self._send(self._terms(message, key, if_busy, wait), session, thread)

    async def stream(
        self,
        session: str,
        message: Any = None,
        *,
        key: str | None = None,
        thread: str = "main",
        if_busy: str = "queue",
        wait: float | None = None,
    ) -> AsyncIterator[AgentEvent]:
        """As `send`, with everything that happens on the way. Who stops listening does not stop the work.

        Begins with the message. Without one, or with a key that was used, it begins with the turn that it goes on with.
        Ends when the turn is done, stopped or waits. `tail` goes on behind the last event that had an id.
        """
        terms = self._terms(message, key, if_busy, wait)
        tail, known = await self._hf._threads.run(self._listening, self._line(session, thread), terms)
        hub, place = self._crew.hub, self._place(session, thread)
        begun = Begun(hub, place)
        sending = self._started(terms, session, thread, begun)
        running = sending.task
        assert running is not None, "it has just begun"
        try:
            if not known:  # What others do before it is its turn is theirs.
                await asyncio.wait((begun.turn, running), return_when=asyncio.FIRST_COMPLETED)
                if begun.turn.done():
                    await self._hf._threads.run(tail.note, begun.turn.result())
            if known or begun.turn.done():
                ear = begun.ear or hub.listen(place)
                async for event in following(hub, self._hf._threads, tail, place, ear, running):
                    yield event
            await self._crew.outcome(sending)
        finally:
            begun.leave()
            sending.take_back()

    async def tail(self, session: str, after: str | None = None, *, thread: str = "main") -> AsyncIterator[AgentEvent]:
        """What happens in a conversation, from any process: behind an event, or from the turn that is under way.

        Ends when no turn is under way, or it waits for a person.
        """
        tail = await self._hf._threads.run(lambda: self._tail(self._line(session, thread)).go_to(after))
        hub, place = self._crew.hub, self._place(session, thread)
        async for event in following(hub, self._hf._threads, tail, place, hub.listen(place, again=after is not None)):
            yield event

    async def stop(self, session: str, reason: str = turns.STOPPED, *, thread: str = "main") -> bool:
        """Have the turn that is under way stopped; what was shown is kept. False if there is none."""
        client = self._hf._client
        found = Session(client._ports, client._acting, check_id(session, "session"), thread)
        return await self._hf._threads.run(found.stop, reason)

    def recovering(
        self,
        *,
        every: float = 1.0,
        at_once: int = 16,
        tenants: str | Sequence[str] | None = None,
        on_error: OnError | None = None,
    ) -> AbstractAsyncContextManager[Recovering]:
        """In the background, take up what dead processes left, what was answered, and what a timer woke.

        Of the agent's own tenant; with `tenants="all"` of every one, or of those whose names are given. What fails is
        told to `on_error`; without one it is warned of, once for each turn and kind of error. It is tried again anyway.
        """

        def take_up(tenant: str, session: str, thread: str) -> Awaitable[Reply[T]]:
            own = tenant == self._hf._client._acting.tenant
            return (self if own else self.tenant(tenant))._take_up(session, thread)

        return Recovering(
            self._hf, self._made.name, take_up, every=every, at_once=at_once, tenants=tenants, on_error=on_error
        )

    def tenant(self, name: str) -> AsyncAgent[T]:
        """The same agent for one tenant's conversations, and no others."""
        return AsyncAgent(self._hf.tenant(name), self._made)

    # inside

    def _terms(self, message: Any, key: str | None, if_busy: str, wait: float | None) -> Terms:
        return Terms(
            messages=tuple(spoken(message)),
            key=None if key is None else check_key(key),
            if_busy=if_busy,
            wait=wait,
            tokens=self._made.tokens,
            limits=self._made.limits,
            agent=self._made.name,
            loops=self._made.loops,
            cost=None if self._made.budget_usd is None else nano_usd(self._made.budget_usd, "budget_usd"),
        )

    def _started(self, terms: Terms, session: str, thread: str, begun: Begun | None = None) -> Sending[T]:
        """The work as a task of its own: it goes on when nobody listens, and a shutdown knows of it."""
        sending: Sending[T] = Sending(self._hf, self._made, terms, session, thread, begun)
        with waited_for_here(self._hf._client._ports, asyncio.current_task()):
            sending.task = self._crew.begin(sending.run())
        return sending

    async def _send(self, terms: Terms, session: str, thread: str, *, goes_on: bool = True) -> Reply[T]:
        return await self._crew.outcome(self._started(terms, session, thread), goes_on=goes_on)

    async def _take_up(self, session: str, thread: str) -> Reply[T]:
        wait = self._hf._client._ports.settings.lease_ms / 1000 * 1.5
        return await self._send(self._terms(None, None, "queue", wait), session, thread)

    def _line(self, session: str, thread: str) -> str:
        client = self._hf._client
        return Session(client._ports, client._acting, check_id(session, "session"), thread)._line

    def _place(self, session: str, thread: str) -> tuple[str, str]:
        return self._hf._client._acting.tenant, self._line(session, thread)

    def _tail(self, line: str) -> Tail:
        client = self._hf._client
        return Tail(client._ports, client._acting, turns.place_of_turns(line))

    def _listening(self, line: str, terms: Terms) -> tuple[Tail, bool]:
        """Where to listen from, and whether that is known before the turn is ours."""
        tail, client = self._tail(line), self._hf._client
        wanted = turns.Wanted(messages=terms.messages, key=terms.key, limits=FrameLimits())
        known = turns.by_key(client._ports, client._acting, turns.place_of_turns(line), wanted)
        if known is not None:
            tail.note(known.place, again=True)
        elif not terms.messages:
            tail.go_to(None)
        return tail, known is not None or not terms.messages or terms.if_busy == "join"

    def __repr__(self) -> str:
        return f"AsyncAgent({self._made.name!r})"


class Agent(Generic[T]):
    """An agent. Made by `hf.agent(…)`; one serves any number of conversations, from any number of threads."""

    def __init__(self, hf: Holdfast, makeup: Makeup) -> None:
        self._hf, self._made = hf, makeup

    @property
    def name(self) -> str:
        """Its name, under which it takes up what it left."""
        return self._made.name

    def _on(self, loop: LoopThread) -> AsyncAgent[T]:
        if callable(getattr(self._made.model, "close", None)):
            loop.models[id(self._made.model)] = self._made.model
        return AsyncAgent(AsyncHoldfast(self._hf, loop.threads), self._made)

    def send(
        self,
        session: str,
        message: Any = None,
        *,
        key: str | None = None,
        thread: str = "main",
        if_busy: str = "queue",
        wait: float | None = None,
    ) -> Reply[T]:
        """Say something and get what came of it. Without a message it goes on with the turn that is live.

        With a key it is safe to send again, from any process: what is done is not done again.
        """
        loop = loop_of(self._hf)

        async def sent() -> Reply[T]:
            agent = self._on(loop)
            terms = agent._terms(message, key, if_busy, wait)
            # Nobody but this thread knows of it: who interrupts it wants it left, and not to go on unseen.
            return await agent._send(terms, session, thread, goes_on=False)

        with waited_for_here(self._hf._ports):
            return loop.run(sent())

    def stream(
        self,
        session: str,
        message: Any = None,
        *,
        key: str | None = None,
        thread: str = "main",
        if_busy: str = "queue",
        wait: float | None = None,
    ) -> Iterator[AgentEvent]:
        """As `send`, with everything that happens on the way. Who stops listening does not stop the work."""
        loop = loop_of(self._hf)
        return _drawn(
            self._hf._ports,
            loop,
            lambda: self._on(loop).stream(session, message, key=key, thread=thread, if_busy=if_busy, wait=wait),
        )

    def tail(self, session: str, after: str | None = None, *, thread: str = "main") -> Iterator[AgentEvent]:
        """What happens in a conversation, from any process: behind an event, or from the turn that is under way."""
        loop = loop_of(self._hf)
        return _drawn(self._hf._ports, loop, lambda: self._on(loop).tail(session, after, thread=thread))

    def stop(self, session: str, reason: str = turns.STOPPED, *, thread: str = "main") -> bool:
        """Have the turn that is under way stopped; what was shown is kept. False if there is none."""
        return Session(self._hf._ports, self._hf._acting, check_id(session, "session"), thread).stop(reason)

    @contextmanager
    def recovering(
        self,
        *,
        every: float = 1.0,
        at_once: int = 16,
        tenants: str | Sequence[str] | None = None,
        on_error: OnError | None = None,
    ) -> Iterator[Recovering]:
        """In the background, take up what dead processes left, what was answered, and what a timer woke.

        Of the agent's own tenant; with `tenants="all"` of every one, or of those whose names are given. What fails is
        told to `on_error`; without one it is warned of, once for each turn and kind of error. It is tried again anyway.
        """
        loop = loop_of(self._hf)

        async def begun() -> Recovering:
            made = self._on(loop).recovering(every=every, at_once=at_once, tenants=tenants, on_error=on_error)
            return await made.__aenter__()

        at_work = loop.run(begun())
        try:
            yield at_work
        finally:
            if loop.alive:
                loop.run(_left(at_work))

    def tenant(self, name: str) -> Agent[T]:
        """The same agent for one tenant's conversations, and no others."""
        return Agent(self._hf.tenant(name), self._made)

    def __repr__(self) -> str:
        return f"Agent({self._made.name!r})"


async def _left(at_work: Recovering) -> None:
    await at_work.__aexit__(None, None, None)


def _drawn(ports: Ports, loop: LoopThread, make: Callable[[], AsyncIterator[AgentEvent]]) -> Iterator[AgentEvent]:
    """An async iterator, drawn from a thread."""
    made: list[Any] = []

    async def following() -> AgentEvent | None:
        if not made:
            made.append(make())
        return await anext(made[0], None)

    async def closed() -> None:
        if made:
            await made[0].aclose()

    def drawn() -> AgentEvent | None:
        with waited_for_here(ports):
            return loop.run(following())

    try:
        while (event := drawn()) is not None:
            yield event
    finally:
        with suppress(Closed):
            loop.run(closed())

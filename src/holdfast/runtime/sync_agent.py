"""An agent for code without asyncio: the same one, on a loop of its own in a background thread.

The loop begins with the first thing that is sent and ends with the client. Ctrl-C while it is waited for leaves the
turn live, as any other interruption does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.client.session import Session
from holdfast.errors import Closed
from holdfast.flow.turn import turns
from holdfast.ports import Ports
from holdfast.records.ids import check_id
from holdfast.runtime.agent import AsyncAgent
from holdfast.runtime.loop_thread import LoopThread, loop_of
from holdfast.runtime.makeup import Makeup
from holdfast.runtime.recovering import OnError, Recovering
from holdfast.runtime.reply import AgentEvent, Reply
from holdfast.runtime.within import waited_for_here

if TYPE_CHECKING:
    from holdfast.client.holdfast import Holdfast

T = TypeVar("T")


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

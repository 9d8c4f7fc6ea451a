"""Agents: send something to a conversation and get a reply, through turns that survive their process.

An agent holds no messages. What it needs it reads from the journal, so any process that has the same agent can go on
with what another one left.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.aio.turn import AsyncTurn
from holdfast.client.session import Session, spoken
from holdfast.client.steps import Ask, Done
from holdfast.client.turn import Turn
from holdfast.client.turn_opening import Terms
from holdfast.errors import FrameEnded, StaleEpoch
from holdfast.flow.conversation import lines
from holdfast.flow.stack.showing import current
from holdfast.flow.turn import turns
from holdfast.ports import Model
from holdfast.records.frames import Limits
from holdfast.records.ids import check_id, check_key
from holdfast.records.messages import ToolDef
from holdfast.records.usage import NANO_USD, Usage
from holdfast.runtime.agent_rules import AgentRules
from holdfast.runtime.crew import crew_of
from holdfast.runtime.driving import Driver
from holdfast.runtime.history import history_tools
from holdfast.runtime.hub import Begun
from holdfast.runtime.makeup import Makeup
from holdfast.runtime.recovering import Recovering
from holdfast.runtime.reply import AgentEvent, Reply, reply_of
from holdfast.runtime.tailing import Tail, following
from holdfast.runtime.tools.sources import tools_from
from holdfast.runtime.tools.tool import AnyTool
from holdfast.runtime.within import check_outside, working_for

if TYPE_CHECKING:
    from holdfast.aio.holdfast import AsyncHoldfast

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

        With a key it is safe to send again, from any process: what is done is not done again.
        """
        return await self._crew.outcome(self._started(self._terms(message, key, if_busy, wait), session, thread))

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
        running = self._started(terms, session, thread, begun)
        try:
            if not known:  # What others do before it is its turn is theirs.
                await asyncio.wait((begun.turn, running), return_when=asyncio.FIRST_COMPLETED)
                if begun.turn.done():
                    await self._hf._threads.run(tail.note, begun.turn.result())
            if known or begun.turn.done():
                ear = begun.ear or hub.listen(place)
                async for event in following(hub, self._hf._threads, tail, place, ear, running):
                    yield event
            await self._crew.outcome(running)
        finally:
            begun.leave()

    async def tail(self, session: str, after: str | None = None, *, thread: str = "main") -> AsyncIterator[AgentEvent]:
        """What happens in a conversation, from any process: behind an event, or from the turn that is under way.

        Ends when no turn is under way, or it waits for a person.
        """
        tail = await self._hf._threads.run(lambda: self._tail(self._line(session, thread)).go_to(after))
        hub, place = self._crew.hub, self._place(session, thread)
        async for event in following(hub, self._hf._threads, tail, place, hub.listen(place)):
            yield event

    async def stop(self, session: str, reason: str = turns.STOPPED, *, thread: str = "main") -> bool:
        """Have the turn that is under way stopped; what was shown is kept. False if there is none."""
        client = self._hf._client
        found = Session(client._ports, client._acting, check_id(session, "session"), thread)
        return await self._hf._threads.run(found.stop, reason)

    def recovering(self, *, every: float = 1.0, at_once: int = 16) -> AbstractAsyncContextManager[Recovering]:
        """In the background, take up what dead processes left, what was answered, and what a timer woke.

        Of this tenant alone: use `agent.tenant(name).recovering()` for each of them.
        """
        return Recovering(self._hf, self._made.name, self._take_up, every=every, at_once=at_once)

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
        )

    def _started(self, terms: Terms, session: str, thread: str, begun: Begun | None = None) -> asyncio.Task[Reply[T]]:
        """The work as a task of its own: it goes on when nobody listens, and a shutdown knows of it."""
        check_outside(self._place(session, thread), terms.if_busy)
        return self._crew.begin(self._sent(terms, session, thread, begun))

    async def _take_up(self, session: str, thread: str) -> Reply[T]:
        wait = self._hf._client._ports.settings.lease_ms / 1000 * 1.5
        return await self._crew.outcome(self._started(self._terms(None, None, "queue", wait), session, thread))

    async def _sent(self, terms: Terms, session: str, thread: str, begun: Begun | None) -> Reply[T]:
        line = self._line(session, thread)
        async with self._crew.lining_up(self._place(session, thread)) as lined:
            model, tools = await self._crew.model(self._made.model), await tools_from(self._made.tools)
            tools = {**(history_tools() if self._made.history else {}), **tools}
            if not await self._hf._threads.run(self._is_there, line, thread):
                await self._configured(session, thread, model, tools)
            turn = self._turn(line, terms, tools)
            turn.lined = lined
            try:
                async with turn:
                    if not turn._turn._replayed:
                        # Not before it is our turn: whoever worked until now is not to find another's instructions.
                        await self._configured(session, thread, model, tools)
                    driver = self._driver(turn, session, thread, model, tools)
                    await driver.wrote()
                    if begun is not None:
                        begun.now(turn._turn._turn)
                    ended = await self._driven(driver, turn.id, self._place(session, thread))
                    return self._reply(ended, turn.id, session, await turn.usage())
            except (FrameEnded, StaleEpoch):
                done = await self._hf._threads.run(_ended_elsewhere, turn._turn)
                if done is None:
                    raise
                return self._reply(done, turn.id, session, await turn.usage())

    def _is_there(self, line: str, thread: str) -> bool:
        client = self._hf._client
        known = current(client._ports, client._acting, lines.session_of(line)).session
        return known is not None and thread in known.threads

    async def _configured(self, session: str, thread: str, model: Model, tools: Mapping[str, AnyTool]) -> None:
        defined: list[ToolDef] = [tool.definition for tool in tools.values()]
        await self._hf.session(
            session, system=self._made.system, tools=defined or None, model=model.name, thread=thread
        )

    async def _driven(self, driver: Driver, turn: str, place: tuple[str, str]) -> Done | Ask:
        try:
            with working_for(place), self._crew.driving(place[0], turn, driver):
                return await driver.run()
        finally:
            self._crew.hub.tell(place, "over", {})

    def _driver(self, turn: AsyncTurn, session: str, thread: str, model: Model, tools: Mapping[str, AnyTool]) -> Driver:
        hub, place = self._crew.hub, self._place(session, thread)
        return Driver(
            turn,
            model,
            tools,
            self._hf._threads,
            lambda kind, data: self._crew.soon(hub.tell, place, kind, data),
            wrote=lambda written, actor: hub.wrote(place, (written, actor)),
            session=session,
            output=self._made.output.schema,
            options=self._made.options,
            budget_nano=None if self._made.budget_usd is None else round(self._made.budget_usd * NANO_USD),
        )

    def _turn(self, line: str, terms: Terms, tools: Mapping[str, AnyTool]) -> AsyncTurn:
        client = self._hf._client
        turn = Turn(client._ports, client._acting, line, terms, rules=AgentRules(tools), loops=self._made.loops)
        turn._accepts = self._made.output.complaint
        return AsyncTurn(turn, self._hf._threads)

    def _reply(self, ended: Done | Ask, turn: str, session: str, usage: Usage) -> Reply[T]:
        return reply_of(ended, self._made.output, turn=turn, session=session, usage=usage)

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
        wanted = turns.Wanted(messages=terms.messages, key=terms.key, limits=Limits())
        known = turns.by_key(client._ports, client._acting, turns.place_of_turns(line), wanted)
        if known is not None:
            tail.note(known.place, again=True)
        elif not terms.messages:
            tail.go_to(None)
        return tail, known is not None or not terms.messages or terms.if_busy == "join"

    def __repr__(self) -> str:
        return f"AsyncAgent({self._made.name!r})"


def _ended_elsewhere(turn: Turn) -> Done | None:
    """What came of a turn that another process took over and ended; None if it is live."""
    return turn._over() if turn._id is not None and turn._looked() is None else None

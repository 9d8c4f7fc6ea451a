"""One send: a message that waits for its turn and is then worked on, even if the sender stops waiting.

Until its turn begins, nothing is written and the sender can withdraw it. From then on it is in the journal and goes on
by itself. Anything that needs a network, such as the tools of a server, is loaded only after that: so a message is not
lost when a server is down, and an earlier answer is returned without one.

"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from holdfast.aio.executor import Threads
from holdfast.aio.turn import AsyncTurn
from holdfast.client.session import Session
from holdfast.client.steps import Ask, Done
from holdfast.client.turn import Turn
from holdfast.errors import FrameEnded, StaleEpoch
from holdfast.flow.frames.read import current
from holdfast.flow.sessions import read, sessions
from holdfast.flow.sessions.sessions import Given
from holdfast.flow.turns.deadlock import caller, waits, working_for
from holdfast.flow.turns.open import Opening, Terms, Wait
from holdfast.ports import Model
from holdfast.records.frames import StreamState
from holdfast.records.ids import check_id
from holdfast.runtime.agent_config import AgentRules, Makeup
from holdfast.runtime.driver import Driver
from holdfast.runtime.listeners import Begun
from holdfast.runtime.reply import Reply, reply_of
from holdfast.runtime.tasks import crew_of
from holdfast.runtime.tools.sources import history_tools, tools_from
from holdfast.runtime.tools.tool import AnyTool, Tool

if TYPE_CHECKING:
    from holdfast.aio.holdfast import AsyncHoldfast

T = TypeVar("T")


class Sending(Generic[T]):
    """One send to one conversation: a message, or none to continue the live turn."""

    def __init__(
        self, hf: AsyncHoldfast, made: Makeup, terms: Terms, session: str, thread: str, begun: Begun | None = None
    ) -> None:
        self._hf, self._made, self._terms, self._begun = hf, made, terms, begun
        self._crew, self._threads = crew_of(hf), hf._threads
        self._session, self._thread = session, thread
        self._line = Session(hf._client._ports, hf._client._acting, check_id(session, "session"), thread)._line
        self._place = (hf._client._acting.tenant, self._line)
        self._tools: dict[str, AnyTool] = {}
        self._state = "waiting"
        self._unwanted = False
        self._opening: Opening | None = None
        self.task: asyncio.Task[Reply[T]] | None = None

    # Withdrawal

    def take_back(self) -> None:
        """Withdraw the send: a turn that has begun goes on, one that has not is never written."""
        if self._state == "waiting" and self.task is not None:
            self.task.cancel()
        elif self._state == "opening":
            self._unwanted = True

    @property
    def written(self) -> bool:
        """True if its message, or the turn that it continues, is in the journal."""
        return self._opening is not None and self._opening.is_found

    def _behind_others(self) -> AbstractContextManager[None]:
        """Return the context for waiting behind earlier sends; it refuses to wait if that would be a deadlock."""
        client, who = self._hf._client, caller(self._hf._client._ports, asyncio.current_task())
        if not who.held():
            return nullcontext()
        return waits.waiting(who, waits.node(client._ports, client._acting, self._line), self._terms.if_busy)

    def waits(self, is_so: bool) -> None:
        """Note whether the send waits for others. While it opens its turn, it cannot know whether that was written."""
        if is_so and self._unwanted:
            raise asyncio.CancelledError
        self._state = "waiting" if is_so else "opening"

    # Work

    async def run(self) -> Reply[T]:
        """Run the send and return its reply."""
        async with self._crew.lining_up(self._place, self._behind_others) as lined:
            model = await self._crew.model(self._made.model)
            if not await self._is_there():
                await self._configured(model, self._at_hand())
            turn = self._turn()
            self._opening, turn.lined = turn._turn._opening, lined
            self.waits(False)
            try:
                async with turn:
                    self._state = "begun"
                    return self._reply(await self._worked(turn, model), turn.id, await turn.usage())
            except (FrameEnded, StaleEpoch):
                done = await self._threads.run(_ended_elsewhere, turn._turn)
                if done is None:
                    raise
                return self._reply(done, turn.id, await turn.usage())

    async def _worked(self, turn: AsyncTurn, model: Model) -> Done | Ask:
        """Drive the turn until it is done or waits. Listeners are told of its start and, in any case, of its end."""
        if turn._turn._replayed:  # Other turns may be at work here now: publish nothing in their place.
            self._told(turn)
            (ended,) = await turn.steps()
            assert isinstance(ended, Done), "a turn that has ended before has nothing else to give"
            return ended
        driver = self._driver(turn, model)
        try:
            await driver.wrote()
            self._told(turn)
            self._tools.update(await self._listed())
            # Not before this turn is live: a turn in progress must not see another agent's instructions.
            await self._configured(model, self._tools)
            with working_for(driver.work), self._crew.driving(self._place[0], turn.id, driver):
                return await driver.run()
        finally:
            self._crew.hub.tell(self._place, "over", {})

    def _told(self, turn: AsyncTurn) -> None:
        if self._begun is not None:
            self._begun.now(turn._turn._place)

    # Tools and configuration

    async def _listed(self) -> dict[str, AnyTool]:
        """Return all tools of the agent, those of remote sources included."""
        own = await tools_from(self._made.tools)
        return {**(history_tools() if self._made.history else {}), **own}

    def _at_hand(self) -> dict[str, AnyTool] | None:
        """Return all tools of the agent; None if some must be requested from remote sources."""
        own = [one for one in self._made.tools if isinstance(one, Tool)]
        if len(own) < len(self._made.tools):
            return None
        return {**(history_tools() if self._made.history else {}), **{one.name: one for one in own}}

    async def _is_there(self) -> bool:
        ports, acting = self._hf._client._ports, self._hf._client._acting
        session = read.session_of(self._line)
        known = ports.states.get(acting.tenant, session)
        if not _has(known, self._thread):  # A thread never disappears, but may have been created since.
            known = await self._threads.run(current, ports, acting, session)
        return _has(known, self._thread)

    async def _configured(self, model: Model, tools: Mapping[str, AnyTool] | None) -> None:
        """Set the conversation's instructions and tools to this agent's, replacing those of another agent."""
        defined = None if tools is None else [tool.definition for tool in tools.values()]
        given = Given(system=self._made.system, tools=defined, model=model.name, agent=True)
        client = self._hf._client
        await self._threads.run(
            sessions.open_session, client._ports, client._acting, self._session, self._thread, given
        )

    def _driver(self, turn: AsyncTurn, model: Model) -> Driver:
        hub, place, made = self._crew.hub, self._place, self._made
        return Driver(
            turn,
            model,
            self._tools,
            self._threads,
            lambda kind, data: self._crew.soon(hub.tell, place, kind, data),
            wrote=lambda written, actor: hub.wrote(place, (written, actor)),
            session=self._session,
            output=made.output.schema,
            options=made.options,
        )

    def _turn(self) -> AsyncTurn:
        client = self._hf._client
        made, rules = self._made, AgentRules(self._tools)
        turn = Turn(
            client._ports,
            client._acting,
            self._line,
            self._terms,
            rules=rules,
            loops=made.loops,
            budget=made.budget,
            budget_usd=made.budget_usd,
        )
        turn._accepts = self._made.output.complaint
        return SentTurn(turn, self._threads, self)

    def _reply(self, ended: Done | Ask, turn: str, usage: Any) -> Reply[T]:
        return reply_of(ended, self._made.output, turn=turn, session=self._session, usage=usage)


class SentTurn(AsyncTurn):
    """A turn that can be withdrawn while it waits for others, and at no other time."""

    def __init__(self, turn: Turn, threads: Threads, sending: Sending[Any]) -> None:
        super().__init__(turn, threads)
        self._sending = sending

    async def _waited(self, wait: Wait) -> None:
        self._sending.waits(True)
        await super()._waited(wait)
        self._sending.waits(False)


def _has(state: StreamState | None, thread: str) -> bool:
    return state is not None and state.session is not None and thread in state.session.threads


def _ended_elsewhere(turn: Turn) -> Done | None:
    """Return the outcome of a turn that another process took over and ended; None if it is live."""
    return turn._over() if turn._id is not None and turn._looked() is None else None

"""One send: a message that waits for its turn and is then worked on, even if the sender stops waiting.

Until its turn begins, nothing is written and the sender can withdraw it. From then on it is in the journal and goes on
by itself. Anything that needs a network, such as the tools of a server, is loaded only after that: so a message is not
lost when a server is down, and an earlier answer is returned without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

from holdfast.aio.turn import AsyncTurn
from holdfast.client.turn import Ask, Done
from holdfast.errors import FrameEnded, StaleEpoch
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.sessions import read, sessions
from holdfast.flow.sessions.sessions import SessionSettings, streams_of
from holdfast.flow.turns.deadlock import current_caller, enter_work, wait_graph
from holdfast.flow.turns.engine import TurnEngine
from holdfast.flow.turns.model_calls import ModelLimits
from holdfast.flow.turns.open import TurnTerms
from holdfast.flow.turns.steps import TurnEnd
from holdfast.ports import Env, Model
from holdfast.records.frames import StreamState
from holdfast.records.ids import check_id
from holdfast.runtime.agent_config import AgentConfig, AgentRules
from holdfast.runtime.driver import TurnDriver
from holdfast.runtime.listeners import TurnListener
from holdfast.runtime.reply import Reply, build_reply
from holdfast.runtime.tasks import AgentTasks
from holdfast.runtime.tools.sources import history_tools, load_tools
from holdfast.runtime.tools.tool import AnyTool, Tool

T = TypeVar("T")


class AgentSend(Generic[T]):
    """One send to one conversation: a message, or none to continue the live turn."""

    def __init__(
        self,
        env: Env,
        crew: AgentTasks,
        made: AgentConfig,
        terms: TurnTerms,
        session: str,
        thread: str,
        begun: TurnListener | None = None,
    ) -> None:
        self._env, self._crew, self._threads = env, crew, crew.threads
        self._made, self._terms, self._begun = made, terms, begun
        self._session, self._thread = session, thread
        self._stream = streams_of(check_id(session, "session"), thread)[1]
        self._place = (env.tenant, self._stream)
        self._tools: dict[str, AnyTool] = {}
        self._state = "waiting"
        self._unwanted = False
        self._engine: TurnEngine | None = None
        self.task: asyncio.Task[Reply[T]] | None = None

    # Withdrawal

    def withdraw(self) -> None:
        """Withdraw the send: a turn that has begun goes on, one that has not is never written."""
        if self._state == "waiting" and self.task is not None:
            self.task.cancel()
        elif self._state == "opening":
            self._unwanted = True

    @property
    def is_written(self) -> bool:
        """True if its message, or the turn that it continues, is in the journal."""
        return self._engine is not None and self._engine.opener.is_found

    def _hold_queue_wait(self) -> AbstractContextManager[None]:
        """Return the context for waiting behind earlier sends; it refuses to wait if that would be a deadlock."""
        who = current_caller(self._env, asyncio.current_task())
        if not who.list_held_turns():
            return nullcontext()
        return wait_graph.hold_wait(who, wait_graph.node(self._env, self._stream), self._terms.if_busy)

    def set_waiting(self, is_so: bool) -> None:
        """Note whether the send waits for others. While it opens its turn, it cannot know whether that was written."""
        if is_so and self._unwanted:
            raise asyncio.CancelledError
        self._state = "waiting" if is_so else "opening"

    # Work

    async def run(self) -> Reply[T]:
        """Run the send and return its reply."""
        async with self._crew.enter_queue(self._place, self._hold_queue_wait) as lined:
            model = await self._crew.get_model(self._made.model)
            if not await self._has_thread():
                await self._configure_session(model, self._local_tools())
            engine = self._engine = TurnEngine(
                self._env,
                self._stream,
                self._terms,
                rules=AgentRules(self._tools),
                limits=ModelLimits(loops=self._made.loops, budget=self._made.budget, cost=self._terms.cost),
                find_problem=self._made.output.find_problem,
            )
            self.set_waiting(False)
            turn = AsyncTurn(engine, self._threads, lined, self.set_waiting)
            try:
                async with turn:
                    self._state = "begun"
                    return self._build_reply(await self._drive_turn(engine, model), engine.id, await turn.usage())
            except (FrameEnded, StaleEpoch):
                done = await self._threads.run(_find_remote_end, engine)
                if done is None:
                    raise
                return self._build_reply(Done(done), engine.id, await turn.usage())

    async def _drive_turn(self, engine: TurnEngine, model: Model) -> Done | Ask:
        """Drive the turn until it is done or waits. Listeners are told of its start and, in any case, of its end."""
        if engine.replayed:  # Other turns may be at work here now: publish nothing in their place.
            self._announce_start(engine)
            return Done(await self._threads.run(engine.load_outcome))
        driver = self._make_driver(engine, model)
        try:
            await driver.publish_versions()
            self._announce_start(engine)
            self._tools.update(await self._load_tools())
            # Not before this turn is live: a turn in progress must not see another agent's instructions.
            await self._configure_session(model, self._tools)
            work = engine.opener.list_work()
            for one in work:
                one.heeds_stops = True
            with enter_work(*work), self._crew.track_driver(self._place[0], engine.id, driver):
                return await driver.run()
        finally:
            self._crew.hub.publish_event(self._place, "over", {})

    def _announce_start(self, engine: TurnEngine) -> None:
        if self._begun is not None:
            self._begun.announce(engine.place)

    # Tools and configuration

    async def _load_tools(self) -> dict[str, AnyTool]:
        """Return all tools of the agent, those of remote sources included."""
        local = self._local_tools()
        if local is not None:
            return local
        own = await load_tools(self._made.tools)
        return {**(history_tools() if self._made.history else {}), **own}

    def _local_tools(self) -> dict[str, AnyTool] | None:
        """Return all tools of the agent; None if some must be requested from remote sources."""
        found: dict[str, AnyTool] = {**(history_tools() if self._made.history else {})}
        for one in self._made.tools:
            if not isinstance(one, Tool):
                return None
            found[one.name] = one
        return found

    async def _has_thread(self) -> bool:
        session = read.session_stream(self._stream)
        known = self._env.states.get(self._env.tenant, session)
        if not _state_has_thread(known, self._thread):  # A thread never disappears, but may have been created since.
            known = await self._threads.run(load_current_state, self._env, session)
        return _state_has_thread(known, self._thread)

    async def _configure_session(self, model: Model, tools: Mapping[str, AnyTool] | None) -> None:
        """Set the conversation's instructions and tools to this agent's, replacing those of another agent."""
        defined = None if tools is None else [tool.definition for tool in tools.values()]
        given = SessionSettings(system=self._made.system, tools=defined, model=model.name, agent=True)
        await self._threads.run(sessions.open_session, self._env, self._session, self._thread, given)

    def _make_driver(self, engine: TurnEngine, model: Model) -> TurnDriver:
        hub, place, made = self._crew.hub, self._place, self._made
        return TurnDriver(
            engine,
            model,
            self._tools,
            self._threads,
            lambda kind, data: self._crew.call_on_loop(hub.publish_event, place, kind, data),
            wrote=lambda written, actor: hub.publish_versions(place, (written, actor)),
            session=self._session,
            output=made.output.schema,
            options=made.options,
        )

    def _build_reply(self, ended: Done | Ask, turn: str, usage: Any) -> Reply[T]:
        return build_reply(ended, self._made.output, turn=turn, session=self._session, usage=usage)


def _state_has_thread(state: StreamState | None, thread: str) -> bool:
    return state is not None and state.session is not None and thread in state.session.threads


def _find_remote_end(engine: TurnEngine) -> TurnEnd | None:
    """Return the outcome of a turn that another process took over and ended; None if it is live."""
    return engine.load_outcome() if engine.entered and engine.load_view() is None else None

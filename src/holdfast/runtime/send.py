"""One send: a message that waits for its turn and is then worked on, even if the sender stops waiting.

Until its turn begins, nothing is written and the sender can withdraw it. From then on it is in the journal and goes on
by itself. Anything that needs a network, such as the tools of a server, is loaded only after that: so a message is not
lost when a server is down, and an earlier answer is returned without one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from holdfast.aio.turn import AsyncTurn
from holdfast.client.turn import Ask, Done
from holdfast.errors import ArgumentsUnfit, FrameEnded, StaleEpoch
from holdfast.flow.frames.read import load_current_state
from holdfast.flow.sessions import read, sessions
from holdfast.flow.sessions.sessions import SessionSettings, streams_of
from holdfast.flow.turns.deadlock import ConversationNode, current_caller, enter_work, wait_graph
from holdfast.flow.turns.engine import TurnEngine
from holdfast.flow.turns.limits import ModelLimits
from holdfast.flow.turns.turns import TurnEnd, TurnTerms
from holdfast.ports import Env, Model
from holdfast.records.ids import SessionId, check_id
from holdfast.records.usage import Usage
from holdfast.runtime.driver import Configure, TurnDriver
from holdfast.runtime.listeners import TurnListener
from holdfast.runtime.reply import Reply
from holdfast.runtime.tasks import AgentTasks
from holdfast.runtime.tools.sources import LocalTools, history_tools, load_tools
from holdfast.runtime.tools.tool import AgentRules, AnyTool

if TYPE_CHECKING:
    from holdfast.runtime.agent import AgentConfig

T = TypeVar("T")


class AgentSend(Generic[T]):
    """One send to one conversation: a message, or none to continue the live turn."""

    def __init__(
        self,
        env: Env,
        crew: AgentTasks,
        made: AgentConfig,
        terms: TurnTerms,
        session: SessionId,
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
        return self._engine is not None and self._engine.opener.found is not None

    @contextmanager
    def _hold_queue_wait(self) -> Iterator[None]:
        """Wait behind earlier sends in this block; it refuses to wait if that would be a deadlock."""
        who = current_caller(self._env, asyncio.current_task())
        if not who.list_held_turns():
            yield
            return
        node = ConversationNode(self._env.journal.secret, self._env.tenant, self._stream)
        wait = wait_graph.begin_wait(who, node, self._terms.if_busy)
        try:
            yield
        finally:
            wait_graph.end_wait(wait)

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
                # The tools of servers are listed once the turn is in the journal.
                local = None if self._made.has_servers else self._made.local
                await self._threads.run(self._configure, model, local)
            engine = self._engine = TurnEngine(
                self._env,
                self._stream,
                self._terms,
                rules=AgentRules(self._tools),
                limits=ModelLimits(loops=self._made.loops, budget=self._made.budget, cost=self._terms.cost),
                find_problem=None if self._made.output.schema is None else self._made.output.find_problem,
            )
            self.set_waiting(False)
            turn = AsyncTurn(engine, self._threads, lined, self.set_waiting)
            try:
                async with turn:
                    self._state = "begun"
                    return self._build_reply(await self._drive_turn(engine, model), engine, await turn.usage())
            except (FrameEnded, StaleEpoch):
                done = await self._threads.run(_find_remote_end, engine)
                if done is None:
                    raise
                return self._build_reply(Done(done), engine, await turn.usage())

    async def _drive_turn(self, engine: TurnEngine, model: Model) -> Done | Ask:
        """Drive the turn until it is done or waits. Listeners are told of its start and, in any case, of its end."""
        if engine.replayed:  # Other turns may be at work here now: publish nothing in their place.
            if self._begun is not None:
                self._begun.announce(engine.place)
            return Done(await self._threads.run(engine.load_outcome))
        hub, place, made = self._crew.hub, self._place, self._made
        driver = TurnDriver(
            engine,
            model,
            self._tools,
            self._threads,
            partial(self._crew.call_on_loop, hub.publish_event, place),
            relay=self._crew.open_relay(place),
            wrote=partial(self._crew.call_on_loop, hub.publish_versions, place),
            is_followed=partial(hub.is_followed, place),
            session=self._session,
            output=made.output.schema,
            options=made.options,
        )
        try:
            await driver.publish_versions()
            if self._begun is not None:
                self._begun.announce(engine.place)
            for one in engine.opener.work:
                one.heeds_stops = True
            tracked = self._crew.track_driver(self._env.tenant, engine.place.frame, driver)
            with enter_work(*engine.opener.work), tracked:
                # Not before this turn is live: a turn in progress must not see another agent's instructions.
                if made.has_servers:
                    return await driver.run(load=partial(self._load_settings, model))
                return await driver.run(self._use_tools(model, made.local))
        finally:
            hub.publish_event(place, "over", {})

    # Tools and configuration

    async def _has_thread(self) -> bool:
        stream = read.session_stream(self._stream)
        known = self._env.states.streams.get((self._env.tenant, stream))
        if known is not None and known.session is not None and self._thread in known.session.threads:
            return True  # A thread never disappears, but may have been created since.
        session = (await self._threads.run(load_current_state, self._env, stream)).session
        return session is not None and self._thread in session.threads

    async def _load_settings(self, model: Model) -> Configure:
        """List the tools of servers, and return how to configure the conversation with them."""
        made, found = self._made, await load_tools(self._made.tools)
        return self._use_tools(model, LocalTools({**(history_tools() if made.history else {}), **found}.values()))

    def _use_tools(self, model: Model, found: LocalTools) -> Configure:
        """Use these tools in the turn, and return how to configure the conversation with them."""
        self._tools.update(found.by_name)
        return partial(self._configure, model, found)

    def _configure(self, model: Model, tools: LocalTools | None) -> None:
        """Set the conversation's instructions and tools to this agent's, replacing those of another agent.

        Without tools, the conversation keeps its own.
        """
        defined, encoded = (None, None) if tools is None else (tools.definitions, tools.encoded)
        given = SessionSettings(system=self._made.system, tools=defined, encoded=encoded, model=model.name, agent=True)
        sessions.open_session(self._env, self._session, self._thread, given)

    def _build_reply(self, ended: Done | Ask, engine: TurnEngine, usage: Usage) -> Reply[T]:
        """Build the reply for the end of a turn, with its data as the requested type."""
        turn, session = engine.place.frame, self._session
        if isinstance(ended, Ask):
            return Reply(
                status="waiting",
                questions=ended.questions,
                reason=ended.question,
                usage=usage,
                turn_id=turn,
                session=session,
            )
        output, data, reason, code = self._made.output, None, ended.reason, ended.code
        done = ended.status == "done"
        try:
            if done and ended.message is not None and output.schema is not None:
                data = output.parse(ended.message)
        except ArgumentsUnfit as error:  # It was accepted when the agent had another output type.
            code, reason = "output", f"output: the stored reply does not fit what this agent asks for. {error}"
        return Reply(
            status="done" if done else "stopped",
            text=ended.text,
            data=data,
            reason=reason,
            code=code,
            finish=ended.finish,
            usage=usage,
            turn_id=turn,
            session=session,
        )


def _find_remote_end(engine: TurnEngine) -> TurnEnd | None:
    """Return the outcome of a turn that another process took over and ended; None if it is live."""
    with engine.env.journal.snapshot():
        over = engine.entered and engine.load_view() is None
    return engine.load_outcome() if over else None

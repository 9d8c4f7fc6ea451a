"""Agents: send a message to a conversation and get a reply, through turns that survive their process.

An agent holds no messages. It reads everything from the journal, so any process with the same agent can continue the
work of another one. `Agent` is `AsyncAgent` on an event loop in a background thread, which starts with the first send
and ends with the client; Ctrl-C during a wait leaves the turn live.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from holdfast.aio.holdfast import AsyncHoldfast
from holdfast.client.options import AgentOptions, refuse_unknown
from holdfast.client.session import Session
from holdfast.client.turn import read_turn_messages
from holdfast.connect import make_model
from holdfast.core.frames.budgets import check_limits, to_nano_usd
from holdfast.core.numbers import is_number
from holdfast.errors import Closed, InvalidValue
from holdfast.flow.sessions.sessions import streams_of
from holdfast.flow.turns import turns
from holdfast.flow.turns.deadlock import current_caller, enter_work, wait_graph
from holdfast.flow.turns.limits import LOOPS, check_bounds
from holdfast.flow.turns.turns import TurnTerms
from holdfast.ports import Env
from holdfast.records.frames import Limits
from holdfast.records.ids import SessionId, check_id, check_key
from holdfast.records.messages import Message
from holdfast.runtime.listeners import Tail, TurnListener, follow
from holdfast.runtime.loop_thread import LoopThread, get_loop_thread
from holdfast.runtime.recovery import OnError, Recovery
from holdfast.runtime.reply import AgentEvent, Reply, ReplyOutput
from holdfast.runtime.send import AgentSend
from holdfast.runtime.tasks import get_agent_tasks
from holdfast.runtime.tools.sources import LocalTools, ToolSource, check_tools, history_tools
from holdfast.runtime.tools.tool import AnyTool, Tool

if TYPE_CHECKING:
    from holdfast.client.holdfast import Holdfast

T = TypeVar("T")


class AgentConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of an agent. Invalid settings are refused when it is created, not at its first send."""

    name: str
    model: Any
    system: str | None = None
    tools: tuple[AnyTool | ToolSource, ...] = ()
    output: ReplyOutput
    local: LocalTools
    """The tools that come from no server."""
    has_servers: bool = False
    history: bool = True
    limits: Limits | None = None
    tokens: int | None = None
    budget: int | None = None
    budget_usd: float | None = None
    loops: int = LOOPS
    options: Mapping[str, Any] = {}


def build_agent_config(name: str, *, model: Any, output: Any, options: AgentOptions) -> AgentConfig:
    """Check an agent's settings and return its configuration."""
    refuse_unknown(options, AgentOptions, "agent")
    if isinstance(model, str):
        make_model(model)  # It raises for a name of an unknown provider.
    elif isinstance(model, type) or not callable(getattr(model, "reply", None)):
        raise InvalidValue("model must be a name such as openai:gpt-5-mini, or a model with a method reply.")
    system, history, tokens = options.get("system"), options.get("history", True), options.get("tokens")
    limits, budget_usd, in_request = options.get("limits"), options.get("budget_usd"), options.get("options")
    if system is not None and not isinstance(system, str):
        raise InvalidValue(f"system must be text, not {type(system).__name__}.")
    if not isinstance(history, bool):
        raise InvalidValue(f"history is whether the agent may read its own past: True or False, not {history!r:.40}.")
    if tokens is not None and not is_number(tokens, least=0):
        raise InvalidValue(f"tokens must be a whole number, 0 or more, not {tokens!r:.40}.")
    check_bounds(options.get("budget"), options.get("loops", LOOPS))
    if budget_usd is not None:
        to_nano_usd(budget_usd, "budget_usd")
    if in_request is not None and not isinstance(in_request, Mapping):
        raise InvalidValue("options must be a mapping of what goes into every request, such as {'temperature': 0}.")
    tools = check_tools(options.get("tools", ()))
    own = [one for one in tools if isinstance(one, Tool)]
    made: dict[str, Any] = {
        **options,
        "name": check_id(name, "name"),
        "tools": tools,
        "local": LocalTools([*history_tools().values(), *own] if history else own),
        "has_servers": len(own) < len(tools),
        "output": ReplyOutput(output),
        "limits": None if limits is None else check_limits(limits),
        "options": dict(in_request or {}),
    }
    return AgentConfig(model=model, **made)


class AsyncAgent(Generic[T]):
    """An agent for asyncio, created by `hf.agent(…)`; it serves any number of conversations at a time."""

    def __init__(self, hf: AsyncHoldfast, makeup: AgentConfig) -> None:
        self._hf, self._made = hf, makeup
        self._env, self._threads = hf.env, hf._threads
        self._crew = get_agent_tasks(hf)

    @property
    def name(self) -> str:
        """The agent's name, under which it resumes its turns."""
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
        """Send a message and return the reply. Without a message, continue the live turn.

        With a key it is safe to send again, from any process: completed work is not repeated. If the call is cancelled
        while it waits behind other turns, nothing is written; once its turn has begun, the turn goes on, and only
        `stop` ends it.
        """
        return await self._crew.await_outcome(self._start_send(session, thread, message, key, if_busy, wait))

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
        """Send like `send`, and yield every event on the way. Closing the iterator does not stop the work.

        The stream begins with the message; without one, or with a key that was used before, with the turn that it
        continues. It ends when the turn is done, stopped or waits. `tail` continues after the last event that has an
        id.
        """
        messages, key = read_turn_messages(message), None if key is None else check_key(key)
        hub, place = self._crew.hub, self._place(session, thread)
        tail, known = await self._threads.run(self._prepare_tail, place[1], messages, key, if_busy)
        begun = TurnListener(hub, place)
        sending = self._start_send(session, thread, messages or None, key, if_busy, wait, begun)
        running = sending.task
        assert running is not None, "it has just begun"
        try:
            if not known:  # Events before its own turn belong to other turns.
                await asyncio.wait((begun.turn, running), return_when=asyncio.FIRST_COMPLETED)
                if begun.turn.done():
                    await self._threads.run(tail.follow_turn, begun.turn.result())
            if known or begun.turn.done():
                ear = begun.ear or hub.listen(place)
                async for event in follow(hub, self._threads, tail, place, ear, running):
                    yield event
            await self._crew.await_outcome(sending)
        finally:
            begun.stop_listening()
            sending.withdraw()

    async def tail(self, session: str, after: str | None = None, *, thread: str = "main") -> AsyncIterator[AgentEvent]:
        """Yield the events of a conversation: see Agent.tail."""
        hub, place = self._crew.hub, self._place(session, thread)
        tail = await self._threads.run(lambda: Tail(self._env, turns.turns_place(place[1])).seek(after))
        async for event in follow(hub, self._threads, tail, place, hub.listen(place, again=after is not None)):
            yield event

    async def stop(self, session: str, reason: str = turns.STOPPED, *, thread: str = "main") -> bool:
        """Stop the live turn; text that was shown is kept. Returns False if there is none."""
        found = Session(self._env, check_id(session, "session"), thread)
        return await self._threads.run(found.stop, reason)

    def recovering(
        self,
        *,
        every: float = 1.0,
        at_once: int = 16,
        tenants: str | Sequence[str] | None = None,
        on_error: OnError | None = None,
    ) -> AbstractAsyncContextManager[Recovery]:
        """Resume, in the background, turns left by dead processes, turns with an answer, and turns woken by a timer.

        Covers the agent's own tenant; with `tenants="all"` every tenant, or those with the given names. Failures go to
        `on_error`; without it there is one warning for each turn and kind of error. Failed turns are retried; those
        that an operator has to mend (an unknown model, a key, a quota) once the model or its credentials have changed.
        """

        def take_up(tenant: str, session: str, thread: str) -> Awaitable[Reply[T]]:
            own = tenant == self._env.tenant
            return (self if own else self.tenant(tenant))._resume(session, thread)

        return Recovery(
            self._hf,
            self._made.name,
            take_up,
            every=every,
            at_once=at_once,
            tenants=tenants,
            on_error=on_error,
            identify=lambda: self._crew.identify_model(self._made.model),
        )

    def tenant(self, name: str) -> AsyncAgent[T]:
        """Return the same agent for the conversations of one tenant only."""
        return AsyncAgent(self._hf.tenant(name), self._made)

    def as_user(self, id: str) -> AsyncAgent[T]:
        """Return the same agent acting for a user, who owns what is said in the turns that it begins."""
        return AsyncAgent(self._hf.as_user(id), self._made)

    # Internals

    def _start_send(
        self,
        session: str,
        thread: str,
        message: Any,
        key: str | None,
        if_busy: str,
        wait: float | None,
        begun: TurnListener | None = None,
    ) -> AgentSend[T]:
        """Start the send as a task of its own: it goes on without listeners, and a shutdown knows of it."""
        made = self._made
        terms = TurnTerms(
            messages=tuple(read_turn_messages(message)),
            key=None if key is None else check_key(key),
            if_busy=if_busy,
            wait=wait,
            tokens=made.tokens,
            limits=made.limits,
            agent=made.name,
            loops=made.loops,
            cost=None if made.budget_usd is None else to_nano_usd(made.budget_usd, "budget_usd"),
        )
        sending: AgentSend[T] = AgentSend(self._env, self._crew, made, terms, SessionId(session), thread, begun)
        with enter_work(*wait_graph.caller_turns(current_caller(self._env, asyncio.current_task()))):
            sending.task = self._crew.start(sending.run())
        return sending

    async def _resume(self, session: str, thread: str) -> Reply[T]:
        wait = self._env.settings.lease_ms / 1000 * 1.5
        return await self._crew.await_outcome(self._start_send(session, thread, None, None, "queue", wait))

    def _place(self, session: str, thread: str) -> tuple[str, str]:
        return self._env.tenant, streams_of(check_id(session, "session"), thread)[1]

    def _prepare_tail(self, thread: str, messages: list[Message], key: str | None, if_busy: str) -> tuple[Tail, bool]:
        """Return a tail at its starting point, and whether the turn to listen to is known before it begins."""
        place = turns.turns_place(thread)
        tail = Tail(self._env, place)
        known = turns.find_turn_by_key(self._env, place, TurnTerms(messages=tuple(messages), key=key))
        if known is not None:
            tail.follow_turn(known, again=True)
        elif not messages:
            tail.seek(None)
        return tail, known is not None or not messages or if_busy == "join"

    def __repr__(self) -> str:
        return f"AsyncAgent({self._made.name!r})"


class Agent(Generic[T]):
    """An agent, created by `hf.agent(…)`; it serves any number of conversations, from any number of threads."""

    def __init__(self, hf: Holdfast, makeup: AgentConfig) -> None:
        self._hf, self._made = hf, makeup

    @property
    def name(self) -> str:
        """The agent's name, under which it resumes its turns."""
        return self._made.name

    def _async_agent(self, loop: LoopThread) -> AsyncAgent[T]:
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
        """Send a message and return the reply. Without a message, continue the live turn.

        With a key it is safe to send again, from any process: completed work is not repeated.
        """
        loop = get_loop_thread(self._hf)

        async def sent() -> Reply[T]:
            agent = self._async_agent(loop)
            sending = agent._start_send(session, thread, message, key, if_busy, wait)
            # Only this thread knows of the send, so an interrupt stops driving the turn instead of continuing it
            # unseen.
            return await agent._crew.await_outcome(sending, goes_on=False)

        with enter_work(*wait_graph.caller_turns(current_caller(self._hf.env))):
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
        """Send like `send`, and yield every event on the way. Closing the iterator does not stop the work."""
        loop = get_loop_thread(self._hf)
        return _iterate_events(
            self._hf.env,
            loop,
            lambda: self._async_agent(loop).stream(
                session, message, key=key, thread=thread, if_busy=if_busy, wait=wait
            ),
        )

    def tail(self, session: str, after: str | None = None, *, thread: str = "main") -> Iterator[AgentEvent]:
        """Yield the events of a conversation: after an event, or from the start of the live turn.

        Ends when no turn is live, or the turn waits for a person. Another process than the one that works on the turn
        gets the events with an id: no deltas, no progress.
        """
        loop = get_loop_thread(self._hf)
        return _iterate_events(self._hf.env, loop, lambda: self._async_agent(loop).tail(session, after, thread=thread))

    def stop(self, session: str, reason: str = turns.STOPPED, *, thread: str = "main") -> bool:
        """Stop the live turn; text that was shown is kept. Returns False if there is none."""
        return Session(self._hf.env, check_id(session, "session"), thread).stop(reason)

    @contextmanager
    def recovering(
        self,
        *,
        every: float = 1.0,
        at_once: int = 16,
        tenants: str | Sequence[str] | None = None,
        on_error: OnError | None = None,
    ) -> Iterator[Recovery]:
        """Resume, in the background, turns left by dead processes, turns with an answer, and turns woken by a timer.

        Covers the agent's own tenant; with `tenants="all"` every tenant, or those with the given names. Failures go to
        `on_error`; without it there is one warning for each turn and kind of error. Failed turns are retried; those
        that an operator has to mend (an unknown model, a key, a quota) once the model or its credentials have changed.
        """
        loop = get_loop_thread(self._hf)

        async def begun() -> Recovery:
            made = self._async_agent(loop).recovering(every=every, at_once=at_once, tenants=tenants, on_error=on_error)
            return await made.__aenter__()

        at_work = loop.run(begun())
        try:
            yield at_work
        finally:
            if loop.alive:
                loop.run(at_work.__aexit__(None, None, None))

    def tenant(self, name: str) -> Agent[T]:
        """Return the same agent for the conversations of one tenant only."""
        return Agent(self._hf.tenant(name), self._made)

    def as_user(self, id: str) -> Agent[T]:
        """Return the same agent acting for a user, who owns what is said in the turns that it begins."""
        return Agent(self._hf.as_user(id), self._made)

    def __repr__(self) -> str:
        return f"Agent({self._made.name!r})"


def _iterate_events(env: Env, loop: LoopThread, make: Callable[[], AsyncIterator[AgentEvent]]) -> Iterator[AgentEvent]:
    """Iterate over an async iterator from a thread."""
    made: list[Any] = []

    async def following() -> AgentEvent | None:
        if not made:
            made.append(make())
        return await anext(made[0], None)

    async def closed() -> None:
        if made:
            await made[0].aclose()

    def drawn() -> AgentEvent | None:
        with enter_work(*wait_graph.caller_turns(current_caller(env))):
            return loop.run(following())

    try:
        while (event := drawn()) is not None:
            yield event
    finally:
        with suppress(Closed):
            loop.run(closed())

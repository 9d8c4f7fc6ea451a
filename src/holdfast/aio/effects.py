"""`hf.effects` for asyncio: operators and sinks may be coroutine functions, awaited on the loop.

A plain operator runs in a thread, together with the append of its effects, in one crossing; cancelling the await does
not stop it. An async operator is awaited here, between two crossings that find out whether it has to run and append its
effects. It holds no thread meanwhile, and writes nothing if cancelled. Sinks are awaited by the dispatching thread.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol

from holdfast.aio.callbacks import awaited, crossing
from holdfast.aio.executor import Threads
from holdfast.aio.frame import is_async
from holdfast.aio.session import paged
from holdfast.aio.state import AsyncStateReader, AsyncStateStore
from holdfast.client.effects import Delivers, Effects, Middleware
from holdfast.client.state import StateReader, StateStore
from holdfast.core.values import plain
from holdfast.errors import InvalidValue, Refused, Unavailable
from holdfast.flow.effects.operators import name_of
from holdfast.flow.effects.sinks import is_awaitable
from holdfast.records.effects import DeclaredEffect, Dispatched, EffectInfo, Operated
from holdfast.records.scope import Address

OPERATORS = "holdfast-operators"
OUTBOX = "holdfast-outbox"


class AsyncDelivers(Protocol):
    """A sink object whose `deliver` is awaited."""

    async def deliver(self, effect: DeclaredEffect) -> Any: ...


AnyOperator = Callable[[Any, StateReader], Any] | Callable[[Any, AsyncStateReader], Awaitable[Any]]
AnySink = Callable[[DeclaredEffect], Any] | Delivers | AsyncDelivers | StateStore | AsyncStateStore


class _HasToRun(Exception):
    """An async operator has not run under its key yet; `view` is what it may read."""

    def __init__(self, view: StateReader) -> None:
        self.view = view


class AsyncEffects:
    """The declared effects of one tenant, for asyncio."""

    def __init__(self, effects: Effects, threads: Threads) -> None:
        self._effects = effects
        self._threads = threads

    async def operate(
        self,
        operator: AnyOperator,
        input: Any = None,
        *,
        scope: Address | None = None,
        key: str | None = None,
        name: str | None = None,
    ) -> Operated:
        """See Effects.operate. An async operator is given a view that is awaited, an AsyncStateReader."""
        given: Any = operator

        async def run(operator: Any, input: Any = input) -> Operated:
            def work() -> Operated:
                called = name_of(given, name, key)  # The operator's name, whichever function stands in for it.
                return self._effects.operate(operator, input, scope=scope, key=key, name=called)

            return await crossing(self._threads, OPERATORS, work)

        if not callable(given) or not is_async(given):
            return await run(_returning(given) if callable(given) else given)
        try:
            return await run(_asking)
        except _HasToRun as asked:
            view = AsyncStateReader(asked.view, self._threads)
        before = _kept(input)
        answer = await given(input, view)
        return await run(lambda _, __: answer, before)

    def add_sink(self, name: str, sink: AnySink, *, when_dead: str = "stop") -> Callable[[], None]:
        """See Effects.add_sink. An async sink is awaited on the dispatcher's loop."""
        given: Any = sink._store if isinstance(sink, AsyncStateStore) else sink
        if not isinstance(given, StateStore | type) and callable(getattr(given, "deliver", given)):
            given = SinkOnALoop(given)
        return self._effects.add_sink(name, given, when_dead=when_dead)

    def middleware(self, function: Middleware) -> Callable[[], None]:
        """See Effects.middleware. The function is called in threads."""
        return self._effects.middleware(function)

    async def dispatch(self, *, sink: str | None = None, limit: int | None = None) -> Dispatched:
        """See Effects.dispatch. Once begun, it goes on even if the await is cancelled."""
        return await crossing(self._threads, OUTBOX, lambda: self._effects.dispatch(sink=sink, limit=limit))

    def pending(self) -> AsyncIterator[EffectInfo]:
        """See Effects.pending. One crossing per page."""
        return paged(self._threads, self._effects.pending())

    def dead(self) -> AsyncIterator[EffectInfo]:
        """See Effects.dead. One crossing per page."""
        return paged(self._threads, self._effects.dead())

    async def get(self, effect: str) -> EffectInfo:
        """See Effects.get."""
        return await self._threads.run(self._effects.get, effect)

    async def revive(self, effect: str) -> None:
        """See Effects.revive."""
        await self._threads.run(self._effects.revive, effect)

    async def discard(self, effect: str, *, reason: str | None = None) -> None:
        """See Effects.discard."""
        await self._threads.run(self._effects.discard, effect, reason=reason)

    async def approve(self, effect: str) -> None:
        """See Effects.approve."""
        await self._threads.run(self._effects.approve, effect)

    async def reject(self, effect: str, *, reason: str | None = None) -> None:
        """See Effects.reject."""
        await self._threads.run(self._effects.reject, effect, reason=reason)


def _kept(input: Any) -> Any:
    """Copy the input, since an operator may change the one that it is given."""
    try:
        return plain(input)
    except InvalidValue:
        return input


def _asking(input: Any, view: StateReader) -> Any:
    raise _HasToRun(view)


def _returning(operator: Callable[..., Any]) -> Callable[[Any, StateReader], Any]:
    """Wrap a plain operator, which may turn out to return an awaitable, as a lambda around an async function does."""

    def run(input: Any, view: StateReader) -> Any:
        made = operator(input, view)
        if not inspect.isawaitable(made):
            return made
        return awaited(made, what="an operator", nowhere=Refused("An async operator is run by the asyncio client."))

    return run


class SinkOnALoop:
    """A sink, sync or async, as a synchronous one."""

    def __init__(self, sink: Any) -> None:
        self._deliver: Callable[[DeclaredEffect], Any] = getattr(sink, "deliver", sink)

    def deliver(self, effect: DeclaredEffect) -> Any:
        """Deliver an effect; return once the sink has taken it."""
        made = self._deliver(effect)
        if not is_awaitable(made):
            return made
        # Not refused, which would be final: the next dispatcher may have a loop.
        nowhere = Unavailable("An async sink is awaited by the asyncio client only: dispatch with that.")
        return awaited(made, what="a sink", nowhere=nowhere)

"""`hf.effects` for asyncio: operators and sinks may be coroutine functions, awaited on the loop.

A plain operator runs in a thread, together with the append of its effects, in one crossing; cancelling the await does
not stop it. An async operator is awaited here, between two crossings that find out whether it has to run and append its
effects. It holds no thread meanwhile, and writes nothing if cancelled. Sinks are awaited by the dispatching thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from holdfast.aio.callbacks import await_on_loop, run_with_loop
from holdfast.aio.executor import ThreadPools, make_async, make_pages
from holdfast.aio.frame import is_async
from holdfast.aio.state import AsyncStateReader, AsyncStateStore
from holdfast.client.effects import Effects, Middleware, SinkObject
from holdfast.client.state import StateReader, StateStore
from holdfast.core.values import to_plain
from holdfast.errors import InvalidValue, Refused, Unavailable
from holdfast.flow.effects.operators import operator_name
from holdfast.records.effects import DeclaredEffect, DispatchReport, OperatorResult
from holdfast.records.scope import Address

OPERATOR_POOL = "holdfast-operators"
OUTBOX_POOL = "holdfast-outbox"


class AsyncSinkObject(Protocol):
    """A sink object whose `deliver` is awaited."""

    async def deliver(self, effect: DeclaredEffect) -> Any: ...


AnyOperator = Callable[[Any, StateReader], Any] | Callable[[Any, AsyncStateReader], Awaitable[Any]]
AnySink = Callable[[DeclaredEffect], Any] | SinkObject | AsyncSinkObject | StateStore | AsyncStateStore


class _OperatorMustRun(Exception):
    """An async operator has not run under its key yet; `view` is what it may read."""

    def __init__(self, view: StateReader) -> None:
        self.view = view


class AsyncEffects:
    """The declared effects of one tenant, for asyncio."""

    def __init__(self, effects: Effects, threads: ThreadPools) -> None:
        self._sync = effects
        self._threads = threads

    async def operate(
        self,
        operator: AnyOperator,
        input: Any = None,
        *,
        scope: Address | None = None,
        key: str | None = None,
        name: str | None = None,
    ) -> OperatorResult:
        """See Effects.operate. An async operator is given a view that is awaited, an AsyncStateReader."""
        given: Any = operator

        async def run(operator: Any, input: Any = input) -> OperatorResult:
            def work() -> OperatorResult:
                called = operator_name(given, name, key)  # The operator's name, whichever function stands in for it.
                return self._sync.operate(operator, input, scope=scope, key=key, name=called)

            return await run_with_loop(self._threads, OPERATOR_POOL, work)

        if not callable(given) or not is_async(given):
            return await run(_make_sync_operator(given) if callable(given) else given)
        try:
            return await run(_require_run)
        except _OperatorMustRun as asked:
            view = AsyncStateReader(asked.view, self._threads)
        before = _copy_input(input)
        answer = await given(input, view)
        return await run(lambda _, __: answer, before)

    def add_sink(self, name: str, sink: AnySink, *, when_dead: str = "stop") -> Callable[[], None]:
        """See Effects.add_sink. An async sink is awaited on the dispatcher's loop."""
        given: Any = sink.store if isinstance(sink, AsyncStateStore) else sink
        if not isinstance(given, StateStore | type) and callable(getattr(given, "deliver", given)):
            given = LoopSink(given)
        return self._sync.add_sink(name, given, when_dead=when_dead)

    def add_middleware(self, function: Middleware) -> Callable[[], None]:
        """See Effects.add_middleware. The function is called in threads."""
        return self._sync.add_middleware(function)

    async def dispatch(self, *, sink: str | None = None, limit: int | None = None) -> DispatchReport:
        """See Effects.dispatch. Once begun, it goes on even if the await is cancelled."""
        return await run_with_loop(self._threads, OUTBOX_POOL, lambda: self._sync.dispatch(sink=sink, limit=limit))

    pending = make_pages(Effects.pending)
    dead = make_pages(Effects.dead)
    get = make_async(Effects.get)
    revive = make_async(Effects.revive)
    discard = make_async(Effects.discard)
    approve = make_async(Effects.approve)
    reject = make_async(Effects.reject)


def _copy_input(input: Any) -> Any:
    """Copy the input, since an operator may change the one that it is given."""
    try:
        return to_plain(input)
    except InvalidValue:
        return input


def _require_run(input: Any, view: StateReader) -> Any:
    raise _OperatorMustRun(view)


def _make_sync_operator(operator: Callable[..., Any]) -> Callable[[Any, StateReader], Any]:
    """Wrap a plain operator, which may turn out to return an awaitable, as a lambda around an async function does."""

    def run(input: Any, view: StateReader) -> Any:
        nowhere = Refused("An async operator is run by the asyncio client.")
        return await_on_loop(operator(input, view), what="an operator", nowhere=nowhere)

    return run


class LoopSink:
    """A sink, sync or async, as a synchronous one."""

    def __init__(self, sink: Any) -> None:
        self._deliver: Callable[[DeclaredEffect], Any] = getattr(sink, "deliver", sink)

    def deliver(self, effect: DeclaredEffect) -> Any:
        """Deliver an effect; return once the sink has taken it."""
        # Not refused, which would be final: the next dispatcher may have a loop.
        nowhere = Unavailable("An async sink is awaited by the asyncio client only: dispatch with that.")
        return await_on_loop(self._deliver(effect), what="a sink", nowhere=nowhere)

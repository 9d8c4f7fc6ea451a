"""`hf.effects`: operators, sinks, the outbox, and effects that wait. Each method is a line that names a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from holdfast.client.state import StateReader, StateStore
from holdfast.flow.effects import operators, outbox, settle, sinks
from holdfast.flow.state import journal_store as state
from holdfast.ports import Acting, Ports, Sink
from holdfast.records.effects import AnyEffect, DeclaredEffect, Dispatched, EffectInfo, Operated
from holdfast.records.scope import Address

Middleware = Callable[[AnyEffect], AnyEffect | None]


class Delivers(Protocol):
    """Something that takes effects. It gives an answer to keep, or None, and raises if it could not take one."""

    def deliver(self, effect: DeclaredEffect) -> Any: ...


class Effects:
    """The declared effects of one tenant."""

    def __init__(self, ports: Ports, acting: Acting) -> None:
        self._ports = ports
        self._acting = acting

    @property
    def _whose(self) -> str | None:
        """What is registered through a tenant's view is that tenant's; through the client itself, everybody's."""
        return None if self._acting.whole else self._acting.tenant

    def operate(
        self,
        operator: Callable[[Any, StateReader], Any],
        input: Any = None,
        *,
        scope: Address | None = None,
        key: str | None = None,
        name: str | None = None,
    ) -> Operated:
        """Run an operator, a function of (input, view), and write its output and effects in one append.

        The view reads state and cannot write it. `scope` is where the run is journaled, `operator/<name>` unless
        another is given; `name` is the function's unless another is given. With a `key` one run is recorded, and
        its output is given from then on; the same key with another input is refused.
        """
        view = StateReader(state.storage(self._ports, self._acting))
        return operators.operate(self._ports, self._acting, operator, input, view, scope=scope, key=key, name=name)

    def add_sink(
        self,
        name: str,
        sink: Callable[[DeclaredEffect], Any] | Delivers | StateStore,
        *,
        when_dead: str = "stop",
    ) -> Callable[[], None]:
        """Let effects for this name go to a function, something with `deliver`, or a store; returns what undoes it.

        A store serves the tenant of this client alone, and remembers what it took; other sinks that are added to the
        client itself serve every tenant. A dead effect stops its lane until somebody looks at it; with
        `when_dead="go_on"` the others go on without it.
        """
        if isinstance(sink, StateStore):
            # A store has no tenants of its own, so it is the sink of one.
            made = sinks.made(sinks.of_store(sink._storage), when_dead)
            return self._add(self._acting.tenant, name, made)
        return self._add(self._whose, name, sinks.made(sink, when_dead))

    def _add(self, tenant: str | None, name: str, sink: Sink) -> Callable[[], None]:
        return sinks.sinks_of(self._ports).add(tenant, name, sink)

    def middleware(self, function: Middleware) -> Callable[[], None]:
        """Let every declared effect pass through a function: it gives an effect, or None to suppress it.

        Returns what undoes it.
        """
        return sinks.sinks_of(self._ports).add_middleware(self._whose, function)

    def dispatch(self, *, sink: str | None = None, limit: int | None = None) -> Dispatched:
        """Give what is due to its sinks, in order: all of it, of one sink, or so many effects at most.

        Call it now and then, from as many processes as you like. What is declared meanwhile waits for the next call.
        """
        return outbox.dispatch(self._ports, self._acting, sink=sink, limit=limit)

    def pending(self) -> Iterator[EffectInfo]:
        """Effects that wait for their turn, their next attempt, their sink or their approval, oldest first."""
        return settle.waiting(self._ports, self._acting, lambda row: row["status"] != "dead")

    def dead(self) -> Iterator[EffectInfo]:
        """Effects that are not tried any more, oldest first, with the reason."""
        return settle.waiting(self._ports, self._acting, lambda row: row["status"] == "dead")

    def get(self, effect: str) -> EffectInfo:
        """One effect that was declared for a sink, with what came of it so far; EffectNotFound if there is none."""
        return settle.info(self._ports, self._acting, effect)

    def revive(self, effect: str) -> None:
        """Let an effect that is dead, deferred or between attempts be tried at the next dispatch."""
        settle.revive(self._ports, self._acting, effect)

    def discard(self, effect: str, *, reason: str | None = None) -> None:
        """Take an effect out for good, whatever it waits for; its lane goes on."""
        settle.discard(self._ports, self._acting, effect, reason)

    def approve(self, effect: str) -> None:
        """Let an effect go that was declared with `needs_approval`."""
        settle.approve(self._ports, self._acting, effect)

    def reject(self, effect: str, *, reason: str | None = None) -> None:
        """Take an effect out that waits for approval."""
        settle.discard(self._ports, self._acting, effect, reason, only="approval")

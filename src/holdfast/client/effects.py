"""`hf.effects`: operators, sinks, the outbox and pending effects. Each method calls a flow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from holdfast.client.state import StateReader, StateStore
from holdfast.flow.effects import operators, outbox, settle, sinks
from holdfast.flow.state import journal_store as state
from holdfast.ports import Env, Sink
from holdfast.records.effects import AnyEffect, DeclaredEffect, DispatchReport, EffectInfo, OperatorResult
from holdfast.records.scope import Address

Middleware = Callable[[AnyEffect], AnyEffect | None]


class SinkObject(Protocol):
    """A sink object. `deliver` returns an answer to keep, or None, and raises if it could not deliver."""

    def deliver(self, effect: DeclaredEffect) -> Any: ...


class Effects:
    """The declared effects of one tenant."""

    def __init__(self, env: Env) -> None:
        self.env = env

    @property
    def _sink_tenant(self) -> str | None:
        """The tenant of what is registered here: a tenant's view serves that tenant, the client itself all of them."""
        return None if self.env.whole else self.env.tenant

    def operate(
        self,
        operator: Callable[[Any, StateReader], Any],
        input: Any = None,
        *,
        scope: Address | None = None,
        key: str | None = None,
        name: str | None = None,
    ) -> OperatorResult:
        """Run an operator, a function of (input, view), and write its output and effects in one append.

        The view reads state and cannot write it. The run is journaled in `scope`, by default `operator/<name>`; `name`
        is by default the function's. With a `key` one run is recorded, and its output is returned from then on; the
        same key with another input is refused.
        """
        view = StateReader(state.journal_storage(self.env))
        return operators.run_operator(self.env, operator, input, view, scope=scope, key=key, name=name)

    def add_sink(
        self, name: str, sink: Callable[[DeclaredEffect], Any] | SinkObject | StateStore, *, when_dead: str = "stop"
    ) -> Callable[[], None]:
        """Add a sink for this name: a function, an object with `deliver`, or a store. Returns a function to undo it.

        A store serves only the tenant of this client, and remembers what it took; other sinks added to the client
        itself serve every tenant. A dead effect stops its lane until it is revived or discarded; with
        `when_dead="go_on"` the lane continues without it.
        """
        if isinstance(sink, StateStore):
            # A store has no tenants of its own, so it is the sink of one.
            made = sinks.make_sink(sinks.make_store_sink(sink.storage), when_dead)
            return self._register_sink(self.env.tenant, name, made)
        return self._register_sink(self._sink_tenant, name, sinks.make_sink(sink, when_dead))

    def _register_sink(self, tenant: str | None, name: str, sink: Sink) -> Callable[[], None]:
        return self.env.sinks.add(tenant, name, sink)

    def add_middleware(self, function: Middleware) -> Callable[[], None]:
        """Pass every declared effect through a function that returns an effect, or None to suppress it.

        Returns a function that removes it.
        """
        return self.env.sinks.add_middleware(self._sink_tenant, function)

    def dispatch(self, *, sink: str | None = None, limit: int | None = None) -> DispatchReport:
        """Deliver due effects to their sinks, in order: all, those of one sink, or at most `limit`.

        Call it periodically, from as many processes as you like. Effects declared meanwhile wait for the next call.
        """
        return outbox.dispatch_effects(self.env, sink=sink, limit=limit)

    def pending(self) -> Iterator[EffectInfo]:
        """Iterate over effects that wait for their turn, next attempt, sink or approval, in order of their ids."""
        return settle.read_unsettled_effects(self.env, lambda row: row["status"] != "dead")

    def dead(self) -> Iterator[EffectInfo]:
        """Iterate over effects that are no longer tried, in order of their ids, with the reason."""
        return settle.read_unsettled_effects(self.env, lambda row: row["status"] == "dead")

    def get(self, effect: str) -> EffectInfo:
        """Return one effect declared for a sink, with its outcome so far; raise EffectNotFound if there is none."""
        return settle.read_effect(self.env, effect)

    def revive(self, effect: str) -> None:
        """Retry an effect that is dead, deferred or between attempts at the next dispatch."""
        settle.revive_effect(self.env, effect)

    def discard(self, effect: str, *, reason: str | None = None) -> None:
        """Remove an effect for good, whatever it waits for; its lane continues."""
        settle.discard_effect(self.env, effect, reason)

    def approve(self, effect: str) -> None:
        """Approve an effect that was declared with `needs_approval`."""
        settle.revive_effect(self.env, effect, approved=True)

    def reject(self, effect: str, *, reason: str | None = None) -> None:
        """Remove an effect that waits for approval."""
        settle.discard_effect(self.env, effect, reason, only="approval")

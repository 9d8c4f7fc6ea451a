"""Sinks: receivers of effects that are not applied at once, registered by name for one tenant or for all.

A sink receives the effect's id and may be called twice with the same one. A store as a sink applies each id once: it
remembers the ids it took for longer than an effect stays unsettled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.core.effects import check_sink, effect_from_payload
from holdfast.core.journal.codec import decode, encode
from holdfast.core.values import is_async
from holdfast.errors import EffectRefused, InvalidValue, VersionConflict
from holdfast.flow.effects.apply import apply_effect
from holdfast.flow.state.store import Storage, live_or_none
from holdfast.ports import Env, Sink
from holdfast.records import effects
from holdfast.records.effects import WHEN_DEAD, DeclaredEffect
from holdfast.records.entries import StoredEntry
from holdfast.records.scope import Scope

Middleware = Callable[[Any], Any]
TAKEN_SCOPE: Final = Scope.custom("holdfast", "effects").text
"""The scope in which a store keeps the ids of the effects it took, each with its result."""
TAKEN_RETENTION_MS: Final = 30 * 24 * 3_600_000


class SinkRegistry:
    """The sinks and the middleware of one client, shared by its views."""

    def __init__(self) -> None:
        self._sinks: dict[tuple[str | None, str], Sink] = {}
        self._middleware: list[tuple[str | None, Middleware]] = []

    def add(self, tenant: str | None, name: str, sink: Sink) -> Callable[[], None]:
        """Register a sink for one tenant, or for all; return a function that undoes it."""
        place = (tenant, check_sink(name))
        if place in self._sinks:
            raise InvalidValue(f"There is a sink {name!r} already. Take it away first, or choose another name.")
        self._sinks[place] = sink

        def undo() -> None:
            if self._sinks.get(place) is sink:
                del self._sinks[place]

        return undo

    def find(self, tenant: str, name: str) -> Sink | None:
        """Return the tenant's own sink of that name, else the shared one."""
        return self._sinks.get((tenant, name)) or self._sinks.get((None, name))

    def add_middleware(self, tenant: str | None, function: Middleware) -> Callable[[], None]:
        """Register a function that every effect passes through; return a function that undoes it."""
        if not callable(function) or is_async(function):
            raise InvalidValue("Middleware must be a function that gives an effect, or None, when it returns.")
        entry = (tenant, function)
        self._middleware.append(entry)

        def undo() -> None:
            if entry in self._middleware:
                self._middleware.remove(entry)

        return undo

    def middleware(self, tenant: str) -> list[Middleware]:
        """Return the middleware for a tenant's effects, in order."""
        return [function for owner, function in list(self._middleware) if owner in (None, tenant)]


def make_sink(sink: object, when_dead: str) -> Sink:
    """Make a sink from a function, or from an object with a `deliver` method."""
    deliver = getattr(sink, "deliver", sink)
    if not callable(deliver) or isinstance(sink, type):
        raise InvalidValue("A sink must be a function that takes an effect, or have a method deliver(effect).")
    if is_async(deliver):
        raise InvalidValue(
            "A sink that must be awaited works with holdfast.open_async. Here, use one that is done when it returns."
        )
    if when_dead not in WHEN_DEAD:
        raise InvalidValue(f"when_dead must be one of {', '.join(WHEN_DEAD)}, not {when_dead!r:.40}.")
    return Sink(deliver=deliver, when_dead=when_dead)


def make_store_sink(storage: Storage) -> Callable[[DeclaredEffect], Mapping[str, Any]]:
    """Make a sink that applies state effects to a store, each once, whatever others write meanwhile.

    The id is recorded right after the change. In between, the entry itself names the newest effects that wrote it.
    """

    def deliver(effect: DeclaredEffect) -> Mapping[str, Any]:
        wanted: Any = effect_from_payload(effect.kind, effect.payload)
        if not isinstance(wanted, effects.StateEffect):
            raise EffectRefused(f"A store takes write, delete, link and unlink, not {effect.kind}.")
        known = live_or_none(storage.store.get(TAKEN_SCOPE, effect.id), storage.clock.now_ms())
        if known is not None:
            taken: Mapping[str, Any] = decode(known.value)
            return taken
        answer = _apply_to_store(storage, wanted, effect.id)
        _record_taken(storage, effect.id, answer)
        return answer

    return deliver


def _apply_to_store(storage: Storage, wanted: Any, id: str) -> Mapping[str, Any]:
    if isinstance(wanted, effects.DeleteState) and storage.store.get(str(wanted.scope), wanted.key) is None:
        return {"deleted": False}  # Perhaps deleted by this very effect in an earlier attempt.
    try:
        return apply_effect(storage, wanted, id)
    except VersionConflict as error:
        raise EffectRefused(str(error)) from error  # The expected version will not come back.


def _record_taken(storage: Storage, id: str, answer: Mapping[str, Any]) -> None:
    # Straight to the store: ids must not be searchable.
    now = storage.clock.now_ms()
    storage.store.put(
        TAKEN_SCOPE, id, StoredEntry(value=encode(answer), written_at=now, expires_at=now + TAKEN_RETENTION_MS)
    )


def effect_key(id: str) -> str:
    """Return the key under which an effect happens once, in whichever stream."""
    return f"effect/{id}"


def settlement_key(id: str) -> str:
    """Return the key under which an effect is settled for good, in the stream that declared it."""
    return f"effect/{id}/settled"


def client_sinks(env: Env) -> SinkRegistry:
    """Return the sinks of a client."""
    assert env.sinks is not None, "a client has sinks"
    return env.sinks

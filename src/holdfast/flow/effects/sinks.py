"""Sinks: receivers of effects that are not applied at once, registered by name for one tenant or for all.

A sink receives the effect's id and may be called twice with the same one. A store as a sink applies each id once: it
remembers the ids it took for longer than an effect stays unsettled. The built-in sinks for frames, questions, signals
and state apply a repeated effect once as well, since they write under a key made of the effect's id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.core.effects import SIGNAL_TYPE, check_sink, effect_from_payload, subject_of
from holdfast.core.journal.codec import decode, encode
from holdfast.core.values import is_async, to_plain
from holdfast.errors import EffectRefused, InvalidValue, VersionConflict
from holdfast.flow.effects.apply import Drafts, EffectPlan, apply_effect
from holdfast.flow.frames import lifecycle, questions
from holdfast.flow.journal.append import States, StreamWrite, append_events, decide_and_append
from holdfast.flow.state.journal_store import TRIES
from holdfast.flow.state.store import Storage, live_or_none
from holdfast.ports import Env, Sink
from holdfast.records import effects
from holdfast.records.effects import BUILT_IN_SINKS, EFFECT_KINDS, WHEN_DEAD, DeclaredEffect, Effect
from holdfast.records.entries import StoredEntry
from holdfast.records.events.envelope import AppContent, AppFacts, Draft
from holdfast.records.events.frames import GoalContent, OutcomeContent, QuestionContent
from holdfast.records.ids import own_key
from holdfast.records.scope import MAIN_THREAD, Scope

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
        if isinstance(wanted, effects.DeleteState) and storage.store.get(str(wanted.scope), wanted.key) is None:
            answer: Mapping[str, Any] = {"deleted": False}  # Perhaps by this very effect in an earlier attempt.
        else:
            try:
                answer = apply_effect(storage, wanted, effect.id)
            except VersionConflict as error:
                raise EffectRefused(str(error)) from error  # The expected version will not come back.
        _record_taken(storage, effect.id, answer)
        return answer

    return deliver


def _record_taken(storage: Storage, id: str, answer: Mapping[str, Any]) -> None:
    # Straight to the store: ids must not be searchable.
    now = storage.clock.now_ms()
    entry = StoredEntry(value=encode(answer), written_at=now, expires_at=now + TAKEN_RETENTION_MS)
    storage.store.put(TAKEN_SCOPE, id, entry)


def effect_key(id: str) -> str:
    """Return the key under which an effect happens once, in whichever stream."""
    return own_key(id, "effect")


def settlement_key(id: str) -> str:
    """Return the key under which an effect is settled for good, in the stream that declared it."""
    return own_key(id, "settled")


_Delivery = Callable[[Env, DeclaredEffect, Any], Mapping[str, Any]]


def find_default_sink(env: Env, name: str) -> Sink | None:
    """Return the built-in sink of that name, acting for the user who declared the effect; else None."""
    if name not in BUILT_IN_SINKS:
        return None

    def deliver(declared: DeclaredEffect) -> Mapping[str, Any]:
        effect = effect_from_payload(declared.kind, declared.payload)
        return _DELIVERIES[type(effect)](env, declared, effect)

    return Sink(deliver=deliver, patient=True)


def _hand_off(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    # End the frame first, since this may be refused: then nothing was begun.
    content = OutcomeContent(summary=effect.summary, value={"handed_to": effect.to, "frame": declared.id})
    lifecycle.pop_frame(env, effect.frame, "completed", content, key=own_key(declared.id, "handed"))
    return _push_frame(env, declared, effect)


def _push_frame(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    """Push a frame under the effect's own id, so that a repetition is recognised."""
    actor = effect.actor if isinstance(effect, effects.PushFrame) else effect.to
    frame = lifecycle.push_frame(
        env,
        actor_scope(actor, effect.session),
        GoalContent(goal=effect.goal, inputs=to_plain(effect.inputs), metadata=to_plain(effect.metadata)),
        parent=effect.parent if isinstance(effect, effects.Delegate) else None,
        tokens=effect.tokens,
        limits=effect.limits,
        frame_id=declared.id,
        key=effect_key(declared.id),
    )
    return {"frame": frame}


def actor_scope(actor: str, session: str | None) -> str:
    """Return the scope of an actor's frames, within a session or on their own."""
    return Scope.actor(actor, session=session, thread=None if session is None else MAIN_THREAD).text


def _request_approval(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    frame = effect.frame
    if frame is None:
        content = GoalContent(goal=effect.question)
        place = actor_scope(effect.actor, effect.session)
        frame = lifecycle.push_frame(env, place, content, frame_id=declared.id, key=own_key(declared.id, "frame"))
    asked = questions.suspend_frame(
        env,
        frame,
        QuestionContent(
            reason=effect.question,
            options=effect.options,
            recommended=effect.recommended,
            arguments=effect.arguments,
            payload=effect.payload,
        ),
        expires_ms=effect.expires_ms,
        on_expiry=effect.on_expiry,
        key=effect_key(declared.id),
    )
    return {"question": asked.question, "frame": frame}


def _send_signal(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    facts = AppFacts(data={"effect": declared.id, "from": declared.scope})
    owner = subject_of(effect, env.user, declared.scope)
    draft = Draft(type=SIGNAL_TYPE + effect.kind, facts=facts, content=AppContent(data=effect.payload), subject=owner)
    decided = StreamWrite(stream=effect.to, events=(draft,), key=effect_key(declared.id))
    return {"version": append_events(env, [decided]).version}


def _change_state(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    """Change the journaled store by an effect that had to be approved first."""
    key, scope = effect_key(declared.id), effect.scope
    if env.journal.events_by_key(env.tenant, scope, key):
        return {}

    def decide(states: States) -> Drafts:
        drafts: Drafts = {scope: []}
        EffectPlan(env, states, drafts).apply(effect, declared.id)
        return drafts

    try:
        decide_and_append(env, (scope,), decide, key=key, same=lambda events: True, tries=TRIES)
    except VersionConflict as error:
        if error.stream == scope:
            raise  # Other writers keep changing the stream; a retry may succeed.
        raise EffectRefused(str(error)) from error
    if hasattr(effect, "key"):
        env.transients.drop((env.tenant, scope), effect.key)
    return {}


_DELIVERIES: Final[dict[type[Effect], _Delivery]] = {
    effects.PushFrame: _push_frame,
    effects.Delegate: _push_frame,
    effects.Handoff: _hand_off,
    effects.RequestApproval: _request_approval,
    effects.Signal: _send_signal,
    effects.WriteState: _change_state,
    effects.DeleteState: _change_state,
    effects.LinkState: _change_state,
    effects.UnlinkState: _change_state,
}
assert set(_DELIVERIES) == {kind for name, kind in EFFECT_KINDS.items() if name != "custom"}

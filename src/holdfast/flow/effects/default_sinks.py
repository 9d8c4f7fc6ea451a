"""The built-in sinks: frames, questions, signals and state, changed as declared.

Each applies a repeated effect once, since it writes under a key made of the effect's id.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from holdfast.core.effects import SIGNAL_TYPE, effect_from_payload, subject_of
from holdfast.core.values import to_plain
from holdfast.errors import EffectRefused, VersionConflict
from holdfast.flow.effects.apply import Drafts, EffectPlan
from holdfast.flow.effects.sinks import effect_key
from holdfast.flow.frames import lifecycle, push, questions
from holdfast.flow.journal.append import States, StreamWrite, append_events, decide_and_append
from holdfast.flow.state.journal_store import TRIES
from holdfast.ports import Env, Sink
from holdfast.records import effects
from holdfast.records.effects import BUILT_IN_SINKS, EFFECT_KINDS, DeclaredEffect, Effect
from holdfast.records.events.envelope import AppContent, AppFacts, Draft
from holdfast.records.events.frames import GoalContent, OutcomeContent, QuestionContent
from holdfast.records.scope import MAIN_THREAD, Scope

_Delivery = Callable[[Env, DeclaredEffect, Any], Mapping[str, Any]]


def find_default_sink(env: Env, name: str) -> Sink | None:
    """Return the built-in sink of that name, acting for the user who declared the effect; else None."""
    if name not in BUILT_IN_SINKS:
        return None

    def deliver(declared: DeclaredEffect) -> Mapping[str, Any]:
        effect = effect_from_payload(declared.kind, declared.payload)
        return _DELIVERIES[type(effect)](env, declared, effect)

    return Sink(deliver=deliver, patient=True)


def _push_frame(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    return {"frame": _push_under_effect_id(env, declared.id, effect, effect.actor)}


def _delegate(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    return {"frame": _push_under_effect_id(env, declared.id, effect, effect.to, parent=effect.parent)}


def _hand_off(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    # End the frame first, since this may be refused: then nothing was begun.
    content = OutcomeContent(summary=effect.summary, value={"handed_to": effect.to, "frame": declared.id})
    lifecycle.pop_frame(env, effect.frame, "completed", content, key=f"{effect_key(declared.id)}/end")
    return {"frame": _push_under_effect_id(env, declared.id, effect, effect.to)}


def _push_under_effect_id(env: Env, id: str, effect: Any, actor: str, parent: str | None = None) -> str:
    """Push a frame under the effect's own id, so that a repetition is recognised."""
    content = GoalContent(goal=effect.goal, inputs=to_plain(effect.inputs), metadata=to_plain(effect.metadata))
    return push.push_frame(
        env,
        actor_scope(actor, effect.session),
        content,
        parent=parent,
        tokens=effect.tokens,
        limits=effect.limits,
        frame_id=id,
        key=effect_key(id),
    )


def actor_scope(actor: str, session: str | None) -> str:
    """Return the scope of an actor's frames, within a session or on their own."""
    return Scope.actor(actor, session=session, thread=None if session is None else MAIN_THREAD).text


def _request_approval(env: Env, declared: DeclaredEffect, effect: Any) -> Mapping[str, Any]:
    frame = effect.frame
    if frame is None:
        content = GoalContent(goal=effect.question)
        place = actor_scope(effect.actor, effect.session)
        frame = push.push_frame(env, place, content, frame_id=declared.id, key=f"{effect_key(declared.id)}/frame")
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
    if env.transients is not None and hasattr(effect, "key"):
        env.transients.drop((env.tenant, scope), effect.key)
    return {}


_DELIVERIES: Final[dict[type[Effect], _Delivery]] = {
    effects.PushFrame: _push_frame,
    effects.Delegate: _delegate,
    effects.Handoff: _hand_off,
    effects.RequestApproval: _request_approval,
    effects.Signal: _send_signal,
    effects.WriteState: _change_state,
    effects.DeleteState: _change_state,
    effects.LinkState: _change_state,
    effects.UnlinkState: _change_state,
}
assert set(_DELIVERIES) == {kind for name, kind in EFFECT_KINDS.items() if name != "custom"}

"""Run an operator: a function of its input and a view, which returns an output and effects as data.

The operator runs first and writes nothing. Then everything it declared is written in one append, or nothing is: its
output, the changes to the journaled store, and the other effects for the outbox. A key stands for one operator with
one input and makes it one recorded run. Several processes may run it at once; one run is recorded, and every caller
gets that one.
"""

from __future__ import annotations

import functools
import hmac
import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.core import effects as rules
from holdfast.core.journal.codec import decode_event, encode
from holdfast.core.values import discard_awaitable, to_plain
from holdfast.errors import Conflict, EffectRefused, InvalidValue, KeyReused, RedactionFailed, Refused
from holdfast.flow.effects.apply import Drafts, EffectPlan
from holdfast.flow.effects.settle import read_effect_outcome
from holdfast.flow.effects.sinks import Middleware
from holdfast.flow.frames.read import content_field
from holdfast.flow.journal.append import States, decide_and_append, redact_as_configured
from holdfast.flow.state.journal_store import TRIES
from holdfast.ports import Env
from holdfast.records import effects
from holdfast.records.effects import AnyEffect, EffectOutcome, EffectStatus, OperatorOutput, OperatorResult
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.events.state import EffectContent, EffectDeclared, OperatorRan, OutputContent
from holdfast.records.ids import OperatorId, check_id, check_key, ulid_text
from holdfast.records.scope import Address, Scope

Operator = Callable[[Any, Any], Any]
SUPPRESSED_REASON: Final = "Middleware took it out."


class _EffectDeclaration(msgspec.Struct, frozen=True, kw_only=True):
    """An effect with its id; `effect` is None if middleware suppressed it."""

    id: str
    kind: str
    effect: AnyEffect | None


def run_operator(
    env: Env,
    operator: Operator,
    given: Any,
    view: Any,
    *,
    scope: Address | None = None,
    key: str | None = None,
    name: str | None = None,
) -> OperatorResult:
    """Run an operator and write the effects it declares; with a known key, return the first run's result."""
    if not callable(operator) or inspect.iscoroutinefunction(operator):
        raise InvalidValue(
            "An operator is a function of (input, view) that is done when it returns. "
            "One that must be awaited works with holdfast.open_async."
        )
    name = operator_name(operator, name, key)
    stream = (Scope.operator(name) if scope is None else Scope.of(scope)).text
    # Computed before the run, since the operator may modify its input.
    call = OperatorCall(stream=stream, name=name, key=key, given=None if key is None else digest_input(env, given))
    if key is not None:
        check_key(key)
    known = find_earlier_run(env, call)
    if known is not None:
        return known
    output = _call_operator(operator, given, view)
    declared = _declare_effects(env, output.effects)
    try:
        return _append_run(env, call, output, declared)
    except Conflict:
        # Another call with the same key may have been faster, and changed the versions expected here.
        known = find_earlier_run(env, call)
        if known is None:
            raise
        return known


def _call_operator(operator: Operator, given: Any, view: Any) -> OperatorOutput:
    answer = operator(given, view)
    if discard_awaitable(answer):
        raise InvalidValue("The operator returned an awaitable. Use holdfast.open_async.")
    if not isinstance(answer, OperatorOutput):
        if _holds_effects(answer):
            raise InvalidValue(
                "The operator gave effects as its output, which would only be written down. "
                "Return OperatorOutput(effects=[…]). Nothing was written."
            )
        return OperatorOutput(answer)
    if not isinstance(answer.effects, list | tuple):
        raise InvalidValue("effects must be a list of effects, in order. Nothing was written.")
    return answer


def _holds_effects(answer: Any) -> bool:
    """Return True if an operator's output contains effects, also inside lists and objects."""
    todo, seen = [answer], set()
    while todo:
        one = todo.pop()
        kind = type(one)
        if issubclass(kind, effects.Effect | OperatorOutput):
            return True
        if kind in (list, tuple, dict) and id(one) not in seen:
            seen.add(id(one))
            todo.extend(one.values() if kind is dict else one)
    return False


def _declare_effects(env: Env, given: Sequence[Any]) -> list[_EffectDeclaration]:
    """Pass every effect through the tenant's middleware, check it and give it an id."""
    middleware = env.sinks.middleware(env.tenant)
    found = []
    for effect in given:
        kind, passed = _apply_middleware(middleware, rules.check_effect(effect))
        if passed is not None and not rules.is_immediate(passed):
            _check_redaction(env, passed)
        found.append(_EffectDeclaration(id=ulid_text(env.ids.ulid()), kind=kind, effect=passed))
    return found


def _apply_middleware(middleware: Sequence[Middleware], effect: AnyEffect) -> tuple[str, AnyEffect | None]:
    """Pass an effect through the middleware; None if it is suppressed."""
    for function in middleware:
        answer = function(effect)
        if answer is None:
            return rules.kind_of(effect), None
        effect = rules.check_effect(answer)
    return rules.kind_of(effect), effect


def _check_redaction(env: Env, effect: AnyEffect) -> None:
    """Refuse a redaction that changes an effect's kind or target, not only its content."""
    if env.redact is None:
        return
    kept: EffectContent = redact_as_configured(env, EffectContent(payload=rules.to_wire(effect), user=env.user))
    try:
        same = rules.is_same_target(rules.from_wire(kept.payload), effect) and kept.user == env.user
    except EffectRefused:
        same = False
    if not same:
        raise RedactionFailed(
            f"The redaction hook changes where the effect {rules.kind_of(effect)} goes, not only what it says. "
            "Nothing was written; name things so that the hook leaves their names alone."
        )


def _append_run(
    env: Env, call: OperatorCall, output: OperatorOutput, declared: list[_EffectDeclaration]
) -> OperatorResult:
    content: OutputContent = redact_as_configured(env, OutputContent(output=to_plain(output.output)))
    stream = call.stream
    ran = OperatorRan(
        operator=call.name,
        effects=tuple(one.id for one in declared),
        kinds=tuple(one.kind for one in declared),
        suppressed=tuple(one.id for one in declared if one.effect is None),
        given=call.given,
    )
    subject = env.user or rules.user_of(stream)

    def decide(states: States) -> Drafts:
        drafts: Drafts = {stream: [Draft(type="operator.ran", facts=ran, content=content, subject=subject)]}
        plan = EffectPlan(env, states, drafts)
        for one in declared:
            if one.effect is None:
                continue
            if rules.is_immediate(one.effect):
                plan.apply(one.effect, one.id)
            else:
                drafts[stream].append(_draft_effect(env, call, one.id, one.effect))
        return drafts

    immediate: list[Any] = [one.effect for one in declared if one.effect is not None and rules.is_immediate(one.effect)]
    scopes = {str(effect.scope) for effect in immediate} - {stream}
    same = functools.partial(is_same_call, call)
    changed = decide_and_append(env, (stream, *sorted(scopes)), decide, key=call.key, same=same, tries=TRIES)
    if changed.repeated:
        found = find_earlier_run(env, call)
        assert found is not None, "what is repeated was written before"
        return found
    for effect in immediate:  # A transient entry must not hide a journaled write.
        if isinstance(effect, effects.WriteState | effects.DeleteState):
            env.transients.drop((env.tenant, str(effect.scope)), effect.key)
    return OperatorResult(output=content.output, outcomes=tuple(_build_outcome(one) for one in declared))


def _draft_effect(env: Env, call: OperatorCall, id: str, effect: AnyEffect) -> Draft:
    kind, sink = rules.kind_of(effect), rules.sink_of(effect)
    facts = EffectDeclared(effect=id, kind=kind, sink=sink, operator=call.name, needs_approval=effect.needs_approval)
    content = EffectContent(payload=rules.to_wire(effect), user=env.user)
    subject = rules.subject_of(effect, env.user, call.stream)
    # The event has the effect's id, so that the outcome can be looked up by it.
    return Draft(type="effect.declared", facts=facts, content=content, subject=subject, id=id)


def _build_outcome(one: _EffectDeclaration) -> EffectOutcome:
    if one.effect is None:
        return EffectOutcome(effect=one.id, kind=one.kind, sink=None, outcome="skipped", reason=SUPPRESSED_REASON)
    if rules.is_immediate(one.effect):
        return EffectOutcome(effect=one.id, kind=one.kind, sink=effects.STATE_SINK, outcome="applied")
    waits: EffectStatus = "approval" if one.effect.needs_approval else "pending"
    return EffectOutcome(effect=one.id, kind=one.kind, sink=rules.sink_of(one.effect), outcome=waits)


class OperatorCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an operator: its name, the stream of its run, and the key and input that identify the run."""

    stream: str
    name: OperatorId
    key: str | None
    given: str | None


def operator_name(operator: object, name: str | None, key: str | None) -> OperatorId:
    """Return an operator's name. With a key it must have one of its own: a key stands for one operator."""
    if name:
        return OperatorId(check_id(name, "name of an operator"))
    found = str(getattr(operator, "__name__", type(operator).__name__))
    if key is not None and (found.startswith("<") or isinstance(operator, functools.partial)):
        raise InvalidValue(f"Many functions are called {found!r}, and a key stands for one operator. Give name=.")
    return OperatorId(check_id(found, "name of an operator"))


def digest_input(env: Env, given: Any) -> str | None:
    """Return a keyed digest that identifies the input without revealing it; None if it is not plain JSON."""
    try:
        data = encode(to_plain(given), env.settings.nesting)
    except Refused:
        return None
    secret = hmac.digest(env.journal.secret, f"operators of {env.tenant}".encode(), "sha256")
    return hmac.digest(secret, data, "sha256").hex()


def is_same_call(call: OperatorCall, events: list[Event]) -> bool:
    """Return True if a key stands for this very call. An input that was not plain JSON cannot be compared."""
    first = events[0]
    if first.type != "operator.ran" or first.facts.operator != call.name:
        return False
    return first.facts.given in (None, call.given)


def find_earlier_run(env: Env, call: OperatorCall) -> OperatorResult | None:
    """Return an earlier run's result under this key, with the present outcomes of its effects."""
    if call.key is None:
        return None
    events = [decode_event(event) for event in env.journal.events_by_key(env.tenant, call.stream, call.key)]
    if not events:
        return None
    if not is_same_call(call, events):
        raise KeyReused(
            f"Key {call.key!r} of {call.stream} already stands for something else than the operator {call.name!r} "
            "with this input. Use a new key for a new operation."
        )
    ran: OperatorRan = events[0].facts
    sinks = {event.facts.effect: event.facts.sink for event in events if event.type == "effect.declared"}
    outcomes = []
    for id, kind in zip(ran.effects, ran.kinds, strict=True):
        if id in ran.suppressed:
            outcomes.append(EffectOutcome(effect=id, kind=kind, sink=None, outcome="skipped", reason=SUPPRESSED_REASON))
        elif id in sinks:
            outcomes.append(read_effect_outcome(env, call.stream, id, kind, sinks[id]))
        else:
            outcomes.append(EffectOutcome(effect=id, kind=kind, sink=effects.STATE_SINK, outcome="applied"))
    return OperatorResult(output=content_field(events[0], "output"), outcomes=tuple(outcomes), repeated=True)

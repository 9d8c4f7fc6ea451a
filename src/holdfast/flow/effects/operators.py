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
from holdfast.core.values import plain
from holdfast.errors import Conflict, EffectRefused, InvalidValue, KeyReused, RedactionFailed, Refused
from holdfast.flow.effects.apply import Drafts, Plan
from holdfast.flow.effects.settle import TRIES, outcome_of
from holdfast.flow.effects.sinks import Middleware, sinks_of
from holdfast.flow.frames.read import field
from holdfast.flow.journal.append import States, change
from holdfast.flow.journal.redact import clean
from holdfast.ports import Acting, Ports
from holdfast.records import effects
from holdfast.records.effects import AnyEffect, EffectOutcome, Operated, OperatorOutput, Outcome
from holdfast.records.events.envelope import Draft, Event
from holdfast.records.events.state import EffectContent, EffectDeclared, OperatorRan, OutputContent
from holdfast.records.ids import check_id, check_key, ulid_text
from holdfast.records.scope import Address, Scope

Operator = Callable[[Any, Any], Any]


class _Declared(msgspec.Struct, frozen=True, kw_only=True):
    """An effect with its id; `effect` is None if middleware suppressed it."""

    id: str
    kind: str
    effect: AnyEffect | None


def operate(
    ports: Ports,
    acting: Acting,
    operator: Operator,
    given: Any,
    view: Any,
    *,
    scope: Address | None = None,
    key: str | None = None,
    name: str | None = None,
) -> Operated:
    """Run an operator and write the effects it declares; with a known key, return the first run's result."""
    _check_operator(operator)
    name = name_of(operator, name, key)
    stream = (Scope.operator(name) if scope is None else Scope.of(scope)).text
    # Computed before the run, since the operator may modify its input.
    call = Call(stream=stream, name=name, key=key, given=None if key is None else digest(ports, acting, given))
    if key is not None:
        check_key(key)
    known = earlier(ports, acting, call)
    if known is not None:
        return known
    output = _run(operator, given, view)
    declared = _declared(ports, sinks_of(ports).middleware(acting.tenant), acting, output.effects)
    try:
        return _write(ports, acting, call, output, declared)
    except Conflict:
        # Another call with the same key may have been faster, and changed the versions expected here.
        known = earlier(ports, acting, call)
        if known is None:
            raise
        return known


def _check_operator(operator: object) -> None:
    if not callable(operator) or inspect.iscoroutinefunction(operator):
        raise InvalidValue(
            "An operator is a function of (input, view) that is done when it returns. "
            "One that must be awaited works with holdfast.open_async."
        )


def _run(operator: Operator, given: Any, view: Any) -> OperatorOutput:
    answer = operator(given, view)
    if inspect.isawaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise InvalidValue("The operator gave something to be awaited. Use holdfast.open_async.")
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


def _declared(ports: Ports, middleware: Sequence[Middleware], acting: Acting, given: Sequence[Any]) -> list[_Declared]:
    """Pass every effect through the middleware, check it and give it an id."""
    found = []
    for effect in given:
        kind, passed = _passed(middleware, rules.checked(effect))
        if passed is not None and not rules.at_once(passed):
            _check_redaction(ports, acting, passed)
        found.append(_Declared(id=ulid_text(ports.ids.ulid()), kind=kind, effect=passed))
    return found


def _passed(middleware: Sequence[Middleware], effect: AnyEffect) -> tuple[str, AnyEffect | None]:
    """Pass an effect through the middleware; None if it is suppressed."""
    for function in middleware:
        answer = function(effect)
        if answer is None:
            return rules.kind_of(effect), None
        effect = rules.checked(answer)
    return rules.kind_of(effect), effect


def _check_redaction(ports: Ports, acting: Acting, effect: AnyEffect) -> None:
    """Refuse a redaction that changes an effect's kind or target, not only its content."""
    if ports.redact is None:
        return
    kept: EffectContent = clean(ports, _content(acting, effect))
    try:
        same = rules.same_place(rules.from_wire(kept.payload), effect) and kept.user == acting.user
    except EffectRefused:
        same = False
    if not same:
        raise RedactionFailed(
            f"The redaction hook changes where the effect {rules.kind_of(effect)} goes, not only what it says. "
            "Nothing was written; name things so that the hook leaves their names alone."
        )


def _content(acting: Acting, effect: AnyEffect) -> EffectContent:
    return EffectContent(payload=rules.wire(effect), user=acting.user)


def _write(ports: Ports, acting: Acting, call: Call, output: OperatorOutput, declared: list[_Declared]) -> Operated:
    content: OutputContent = clean(ports, OutputContent(output=plain(output.output)))
    stream = call.stream
    ran = OperatorRan(
        operator=call.name,
        effects=tuple(one.id for one in declared),
        kinds=tuple(one.kind for one in declared),
        suppressed=tuple(one.id for one in declared if one.effect is None),
        given=call.given,
    )
    subject = acting.user or rules.user_of(stream)

    def decide(states: States) -> Drafts:
        drafts: Drafts = {stream: [Draft(type="operator.ran", facts=ran, content=content, subject=subject)]}
        plan = Plan(ports, acting, states, drafts)
        for one in declared:
            if one.effect is None:
                continue
            if rules.at_once(one.effect):
                plan.apply(one.effect, one.id)
            else:
                drafts[stream].append(_draft(acting, call, one.id, one.effect))
        return drafts

    scopes = {str(effect.scope) for effect in _changes(declared)} - {stream}
    changed = change(
        ports, acting, (stream, *sorted(scopes)), decide, key=call.key, same=functools.partial(same, call), tries=TRIES
    )
    if changed.repeated:
        found = earlier(ports, acting, call)
        assert found is not None, "what is repeated was written before"
        return found
    _uncover(ports, acting, declared)
    return Operated(output=content.output, outcomes=tuple(_outcome(one) for one in declared))


def _changes(declared: list[_Declared]) -> list[Any]:
    """Return the effects that change the journaled store at once."""
    return [one.effect for one in declared if one.effect is not None and rules.at_once(one.effect)]


def _uncover(ports: Ports, acting: Acting, declared: list[_Declared]) -> None:
    """Drop transient entries that would hide a journaled write."""
    for effect in _changes(declared):
        if ports.transients is not None and isinstance(effect, effects.WriteState | effects.DeleteState):
            ports.transients.drop((acting.tenant, str(effect.scope)), effect.key)


def _draft(acting: Acting, call: Call, id: str, effect: AnyEffect) -> Draft:
    facts = EffectDeclared(
        effect=id,
        kind=rules.kind_of(effect),
        sink=rules.sink_of(effect),
        operator=call.name,
        needs_approval=effect.needs_approval,
    )
    subject = rules.subject_of(effect, acting.user, call.stream)
    # The event has the effect's id, so that the outcome can be looked up by it.
    return Draft(type="effect.declared", facts=facts, content=_content(acting, effect), subject=subject, id=id)


def _outcome(one: _Declared) -> EffectOutcome:
    if one.effect is None:
        return EffectOutcome(effect=one.id, kind=one.kind, sink=None, outcome="skipped", reason=SUPPRESSED)
    if rules.at_once(one.effect):
        return EffectOutcome(effect=one.id, kind=one.kind, sink=effects.STATE, outcome="applied")
    waits: Outcome = "approval" if one.effect.needs_approval else "pending"
    return EffectOutcome(effect=one.id, kind=one.kind, sink=rules.sink_of(one.effect), outcome=waits)


SUPPRESSED: Final = "Middleware took it out."


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """A call of an operator: its name, the stream of its run, and the key and input that identify the run."""

    stream: str
    name: str
    key: str | None
    given: str | None


def name_of(operator: object, name: str | None, key: str | None) -> str:
    """Return an operator's name. With a key it must have one of its own: a key stands for one operator."""
    if name:
        return check_id(name, "name of an operator")
    found = str(getattr(operator, "__name__", type(operator).__name__))
    if key is not None and (found.startswith("<") or isinstance(operator, functools.partial)):
        raise InvalidValue(f"Many functions are called {found!r}, and a key stands for one operator. Give name=.")
    return check_id(found, "name of an operator")


def digest(ports: Ports, acting: Acting, given: Any) -> str | None:
    """Return a keyed digest that identifies the input without revealing it; None if it is not plain JSON."""
    try:
        data = encode(plain(given), ports.settings.nesting)
    except Refused:
        return None
    secret = hmac.digest(ports.journal.secret, f"operators of {acting.tenant}".encode(), "sha256")
    return hmac.digest(secret, data, "sha256").hex()


def same(call: Call, events: list[Event]) -> bool:
    """Return True if a key stands for this very call. An input that was not plain JSON cannot be compared."""
    first = events[0]
    if first.type != "operator.ran" or first.facts.operator != call.name:
        return False
    return first.facts.given in (None, call.given)


def earlier(ports: Ports, acting: Acting, call: Call) -> Operated | None:
    """Return an earlier run's result under this key, with the present outcomes of its effects."""
    if call.key is None:
        return None
    events = [decode_event(event) for event in ports.journal.by_key(acting.tenant, call.stream, call.key)]
    if not events:
        return None
    if not same(call, events):
        raise KeyReused(
            f"Key {call.key!r} of {call.stream} already stands for something else than the operator {call.name!r} "
            "with this input. Use a new key for a new operation."
        )
    ran: OperatorRan = events[0].facts
    sinks = {event.facts.effect: event.facts.sink for event in events if event.type == "effect.declared"}
    outcomes = []
    for id, kind in zip(ran.effects, ran.kinds, strict=True):
        if id in ran.suppressed:
            outcomes.append(EffectOutcome(effect=id, kind=kind, sink=None, outcome="skipped", reason=SUPPRESSED))
        elif id in sinks:
            outcomes.append(outcome_of(ports, acting, call.stream, id, kind, sinks[id]))
        else:
            outcomes.append(EffectOutcome(effect=id, kind=kind, sink=effects.STATE, outcome="applied"))
    return Operated(output=field(events[0], "output"), outcomes=tuple(outcomes), repeated=True)

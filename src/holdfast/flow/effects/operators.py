"""Running an operator: a function of its input and of what it may read, giving an output and effects as data.

It runs first and writes nothing. Then everything it declared is written in one append, or nothing is: its output,
the changes of the journaled store, and the rest for the outbox. A key makes it one recorded run, however often it
is asked for.

Which run of an operator a call asks for: its name, its key and what it was given, and what came of it before.

A key stands for one operator with one input. Several processes that ask at once may all run it; one run is recorded,
and everybody is given that one.
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
    """An effect with its id; `effect` is None where middleware took it out."""

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
    """Run an operator and write what it declares; with a key that is known, give what came of the first run."""
    _check_operator(operator)
    name = name_of(operator, name, key)
    stream = (Scope.operator(name) if scope is None else Scope.of(scope)).text
    # Before it runs, since it may change what it was given.
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
        # Somebody with the same key may have been quicker, and changed what this one expected.
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
    """Whether there are effects in what an operator gave, also inside lists and objects."""
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
    """Every effect with an id, checked, after it passed through the middleware."""
    found = []
    for effect in given:
        kind, passed = _passed(middleware, rules.checked(effect))
        if passed is not None and not rules.at_once(passed):
            _check_redaction(ports, acting, passed)
        found.append(_Declared(id=ulid_text(ports.ids.ulid()), kind=kind, effect=passed))
    return found


def _passed(middleware: Sequence[Middleware], effect: AnyEffect) -> tuple[str, AnyEffect | None]:
    """What middleware made of an effect, with its last kind."""
    for function in middleware:
        answer = function(effect)
        if answer is None:
            return rules.kind_of(effect), None
        effect = rules.checked(answer)
    return rules.kind_of(effect), effect


def _check_redaction(ports: Ports, acting: Acting, effect: AnyEffect) -> None:
    """What is redacted may change what an effect says, never what it does or to what."""
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
    """The effects that change the journaled store at once."""
    return [one.effect for one in declared if one.effect is not None and rules.at_once(one.effect)]


def _uncover(ports: Ports, acting: Acting, declared: list[_Declared]) -> None:
    """What was said for good is not hidden by what was said for a moment."""
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
    # Under its own id, so that what became of it can be looked up by that.
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
    """Which operator is asked for, where its run is journaled, and what makes it the same run again."""

    stream: str
    name: str
    key: str | None
    given: str | None


def name_of(operator: object, name: str | None, key: str | None) -> str:
    """What an operator is called. A key stands for one operator, so with one it needs a name of its own."""
    if name:
        return check_id(name, "name of an operator")
    found = str(getattr(operator, "__name__", type(operator).__name__))
    if key is not None and (found.startswith("<") or isinstance(operator, functools.partial)):
        raise InvalidValue(f"Many functions are called {found!r}, and a key stands for one operator. Give name=.")
    return check_id(found, "name of an operator")


def digest(ports: Ports, acting: Acting, given: Any) -> str | None:
    """What tells one input from another and does not tell what it was; None for what is not plain JSON."""
    try:
        data = encode(plain(given), ports.settings.nesting)
    except Refused:
        return None
    secret = hmac.digest(ports.journal.secret, f"operators of {acting.tenant}".encode(), "sha256")
    return hmac.digest(secret, data, "sha256").hex()


def same(call: Call, events: list[Event]) -> bool:
    """Whether a key stands for this very call. What was no plain JSON cannot be compared."""
    first = events[0]
    if first.type != "operator.ran" or first.facts.operator != call.name:
        return False
    return first.facts.given in (None, call.given)


def earlier(ports: Ports, acting: Acting, call: Call) -> Operated | None:
    """What an earlier run under this key gave, with what came of its effects since."""
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

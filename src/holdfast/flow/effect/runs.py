"""Which run of an operator a call asks for: its name, its key and what it was given, and what came of it before.

A key stands for one operator with one input. Several processes that ask at once may all run it; one run is recorded,
and everybody is given that one.
"""

from __future__ import annotations

import functools
import hmac
from typing import Any, Final

import msgspec

from holdfast.core.codec import decode_event, encode
from holdfast.core.values import plain
from holdfast.errors import InvalidValue, KeyReused, Refused
from holdfast.flow.effect.effects import outcome_of
from holdfast.flow.stack.showing import field
from holdfast.ports import Acting, Ports
from holdfast.records import effects
from holdfast.records.effects import EffectOutcome, Operated
from holdfast.records.events.envelope import Event
from holdfast.records.events.state import OperatorRan
from holdfast.records.ids import check_id

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

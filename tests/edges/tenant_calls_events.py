"""What a tenant asks of its journal, and what becomes of the effects that it declares."""

from __future__ import annotations

from typing import Any

from holdfast import HoldfastError
from holdfast.effects import Custom, Delegate, Handoff, OperatorOutput, PushFrame, RequestApproval, Signal, WriteState
from holdfast.types import Event, StateReader
from tests.edges.tenant_actor import NAMES, SCOPES, USERS, Actor
from tests.edges.tenant_calls import call

# the journal


@call("journal", "append events_by_key", "Holdfast", "journal")
def append_event(actor: Actor) -> Any:
    scope, key = actor.one(SCOPES), actor.key("event")
    done = actor.someone().journal.append(scope, "app.noted", actor.text(), facts={"n": 1}, key=key)
    return done, actor.hf.journal.events_by_key(scope, key or "event-1")


@call("journal", "append events artifact")
def artifact(actor: Actor) -> Any:
    def make() -> str:
        done = actor.someone().journal.append("global", "app.noted", files=[actor.text().encode()])
        event = next(iter(actor.hf.journal.events("global", after=done.parts[0].first - 1)))
        return str(event.facts.artifacts[0])

    return actor.hf.journal.artifact(actor.recent("artifact", make))


@call("journal", "events version streams position")
def read_events(actor: Actor) -> Any:
    journal, scope = actor.hf.journal, actor.one(SCOPES)
    found = list(journal.events(scope, after=2, until=9)), list(journal.events(scope, backwards=True))[:4]
    types = list(journal.events(types=["state.written", "message.appended"]))[-5:]
    newest = [event for _, event in zip(range(9), journal.events(backwards=True), strict=False)]
    position = actor.plain.rank(journal.position())
    return found, types, newest, journal.version(scope), list(journal.streams()), position


@call("journal", "subscribe position append")
def subscribe(actor: Actor) -> Any:
    journal, scope = actor.hf.journal, actor.maybe(actor.one(SCOPES))
    after = journal.position() if scope is None else journal.version(scope)
    actor.between()
    journal.append(scope or "global", "app.told", actor.text())
    actor.between()
    return list(journal.subscribe(scope, after=after, timeout=0)), list(journal.subscribe(scope, timeout=0))


@call("Holdfast", "on", "journal", "append")
def listen(actor: Actor) -> Any:
    heard: list[Event] = []
    undo = actor.hf.on(actor.one(("*", "app.*", "state.written")), heard.append)
    actor.between()
    actor.hf.journal.append("global", "app.told", actor.text())
    actor.hf.state("global").write(actor.one(NAMES), actor.text())
    undo()
    actor.between()
    return heard


@call("journal", "erase")
def erase(actor: Actor) -> Any:
    return actor.hf.journal.erase(actor.one((*USERS, "1", "nobody")))


# operators and effects


def effects(actor: Actor) -> list[Any]:
    """Something of every kind, and something that fails."""
    text, custom = actor.text(), actor.one(("crm", "mail", "nowhere"))
    every = [
        WriteState(actor.one(SCOPES), actor.one(NAMES), text),
        Signal("session/s", "ready", text),
        PushFrame("cook", text),
        Custom("note", actor.one((text, "never", "later")), sink=custom),
        Custom("note", text, sink="crm", needs_approval=True),
        RequestApproval(text, actor="judge", options=["yes", "no"]),
        Delegate("cook", text, parent=actor.frame()),
        Handoff("clerk", text, frame=actor.frame()),
    ]
    return [effect for effect in every if actor.maybe(True)]


def operate_once(actor: Actor, operate: Any) -> Any:
    """An operator that reads, and declares what was drawn before it ran."""
    declared, scope, name = effects(actor), actor.one(SCOPES), actor.one(NAMES)

    def choose(given: Any, view: StateReader) -> OperatorOutput:
        actor.between()
        return OperatorOutput({"given": given, "seen": view(scope).read(name)}, declared)

    done = operate(choose, actor.text(), key=actor.key("operate"))
    for outcome in done.outcomes:
        actor.note("effect", outcome.effect)
    return done


@call("Holdfast", "effects", "effects", "operate")
def operate(actor: Actor) -> Any:
    return operate_once(actor, actor.someone().effects.operate)


@call("effects", "operate add_middleware")
def operate_through_middleware(actor: Actor) -> Any:
    seen: list[Any] = []

    def quiet(effect: Any) -> Any:
        seen.append(type(effect).__name__)
        actor.between()
        return None if isinstance(effect, Custom) else effect

    undo = actor.hf.effects.add_middleware(quiet)
    try:
        return operate_once(actor, actor.hf.effects.operate), seen
    finally:
        undo()


@call("effects", "add_sink operate dispatch")
def own_sink(actor: Actor) -> Any:
    taken: list[Any] = []
    undo = actor.hf.effects.add_sink("own", taken.append)
    try:
        declared = OperatorOutput(None, [Custom("note", actor.text(), sink="own")])
        done = actor.hf.effects.operate(lambda given, view: declared, name="own")
        actor.between()
        return done, actor.hf.effects.dispatch(sink="own"), taken
    finally:
        undo()


@call("effects", "dispatch")
def dispatch(actor: Actor) -> Any:
    done = actor.hf.effects.dispatch(limit=actor.maybe(3))
    return done, actor.asked[-5:], actor.place.told[actor.tenant][-5:]


@call("effects", "pending dead get")
def waiting_effects(actor: Actor) -> Any:
    pending, dead = list(actor.hf.effects.pending()), list(actor.hf.effects.dead())
    actor.known["effect"] += [one.id for one in (*pending[-3:], *dead[-2:])]
    return pending, dead, [actor.hf.effects.get(one.id) for one in pending[:2]]


@call("effects", "revive discard approve reject")
def decide_about_effects(actor: Actor) -> Any:
    view = actor.hf.effects
    ways = (
        view.revive,
        view.approve,
        lambda id: view.discard(id, reason="no"),
        lambda id: view.reject(id, reason="no"),
    )
    found: list[Any] = []
    for way in ways:
        try:
            found.append(way(actor.recent("effect")))
        except HoldfastError as error:
            found.append(error)
    return found

"""What a tenant asks of its state: entries, edges, and views that only read."""

from __future__ import annotations

from typing import Any

from holdfast import HoldfastError
from tests.edges.tenant_actor import NAMES, SCOPES, SESSIONS, WORDS, Actor
from tests.edges.tenant_calls import call


def value(actor: Actor) -> Any:
    """A text, or an object that holds one."""
    return actor.text() if actor.maybe(True) else {"about": actor.text(), "n": actor.random.randint(1, 9)}


@call("State", "write", "StateStore", "__call__", "Holdfast", "state")
def write(actor: Actor) -> Any:
    state = actor.state()
    return state.write(
        actor.one(NAMES),
        value(actor),
        tier=actor.maybe("hot"),
        content_kind=actor.maybe("semantic"),
        salience=actor.maybe(actor.random.random()),
        ttl=actor.maybe(60.0, 0.3),
        key=actor.key("write"),
    )


@call("State", "write")
def write_by_reducer(actor: Actor) -> Any:
    reducer, given = actor.one((("append", actor.text()), ("merge", {"x": actor.text()}), ("sum", 2)))
    return actor.state().write(f"r/{reducer}", given, reducer=reducer, key=actor.key("reduce"))


@call("State", "write entry")
def write_if_unchanged(actor: Actor) -> Any:
    state, name = actor.state(), actor.one(NAMES)
    known = state.entry(name)
    expected = actor.one((0 if known is None else known.version, 1))
    return known, state.write(name, value(actor), expected_version=expected)


@call("State", "write clear_transient read list")
def write_for_a_moment(actor: Actor) -> Any:
    state, name = actor.state(), actor.one(NAMES)
    state.write(name, value(actor), lifetime="transient", ttl=actor.maybe(60.0))
    actor.between()
    state.write(actor.one(NAMES), value(actor), lifetime="transient")
    return state.read(name), state.list(), state.clear_transient() if actor.maybe(True) else None


@call("State", "delete")
def delete(actor: Actor) -> Any:
    return actor.state().delete(actor.one(NAMES), key=actor.key("delete"))


@call("State", "read require entry list entries history __iter__ __contains__ __repr__")
def read(actor: Actor) -> Any:
    state, name = actor.state(), actor.one(NAMES)
    try:
        required = state.require(name)
    except HoldfastError as error:
        required = error
    pages = [state.list("b"), state.list(after="a", limit=2), state.entries(limit=2)]
    seen = [state.read(name, default="none"), required, state.entry(name), state.history(name, limit=4)]
    return pages, seen, list(state), name in state, repr(state)


@call("State", "search", "StateReader", "search")
def search_state(actor: Actor) -> Any:
    limit, text = actor.one((1, 5, 100)), actor.text()
    found = [actor.hf.state(scope).search(text, limit=limit) for scope in SCOPES]
    return found, actor.state().reader().search(actor.one(WORDS))


@call("State", "link unlink neighbours traverse")
def edges(actor: Actor) -> Any:
    state, (source, target) = actor.state(), (actor.one(NAMES), actor.one(NAMES))
    other = actor.maybe(actor.one(SCOPES))
    state.link(source, "knows", target, target_scope=other, weight=actor.maybe(0.5), data=actor.maybe(actor.text()))
    ways = ("out", "in", "both")
    found = [state.neighbours(source, direction=way) for way in ways]
    found += [state.traverse(source, depth=3, direction=way) for way in ways]
    gone = state.unlink(actor.one(NAMES), "knows", actor.one(NAMES), target_scope=other) if actor.maybe(True) else None
    return found, gone


@call(
    "State",
    "reader",
    "StateStore",
    "capabilities __repr__",
    "StateReader",
    "read require entry list entries history neighbours traverse __call__ __repr__",
)
def read_only(actor: Actor) -> Any:
    store, name = actor.hf.state, actor.one(NAMES)
    view = actor.one((store("user/2").reader(), store("user/1").reader()))(actor.one(SCOPES))
    store(view.scope).reader()
    try:
        required = view.require(name)
    except HoldfastError as error:
        required = error
    found = [view.read(name), required, view.entry(name), view.list(), view.entries(), view.history(name)]
    return found, view.neighbours(name), view.traverse(name), repr(view), store.capabilities, repr(store)


@call("StateStore", "scopes purge", "State", "write entries")
def ends_in_time(actor: Actor) -> Any:
    store, state = actor.hf.state, actor.state()
    state.write(actor.one(NAMES), value(actor), ttl=actor.one((0.001, 60.0)))
    listed = store.scopes(), store.scopes(after=actor.one(SCOPES), limit=2)
    return listed, store.purge() if actor.maybe(True) else None, state.entries()


@call("StateStore", "end_session", "State", "write entries")
def lives_as_long_as_a_session(actor: Actor) -> Any:
    session = actor.one(SESSIONS)
    state = actor.hf.state(f"session/{session}")
    state.write(actor.one(NAMES), value(actor), lifetime="session")
    ended = actor.hf.state.end_session(session) if actor.maybe(True, 0.3) else None
    return ended, state.entries()

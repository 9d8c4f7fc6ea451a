"""What can happen to what is searched: each step does it to the journal and says what it means for the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import Session
from holdfast.errors import NotFound
from tests.edges.search_world import KEYS, SCOPES, TENANTS, USERS, Kept, Place, World, written

SESSIONS = ("s", "t")


def _scope(world: World) -> Place:
    return world.one(TENANTS), world.one(SCOPES)


def _owner(place: Place, user: str | None) -> str | None:
    """Whose an entry is: the user's whom it is about, else the writer's."""
    return place[1].removeprefix("user/") if place[1].startswith("user/") else user


def _line(world: World, client: int, user: str | None = None) -> tuple[Place, str, Session]:
    """A line of a session that takes messages."""
    place: Place = (world.one(TENANTS), world.one(SESSIONS))
    thread = world.one(world.lines.setdefault(place, {"main": []}))
    session = world.session(client, place, thread, user)
    if place in world.closed:
        session.reset()
        world.end(place, reset=True)
        _clear(world, client, place)
    return place, thread, session


def _clear(world: World, client: int, place: Place) -> None:
    """What a client had laid over the entries of a session is gone with it."""
    for whose, (tenant, scope) in list(world.over):
        if (whose, tenant) == (client, place[0]) and f"{scope}/".startswith(f"session/{place[1]}/"):
            del world.over[whose, (tenant, scope)]


# entries


def write(world: World) -> None:
    place, key, user, client = _scope(world), world.one(KEYS), world.one(USERS), world.number()
    value: Any = world.text() if world.random.random() < 0.6 else {"about": world.text(), "more": [world.text()]}
    options: dict[str, Any] = {"ttl": world.one((None, None, 5.0, 60.0)), "salience": world.one((None, 0.1, 1.0))}
    if place[1].startswith("session/"):
        options["lifetime"] = world.one((None, "session"))
    state = world.state(client, place, user)
    state.write(key, value, **options)
    expires = float("inf") if options["ttl"] is None else world.clock.now_ms() + options["ttl"] * 1000
    world.keep(client, place, key, Kept(value, _owner(place, user), expires, options.get("lifetime")))


def reduce(world: World) -> None:
    place, key, user, client = _scope(world), "list", world.one(USERS), world.number()
    text, before = world.text(), world.live(place).get(key, [])
    world.state(client, place, user).write(key, text, reducer="append")
    world.keep(client, place, key, Kept([*before, text], _owner(place, user)))


def operate(world: World) -> None:
    place, key, user, client = _scope(world), world.one(KEYS), world.one(USERS), world.number()
    text, options = world.text(), {"ttl": 30.0}
    world.view(client, place[0], user).effects.operate(
        lambda given, view: written(place, key, text, options), name="write"
    )
    world.keep(client, place, key, Kept(text, _owner(place, user), world.clock.now_ms() + 30_000))


def delete(world: World) -> None:
    place, key, client = _scope(world), world.one((*KEYS, "list")), world.number()
    world.state(client, place).delete(key)
    world.entries.get(place, {}).pop(key, None)
    world.over.get((client, place), {}).pop(key, None)


def lay_over(world: World) -> None:
    place, key, client = _scope(world), world.one(KEYS), world.number()
    ttl = world.one((None, 20.0))
    world.state(client, place).write(key, world.text(), lifetime="transient", ttl=ttl)
    until = float("inf") if ttl is None else world.clock.now_ms() + ttl * 1000
    world.over.setdefault((client, place), {})[key] = until


def clear_over(world: World) -> None:
    place, client = _scope(world), world.number()
    world.state(client, place).clear_transient()
    world.over.pop((client, place), None)


# messages


def say(world: World) -> None:
    user, client = world.one(USERS), world.number()
    place, thread, session = _line(world, client, user)
    texts = [world.text() for _ in range(world.random.randint(1, 3))]
    for message, text in zip(session.append(list(texts)), texts, strict=True):
        world.note(place, thread, message, text, user)


def rewind(world: World) -> None:
    place, thread, session = _line(world, world.number())
    ids = world.lines[place][thread]
    if ids:
        at = world.random.randrange(len(ids))
        if world.random.random() < 0.5:
            session.rewind(to=ids[at])
            at += 1
        else:
            session.rewind(before=ids[at])
        del ids[at:]


def fork(world: World) -> None:
    place, thread, session = _line(world, world.number())
    ids, lines = world.lines[place][thread], world.lines[place]
    if len(lines) < 5:
        at = world.random.randrange(len(ids)) if ids and world.random.random() < 0.7 else None
        branch = session.fork(None if at is None else ids[at], thread=f"f{len(lines)}-{world.count}")
        lines[branch.thread] = list(ids if at is None else ids[: at + 1])


def compact(world: World) -> None:
    """Nothing is removed by a summary."""
    _line(world, world.number())[2].compact(keep=1)


def reset(world: World) -> None:
    client = world.number()
    place, _, session = _line(world, client)
    session.reset()
    world.end(place, reset=True)
    _clear(world, client, place)


def close(world: World) -> None:
    client = world.number()
    place, _, session = _line(world, client)
    session.close()
    world.end(place, reset=False)
    _clear(world, client, place)


# everything


def erase(world: World) -> None:
    tenant, owner = world.one(TENANTS), world.one(("ann", "bob", "42"))
    try:
        world.view(world.number(), tenant).journal.erase(owner)
    except NotFound:
        return
    world.erase(tenant, owner)


def rebuild(world: World) -> None:
    world.clients[0].journal.rebuild()


def wait(world: World) -> None:
    world.clock.advance(world.one((1, 4_000, 25_000)))


STEPS: dict[Callable[[World], None], int] = {
    write: 10,
    reduce: 2,
    operate: 3,
    delete: 3,
    lay_over: 4,
    clear_over: 1,
    say: 12,
    rewind: 4,
    fork: 3,
    compact: 1,
    reset: 1,
    close: 1,
    erase: 1,
    rebuild: 1,
    wait: 5,
}
"""Each with how often it is chosen."""

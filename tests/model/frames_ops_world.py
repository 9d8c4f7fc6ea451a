"""Operations of a walk: owners, the sweep, crashes, clocks and rebuilds."""

from __future__ import annotations

from holdfast.errors import HoldfastError
from tests.backends import rebuild_alone
from tests.model import frames_look as look
from tests.model.frames_model import No
from tests.model.frames_pick import look_away
from tests.model.frames_walk import SCOPES, Walk


def take(walk: Walk) -> None:
    """Become the owner of a scope; whoever owned it can write no more."""
    scope, client = walk.random.choice(SCOPES), walk.random.choice(walk.clients)
    walk.note(client, "take", {"scope": scope}, None)
    try:
        plan, allowed = walk.model.take(client.number, scope), set[str]()
    except No as refused:
        plan, allowed = look_away(), set(refused.names)
    try:
        state = client.index.resume_actor(scope, incarnation=f"i{walk.steps}")
    except HoldfastError as error:
        walk.told_of(client.number, error, allowed, "take")
        return
    assert not allowed, f"taken, and should be refused with {allowed}"
    walk.model.carry_out(client.number, plan, None)
    assert (state.epoch, state.holder) == (walk.model.epoch[scope], client.hf.env.leases.process.name)


def let_go(walk: Walk) -> None:
    held = [(number, scope) for number, scope in walk.model.leases]
    if not held:
        return
    number, scope = walk.random.choice(held)
    client = next(client for client in walk.clients if client.number == number)
    walk.note(client, "let go", {"scope": scope}, None)
    try:
        plan, allowed = walk.model.let_go(number, scope), set[str]()
    except No as refused:
        plan, allowed = look_away(), set(refused.names)
    try:
        client.index.release_actor(scope)
    except HoldfastError as error:
        walk.told_of(number, error, allowed, "let go")
        return
    assert not allowed
    walk.model.carry_out(number, plan, None)


def sweep(walk: Walk) -> None:
    client, orphans = walk.random.choice(walk.clients), walk.random.random() < 0.3
    walk.note(client, "sweep", {"fail_orphans": orphans}, None)
    heads = [walk.journal.head(look.TENANT, scope) for scope in SCOPES]
    began = [head.stream for head in sorted((head for head in heads if head is not None), key=lambda head: head.id)]
    wanted = walk.model.sweep(client.number, orphans, began)
    found = client.index.sweep(fail_orphans=orphans)
    assert {name: list(getattr(found, name)) for name in wanted} == wanted, f"swept {found}, not {wanted}"


# the world


def jump(walk: Walk) -> None:
    by = walk.random.choice((-60_000, -1, 1, 5_000, 20_000, 90_000))
    walk.log.append(f"{walk.steps:5} the clock jumps by {by} ms")
    walk.clock.jump(by)


def crash(walk: Walk) -> None:
    """A client is gone without a word; another one finds everything as it was."""
    place = walk.random.randrange(len(walk.clients))
    gone, walk.clients[place] = walk.clients[place], walk.new_client()
    walk.log.append(f"{walk.steps:5} client {gone.number} is gone, client {walk.clients[place].number} comes")
    gone.end(close=walk.memory is None)
    walk.model.die(gone.number)
    look.at_everything(walk.model, walk.clients[place].index, SCOPES)


def rebuild(walk: Walk) -> None:
    walk.log.append(f"{walk.steps:5} rebuild")
    rebuild_alone(walk.journal)


def note_from_outside(walk: Walk) -> None:
    """Inbox events arrive whoever owns the scope."""
    client, scope = walk.random.choice(walk.clients), walk.random.choice(SCOPES)
    walk.note(client, "app.noted", {"scope": scope}, None)
    client.hf.journal.append(scope, "app.noted", {"text": "hello"})

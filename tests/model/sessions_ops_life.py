"""Operations of a walk over sessions: opening, ending, handing over, clocks, restarts, rebuilds; and what is next."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.backends import rebuild_alone
from tests.model import sessions_look as look
from tests.model import sessions_ops as ops
from tests.model import sessions_ops_edit as edit
from tests.model.sessions_life_model import Talk
from tests.model.sessions_model import Line, No
from tests.model.sessions_ops import THREADS, predicted, touched
from tests.model.sessions_walk import SESSIONS, Walk

SECOND = 1_000


def open_session(walk: Walk) -> None:
    """Get or create; settings that are given and new are noted; strict where it is asked for."""
    id, thread = walk.random.choice(SESSIONS), walk.random.choice(THREADS)
    if walk.random.random() < 0.6:
        thread = "main"
    create = walk.random.random() < 0.8
    given = _settings(walk)
    talk = walk.talks.get(id)

    def plan() -> None:
        if not create and (talk is None or thread not in talk.lines):
            raise No("SessionNotFound")
        if talk is not None and thread not in talk.lines:
            talk.may_grow()

    _, refused = predicted(plan)
    client = walk.client()
    what = f"session {id}/{thread} create={create} {given}"
    found = walk.attempt(what, refused, lambda: client.hf.session(id, thread=thread, create=create, **given))
    if found is None:
        return
    if talk is None:
        talk = walk.talks[id] = Talk(walk.clock.now_ms())
    if thread not in talk.lines:
        talk.add(Line(thread), walk.clock.now_ms())
    timeout = given.pop("idle_timeout", None)
    talk.timeout = talk.timeout if timeout is None else timeout * SECOND
    talk.settings.update(given)
    look.at_talk(walk, client, id, talk)
    touched(walk, id, talk.lines[thread])


def _settings(walk: Walk) -> dict[str, Any]:
    possible: dict[str, Any] = {
        "system": walk.random.choice(("Be terse.", "Be kind to people.")),
        "title": walk.random.choice(("Nuts", "Bolts", "")),
        "metadata": {"n": walk.random.randint(1, 3)},
        "idle_timeout": walk.random.choice((60, 600)),
    }
    return {name: value for name, value in possible.items() if walk.random.random() < 0.2}


def end(walk: Walk) -> None:
    """Close or reset; memory is offered all of it at once."""
    id, talk, _ = walk.pick()
    reset = walk.random.random() < 0.75
    session = walk.session(id, "main")
    refused = {"SessionClosed"} if not reset and talk.is_over() else set[str]()
    act = session.reset if reset else session.close
    walk.engine.fails = walk.random.random() < 0.4
    walk.attempt(f"{'reset' if reset else 'close'} {id}, memory fails={walk.engine.fails}", refused, act)
    if refused:
        return
    talk.end("reset" if reset else "close", reset=reset)
    _offer(walk, id, talk)
    look.at_talk(walk, walk.client(), id, talk)
    for line in talk.lines.values():
        touched(walk, id, line)


def _offer(walk: Walk, id: str, talk: Talk) -> None:
    walk.handed += [(id, one.cause, one.threads) for one in talk.offer(fails=walk.engine.fails)]


def sweep(walk: Walk) -> None:
    """What was quiet for too long ends, and memory is asked again."""
    walk.engine.fails = walk.random.random() < 0.3
    client = walk.client()
    asked = walk.engine.asked
    idle = [talk for talk in walk.talks.values() if talk.is_idle(walk.clock.now_ms())]
    swept = walk.attempt(f"sweep, memory fails={walk.engine.fails}", (), client.hf.sweep_sessions)
    assert swept.ended == len(idle)
    for talk in idle:
        talk.end("timeout", reset=True)
    owed = sum(len(talk.pending) for talk in walk.talks.values())
    assert (swept.handed_over, walk.engine.asked - asked) == (0 if walk.engine.fails else owed, owed)
    for id, talk in walk.talks.items():
        _offer(walk, id, talk)
        look.at_talk(walk, client, id, talk)


def pass_time(walk: Walk) -> None:
    seconds = walk.random.choice((1, 30, 70, 700))
    walk.note(f"{seconds} seconds pass")
    walk.clock.advance(seconds * SECOND)


def begin_again(walk: Walk) -> None:
    """A process ends, and another begins."""
    at = walk.random.randrange(len(walk.clients))
    walk.note(f"client {walk.clients[at].number} goes, another comes")
    walk.clients[at].end(close=walk.memory is None)
    walk.clients[at] = walk.new_client()


def rebuild(walk: Walk) -> None:
    walk.note("rebuild")
    rebuild_alone(walk.journal)


OPERATIONS: dict[Callable[[Walk], None], int] = {
    ops.say: 40,
    ops.say_again: 4,
    ops.read_pages: 6,
    ops.pack: 14,
    edit.rewind: 7,
    edit.fork: 5,
    edit.pin: 4,
    edit.compact: 7,
    edit.expand: 3,
    open_session: 7,
    end: 3,
    sweep: 2,
    pass_time: 2,
    begin_again: 2,
    rebuild: 1,
}


def choose(walk: Walk) -> Callable[[Walk], None]:
    """What is done next; at first there must be a session."""
    if not walk.talks:
        return open_session
    return walk.random.choices(list(OPERATIONS), list(OPERATIONS.values()))[0]

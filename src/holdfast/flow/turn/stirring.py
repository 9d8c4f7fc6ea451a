"""Which turns can go on now: nobody works on them, and they do not wait for a person.

Reading only. How a stream stands follows from what its journal says, from the time, and from who holds it here: what
was found stays true until one of these changes, so that nobody has to look again before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from holdfast.core.decide.questions import due
from holdfast.core.stack import all_suspended, in_order
from holdfast.flow.stack.showing import current
from holdfast.flow.turn import turns
from holdfast.flow.turn.turns import View
from holdfast.flow.turn.writing import Place
from holdfast.ports import Acting, Ports
from holdfast.records.frames import Frame, StreamState
from holdfast.records.scope import MAIN_THREAD, Scope, parse_scope


class Stirring(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that can go on."""

    tenant: str
    frame: str
    session: str
    thread: str


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """How a stream stood when it was looked at, and for how long that can be relied on."""

    versions: dict[str, int]
    """Of the stream, and of every other one that it depends on."""
    since: int
    until: float
    """When the next thing in it falls due by the clock alone."""
    held: bool
    """Whether this process worked on it."""
    turn: Stirring | None = None
    """What can go on in it, whoever holds it elsewhere: who has died since changes nothing in a journal."""

    def holds(self, versions: Mapping[str, int], now: int, held: bool) -> bool:
        """Whether it stands like that now."""
        return (
            self.since <= now < self.until
            and self.held == held
            and all(versions.get(name, 0) == version for name, version in self.versions.items())
        )


def standing(ports: Ports, acting: Acting, stream: str, agent: str | None, since: int) -> Standing:
    """How a stream stands, for one agent or for all. `since` is the time at which the look began."""
    held = ports.leases.holds(acting.tenant, stream)
    state = current(ports, acting, stream)
    # Versions are read before what they stand for: what came in between is looked at once more, and never missed.
    versions = {stream: state.version}
    turn = None if held else _in_stream(ports, acting, stream, state, agent, versions)
    set_back = ports.clock.now_ms() < since
    until = since if set_back else next_due(state.frames, since)
    return Standing(versions=versions, since=since, until=until, held=held, turn=turn)


def next_due(frames: Mapping[str, Frame], now: int) -> float:
    """When a timer rings, a question expires or a deadline passes, of those that are still to come."""
    times: list[int] = []
    for frame in frames.values():
        question = frame.question
        if question is not None:
            times += [] if question.until is None else [question.until]
            times += [] if question.expires_at is None else [question.expires_at + 1]
        elif frame.deadline is not None and not all_suspended(frames, frame.id):
            times.append(frame.deadline + 1)
    return min((time for time in times if time > now), default=math.inf)


def _in_stream(
    ports: Ports, acting: Acting, stream: str, state: StreamState, agent: str | None, versions: dict[str, int]
) -> Stirring | None:
    scope = parse_scope(stream)
    session, thread = scope.get("session"), scope.get("thread") or MAIN_THREAD
    if session is None or scope.get("actor") != turns.ACTOR:
        return None
    place = Place(actor=stream, line=Scope.thread(session, thread).text)
    for frame in in_order(state.frames):
        turn = turns.turn_place(ports, acting, place, frame) if frame.parent is None else None
        if turn is None or (agent is not None and turns.agent_of(ports, acting, stream, frame) != agent):
            continue
        view = turns.look(ports, acting, turn)
        if view is not None:
            versions[turn.line] = view.versions[1]
            if _can_go_on(view, ports.clock.now_ms()):
                return Stirring(tenant=acting.tenant, frame=frame.id, session=session, thread=thread)
    return None


def _can_go_on(view: View, now: int) -> bool:
    if view.step.next != "wait":
        return True
    return view.frame.question is not None and due(view.frame.question, now)

"""Which turns can go on now: nobody works on them, and they do not wait for a person.

Reading only. Cost follows what is live: each stream with live frames is looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.decide.questions import due
from holdfast.core.stack import in_order
from holdfast.flow.stack import sweeping
from holdfast.flow.stack.showing import current, streams_with_work
from holdfast.flow.turn import turns
from holdfast.flow.turn.turns import View
from holdfast.flow.turn.writing import Place
from holdfast.ports import Acting, Ports
from holdfast.records.scope import MAIN_THREAD, Scope, parse_scope


class Stirring(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that can go on."""

    frame: str
    session: str
    thread: str


def stirring(ports: Ports, acting: Acting, agent: str | None = None) -> list[Stirring]:
    """Turns that can go on, of one agent or of all; what expired is settled on the way.

    Nobody is waited for. Who works on a turn elsewhere is watched from one look to the next.
    """
    sweeping.sweep(ports, acting, patient=False)
    found: list[Stirring] = []
    for stream in streams_with_work(ports, acting):
        found += _in_stream(ports, acting, stream, agent)
    return found


def _in_stream(ports: Ports, acting: Acting, stream: str, agent: str | None) -> Sequence[Stirring]:
    scope = parse_scope(stream)
    session, thread = scope.get("session"), scope.get("thread") or MAIN_THREAD
    if session is None or scope.get("actor") != turns.ACTOR or ports.leases.holds(acting.tenant, stream):
        return []
    place = Place(actor=stream, line=Scope.thread(session, thread).text)
    for frame in in_order(current(ports, acting, stream).frames):
        turn = turns.turn_place(ports, acting, place, frame) if frame.parent is None else None
        if turn is None or (agent is not None and turns.agent_of(ports, acting, stream, frame) != agent):
            continue
        view = turns.look(ports, acting, turn)
        if view is not None and _can_go_on(view, ports.clock.now_ms()):
            free = ports.leases.seems_free(acting.tenant, stream)
            return [Stirring(frame=frame.id, session=session, thread=thread)] if free else []
    return []


def _can_go_on(view: View, now: int) -> bool:
    if view.step.next != "wait":
        return True
    return view.frame.question is not None and due(view.frame.question, now)

"""Which turns can go on now: nobody works on them, and they do not wait for a person.

Reading only. How a stream stands follows from what its journal says, from the time, and from who holds it here: what
was found stays true until one of these changes, so that nobody has to look again before.

Looking again and again for turns that can go on, at a cost that follows what changed since the last look.

What was found about a stream is remembered with the versions that it was found at, and until when. While nothing at
all is written, a look reads nothing of what waits; else it reads versions, some hundreds at a time. It finds what
somebody who remembers nothing would find: only what can be told apart from what was seen is looked at again.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.frames.questions import due
from holdfast.core.frames.stack import all_suspended, in_order
from holdfast.errors import Corrupt
from holdfast.flow.frames import sweep
from holdfast.flow.frames.read import current, pages_of_work
from holdfast.flow.turns import turns
from holdfast.flow.turns.append import Place
from holdfast.flow.turns.turns import View
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


T = TypeVar("T")


class Watching:
    """What an agent, or with None any, could go on with: in some tenants, or with None in all that have live frames."""

    def __init__(self, ports: Ports, acting: Acting, agent: str | None, tenants: Sequence[str] | None) -> None:
        self._ports, self._acting, self._agent, self._wanted = ports, acting, agent, tenants
        self._watched: dict[str, _Watched] = {}
        self._seen: int | None = None
        self._mutex = threading.Lock()

    @property
    def tenants(self) -> list[str]:
        """Those that were looked at last."""
        return list(self._watched)

    def look(self) -> list[Stirring]:
        """Turns that can go on; what expired is settled on the way.

        Nobody is waited for. Who works on a turn elsewhere is watched from one look to the next.
        """
        with self._mutex:
            # Before anything is read: what is written meanwhile is a change for the next look.
            position = self._ports.journal.position()
            changed, self._seen = position != self._seen, None
            if changed:
                wanted = self._ports.journal.tenants_with_work() if self._wanted is None else self._wanted
                self._watched = {name: self._watched.get(name) or self._begun(name) for name in wanted}
            found = [turn for watched in self._watched.values() for turn in watched.look(changed)]
            self._seen = position
            return found

    def _begun(self, tenant: str) -> _Watched:
        own = tenant == self._acting.tenant
        acting = self._acting if own else replace(self._acting, tenant=tenant, whole=False)
        return _Watched(self._ports, acting, self._agent)


class _Watched:
    """One tenant's streams with live frames, and how each of them stood."""

    def __init__(self, ports: Ports, acting: Acting, agent: str | None) -> None:
        self._ports, self._acting, self._agent = ports, acting, agent
        self._streams: list[str] = []
        self._versions: dict[str, int] = {}
        self._known: dict[str, Standing] = {}

    def look(self, changed: bool) -> list[Stirring]:
        now = self._ports.clock.now_ms()
        if changed:
            self._list()
        stale = self._stale(now)
        calm, acted = self._settled(stale)
        if acted:  # What was settled in one stream may let a turn of another one go on.
            self._list()
            stale = self._stale(now)
        looked = self._looked(stale, calm, now)
        found = ((stream, looked.get(stream) or self._known.get(stream)) for stream in self._streams)
        ready = [(stream, one.turn) for stream, one in found if one is not None and one.turn is not None]
        return [turn for stream, turn in ready if self._ports.leases.seems_free(self._acting.tenant, stream)]

    def _list(self) -> None:
        """The streams that have live frames, with their versions and those of the lines that they depend on."""
        streams: list[str] = []
        versions: dict[str, int] = {}
        for page in pages_of_work(self._ports, self._acting):
            names = [head.stream for head in page]
            streams += names
            versions.update((head.stream, head.version) for head in page)
            lines = [line for name in names if name in self._known for line in self._known[name].versions]
            others = [line for line in lines if line not in versions]
            if others:
                versions.update(self._ports.journal.versions(self._acting.tenant, others))
        self._streams, self._versions = streams, versions
        self._known = {name: self._known[name] for name in streams if name in self._known}

    def _stale(self, now: int) -> list[str]:
        """Streams of which nothing is known that still holds."""
        holds, tenant = self._ports.leases.holds, self._acting.tenant
        return [
            name
            for name in self._streams
            if (known := self._known.get(name)) is None or not known.holds(self._versions, now, holds(tenant, name))
        ]

    def _settled(self, streams: Sequence[str]) -> tuple[dict[str, int], bool]:
        """Do what is due in some streams; gives the versions at which nothing was, and whether anything was done."""
        calm, acted = {}, False
        for stream in streams:
            settled = _if_readable(partial(sweep.settle, self._ports, self._acting, stream, patient=False))
            if settled is not None and settled.calm_at is not None:
                calm[stream] = settled.calm_at
            acted = acted or (settled is not None and settled.acted)
        return calm, acted

    def _looked(self, streams: Sequence[str], calm: dict[str, int], now: int) -> dict[str, Standing]:
        """How some streams stand. It is remembered where nothing was due at that very version."""
        looked: dict[str, Standing] = {}
        for stream in streams:
            self._known.pop(stream, None)
            found = _if_readable(partial(standing, self._ports, self._acting, stream, self._agent, now))
            if found is None:
                continue
            looked[stream] = found
            if calm.get(stream) == found.versions[stream]:
                self._known[stream] = found
                self._versions.update(found.versions)
        return looked


def _if_readable(act: Callable[[], T]) -> T | None:
    """What came of looking at a stream; None if it is damaged, which is no reason to leave all others alone."""
    try:
        return act()
    except Corrupt:
        return None

"""Find turns that can go on: no process works on them, and they do not wait for a person.

The result for a stream depends on its journal, the time, and whether this process holds it. It is remembered with
those versions and its deadline, so the cost of looking follows what changed. Equivalent to a full scan: a stream is
rescanned only if one of these changed. While nothing at all is written, nothing of the waiting streams is read.

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
    """The readiness of a stream when it was read, and for how long it can be relied on."""

    versions: dict[str, int]
    """Versions of the stream and of the others that it depends on."""
    since: int
    until: float
    """The time when something next falls due by the clock alone."""
    held: bool
    """True if this process worked on the stream."""
    turn: Stirring | None = None
    """The turn that can go on, whichever process holds the stream: an owner's death leaves no trace in the journal."""

    def holds(self, versions: Mapping[str, int], now: int, held: bool) -> bool:
        """Return True if the result still holds."""
        return (
            self.since <= now < self.until
            and self.held == held
            and all(versions.get(name, 0) == version for name, version in self.versions.items())
        )


def standing(ports: Ports, acting: Acting, stream: str, agent: str | None, since: int) -> Standing:
    """Read the readiness of a stream, for one agent or for all. `since` is the time at which the scan began."""
    held = ports.leases.holds(acting.tenant, stream)
    state = current(ports, acting, stream)
    # Versions are read before the content: a write in between causes one more read and is never missed.
    versions = {stream: state.version}
    turn = None if held else _in_stream(ports, acting, stream, state, agent, versions)
    set_back = ports.clock.now_ms() < since
    until = since if set_back else next_due(state.frames, since)
    return Standing(versions=versions, since=since, until=until, held=held, turn=turn)


def next_due(frames: Mapping[str, Frame], now: int) -> float:
    """Return when the next timer, question expiry or deadline falls due; infinity if there is none."""
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
    """A watch for turns that one agent (None: any) can continue, in some tenants (None: all with live frames)."""

    def __init__(self, ports: Ports, acting: Acting, agent: str | None, tenants: Sequence[str] | None) -> None:
        self._ports, self._acting, self._agent, self._wanted = ports, acting, agent, tenants
        self._watched: dict[str, _Watched] = {}
        self._seen: int | None = None
        self._mutex = threading.Lock()

    @property
    def tenants(self) -> list[str]:
        """The tenants of the last scan."""
        return list(self._watched)

    def look(self) -> list[Stirring]:
        """Sweep due work and return the turns that can go on.

        Never waits. Owners in other processes are watched from one scan to the next.
        """
        with self._mutex:
            # Read first: a write during the scan is a change for the next scan.
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
    """One tenant's streams with live frames, and the readiness of each."""

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
        if acted:  # A sweep in one stream may let a turn in another one go on.
            self._list()
            stale = self._stale(now)
        looked = self._looked(stale, calm, now)
        found = ((stream, looked.get(stream) or self._known.get(stream)) for stream in self._streams)
        ready = [(stream, one.turn) for stream, one in found if one is not None and one.turn is not None]
        return [turn for stream, turn in ready if self._ports.leases.seems_free(self._acting.tenant, stream)]

    def _list(self) -> None:
        """List the streams with live frames, their versions and those of the threads they depend on."""
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
        holds, tenant = self._ports.leases.holds, self._acting.tenant
        return [
            name
            for name in self._streams
            if (known := self._known.get(name)) is None or not known.holds(self._versions, now, holds(tenant, name))
        ]

    def _settled(self, streams: Sequence[str]) -> tuple[dict[str, int], bool]:
        """Sweep some streams; return the versions at which nothing was due, and True if anything was done."""
        calm, acted = {}, False
        for stream in streams:
            settled = _if_readable(partial(sweep.settle, self._ports, self._acting, stream, patient=False))
            if settled is not None and settled.calm_at is not None:
                calm[stream] = settled.calm_at
            acted = acted or (settled is not None and settled.acted)
        return calm, acted

    def _looked(self, streams: Sequence[str], calm: dict[str, int], now: int) -> dict[str, Standing]:
        """Read the readiness of some streams; remember it where nothing was due at that very version."""
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
    """Return the result of `act`; None if the stream is damaged, so that the other streams are still scanned."""
    try:
        return act()
    except Corrupt:
        return None

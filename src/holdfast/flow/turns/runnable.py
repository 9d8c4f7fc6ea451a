"""Find turns that can go on: no process works on them, and they do not wait for a person.

The result for a stream depends on its journal, the time, and whether this process holds it. It is remembered with
those versions and its deadline, so the cost of looking follows what changed. Equivalent to a full scan: a stream is
rescanned only if one of these changed. While nothing at all is written, nothing of the waiting streams is read.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from holdfast.core.frames.questions import is_resumable
from holdfast.core.frames.stack import is_all_suspended, walk_root_first
from holdfast.errors import Corrupt
from holdfast.flow.frames.read import load_current_state, read_work_pages
from holdfast.flow.turns import sweep, turns
from holdfast.flow.turns.append import TurnPlace
from holdfast.ports import Env
from holdfast.records.batches import HeadQuery
from holdfast.records.frames import FrameState, StreamState
from holdfast.records.scope import MAIN_THREAD, Scope, parse_scope


class RunnableTurn(msgspec.Struct, frozen=True, kw_only=True):
    """A turn that can go on."""

    tenant: str
    frame: str
    session: str
    thread: str


class StreamReadiness(msgspec.Struct, frozen=True, kw_only=True):
    """The readiness of a stream when it was read, and for how long it can be relied on."""

    versions: dict[str, int]
    """Versions of the stream and of the others that it depends on."""
    since: int
    until: float
    """The time when something next falls due by the clock alone."""
    held: bool
    """True if this process worked on the stream."""
    turn: RunnableTurn | None = None
    """The turn that can go on, whichever process holds the stream: an owner's death leaves no trace in the journal."""

    def is_current(self, versions: Mapping[str, int], now: int, held: bool) -> bool:
        """Return True if the result still holds."""
        return (
            self.since <= now < self.until
            and self.held == held
            and all(versions.get(name, 0) == version for name, version in self.versions.items())
        )


def read_readiness(env: Env, stream: str, agent: str | None, since: int) -> StreamReadiness:
    """Read the readiness of a stream, for one agent or for all. `since` is the time at which the scan began."""
    held = env.leases.holds(env.tenant, stream)
    state = load_current_state(env, stream)
    # Versions are read before the content: a write in between causes one more read and is never missed.
    versions = {stream: state.version}
    turn = None if held else _find_runnable_turn(env, stream, state, agent, versions)
    set_back = env.clock.now_ms() < since
    until = since if set_back else next_due_time(state.frames, since)
    return StreamReadiness(versions=versions, since=since, until=until, held=held, turn=turn)


def next_due_time(frames: Mapping[str, FrameState], now: int) -> float:
    """Return when the next timer, question expiry or deadline falls due; infinity if there is none."""
    times: list[int] = []
    for frame in frames.values():
        question = frame.question
        if question is not None:
            times += [] if question.until is None else [question.until]
            times += [] if question.expires_at is None else [question.expires_at + 1]
        elif frame.deadline is not None and not is_all_suspended(frames, frame.id):
            times.append(frame.deadline + 1)
    return min((time for time in times if time > now), default=math.inf)


def _find_runnable_turn(
    env: Env, stream: str, state: StreamState, agent: str | None, versions: dict[str, int]
) -> RunnableTurn | None:
    scope = parse_scope(stream)
    session, thread = scope.get("session"), scope.get("thread") or MAIN_THREAD
    if session is None or scope.get("actor") != turns.TURN_ACTOR:
        return None
    place = TurnPlace(actor=stream, thread=Scope.thread(session, thread).text)
    for frame in walk_root_first(state.frames):
        turn = turns.find_frame_turn(env, place, frame) if frame.parent is None else None
        if turn is None or (agent is not None and turns.find_turn_agent(env, stream, frame) != agent):
            continue
        view = turns.read_turn(env, turn)
        if view is not None:
            versions[turn.thread] = view.versions[1]
            question, waits = view.frame.question, view.step.next == "wait"
            if not waits or (question is not None and is_resumable(question, env.clock.now_ms())):
                return RunnableTurn(tenant=env.tenant, frame=frame.id, session=session, thread=thread)
    return None


class RunnableTurnWatch:
    """A watch for turns that one agent (None: any) can continue, in some tenants (None: all with live frames)."""

    def __init__(self, env: Env, agent: str | None, tenants: Sequence[str] | None) -> None:
        self._env, self._agent, self._wanted = env, agent, tenants
        self._watched: dict[str, _TenantWatch] = {}
        self._seen: int | None = None
        self._mutex = threading.Lock()

    @property
    def tenants(self) -> list[str]:
        """The tenants of the last scan."""
        return list(self._watched)

    def find_runnable_turns(self) -> list[RunnableTurn]:
        """Sweep due work and return the turns that can go on.

        Never waits. Owners in other processes are watched from one scan to the next.
        """
        with self._mutex:
            # Read first: a write during the scan is a change for the next scan.
            position = self._env.journal.position()
            changed, self._seen = position != self._seen, None
            if changed:
                wanted = self._env.journal.tenants(live=True) if self._wanted is None else self._wanted
                self._watched = {name: self._watched.get(name) or self._watch_tenant(name) for name in wanted}
            found = [turn for watched in self._watched.values() for turn in watched.find_runnable_turns(changed)]
            self._seen = position
            return found

    def _watch_tenant(self, tenant: str) -> _TenantWatch:
        own = tenant == self._env.tenant
        env = self._env if own else replace(self._env, tenant=tenant, whole=False)
        return _TenantWatch(env, self._agent)


class _TenantWatch:
    """One tenant's streams with live frames, and the readiness of each."""

    def __init__(self, env: Env, agent: str | None) -> None:
        self._env, self._agent = env, agent
        self._streams: list[str] = []
        self._versions: dict[str, int] = {}
        self._known: dict[str, StreamReadiness] = {}

    def find_runnable_turns(self, changed: bool) -> list[RunnableTurn]:
        now = self._env.clock.now_ms()
        if changed:
            self._list_streams()
        stale = self._find_stale(now)
        calm, acted = self._sweep_streams(stale)
        if acted:  # A sweep in one stream may let a turn in another one go on.
            self._list_streams()
            stale = self._find_stale(now)
        looked = self._read_streams(stale, calm, now)
        found = ((stream, looked.get(stream) or self._known.get(stream)) for stream in self._streams)
        ready = [(stream, one.turn) for stream, one in found if one is not None and one.turn is not None]
        return [turn for stream, turn in ready if self._env.leases.seems_free(self._env.tenant, stream)]

    def _list_streams(self) -> None:
        """List the streams with live frames, their versions and those of the threads they depend on."""
        streams: list[str] = []
        versions: dict[str, int] = {}
        for page in read_work_pages(self._env):
            names = [head.stream for head in page]
            streams += names
            versions.update((head.stream, head.version) for head in page)
            threads = [thread for name in names if name in self._known for thread in self._known[name].versions]
            others = [thread for thread in threads if thread not in versions]
            if others:
                heads = self._env.journal.heads(self._env.tenant, HeadQuery(streams=tuple(others)))
                versions.update((head.stream, head.version) for head in heads)
        self._streams, self._versions = streams, versions
        self._known = {name: self._known[name] for name in streams if name in self._known}

    def _find_stale(self, now: int) -> list[str]:
        holds, tenant = self._env.leases.holds, self._env.tenant
        return [
            name
            for name in self._streams
            if (known := self._known.get(name)) is None
            or not known.is_current(self._versions, now, holds(tenant, name))
        ]

    def _sweep_streams(self, streams: Sequence[str]) -> tuple[dict[str, int], bool]:
        """Sweep some streams; return the versions at which nothing was due, and True if anything was done."""
        calm, acted = {}, False
        for stream in streams:
            with suppress(Corrupt):  # The other streams are still swept.
                settled = sweep.sweep_stream(self._env, stream, patient=False)
                if settled.calm_at is not None:
                    calm[stream] = settled.calm_at
                acted = acted or any(what != sweep.SKIPPED for what, _ in settled.done)
        return calm, acted

    def _read_streams(self, streams: Sequence[str], calm: dict[str, int], now: int) -> dict[str, StreamReadiness]:
        """Read the readiness of some streams; remember it where nothing was due at that very version."""
        looked: dict[str, StreamReadiness] = {}
        for stream in streams:
            self._known.pop(stream, None)
            with suppress(Corrupt):  # The other streams are still read.
                found = looked[stream] = read_readiness(self._env, stream, self._agent, now)
                if calm.get(stream) == found.versions[stream]:
                    self._known[stream] = found
                    self._versions.update(found.versions)
        return looked

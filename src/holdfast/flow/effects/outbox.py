"""The outbox: deliver declared effects to their sinks, in order, at least once, by one process at a time.

A lane holds the effects that one stream declared for one sink. A failed effect stops its own lane only, and is
retried later, up to a limit; then it is dead, and a person must look at it. The attempt comes first and its outcome
is journaled after it, so a crash in between delivers the same id again and never loses one. Reading, rebuilding or
restoring a journal sends nothing: only `dispatch_effects` sends.

"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.core import effects as rules
from holdfast.core.values import words
from holdfast.errors import ActorBusy, Conflict, EffectRefused, InvalidValue, StaleEpoch, Unavailable
from holdfast.flow.effects.default_sinks import built_in
from holdfast.flow.effects.settle import owner_of, settle, storable
from holdfast.flow.effects.sinks import is_awaitable, sinks_of
from holdfast.flow.frames.read import event_at
from holdfast.flow.frames.takeover import let_go, take, take_free
from holdfast.ports import Acting, Ports, Sink
from holdfast.records.batches import Row
from holdfast.records.effects import BUILT_IN, DeclaredEffect, Dispatched
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.ids import ulid_text
from holdfast.records.scope import Scope

LOOK_AHEAD: Final = 8
ERASED_REASON: Final = "What it was about was erased before it was sent."
NO_SINK: Final = "No sink of this name was registered in the process that looked."


class _Lane(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of one stream for one sink, up to the stream's version when we began."""

    sink: str
    stream: str
    until: int
    attempts: int


class _Run(msgspec.Struct, kw_only=True):
    """The remaining allowance of a dispatch, and its outcomes so far."""

    left: int | None
    done: dict[str, int] = msgspec.field(default_factory=dict)

    def note(self, outcome: str) -> None:
        self.done[outcome] = self.done.get(outcome, 0) + 1
        if self.left is not None:
            self.left -= 1

    def may_go_on(self) -> bool:
        return self.left is None or self.left > 0


def dispatch(ports: Ports, acting: Acting, *, sink: str | None = None, limit: int | None = None) -> Dispatched:
    """Deliver the due effects to their sinks: all that were declared before now, or at most `limit`."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 1):
        raise InvalidValue(f"limit must be a whole number of at least 1, not {limit!r:.40}.")
    run = _Run(left=limit)
    busy = []
    for lanes in _by_sink(ports, acting, sink):
        done = not run.may_go_on() or _sink(ports, acting, lanes, run, wait=False)
        if not done:
            busy.append(lanes)
    # Watching another process for signs of life takes time, so busy sinks come last.
    for lanes in busy:
        if run.may_go_on() and _known(ports, acting, lanes[0].sink):
            _sink(ports, acting, lanes, run, wait=True)
    return Dispatched(**run.done)


def _known(ports: Ports, acting: Acting, name: str) -> bool:
    return name in BUILT_IN or sinks_of(ports).find(acting.tenant, name) is not None


def _by_sink(ports: Ports, acting: Acting, only: str | None) -> list[list[_Lane]]:
    """Return lanes with a due effect, by sink; sinks that failed before come last, so that they delay no others."""
    found: dict[str, list[_Lane]] = {}
    for stream, first in ports.journal.lanes(acting.tenant, only):
        name = str(first["sink"])
        if not _may_go(ports, acting, name, first):
            continue
        head = ports.journal.head(acting.tenant, stream)
        assert head is not None, "a stream with effects has events"
        lane = _Lane(sink=name, stream=stream, until=head.version, attempts=0)
        row = _next(ports, acting, lane)
        if row is not None:
            found.setdefault(name, []).append(replace(lane, attempts=_number(row, "attempts")))
    for lanes in found.values():
        lanes.sort(key=lambda lane: lane.attempts)
    return sorted(found.values(), key=lambda lanes: lanes[-1].attempts)


def _number(row: Row, name: str) -> int:
    value = row[name]
    assert isinstance(value, int)
    return value


def _passed_over(ports: Ports, acting: Acting, name: str, row: Row) -> bool:
    """Return True if a lane goes on without this dead effect."""
    sink = sinks_of(ports).find(acting.tenant, name)
    return row["status"] == "dead" and sink is not None and sink.when_dead == "go_on"


def _is_due(ports: Ports, acting: Acting, name: str, row: Row) -> bool:
    """Return True if an effect can be delivered now, if it is first."""
    if row["status"] in ("dead", "approval") or (row["status"] == "deferred" and not _known(ports, acting, name)):
        return False
    return rules.is_due(row, ports.clock.now_ms())


def _may_go(ports: Ports, acting: Acting, name: str, first: Row) -> bool:
    """Return True if a lane with this first effect is worth reading. Most stopped lanes end here, at no more cost."""
    return _passed_over(ports, acting, name, first) or _is_due(ports, acting, name, first)


def _next(ports: Ports, acting: Acting, lane: _Lane) -> Row | None:
    """Return the next row to deliver in a lane; None if the lane is empty, stopped, or not due."""
    wide = LOOK_AHEAD
    while True:
        rows = ports.journal.lane(acting.tenant, lane.sink, lane.stream, wide)
        for row in rows:
            if _passed_over(ports, acting, lane.sink, row):
                continue
            late = _number(row, "version") > lane.until
            return row if not late and _is_due(ports, acting, lane.sink, row) else None
        if len(rows) < wide:
            return None
        wide *= 4


def lease_of(sink: str) -> str:
    """Return the stream whose owner delivers effects to a sink."""
    return Scope.custom("outbox", sink).text


def _sink(ports: Ports, acting: Acting, lanes: Sequence[_Lane], run: _Run, *, wait: bool) -> bool:
    """Work on the lanes of one sink; return False if another process does."""
    name = lanes[0].sink
    # The lease excludes other processes; the block excludes other threads of this one.
    here = (acting.tenant, f"outbox of {name}")
    if ports.leases.draining or not ports.leases.enter_block(*here):
        return True
    try:
        place = lease_of(name)
        try:
            epoch = (take if wait else take_free)(ports, acting, place)
        except ActorBusy:
            return False
        with suppress(StaleEpoch):  # This process was taken for dead, and another has taken over.
            try:
                _work(ports, acting, lanes, run, epoch)
            finally:
                let_go(ports, acting, place, epoch)
    finally:
        ports.leases.blocks.discard(here)
    return True


def _work(ports: Ports, acting: Acting, lanes: Sequence[_Lane], run: _Run, epoch: int) -> None:
    """Deliver one effect of each lane in turn, until all lanes are empty or stopped."""
    waiting = deque(lanes)
    while waiting and run.may_go_on() and not ports.leases.draining:
        lane = waiting.popleft()
        row = _next(ports, acting, lane)
        if row is None:
            continue
        _check_owner(ports, acting, lane.sink, epoch)
        outcome = _attempt(ports, acting, lane, row)
        if outcome is None:
            _check_owner(ports, acting, lane.sink, epoch)
        else:
            run.note(outcome)
        # A failed lane is not retried in this dispatch, however long the others take.
        if outcome != "failed":
            waiting.append(lane)


def _check_owner(ports: Ports, acting: Acting, sink: str, epoch: int) -> None:
    """Raise StaleEpoch if the lease was taken over: a process that slept must learn it before it sends."""
    place = lease_of(sink)
    head = ports.journal.head(acting.tenant, place)
    if head is None or head.epoch != epoch or head.holder != ports.leases.name:
        ports.leases.lost(acting.tenant, place)
        raise StaleEpoch(place, epoch, epoch + 1 if head is None else head.epoch)


def _attempt(ports: Ports, acting: Acting, lane: _Lane, row: Row) -> str | None:
    """Deliver one effect and journal the outcome; return None if it had been settled elsewhere."""
    event = event_at(ports, acting, lane.stream, _number(row, "version"))
    assert event is not None, "a row names the event that made it"
    attempts = _number(row, "attempts")
    if event.content is ERASED:
        content = storable(ports, reason=ERASED_REASON)
        return settle(ports, acting, lane.stream, row, "skipped", attempts=attempts, content=content)
    owner = owner_of(event)
    sink = built_in(ports, replace(acting, user=event.content.user), lane.sink)
    sink = sink or sinks_of(ports).find(acting.tenant, lane.sink)
    if sink is None:  # It was never registered, or was removed meanwhile.
        content = storable(ports, reason=NO_SINK)
        return settle(ports, acting, lane.stream, row, "deferred", attempts=attempts, content=content)
    try:
        answer = _deliver(sink, _declared(acting, lane, row, event))
    except Exception as error:  # noqa: BLE001  a sink is somebody else's code
        return _failed(ports, acting, lane, row, sink, error, owner)
    content = storable(ports, answer)
    return settle(ports, acting, lane.stream, row, "applied", attempts=attempts + 1, content=content, subject=owner)


def _declared(acting: Acting, lane: _Lane, row: Row, event: Event) -> DeclaredEffect:
    id = row["effect_id"]
    assert isinstance(id, bytes)
    return DeclaredEffect(
        id=ulid_text(id),
        kind=event.facts.kind,
        sink=lane.sink,
        payload=rules.payload_of(rules.from_wire(event.content.payload)),
        scope=lane.stream,
        tenant=acting.tenant,
        operator=event.facts.operator,
        attempt=_number(row, "attempts") + 1,
        declared_at=event.at,
    )


def _deliver(sink: Sink, effect: DeclaredEffect) -> Any:
    """Return the sink's answer; refuse an awaitable, which would never be run."""
    answer = sink.deliver(effect)
    if is_awaitable(answer):
        if inspect.iscoroutine(answer):
            answer.close()
        raise EffectRefused("The sink gave something to be awaited. Use holdfast.open_async, or a sink that is done.")
    return answer


def _failed(
    ports: Ports, acting: Acting, lane: _Lane, row: Row, sink: Sink, error: Exception, owner: str | None
) -> str | None:
    attempts, now = _number(row, "attempts") + 1, ports.clock.now_ms()
    waits = sink.patient and isinstance(error, Conflict | Unavailable)
    dead = rules.is_final(error) or (attempts >= ports.settings.effect_attempts and not waits)
    chance = int.from_bytes(ports.ids.salt()[:4], "big") / 2**32
    delay = rules.retry_ms(attempts, chance, getattr(error, "retry_after", None))
    return settle(
        ports,
        acting,
        lane.stream,
        row,
        "dead" if dead else "failed",
        attempts=attempts,
        retry_at=None if dead else now + delay,
        content=storable(ports, reason=words(error)),
        subject=owner,
    )

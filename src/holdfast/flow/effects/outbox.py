"""The outbox: deliver declared effects to their sinks, in order, at least once, by one process at a time.

A lane holds the effects that one stream declared for one sink. A failed effect stops its own lane only, and is
retried later, up to a limit; then it is dead, and a person must look at it. The attempt comes first and its outcome
is journaled after it, so a crash in between delivers the same id again and never loses one. After a process that
died at a sink, each attempt there is also journaled before the delivery: an effect that kills its process dies like
one that fails. Reading, rebuilding or restoring a journal sends nothing: only `dispatch_effects` sends.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core import effects as rules
from holdfast.core.numbers import check_number
from holdfast.core.values import discard_awaitable, exception_text
from holdfast.errors import (
    ActorBusy,
    Conflict,
    Corrupt,
    EffectRefused,
    HoldfastError,
    KeyReused,
    Refused,
    StaleEpoch,
    Unavailable,
    VersionConflict,
)
from holdfast.flow.effects.settle import effect_owner, settle_effect
from holdfast.flow.effects.sinks import find_default_sink
from holdfast.flow.frames.read import read_event, row_ulid
from holdfast.flow.frames.takeover import release_stream, take_free_stream, take_stream
from holdfast.ports import Env, Sink
from holdfast.records.batches import Row, RowQuery
from holdfast.records.effects import BUILT_IN_SINKS, DeclaredEffect, DispatchReport
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.scope import Scope

LOOK_AHEAD: Final = 8
ERASED_REASON: Final = "What it was about was erased before it was sent."
UNKNOWN_REASON: Final = "The process that delivered it ended before the outcome was known."
LANE_ERRORS: Final = (Refused, KeyReused, VersionConflict, Corrupt)
"""Errors of one lane's stream. They are raised once all other lanes were dispatched; others concern the journal."""
NO_SINK_REASON: Final = "No sink of this name was registered in the process that looked."


class _Lane(msgspec.Struct, frozen=True, kw_only=True):
    """The effects of one stream for one sink, up to the stream's version when we began."""

    sink: str
    stream: str
    until: int
    attempts: int


class _DispatchRun(msgspec.Struct, kw_only=True):
    """The remaining allowance of a dispatch, its outcomes so far, and the errors of lanes that were left."""

    left: int | None
    done: dict[str, int] = msgspec.field(default_factory=dict)
    errors: list[HoldfastError] = msgspec.field(default_factory=list)

    def note(self, outcome: str) -> None:
        self.done[outcome] = self.done.get(outcome, 0) + 1
        if self.left is not None:
            self.left -= 1

    def has_allowance(self) -> bool:
        return self.left is None or self.left > 0


def dispatch_effects(env: Env, *, sink: str | None = None, limit: int | None = None) -> DispatchReport:
    """Deliver the due effects to their sinks: all that were declared before now, or at most `limit`."""
    if limit is not None:
        check_number("limit", limit, least=1)
    run = _DispatchRun(left=limit)
    all_lanes = _group_lanes_by_sink(env, sink)
    busy = [lanes for lanes in all_lanes if run.has_allowance() and not _dispatch_sink(env, lanes, run, wait=False)]
    # Watching another process for signs of life takes time, so busy sinks come last.
    for lanes in busy:
        if run.has_allowance() and _has_sink(env, lanes[0].sink):
            _dispatch_sink(env, lanes, run, wait=True)
    if run.errors:
        raise run.errors[0]
    return DispatchReport(**run.done)


def _has_sink(env: Env, name: str) -> bool:
    return name in BUILT_IN_SINKS or env.sinks.find(env.tenant, name) is not None


def _group_lanes_by_sink(env: Env, only: str | None) -> list[list[_Lane]]:
    """Return lanes with a due effect, by sink; sinks that failed before come last, so that they delay no others."""
    found: dict[str, list[_Lane]] = {}
    for stream, first in env.journal.lanes(env.tenant, only):
        name = str(first["sink"])
        if not _is_skipped(env, name, first) and not _is_due(env, name, first):
            continue  # Most stopped lanes end here, at no more cost.
        head = env.journal.head(env.tenant, stream)
        assert head is not None, "a stream with effects has events"
        lane = _Lane(sink=name, stream=stream, until=head.version, attempts=0)
        row = _find_next_row(env, lane)
        if row is not None:
            found.setdefault(name, []).append(replace(lane, attempts=_read_number(row, "attempts")))
    for lanes in found.values():
        lanes.sort(key=lambda lane: lane.attempts)
    return sorted(found.values(), key=lambda lanes: lanes[-1].attempts)


def _read_number(row: Row, name: str) -> int:
    value = row[name]
    assert isinstance(value, int)
    return value


def _is_skipped(env: Env, name: str, row: Row) -> bool:
    """Return True if a lane goes on without this dead effect."""
    sink = env.sinks.find(env.tenant, name)
    return row["status"] == "dead" and sink is not None and sink.when_dead == "go_on"


def _is_due(env: Env, name: str, row: Row) -> bool:
    """Return True if an effect can be delivered now, if it is first."""
    if row["status"] in ("dead", "approval") or (row["status"] == "deferred" and not _has_sink(env, name)):
        return False
    return rules.is_retry_due(row, env.clock.now_ms())


def _find_next_row(env: Env, lane: _Lane) -> Row | None:
    """Return the next row to deliver in a lane; None if the lane is empty, stopped, or not due."""
    wide = LOOK_AHEAD
    while True:
        query = RowQuery(table="effects", stream=lane.stream, column="sink", value=lane.sink, limit=wide)
        rows = env.journal.select(env.tenant, query)
        for _, row in rows:
            if _is_skipped(env, lane.sink, row):
                continue
            late = _read_number(row, "version") > lane.until
            return row if not late and _is_due(env, lane.sink, row) else None
        if len(rows) < wide:
            return None
        wide *= 4


def sink_lease_stream(sink: str) -> str:
    """Return the stream whose owner delivers effects to a sink."""
    return Scope.custom("outbox", sink).text


def _dispatch_sink(env: Env, lanes: Sequence[_Lane], run: _DispatchRun, *, wait: bool) -> bool:
    """Work on the lanes of one sink; return False if another process does."""
    name = lanes[0].sink
    # The lease excludes other processes; the block excludes other threads of this one.
    here = (env.tenant, f"outbox of {name}")
    if env.leases.draining or not env.leases.enter_block(*here):
        return True
    try:
        place = sink_lease_stream(name)
        try:
            epoch = (take_stream if wait else take_free_stream)(env, place)
        except ActorBusy:
            return False
        with suppress(StaleEpoch):  # This process was taken for dead, and another has taken over.
            try:
                _dispatch_lanes(env, lanes, run, epoch)
            finally:
                release_stream(env, place, epoch)
    finally:
        env.leases.blocks.discard(here)
    return True


def _dispatch_lanes(env: Env, lanes: Sequence[_Lane], run: _DispatchRun, epoch: int) -> None:
    """Deliver one effect of each lane in turn, until all lanes are empty or stopped."""
    waiting = deque(lanes)
    while waiting and run.has_allowance() and not env.leases.draining:
        lane = waiting.popleft()
        try:
            row = _find_next_row(env, lane)
            if row is None:
                continue
            _check_owner(env, lane.sink, epoch)
            settled = _attempt_effect(env, lane, row)
        except LANE_ERRORS as error:
            error.add_note(f"The effects of {lane.stream} for {lane.sink} were left; others were dispatched.")
            run.errors.append(error)
            continue
        if settled is None:
            _check_owner(env, lane.sink, epoch)
        else:
            run.note(str(settled["status"]))
        # A failed lane is not retried in this dispatch, however long the others take.
        if settled is None or settled["status"] != "failed":
            waiting.append(lane)


def _check_owner(env: Env, sink: str, epoch: int) -> None:
    """Raise StaleEpoch if the lease was taken over: a process that slept must learn it before it sends."""
    place = sink_lease_stream(sink)
    head = env.journal.head(env.tenant, place)
    if head is None or head.epoch != epoch or head.holder != env.leases.process.name:
        env.leases.mark_lost(env.tenant, place)
        raise StaleEpoch(place, epoch, epoch + 1 if head is None else head.epoch)


def _attempt_effect(env: Env, lane: _Lane, row: Row) -> Row | None:
    """Deliver one effect and journal the outcome; return its new row, or None if it had been settled elsewhere."""
    event = read_event(env, lane.stream, _read_number(row, "version"))
    assert event is not None, "a row names the event that made it"
    attempts = _read_number(row, "attempts")
    if event.content is ERASED:
        return settle_effect(env, lane.stream, row, "skipped", attempts=attempts, reason=ERASED_REASON)
    owner = effect_owner(event)
    sink = find_default_sink(replace(env, user=event.content.user), lane.sink)
    sink = sink or env.sinks.find(env.tenant, lane.sink)
    if sink is None:  # It was never registered, or was removed meanwhile.
        return settle_effect(env, lane.stream, row, "deferred", attempts=attempts, reason=NO_SINK_REASON)
    if attempts >= env.settings.effect_attempts and not sink.patient:  # The process of the last attempt died of it.
        reason = f"It was delivered {attempts} times and was not taken."
        return settle_effect(env, lane.stream, row, "dead", attempts=attempts, reason=reason, subject=owner)
    seen: Row | None = row
    if env.leases.was_abandoned(env.tenant, sink_lease_stream(lane.sink)):
        # Due at once: whoever takes over from this process counts its attempt as well.
        reason, attempt = UNKNOWN_REASON, attempts + 1
        seen = settle_effect(env, lane.stream, row, "failed", attempts=attempt, reason=reason, subject=owner)
    if seen is None:
        return None
    try:
        answer = sink.deliver(_build_declared_effect(env, lane, row, event))
        if discard_awaitable(answer):
            raise EffectRefused("The sink returned an awaitable. Use holdfast.open_async, or a synchronous sink.")
    except Exception as error:  # noqa: BLE001  a sink is somebody else's code
        return _settle_failure(env, lane, seen, sink, error, owner, attempts + 1)
    return settle_effect(env, lane.stream, seen, "applied", attempts=attempts + 1, answer=answer, subject=owner)


def _build_declared_effect(env: Env, lane: _Lane, row: Row, event: Event) -> DeclaredEffect:
    return DeclaredEffect(
        id=row_ulid(row, "effect_id"),
        kind=event.facts.kind,
        sink=lane.sink,
        payload=rules.payload_of(rules.from_wire(event.content.payload)),
        scope=lane.stream,
        tenant=env.tenant,
        operator=event.facts.operator,
        attempt=_read_number(row, "attempts") + 1,
        declared_at=event.at,
    )


def _settle_failure(
    env: Env, lane: _Lane, row: Row, sink: Sink, error: Exception, owner: str | None, attempts: int
) -> Row | None:
    now = env.clock.now_ms()
    waits = sink.patient and isinstance(error, Conflict | Unavailable)
    dead = rules.is_permanent_error(error) or (attempts >= env.settings.effect_attempts and not waits)
    chance = int.from_bytes(env.ids.salt()[:4], "big") / 2**32
    delay = rules.compute_retry_delay(attempts, chance, getattr(error, "retry_after", None))
    return settle_effect(
        env,
        lane.stream,
        row,
        "dead" if dead else "failed",
        attempts=attempts,
        retry_at=None if dead else now + delay,
        reason=exception_text(error),
        subject=owner,
    )

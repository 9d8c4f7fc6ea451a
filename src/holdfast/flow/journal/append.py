"""The only way to write: load → decide → append → fold.

Nothing reads back its own write: the state after a commit is folded from the committed events. If another process
wrote first, the state is reloaded and decided on again. A cached state never refuses a call: before a refusal counts,
the state is reloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.chain import LEASE_TAKEN, OWNER_TYPES
from holdfast.core.journal.codec import decode_event, seal_draft
from holdfast.core.journal.fold import fold_facts
from holdfast.errors import (
    Conflict,
    HoldfastError,
    InvalidValue,
    KeyReused,
    OutcomeUnknown,
    Refused,
    StaleEpoch,
    Unavailable,
    VersionConflict,
)
from holdfast.flow.journal import artifacts as journal_artifacts
from holdfast.flow.journal.caches import run_locked
from holdfast.flow.journal.redact import redact_content
from holdfast.ports import Env
from holdfast.records.batches import ANY_VERSION, AppendResult, Artifact, Batch, BatchPart, PartPlacement
from holdfast.records.events.envelope import Draft, Event, SealedEvent, Source
from holdfast.records.frames import StreamState
from holdfast.records.ids import check_id, check_key, ulid_bytes
from holdfast.records.reports import EventQuery
from holdfast.records.scope import parse_scope
from holdfast.version import __version__

DECISION_ATTEMPTS = 5
APPEND_ATTEMPTS = 3

_read_type = attrgetter("type")
_read_facts = attrgetter("type", "facts_record")

States = Mapping[str, StreamState]
Drafts = Mapping[str, Sequence[Draft]]


class StreamWrite(msgspec.Struct, frozen=True, kw_only=True):
    """The drafts for one stream, with their expected version, key and epoch."""

    stream: str
    events: tuple[Draft, ...]
    expected: int | None = ANY_VERSION
    key: str | None = None
    epoch: int = 0


class ChangeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a change. `repeated` is True if an earlier call with the same key had made it."""

    appended: AppendResult | None
    facts: tuple[tuple[str, Any], ...] = ()
    """Type and facts of each event in the first stream, as stored."""
    version: int = 0
    """The version of the first of these events."""
    at: int = 0
    repeated: bool = False
    events: Sequence[Event | SealedEvent] = ()
    """The same events, as written or as stored."""

    def last_facts(self, type_name: str) -> Any:
        """Return the facts of the last event of a type: the event asked for follows the events it entails."""
        return next(facts for name, facts in reversed(self.facts) if name == type_name)

    def version_of(self, type_name: str) -> int:
        """Return the version of the last event of a type."""
        return self.version + max(index for index, (name, _) in enumerate(self.facts) if name == type_name)


def decide_and_append(
    env: Env,
    streams: Sequence[str],
    decide: Callable[[States], Drafts],
    *,
    key: str | None = None,
    same: Callable[[list[Event]], bool] | None = None,
    needs: Callable[[States], Sequence[str]] | None = None,
    artifacts: Sequence[Artifact] = (),
    tries: int = DECISION_ATTEMPTS,
) -> ChangeResult:
    """Decide on the states of some streams and append the outcome atomically.

    `key` belongs to the first stream. `same` returns True if the events stored under the key are what this call asks
    for; drafts cannot be compared, because they depend on the state. `needs` names further streams once the first are
    loaded. `artifacts` are withdrawn if the call is refused or repeated.
    """
    key = None if key is None else check_key(key)
    decision = _Decision(env, tuple(streams), decide, key, needs, artifacts, tries)
    done = None
    try:
        while done is None:
            lock, *others = env.states.locks(env.tenant, decision.streams)
            with lock:
                done = run_locked(others, decision.try_once) if others else decision.try_once()
    except (Refused, Conflict) as error:
        journal_artifacts.withdraw_artifacts(env, artifacts)
        if key is None or not isinstance(error, Refused | KeyReused):
            raise
        earlier = _find_earlier_result(env, streams[0], key, same)
        if earlier is None:
            raise
        return earlier
    if isinstance(done, ChangeResult):
        return done
    batch, appended = done
    changed = _build_result(env, batch, appended, streams[0], key)
    if changed.repeated:
        journal_artifacts.withdraw_artifacts(env, artifacts)
    else:
        _notify_observers(env, batch, appended)
    return changed


class _Decision(msgspec.Struct):
    """A decision that is tried, each time under the locks of its streams, until no other process writes in between."""

    env: Env
    streams: tuple[str, ...]
    decide: Callable[[States], Drafts]
    key: str | None
    needs: Callable[[States], Sequence[str]] | None
    artifacts: Sequence[Artifact]
    tries: int
    fresh: bool = False

    def try_once(self) -> ChangeResult | tuple[Batch, AppendResult] | None:
        """Return what was written, a result if there is nothing to write, or None to try again."""
        env, first, key, fresh = self.env, self.streams[0], self.key, self.fresh
        states = {stream: load_state(env, stream, fresh=fresh) for stream in self.streams}
        if self.needs is not None and (wanted := self.needs(states)):
            more = tuple([name for name in wanted if name not in self.streams])
            if more:
                self.streams += more
                return None
        try:
            writes = _plan_writes(env, self.decide(states), states, first, key)
        except HoldfastError:
            if fresh:
                raise
            self.fresh = True
            return None
        if not writes:
            return ChangeResult(appended=None)
        if key is not None and len(writes) > 1 and env.journal.events_by_key(env.tenant, first, key):
            raise KeyReused  # Only one of several parts has the key: it is looked up and compared.
        try:
            return append_writes(env, writes, self.artifacts, states)
        except (VersionConflict, StaleEpoch) as error:
            self.tries -= 1
            if not self.tries or (isinstance(error, StaleEpoch) and _forget_stale_lease(env, error)):
                raise
            self.fresh = True
            return None


def append_writes(
    env: Env, writes: Sequence[StreamWrite], artifacts: Sequence[Artifact], states: States
) -> tuple[Batch, AppendResult]:
    """Seal some writes, append them in one batch and fold them into the cached states.

    While the outcome is unknown, the batch is appended again: the journal recognises it by its keys or event ids.
    """
    batch = seal_batch(env, writes, artifacts)
    appended, unknown = None, None
    try:
        for _ in range(APPEND_ATTEMPTS):
            try:
                appended = env.journal.append(batch)
                break
            except OutcomeUnknown as error:
                unknown = error
            except Unavailable:
                # Nothing was written by this attempt; an earlier one may still have been committed.
                if unknown is None:
                    raise
                break
        if appended is None:
            assert unknown is not None
            raise unknown
    except BaseException:
        for part in batch.parts:
            env.states.drop(env.tenant, part.stream)
        raise
    for part, placed in zip(batch.parts, appended.parts, strict=True):
        state = states.get(part.stream)
        if state is None or appended.repeated or placed.first != state.version + 1:
            env.states.drop(env.tenant, part.stream)
            continue
        for version, event in enumerate(part.events, placed.first):
            state = fold_facts(state, event.type, event.facts_record, version, event.at)
        env.states.put(env.tenant, part.stream, state)
    return batch, appended


def append_events(env: Env, writes: Sequence[StreamWrite], artifacts: Sequence[Artifact] = ()) -> AppendResult:
    """Append events that need no decision: inbox events, or events with a version given by the caller.

    `artifacts` are withdrawn if the call is refused or repeated.
    """
    try:
        batch, appended = append_writes(env, writes, artifacts, {})
    except (Refused, Conflict):
        journal_artifacts.withdraw_artifacts(env, artifacts)
        raise
    if appended.repeated:
        journal_artifacts.withdraw_artifacts(env, artifacts)
    else:
        _notify_observers(env, batch, appended)
    return appended


def _forget_stale_lease(env: Env, error: StaleEpoch) -> bool:
    """Forget the lease of a stale epoch; return True if this process held it and has lost it for good."""
    held = env.leases.holds(env.tenant, error.stream)
    env.leases.mark_lost(env.tenant, error.stream)
    return held


def _plan_writes(env: Env, drafts: Drafts, states: States, first: str, key: str | None) -> list[StreamWrite]:
    writes = []
    for stream, events in drafts.items():
        if not events:
            continue
        state = states[stream]
        epoch = 0
        if events[0].type == LEASE_TAKEN:
            epoch = state.epoch
        elif not OWNER_TYPES.isdisjoint(map(_read_type, events)):
            epoch = env.leases.epoch(env.tenant, stream, state)
        writes.append(
            StreamWrite(
                stream=stream,
                events=tuple(events),
                expected=state.version,
                key=key if stream == first else None,
                epoch=epoch,
            )
        )
    return writes


def _build_result(env: Env, batch: Batch, appended: AppendResult, first: str, key: str | None) -> ChangeResult:
    if appended.repeated and key is not None:
        stored = env.journal.events_by_key(env.tenant, first, key)
        if not any(part.events[0].id == stored[0].id for part in batch.parts):
            return _build_repeated_result(appended, [decode_event(event) for event in stored])
        # The key stands for this very batch, appended before its outcome was reported as unknown.
    part, placed = batch.parts[0], appended.parts[0]
    for other, there in zip(batch.parts, appended.parts, strict=True):
        if other.stream == first:
            part, placed = other, there
    facts = tuple(map(_read_facts, part.events))
    return ChangeResult(appended=appended, facts=facts, version=placed.first, at=part.events[0].at, events=part.events)


def _build_repeated_result(appended: AppendResult, events: list[Event]) -> ChangeResult:
    facts = tuple((event.type, event.facts) for event in events)
    return ChangeResult(appended=appended, facts=facts, version=events[0].version, repeated=True, events=events)


def _find_earlier_result(
    env: Env, stream: str, key: str, same: Callable[[list[Event]], bool] | None
) -> ChangeResult | None:
    """Return the key's earlier result or None; raise KeyReused if it stands for another request."""
    stored = env.journal.events_by_key(env.tenant, stream, key)
    if not stored:
        return None
    events = [decode_event(event) for event in stored]
    if same is None or not same(events):
        raise KeyReused(
            f"Key {key!r} of {stream} already stands for {', '.join(event.type for event in events)} at version "
            f"{events[0].version}, asked for in another way. Use a new key for a new operation."
        )
    placed = PartPlacement(stream=stream, first=events[0].version, last=events[-1].version, seq=events[-1].seq)
    return _build_repeated_result(AppendResult(parts=(placed,), repeated=True), events)


def _notify_observers(env: Env, batch: Batch, appended: AppendResult) -> None:
    """Notify the callbacks that listen for the committed events, as stored."""
    for part, placed in zip(batch.parts, appended.parts, strict=True):
        wanted = env.observers.list_wanted(env.tenant, map(_read_type, part.events))
        if True in wanted:
            # Read back only if there is a listener: some fields, such as the author, are known to the journal alone.
            query = EventQuery(tenant=env.tenant, stream=part.stream, after=placed.first - 1, until=placed.last)
            stored = env.journal.read(replace(query, limit=len(part.events)))
            for event, hear in zip(stored, wanted, strict=True):
                if hear:
                    env.observers.notify(decode_event(event))


def load_state(env: Env, stream: str, *, fresh: bool = False) -> StreamState:
    """Return a stream's state, cached if possible; with `fresh`, as the journal has it."""
    if fresh:
        env.states.drop(env.tenant, stream)
    elif (cached := env.states.streams.get((env.tenant, stream))) is not None:
        return cached
    state = env.journal.load(env.tenant, stream)
    env.states.put(env.tenant, stream, state)
    return state


def seal_batch(env: Env, writes: Sequence[StreamWrite], artifacts: Sequence[Artifact] = ()) -> Batch:
    """Encode the drafts, redacted and assigned to a subject, in canonical bytes with ids, times and salts."""
    names = [part.stream for part in writes if part.events]
    if not names or len(names) != len(writes):
        raise InvalidValue("There is nothing to append. Pass at least one event.")
    for name in names:
        parse_scope(name)
    if len(set(names)) != len(names):
        raise InvalidValue("A stream occurs twice in one append. Put all its events into one part.")
    at, ids, settings = env.clock.now_ms(), env.ids, env.settings
    parts = []
    for part in writes:
        expected, events = part.expected, []
        for given in part.events:
            # Messages were redacted part by part before they were counted; redacting them whole could change structure.
            draft = given
            if env.redact is not None and given.content is not None and given.type != "message.appended":
                draft = replace(given, content=redact_content(env.redact, given.content))
            if draft.subject is not None:
                check_id(draft.subject, "subject")
            elif env.user is not None and (draft.content is not None or draft.facts.artifacts):
                draft = replace(draft, subject=env.user)
            id = ids.ulid() if draft.id is None else ulid_bytes(draft.id)
            events.append(seal_draft(draft, id=id, at=at, salt=ids.salt(), settings=settings))
        if expected is not None and (not isinstance(expected, int) or isinstance(expected, bool) or expected < 0):
            raise InvalidValue(f"expected must be a version (0 for a new stream) or None, not {expected!r}.")
        key = None if part.key is None else str(check_key(part.key))
        parts.append(BatchPart(stream=part.stream, events=tuple(events), expected=expected, key=key, epoch=part.epoch))
    source = Source(user=env.user, origin=env.origin, trust=env.trust, app=__version__)
    return Batch(tenant=env.tenant, parts=tuple(parts), source=source, artifacts=tuple(artifacts))


def redact_as_configured(env: Env, given: Any) -> Any:
    """Return content as it will be stored, to compare with stored content."""
    return given if env.redact is None or given is None else redact_content(env.redact, given)

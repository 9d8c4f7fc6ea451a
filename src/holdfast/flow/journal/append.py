"""The only way to write: load → decide → append → fold.

Nothing reads back its own write: the state after a commit is folded from the committed events. If another process
wrote first, the state is reloaded and decided on again. A cached state never refuses a call: before a refusal counts,
the state is reloaded.

"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.checks import is_number
from holdfast.core.journal.admit import LEASE_TAKEN, is_owner_event
from holdfast.core.journal.codec import decode_event, seal_draft
from holdfast.core.journal.fold import fold_facts
from holdfast.errors import (
    HoldfastError,
    InvalidValue,
    KeyReused,
    OutcomeUnknown,
    Refused,
    StaleEpoch,
    Unavailable,
    VersionConflict,
)
from holdfast.flow.journal import redact as journal_redact
from holdfast.ports import Env
from holdfast.records.batches import ANY_VERSION, AppendResult, Artifact, Batch, BatchPart, PartPlacement
from holdfast.records.events.envelope import Draft, Event, SealedEvent, Source
from holdfast.records.frames import StreamState
from holdfast.records.ids import check_id, check_key, ulid_bytes, ulid_text
from holdfast.records.reports import EventQuery
from holdfast.records.scope import parse_scope
from holdfast.version import __version__

DECISION_ATTEMPTS = 5
APPEND_ATTEMPTS = 3

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

    @property
    def ids(self) -> list[str]:
        """The ids of the events."""
        return [event.id if isinstance(event, Event) else ulid_text(event.id) for event in self.events]

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
    loaded.
    """
    key = None if key is None else check_key(key)
    try:
        changed, tell = _decide_until_written(env, tuple(streams), decide, key, needs, artifacts, tries)
    except (Refused, KeyReused):
        earlier = None if key is None else _find_earlier_result(env, streams[0], key, same)
        if earlier is None:
            raise
        return earlier
    for event in tell:
        env.observers.notify(event)
    return changed


def _decide_until_written(
    env: Env,
    wanted: tuple[str, ...],
    decide: Callable[[States], Drafts],
    key: str | None,
    needs: Callable[[States], Sequence[str]] | None,
    artifacts: Sequence[Artifact],
    tries: int,
) -> tuple[ChangeResult, list[Event]]:
    attempt, fresh = 1, False
    while True:
        with env.states.lock(env.tenant, wanted):
            if fresh:
                for stream in wanted:
                    env.states.drop(env.tenant, stream)
            states = {stream: load_state(env, stream) for stream in wanted}
            more = () if needs is None else tuple(name for name in needs(states) if name not in wanted)
            if more:
                wanted += more
                continue
            try:
                decided = _plan_writes(env, decide(states), states, wanted[0], key)
            except HoldfastError:
                if fresh:
                    raise
                fresh = True
                continue
            try:
                return _append_writes(env, decided, states, wanted[0], key, artifacts)
            except (VersionConflict, StaleEpoch) as error:
                if attempt == tries or (isinstance(error, StaleEpoch) and _forget_stale_lease(env, error)):
                    raise
                attempt += 1
                fresh = True


def _forget_stale_lease(env: Env, error: StaleEpoch) -> bool:
    """Forget the lease of a stale epoch; return True if this process held it and has lost it for good."""
    held = env.leases.holds(env.tenant, error.stream)
    env.leases.mark_lost(env.tenant, error.stream)
    return held


def _plan_writes(env: Env, drafts: Drafts, states: States, first: str, key: str | None) -> list[StreamWrite]:
    found = []
    for stream, events in drafts.items():
        if not events:
            continue
        state = states[stream]
        epoch = 0
        if events[0].type == LEASE_TAKEN:
            epoch = state.epoch
        elif any(is_owner_event(event.type) for event in events):
            epoch = env.leases.epoch(env.tenant, stream, state)
        found.append(
            StreamWrite(
                stream=stream,
                events=tuple(events),
                expected=state.version,
                key=key if stream == first else None,
                epoch=epoch,
            )
        )
    return found


def _append_writes(
    env: Env,
    decided: list[StreamWrite],
    states: States,
    first: str,
    key: str | None,
    artifacts: Sequence[Artifact],
) -> tuple[ChangeResult, list[Event]]:
    if not decided:
        return ChangeResult(appended=None), []
    if key is not None and len(decided) > 1 and env.journal.events_by_key(env.tenant, first, key):
        raise KeyReused  # Only one of several parts has the key: `decide_and_append` looks it up and compares it.
    batch = seal_batch(env, decided, artifacts)
    appended = _append_and_remember(env, decided, batch, states)
    if appended.repeated and key is not None:
        stored = env.journal.events_by_key(env.tenant, first, key)
        if not any(part.events[0].id == stored[0].id for part in batch.parts):
            return _build_repeated_result(appended, [decode_event(event) for event in stored]), []
        # The key stands for this very batch, appended before its outcome was reported as unknown.
    place = next((index for index, part in enumerate(decided) if part.stream == first), 0)
    changed = ChangeResult(
        appended=appended,
        facts=tuple((draft.type, draft.facts) for draft in decided[place].events),
        version=appended.parts[place].first,
        at=batch.parts[place].events[0].at,
        events=batch.parts[place].events,
    )
    return changed, read_observed_events(env, decided, appended)


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


def read_observed_events(env: Env, decided: Sequence[StreamWrite], appended: AppendResult) -> list[Event]:
    """Return the committed events that callbacks listen for, as stored."""
    found: list[Event] = []
    for part, placed in zip(decided, appended.parts, strict=True):
        wanted = [env.observers.has_listener(env.tenant, draft.type) for draft in part.events]
        if any(wanted):
            # Read back only if there is a listener: some fields, such as the author, are known to the journal alone.
            query = EventQuery(tenant=env.tenant, stream=part.stream, after=placed.first - 1, until=placed.last)
            events = env.journal.read(replace(query, limit=len(part.events)))
            found += [decode_event(event) for event, hear in zip(events, wanted, strict=True) if hear]
    return found


def load_state(env: Env, stream: str) -> StreamState:
    """Return a stream's state, cached if possible."""
    cached = env.states.get(env.tenant, stream)
    if cached is not None:
        return cached
    state = env.journal.load(env.tenant, stream)
    env.states.put(env.tenant, stream, state)
    return state


def append_events(env: Env, decided: Sequence[StreamWrite], artifacts: Sequence[Artifact] = ()) -> AppendResult:
    """Append events that need no decision: inbox events, or events with a version given by the caller."""
    batch = seal_batch(env, decided, artifacts)
    appended = _append_and_remember(env, decided, batch, {})
    if not appended.repeated:
        for event in read_observed_events(env, decided, appended):
            env.observers.notify(event)
    return appended


def _append_and_remember(env: Env, decided: Sequence[StreamWrite], batch: Batch, states: States) -> AppendResult:
    try:
        appended = _append_with_retry(env, batch)
    except BaseException:
        for part in decided:
            env.states.drop(env.tenant, part.stream)
        raise
    _update_cached_states(env, decided, batch, states, appended)
    return appended


def seal_batch(env: Env, decided: Sequence[StreamWrite], artifacts: Sequence[Artifact] = ()) -> Batch:
    """Encode the drafts in canonical bytes, with ids, times and salts."""
    if not decided or not all(part.events for part in decided):
        raise InvalidValue("There is nothing to append. Pass at least one event.")
    names = [part.stream for part in decided]
    for name in names:
        parse_scope(name)
    if len(set(names)) != len(names):
        raise InvalidValue("A stream occurs twice in one append. Put all its events into one part.")
    at = env.clock.now_ms()
    redact = env.redact
    parts = tuple(
        BatchPart(
            stream=part.stream,
            events=tuple(
                seal_draft(
                    _assign_subject(draft if redact is None else _redact_draft(redact, draft), env),
                    id=env.ids.ulid() if draft.id is None else ulid_bytes(draft.id),
                    at=at,
                    salt=env.ids.salt(),
                    settings=env.settings,
                )
                for draft in part.events
            ),
            expected=_check_version(part.expected),
            key=None if part.key is None else check_key(part.key),
            epoch=part.epoch,
        )
        for part in decided
    )
    source = Source(user=env.user, origin=env.origin, trust=env.trust, app=__version__)
    return Batch(tenant=env.tenant, parts=parts, source=source, artifacts=tuple(artifacts))


def _redact_draft(redact: Callable[[str], str], draft: Draft) -> Draft:
    # Messages were redacted part by part before they were counted; redacting them whole could change structure.
    if draft.content is None or draft.type == "message.appended":
        return draft
    return replace(draft, content=journal_redact.redact_content(redact, draft.content))


def _assign_subject(draft: Draft, env: Env) -> Draft:
    """Assign content to the subject it names, or else to the acting user."""
    if draft.subject is not None:
        check_id(draft.subject, "subject")
    elif env.user is not None and (draft.content is not None or draft.facts.artifacts):
        return replace(draft, subject=env.user)
    return draft


def _check_version(expected: int | None) -> int | None:
    if expected is not None and not is_number(expected, least=0):
        raise InvalidValue(f"expected must be a version (0 for a new stream) or None, not {expected!r}.")
    return expected


def _append_with_retry(env: Env, batch: Batch) -> AppendResult:
    """Append a batch, and retry when the outcome is unknown: the journal recognises it by its keys or event ids."""
    unknown: OutcomeUnknown | None = None
    for _ in range(APPEND_ATTEMPTS):
        try:
            return env.journal.append(batch)
        except OutcomeUnknown as error:
            unknown = error
        except Unavailable:
            # Nothing was written by this attempt; an earlier one may still have been committed.
            if unknown is None:
                raise
            break
    assert unknown is not None
    raise unknown


def _update_cached_states(
    env: Env, decided: Sequence[StreamWrite], batch: Batch, states: States, appended: AppendResult
) -> None:
    for part, sealed, placed in zip(decided, batch.parts, appended.parts, strict=True):
        state = states.get(part.stream)
        if state is None or appended.repeated or placed.first != state.version + 1:
            env.states.drop(env.tenant, part.stream)
            continue
        for version, (draft, event) in enumerate(zip(part.events, sealed.events, strict=True), placed.first):
            state = fold_facts(state, draft.type, draft.facts, version, event.at)
        env.states.put(env.tenant, part.stream, state)

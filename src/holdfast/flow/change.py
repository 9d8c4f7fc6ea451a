"""The one way to write: load → decide → append → fold.

Nothing reads back what it just wrote: the state after a commit is folded from the events
that were committed. When another process was first, the state is loaded anew and decided
again, unless the caller insisted on a version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.core.codec import seal
from holdfast.core.fold import fold_facts
from holdfast.errors import InvalidValue, OutcomeUnknown, Unavailable, VersionConflict
from holdfast.ports import Acting, Ports
from holdfast.records.batches import ANY_VERSION, Appended, Artifact, Batch, Part
from holdfast.records.events.envelope import Draft, Source
from holdfast.records.frames import StreamState
from holdfast.records.ids import check_id, check_key
from holdfast.records.scope import parse_scope
from holdfast.version import __version__

DECISIONS = 5
SURE = 3

States = Mapping[str, StreamState]


class Decided(msgspec.Struct, frozen=True, kw_only=True):
    """What was decided for one stream."""

    stream: str
    events: tuple[Draft, ...]
    expected: int | None = ANY_VERSION
    key: str | None = None
    epoch: int = 0


def change(
    ports: Ports,
    acting: Acting,
    streams: Sequence[str],
    decide: Callable[[States], Sequence[Decided]],
    *,
    insist: bool = False,
) -> Appended:
    """Decide on the states of some streams and write the outcome, atomically."""
    with ports.states.locked(acting.tenant, streams):
        for attempt in range(1, DECISIONS + 1):
            states = {stream: state_of(ports, acting, stream) for stream in streams}
            decided = decide(states)
            try:
                return _write(ports, acting, decided, states)
            except VersionConflict:
                if insist or attempt == DECISIONS:
                    raise
    raise AssertionError("unreachable")


def state_of(ports: Ports, acting: Acting, stream: str) -> StreamState:
    """A stream's state, cached if possible."""
    cached = ports.states.get(acting.tenant, stream)
    if cached is not None:
        return cached
    state = ports.journal.load(acting.tenant, stream)
    ports.states.put(acting.tenant, stream, state)
    return state


def append(ports: Ports, acting: Acting, decided: Sequence[Decided], artifacts: Sequence[Artifact] = ()) -> Appended:
    """Write what needs no decision: inbox events, or events whose writer gave a version."""
    return _write(ports, acting, decided, {}, artifacts)


def _write(
    ports: Ports,
    acting: Acting,
    decided: Sequence[Decided],
    states: States,
    artifacts: Sequence[Artifact] = (),
) -> Appended:
    batch = sealed_batch(ports, acting, decided, artifacts)
    try:
        appended = _surely(ports, batch)
    except BaseException:
        for part in decided:
            ports.states.drop(acting.tenant, part.stream)
        raise
    _remember(ports, acting, decided, batch, states, appended)
    return appended


def sealed_batch(ports: Ports, acting: Acting, decided: Sequence[Decided], artifacts: Sequence[Artifact] = ()) -> Batch:
    """Decisions in canonical bytes, with ids, times and salts."""
    if not decided or not all(part.events for part in decided):
        raise InvalidValue("There is nothing to append. Pass at least one event.")
    names = [part.stream for part in decided]
    for name in names:
        parse_scope(name)
    if len(set(names)) != len(names):
        raise InvalidValue("A stream occurs twice in one append. Put all its events into one part.")
    at = ports.clock.now_ms()
    parts = tuple(
        Part(
            stream=part.stream,
            events=tuple(
                seal(
                    _for_subject(draft, acting),
                    id=ports.ids.ulid(),
                    at=at,
                    salt=ports.ids.salt(),
                    settings=ports.settings,
                )
                for draft in part.events
            ),
            expected=_version(part.expected),
            key=None if part.key is None else check_key(part.key),
            epoch=part.epoch,
        )
        for part in decided
    )
    source = Source(user=acting.user, origin=acting.origin, trust=acting.trust, app=__version__)
    return Batch(tenant=acting.tenant, parts=parts, source=source, artifacts=tuple(artifacts))


def _for_subject(draft: Draft, acting: Acting) -> Draft:
    """Content belongs to whom it names, or else to who acts."""
    if draft.subject is not None:
        check_id(draft.subject, "subject")
    elif acting.user is not None and (draft.content is not None or draft.facts.artifacts):
        return msgspec.structs.replace(draft, subject=acting.user)
    return draft


def _version(expected: int | None) -> int | None:
    if expected is not None and (not isinstance(expected, int) or isinstance(expected, bool) or expected < 0):
        raise InvalidValue(f"expected must be a version (0 for a new stream) or None, not {expected!r}.")
    return expected


def _surely(ports: Ports, batch: Batch) -> Appended:
    """Ask again when the outcome is unknown: the same batch is recognised by its keys or event ids."""
    unknown: OutcomeUnknown | None = None
    for _ in range(SURE):
        try:
            return ports.journal.append(batch)
        except OutcomeUnknown as error:
            unknown = error
        except Unavailable:
            # Nothing was written this time, which says nothing about the time before.
            if unknown is None:
                raise
            break
    assert unknown is not None
    raise unknown


def _remember(
    ports: Ports, acting: Acting, decided: Sequence[Decided], batch: Batch, states: States, appended: Appended
) -> None:
    for part, sealed, placed in zip(decided, batch.parts, appended.parts, strict=True):
        state = states.get(part.stream)
        if state is None or appended.repeated or placed.first != state.version + 1:
            ports.states.drop(acting.tenant, part.stream)
            continue
        for version, (draft, event) in enumerate(zip(part.events, sealed.events, strict=True), placed.first):
            state = fold_facts(state, draft.type, draft.facts, version, event.at)
        ports.states.put(acting.tenant, part.stream, state)

"""The chain of a stream: which parts it admits, where their events are placed, and the hashes that link them.

Each event's hash covers the one before, its envelope and its facts. Content enters only as HMAC-SHA256 under the salt
stored beside it. When content and salt are erased, that MAC is kept in their place: the chain still verifies, and a
guess of the content cannot be tested against it.

The inner of the HMAC's two hashes is stored beside the content as its `digest`. Reads check content against it, which
costs one hash; the chain covers it through the outer hash.

Every backend admits and places parts with these functions inside its transaction, so the answer is the same on all.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import force_setattr, replace

from holdfast.core.journal.codec import decode, inner_hash, outer_hash
from holdfast.errors import Conflict, HoldfastError, KeyReused, Refused, StaleEpoch, StreamClosed, VersionConflict
from holdfast.records.batches import Batch, BatchPart, Head
from holdfast.records.catalogue import CATALOGUE, event_type
from holdfast.records.events.envelope import SealedEvent, StoredEvent
from holdfast.records.events.journal import LeaseTaken
from holdfast.records.reports import Subject

LEASE_TAKEN = "lease.taken"
LEASE_RELEASED = "lease.released"
STREAM_CLOSED = "stream.closed"
HEAD_TYPES = frozenset((LEASE_TAKEN, LEASE_RELEASED, STREAM_CLOSED))
"""Types of events that change more of a head than its version and hash."""
OWNER_TYPES = frozenset(row.name for row in CATALOGUE.values() if row.kind == "owner")
"""Types of events that need the owner's epoch."""
_ENCODER = msgspec.json.Encoder()
_ENVELOPE = "version id at type schema key rest epoch origin trust user subject causation correlation app"
_read_envelope = attrgetter(*_ENVELOPE.split())
"""A function from an event to the fields of its envelope, in the order in which they are hashed."""
_pack_lengths = struct.Struct(">II").pack


def genesis_hash(tenant: str, stream: str) -> bytes:
    """Return the hash that a stream's first event continues: it covers tenant and stream, so neither can be swapped."""
    return hashlib.sha256(_ENCODER.encode(("holdfast", tenant, stream))).digest()


def link_hash(previous: bytes, event: StoredEvent) -> bytes:
    """Return the hash that an event has, or should have, after `previous`. Its content is covered by its digest."""
    mac = event.mac if event.salt is None or event.digest is None else outer_hash(event.salt, event.digest)
    envelope, facts = _ENCODER.encode(_read_envelope(event)), event.facts
    # The length prefixes keep the boundary between envelope and facts unambiguous.
    lengths = _pack_lengths(len(envelope), len(facts))
    return hashlib.sha256(b"".join((previous, lengths, envelope, facts, mac or b""))).digest()


def find_refusal(part: BatchPart, head: Head) -> HoldfastError | None:
    """Return the error that refuses this part after this head, or None."""
    if head.closed:
        return StreamClosed(f"{part.stream} was closed for good and takes no more events. Use a new stream.")
    # Check the epoch first: a stale owner must stop, whatever version it expects.
    if part.epoch != head.epoch and any(event.type in OWNER_TYPES for event in part.events):
        return StaleEpoch(part.stream, part.epoch, head.epoch)
    if part.expected is not None and part.expected != head.version:
        return VersionConflict(part.stream, part.expected, head.version)
    epoch = head.epoch
    for event in part.events:
        if event.type == LEASE_TAKEN:
            epoch += 1
            taken: LeaseTaken = event.facts_record
            if taken.epoch != epoch:
                return Conflict(
                    f"{part.stream} is under epoch {epoch - 1}; the next lease has epoch {epoch}, not {taken.epoch}: "
                    "another owner was first. Reload and try again."
                )
    return None


def find_key_conflict(part: BatchPart, stored: Sequence[StoredEvent]) -> HoldfastError | None:
    """Return None if a part repeats the events stored under its key, else the error."""
    if len(part.events) == len(stored) and all(map(_is_same_event, part.events, stored)):
        return None
    return KeyReused(
        f"Key {part.key!r} of {part.stream} already stands for {', '.join(event.type for event in stored)} "
        f"at version {stored[0].version}, with other content. Use a new key for a new operation."
    )


def key_mismatch_error(part: BatchPart) -> HoldfastError:
    """Return the error for a batch in which other keys are known and this part's key is new."""
    return Conflict(
        f"Key {part.key!r} of {part.stream} is new, but other keys of this batch are not. Use new keys for all."
    )


def _is_same_event(wanted: SealedEvent, stored: StoredEvent) -> bool:
    if wanted.type != stored.type or _comparable_facts(wanted) != _comparable_facts(stored):
        return False
    if stored.erased:
        return True
    if stored.content is None or stored.salt is None or wanted.content is None:
        return wanted.content is None and stored.content is None
    return inner_hash(stored.salt, wanted.content) == stored.digest


def _comparable_facts(event: SealedEvent | StoredEvent) -> Any:
    row = CATALOGUE.get(event.type) or event_type(event.type)
    if row is None or not row.minted:
        return event.facts
    facts: dict[str, Any] = decode(event.facts)
    return {name: value for name, value in facts.items() if name not in row.minted}


def new_head(tenant: str, stream: str, id: int) -> Head:
    """Return the head of a stream without events."""
    return Head(id=id, stream=stream, version=0, hash=genesis_hash(tenant, stream))


def place_part(
    batch: Batch, part: BatchPart, head: Head, seq: int, pseudonym: Callable[[str], int]
) -> tuple[list[StoredEvent], Head]:
    """Return the stored form of a part's events after `head`, numbered from `seq`, and the head after them."""
    placed: list[StoredEvent] = []
    source, key, rest = batch.source, part.key, len(part.events)
    user = None if source.user is None else pseudonym(source.user)
    version, previous = head.version, head.hash
    for event in part.events:
        version += 1
        rest -= 1
        stored = StoredEvent(  # In the order of its fields: naming them takes as long as all the rest.
            seq,
            batch.tenant,
            part.stream,
            version,
            event.id,
            event.at,
            event.type,
            event.schema,
            # The first event of a part carries its key; `rest` counts the events that follow.
            key,
            rest,
            # Events after a lease.taken in the same part are written under the new lease.
            head.epoch if event.type in OWNER_TYPES else None,
            source.origin,
            source.trust,
            user,
            None if event.subject is None else pseudonym(event.subject),
            source.causation,
            source.correlation,
            source.app,
            event.facts,
            event.content,
            event.salt,
            event.digest,
            None,
            b"",
        )
        # The record is not shared yet: setting its hash in place avoids building it twice.
        previous = link_hash(previous, stored)
        force_setattr(stored, "hash", previous)
        placed.append(stored)
        seq, key = seq + 1, None
        if event.type in HEAD_TYPES:
            head = advance_head(head, stored)
    return placed, replace(head, version=version, hash=previous)


def advance_head(head: Head, event: StoredEvent) -> Head:
    """Return the head after an event that has its place, such as a new one or one of a copy."""
    if event.type == LEASE_TAKEN:
        taken: LeaseTaken = decode(event.facts, LeaseTaken)
        head = replace(head, epoch=taken.epoch, holder=taken.owner, lease_ms=taken.lease_ms)
    elif event.type == LEASE_RELEASED:
        head = replace(head, holder=None)
    closed = head.closed or event.type == STREAM_CLOSED
    return replace(head, version=event.version, hash=event.hash, closed=closed)


def check_numbers(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Yield the items of a copy unchanged; refuse numbers that no journal gives.

    Events, each tenant's subjects and each stream's epochs count from 1 without gaps. The next number follows the
    last one, so a large one in a copy would leave no room for more.
    """
    last: dict[tuple[str, ...], int] = {}

    def check_next(number: int, *counter: str) -> None:
        before = last.get(counter, 0)
        if number != before + 1:
            raise Refused(
                f"This copy has a gap: {' '.join(counter)} {number} does not follow {before}. It was changed or is "
                "incomplete. Nothing was imported."
            )
        last[counter] = number

    for tenant, item in items:
        if isinstance(item, Subject):
            check_next(item.id, "subject of", tenant)
        elif isinstance(item, StoredEvent):
            check_next(item.seq, "event")
            if item.type == LEASE_TAKEN:
                check_next(decode(item.facts, LeaseTaken).epoch, "epoch of", tenant, item.stream)
        yield tenant, item

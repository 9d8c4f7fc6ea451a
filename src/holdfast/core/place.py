"""Give a part its place: versions, hashes and the stream's new head. Shared by every backend."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import force_setattr

from holdfast.core.admit import CLOSES_STREAM, is_owner, next_owner
from holdfast.core.chain import genesis, link
from holdfast.records.batches import Batch, Head, Part
from holdfast.records.events.envelope import StoredEvent


def new_head(tenant: str, stream: str, id: int) -> Head:
    """The head of a stream that has no events yet."""
    return Head(id=id, stream=stream, version=0, hash=genesis(tenant, stream))


def place(
    batch: Batch, part: Part, head: Head, seq: int, pseudonym: Callable[[str], int]
) -> tuple[list[StoredEvent], Head]:
    """The stored form of a part's events after `head`, numbered from `seq`, and the head after them."""
    placed: list[StoredEvent] = []
    source = batch.source
    user = None if source.user is None else pseudonym(source.user)
    version, previous, epoch, holder, closed = head.version, head.hash, head.epoch, head.holder, head.closed
    rest = len(part.events)
    for event in part.events:
        version += 1
        rest -= 1
        stored = StoredEvent(
            seq=seq,
            tenant=batch.tenant,
            stream=part.stream,
            version=version,
            id=event.id,
            at=event.at,
            type=event.type,
            schema=event.schema,
            # The key stands on the first event of its part; `rest` says how many more belong to it.
            key=None if placed else part.key,
            rest=rest,
            # After a lease is taken, what follows in the same part is written under it.
            epoch=epoch if is_owner(event.type) else None,
            origin=source.origin,
            trust=source.trust,
            user=user,
            subject=None if event.subject is None else pseudonym(event.subject),
            causation=source.causation,
            correlation=source.correlation,
            app=source.app,
            facts=event.facts,
            content=event.content,
            salt=event.salt,
            mac=None,
            hash=b"",
        )
        previous = link(previous, stored)
        # The record is not shared yet: filling in its hash here saves making it twice.
        force_setattr(stored, "hash", previous)
        placed.append(stored)
        seq += 1
        epoch, holder = next_owner(event, epoch, holder)
        closed = closed or event.type == CLOSES_STREAM
    after = Head(
        id=head.id, stream=part.stream, version=version, hash=previous, epoch=epoch, holder=holder, closed=closed
    )
    return placed, after


def head_after(head: Head, event: StoredEvent) -> Head:
    """The head after an event that has its place already: of a copy, or of a chain that is checked."""
    epoch, holder = next_owner(event, head.epoch, head.holder)
    return Head(
        id=head.id,
        stream=head.stream,
        version=event.version,
        hash=event.hash,
        epoch=epoch,
        holder=holder,
        closed=head.closed or event.type == CLOSES_STREAM,
    )

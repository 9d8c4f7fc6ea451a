"""May this part be appended to this stream? The same answer on every backend, inside the transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.chain import content_mac
from holdfast.core.codec import decode
from holdfast.errors import Conflict, HoldfastError, KeyReused, StaleEpoch, StreamClosed, VersionConflict
from holdfast.records.batches import Head, Part
from holdfast.records.catalogue import event_type
from holdfast.records.events.envelope import Sealed, StoredEvent
from holdfast.records.events.journal import LeaseTaken

TAKES_LEASE = "lease.taken"
GIVES_LEASE = "lease.released"
CLOSES_STREAM = "stream.closed"


def is_owner(type_name: str) -> bool:
    """Whether events of this type need the owner's epoch."""
    row = event_type(type_name)
    return row is not None and row.kind == "owner"


def refusal(part: Part, head: Head) -> HoldfastError | None:
    """Why this part may not be appended after this head, or None."""
    if head.closed:
        return StreamClosed(f"{part.stream} was closed for good and takes no more events. Use a new stream.")
    # A stale owner learns that first: whatever version it expects, it must stop.
    if part.epoch != head.epoch and any(is_owner(event.type) for event in part.events):
        return StaleEpoch(part.stream, part.epoch, head.epoch)
    if part.expected is not None and part.expected != head.version:
        return VersionConflict(part.stream, part.expected, head.version)
    epoch = head.epoch
    for event in part.events:
        if event.type == TAKES_LEASE:
            epoch += 1
            taken: LeaseTaken = decode(event.facts, LeaseTaken)
            if taken.epoch != epoch:
                return Conflict(
                    f"{part.stream} is under epoch {epoch - 1}; the next lease has epoch {epoch}, not {taken.epoch}: "
                    "another owner was first. Reload and try again."
                )
    return None


def next_owner(event: Sealed | StoredEvent, epoch: int, holder: str | None) -> tuple[int, str | None]:
    """The stream's epoch and holder after this event."""
    if event.type == TAKES_LEASE:
        taken: LeaseTaken = decode(event.facts, LeaseTaken)
        return taken.epoch, taken.owner
    return epoch, None if event.type == GIVES_LEASE else holder


def repeats(part: Part, stored: Sequence[StoredEvent]) -> HoldfastError | None:
    """None if a part asks for what its key already stands for; else why not."""
    if len(part.events) == len(stored) and all(map(_same, part.events, stored)):
        return None
    return KeyReused(
        f"Key {part.key!r} of {part.stream} already stands for {', '.join(event.type for event in stored)} "
        f"at version {stored[0].version}, with other content. Use a new key for a new operation."
    )


def half_written(part: Part) -> HoldfastError:
    """Some keys of a batch are known and this one is not."""
    return Conflict(
        f"Key {part.key!r} of {part.stream} is new, but other keys of this batch are not. Use new keys for all."
    )


def _same(wanted: Sealed, stored: StoredEvent) -> bool:
    if wanted.type != stored.type or _comparable(wanted) != _comparable(stored):
        return False
    if stored.erased:
        return True
    if stored.content is None or stored.salt is None or wanted.content is None:
        return wanted.content is None and stored.content is None
    return content_mac(stored.salt, wanted.content) == content_mac(stored.salt, stored.content)


def _comparable(event: Sealed | StoredEvent) -> Any:
    row = event_type(event.type)
    if row is None or not row.minted:
        return event.facts
    facts: dict[str, Any] = decode(event.facts)
    return {name: value for name, value in facts.items() if name not in row.minted}

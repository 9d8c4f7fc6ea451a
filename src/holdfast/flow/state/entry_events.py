"""Convert entries and edges to events of their scope's stream, and back."""

from __future__ import annotations

import msgspec

from holdfast.core.journal.codec import decode, decode_facts
from holdfast.records.entries import Edge, StoredEntry
from holdfast.records.events.envelope import Draft, StoredEvent
from holdfast.records.events.state import StateDeleted, StateLinked, StateUnlinked, StateWritten, ValueContent
from holdfast.records.scope import parse_scope


class _RawValue(msgspec.Struct, frozen=True):
    """The value of a content as undecoded bytes."""

    value: msgspec.Raw = msgspec.Raw(b"null")


def write_draft(scope: str, key: str, entry: StoredEntry) -> Draft:
    """Return the event of a write. An entry in a user's scope belongs to that user, whoever wrote it."""
    facts = StateWritten(
        key=key,
        tier=entry.tier,
        lifetime=entry.lifetime,
        content_kind=entry.content_kind,
        salience=entry.salience,
        expires_at=entry.expires_at,
        reducer=entry.reducer,
        value_schema=entry.schema,
        effect=entry.applied[-1] if entry.applied else None,
    )
    content = ValueContent(value=decode(entry.value), given=None if entry.given is None else decode(entry.given))
    return Draft(type="state.written", facts=facts, content=content, subject=parse_scope(scope).get("user"))


def delete_draft(key: str, *, cause: str = "call", effect: str | None = None, missing: bool = False) -> Draft:
    """Return the event of a deletion; with `missing`, of one that found nothing to delete."""
    return Draft(type="state.deleted", facts=StateDeleted(key=key, cause=cause, effect=effect, missing=missing))


def link_draft(edge: Edge, *, effect: str | None = None) -> Draft:
    """Return the event of a new edge. Its data belongs to the user whose entry is at either end."""
    facts = StateLinked(
        source=edge.source,
        kind=edge.kind,
        target=edge.target,
        target_scope=edge.target_scope,
        weight=edge.weight,
        effect=effect,
    )
    content = None if edge.data is None else ValueContent(value=edge.data)
    about = parse_scope(edge.scope).get("user") or parse_scope(edge.target_scope).get("user")
    subject = None if content is None else about
    return Draft(type="state.linked", facts=facts, content=content, subject=subject)


def unlink_draft(edge: Edge, *, effect: str | None = None) -> Draft:
    """Return the event of a removed edge."""
    facts = StateUnlinked(
        source=edge.source, kind=edge.kind, target=edge.target, target_scope=edge.target_scope, effect=effect
    )
    return Draft(type="state.unlinked", facts=facts)


def decode_entry(event: StoredEvent) -> tuple[str, StoredEntry]:
    """Return the key and the entry that an event holds."""
    facts: StateWritten = decode_facts(event.type, event.schema, event.facts)
    assert event.content is not None, "an entry whose value was erased is not read"
    return facts.key, StoredEntry(
        value=bytes(decode(event.content, _RawValue).value),
        version=event.version,
        written_at=event.at,
        expires_at=facts.expires_at,
        tier=facts.tier,
        lifetime=facts.lifetime,
        content_kind=facts.content_kind,
        salience=facts.salience,
        schema=facts.value_schema,
        applied=() if facts.effect is None else (facts.effect,),
    )

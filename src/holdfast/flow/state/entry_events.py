"""Entries and edges as events of their scope's stream, and back.

Entries that were to live as long as a session go with it, in the commit that ends it.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
from msgspec.structs import replace

from holdfast.core.entries import MAX_PAGE
from holdfast.core.journal.codec import decode, decode_facts
from holdfast.ports import Acting, Ports
from holdfast.records.entries import Edge, EntryPage, Stored
from holdfast.records.events.envelope import Draft, StoredEvent
from holdfast.records.events.state import StateDeleted, StateLinked, StateUnlinked, StateWritten, ValueContent
from holdfast.records.scope import parse_scope


class _RawValue(msgspec.Struct, frozen=True):
    """The value of a content as its bytes, not taken apart."""

    value: msgspec.Raw = msgspec.Raw(b"null")


def written_draft(scope: str, key: str, entry: Stored) -> Draft:
    """The event of a write. What is kept about a user belongs to that user, whoever wrote it."""
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


def deleted_draft(key: str, *, cause: str = "call", effect: str | None = None, missing: bool = False) -> Draft:
    """The event of a deletion, or of one that found nothing to delete."""
    return Draft(type="state.deleted", facts=StateDeleted(key=key, cause=cause, effect=effect, missing=missing))


def linked_draft(edge: Edge, *, effect: str | None = None) -> Draft:
    """The event of an edge. What it says of a user's entries belongs to that user, at whichever end they are."""
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


def unlinked_draft(edge: Edge, *, effect: str | None = None) -> Draft:
    """The event of an edge that goes."""
    facts = StateUnlinked(
        source=edge.source, kind=edge.kind, target=edge.target, target_scope=edge.target_scope, effect=effect
    )
    return Draft(type="state.unlinked", facts=facts)


def stored_entry(event: StoredEvent) -> tuple[str, Stored]:
    """The entry that an event holds, with its key."""
    facts: StateWritten = decode_facts(event.type, event.schema, event.facts)
    assert event.content is not None, "an entry whose value was erased is not read"
    return facts.key, Stored(
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


PAGE = 256


def ending_drafts(ports: Ports, acting: Acting, streams: Iterable[str]) -> dict[str, list[Draft]]:
    """The deletions that the end of a session entails, by stream."""
    found: dict[str, list[Draft]] = {}
    for stream in streams:
        keys = _ending(ports, acting, stream)
        if keys:
            found[stream] = [deleted_draft(key, cause="session") for key in keys]
    return found


def _ending(ports: Ports, acting: Acting, stream: str) -> list[str]:
    keys: list[str] = []
    # At the beginning of time nothing is over yet: what has expired goes as well.
    page = EntryPage(now=0, lifetime="session", limit=MAX_PAGE)
    while True:
        more = [stored_entry(event)[0] for event in ports.journal.entries(acting.tenant, stream, page)]
        keys += more
        if len(more) < page.limit:
            return keys
        page = replace(page, after=more[-1])


def scopes_in(ports: Ports, acting: Acting, session: str) -> list[str]:
    """The streams in a session, whether anything was said in them or not, at the cost of their number."""
    found: list[str] = []
    below, after = f"{session}/", f"{session}/"
    while heads := ports.journal.heads(acting.tenant, after, PAGE):
        names = [head.stream for head in heads if head.stream.startswith(below)]
        found += names
        if len(names) < PAGE:
            break
        after = names[-1]
    return found


def clear_transients(ports: Ports, acting: Acting, session: str) -> None:
    """What lay over the entries of a session is gone with it."""
    if ports.transients is not None:
        ports.transients.clear_below((acting.tenant, session))

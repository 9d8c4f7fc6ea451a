"""One piece of a journaled pack, read again from where it came from. What was erased since says so."""

from __future__ import annotations

import msgspec

from holdfast.core.codec import decode_event
from holdfast.core.passages import remembered
from holdfast.core.said import ERASED_TEXT
from holdfast.flow import resolving
from holdfast.flow.evidence import described
from holdfast.flow.lines import APPENDED, decoded
from holdfast.flow.showing import event_at, field, held_event
from holdfast.ports import Acting, Ports
from holdfast.records.events.calls import PackedPiece
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.messages import Message
from holdfast.records.packs import Origin
from holdfast.records.reports import Query

PAGE = 256


def origin_of(piece: PackedPiece) -> Origin:
    """Where a piece came from."""
    kind: str = piece.kind
    return msgspec.convert(
        {name: getattr(piece, name) for name in Origin.__struct_fields__ if name != "kind"} | {"kind": kind}, Origin
    )


def messages_of(ports: Ports, acting: Acting, piece: PackedPiece) -> list[Message]:
    """The messages of a run, whole, oldest first."""
    found: list[Event] = []
    after, last = (piece.first or 1) - 1, piece.last or 0
    while after < last:
        query = Query(tenant=acting.tenant, stream=piece.stream, after=after, until=last, types=APPENDED, limit=PAGE)
        page = [decode_event(event) for event in ports.journal.read(query)]
        found += page
        if len(page) < PAGE:
            break
        after = page[-1].version
    return decoded(ports, acting, found)


def memory_text(ports: Ports, acting: Acting, origin: Origin) -> tuple[str, bool]:
    """What a memory says, uncut, and whether it was erased."""
    event = event_at(ports, acting, origin.stream or "", origin.first or 0)
    passage = None
    if event is not None and event.content is not ERASED:
        passage = remembered(field(event, "value"), event.trust)
    return (ERASED_TEXT, True) if passage is None else (passage.text, False)


def evidence_text(ports: Ports, acting: Acting, origin: Origin) -> tuple[str, bool]:
    """What evidence says with its description, uncut, and whether it was erased."""
    text = resolving.reload(ports, acting, origin)
    if text is ERASED or not isinstance(text, str):
        return ERASED_TEXT, True
    event = None
    if origin.handle_stream is not None and origin.handle_version is not None:
        event = held_event(ports, acting, origin.handle_stream, origin.handle_version)
    description = field(event, "description")
    return described(description, text), description is ERASED

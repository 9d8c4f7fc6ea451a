"""One piece of a journaled pack, read again from where it came from. What was erased since says so."""

from __future__ import annotations

from holdfast.core.codec import decode_event
from holdfast.core.compaction.passages import remembered
from holdfast.core.said import ERASED_TEXT
from holdfast.core.shapes import converted
from holdfast.core.telling import FILE
from holdfast.flow.context import resolving, seeing
from holdfast.flow.context.evidence import described
from holdfast.flow.conversation.lines import APPENDED, decoded
from holdfast.flow.stack.showing import event_at, field, held_event, row_of
from holdfast.ports import Acting, Ports
from holdfast.records.events.calls import PackedPiece
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.messages import Message
from holdfast.records.packs import FrameBreadcrumb, Origin
from holdfast.records.reports import Query

PAGE = 256
UNKNOWN_STATUS = "unknown"
"""What a frame was doing when it was packed is not journaled with the pack."""


def origin_of(piece: PackedPiece) -> Origin:
    """Where a piece came from."""
    kind: str = piece.kind
    found: Origin = converted(
        {name: getattr(piece, name) for name in Origin.__struct_fields__ if name != "kind"} | {"kind": kind}, Origin
    )
    return found


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
    description = field(_attached(ports, acting, origin), "description")
    return described(description, text), description is ERASED


def _attached(ports: Ports, acting: Acting, origin: Origin) -> Event | None:
    """Where the handle of evidence was attached first."""
    if origin.handle_stream is None or origin.handle_version is None:
        return None
    return held_event(ports, acting, origin.handle_stream, origin.handle_version)


def source_of(ports: Ports, acting: Acting, origin: Origin) -> str | None:
    """Where evidence came from, in words; None if what it named was erased."""
    attached = _attached(ports, acting, origin)
    if origin.artifact is not None:
        target = origin.artifact[:12] if origin.part == "artifact" else field(attached, "target")
        if not isinstance(target, str):
            return None
        return f"artifact {target}" if origin.part == "artifact" else _outside(target)
    if attached is not None and (attached.stream, attached.version) == (origin.stream, origin.first):
        return "attached text"
    if origin.part == "document":
        return f"state {origin.stream}#{origin.entry}"
    event = event_at(ports, acting, origin.stream or "", origin.first or 0)
    return None if event is None else f"{event.type} {event.stream}@{event.version}"


def _outside(target: str) -> str:
    """A file by its path, a page by its address."""
    return f"file {target.removeprefix(FILE)}" if target.startswith(FILE) else target


def crumb_at(ports: Ports, acting: Acting, origin: Origin) -> tuple[FrameBreadcrumb, bool]:
    """A frame as a breadcrumb shows it, and whether its goal was erased."""
    goal, gone = seeing.reload_breadcrumb(ports, acting, origin)
    event = event_at(ports, acting, origin.stream or "", origin.first or 0)
    frame = "" if event is None else str(event.facts.frame)
    depth = getattr(None if event is None else event.facts, "depth", None)
    if depth is None and frame:  # The goal was given anew later; how deep a frame is never changes.
        depth = row_of(ports, acting, frame)[1]["depth"]
    return FrameBreadcrumb(frame_id=frame, depth=int(depth or 0), goal=goal, status=UNKNOWN_STATUS), gone

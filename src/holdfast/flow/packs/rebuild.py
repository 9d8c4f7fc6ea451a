"""Rebuild a journaled pack exactly as it was shown, reading every piece from its origin, in O(pack).

Today's settings, windows and strategies take no part, so later releases rebuild the same pack. Content erased
since is shown as erased; any other difference means a damaged journal, and raises `Corrupt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from holdfast.core.compaction.summary import remembered
from holdfast.core.journal.codec import decode_event
from holdfast.core.msgspec_types import converted
from holdfast.core.packs.assemble import breakdown, is_guessed, origins
from holdfast.core.packs.event_text import FILE
from holdfast.core.packs.fences import MEMORY_LABEL, evidence_label, lowest, marks
from holdfast.core.packs.handles import handle_of
from holdfast.core.packs.manifest import RENDERER, decisions, digest, omitted, retrieved
from holdfast.core.packs.rounds import retold
from holdfast.core.packs.segments import (
    crumb_segment,
    note_segments,
    remade_marker,
    shown,
    summary_segment,
    text_as_cut,
)
from holdfast.core.sessions.message_events import ERASED_TEXT
from holdfast.core.sessions.pairing import repaired
from holdfast.core.sessions.tokens import counted_as, framing_of, message_tokens, system_tokens, tools_tokens
from holdfast.errors import CallNotFound, Corrupt, InvalidValue, NewerSchema, NotFound
from holdfast.flow.compaction import summaries
from holdfast.flow.frames.read import event_at, field, held_event, raw_id, row_of
from holdfast.flow.packs import briefs, handles, visibility
from holdfast.flow.packs.evidence import described
from holdfast.flow.sessions.append import models, session_behind
from holdfast.flow.sessions.read import APPENDED, decoded
from holdfast.ports import Acting, Ports, Tokenizer
from holdfast.records.events.calls import ContextPacked, PackedPiece
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.messages import Message
from holdfast.records.packs import (
    CompactionLevel,
    ContextPackMetadata,
    ConversationSlice,
    FrameBreadcrumb,
    Origin,
    Packed,
    RetrievedEvidence,
    Segment,
    TokenSummary,
    WindowKey,
)
from holdfast.records.reports import Query
from holdfast.records.sessions import Summary


def pack_at(ports: Ports, acting: Acting, call: str, session: str | None = None) -> Packed:
    """Rebuild the pack of a call, by the id of the call or of the pack; only of `session`, if given."""
    event = packed_event(ports, acting, call)
    if session is not None and session_behind(ports, acting, event.stream) != session:
        raise CallNotFound(
            f"Call {call} is not one of this session. Ask its own session, or hf.index.pack_at for any call."
        )
    return rebuilt(ports, acting, event)


def packed_event(ports: Ports, acting: Acting, call: str) -> Event:
    """Return the event of the pack that a call was given."""
    stored = ports.journal.event(acting.tenant, raw_id(call, "call"))
    if stored is not None and stored.type == "model.requested":
        pack = decode_event(stored).facts.pack
        if pack is None:
            raise NotFound(f"Call {call} was begun without a pack, so there is none to show. Give it one.")
        stored = ports.journal.event(acting.tenant, raw_id(pack, "pack"))
    if stored is None or stored.type != "context.packed":
        raise CallNotFound(f"There is no model call {call} with a pack. Check its id and the tenant.")
    return decode_event(stored)


def rebuilt(ports: Ports, acting: Acting, event: Event) -> Packed:
    """Rebuild a journaled pack as it was shown."""
    facts: ContextPacked = event.facts
    if facts.renderer > RENDERER:
        raise NewerSchema("This pack was made by a later release. Install that one to see it.")
    with ports.journal.snapshot():
        return _Rebuilding(ports, acting, event).made()


class _Rebuilding:
    """The rebuilder of one pack, piece by piece."""

    def __init__(self, ports: Ports, acting: Acting, event: Event) -> None:
        self._ports, self._acting, self._event = ports, acting, event
        self._facts: ContextPacked = event.facts
        self._line = event.stream
        self._mark = marks(ports.journal.secret, acting.tenant)
        info = models(ports).info(self._facts.model)
        self._framing = framing_of(info.provider, info.name)
        self._tokenizer = _tokenizer(ports, self._facts.tokenizer, info.tokenizer)
        self._kept_as = counted_as(self._facts.tokenizer, self._framing)
        self._follows: dict[tuple[str, int], tuple[str, int]] = {}
        self._erased: list[str] = []
        self._summaries: list[Summary] = []
        self._crumbs: list[FrameBreadcrumb] = []
        self._evidence: list[RetrievedEvidence] = []

    def _count(self, message: Message) -> int:
        if message.tokens is not None and message.tokenizer == self._kept_as:
            return message.tokens
        return message_tokens(message, self._tokenizer.count, self._framing)

    def made(self) -> Packed:
        """Rebuild the whole pack; raise Corrupt if it differs without an erasure."""
        brief = briefs.reload(self._ports, self._acting, [origin_of(one) for one in self._brief_pieces()])
        self._erased += brief.erased
        self._notes = note_segments(brief.notes, self._count)
        self._rounds = self._conversation()
        segments = [segment for piece in self._grouped() for segment in self._segments(piece, brief)]
        said = [message for one in segments if one.kind == "conversation" for message in one.messages]
        pack = self._packed(brief, segments, [message for message in said if not _is_mark(message)])
        same = digest(self._ports.journal.secret, self._acting.tenant, pack) == self._facts.digest
        if not same and not self._erased:
            raise Corrupt(f"Pack {self._facts.pack} is not what it was when it was journaled. Run `holdfast verify`.")
        return pack

    def _brief_pieces(self) -> list[PackedPiece]:
        return [piece for piece in self._facts.manifest if piece.kind == "brief" and piece.part != "note"]

    def _grouped(self) -> list[list[PackedPiece]]:
        """Group the pieces of one segment: a brief and breadcrumbs have several."""
        found: list[list[PackedPiece]] = []
        if not self._brief_pieces():
            found.append([])  # The brief was empty; its segment still comes first.
        for piece in self._facts.manifest:
            several = piece.kind == "breadcrumb" or (piece.kind == "brief" and piece.part != "note")
            if several and found and found[-1] and (found[-1][0].kind, found[-1][0].id) == (piece.kind, piece.id):
                found[-1].append(piece)
            else:
                found.append([piece])
        return found

    def _segments(self, group: Sequence[PackedPiece], brief: briefs.Brief) -> list[Segment]:
        if not group or (group[0].kind == "brief" and group[0].part != "note"):
            return [self._brief_segment(brief)]
        piece = group[0]
        match piece.kind:
            case "brief":
                return [self._notes[(piece.first or 1) - 1]]
            case "breadcrumb":
                return [self._breadcrumbs(group)]
            case "summary":
                return [self._summary(piece)]
            case "conversation":
                return self._said(piece)
        return [self._item(piece)]

    def _brief_segment(self, brief: briefs.Brief) -> Segment:
        tokens = system_tokens(brief.system, self._tokenizer.count, self._framing)
        tokens += tools_tokens(brief.tools, self._tokenizer.count, self._framing) + self._framing.reply
        return Segment(
            kind="brief",
            id="brief",
            priority="critical",
            trust="operator",
            estimated_tokens=tokens,
            messages=(),
            origins=brief.origins,
        )

    def _breadcrumbs(self, group: Sequence[PackedPiece]) -> Segment:
        goals = []
        for piece in group:
            crumb, gone = crumb_at(self._ports, self._acting, origin_of(piece))
            self._erased += [piece.id] if gone else []
            self._crumbs.append(crumb)
            goals.append(crumb.goal)
        return crumb_segment(goals, [origin_of(piece) for piece in group], self._mark, self._count)

    def _summary(self, piece: PackedPiece) -> Segment:
        found = summaries.summary_at(self._ports, self._acting, piece.stream or "", piece.first or 0)
        if found.text == summaries.ERASED_SUMMARY:
            self._erased.append(piece.id)
        self._summaries.append(found)
        return summary_segment(found, self._line, self._mark, self._count)

    # the conversation

    def _conversation(self) -> dict[tuple[str, int], list[Message]]:
        """Load every round shown, by the place of its first message, repaired as it was then."""
        runs = [piece for piece in self._facts.manifest if piece.kind == "conversation" and piece.part is None]
        streams = list(dict.fromkeys(piece.stream for piece in runs))
        loaded: dict[tuple[int, int], Message] = {}
        for piece in runs:
            found = messages_of(self._ports, self._acting, piece)
            loaded.update({(streams.index(piece.stream), message.version): message for message in found})
            for one, other in pairwise(found):
                self._follows[one.stream, one.version] = (other.stream, other.version)
        rounds: dict[tuple[str, int], list[Message]] = {}
        head = ("", 0)
        for message in repaired([message for _, message in sorted(loaded.items())]).messages:
            if message.role != "tool":
                head = (message.stream, message.version)
            rounds.setdefault(head, []).append(message)
        return rounds

    def _said(self, piece: PackedPiece) -> list[Segment]:
        if piece.part is not None:
            return [remade_marker(piece.cut or "0:", self._count)]
        heads = sorted(
            place
            for place in self._rounds
            if place[0] == piece.stream and (piece.first or 0) <= place[1] <= (piece.last or 0)
        )
        return [self._round(self._rounds[place], piece) for place in heads]

    def _round(self, messages: Sequence[Message], piece: PackedPiece) -> Segment:
        recipe = [] if piece.cut is None else piece.cut.split(",")
        form, left_out = retold(messages, recipe, self._line)
        gone = [message for message in messages if message.erased]
        id = handle_of(messages[0], self._line)
        self._erased += [id] if gone else []
        return Segment(
            kind="conversation",
            id=id,
            priority=piece.priority or "medium",
            trust=lowest(*(message.trust for message in messages)),
            estimated_tokens=sum(map(self._count, form)),
            messages=tuple(form),
            origins=origins(messages, piece.cut, self._follows),
            shortened=left_out,
        )

    # evidence and memories

    def _item(self, piece: PackedPiece) -> Segment:
        origin, trust = origin_of(piece), piece.trust or "external"
        gone = False
        if piece.kind == "memory":
            text, gone = memory_text(self._ports, self._acting, origin)
            label = MEMORY_LABEL
        else:
            text, gone = evidence_text(self._ports, self._acting, origin)
            label = evidence_label(piece.id, piece.part or "evidence", trust)
        self._erased += [piece.id] if gone else []
        told, left_out = text_as_cut(text, piece.cut, piece.id)
        message = shown(label, told, piece.id, piece.kind, trust, self._mark)
        segment = Segment(
            kind="memory" if piece.kind == "memory" else "evidence",
            id=piece.id,
            priority=piece.priority or "medium",
            trust=trust,
            estimated_tokens=self._count(message),
            messages=(message,),
            origins=(origin,),
            shortened=left_out,
        )
        if piece.kind == "evidence":
            self._evidence.append(retrieved(segment, piece, source_of(self._ports, self._acting, origin)))
        return segment

    # the whole

    def _packed(self, brief: briefs.Brief, segments: list[Segment], said: list[Message]) -> Packed:
        facts = self._facts
        level = CompactionLevel(facts.level)
        stream = facts.window_stream
        return Packed(
            system=brief.system,
            tools=brief.tools,
            segments=tuple(segments),
            summaries=tuple(self._summaries),
            conversation=ConversationSlice(
                messages=tuple(said),
                message_count=len(said),
                truncated_count=facts.truncated,
                estimated_tokens=sum(map(self._count, said)),
            ),
            brief=brief.context,
            breadcrumbs=tuple(self._crumbs),
            evidence=tuple(self._evidence),
            token_summary=TokenSummary(
                budget=facts.budget,
                used=facts.used,
                remaining=max(facts.budget - facts.used, 0),
                breakdown=breakdown(segments, self._framing.reply),
                compaction_level=level,
            ),
            metadata=ContextPackMetadata(
                pack_id=facts.pack,
                frame_id=facts.frame,
                scope=self._line,
                role=facts.role,
                created_at=self._event.at,
                log_seq=facts.at_seq,
                level=level,
                layout="classic" if facts.layout == "classic" else "stable",
                omitted=omitted(facts),
                erased=tuple(dict.fromkeys(self._erased)),
            ),
            decisions=decisions(facts, segments, self._summaries),
            model=facts.model,
            tokenizer=facts.tokenizer,
            exact=facts.exact and self._tokenizer.name == facts.tokenizer and not any(map(is_guessed, said)),
            window=WindowKey(role=facts.role, layout=facts.layout, tokenizer=facts.tokenizer, budget=facts.asked),
            window_start=None if stream is None or facts.window_start is None else (stream, facts.window_start),
            shortened=sum(1 for one in segments if one.kind == "conversation" and one.shortened),
            limited_by=facts.limited_by,
            cached_tokens=facts.cached_tokens,
            stable=facts.stable,
        )


def _tokenizer(ports: Ports, name: str, instead: str) -> Tokenizer:
    """Return the tokenizer used then, or the model's if this process does not have that one."""
    try:
        return models(ports).tokenizer(name)
    except InvalidValue:
        return models(ports).tokenizer(instead)


def _is_mark(message: Message) -> bool:
    return message.synthetic and message.role == "user"


PAGE = 256
UNKNOWN_STATUS = "unknown"
"""A frame's status at the time of packing is not journaled with the pack."""


def origin_of(piece: PackedPiece) -> Origin:
    """Return the origin of a piece."""
    kind: str = piece.kind
    found: Origin = converted(
        {name: getattr(piece, name) for name in Origin.__struct_fields__ if name != "kind"} | {"kind": kind}, Origin
    )
    return found


def messages_of(ports: Ports, acting: Acting, piece: PackedPiece) -> list[Message]:
    """Load the messages of a run, uncut, oldest first."""
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
    """Load the text of a memory, uncut, and return True with it if it was erased."""
    event = event_at(ports, acting, origin.stream or "", origin.first or 0)
    passage = None
    if event is not None and event.content is not ERASED:
        passage = remembered(field(event, "value"), event.trust)
    return (ERASED_TEXT, True) if passage is None else (passage.text, False)


def evidence_text(ports: Ports, acting: Acting, origin: Origin) -> tuple[str, bool]:
    """Load evidence with its description, uncut, and return True with it if it was erased."""
    text = handles.reload(ports, acting, origin)
    if text is ERASED or not isinstance(text, str):
        return ERASED_TEXT, True
    description = field(_attached(ports, acting, origin), "description")
    return described(description, text), description is ERASED


def _attached(ports: Ports, acting: Acting, origin: Origin) -> Event | None:
    """Return the event that first attached the handle of the evidence."""
    if origin.handle_stream is None or origin.handle_version is None:
        return None
    return held_event(ports, acting, origin.handle_stream, origin.handle_version)


def source_of(ports: Ports, acting: Acting, origin: Origin) -> str | None:
    """Describe the source of evidence; None if the target was erased."""
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
    """Describe a file by its path, a page by its address."""
    return f"file {target.removeprefix(FILE)}" if target.startswith(FILE) else target


def crumb_at(ports: Ports, acting: Acting, origin: Origin) -> tuple[FrameBreadcrumb, bool]:
    """Load a breadcrumb, and return True with it if its goal was erased."""
    goal, gone = visibility.reload_breadcrumb(ports, acting, origin)
    event = event_at(ports, acting, origin.stream or "", origin.first or 0)
    frame = "" if event is None else str(event.facts.frame)
    depth = getattr(None if event is None else event.facts, "depth", None)
    if depth is None and frame:  # The event only changed the goal; the depth never changes.
        depth = row_of(ports, acting, frame)[1]["depth"]
    return FrameBreadcrumb(frame_id=frame, depth=int(depth or 0), goal=goal, status=UNKNOWN_STATUS), gone

"""Rebuild a journaled pack exactly as it was shown, reading every piece from its origin, in O(pack).

Today's settings, windows and strategies take no part, so later releases rebuild the same pack. Content erased
since is shown as erased; any other difference means a damaged journal, and raises `Corrupt`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from holdfast.core.compaction.summary import read_passage
from holdfast.core.journal.codec import decode_event
from holdfast.core.lazy import convert
from holdfast.core.packs import segments
from holdfast.core.packs.assemble import round_origins, summarise_tokens
from holdfast.core.packs.briefs import Brief
from holdfast.core.packs.fences import MEMORY_LABEL, FenceMarks, evidence_label
from holdfast.core.packs.manifest import RENDERER_VERSION, compute_digest, make_evidence, restore_decisions
from holdfast.core.packs.rounds import remake_round
from holdfast.core.packs.runs import has_estimates
from holdfast.core.sessions.rounds import repair_messages
from holdfast.core.sessions.tokens import count_label, framing_of
from holdfast.core.trust import FILE_PREFIX, lowest_trust
from holdfast.core.wire.parts import ERASED_TEXT
from holdfast.errors import CallNotFound, Corrupt, InvalidValue, NewerSchema, NotFound
from holdfast.flow.frames.read import content_field, find_frame_row, parse_id, read_handle_event
from holdfast.flow.packs import briefs, handles, visibility
from holdfast.flow.packs.evidence import prepend_description
from holdfast.flow.packs.recent import TokenCounter
from holdfast.flow.packs.visibility import read_origin
from holdfast.flow.sessions import summaries
from holdfast.flow.sessions.append import resolve_session_stream
from holdfast.flow.sessions.read import decode_messages, read_stored
from holdfast.ports import Env
from holdfast.records import packs
from holdfast.records.events.calls import ContextPacked, PackedPiece
from holdfast.records.events.envelope import ERASED, Event
from holdfast.records.messages import Message
from holdfast.records.packs import AssembledPack, CompactionLevel, Origin, Segment, SegmentKind
from holdfast.records.sessions import Summary

UNKNOWN_STATUS = "unknown"
"""A frame's status at the time of packing is not journaled with the pack."""


def pack_at(env: Env, call: str, session: str | None = None) -> AssembledPack:
    """Rebuild the pack of a call, by the id of the call or of the pack; only of `session`, if given."""
    stored = env.journal.event(env.tenant, parse_id(call, "call"))
    if stored is not None and stored.type == "model.requested":
        pack = decode_event(stored).facts.pack
        if pack is None:
            raise NotFound(f"Call {call} was begun without a pack, so there is none to show. Give it one.")
        stored = env.journal.event(env.tenant, parse_id(pack, "pack"))
    if stored is None or stored.type != "context.packed":
        raise CallNotFound(f"There is no model call {call} with a pack. Check its id and the tenant.")
    event = decode_event(stored)
    if session is not None and resolve_session_stream(env, event.stream) != session:
        raise CallNotFound(
            f"Call {call} is not one of this session. Ask its own session, or hf.index.pack_at for any call."
        )
    return rebuild_pack(env, event)


def rebuild_pack(env: Env, event: Event) -> AssembledPack:
    """Rebuild a journaled pack as it was shown."""
    facts: ContextPacked = event.facts
    if facts.renderer > RENDERER_VERSION:
        raise NewerSchema("This pack was made by a later release. Install that one to see it.")
    with env.journal.snapshot():
        return _PackRebuilder(env, event).rebuild()


class _PackRebuilder:
    """The rebuilder of one pack, piece by piece."""

    def __init__(self, env: Env, event: Event) -> None:
        self._env, self._event = env, event
        self._facts: ContextPacked = event.facts
        self._thread = event.stream
        self._mark = FenceMarks(env.journal, env.tenant)
        models, named = env.models, self._facts.tokenizer
        info = models.info(self._facts.model)
        try:
            tokenizer = models.tokenizer(named)
        except InvalidValue:  # This process does not have the one that was used then.
            tokenizer = models.tokenizer(info.tokenizer)
        framing = framing_of(info.provider, info.name)
        self._counter = TokenCounter(tokenizer=tokenizer, framing=framing, kept_as=count_label(named, framing))
        self._count = self._counter.count
        self._follows: dict[tuple[str, int], tuple[str, int]] = {}
        self._erased: list[str] = []
        self._summaries: list[Summary] = []
        self._crumbs: list[packs.FrameBreadcrumb] = []
        self._evidence: list[packs.RetrievedEvidence] = []

    def rebuild(self) -> AssembledPack:
        """Rebuild the whole pack; raise Corrupt if it differs without an erasure."""
        brief = briefs.reload_brief(self._env, [piece_origin(one) for one in list_brief_pieces(self._facts)])
        self._erased += brief.erased
        self._notes = segments.note_segments(brief.notes, self._count)
        self._rounds = self._load_rounds()
        parts = [segment for piece in self._group_pieces() for segment in self._group_segments(piece, brief)]
        said = [message for one in parts if one.kind == "conversation" for message in one.messages]
        said = [message for message in said if not (message.synthetic and message.role == "user")]  # Without markers.
        pack = self._assemble_pack(brief, parts, said)
        same = compute_digest(self._env.journal.secret, self._env.tenant, pack) == self._facts.digest
        if not same and not self._erased:
            raise Corrupt(f"Pack {self._facts.pack} is not what it was when it was journaled. Run `holdfast verify`.")
        return pack

    def _group_pieces(self) -> list[list[PackedPiece]]:
        """Group the pieces of one segment: a brief and breadcrumbs have several."""
        found: list[list[PackedPiece]] = []
        if not list_brief_pieces(self._facts):
            found.append([])  # The brief was empty; its segment still comes first.
        for piece in self._facts.manifest:
            several = piece.kind == "breadcrumb" or _is_brief(piece)
            if several and found and found[-1] and (found[-1][0].kind, found[-1][0].id) == (piece.kind, piece.id):
                found[-1].append(piece)
            else:
                found.append([piece])
        return found

    def _group_segments(self, group: Sequence[PackedPiece], brief: Brief) -> list[Segment]:
        if not group or _is_brief(group[0]):
            return [self._counter.brief_segment(brief)]
        piece = group[0]
        match piece.kind:
            case "brief":
                return [self._notes[(piece.first or 1) - 1]]
            case "breadcrumb":
                return [self._breadcrumb_segment(group)]
            case "summary":
                found = summaries.load_summary(self._env, piece.stream or "", piece.first or 0)
                self._erased += [piece.id] if found.text == summaries.ERASED_SUMMARY else []
                self._summaries.append(found)
                return [segments.summary_segment(found, self._thread, self._mark, self._count)]
            case "conversation" if piece.part is not None:
                number, _, tools = (piece.cut or "0:").partition(":")
                return [segments.marker_segment(int(number), self._count, tools=tools == "tools")]
            case "conversation":
                heads = [place for place in self._rounds if place[0] == piece.stream]
                shown = sorted(place for place in heads if (piece.first or 0) <= place[1] <= (piece.last or 0))
                return [self._round_segment(self._rounds[place], piece) for place in shown]
        return [self._item_segment(piece)]

    def _breadcrumb_segment(self, group: Sequence[PackedPiece]) -> Segment:
        origins = [piece_origin(piece) for piece in group]
        for origin in origins:
            goal, gone = visibility.reload_breadcrumb(self._env, origin)
            self._erased += [group[0].id] if gone else []
            event = read_origin(self._env, origin)
            frame = "" if event is None else str(event.facts.frame)
            depth = getattr(None if event is None else event.facts, "depth", None)
            if depth is None and frame:  # The event only changed the goal; the depth never changes.
                depth = find_frame_row(self._env, frame)[1]["depth"]
            self._crumbs.append(
                packs.FrameBreadcrumb(frame_id=frame, depth=int(depth or 0), goal=goal, status=UNKNOWN_STATUS)
            )
        return segments.crumb_segment([crumb.goal for crumb in self._crumbs], origins, self._mark, self._count)

    # the conversation

    def _load_rounds(self) -> dict[tuple[str, int], list[Message]]:
        """Load every round shown, by the place of its first message, repaired as it was then."""
        runs = [piece for piece in self._facts.manifest if piece.kind == "conversation" and piece.part is None]
        streams = list(dict.fromkeys(piece.stream for piece in runs))
        loaded: dict[tuple[int, int], Message] = {}
        for piece in runs:
            found = load_piece_messages(self._env, piece)
            loaded.update({(streams.index(piece.stream), message.version): message for message in found})
            for one, other in pairwise(found):
                self._follows[one.stream, one.version] = (other.stream, other.version)
        rounds: dict[tuple[str, int], list[Message]] = {}
        head = ("", 0)
        for message in repair_messages([message for _, message in sorted(loaded.items())]).messages:
            if message.role != "tool":
                head = (message.stream, message.version)
            rounds.setdefault(head, []).append(message)
        return rounds

    def _round_segment(self, messages: Sequence[Message], piece: PackedPiece) -> Segment:
        recipe = [] if piece.cut is None else piece.cut.split(",")
        form, left_out = remake_round(messages, recipe, self._thread)
        id = segments.message_handle(messages[0], self._thread)
        self._erased += [id] if any(message.erased for message in messages) else []
        return Segment(
            kind="conversation",
            id=id,
            priority=piece.priority or "medium",
            trust=lowest_trust(*(message.trust for message in messages)),
            estimated_tokens=sum(map(self._count, form)),
            messages=tuple(form),
            origins=round_origins(messages, piece.cut, self._follows),
            shortened=left_out,
        )

    # evidence and memories

    def _item_segment(self, piece: PackedPiece) -> Segment:
        origin, trust = piece_origin(piece), piece.trust or "external"
        if piece.kind == "memory":
            text, gone = load_memory_text(self._env, origin)
            label = MEMORY_LABEL
        else:
            text, gone = load_evidence_text(self._env, origin)
            label = evidence_label(piece.id, piece.part or "evidence", trust)
        self._erased += [piece.id] if gone else []
        told, left_out = segments.cut_by_recipe(text, piece.cut, piece.id)
        message = segments.make_message(label, told, piece.id, piece.kind, trust, self._mark)
        kind: SegmentKind = "memory" if piece.kind == "memory" else "evidence"
        priority = piece.priority or "medium"
        segment = segments.make_segment(kind, piece.id, priority, message, self._count, [origin], left_out)
        if piece.kind == "evidence":
            self._evidence.append(make_evidence(segment, piece.part or "", evidence_source(self._env, origin)))
        return segment

    # the whole

    def _assemble_pack(self, brief: Brief, parts: list[Segment], said: list[Message]) -> AssembledPack:
        facts = self._facts
        level = CompactionLevel(facts.level)
        stream = facts.window_stream
        decisions = restore_decisions(facts, parts, self._summaries)
        return AssembledPack(
            system=brief.system,
            tools=brief.tools,
            segments=tuple(parts),
            summaries=tuple(self._summaries),
            conversation=packs.ConversationSlice(
                messages=tuple(said),
                message_count=len(said),
                truncated_count=facts.truncated,
                estimated_tokens=sum(map(self._count, said)),
            ),
            brief=brief.context,
            breadcrumbs=tuple(self._crumbs),
            evidence=tuple(self._evidence),
            token_summary=summarise_tokens(
                parts, budget=facts.budget, used=facts.used, overhead=self._counter.framing.reply, level=level
            ),
            metadata=packs.ContextPackMetadata(
                pack_id=facts.pack,
                frame_id=facts.frame,
                scope=self._thread,
                role=facts.role,
                created_at=self._event.at,
                log_seq=facts.at_seq,
                level=level,
                layout="classic" if facts.layout == "classic" else "stable",
                omitted=tuple(one.id for one in decisions if one.outcome == "omitted"),
                erased=tuple(dict.fromkeys(self._erased)),
            ),
            decisions=decisions,
            model=facts.model,
            tokenizer=facts.tokenizer,
            exact=facts.exact and self._counter.tokenizer.name == facts.tokenizer and not has_estimates(said),
            window=packs.WindowKey(role=facts.role, layout=facts.layout, tokenizer=facts.tokenizer, budget=facts.asked),
            window_start=None if stream is None or facts.window_start is None else (stream, facts.window_start),
            shortened=sum(1 for one in parts if one.kind == "conversation" and one.shortened),
            limited_by=facts.limited_by,
            cached_tokens=facts.cached_tokens,
            stable=facts.stable,
        )


# the origins of pieces


def list_brief_pieces(facts: ContextPacked) -> list[PackedPiece]:
    """List the pieces of a pack's brief, apart from its notes."""
    return [piece for piece in facts.manifest if _is_brief(piece)]


def _is_brief(piece: PackedPiece) -> bool:
    return piece.kind == "brief" and piece.part != "note"


def piece_origin(piece: PackedPiece) -> Origin:
    """Return the origin of a piece."""
    found: Origin = convert({name: getattr(piece, name) for name in Origin.__struct_fields__}, Origin)
    return found


def load_piece_messages(env: Env, piece: PackedPiece) -> list[Message]:
    """Load the messages of a run, uncut, oldest first."""
    stored = read_stored(env, piece.stream or "", piece.first or 1, piece.last or 0)
    return decode_messages(env, [decode_event(event) for event in stored])


def load_memory_text(env: Env, origin: Origin) -> tuple[str, bool]:
    """Load the text of a memory, uncut, and return True with it if it was erased."""
    event = read_origin(env, origin)
    passage = None
    if event is not None and event.content is not ERASED:
        passage = read_passage(content_field(event, "value"), event.trust)
    return (ERASED_TEXT, True) if passage is None else (passage.text, False)


def load_evidence_text(env: Env, origin: Origin) -> tuple[str, bool]:
    """Load evidence with its description, uncut, and return True with it if it was erased."""
    text = handles.reload_evidence(env, origin)
    if not isinstance(text, str):
        return ERASED_TEXT, True
    description = content_field(_attachment_event(env, origin), "description")
    return prepend_description(description, text), description is ERASED


def _attachment_event(env: Env, origin: Origin) -> Event | None:
    """Return the event that first attached the handle of the evidence."""
    if origin.handle_stream is None or origin.handle_version is None:
        return None
    return read_handle_event(env, origin.handle_stream, origin.handle_version)


def evidence_source(env: Env, origin: Origin) -> str | None:
    """Describe the source of evidence; None if the target was erased."""
    attached = _attachment_event(env, origin)
    if origin.artifact is not None:
        if origin.part == "artifact":
            return f"artifact {origin.artifact[:12]}"
        target = content_field(attached, "target")
        if isinstance(target, str) and target.startswith(FILE_PREFIX):
            return f"file {target.removeprefix(FILE_PREFIX)}"
        return target if isinstance(target, str) else None
    if attached is not None and (attached.stream, attached.version) == (origin.stream, origin.first):
        return "attached text"
    if origin.part == "document":
        return f"state {origin.stream}#{origin.entry}"
    event = read_origin(env, origin)
    return None if event is None else f"{event.type} {event.stream}@{event.version}"

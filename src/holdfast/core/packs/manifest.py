"""The manifest of a pack: the origin of each piece, in the order shown, and the reason for each decision.

A journaled manifest is enough to rebuild a pack and to compare it. Consecutive rounds that are shown unchanged are one
piece. A reason is one word in the journal and a sentence for people. What is not journaled is no longer known when a
pack is shown again: the tokens that a piece would take whole, and if evidence was asked for by name.
"""

from __future__ import annotations

import hashlib
import hmac
from bisect import bisect_left
from collections.abc import Sequence
from itertools import chain
from operator import attrgetter
from typing import Final, Protocol

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.codec import encode
from holdfast.core.packs.fences import unfence_text
from holdfast.core.packs.segments import EARLIER_ID, ItemForm
from holdfast.core.wire.growth import begins_with
from holdfast.records.events.calls import ContextPacked, PackedPiece
from holdfast.records.messages import Message
from holdfast.records.packs import AssembledPack, Decision, Origin, RetrievedEvidence, Segment
from holdfast.records.sessions import Summary


class Successors(Protocol):
    """The message directly after each one of a thread, by stream and version."""

    def get(self, place: tuple[str, int], /) -> tuple[str, int] | None: ...


RENDERER_VERSION = 1
"""The version of the renderer; a later release keeps this one and adds another."""

MESSAGES_NESTING: Final = 63
"""The nesting that the codec allows in the messages of a digest, which is one level deeper."""
_IDENTITY: Final = attrgetter(
    "kind", "stream", "first", "last", "part", "handle", "handle_version", "artifact", "entry", "cut"
)
"""The fields that a piece and its origin have in common."""
_read_messages = attrgetter("messages")
_INSTRUCTION_ROLES: Final = ("system", "developer")
REASONS: Final[dict[str, str]] = {
    "always": "always shown",
    "newest": "the newest round is always shown",
    "pinned": "pinned, so it is always shown",
    "question": "the turn answers it, so it comes before older messages",
    "first": "the first instructions are always shown",
    "critical": "critical evidence is always shown",
    "asked_for": "asked for by name",
    "fits": "there was room",
    "window": "within the window",
    "edge": "at the edge of the window, with its tool outputs shortened",
    "older": "older than the window",
    "covered": "a summary stands for it",
    "no_room": "no room was left for it",
    "level": "left out at this level of compaction",
    "excluded": "excluded by the caller",
    "failed": "could not be read",
    "not_read": "not looked at: more important evidence filled the pack",
    "missing": "asked for by name, and not to be found",
    "erased": "its content was erased",
    "cut": "it was cut out of what is shown",
    "repeated": "a summary repeats it",
    "retracted": "it had been taken back",
    "reset": "it was said before the conversation began anew",
}


def list_pieces(
    segments: Sequence[Segment], follows: Successors, known: Sequence[PackedPiece] = ()
) -> tuple[PackedPiece, ...]:
    """Return the pieces that segments were made from; `follows` names the message after each one of the thread.

    `known` are the pieces of the segments before these.
    """
    found = list(known)
    last = found[-1] if found else None
    reached, tokens = (None, 0) if last is None else (last.last, last.tokens)
    for segment in segments:
        for index, origin in enumerate(segment.origins):
            own = segment.estimated_tokens if index == 0 else 0
            # Neighbours are joined if nothing lies between them and neither was cut.
            if (
                last is not None
                and segment.kind == last.kind == "conversation"
                and origin.part is last.part is origin.cut is last.cut is None
                and (origin.stream, segment.priority) == (last.stream, last.priority)
                and follows.get((last.stream or "", reached or 0)) == (origin.stream, origin.first)
            ):
                reached, tokens = origin.last, tokens + own
                continue
            if last is not None and (last.last, last.tokens) != (reached, tokens):
                found[-1] = replace(last, last=reached, tokens=tokens)
            last = PackedPiece(
                **(msgspec.structs.asdict(origin) | {"kind": segment.kind}),
                id=segment.id,
                tokens=own,
                trust=segment.trust,
                priority=segment.priority,
            )
            found.append(last)
            reached, tokens = last.last, own
    if last is not None and (last.last, last.tokens) != (reached, tokens):
        found[-1] = replace(last, last=reached, tokens=tokens)  # It ends with the last message that joined it.
    return tuple(found)


def count_common_tokens(
    before: Sequence[PackedPiece], segments: Sequence[Segment], follows: Successors, even: range = range(0)
) -> int:
    """Return the tokens of the segments at the beginning that are the same as in an earlier pack.

    `even` are segments with whole messages of the journal and no gap between them: what one piece of the earlier pack
    holds of them is looked for at once.
    """
    earlier = list(before)
    total = doubtful = at = start = 0
    reached: int | None = None
    while start < len(segments):
        if start in even and at < len(earlier) and not doubtful:
            inside = _skip_even(earlier[at], segments, range(start, even.stop), reached, follows)
            if inside > start:
                total += sum([segment.estimated_tokens for segment in segments[start:inside]])
                reached, start = segments[inside - 1].origins[-1].last, inside
                continue
        segment = segments[start]
        start += 1
        for origin in segment.origins:
            if at == len(earlier) or not _is_continued_by(earlier[at], origin, reached, follows):
                return total
            runs = earlier[at].kind == "conversation" and earlier[at].part is None
            reached = origin.last if runs and origin.last != earlier[at].last else None
            at += reached is None
        rest = [(piece.kind, piece.id) for piece in earlier[at : at + 1]] if reached is None else []
        if not earlier or (segment.kind, segment.id) in rest:
            return total  # The earlier pack had more of this segment.
        doubtful += segment.estimated_tokens
        if reached is None or 0 not in [message.version for message in segment.messages]:
            total, doubtful = total + doubtful, 0
        # Otherwise a synthetic result was added here; the same happened then if the same piece came next.
    return total


def _skip_even(
    piece: PackedPiece, segments: Sequence[Segment], even: range, reached: int | None, follows: Successors
) -> int:
    """Return the first of these segments that does not lie inside a piece of an earlier pack."""
    if piece.cut is not None or not _is_continued_by(piece, segments[even.start].origins[0], reached, follows):
        return even.start
    return bisect_left(segments, piece.last or 0, even.start, even.stop, key=lambda one: one.origins[-1].last or 0)


def _is_continued_by(piece: PackedPiece, origin: Origin, reached: int | None, follows: Successors) -> bool:
    """Return True if a piece continues with this origin; in a run that has begun, `reached` was the last message."""
    if not (piece.kind == origin.kind == "conversation" and piece.part is None and origin.part is None):
        return reached is None and _IDENTITY(piece) == _IDENTITY(origin)
    if piece.stream is None or piece.stream != origin.stream or piece.cut != origin.cut or piece.last is None:
        return False
    if origin.first is None or origin.last is None or origin.last > piece.last:
        return False
    if reached is None:
        return origin.first == piece.first
    return origin.first == reached + 1 or follows.get((piece.stream, reached)) == (origin.stream, origin.first)


def count_steady(packed: AssembledPack) -> int:
    """Return the number of segments that the next pack begins with as well, unless its window moves."""
    hints = packed.hints
    return packed.stable if hints is None else max(packed.stable, hints.run_at + len(hints.run.segments))


def split_messages(packed: AssembledPack) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return the messages of the steady segments, and those after them."""
    end = count_steady(packed)
    return tuple(_list_messages(packed, end)), tuple(_flatten(packed.segments[end:]))


def count_stable(packed: AssembledPack) -> int:
    """Return the number of messages before the content that was fetched for this call only."""
    return len(_list_messages(packed, packed.stable))


def _list_messages(packed: AssembledPack, end: int) -> Sequence[Message]:
    """Return the messages of the segments before one of them; those of a run are listed already."""
    hints = packed.hints
    run, at = (None, 0) if hints is None else (hints.run, hints.run_at)
    if run is None or end < at + len(run.segments):
        return _flatten(packed.segments[:end])
    behind = packed.segments[at + len(run.segments) : end]
    return (*_flatten(packed.segments[:at]), *run.messages, *_flatten(behind))


def _flatten(segments: Sequence[Segment]) -> list[Message]:
    return list(chain.from_iterable(map(_read_messages, segments)))


class DigestHint(msgspec.Struct, frozen=True):
    """The digest of the messages that a pack begins with."""

    key: bytes
    messages: tuple[Message, ...]
    state: hmac.HMAC


def compute_digest(secret: bytes, tenant: str, packed: AssembledPack) -> str:
    """Return a digest of exactly what is shown. It reveals nothing to anyone without the journal's secret.

    It is that of one canonical JSON text, whose first part is the messages, so the part that the last pack began with
    is not read again.
    """
    key = hmac.digest(secret, f"pack\0{tenant}".encode(), "sha256")
    steady, fetched = split_messages(packed)
    hints = packed.hints
    known: DigestHint | None = None if hints is None else hints.digest
    if known is None or known.key != key or not begins_with(steady, known.messages):
        known = DigestHint(key, (), hmac.new(key, b'{"messages":[', hashlib.sha256))
    state = known.state.copy()
    _add_messages(state, steady[len(known.messages) :], first=not known.messages)
    if hints is not None:
        hints.digest = DigestHint(key, steady, state.copy())
    _add_messages(state, fetched, first=not steady)
    state.update(b'],"system":' + encode(packed.system))
    state.update(b',"tools":' + encode(msgspec.to_builtins(packed.tools)) + b"}")
    return state.hexdigest()


def _add_messages(state: hmac.HMAC, messages: Sequence[Message], *, first: bool) -> None:
    """Add what is shown of messages, as elements of a JSON list."""
    visible = [
        Message(
            role=message.role,
            content=message.content,
            tool_calls=message.tool_calls,
            tool_results=message.tool_results,
            name=message.name,
            metadata=message.metadata,
        )
        for message in messages
    ]
    if visible:
        state.update((b"" if first else b",") + encode(msgspec.to_builtins(visible), MESSAGES_NESTING)[1:-1])


def make_evidence(segment: Segment, type: str, source: str | None) -> RetrievedEvidence:
    """Return evidence as it is shown, without its fence."""
    return RetrievedEvidence(
        handle_id=segment.id,
        type=type,
        content=unfence_text(segment.text),
        tokens=segment.estimated_tokens,
        priority=segment.priority,
        truncated=bool(segment.shortened),
        source=source,
        trust=segment.trust,
    )


def restore_decisions(
    facts: ContextPacked, segments: Sequence[Segment], summaries: Sequence[Summary]
) -> tuple[Decision, ...]:
    """Return the decisions in order: rounds, omitted summaries, shown ones, earlier messages, and the other items."""
    told = [one for one in segments if one.kind == "conversation" and one.id != EARLIER_ID]
    items = [one for kind in ("evidence", "memory") for one in segments if one.kind == kind]
    pairs = zip((one for one in segments if one.kind == "summary"), summaries, strict=True)
    return (
        *(decide_segment(one, reason) for one, reason in zip(told, _guess_reasons(facts, segments, told), strict=True)),
        *_omission_decisions(facts, summaries=True),
        *(
            replace(decide_segment(one, "covered"), outcome="summarised", count=summary.messages)
            for one, summary in pairs
        ),
        *decide_earlier(facts.truncated),
        *(decide_segment(one, "critical" if one.priority == "critical" else "fits") for one in items),
        *_omission_decisions(facts),
    )


def decide_segment(segment: Segment, reason: str, whole: int | None = None) -> Decision:
    """Return the decision to show a segment. If it was cut, its whole size must be given, or it is not known."""
    if whole is None and all(origin.cut is None for origin in segment.origins):
        whole = segment.estimated_tokens
    return Decision(
        id=segment.id,
        kind=segment.kind,
        outcome="shortened" if segment.shortened else "included",
        reason=reason,
        priority=segment.priority,
        tokens=whole,
        shown=segment.estimated_tokens,
        trust=segment.trust,
        count=len(segment.messages),
    )


def _guess_reasons(facts: ContextPacked, segments: Sequence[Segment], told: Sequence[Segment]) -> list[str]:
    """Return the reason of each round; the first instructions stand right after the brief."""
    first = 0
    for segment in segments[1:]:
        if segment.kind != "conversation" or not all(one.role in _INSTRUCTION_ROLES for one in segment.messages):
            break
        first += segment.priority == "critical"
    found = ["pinned" if one.priority == "critical" else "window" for one in told]
    found = ["question" if one.id in facts.questions else reason for one, reason in zip(told, found, strict=True)]
    found[:first] = ["first"] * first
    if len(found) > first:
        found[-1] = "newest"
    return found


def decide_earlier(truncated: int) -> list[Decision]:
    """Return the decision about earlier messages that are not shown, if there are any."""
    if not truncated:
        return []
    return [Decision(id=EARLIER_ID, kind="conversation", outcome="omitted", reason="older", count=truncated)]


def _omission_decisions(facts: ContextPacked, *, summaries: bool = False) -> list[Decision]:
    """Return the decisions about omitted summaries, or about everything else that was omitted."""
    return [
        Decision(
            id=one.id,
            kind="summary" if summaries else "memory" if one.kind == "memory" else "evidence",
            outcome="omitted",
            reason=one.why,
            tokens=one.tokens,
        )
        for one in facts.left_out
        if (one.kind == "summary") == summaries
    ]


def describe_reason(reason: str) -> str:
    """Return a reason in words."""
    return REASONS.get(reason, reason)


def decide_item(whole: ItemForm, form: ItemForm | None, why_not: str) -> Decision:
    """Return the decision about evidence or a memory: the form in which it is shown, or the reason why it is not."""
    item = whole.item
    reason = "critical" if item.critical else "asked_for" if item.mandatory else "fits"
    return Decision(
        id=item.id,
        kind=item.kind,
        outcome="omitted" if form is None else "shortened" if form.segment.shortened else "included",
        reason=why_not if form is None else reason,
        priority=item.priority,
        tokens=whole.tokens,
        shown=0 if form is None else form.tokens,
        trust=item.trust,
    )

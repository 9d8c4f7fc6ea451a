"""What a journaled pack says about itself when it is shown again: its evidence and what became of each candidate.

Only what was shown and what was left out is journaled, so some of what the packer knew is not known any more: what a
piece would take whole, and whether evidence was asked for by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from holdfast.core.pack.parts import EARLIER
from holdfast.records.events.calls import ContextPacked, PackedPiece
from holdfast.records.lines import Summary
from holdfast.records.packs import Decision, RetrievedEvidence, Segment

_INSTRUCTIONS: Final = ("system", "developer")


def retrieved(segment: Segment, piece: PackedPiece, source: str | None) -> RetrievedEvidence:
    """Evidence as it was shown."""
    return RetrievedEvidence(
        handle_id=piece.id,
        type=piece.part or "",
        content=segment.text,
        tokens=segment.estimated_tokens,
        priority=segment.priority,
        truncated=bool(segment.shortened),
        source=source,
        trust=segment.trust,
    )


def omitted(facts: ContextPacked) -> tuple[str, ...]:
    """The names of what is not shown."""
    return tuple(one.id for one in (*_left_out(facts, summaries=True), *_earlier(facts), *_left_out(facts)))


def decisions(facts: ContextPacked, segments: Sequence[Segment], summaries: Sequence[Summary]) -> tuple[Decision, ...]:
    """What was shown and what was not: rounds, summaries, then the rest, of which what was shown comes first."""
    told = [one for one in segments if one.kind == "conversation" and one.id != EARLIER]
    items = [*_of(segments, "evidence"), *_of(segments, "memory")]
    pairs = zip(_of(segments, "summary"), summaries, strict=True)
    return (
        *(_shown(one, reason) for one, reason in zip(told, _reasons(segments, told), strict=True)),
        *_left_out(facts, summaries=True),
        *(replace(_shown(one, "covered"), outcome="summarised", count=summary.messages) for one, summary in pairs),
        *_earlier(facts),
        *(_shown(one, "critical" if one.priority == "critical" else "fits") for one in items),
        *_left_out(facts),
    )


def _of(segments: Sequence[Segment], kind: str) -> list[Segment]:
    return [one for one in segments if one.kind == kind]


def _shown(segment: Segment, reason: str) -> Decision:
    whole = not any(origin.cut is not None for origin in segment.origins)
    return Decision(
        id=segment.id,
        kind=segment.kind,
        outcome="shortened" if segment.shortened else "included",
        reason=reason,
        priority=segment.priority,
        tokens=segment.estimated_tokens if whole else None,
        shown=segment.estimated_tokens,
        trust=segment.trust,
        count=len(segment.messages),
    )


def _reasons(segments: Sequence[Segment], told: Sequence[Segment]) -> list[str]:
    """Why each round was shown: the first instructions stand right after the brief."""
    first = 0
    for segment in segments[1:]:
        if segment.kind != "conversation" or not all(one.role in _INSTRUCTIONS for one in segment.messages):
            break
        first += segment.priority == "critical"
    found = ["pinned" if one.priority == "critical" else "window" for one in told]
    found[:first] = ["first"] * first
    if len(found) > first:
        found[-1] = "newest"
    return found


def _earlier(facts: ContextPacked) -> list[Decision]:
    if not facts.truncated:
        return []
    return [Decision(id=EARLIER, kind="conversation", outcome="omitted", reason="older", count=facts.truncated)]


def _left_out(facts: ContextPacked, *, summaries: bool = False) -> list[Decision]:
    """Summaries or the rest, with what was noted of them."""
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

"""How two packs differ: which pieces came, went, or are shown in another form."""

from __future__ import annotations

from holdfast.records.packs import PackDiff, Packed, Segment


def difference(before: Packed, after: Packed) -> PackDiff:
    """What is new in the second, what is gone from the first, and what is shown differently."""
    old = {(segment.kind, segment.id): segment for segment in before.segments}
    new = {(segment.kind, segment.id): segment for segment in after.segments}
    both = [(old[key], segment) for key, segment in new.items() if key in old]
    changed = tuple(pair for pair in both if _shown(pair[0]) != _shown(pair[1]) or _is_other_brief(pair, before, after))
    return PackDiff(
        added=tuple(segment for key, segment in new.items() if key not in old),
        removed=tuple(segment for key, segment in old.items() if key not in new),
        changed=changed,
        same=len(both) - len(changed),
        common_tokens=_common(before, after),
        level=(before.token_summary.compaction_level, after.token_summary.compaction_level),
        tokens=(before.token_summary.used, after.token_summary.used),
    )


def _shown(segment: Segment) -> list[tuple[object, ...]]:
    return [(one.role, one.content, one.tool_calls, one.tool_results) for one in segment.messages]


def _is_other_brief(pair: tuple[Segment, Segment], before: Packed, after: Packed) -> bool:
    """The system prompt and tools are beside the segments."""
    return pair[0].id == "brief" and (before.system, before.tools) != (after.system, after.tools)


def _common(before: Packed, after: Packed) -> int:
    """Tokens that both begin with."""
    total = 0
    for one, other in zip(before.segments, after.segments, strict=False):
        if (one.kind, one.id) != (other.kind, other.id) or _shown(one) != _shown(other):
            break
        if _is_other_brief((one, other), before, after):
            break
        total += other.estimated_tokens
    return total

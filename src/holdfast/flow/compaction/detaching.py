"""A frame's evidence made smaller: handles are detached in one event, which also brings them back.

A size that was not noted is measured if the text is at hand. What is critical stays, and so does what an open call
still needs; a strategy of the caller's own that does otherwise is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from holdfast.core.compaction.custom import chosen_by
from holdfast.core.compaction.passages import passages
from holdfast.core.compaction.strategies import Chosen, by_policy, by_priority, kept_only
from holdfast.flow.change import Drafts, States
from holdfast.flow.compaction import recalling
from holdfast.flow.compaction.measuring import Evidence, attached
from holdfast.flow.compaction.shrinking import FITS, Shrinking
from holdfast.records.compaction import CompactionResult
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import FrameCompacted
from holdfast.records.ids import ulid_text

ONLY_CRITICAL: Final = "Nothing else can go: what is left is critical, or an open call needs it."


def detached(work: Shrinking) -> CompactionResult:
    """Detach what the strategy chooses, until what is left is within the target."""
    compaction = ulid_text(work.ports.ids.ulid())
    last: list[Chosen] = []

    def decide(states: States) -> Drafts:
        found = attached(work.ports, work.acting, work.stream, work.live(states))
        chosen = _chosen(work, found)
        last[:] = [chosen]
        work.refuse_over(chosen.final)
        if not chosen.gone:
            return {}
        return work.written(states, _facts(work, chosen, compaction), _flushed(work, chosen, found, compaction))

    changed = work.write(decide, *(() if work.scope is None else (work.scope,)))
    if changed.appended is None:
        return work.nothing(last[0].original, FITS if last[0].original <= work.target else ONLY_CRITICAL)
    facts: FrameCompacted = changed.last("frame.compacted")
    return work.done(facts, note=None if facts.reached_target else ONLY_CRITICAL)


def _chosen(work: Shrinking, found: Sequence[Evidence]) -> Chosen:
    items, name = [one.item for one in found], work.config.strategy
    if name == "priority":
        return by_priority(items, work.target)
    if name == "policy_trim":
        return by_policy(items, work.target)
    held = frozenset(item.id for item in items if item.held)
    kept = chosen_by(name, work.ports.strategies[name], [one.segment for one in found], work.target, held)
    return kept_only(items, [segment.id for segment in kept])


def _facts(work: Shrinking, chosen: Chosen, compaction: str) -> FrameCompacted:
    return FrameCompacted(
        frame=work.frame,
        compaction=compaction,
        strategy=work.config.strategy,
        level=str(chosen.level),
        removed=chosen.gone,
        original_tokens=chosen.original,
        final_tokens=chosen.final,
        reached_target=chosen.final <= work.target,
    )


def _flushed(work: Shrinking, chosen: Chosen, found: Sequence[Evidence], compaction: str) -> dict[str, list[Draft]]:
    if work.scope is None:
        return {}
    told = passages([(one.text, one.trust) for one in found if one.item.id in chosen.gone])
    return {work.scope: recalling.flushed(work.ports, work.acting, work.scope, compaction, told)}

"""`compact_context`: the context of a frame made smaller in one commit, by any strategy.

Strategies of evidence detach handles; the others let a summary stand for older rounds of the frame's conversation.
What shrinks is measured itself: the tokens of handles, or of messages. What a frame has spent has nothing to do with
it. A summarizer that fails, hangs, says nothing or says too much changes nothing, and the next strategy is tried.
"""

from __future__ import annotations

from typing import Final

from holdfast.errors import InvalidValue
from holdfast.flow.change import Drafts, States
from holdfast.flow.compaction import summing
from holdfast.flow.compaction.configuring import check
from holdfast.flow.compaction.detaching import detached
from holdfast.flow.compaction.folding import fold_somehow, uncovered
from holdfast.flow.compaction.shrinking import FITS, Shrinking
from holdfast.flow.compaction.summing import Also, Plan
from holdfast.flow.compaction.weighing import gone, sizes
from holdfast.flow.compaction.wording import Words
from holdfast.flow.context.seeing import line_of_frame
from holdfast.flow.stack.showing import current, raw_id
from holdfast.ports import Acting, Ports, Summarizer
from holdfast.records.compaction import OF_EVIDENCE, STRATEGIES, CompactionConfig, CompactionResult
from holdfast.records.events.frames import FrameCompacted
from holdfast.records.lines import Summary

NOTHING_OLDER: Final = "Nothing else can go: there is nothing older, or a call waits for its result."
NO_CONVERSATION: Final = "This frame has no conversation yet."


def compact_context(
    ports: Ports,
    acting: Acting,
    frame: str,
    target_budget: int,
    config: CompactionConfig,
    summarizer: Summarizer,
    *,
    strict: bool = False,
    key: str | None = None,
) -> CompactionResult:
    """Make the context of a live frame fit a budget, or as small as it can be.

    With `strict` what cannot be made to fit is refused, and nothing is written.
    """
    raw_id(frame)
    if not isinstance(target_budget, int) or isinstance(target_budget, bool) or target_budget < 0:
        raise InvalidValue(f"target_budget must be a number of tokens, 0 or more, not {target_budget!r}.")
    check(ports, config)
    work = Shrinking(ports, acting, frame, target_budget, config, strict=strict, key=key)
    earlier = work.earlier()
    if earlier is not None:
        return earlier
    of_evidence = config.strategy in OF_EVIDENCE or config.strategy not in STRATEGIES
    return detached(work) if of_evidence else _folded(work, summarizer)


def _folded(work: Shrinking, summarizer: Summarizer) -> CompactionResult:
    """Let a summary stand for the older part of the frame's conversation."""
    line = line_of_frame(work.ports, work.acting, work.frame)
    if current(work.ports, work.acting, line).line is None:
        return work.nothing(0, NO_CONVERSATION)
    _, tokens = uncovered(work.ports, work.acting, line)
    if tokens <= work.target:
        return work.nothing(tokens, FITS)
    written: list[FrameCompacted] = []

    def write(plan: Plan, words: Words, also: Also) -> Summary:
        return _written(work, plan, words, also, tokens, written)

    room = max(0, work.target - work.config.summary_tokens)
    summary, failed = fold_somehow(work.ports, work.acting, line, work.config, summarizer, within=room, write=write)
    note = "; ".join(one.text for one in failed) or None
    return work.nothing(tokens, note or NOTHING_OLDER) if summary is None else work.done(written[-1], summary, note)


def _written(
    work: Shrinking, plan: Plan, words: Words, also: Also, tokens: int, written: list[FrameCompacted]
) -> Summary:
    """The summary and the frame's event in one commit; the compaction is named as the summary is."""
    level = str(words.level)
    made = summing.drafted(
        work.ports, work.acting, plan, words.text, method=words.method, level=level, state=words.state
    )
    noted = summing.noted(plan, made, 0)
    saved = gone(plan.messages, sizes(work.ports, work.acting, plan.stream))
    final = max(0, tokens - saved) + (noted.tokens or 0)
    work.refuse_over(final)
    facts = FrameCompacted(
        frame=work.frame,
        compaction=noted.id,
        strategy=words.strategy,
        level=level,
        original_tokens=tokens,
        final_tokens=final,
        summarized=len(plan.messages),
        reached_target=final <= work.target,
    )

    def decide(states: States) -> Drafts:
        work.live(states)
        summing.check_unchanged(plan, states)
        drafts = {stream: list(events) for stream, events in also.drafts(noted.id).items()}
        drafts[plan.stream] = [*drafts.get(plan.stream, ()), made]
        return work.written(states, facts, drafts)

    changed = work.write(decide, plan.stream, *also.streams)
    written.append(changed.last("frame.compacted"))
    if changed.repeated or changed.appended is None:
        return summing.summary_named(work.ports, work.acting, plan.stream, written[-1].compaction)
    placed = next(part for part in changed.appended.parts if part.stream == plan.stream)
    return summing.noted(plan, made, placed.last)

"""`compact_context`: compact a frame's context in one commit, by any strategy.

Evidence strategies detach handles, in one event by which they can be restored; the others summarise older rounds of the
frame's conversation. Only the tokens of handles or messages are measured, not what the frame has spent. Critical
evidence and evidence that an open call needs always stay.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction import strategies
from holdfast.core.compaction.summary import passage_key, split_texts
from holdfast.core.frames.budgets import draft_spent
from holdfast.core.frames.stack import add_clock_events, live_frame
from holdfast.core.journal.codec import decode_event
from holdfast.core.numbers import is_number
from holdfast.core.trust import event_trust, lowest_trust
from holdfast.errors import BudgetTooSmall, Corrupt, InvalidValue, KeyReused
from holdfast.flow.compaction import recall, summaries, threads
from holdfast.flow.compaction.summaries import ExtraDrafts, ModelCalls, SummaryPlan, SummaryText
from holdfast.flow.frames import read
from holdfast.flow.frames.lifecycle import change_frame, check_live, match_event
from holdfast.flow.journal.append import ChangeResult, Drafts, States, decide_and_append
from holdfast.flow.sessions.append import thread_tokenizer
from holdfast.flow.sessions.summaries import find_summary
from holdfast.ports import Env, Summarizer
from holdfast.records.compaction import EVIDENCE_STRATEGIES, STRATEGIES, CompactionConfig, CompactionResult, policy_of
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import FrameCompacted
from holdfast.records.frames import PRIORITY_SCORE, FrameState
from holdfast.records.ids import check_key, ulid_text
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel, Segment
from holdfast.records.sessions import Summary

NOTHING_OLDER: Final = "Nothing else can go: there is nothing older, or a call waits for its result."
NO_CONVERSATION: Final = "This frame has no conversation yet."
ONLY_CRITICAL: Final = "Nothing else can go: what is left is critical, or an open call needs it."
WITHIN_TARGET: Final = "It was within the target."
_PRIORITY_NAMES = {score: name for name, score in PRIORITY_SCORE.items()}


def compact_context(
    env: Env,
    frame: str,
    target_budget: int,
    config: CompactionConfig,
    summarizer: Summarizer,
    *,
    strict: bool = False,
    key: str | None = None,
) -> CompactionResult:
    """Make the context of a live frame fit a budget, or as small as possible; `strict` refuses to miss the target."""
    read.parse_id(frame)
    if not is_number(target_budget, least=0):
        raise InvalidValue(f"target_budget must be a number of tokens, 0 or more, not {target_budget!r}.")
    threads.check_config(env, config)
    work = FrameCompaction(env, frame, target_budget, config, strict=strict, key=key)
    earlier = work.find_earlier()
    if earlier is not None:
        return earlier
    of_evidence = config.strategy in EVIDENCE_STRATEGIES or config.strategy not in STRATEGIES
    return _detach_evidence(work) if of_evidence else _summarise_conversation(work, summarizer)


def _summarise_conversation(work: FrameCompaction, summarizer: Summarizer) -> CompactionResult:
    """Let a summary stand for the older part of the frame's conversation."""
    thread = read.frame_thread(work.env, work.frame)
    if read.load_current_state(work.env, thread).thread is None:
        return work.result_without_change(0, NO_CONVERSATION)
    _, tokens = threads.count_uncovered(work.env, thread)
    if tokens <= work.target:
        return work.result_without_change(tokens, WITHIN_TARGET)
    written: list[FrameCompacted] = []
    write = partial(_commit_summary, work, tokens, written)
    config, room = _share_target(work, thread, tokens)
    calls: ModelCalls = []
    summary, failed = threads.compact_with_fallback(
        work.env, thread, config, summarizer, calls=calls, within=room, write=write
    )
    used = summaries.sum_calls(work.env, calls)
    if used is not None:  # No attempt made a summary that counts it.
        change_frame(work.env, work.frame, lambda state: [draft_spent(live_frame(state, work.frame), used)])
    note = "; ".join(f"{strategy}: {error}" for strategy, error in failed.items()) or None
    if summary is None:
        return work.result_without_change(tokens, note or NOTHING_OLDER)
    return work.result_of(written[-1], summary, note)


def _share_target(work: FrameCompaction, thread: str, tokens: int) -> tuple[CompactionConfig, int | None]:
    """Share the target between the newest rounds and the summary; return the configuration and the room for rounds.

    The newest `keep` rounds stay if they fit the target with any summary at all, which gets the rest. Otherwise the
    summary's share comes first, and fewer rounds stay.
    """
    config, size = work.config, summaries.message_counter(work.env, thread)
    plan = threads.plan_compaction(work.env, thread, config)
    gone = 0 if plan is None else summaries.count_saved_tokens(plan.messages[plan.covered :], size)
    most = work.target - (tokens - gone) - threads.summary_framing(work.env, thread)
    if most < 1:
        return config, max(0, work.target - config.summary_tokens)
    return replace(config, summary_tokens=min(config.summary_tokens, most)), None


def _commit_summary(
    work: FrameCompaction,
    tokens: int,
    written: list[FrameCompacted],
    plan: SummaryPlan,
    words: SummaryText,
    also: ExtraDrafts,
) -> Summary:
    """Write the summary and the frame's event in one commit; the compaction has the summary's id."""
    made = summaries.draft_summary(work.env, plan, words)
    noted = summaries.summary_from_draft(plan, made, 0)
    saved = summaries.count_saved_tokens(plan.messages, summaries.message_counter(work.env, plan.stream))
    final = max(0, tokens - saved) + (noted.tokens or 0)
    work.check_target(final)
    facts = FrameCompacted(
        frame=work.frame,
        compaction=noted.id,
        strategy=words.strategy,
        level=str(words.level),
        original_tokens=tokens,
        final_tokens=final,
        summarized=len(plan.messages),
        reached_target=final <= work.target,
    )

    def decide(states: States) -> Drafts:
        frame = work.live_frame(states)
        summaries.check_unchanged(work.env, plan, states)
        drafts = {stream: list(events) for stream, events in also(noted.id).items()}
        drafts[plan.stream] = [*drafts.get(plan.stream, ()), made]
        if words.usage is not None:
            drafts[work.stream] = [*drafts.get(work.stream, ()), draft_spent(frame, words.usage)]
        return work.frame_drafts(states, facts, drafts)

    changed = work.commit(decide, plan.stream, plan.flushed or plan.stream)
    written.append(changed.last_facts("frame.compacted"))
    if changed.repeated or changed.appended is None:
        return find_summary(work.env, plan.stream, written[-1].compaction)
    placed = next(part for part in changed.appended.parts if part.stream == plan.stream)
    return summaries.summary_from_draft(plan, made, placed.last)


def _detach_evidence(work: FrameCompaction) -> CompactionResult:
    """Detach the evidence that the strategy chooses, until the rest is within the target."""
    compaction = ulid_text(work.env.ids.ulid())
    last: list[strategies.CompactionChoice] = []

    def decide(states: States) -> Drafts:
        found = _list_evidence(work.env, work.stream, work.live_frame(states))
        chosen = _choose_evidence(work, found)
        last[:] = [chosen]
        work.check_target(chosen.final)
        if not chosen.gone:
            return {}
        gone = [one for one in found if one.item.id in chosen.gone]
        facts = FrameCompacted(
            frame=work.frame,
            compaction=compaction,
            strategy=work.config.strategy,
            level=str(chosen.level),
            removed=chosen.gone,
            original_tokens=chosen.original,
            final_tokens=chosen.final,
            reached_target=chosen.final <= work.target,
            flushed=work.scope,
            sources=() if work.scope is None else tuple(dict.fromkeys(place for one in gone for place in one.sources)),
        )
        drafts: dict[str, list[Draft]] = {}
        if work.scope is not None:
            told = split_texts([(one.text, one.trust) for one in gone])
            drafts[work.scope] = recall.flush_passages(work.env, work.scope, compaction, told)
        return work.frame_drafts(states, facts, drafts)

    changed = work.commit(decide, *(() if work.scope is None else (work.scope,)))
    if changed.appended is None:
        tokens = last[0].original
        return work.result_without_change(tokens, WITHIN_TARGET if tokens <= work.target else ONLY_CRITICAL)
    facts: FrameCompacted = changed.last_facts("frame.compacted")
    return work.result_of(facts, note=None if facts.reached_target else ONLY_CRITICAL)


def _choose_evidence(work: FrameCompaction, found: Sequence[FrameEvidence]) -> strategies.CompactionChoice:
    items, name = [one.item for one in found], work.config.strategy
    if name == "priority":
        return strategies.choose_by_priority(items, work.target)
    if name == "policy_trim":
        return strategies.choose_by_policy(items, work.target)
    held = frozenset(item.id for item in items if item.held)
    segments = [
        Segment(
            kind="evidence",
            id=one.item.id,
            priority=_PRIORITY_NAMES.get(one.item.score, "medium"),
            trust=one.trust,
            estimated_tokens=one.item.tokens,
            messages=(Message(role="user", content=one.text, trust=one.trust),),
        )
        for one in found
    ]
    kept = strategies.run_strategy(name, work.env.strategies[name], segments, work.target, held)
    return strategies.keep_only(items, [segment.id for segment in kept])


class FrameEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """An attached handle with its known text and trust, and the events that hold them."""

    item: strategies.CompactionItem
    text: str
    trust: str
    sources: tuple[tuple[str, int], ...]


def _list_evidence(env: Env, stream: str, frame: FrameState) -> list[FrameEvidence]:
    """List a live frame's evidence, oldest first. A missing size is measured if the text is in the event."""
    count = thread_tokenizer(env, stream)[0].count
    found = []
    for handle in sorted(frame.handles.values(), key=lambda one: one.position):
        if handle.removed is not None:
            continue
        own, held = read.read_event(env, stream, handle.version), read.read_handle_event(env, stream, handle.version)
        if own is None or held is None:
            raise Corrupt(f"The event of handle {handle.id} is missing. Run `holdfast verify`.")
        body = read.content_field(held, "body")
        tokens = handle.tokens
        if tokens is None:
            tokens = count(body) if isinstance(body, str) else strategies.UNKNOWN_TOKENS
        call = own.facts.call or held.facts.call
        item = strategies.CompactionItem(
            id=handle.id,
            score=handle.priority,
            position=handle.position,
            tokens=tokens,
            policy=own.facts.policy or policy_of(handle.priority),
            held=call in frame.calls,
            done=call is not None and call not in frame.calls,
        )
        target = body if isinstance(body, str) else read.content_field(held, "target")
        told = (read.content_field(held, "description"), target)
        text = "\n".join(one for one in told if isinstance(one, str))
        trust = lowest_trust(event_trust(own), event_trust(held))
        sources = ((own.stream, own.version), (held.stream, held.version))
        found.append(FrameEvidence(item=item, text=text, trust=trust, sources=sources))
    return found


class FrameCompaction:
    """A compaction of one live frame."""

    def __init__(
        self, env: Env, frame: str, target: int, config: CompactionConfig, *, strict: bool, key: str | None
    ) -> None:
        self.env, self.frame, self.target, self.config = env, frame, target, config
        self._strict, self._key = strict, None if key is None else check_key(key)
        self.stream = read.find_frame_stream(env, frame)
        check_live(env, read.load_current_state(env, self.stream), frame)
        self.scope = threads.open_flush_scope(env, self.stream, config)

    def live_frame(self, states: States) -> FrameState:
        """Return the frame as it is now; refuse one that has ended."""
        check_live(self.env, states[self.stream], self.frame)
        return states[self.stream].frames[self.frame]

    def find_earlier(self) -> CompactionResult | None:
        """Return the result of an earlier call with the same key, if any."""
        if self._key is None:
            return None
        stored = self.env.journal.events_by_key(self.env.tenant, self.stream, self._key)
        compacted = [event for event in map(decode_event, stored) if event.type == "frame.compacted"]
        if stored and (not compacted or compacted[0].facts.frame != self.frame):
            raise KeyReused(f"Key {self._key!r} already stands for something else. Use a new key for a new operation.")
        if not compacted:
            return None
        facts: FrameCompacted = compacted[0].facts
        thread = read.frame_thread(self.env, self.frame)
        made = find_summary(self.env, thread, facts.compaction) if facts.summarized else None
        return self.result_of(facts, made)

    def frame_drafts(self, states: States, facts: FrameCompacted, drafts: dict[str, list[Draft]]) -> Drafts:
        """Add the frame's own event after the others: flushed passages come before the compaction."""
        draft = Draft(type="frame.compacted", facts=facts)
        own = add_clock_events(states[self.stream], [draft], self.env.clock.now_ms())
        return {**drafts, self.stream: [*drafts.get(self.stream, ()), *own]}

    def commit(self, decide: Callable[[States], Drafts], *streams: str) -> ChangeResult:
        """Commit to the frame's stream and others at once."""
        every = tuple(dict.fromkeys((self.stream, *streams)))
        same = match_event("frame.compacted", frame=self.frame)
        return decide_and_append(self.env, every, decide, key=self._key, same=same)

    def check_target(self, final: int) -> None:
        """In strict mode, refuse to write a result that misses the target."""
        if self._strict and final > self.target:
            raise BudgetTooSmall(
                f"The context of frame {self.frame} cannot be made smaller than {final} tokens, and {self.target} were "
                "asked for. Nothing was changed; raise the target, or lower what is critical.",
                required=final,
            )

    def result_of(
        self, facts: FrameCompacted, summary: Summary | None = None, note: str | None = None
    ) -> CompactionResult:
        """Return the result of a written compaction."""
        return CompactionResult(
            id=facts.compaction if facts.removed else None,
            strategy=facts.strategy,
            original_tokens=facts.original_tokens,
            final_tokens=facts.final_tokens,
            compaction_level=CompactionLevel(facts.level),
            items_removed=len(facts.removed),
            items_summarized=facts.summarized,
            reached_target=facts.reached_target,
            summary=summary,
            flushed=None if self.scope is None else passage_key(facts.compaction, 0),
            note=note,
        )

    def result_without_change(self, tokens: int, note: str) -> CompactionResult:
        """Return the result of a compaction that wrote nothing, with the reason."""
        self.check_target(tokens)
        return CompactionResult(
            id=None,
            strategy=self.config.strategy,
            original_tokens=tokens,
            final_tokens=tokens,
            compaction_level=CompactionLevel.NONE,
            reached_target=tokens <= self.target,
            note=note,
        )

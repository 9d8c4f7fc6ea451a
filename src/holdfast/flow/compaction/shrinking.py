"""One frame whose context is to be made smaller: to what, how, in which streams, and what is said about it after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from holdfast.core.codec import decode_event
from holdfast.core.compaction.passages import entry_key
from holdfast.core.decide.clocks import with_clocks
from holdfast.errors import BudgetTooSmall, KeyReused
from holdfast.flow.change import Changed, Drafts, States, change
from holdfast.flow.compaction import summing
from holdfast.flow.compaction.folding import flush_scope
from holdfast.flow.context.seeing import line_of_frame
from holdfast.flow.stack.frames import check_live, like
from holdfast.flow.stack.showing import current, stream_of
from holdfast.ports import Acting, Ports
from holdfast.records.compaction import CompactionConfig, CompactionResult
from holdfast.records.events.envelope import Draft
from holdfast.records.events.frames import FrameCompacted
from holdfast.records.frames import Frame
from holdfast.records.ids import check_key
from holdfast.records.lines import Summary
from holdfast.records.packs import CompactionLevel

FITS: Final = "It was within the target."


class Shrinking:
    """A live frame and what is asked of it."""

    def __init__(
        self,
        ports: Ports,
        acting: Acting,
        frame: str,
        target: int,
        config: CompactionConfig,
        *,
        strict: bool,
        key: str | None,
    ) -> None:
        self.ports, self.acting, self.frame, self.target, self.config = ports, acting, frame, target, config
        self._strict, self._key = strict, None if key is None else check_key(key)
        self.stream = stream_of(ports, acting, frame)
        check_live(ports, acting, current(ports, acting, self.stream), frame)
        self.scope = flush_scope(ports, acting, self.stream, config)

    def live(self, states: States) -> Frame:
        """The frame as it is now; refuses one that has ended."""
        check_live(self.ports, self.acting, states[self.stream], self.frame)
        return states[self.stream].frames[self.frame]

    def earlier(self) -> CompactionResult | None:
        """What an earlier call with the key did."""
        if self._key is None:
            return None
        stored = self.ports.journal.by_key(self.acting.tenant, self.stream, self._key)
        compacted = [event for event in map(decode_event, stored) if event.type == "frame.compacted"]
        if stored and (not compacted or compacted[0].facts.frame != self.frame):
            raise KeyReused(f"Key {self._key!r} already stands for something else. Use a new key for a new operation.")
        if not compacted:
            return None
        facts: FrameCompacted = compacted[0].facts
        line = line_of_frame(self.ports, self.acting, self.frame)
        made = summing.summary_named(self.ports, self.acting, line, facts.compaction) if facts.summarized else None
        return self.done(facts, made)

    def written(self, states: States, facts: FrameCompacted, drafts: dict[str, list[Draft]]) -> Drafts:
        """The frame's own event behind what goes with it: what is flushed stands before what is compacted."""
        own = with_clocks(states[self.stream], [Draft(type="frame.compacted", facts=facts)], self.ports.clock.now_ms())
        return {**drafts, self.stream: [*drafts.get(self.stream, ()), *own]}

    def write(self, decide: Callable[[States], Drafts], *streams: str) -> Changed:
        """One commit over the frame's stream and others."""
        every = tuple(dict.fromkeys((self.stream, *streams)))
        same = like("frame.compacted", frame=self.frame)
        return change(self.ports, self.acting, every, decide, key=self._key, same=same)

    def refuse_over(self, final: int) -> None:
        """Where only the target will do, nothing is written that does not reach it."""
        if self._strict and final > self.target:
            raise BudgetTooSmall(
                f"The context of frame {self.frame} cannot be made smaller than {final} tokens, and {self.target} were "
                "asked for. Nothing was changed; raise the target, or lower what is critical.",
                required=final,
            )

    def done(self, facts: FrameCompacted, summary: Summary | None = None, note: str | None = None) -> CompactionResult:
        """What was written."""
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
            flushed=None if self.scope is None else entry_key(facts.compaction, 0),
            note=note,
        )

    def nothing(self, tokens: int, note: str) -> CompactionResult:
        """Nothing was written, and why."""
        self.refuse_over(tokens)
        return CompactionResult(
            id=None,
            strategy=self.config.strategy,
            original_tokens=tokens,
            final_tokens=tokens,
            compaction_level=CompactionLevel.NONE,
            reached_target=tokens <= self.target,
            note=note,
        )

"""Summarise the messages just before a pack's window, without a model.

A new summary is made from messages that the tail holds anyway, as many as it has room for: it needs no further read,
and its cost follows the budget. It is journaled together with its pack, so that erasure reaches it. The packs that
follow show the same summary until their window moves, so a provider's prompt cache stays warm. What was rewound or
reset took the beginning of that window with it, so a summary of it is not shown again.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.compaction.summary import list_newest
from holdfast.core.packs.fences import Mark
from holdfast.core.packs.rounds import MessagePlace
from holdfast.core.packs.segments import is_covered, summary_segment
from holdfast.core.trust import lowest_trust
from holdfast.flow.compaction.summaries import list_spans, summary_facts
from holdfast.flow.frames.read import read_event
from holdfast.flow.journal import redact
from holdfast.flow.packs.manifest import SUMMED, find_window_piece
from holdfast.flow.packs.recent import ThreadTail, TokenCounter
from holdfast.flow.sessions.read import MessageLocation
from holdfast.flow.sessions.summaries import build_summary
from holdfast.ports import Env
from holdfast.records.events.calls import ContextPacked
from holdfast.records.events.envelope import ERASED, Draft
from holdfast.records.events.sessions import SummaryContent
from holdfast.records.messages import Message
from holdfast.records.packs import Segment
from holdfast.records.sessions import Summary

METHOD = "short_lines"
"""The name under which such summaries are journaled."""
MIN_LINE_TOKENS = 8
"""The tokens by which a summary that is too long is made shorter at least."""

WindowSummary = tuple[Segment, Summary, Draft | None]
"""A summary as it is shown, and its event, which has no id yet; None if it is journaled."""


class WindowSummaries(msgspec.Struct, frozen=True):
    """The summaries that a pack may show of the messages before its window."""

    env: Env
    thread: str
    tail: ThreadTail
    before: ContextPacked | None
    """The last journaled pack of the same kind."""
    counter: TokenCounter
    mark: Mark
    found: dict[str, WindowSummary] = {}
    """The summaries by the text of their segment."""

    def summarise(self, first: Message, room: int) -> Segment | None:
        """Return a summary of the messages before the first one of the window, in at most `room` tokens."""
        made = self._load_last(first)
        if made is None or made[0].estimated_tokens > room:
            key = (self.tail.version, self.tail.since, first.stream, first.version, room)
            made = self.tail.summed.get(key) or self._make_new((first.stream, first.version), room)
            self.tail.summed.clear()
            if made is None:
                return None
            self.tail.summed[key] = made
        self.found[made[0].text] = made
        return made[0]

    def _load_last(self, first: Message) -> WindowSummary | None:
        """Return the summary of the last pack, if its window began here too and no compaction covers its messages."""
        before, event = self.before, self.tail.made
        if before is None or (before.window_stream, before.window_start) != (first.stream, first.version):
            return None
        piece = find_window_piece(before)
        if piece is None or event is None or event.version != piece.first:
            event = None if piece is None else read_event(self.env, self.thread, piece.first or 0)
        if event is None or event.content is ERASED:
            return None
        last = build_summary(self.thread, event.version, event.facts, event.content)
        if is_covered(last.covers[0].stream, last.covers[0].first, self.tail.summaries):
            return None
        return summary_segment(last, self.thread, self.mark, self.counter.count), last, None

    def _list_older(self, head: MessagePlace) -> tuple[Sequence[MessageLocation], Sequence[Message]]:
        """Return the messages of the tail before the window, without the leading instructions."""
        tail = self.tail
        first = max(tail.start(), tail.leading)
        end = next((at for at, place in enumerate(tail.places) if place.key == head), 0)
        return tail.places[first:end], tail.messages[first:end]

    def _make_new(self, head: MessagePlace, room: int) -> WindowSummary | None:
        places, messages = self._list_older(head)
        # The parts count a little less than the whole: the last lines are left out until that fits as well.
        allowed = room - self._measure_empty(places, messages) if messages else 0
        while allowed > 0:
            text, covered = list_newest(messages, allowed, self.counter.tokenizer.count, self.tail.lines)
            if not covered:
                break
            made = self._make(places[-covered:], messages[-covered:], text)
            if made[0].estimated_tokens <= room:
                return made
            allowed -= max(made[0].estimated_tokens - room, MIN_LINE_TOKENS)
        return None

    def _measure_empty(self, places: Sequence[MessageLocation], messages: Sequence[Message]) -> int:
        """Return the tokens of a summary without its text."""
        empty = Summary(
            id="",
            stream=self.thread,
            version=0,
            covers=list_spans(places),
            messages=0,
            text="",
            tokens=0,
            tokenizer=None,
            method=METHOD,
            trust=lowest_trust(*{message.trust for message in messages}),
            window=True,
        )
        return summary_segment(empty, self.thread, self.mark, self.counter.count).estimated_tokens

    def _make(self, places: Sequence[MessageLocation], messages: Sequence[Message], text: str) -> WindowSummary:
        text = text if self.env.redact is None else redact.redact_text(self.env.redact, text)
        facts = summary_facts(
            self.thread,
            list_spans(places),
            messages,
            summary="",
            at_version=self.tail.version,
            tokens=self.counter.tokenizer.count(text),
            tokenizer=self.counter.tokenizer.name,
            method=METHOD,
            window=True,
        )
        content = SummaryContent(text=text)
        summary = build_summary(self.thread, 0, facts, content)
        segment = summary_segment(summary, self.thread, self.mark, self.counter.count)
        return segment, summary, Draft(type=SUMMED, facts=facts, content=content)

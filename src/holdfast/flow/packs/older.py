"""Summarise the messages just before a pack's window, without a model.

A new summary is made from messages that the tail holds anyway, as many as it has room for: it needs no further read,
and its cost follows the budget. It is journaled together with its pack, so that erasure reaches it. The packs that
follow show the same summary until their window moves, so a provider's prompt cache stays warm. What was rewound or
reset took the beginning of that window with it, so a summary of it is not shown again.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.core.compaction.summary import list_newest
from holdfast.core.packs.fences import Mark
from holdfast.core.packs.rounds import MessagePlace
from holdfast.core.packs.segments import summary_segment
from holdfast.core.trust import lowest_trust
from holdfast.flow.compaction.summaries import list_spans
from holdfast.flow.frames.read import read_event
from holdfast.flow.journal import redact
from holdfast.flow.packs.manifest import SUMMED, find_window_piece
from holdfast.flow.packs.recent import ThreadTail, TokenCounter
from holdfast.flow.sessions.read import MessageLocation
from holdfast.flow.sessions.summaries import build_summary, is_covered
from holdfast.ports import Env
from holdfast.records.events.calls import ContextPacked
from holdfast.records.events.envelope import ERASED, Draft
from holdfast.records.events.sessions import MessageSpan, SummaryContent, SummaryMade
from holdfast.records.messages import Message
from holdfast.records.packs import Segment
from holdfast.records.sessions import Summary

METHOD = "short_lines"
"""The name under which such summaries are journaled."""
MIN_LINE_TOKENS = 8
"""The tokens by which a summary that is too long is made shorter at least."""


class WindowSummaries:
    """The summaries that a pack may show of the messages before its window."""

    def __init__(
        self,
        env: Env,
        thread: str,
        tail: ThreadTail,
        before: ContextPacked | None,
        counter: TokenCounter,
        mark: Mark,
    ) -> None:
        """Take the last journaled pack of the same kind as `before`."""
        self._env, self._thread, self._tail, self._before = env, thread, tail, before
        self._counter, self._mark = counter, mark
        self.found: dict[str, tuple[Summary, Draft | None]] = {}
        """Summaries by the text of their segment, each with its event if it is not journaled yet."""

    def summarise(self, first: Message, room: int) -> Segment | None:
        """Return a summary of the messages before the first one of the window, in at most `room` tokens."""
        head, last = (first.stream, first.version), self._load_last(first)
        if last is not None:
            segment = summary_segment(last, self._thread, self._mark, self._counter.count)
            if segment.estimated_tokens <= room:
                self.found[segment.text] = (last, None)
                return segment
        places, messages = self._list_older(head)
        # The parts count a little less than the whole: the last lines are left out until that fits as well.
        allowed = room - (self._make_segment(places, messages, "")[0].estimated_tokens if messages else room)
        while allowed > 0:
            text, covered = list_newest(messages, allowed, self._counter.tokenizer.count)
            if not covered:
                break
            segment, summary, draft = self._make_segment(places[-covered:], messages[-covered:], text)
            if segment.estimated_tokens <= room:
                self.found[segment.text] = (summary, draft)
                return segment
            allowed -= max(segment.estimated_tokens - room, MIN_LINE_TOKENS)
        return None

    def _load_last(self, first: Message) -> Summary | None:
        """Return the summary of the last pack, if its window began here too and no compaction covers its messages."""
        before, event = self._before, self._tail.made
        if before is None or (before.window_stream, before.window_start) != (first.stream, first.version):
            return None
        piece = find_window_piece(before)
        if piece is None or event is None or event.version != piece.first:
            event = None if piece is None else read_event(self._env, self._thread, piece.first or 0)
        if event is None or event.content is ERASED:
            return None
        last = build_summary(self._thread, event.version, event.facts, event.content)
        start = last.covers[0]
        return None if is_covered(start.stream, start.first, self._tail.summaries) else last

    def _list_older(self, head: MessagePlace) -> tuple[Sequence[MessageLocation], Sequence[Message]]:
        """Return the messages of the tail before the window, without the leading instructions."""
        tail = self._tail
        first = max(tail.start(), tail.leading)
        end = next((at for at, place in enumerate(tail.places) if place.key == head), 0)
        return tail.places[first:end], tail.messages[first:end]

    def _make_segment(
        self, places: Sequence[MessageLocation], messages: Sequence[Message], text: str
    ) -> tuple[Segment, Summary, Draft]:
        """Return a summary of messages, and its event, which has no id yet."""
        text = text if self._env.redact is None else redact.redact_text(self._env.redact, text)
        spans = list_spans(places)
        own = next((one for one in spans if one.stream == self._thread), MessageSpan(self._thread, 0, 0))
        facts = SummaryMade(
            summary="",
            first=own.first,
            last=own.last,
            shared=tuple(one for one in spans if one.stream != self._thread),
            at_version=self._tail.version,
            messages=len(messages),
            tokens=self._counter.tokenizer.count(text),
            tokenizer=self._counter.tokenizer.name,
            trust=lowest_trust(*(message.trust for message in messages)),
            method=METHOD,
            window=True,
        )
        content = SummaryContent(text=text)
        summary = build_summary(self._thread, 0, facts, content)
        segment = summary_segment(summary, self._thread, self._mark, self._counter.count)
        return segment, summary, Draft(type=SUMMED, facts=facts, content=content)

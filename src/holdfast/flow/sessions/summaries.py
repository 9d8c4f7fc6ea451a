"""Read the summaries of a thread: those that stand, one by its id or place, and the messages behind one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.errors import NotFound
from holdfast.flow.frames.read import read_event
from holdfast.flow.sessions.read import (
    LATEST,
    PAGE,
    iter_segment_messages,
    load_shared_at,
    thread_segments,
    thread_state,
)
from holdfast.ports import Env
from holdfast.records.batches import Row, RowQuery
from holdfast.records.events.envelope import ERASED
from holdfast.records.events.sessions import SharedSegment, SummaryContent, SummaryMade
from holdfast.records.ids import ulid_bytes
from holdfast.records.messages import Message
from holdfast.records.sessions import Summary

ERASED_SUMMARY = "[erased]"
MAX_SUMMARIES = 10_000


def list_summaries(env: Env, stream: str) -> list[Summary]:
    """List the summaries that stand for parts of a thread now, oldest first, without overlaps."""
    return list(iter_summaries(env, stream))[::-1]


def iter_summaries(env: Env, stream: str) -> Iterator[Summary]:
    """Iterate over the standing summaries, newest first, each read on demand."""
    found: list[Summary] = []
    for segment in thread_segments(stream, thread_state(env, stream)):
        for row in _iter_rows(env, segment):
            summary = load_summary(env, segment.stream, int(row["version"] or 0))
            if not any(_has_overlap(summary, known) for known in found):
                found.append(summary)
                yield summary


def _iter_rows(env: Env, segment: SharedSegment) -> Iterator[Row]:
    """Iterate over the rows of standing summaries made in a segment, newest first."""
    until = segment.at
    while True:
        query = RowQuery(
            table="summaries", stream=segment.stream, after=segment.after, until=until, limit=PAGE, backwards=True
        )
        rows = env.journal.select(env.tenant, query)
        for _, row in rows:
            retired = row["retired"]
            if (retired is None or int(retired) > segment.at) and int(row["last"] or 0) <= segment.until:
                yield row
        if len(rows) < PAGE:
            return
        until = int(rows[-1][1]["version"] or 0) - 1


def _has_overlap(one: Summary, other: Summary) -> bool:
    pairs = ((a, b) for a in one.covers for b in other.covers)
    return any(a.stream == b.stream and a.first <= b.last and b.first <= a.last for a, b in pairs)


def is_covered(stream: str, version: int, known: Sequence[Summary]) -> bool:
    """Return True if one of these summaries covers the message at a version of a stream."""
    return any(
        part.stream == stream and part.first <= version <= part.last for summary in known for part in summary.covers
    )


def load_summary(env: Env, stream: str, version: int) -> Summary:
    """Load the summary made at a version of a stream, standing or not."""
    event = read_event(env, stream, version)
    if event is None or event.type != "summary.made":
        raise NotFound(f"There is no summary at version {version} of {stream}. Check its id.")
    content = SummaryContent(text=ERASED_SUMMARY) if event.content is ERASED else event.content
    return build_summary(stream, event.version, event.facts, content)


def build_summary(stream: str, version: int, facts: SummaryMade, content: SummaryContent) -> Summary:
    """Build a summary from its event."""
    return Summary(
        id=facts.summary,
        stream=stream,
        version=version,
        covers=facts.spans(stream),
        messages=facts.messages,
        text=content.text or "",
        tokens=facts.tokens,
        tokenizer=facts.tokenizer,
        method=facts.method,
        trust=facts.trust,
        state=content.state,
    )


def find_summary(env: Env, stream: str, summary: str) -> Summary:
    """Find a summary of a thread by its id, standing or not."""
    if not isinstance(summary, str):
        raise NotFound("Name a summary: what compact gave, or its id.")
    wanted = ulid_bytes(summary)
    for segment in thread_segments(stream, thread_state(env, stream)):
        query = RowQuery(
            table="summaries", stream=segment.stream, until=segment.at, limit=MAX_SUMMARIES, backwards=True
        )
        for _, row in env.journal.select(env.tenant, query):
            if row["summary_id"] == wanted:
                return load_summary(env, segment.stream, int(row["version"] or 0))
    raise NotFound(f"There is no summary {summary} in {stream}. Check its id.")


def expand_summary(env: Env, stream: str, id: str) -> list[Message]:
    """Return the messages that a summary covers as they were said, despite later retractions, forks and resets."""
    summary = find_summary(env, stream, id)
    at = {summary.stream: summary.version - 1}
    if any(stretch.stream != summary.stream for stretch in summary.covers):
        at.update({one.stream: one.at for one in load_shared_at(env, summary.stream, summary.version)})
    stretches = (
        SharedSegment(one.stream, one.first - 1, one.last, at.get(one.stream, LATEST)) for one in summary.covers
    )
    return [message for stretch in stretches for message in iter_segment_messages(env, stretch)]

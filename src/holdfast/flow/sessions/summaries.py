"""Read the summaries of a thread: those that stand, one by its id or place, and the messages behind one.

Passages that a compaction wrote to the state fall with the messages it covers.
"""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from holdfast.core.compaction.summary import PASSAGE_PREFIX
from holdfast.core.entries import MAX_PAGE
from holdfast.core.journal.codec import decode_facts
from holdfast.core.lazy import decoder
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
from holdfast.ports.capabilities import STATE, require
from holdfast.records.batches import Row, RowQuery
from holdfast.records.entries import EntryPageQuery
from holdfast.records.events.envelope import ERASED, Draft
from holdfast.records.events.sessions import MessageSpan, SharedSegment, SummaryContent, SummaryMade
from holdfast.records.events.state import StateDeleted
from holdfast.records.ids import ulid_bytes, ulid_text
from holdfast.records.messages import Message
from holdfast.records.sessions import Summary

ERASED_SUMMARY = "[erased]"


def list_summaries(env: Env, stream: str) -> list[Summary]:
    """List the summaries that stand for parts of a thread now, oldest first, without overlaps."""
    return list(iter_summaries(env, stream))[::-1]


def iter_summaries(env: Env, stream: str) -> Iterator[Summary]:
    """Iterate over the standing summaries, newest first, each read on demand."""
    found: list[Summary] = []
    for segment in thread_segments(stream, thread_state(env, stream)):
        for row in _iter_rows(env, segment.stream, segment.after, segment.at):
            retired = row["retired"]
            if (retired is not None and int(retired) <= segment.at) or int(row["last"] or 0) > segment.until:
                continue
            summary = load_summary(env, segment.stream, int(row["version"] or 0))
            if not any(_has_overlap(summary, known) for known in found):
                found.append(summary)
                yield summary


def _iter_rows(env: Env, stream: str, after: int, until: int) -> Iterator[Row]:
    """Iterate over the rows of summaries made between two versions of a stream, newest first, standing or not."""
    while True:
        query = RowQuery(table="summaries", stream=stream, after=after, until=until, limit=PAGE, backwards=True)
        rows = [row for _, row in env.journal.select(env.tenant, query)]
        yield from rows
        if len(rows) < PAGE:
            return
        until = int(rows[-1]["version"] or 0) - 1


def _has_overlap(one: Summary, other: Summary) -> bool:
    pairs = ((a, b) for a in one.covers for b in other.covers)
    return any(a.stream == b.stream and a.first <= b.last and b.first <= a.last for a, b in pairs)


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
        text=content.text or "",
        state=content.state,
        window=facts.window,
        **{name: getattr(facts, name) for name in ("messages", "tokens", "tokenizer", "method", "trust", "usage")},
    )


def find_summary(env: Env, stream: str, summary: str) -> Summary:
    """Find a summary of a thread by its id, standing or not."""
    if not isinstance(summary, str):
        raise NotFound("Name a summary: what compact gave, or its id.")
    wanted = ulid_bytes(summary)
    for segment in thread_segments(stream, thread_state(env, stream)):
        for row in _iter_rows(env, segment.stream, 0, segment.at):
            if row["summary_id"] == wanted:
                return load_summary(env, segment.stream, int(row["version"] or 0))
    raise NotFound(f"There is no summary {summary} in {stream}. Check its id.")


def list_flushed(env: Env, stream: str) -> list[tuple[str, str, MessageSpan]]:
    """List the compactions of a thread that wrote passages to the state since its last reset, newest first.

    Each is a scope, the compaction's id, and the newest span that it covers. Replaced and voided ones are included:
    what they wrote is still there.
    """
    found: list[tuple[str, str, MessageSpan]] = []
    for row in _iter_rows(env, stream, thread_state(env, stream).floor, LATEST):
        if row["flushed"] is not None:
            spans = decoder(list[MessageSpan]).decode(str(row["shared"] or "[]"))
            own = MessageSpan(stream, int(row["first"] or 0), int(row["last"] or 0))
            id = ulid_text(row["summary_id"])
            found.append((str(row["flushed"]), id, own if own.last else spans[-1]))
    return found


def delete_passages(env: Env, scope: str, compaction: str = "") -> list[Draft]:
    """Return the deletions of the passages that a compaction, or any, wrote to a scope."""
    prefix = PASSAGE_PREFIX + compaction
    return [
        Draft(type="state.deleted", facts=StateDeleted(key=key, cause="retraction"))
        for key in list_keys(env, scope, EntryPageQuery(now=0, prefix=prefix, limit=MAX_PAGE))
    ]


def list_keys(env: Env, scope: str, page: EntryPageQuery) -> list[str]:
    """List the keys of entries in a scope, page by page."""
    keys: list[str] = []
    while True:
        stored = require(env.journal, STATE).entries(env.tenant, scope, page)
        found = [decode_facts("state.written", one.schema, one.facts).key for one in stored]
        keys += found
        if len(found) < page.limit:
            return keys
        page = replace(page, after=found[-1])


def expand_summary(env: Env, stream: str, id: str) -> list[Message]:
    """Return the messages that a summary covers as they were said, despite later retractions, forks and resets."""
    summary = find_summary(env, stream, id)
    at = {summary.stream: summary.version - 1}
    if any(stretch.stream != summary.stream for stretch in summary.covers):
        at.update({one.stream: one.at for one in load_shared_at(env, summary.stream, summary.version)})
    covers = summary.covers
    stretches = (SharedSegment(one.stream, one.first - 1, one.last, at.get(one.stream, LATEST)) for one in covers)
    return [message for stretch in stretches for message in iter_segment_messages(env, stretch)]

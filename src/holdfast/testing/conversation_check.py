"""Does a journal say what a story told? Compared in the story's own words, not in rows."""

from __future__ import annotations

from holdfast.flow.compaction import summing
from holdfast.flow.conversation import lines
from holdfast.ports import Acting, Ports
from holdfast.records.lines import Line
from holdfast.records.rows import Span
from holdfast.testing.conversation_lines import ToldLine
from holdfast.testing.conversation_stories import ConversationStory


def check_told(ports: Ports, acting: Acting, story: ConversationStory) -> None:
    """Assert that a story's session and every line of it read as they were told."""
    session = ports.journal.load(acting.tenant, story.stream).session
    assert session is not None
    assert (session.status, session.generation) == (story.status, story.generation)
    assert session.threads == tuple(sorted(story.lines))
    assert {id: one.attempts for id, one in session.handovers.items()} == {
        id: one.attempts for id, one in story.handovers.items()
    }
    for told in story.lines.values():
        _check_line(ports, acting, told)
        _check_messages(ports, acting, told, story.pinned)


def _check_line(ports: Ports, acting: Acting, told: ToldLine) -> None:
    line = ports.journal.load(acting.tenant, told.stream).line
    assert isinstance(line, Line)
    assert (line.messages, line.newest, line.floor) == (len(told.said), told.newest, told.floor), told.stream
    assert (line.ended, line.fresh, line.shared) == (told.ended, told.fresh, told.shared), told.stream
    assert (line.calls, line.packed) == (told.calls, told.packed), told.stream
    made = ports.journal.span(acting.tenant, told.stream, Span(table="summaries", after=told.floor, limit=10_000))
    assert [row["version"] for row in made if row["retired"] is None] == [one.version for one in told.own], told.stream
    standing = [(one.stream, one.version) for one in summing.summaries(ports, acting, told.stream)]
    assert standing == [(one.stream, one.version) for one in told.standing()], told.stream


def _check_messages(ports: Ports, acting: Acting, told: ToldLine, pinned: set[tuple[str, int]]) -> None:
    places = [one.place for one in told.said]
    backwards = [(one.stream, one.version) for one in lines.places(ports, acting, told.stream)]
    forwards = [(one.stream, one.version) for one in lines.places_after(ports, acting, told.stream)]
    assert (forwards, backwards) == (places, places[::-1]), told.stream
    found = lines.messages(ports, acting, told.stream)
    assert [(one.stream, one.version) for one in found] == places
    assert [one.pinned for one in found] == [place in pinned for place in places], told.stream
    for one, message in zip(told.said, found, strict=True):
        assert tuple(call.id for call in message.tool_calls) == tuple(id for id, _ in one.calls)
        assert tuple(result.tool_call_id for result in message.tool_results) == one.answers
    span = Span(table="messages", limit=10_000, pinned=True)
    rows = ports.journal.span(acting.tenant, told.stream, span)
    assert [row["version"] for row in rows] == sorted(version for stream, version in pinned if stream == told.stream)

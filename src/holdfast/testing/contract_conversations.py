"""The contract of conversations: rows by place, events by id, states, whatever else is in the journal."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.core.codec import decode_event
from holdfast.core.fold import fold
from holdfast.core.search.searchable import TextSearch
from holdfast.core.search.words import terms
from holdfast.core.tables import TABLES
from holdfast.errors import Closed, Refused
from holdfast.flow import artifacts, erasing
from holdfast.flow.verify import verify
from holdfast.journal_port import Journal
from holdfast.records.events.conversations import MessageAppended, MessageContent, ThreadOpened
from holdfast.records.events.envelope import Draft
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.reports import Query
from holdfast.records.rows import Row, SessionQuery, Span
from holdfast.testing.contract_kit import ACTOR, Fixtures, dump, pushed, stored
from holdfast.testing.conversation_check import check_told
from holdfast.testing.conversation_moves import TOKENIZERS
from holdfast.testing.conversation_stories import ConversationStory
from holdfast.testing.writer import Writer

SPANNED = ("messages", "message_counts", "summaries")


class ConversationContract(Fixtures):
    """Conversations: what stands, in which order, for whom."""

    @pytest.mark.parametrize("seed", range(3))
    def test_loading_gives_what_folding_gives_after_every_step(
        self, writer: Writer, journal: Journal, seed: int
    ) -> None:
        story = ConversationStory(Random(seed), writer.ports.ids)  # noqa: S311
        states: dict[str, StreamState] = {}
        for _ in range(25):
            parts = story.step(2)
            writer.write(*parts)
            for part in parts:
                state = states.get(part.stream, StreamState())
                for event in stored(journal, part.stream, after=state.version, limit=1_000):
                    state = fold(state, decode_event(event))
                states[part.stream] = state
                assert journal.load("default", part.stream) == state
        assert all(states[line.stream].line is not None for line in story.lines.values())
        assert journal.load("default", "session/nobody") == StreamState()

    def test_a_journal_says_what_was_told_also_after_erasure_and_rebuilding(
        self, writer: Writer, journal: Journal
    ) -> None:
        stories = _told(writer, steps=80)
        for story in stories:
            check_told(writer.ports, writer.acting, story)
        live = dump(journal)
        for subject in ("alice", "bob"):
            assert erasing.erase(writer.ports, writer.acting, subject).events
        assert dump(journal) == live
        assert verify(writer.ports).findings == ()
        journal.rebuild()
        assert dump(journal) == live
        for story in stories:
            check_told(writer.ports, writer.acting, story)

    @pytest.mark.parametrize("table", SPANNED)
    def test_a_span_is_what_its_bounds_say(self, writer: Writer, journal: Journal, table: str) -> None:
        (story,) = _told(writer, steps=300, sessions=1)
        _told(Writer(journal, tenant="acme"), steps=30)
        random, found = Random(7), 0  # noqa: S311
        for _ in range(150):
            stream, span = random.choice(story.streams), _any_span(random, table)
            rows = journal.span("default", stream, span)
            assert rows == _expected(journal, stream, span), (stream, span)
            found += len(rows)
        assert found > 20

    def test_a_span_shows_nothing_of_other_tenants_and_streams(self, writer: Writer, journal: Journal) -> None:
        other = Writer(journal, tenant="acme")
        (story,) = _told(other, steps=40, sessions=1)
        everything = Span(table="messages", limit=1_000)
        assert sum(len(journal.span("acme", stream, everything)) for stream in story.streams) > 10
        writer.append(story.lines["main"].stream, Draft(type="thread.opened", facts=ThreadOpened()))
        for stream in (*story.streams, "session/nobody", "session/s0/thread/nothing", ACTOR):
            for table in SPANNED:
                prefix = (TOKENIZERS[0],) if table == "message_counts" else ()
                assert journal.span("default", stream, Span(table=table, prefix=prefix)) == []
                assert journal.span("nobody", stream, Span(table=table, prefix=prefix)) == []

    def test_an_event_is_found_by_its_id(self, writer: Writer, journal: Journal) -> None:
        other = Writer(journal, tenant="acme", ids=writer.ports.ids)
        _told(writer, steps=10)
        _told(other, steps=10)
        for tenant, stranger in (("default", "acme"), ("acme", "default")):
            events = journal.read(Query(tenant=tenant, limit=1_000))
            assert len(events) > 10
            for event in events:
                assert journal.event(tenant, event.id) == event
                assert journal.event(stranger, event.id) is None
                assert journal.event("nobody", event.id) is None
        assert journal.event("default", bytes(16)) is None
        assert journal.event("default", b"") is None

    def test_the_line_of_a_frame_is_a_line(self, writer: Writer, journal: Journal) -> None:
        stream = f"frame/{ulid_text(writer.ports.ids.ulid())}"
        writer.append(stream, Draft(type="thread.opened", facts=ThreadOpened()), said(1), said(2))
        line = journal.load("default", stream).line
        assert line is not None
        assert (line.messages, line.newest) == (2, 3)
        assert [row["version"] for row in journal.span("default", stream, Span(table="messages"))] == [2, 3]
        assert journal.sessions("default", SessionQuery()) == []

    def test_a_line_that_begins_twice_is_refused_with_nothing_written(self, writer: Writer, journal: Journal) -> None:
        opened = Draft(type="thread.opened", facts=ThreadOpened())
        writer.append("session/s/thread/main", opened, said(1))
        before = (dump(journal), journal.position(), journal.load("default", "session/s/thread/main"))
        with pytest.raises(Refused):
            writer.append("session/s/thread/main", said(2), opened)
        assert (dump(journal), journal.position(), journal.load("default", "session/s/thread/main")) == before

    @pytest.mark.parametrize("size", [300, 300_000])
    def test_a_text_that_lies_in_an_artifact_is_found_until_it_is_erased(
        self, writer: Writer, journal: Journal, size: int
    ) -> None:
        placed = artifacts.prepare(writer.ports, writer.acting, b"a heliotrope " + b"x" * size)
        facts = MessageAppended(role="user", position=1, artifacts=(placed.name.hex(),))
        content = MessageContent(parts=[{"type": "text", "artifact": placed.name.hex(), "whole": True}])
        large = Draft(type="message.appended", facts=facts, content=content, subject="carol")
        opened = Draft(type="thread.opened", facts=ThreadOpened())
        writer.append("session/s/thread/main", opened, large, said(2), artifacts=[placed])
        wanted = TextSearch(terms=terms("heliotrope"), now=1)
        for _ in range(2):
            # The one behind it is short, and found by the end of what was said before it as well.
            assert 2 in [hit.event.version for hit in journal.search("default", wanted)]
            journal.rebuild()
        erasing.erase(writer.ports, writer.acting, "carol")
        for _ in range(2):
            assert journal.search("default", wanted) == []
            journal.rebuild()

    def test_frames_and_conversations_do_not_touch_each_other(self, writer: Writer, journal: Journal) -> None:
        (story,) = _told(writer, steps=20, sessions=1)
        before = [journal.load("default", stream) for stream in story.streams]
        writer.append("actor/a/session/s0/thread/main", pushed(writer))
        assert [journal.load("default", stream) for stream in story.streams] == before
        assert all(state.frames == {} for state in before)
        assert journal.load("default", "actor/a/session/s0/thread/main").line is None

    def test_a_closed_journal_says_so_about_conversations(self, writer: Writer, journal: Journal) -> None:
        _told(writer, steps=3, sessions=1)
        journal.close()
        for call in (
            lambda: journal.event("default", bytes(16)),
            lambda: journal.span("default", "session/s0", Span(table="messages")),
            lambda: journal.sessions("default", SessionQuery()),
            lambda: journal.idle_sessions("default", 0, "", 1),
        ):
            with pytest.raises(Closed):
                call()


def said(position: int, role: str = "user", **facts: Any) -> Draft:
    """A message."""
    made = MessageAppended(role=role, position=position, **facts)
    return Draft(type="message.appended", facts=made, content=MessageContent(text="hello"))


def _told(writer: Writer, *, steps: int, sessions: int = 2) -> list[ConversationStory]:
    """Stories that were written in a few commits."""
    ids = writer.ports.ids
    stories = [ConversationStory(Random(n), ids, f"s{n}", ("alice", "bob")) for n in range(sessions)]  # noqa: S311
    for story in stories:
        for _ in range(0, steps, 10):
            writer.write(*story.step(min(10, steps)))
    return stories


def _any_span(random: Random, table: str) -> Span:
    first = random.choice((0, random.randint(0, 60)))
    return Span(
        table=table,
        after=first,
        until=random.choice((first - 1, first, first + random.randint(0, 40), 2**62)),
        limit=random.choice((0, 1, 2, 7, 1_000)),
        backwards=random.random() < 0.5,
        prefix=(random.choice((*TOKENIZERS, *TOKENIZERS, "unknown")),) if table == "message_counts" else (),
        pinned=table == "messages" and random.random() < 0.3,
    )


def _expected(journal: Journal, stream: str, span: Span) -> list[Row]:
    """The same by looking at every row of the table."""
    names = TABLES[span.table].key[:-1]
    rows = [row for owner, name, row in journal.rows(span.table) if (owner, name) == ("default", stream)]
    rows = [row for row in rows if tuple(row[name] for name in names) == span.prefix]
    found = {int(row["version"] or 0): row for row in rows if not span.pinned or row["pinned"]}
    within = sorted((place for place in found if span.after < place <= span.until), reverse=span.backwards)
    return [found[place] for place in within[: span.limit]]

"""The contract of sessions: their messages, rows and states, and the lists of sessions by activity, user and status."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.fold import fold_event
from holdfast.core.search.documents import TextSearch
from holdfast.core.search.words import query_terms
from holdfast.errors import Closed, Refused
from holdfast.flow.journal import artifacts
from holdfast.flow.journal.append import StreamWrite
from holdfast.flow.journal.verify import verify
from holdfast.ports.capabilities import MAINTENANCE, TEXT, require
from holdfast.ports.journal import Journal
from holdfast.records.batches import ColumnValue, Row, RowQuery, SessionQuery, SessionRow
from holdfast.records.events import sessions as event_sessions
from holdfast.records.events.envelope import Draft
from holdfast.records.events.sessions import MessageAppended, MessageContent, ThreadOpened
from holdfast.records.frames import StreamState
from holdfast.records.ids import ulid_text
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.usage import Usage
from holdfast.testing.clock import FrozenClock
from holdfast.testing.generate_sessions import TOKENIZERS, SessionGenerator, check_session
from holdfast.testing.journal_contract.fixtures import ACTOR, JournalFixtures, dump_projections, make_push, read_events
from holdfast.testing.writer import Writer

SPAN_TABLES = ("messages", "message_counts", "summaries")


class ConversationContract(JournalFixtures):
    """The contract of conversations: which messages stand, in which order, for which tenant."""

    @pytest.mark.parametrize("seed", range(3))
    def test_loading_gives_what_folding_gives_after_every_step(
        self, writer: Writer, journal: Journal, seed: int
    ) -> None:
        story = SessionGenerator(Random(seed), writer.env.ids)  # noqa: S311
        states: dict[str, StreamState] = {}
        for _ in range(25):
            parts = story.step(2)
            writer.write(*parts)
            for part in parts:
                state = states.get(part.stream, StreamState())
                for event in read_events(journal, part.stream, after=state.version, limit=1_000):
                    state = fold_event(state, decode_event(event))
                states[part.stream] = state
                assert journal.load("default", part.stream) == state
        assert all(states[thread.stream].thread is not None for thread in story.threads.values())
        assert journal.load("default", "session/nobody") == StreamState()

    def test_a_journal_says_what_was_told_also_after_erasure_and_rebuilding(
        self, writer: Writer, journal: Journal
    ) -> None:
        stories = _write_sessions(writer, steps=80)
        for story in stories:
            check_session(writer.env, story)
        live = dump_projections(journal)
        for subject in ("alice", "bob"):
            assert artifacts.erase_subject(writer.env, subject).events
        assert dump_projections(journal) == live
        assert verify(writer.env).findings == ()
        require(journal, MAINTENANCE).rebuild()
        assert dump_projections(journal) == live
        for story in stories:
            check_session(writer.env, story)

    @pytest.mark.parametrize("table", SPAN_TABLES)
    def test_a_span_is_what_its_bounds_say(self, writer: Writer, journal: Journal, table: str) -> None:
        (story,) = _write_sessions(writer, steps=300, sessions=1)
        _write_sessions(Writer(journal, tenant="acme"), steps=30)
        random, found = Random(7), 0  # noqa: S311
        for _ in range(150):
            stream = random.choice(story.streams)
            span = _random_span(random, table, stream)
            rows = journal.select("default", span)
            assert rows == [(stream, row) for row in _scan_span(journal, stream, span)], (stream, span)
            found += len(rows)
        assert found > 20

    def test_a_span_shows_nothing_of_other_tenants_and_streams(self, writer: Writer, journal: Journal) -> None:
        other = Writer(journal, tenant="acme")
        (story,) = _write_sessions(other, steps=40, sessions=1)
        everything = [RowQuery(table="messages", stream=stream, limit=1_000) for stream in story.streams]
        assert sum(len(journal.select("acme", query)) for query in everything) > 10
        writer.append(story.threads["main"].stream, Draft(type="thread.opened", facts=ThreadOpened()))
        for stream in (*story.streams, "session/nobody", "session/s0/thread/nothing", ACTOR):
            for table in SPAN_TABLES:
                query = RowQuery(table=table, stream=stream)
                if table == "message_counts":
                    query = replace(query, column="tokenizer", value=TOKENIZERS[0])
                assert journal.select("default", query) == journal.select("nobody", query) == []

    def test_an_event_is_found_by_its_id(self, writer: Writer, journal: Journal) -> None:
        other = Writer(journal, tenant="acme", ids=writer.env.ids)
        _write_sessions(writer, steps=10)
        _write_sessions(other, steps=10)
        for tenant, stranger in (("default", "acme"), ("acme", "default")):
            events = journal.read(EventQuery(tenant=tenant, limit=1_000))
            assert len(events) > 10
            for event in events:
                assert journal.event(tenant, event.id) == event
                assert journal.event(stranger, event.id) is None
                assert journal.event("nobody", event.id) is None
        assert journal.event("default", bytes(16)) is None
        assert journal.event("default", b"") is None

    def test_the_stream_of_a_frame_is_a_thread(self, writer: Writer, journal: Journal) -> None:
        stream = f"frame/{ulid_text(writer.env.ids.ulid())}"
        writer.append(stream, Draft(type="thread.opened", facts=ThreadOpened()), make_message(1), make_message(2))
        thread = journal.load("default", stream).thread
        assert thread is not None
        assert (thread.messages, thread.newest) == (2, 3)
        rows = journal.select("default", RowQuery(table="messages", stream=stream))
        assert [row["version"] for _, row in rows] == [2, 3]
        assert journal.sessions("default", SessionQuery()) == []

    def test_a_thread_that_begins_twice_is_refused_with_nothing_written(self, writer: Writer, journal: Journal) -> None:
        opened, stream = Draft(type="thread.opened", facts=ThreadOpened()), "session/s/thread/main"
        writer.append(stream, opened, make_message(1))
        before = (dump_projections(journal), journal.position(), journal.load("default", stream))
        with pytest.raises(Refused):
            writer.append(stream, make_message(2), opened)
        assert (dump_projections(journal), journal.position(), journal.load("default", stream)) == before

    @pytest.mark.parametrize("size", [300, 300_000])
    def test_a_text_that_lies_in_an_artifact_is_found_until_it_is_erased(
        self, writer: Writer, journal: Journal, size: int
    ) -> None:
        placed = artifacts.prepare_artifact(writer.env, b"a heliotrope " + b"x" * size)
        facts = MessageAppended(role="user", position=1, artifacts=(placed.name.hex(),))
        content = MessageContent(parts=[{"type": "text", "artifact": placed.name.hex(), "whole": True}])
        large = Draft(type="message.appended", facts=facts, content=content, subject="carol")
        opened = Draft(type="thread.opened", facts=ThreadOpened())
        writer.append("session/s/thread/main", opened, large, make_message(2), artifacts=[placed])
        wanted = TextSearch(terms=query_terms("heliotrope"), now=1)
        for _ in range(2):
            # The next message is short, and is also found by the end of the text before it.
            assert 2 in [hit.event.version for hit in require(journal, TEXT).search("default", wanted)]
            require(journal, MAINTENANCE).rebuild()
        artifacts.erase_subject(writer.env, "carol")
        for _ in range(2):
            assert require(journal, TEXT).search("default", wanted) == []
            require(journal, MAINTENANCE).rebuild()

    def test_frames_and_conversations_do_not_touch_each_other(self, writer: Writer, journal: Journal) -> None:
        (story,) = _write_sessions(writer, steps=20, sessions=1)
        before = [journal.load("default", stream) for stream in story.streams]
        writer.append("actor/a/session/s0/thread/main", make_push(writer))
        assert [journal.load("default", stream) for stream in story.streams] == before
        assert all(state.frames == {} for state in before)
        assert journal.load("default", "actor/a/session/s0/thread/main").thread is None

    def test_a_closed_journal_says_so_about_conversations(self, writer: Writer, journal: Journal) -> None:
        _write_sessions(writer, steps=3, sessions=1)
        journal.close()
        for call in (
            lambda: journal.event("default", bytes(16)),
            lambda: journal.select("default", RowQuery(table="messages", stream="session/s0")),
            lambda: journal.sessions("default", SessionQuery()),
            lambda: journal.idle_sessions("default", 0, "", 1),
        ):
            with pytest.raises(Closed):
                call()


def make_message(position: int, role: str = "user", **facts: Any) -> Draft:
    """Make a draft of a message."""
    made = MessageAppended(role=role, position=position, **facts)
    return Draft(type="message.appended", facts=made, content=MessageContent(text="hello"))


def _write_sessions(writer: Writer, *, steps: int, sessions: int = 2) -> list[SessionGenerator]:
    """Write random sessions in a few commits; return their generators."""
    ids = writer.env.ids
    stories = [SessionGenerator(Random(n), ids, f"s{n}", ("alice", "bob")) for n in range(sessions)]  # noqa: S311
    for story in stories:
        for _ in range(0, steps, 10):
            writer.write(*story.step(min(10, steps)))
    return stories


def _random_span(random: Random, table: str, stream: str) -> RowQuery:
    first = random.choice((0, random.randint(0, 60)))
    column: str | None = None
    value: ColumnValue = None
    if table == "message_counts":
        column, value = "tokenizer", random.choice((*TOKENIZERS, *TOKENIZERS, "unknown"))
    elif table == "messages" and random.random() < 0.3:
        column, value = "pinned", 1
    return RowQuery(
        table=table,
        stream=stream,
        column=column,
        value=value,
        after=first,
        until=random.choice((first - 1, first, first + random.randint(0, 40), 2**62)),
        limit=random.choice((0, 1, 2, 7, 1_000)),
        backwards=random.random() < 0.5,
    )


def _scan_span(journal: Journal, stream: str, span: RowQuery) -> list[Row]:
    """Compute the same span by scanning every row of the table."""
    every = require(journal, MAINTENANCE).rows(span.table)
    rows = [row for owner, name, row in every if (owner, name) == ("default", stream)]
    found = {int(row["version"] or 0): row for row in rows if span.column is None or row[span.column] == span.value}
    within = sorted((place for place in found if span.after < place <= span.until), reverse=span.backwards)
    return [found[place] for place in within[: span.limit]]


STATUSES = ("open", "closing", "ended", "closed")
UNUSUAL_IDS = ("a", "ab", "a/b", "a%2Fb", "née", "A", "a b", "..")
"""Ids that share a beginning, or are escaped within a stream's name."""


class SessionContract(JournalFixtures):
    """The contract of lists of sessions."""

    @pytest.fixture
    def clock(self, writer: Writer) -> FrozenClock:
        """Return the writer's clock, which is moved by hand."""
        clock = writer.env.clock
        assert isinstance(clock, FrozenClock)
        return clock

    def test_the_most_recently_active_session_is_first(
        self, writer: Writer, journal: Journal, clock: FrozenClock
    ) -> None:
        for name in "abc":
            _open_session(writer, name)
            clock.advance(5)
        assert _list_ids(journal) == ["c", "b", "a"]
        _append_message(writer, "a")
        assert _list_ids(journal) == ["a", "c", "b"]
        clock.advance(5)
        # Retractions, pins and changed settings do not count as activity.
        retracted = event_sessions.MessageRetracted(first=2, last=2, spans=((2, 2),))
        writer.append(_thread_stream("b"), Draft(type="message.retracted", facts=retracted))
        changed = Draft(type="session.changed", facts=event_sessions.SessionOpened(model="m"))
        writer.append(Scope.session("c").text, changed)
        assert _list_ids(journal) == ["a", "c", "b"]
        assert [row.model for row in journal.sessions("default", SessionQuery())] == [None, "m", None]

    def test_sessions_of_one_moment_have_an_order_too(self, writer: Writer, journal: Journal) -> None:
        for name in UNUSUAL_IDS:
            _open_session(writer, name)
            _add_thread(writer, name, "another", messages=1)
        assert _list_ids(journal) == list(UNUSUAL_IDS[::-1])
        for limit in (1, 3):
            assert [_session_id(row) for row in _iterate_pages(journal, limit)] == list(UNUSUAL_IDS[::-1])

    def test_sessions_that_began_in_one_commit_are_told_apart(self, writer: Writer, journal: Journal) -> None:
        opened = Draft(type="session.opened", facts=event_sessions.SessionOpened(idle_timeout_ms=1))
        thread = Draft(type="thread.opened", facts=event_sessions.ThreadOpened())
        sessions = [StreamWrite(stream=Scope.session(name).text, events=(opened,)) for name in "abc"]
        writer.write(*sessions, *(StreamWrite(stream=_thread_stream(name), events=(thread,)) for name in "abc"))
        assert [_session_id(row) for row in _iterate_pages(journal, 1)] == ["c", "b", "a"]
        # A session without a thread has never been active: it is in no list, and is not idle.
        writer.append("session/without", opened)
        assert _list_ids(journal) == ["c", "b", "a"]
        assert journal.idle_sessions("default", 2**60, "session/c", 10) == []

    @pytest.mark.parametrize("limit", [1, 2, 7])
    def test_pages_have_no_gaps_or_repeats_while_others_write(
        self, writer: Writer, journal: Journal, clock: FrozenClock, limit: int
    ) -> None:
        quiet = [f"quiet{number}" for number in range(9)]
        busy = [f"busy{number}" for number in range(4)]
        for name in (*quiet[:5], *busy, *quiet[5:]):
            _open_session(writer, name)
            clock.advance(3)
        seen: list[str] = []
        for number, row in enumerate(_iterate_pages(journal, limit)):
            seen.append(_session_id(row))
            clock.advance(3)
            _append_message(writer, busy[number % len(busy)])
            if number < 3:
                _open_session(writer, f"new{number}")
        assert [name for name in seen if name in quiet] == quiet[::-1]
        assert len(seen) == len(set(seen))
        assert not [name for name in seen if name.startswith("new")]

    def test_threads_are_counted_together_and_their_session_once(
        self, writer: Writer, journal: Journal, clock: FrozenClock
    ) -> None:
        _open_session(writer, "s", messages=2)
        _open_session(writer, "t", messages=1)
        opened = clock.now_ms()
        for thread in ("x", "y"):
            clock.advance(10)
            _add_thread(writer, "s", thread, messages=3)
        newest = clock.now_ms()
        # An actor's frames and a frame's messages are not threads of the session.
        clock.advance(10)
        writer.append("actor/a/session/s/thread/main", make_push(writer))
        ours, others = journal.sessions("default", SessionQuery())
        assert (ours.stream, ours.messages, ours.threads) == ("session/s", 8, 3)
        assert ours.usage == Usage(input=80, output=16, cost=24)
        assert (ours.opened_at, ours.active_at) == (opened, newest)
        assert (others.stream, others.messages, others.threads) == ("session/t", 1, 1)
        assert [row.stream for row in _iterate_pages(journal, 1)] == ["session/s", "session/t"]

    def test_sessions_are_found_by_whoever_opened_them(self, writer: Writer, journal: Journal) -> None:
        alice, bob = (Writer(journal, user=name, ids=writer.env.ids) for name in ("alice", "bob"))
        for owner, name in ((alice, "a1"), (bob, "b1"), (writer, "n1"), (alice, "a2")):
            _open_session(owner, name)
            _add_thread(owner, name, "another", messages=1)
        # Users who write later or reopen the session are not its opener.
        _append_message(bob, "a1")
        for generation, owner in ((1, bob), (2, alice)):
            anew = event_sessions.SessionOpened(generation=generation)
            owner.append("session/a1", Draft(type="session.opened", facts=anew))
        assert sorted(_list_ids(journal, user="alice")) == ["a1", "a2"]
        assert _list_ids(journal, user="bob") == ["b1"]
        assert _list_ids(journal, user="nobody") == []
        paged = [_session_id(row) for row in _iterate_pages(journal, 1, user="alice")]
        assert paged == _list_ids(journal, user="alice")

    def test_whoever_was_erased_is_found_no_more_and_their_sessions_stay(
        self, writer: Writer, journal: Journal
    ) -> None:
        for name in ("alice", "bob"):
            _open_session(Writer(journal, user=name, ids=writer.env.ids), f"of {name}", title="secret")
        before = journal.sessions("default", SessionQuery())
        artifacts.erase_subject(writer.env, "alice")
        assert _list_ids(journal, user="alice") == []
        assert _list_ids(journal, user="bob") == ["of bob"]
        assert journal.sessions("default", SessionQuery()) == before
        require(journal, MAINTENANCE).rebuild()
        assert journal.sessions("default", SessionQuery()) == before
        _open_session(Writer(journal, user="alice", ids=writer.env.ids), "of another alice")
        assert _list_ids(journal, user="alice") == ["of another alice"]
        assert len({row.user for row in journal.sessions("default", SessionQuery())}) == 3

    def test_sessions_are_found_by_status(self, writer: Writer, journal: Journal) -> None:
        for status in STATUSES:
            _open_session(writer, status)
            _reach_status(writer, status)
        for status in STATUSES:
            (row,) = journal.sessions("default", SessionQuery(status=status))
            assert (row.stream, row.status) == (f"session/{status}", status)
        assert journal.sessions("default", SessionQuery(status="unknown")) == []
        assert sorted(row.status for row in _iterate_pages(journal, 3)) == sorted(STATUSES)

    def test_tenants_do_not_see_each_others_sessions(self, writer: Writer, journal: Journal) -> None:
        _open_session(Writer(journal, tenant="acme", user="carol"), "s", idle_timeout_ms=1)
        assert journal.sessions("default", SessionQuery()) == []
        assert journal.idle_sessions("default", 2**60, "", 10) == []
        _open_session(writer, "s", messages=2, idle_timeout_ms=1)
        _append_message(writer, "s")
        (ours,), (theirs,) = (journal.sessions(tenant, SessionQuery()) for tenant in ("default", "acme"))
        assert (ours.messages, theirs.messages) == (3, 1)
        assert journal.sessions("default", SessionQuery(user="carol")) == []
        assert journal.idle_sessions("default", 2**60, "", 10) == journal.idle_sessions("acme", 2**60, "", 10)
        assert journal.sessions("nobody", SessionQuery()) == []

    def test_a_session_is_idle_exactly_when_its_time_is_up(
        self, writer: Writer, journal: Journal, clock: FrozenClock
    ) -> None:
        _open_session(writer, "s", idle_timeout_ms=1_000)
        _open_session(writer, "for ever")
        began = clock.now_ms()
        clock.advance(400)
        _add_thread(writer, "s", "other", messages=1)
        for newest in (began + 400, clock.now_ms()):
            assert journal.idle_sessions("default", newest + 999, "", 10) == []
            assert journal.idle_sessions("default", newest + 1_000, "", 10) == ["session/s"]
        clock.advance(100)
        _append_message(writer, "s")
        assert journal.idle_sessions("default", began + 1_499, "", 10) == []
        assert journal.idle_sessions("default", began + 1_500, "", 10) == ["session/s"]
        settings = event_sessions.SessionOpened(idle_timeout_ms=2_000)
        writer.append("session/s", Draft(type="session.changed", facts=settings))
        assert journal.idle_sessions("default", began + 2_499, "", 10) == []
        assert journal.idle_sessions("default", began + 2_500, "", 10) == ["session/s"]

    def test_only_open_sessions_are_idle_and_listed_in_order_of_name(self, writer: Writer, journal: Journal) -> None:
        for status in STATUSES:
            _open_session(writer, status, idle_timeout_ms=1)
            _reach_status(writer, status)
        for name in ("c", "a", "b"):
            _open_session(writer, name, idle_timeout_ms=1)
        wanted = ["session/a", "session/b", "session/c", "session/open"]
        assert journal.idle_sessions("default", 2**60, "", 10) == wanted
        assert journal.idle_sessions("default", 2**60, "session/a", 2) == wanted[1:3]
        assert journal.idle_sessions("default", 2**60, "session/open", 2) == []


def _thread_stream(session: str, thread: str = "main") -> str:
    return Scope.thread(session, thread).text


def _make_messages(count: int, first: int = 1) -> list[Draft]:
    usage = Usage(input=10, output=2, cost=3)
    made = [event_sessions.MessageAppended(role="assistant", position=first + n, usage=usage) for n in range(count)]
    return [Draft(type="message.appended", facts=facts) for facts in made]


def _open_session(
    writer: Writer, session: str, *, messages: int = 1, title: str | None = None, **settings: Any
) -> None:
    texts = () if title is None else ("title",)
    content = None if title is None else event_sessions.SessionContent(title=title)
    opened = Draft(type="session.opened", facts=event_sessions.SessionOpened(texts=texts, **settings), content=content)
    _add_thread(writer, session, "main", messages=messages, before=(opened,))


def _add_thread(writer: Writer, session: str, thread: str, *, messages: int, before: tuple[Draft, ...] = ()) -> None:
    added = Draft(type="thread.added", facts=event_sessions.ThreadAdded(thread=thread))
    opened = Draft(type="thread.opened", facts=event_sessions.ThreadOpened())
    writer.write(
        StreamWrite(stream=Scope.session(session).text, events=(*before, added)),
        StreamWrite(stream=_thread_stream(session, thread), events=(opened, *_make_messages(messages))),
    )


def _append_message(writer: Writer, session: str) -> None:
    thread = writer.env.journal.load(writer.env.tenant, _thread_stream(session)).thread
    assert thread is not None
    writer.append(_thread_stream(session), *_make_messages(1, thread.messages + 1))


def _reach_status(writer: Writer, status: str) -> None:
    """Bring a session that is named after a status into that status."""
    reset = status == "ended"
    closing = Draft(type="session.closing", facts=event_sessions.SessionClosing(cause="close", reset=reset))
    closed = Draft(type="session.closed", facts=event_sessions.SessionClosedFacts(reset=reset))
    drafts = {"open": [], "closing": [closing], "ended": [closing, closed], "closed": [closing, closed]}[status]
    if drafts:
        writer.append(Scope.session(status).text, *drafts)


def _list_ids(journal: Journal, **query: Any) -> list[str]:
    return [_session_id(row) for row in journal.sessions("default", SessionQuery(**query))]


def _session_id(row: SessionRow) -> str:
    return str(parse_scope(row.stream).get("session"))


def _iterate_pages(journal: Journal, limit: int, **query: Any) -> Iterator[SessionRow]:
    wanted = SessionQuery(limit=limit, **query)
    while page := journal.sessions("default", wanted):
        assert len(page) <= limit
        assert page[0].place < wanted.before, "a page begins where the one before ended"
        yield from page
        wanted = replace(wanted, before=page[-1].place)

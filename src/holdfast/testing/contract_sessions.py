"""The contract of sessions: listed by activity, page by page, by user and status, and found when idle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.flow import erasing
from holdfast.flow.change import Decided
from holdfast.journal_port import Journal
from holdfast.records.events import conversations as said
from holdfast.records.events.envelope import Draft
from holdfast.records.rows import SessionQuery, SessionRow
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.usage import Usage
from holdfast.testing.clock import FrozenClock
from holdfast.testing.contract_kit import Fixtures, pushed
from holdfast.testing.writer import Writer

STATUSES = ("open", "closing", "ended", "closed")
STRANGE = ("a", "ab", "a/b", "a%2Fb", "née", "A", "a b", "..")
"""Ids that begin alike, or are written in another way within a stream's name."""


class SessionContract(Fixtures):
    """Sessions as lists show them."""

    @pytest.fixture
    def clock(self, writer: Writer) -> FrozenClock:
        """The writer's time, which is moved by hand."""
        clock = writer.ports.clock
        assert isinstance(clock, FrozenClock)
        return clock

    def test_the_most_recently_active_session_is_first(
        self, writer: Writer, journal: Journal, clock: FrozenClock
    ) -> None:
        for name in "abc":
            _open(writer, name)
            clock.advance(5)
        assert _names(journal) == ["c", "b", "a"]
        _say(writer, "a")
        assert _names(journal) == ["a", "c", "b"]
        clock.advance(5)
        # What is taken back, pinned or renamed is no sign of life.
        retracted = said.MessageRetracted(first=2, last=2, spans=((2, 2),))
        writer.append(_line("b"), Draft(type="message.retracted", facts=retracted))
        writer.append(Scope.session("c").text, Draft(type="session.changed", facts=said.SessionOpened(model="m")))
        assert _names(journal) == ["a", "c", "b"]
        assert [row.model for row in journal.sessions("default", SessionQuery())] == [None, "m", None]

    def test_sessions_of_one_moment_have_an_order_too(self, writer: Writer, journal: Journal) -> None:
        for name in STRANGE:
            _open(writer, name)
            _add(writer, name, "another", messages=1)
        assert _names(journal) == list(STRANGE[::-1])
        for limit in (1, 3):
            assert [_id(row) for row in _pages(journal, limit)] == list(STRANGE[::-1])

    def test_sessions_that_began_in_one_commit_are_told_apart(self, writer: Writer, journal: Journal) -> None:
        opened = Draft(type="session.opened", facts=said.SessionOpened(idle_timeout_ms=1))
        line = Draft(type="thread.opened", facts=said.ThreadOpened())
        parts = [(Scope.session(name).text, opened) for name in "abc"] + [(_line(name), line) for name in "abc"]
        writer.write(*(Decided(stream=stream, events=(draft,)) for stream, draft in parts))
        assert [_id(row) for row in _pages(journal, 1)] == ["c", "b", "a"]
        # One without a line has never been active: it is in no list, and is not idle.
        writer.append("session/without", opened)
        assert _names(journal) == ["c", "b", "a"]
        assert journal.idle_sessions("default", 2**60, "session/c", 10) == []

    @pytest.mark.parametrize("limit", [1, 2, 7])
    def test_pages_have_no_gaps_or_repeats_while_others_write(
        self, writer: Writer, journal: Journal, clock: FrozenClock, limit: int
    ) -> None:
        quiet = [f"quiet{number}" for number in range(9)]
        busy = [f"busy{number}" for number in range(4)]
        for name in (*quiet[:5], *busy, *quiet[5:]):
            _open(writer, name)
            clock.advance(3)
        seen: list[str] = []
        for number, row in enumerate(_pages(journal, limit)):
            seen.append(_id(row))
            clock.advance(3)
            _say(writer, busy[number % len(busy)])
            if number < 3:
                _open(writer, f"new{number}")
        assert [name for name in seen if name in quiet] == quiet[::-1]
        assert len(seen) == len(set(seen))
        assert not [name for name in seen if name.startswith("new")]

    def test_lines_are_counted_together_and_their_session_once(
        self, writer: Writer, journal: Journal, clock: FrozenClock
    ) -> None:
        _open(writer, "s", messages=2)
        _open(writer, "t", messages=1)
        opened = clock.now_ms()
        for thread in ("x", "y"):
            clock.advance(10)
            _add(writer, "s", thread, messages=3)
        newest = clock.now_ms()
        # Frames of an actor and messages of a frame are no lines of the session.
        clock.advance(10)
        writer.append("actor/a/session/s/thread/main", pushed(writer))
        ours, others = journal.sessions("default", SessionQuery())
        assert (ours.stream, ours.messages, ours.threads) == ("session/s", 8, 3)
        assert ours.usage == Usage(input=80, output=16, cost=24)
        assert (ours.opened_at, ours.active_at) == (opened, newest)
        assert (others.stream, others.messages, others.threads) == ("session/t", 1, 1)
        assert [row.stream for row in _pages(journal, 1)] == ["session/s", "session/t"]

    def test_sessions_are_found_by_whoever_opened_them(self, writer: Writer, journal: Journal) -> None:
        alice, bob = (Writer(journal, user=name, ids=writer.ports.ids) for name in ("alice", "bob"))
        for owner, name in ((alice, "a1"), (bob, "b1"), (writer, "n1"), (alice, "a2")):
            _open(owner, name)
            _add(owner, name, "another", messages=1)
        # Who says something later, or begins it anew, is not who opened it.
        _say(bob, "a1")
        for generation, owner in ((1, bob), (2, alice)):
            anew = said.SessionOpened(generation=generation)
            owner.append("session/a1", Draft(type="session.opened", facts=anew))
        assert sorted(_names(journal, user="alice")) == ["a1", "a2"]
        assert _names(journal, user="bob") == ["b1"]
        assert _names(journal, user="nobody") == []
        assert [_id(row) for row in _pages(journal, 1, user="alice")] == _names(journal, user="alice")

    def test_whoever_was_erased_is_found_no_more_and_their_sessions_stay(
        self, writer: Writer, journal: Journal
    ) -> None:
        for name in ("alice", "bob"):
            _open(Writer(journal, user=name, ids=writer.ports.ids), f"of {name}", title="secret")
        before = journal.sessions("default", SessionQuery())
        erasing.erase(writer.ports, writer.acting, "alice")
        assert _names(journal, user="alice") == []
        assert _names(journal, user="bob") == ["of bob"]
        assert journal.sessions("default", SessionQuery()) == before
        journal.rebuild()
        assert journal.sessions("default", SessionQuery()) == before
        _open(Writer(journal, user="alice", ids=writer.ports.ids), "of another alice")
        assert _names(journal, user="alice") == ["of another alice"]
        assert len({row.user for row in journal.sessions("default", SessionQuery())}) == 3

    def test_sessions_are_found_by_status(self, writer: Writer, journal: Journal) -> None:
        for status in STATUSES:
            _open(writer, status)
            _end(writer, status)
        for status in STATUSES:
            (row,) = journal.sessions("default", SessionQuery(status=status))
            assert (row.stream, row.status) == (f"session/{status}", status)
        assert journal.sessions("default", SessionQuery(status="unknown")) == []
        assert sorted(row.status for row in _pages(journal, 3)) == sorted(STATUSES)

    def test_tenants_do_not_see_each_others_sessions(self, writer: Writer, journal: Journal) -> None:
        _open(Writer(journal, tenant="acme", user="carol"), "s", idle_timeout_ms=1)
        assert journal.sessions("default", SessionQuery()) == []
        assert journal.idle_sessions("default", 2**60, "", 10) == []
        _open(writer, "s", messages=2, idle_timeout_ms=1)
        _say(writer, "s")
        (ours,), (theirs,) = (journal.sessions(tenant, SessionQuery()) for tenant in ("default", "acme"))
        assert (ours.messages, theirs.messages) == (3, 1)
        assert journal.sessions("default", SessionQuery(user="carol")) == []
        assert journal.idle_sessions("default", 2**60, "", 10) == journal.idle_sessions("acme", 2**60, "", 10)
        assert journal.sessions("nobody", SessionQuery()) == []

    def test_a_session_is_idle_exactly_when_its_time_is_up(
        self, writer: Writer, journal: Journal, clock: FrozenClock
    ) -> None:
        _open(writer, "s", idle_timeout_ms=1_000)
        _open(writer, "for ever")
        began = clock.now_ms()
        clock.advance(400)
        _add(writer, "s", "other", messages=1)
        for newest in (began + 400, clock.now_ms()):
            assert journal.idle_sessions("default", newest + 999, "", 10) == []
            assert journal.idle_sessions("default", newest + 1_000, "", 10) == ["session/s"]
        clock.advance(100)
        _say(writer, "s")
        assert journal.idle_sessions("default", began + 1_499, "", 10) == []
        assert journal.idle_sessions("default", began + 1_500, "", 10) == ["session/s"]
        settings = said.SessionOpened(idle_timeout_ms=2_000)
        writer.append("session/s", Draft(type="session.changed", facts=settings))
        assert journal.idle_sessions("default", began + 2_499, "", 10) == []
        assert journal.idle_sessions("default", began + 2_500, "", 10) == ["session/s"]

    def test_only_open_sessions_are_idle_and_listed_in_order_of_name(self, writer: Writer, journal: Journal) -> None:
        for status in STATUSES:
            _open(writer, status, idle_timeout_ms=1)
            _end(writer, status)
        for name in ("c", "a", "b"):
            _open(writer, name, idle_timeout_ms=1)
        wanted = ["session/a", "session/b", "session/c", "session/open"]
        assert journal.idle_sessions("default", 2**60, "", 10) == wanted
        assert journal.idle_sessions("default", 2**60, "session/a", 2) == wanted[1:3]
        assert journal.idle_sessions("default", 2**60, "session/open", 2) == []


def _line(session: str, thread: str = "main") -> str:
    return Scope.thread(session, thread).text


def _messages(count: int, first: int = 1) -> list[Draft]:
    usage = Usage(input=10, output=2, cost=3)
    made = [said.MessageAppended(role="assistant", position=first + n, usage=usage) for n in range(count)]
    return [Draft(type="message.appended", facts=facts) for facts in made]


def _open(writer: Writer, session: str, *, messages: int = 1, title: str | None = None, **settings: Any) -> None:
    texts = () if title is None else ("title",)
    content = None if title is None else said.SessionContent(title=title)
    opened = Draft(type="session.opened", facts=said.SessionOpened(texts=texts, **settings), content=content)
    _add(writer, session, "main", messages=messages, before=(opened,))


def _add(writer: Writer, session: str, thread: str, *, messages: int, before: tuple[Draft, ...] = ()) -> None:
    added = Draft(type="thread.added", facts=said.ThreadAdded(thread=thread))
    opened = Draft(type="thread.opened", facts=said.ThreadOpened())
    writer.write(
        Decided(stream=Scope.session(session).text, events=(*before, added)),
        Decided(stream=_line(session, thread), events=(opened, *_messages(messages))),
    )


def _say(writer: Writer, session: str) -> None:
    line = writer.ports.journal.load(writer.acting.tenant, _line(session)).line
    assert line is not None
    writer.append(_line(session), *_messages(1, line.messages + 1))


def _end(writer: Writer, status: str) -> None:
    """Bring a session that is named after a status into it."""
    reset = status == "ended"
    closing = Draft(type="session.closing", facts=said.SessionClosing(cause="close", reset=reset))
    closed = Draft(type="session.closed", facts=said.SessionClosed(reset=reset))
    drafts = {"open": [], "closing": [closing], "ended": [closing, closed], "closed": [closing, closed]}[status]
    if drafts:
        writer.append(Scope.session(status).text, *drafts)


def _names(journal: Journal, **query: Any) -> list[str]:
    return [_id(row) for row in journal.sessions("default", SessionQuery(**query))]


def _id(row: SessionRow) -> str:
    return str(parse_scope(row.stream).get("session"))


def _pages(journal: Journal, limit: int, **query: Any) -> Iterator[SessionRow]:
    wanted = SessionQuery(limit=limit, **query)
    while page := journal.sessions("default", wanted):
        assert len(page) <= limit
        assert page[0].place < wanted.before, "a page begins where the one before ended"
        yield from page
        wanted = replace(wanted, before=page[-1].place)

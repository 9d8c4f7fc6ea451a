"""Sessions and lines: what folding their events gives is what their rows give, at every version."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.journal.fold import fold_facts
from holdfast.core.journal.load import build_state
from holdfast.core.journal.project import project_event
from holdfast.core.journal.row_changes import RowChangeSet, ShadowRows
from holdfast.core.journal.tables import PROJECTIONS, SESSION_TABLES, THREAD_TABLES, stream_kind
from holdfast.errors import Corrupt
from holdfast.records.batches import Head, Row, RowUpdate
from holdfast.records.events import sessions as said
from holdfast.records.frames import StreamState
from holdfast.records.sessions import SessionState, ThreadState
from holdfast.records.usage import Usage
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.testing.generate_sessions import SessionGenerator
from tests.scale import seeded, volume

CALL = "01JXT21Q00YR8VZHTCN7CAP2SK"
OTHER = "01JXT21Q00YR8VZHTCN7CAP2SM"
LINE, SESSION = "session/s/thread/main", "session/s"


class Stream:
    """One stream as it is folded, and as its rows are, event by event."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state = StreamState()
        self.rows = ShadowRows()

    def take(self, type: str, facts: Any, at: int = 0) -> StreamState:
        version = self.state.version + 1
        for change in project_event(type, facts, version, at):
            self.rows.apply(change)
        self.state = fold_facts(self.state, type, facts, version, at)
        return self.state

    def loaded(self) -> StreamState:
        names = SESSION_TABLES if stream_kind(self.name) == "session" else THREAD_TABLES
        kept = {table.name: [] for table in PROJECTIONS if "frame_id" in table.column_names}
        rows = {name: list(self.rows.rows(name).values()) for name in names}
        head = Head(id=1, stream=self.name, version=self.state.version, hash=b"", epoch=self.state.epoch)
        return build_state(replace(head, holder=self.state.holder), {**kept, **rows})

    def row(self, table: str) -> Row:
        (row,) = self.rows.rows(table).values()
        return row


def _events(story: SessionGenerator, steps: int) -> Iterator[tuple[str, str, Any]]:
    for _ in range(steps):
        for part in story.step():
            yield from ((part.stream, draft.type, draft.facts) for draft in part.events)


def test_rows_give_what_folding_gives_after_every_event() -> None:
    random = seeded("lines")
    for number in range(volume(8, 200)):
        ids = SeededIds(FrozenClock(), seed=number)
        streams: dict[str, Stream] = {}
        story = SessionGenerator(random, ids, "s", endings=0.3)
        for at, (name, type, facts) in enumerate(_events(story, 60)):
            stream = streams.setdefault(name, Stream(name))
            stream.take(type, facts, at)
            assert stream.loaded() == stream.state, (name, type)


def test_changes_of_many_events_come_to_the_same_at_once() -> None:
    random = seeded("coalesced lines")
    for number in range(volume(4, 100)):
        one_by_one, at_once, pending = ShadowRows(), ShadowRows(), RowChangeSet()
        story = SessionGenerator(random, SeededIds(FrozenClock(), seed=number), "s", endings=0.3)
        events = [(type, facts) for name, type, facts in _events(story, 60) if name == LINE]
        for version, (type, facts) in enumerate(events, 1):
            for change in project_event(type, facts, version, version):
                one_by_one.apply(change)
                pending.add((1, 1), change)
        for table in PROJECTIONS:
            for _, change in pending.changes(table.name):
                at_once.apply(change)
            assert at_once.rows(table.name) == one_by_one.rows(table.name)


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        ("session/s", "session"),
        ("session/s/thread/main", "thread"),
        ("frame/01JXT21Q00YR8VZHTCN7CAP2SK", "thread"),
        ("actor/a", None),
        ("actor/a/session/s/thread/main", None),
        ("user/u/session/s", None),
        ("session/s/thread/main/custom/c/id/1", None),
        ("global", None),
    ],
)
def test_only_sessions_and_their_lines_have_rows_of_their_own(stream: str, kind: str | None) -> None:
    assert stream_kind(stream) == kind


def test_settings_that_are_not_given_keep_their_value() -> None:
    stream = Stream(SESSION)
    stream.take("session.opened", said.SessionOpened(model="m", idle_timeout_ms=5, texts=("title", "system")), 100)
    stream.take("session.changed", said.SessionOpened(tokenizer="t", texts=("title",)), 200)
    stream.take("session.changed", said.SessionOpened())
    wanted = SessionState(opened_at=100, model="m", tokenizer="t", idle_timeout_ms=5, system=1, title=2)
    assert stream.state.session == wanted
    assert project_event("session.changed", said.SessionOpened(), 3, 0) == []
    stream.take("session.closed", said.SessionClosedFacts(reset=True))
    stream.take("session.opened", said.SessionOpened(generation=1), 900)
    assert stream.state.session == replace(wanted, generation=1)
    assert stream.loaded() == stream.state


def test_a_hand_over_waits_until_it_is_taken_or_given_up() -> None:
    stream = Stream(SESSION)
    stream.take("session.opened", said.SessionOpened())
    for handover in (CALL, OTHER):
        stream.take("session.closing", said.SessionClosing(cause="close", handover=handover))
    stream.take("session.offered", said.SessionOffered(handover=CALL, taken=False, attempts=1))
    assert stream.state.session is not None
    assert {id: one.attempts for id, one in stream.state.session.handovers.items()} == {CALL: 1, OTHER: 0}
    stream.take("session.offered", said.SessionOffered(handover=CALL, taken=False, attempts=2, given_up=True))
    stream.take("session.offered", said.SessionOffered(handover=OTHER, taken=True))
    assert stream.state.session.handovers == {}
    assert stream.loaded() == stream.state


def test_usage_adds_up_and_an_unknown_cost_is_told() -> None:
    stream = Stream(LINE)
    stream.take("thread.opened", said.ThreadOpened())
    for cost in (5, None, 7):
        usage = Usage(input=10, cached_input=1, cache_write=2, output=3, reasoning=4, cost=cost, model="m")
        stream.take("message.appended", said.MessageAppended(role="assistant", usage=usage))
    assert stream.state.thread is not None
    assert stream.state.thread.usage == Usage(
        input=30, cached_input=3, cache_write=6, output=9, reasoning=12, cost=12, model=None, unpriced=13
    )
    assert stream.loaded() == stream.state


def test_an_answer_ends_the_waiting_of_its_calls_alone() -> None:
    stream = Stream(LINE)
    stream.take("thread.opened", said.ThreadOpened())
    calls = ((CALL, "p"), (OTHER, "p"))
    stream.take("message.appended", said.MessageAppended(role="assistant", position=1, calls=calls))
    stream.take("message.appended", said.MessageAppended(role="tool", position=2, round=2, answers=(CALL,)))
    assert stream.state.thread is not None
    assert stream.state.thread.calls == {OTHER: said.CallRef(OTHER, 2, "p")}
    assert [row["round"] for row in stream.rows.rows("messages").values()] == [2, 2]
    retracted = said.MessageRetracted(
        first=3, last=3, spans=((3, 3),), position=1, newest=2, opened=(said.CallRef(CALL, 2, "p"),)
    )
    stream.take("message.retracted", retracted)
    assert stream.state.thread.calls.keys() == {CALL, OTHER}
    assert (stream.state.thread.messages, stream.state.thread.newest) == (1, 2)
    assert [row["retracted"] for row in stream.rows.rows("messages").values()] == [None, 4]
    assert stream.loaded() == stream.state


def test_pins_and_counts_change_rows_and_no_state() -> None:
    stream = Stream(LINE)
    stream.take("thread.opened", said.ThreadOpened())
    before = stream.take("message.appended", said.MessageAppended(role="user", policy="pinned"), 5)
    assert stream.row("messages")["pinned"] == 1
    stream.take("message.pinned", said.MessagePinned(version=2, pinned=False), 9)
    assert stream.row("messages")["pinned"] == 0
    # Counts for which there is no message are left out, not guessed.
    counted = said.TokensCounted(tokenizer="t", versions=(2, 3), counts=(7,))
    after = stream.take("tokens.counted", counted, 9)
    assert stream.row("message_counts") == {"tokenizer": "t", "version": 2, "tokens": 7}
    assert after == replace(before, version=4)


def test_a_summary_retires_those_that_it_replaces() -> None:
    stream = Stream(LINE)
    stream.take("thread.opened", said.ThreadOpened())
    for replaces in ((), (), (2, 3)):
        facts = said.SummaryMade(summary=CALL, first=1, last=1, at_version=1, replaces=replaces)
        stream.take("summary.made", facts)
    assert [row["retired"] for row in stream.rows.rows("summaries").values()] == [4, 4, None]
    assert stream.state.thread is not None
    assert stream.state.thread.edited == 4


def test_a_reset_line_begins_with_nothing_before_it() -> None:
    stream = Stream(LINE)
    shared = (said.SharedSegment("session/s/thread/other", 0, 9, 9),)
    forked = said.ThreadForked(parent="session/s/thread/other", version=9, shared=shared, position=4)
    stream.take("thread.forked", forked, 1)
    stream.take("message.appended", said.MessageAppended(role="user", position=5), 2)
    stream.take("thread.ended", said.ThreadEnded(reset=True), 3)
    assert stream.state.thread == ThreadState(newest_at=2, floor=3, edited=3, ended=True, fresh=True)
    stream.take("thread.opened", said.ThreadOpened(generation=1), 4)
    assert stream.state.thread == ThreadState(newest_at=4, floor=3, edited=3, generation=1)
    assert stream.loaded() == stream.state


def test_a_line_that_is_closed_for_good_is_not_fresh() -> None:
    stream = Stream(LINE)
    stream.take("thread.opened", said.ThreadOpened())
    stream.take("thread.ended", said.ThreadEnded(reset=True))
    stream.take("thread.ended", said.ThreadEnded(reset=False))
    assert stream.loaded() == stream.state
    assert stream.state.thread is not None
    assert (stream.state.thread.ended, stream.state.thread.fresh) == (True, False)


@pytest.mark.parametrize(
    ("type", "facts"),
    [
        ("session.changed", said.SessionOpened(model="m")),
        ("session.opened", said.SessionOpened(generation=1)),
        ("session.closing", said.SessionClosing(cause="close")),
        ("session.offered", said.SessionOffered(handover=CALL, taken=True)),
        ("session.closed", said.SessionClosedFacts()),
        ("thread.opened", said.ThreadOpened(generation=1)),
        ("thread.ended", said.ThreadEnded()),
        ("message.retracted", said.MessageRetracted(first=1, last=1)),
        ("message.appended", said.MessageAppended(role="user")),
        ("summary.made", said.SummaryMade(summary=CALL, first=1, last=1, at_version=1)),
    ],
)
def test_what_never_began_is_not_made_up(type: str, facts: Any) -> None:
    assert fold_facts(StreamState(), type, facts, 1, 0) == StreamState(version=1)
    rows = ShadowRows()
    for change in project_event(type, facts, 1, 0):
        rows.apply(change)
    assert not rows.rows("sessions")
    assert not rows.rows("threads")


@pytest.mark.parametrize(
    ("table", "values"),
    [
        ("threads", {"shared": "[[1"}),
        ("threads", {"shared": '[["s","a",1,1]]'}),
        ("message_calls", {"call_id": b"short"}),
    ],
)
def test_rows_that_cannot_be_are_corruption(table: str, values: dict[str, Any]) -> None:
    stream = Stream(LINE)
    stream.take("thread.opened", said.ThreadOpened())
    stream.take("message.appended", said.MessageAppended(role="assistant", calls=((CALL, None),)))
    (key,) = stream.rows.rows(table)
    stream.rows.apply(RowUpdate(table, key, values))
    with pytest.raises(Corrupt, match="do not fit together"):
        stream.loaded()

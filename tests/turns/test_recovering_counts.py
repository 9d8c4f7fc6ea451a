"""What a look costs: it follows what changed since the last one, and not how many conversations wait for a person."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from bench.counting import counting
from holdfast import Holdfast
from holdfast.flow.frames.read import PAGE
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.flow.turns.runnable import RunnableTurnWatch, StreamReadiness
from holdfast.records.batches import HeadQuery
from holdfast.records.events.envelope import Draft
from holdfast.testing.clock import FrozenClock
from tests.scale import volume
from tests.turns.loops import place

FEW, MANY = 100, volume(2_000, 10_000)
PER_PAGE = 2
"""Statements: streams with their versions, and the versions of their lines."""
AT_ONCE = 50
HOUR = 3_600_000


def numbered(id: str, number: int) -> str:
    """An id that was minted, with another end."""
    return f"{id[:20]}{number:06d}"


class Waiting:
    """Conversations that wait for a person, each with a time after which its question counts as answered with a no."""

    def __init__(self, path: Path, count: int) -> None:
        self.clock = FrozenClock()
        self.hf: Holdfast = holdfast.open(path, clock=self.clock, durability="fast")
        with self.hf.session("s0").turn("Hello") as turn:
            self.hf.index.suspend_frame(turn.id, "Sure?", expires_ms=HOUR, on_expiry="fail")
        self.question = next(iter(self.hf.questions())).id
        streams = ("session/s0", "session/s0/thread/main", place("s0"))
        self._lived = {stream: list(self.hf.journal.events(stream)) for stream in streams}
        names = [f"s{number}" for number in range(1, count)]
        for first in range(0, len(names), AT_ONCE):
            append_events(self.hf.env, self._copies(names[first : first + AT_ONCE]))
        self.pages, self.count = math.ceil(count / PAGE), count
        self.watching = RunnableTurnWatch(self.hf.env, None, ["default"])

    def _copies(self, names: list[str]) -> list[StreamWrite]:
        """The first conversation once more under other names, event by event: quicker than living each of them."""
        return [
            StreamWrite(stream=stream.replace("s0", name), events=tuple(self._copy(event, name) for event in events))
            for name in names
            for stream, events in self._lived.items()
        ]

    def _copy(self, event: Any, name: str) -> Draft:
        changed = {}
        for field in ("frame", "question"):
            if getattr(event.facts, field, None) is not None:
                changed[field] = numbered(getattr(event.facts, field), int(name[1:]))
        if getattr(event.facts, "conversation", None) is not None:
            changed["conversation"] = event.facts.conversation.replace("s0", name)
        return Draft(type=event.type, facts=msgspec.structs.replace(event.facts, **changed), content=event.content)

    def look(self) -> tuple[int, float]:
        """How many turns can go on, and how many statements it took to know that."""
        with counting(self.hf.env.journal) as counts:
            found = self.watching.find_runnable_turns()
        return len(found), counts.statements


@pytest.fixture(scope="module", params=[FEW, MANY])
def waiting(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Waiting]:
    made = Waiting(tmp_path_factory.mktemp("waiting") / "a.db", request.param)
    assert len(list(made.hf.env.journal.heads("default", HeadQuery(live=True, limit=100_000)))) == made.count
    found, first = made.look()
    assert found == 0
    assert first >= made.count, "the first look sees each of them"
    yield made
    made.hf.close()


def test_a_look_reads_nothing_of_what_waits_while_nothing_is_written(waiting: Waiting) -> None:
    waiting.look()
    for _ in range(3):
        waiting.clock.advance(1_000)
        assert waiting.look() == (0, 0)


def test_a_look_reads_versions_page_by_page_while_others_write(waiting: Waiting) -> None:
    for _ in range(3):
        waiting.hf.journal.append("elsewhere", "app.noted", {"text": "nothing to do with it"})
        waiting.clock.advance(1_000)
        assert waiting.look() == (0, PER_PAGE * waiting.pages)


def test_another_tenant_that_writes_costs_no_more(waiting: Waiting) -> None:
    waiting.hf.tenant("acme").session("s").append("Hello")
    assert waiting.look() == (0, PER_PAGE * waiting.pages)


def test_what_changed_is_looked_at_and_nothing_else_is(waiting: Waiting) -> None:
    session = waiting.hf.session("s1")
    session.append("By the way")
    first = waiting.look()
    session.append("And this")
    again = waiting.look()
    assert first[0] == again[0] == 0
    assert PER_PAGE * waiting.pages < again[1] <= PER_PAGE * waiting.pages + 20


def test_an_answer_is_found_among_all_that_wait(waiting: Waiting) -> None:
    waiting.hf.answer(numbered(waiting.question, 2), approve=True)
    found, statements = waiting.look()
    assert (found, statements <= PER_PAGE * waiting.pages + 20) == (1, True)
    assert waiting.look() == (1, 1), "as long as nobody took it up, one asks again whether it is free"
    with waiting.hf.session("s2").turn():
        pass
    waiting.hf.session("s2").stop()
    assert waiting.look()[0] == 0


def test_only_those_whose_time_has_come_are_looked_at(waiting: Waiting) -> None:
    waiting.hf.index.suspend_frame(
        waiting.hf.index.push_frame("soon", scope="actor/own"), "Then?", expires_ms=10_000, on_expiry="fail"
    )
    waiting.look()
    assert waiting.look() == (0, 0)
    waiting.clock.advance(10_001)
    found, statements = waiting.look()
    assert (found, 0 < statements <= 2 * PER_PAGE * waiting.pages + 40) == (0, True)
    assert list(waiting.hf.index.stack("actor/own")) == []


def test_who_remembers_nothing_pays_for_all_that_is_live(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made = Waiting(tmp_path / "a.db", FEW)
    monkeypatch.setattr(StreamReadiness, "is_current", lambda self, versions, now, held: False)
    costs = [made.look()[1] for _ in range(3)]
    made.hf.close()
    assert min(costs) >= FEW

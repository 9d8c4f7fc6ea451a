"""What the text index asks of SQLite, in counts: an append stays bounded, a search follows its place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from bench.counting import Counts, counting
from holdfast import Holdfast, Session, Settings
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.scale import seeded, volume

SMALL, LARGE = volume(256, 1_024), volume(4_096, 65_536)
EACH = 64
"""Appends that are counted: a power of two, so that small merges occur equally often."""


def _sentence() -> str:
    chance = seeded("words of the index")
    return " ".join("".join(chance.choices("abcdefghij", k=chance.randrange(3, 9))) for _ in range(40))


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Holdfast]:
    clock = FrozenClock()
    path = tmp_path_factory.mktemp("counts") / "a.db"
    with holdfast.open(path, durability="fast", clock=clock, ids=SeededIds(clock, seed=1), tokenizer=len) as hf:
        yield hf


def _fill(chat: Session, size: int) -> None:
    chance = seeded("filling")
    vocabulary = ["".join(chance.choices("abcdefghijklmnop", k=6)) for _ in range(3_000)]
    while len(chat) < size:
        chat.append([" ".join(chance.choices(vocabulary, k=30)) for _ in range(min(256, size - len(chat)))])


def _appended(chat: Session) -> Counts:
    total = Counts()
    words = _sentence()
    for number in range(EACH):
        with counting(chat._env.journal) as counts:
            chat.append(f"{words} {number}")
        for name in Counts.__struct_fields__:
            setattr(total, name, getattr(total, name) + getattr(counts, name))
    return total.per(EACH)


def test_an_append_costs_the_same_with_the_index_and_without_and_after_a_long_conversation(
    opened: Holdfast, tmp_path: Path
) -> None:
    chat = opened.session("long")
    found = []
    for size in (SMALL, LARGE):
        _fill(chat, size)
        chat.search("so that nothing is pending")
        chat.append("warm")
        found.append(_appended(chat))
    few, many = found
    assert many.calls == few.calls
    assert many.statements == few.statements
    assert many.pages <= few.pages * 1.1, found
    with holdfast.open(tmp_path / "without.db", durability="fast", settings=Settings(index_text=0)) as hf:
        _fill(hf.session("long"), SMALL)
        hf.session("long").append("warm")
        without = _appended(hf.session("long"))
    assert (without.calls, without.statements) == (few.calls, few.statements)


def test_a_search_in_one_session_looks_at_no_more_because_of_others(opened: Holdfast) -> None:
    small = opened.session("small")
    small.append(["the parcel went to Hull", "nobody had heard of it", "it came back from Hull"])
    found = []
    for size in (SMALL, LARGE):
        other = opened.session("other")
        chance = seeded("others")
        while len(other) < size:
            other.append([f"a parcel for {chance.random()}" for _ in range(min(256, size - len(other)))])
        with counting(opened.env.journal) as counts:
            assert [hit.value.text for hit in small.search("parcel Hull")]
        found.append(counts)
    few, many = found
    # An index that is sixteen or sixty-four times as large has a few more pieces to look into, and deeper ones.
    assert many.calls == few.calls
    assert many.statements <= few.statements * 2.5, found
    assert many.pages_read <= few.pages_read * 3, found

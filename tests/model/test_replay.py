"""Replay equality: whatever happened, what is derived is what the events give."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from holdfast.flow import erasing
from holdfast.flow.change import Decided
from holdfast.flow.verify import verify
from holdfast.journal.memory import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports import Journal
from holdfast.testing.journal_contract import dump
from holdfast.testing.stories import Story
from holdfast.testing.writer import Writer
from tests.scale import seeded, volume


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_rebuilt_equals_live_after_many_random_operations_and_erasures(tmp_path: Path, backend: str) -> None:
    random = seeded("replay")
    journal = MemoryJournal() if backend == "memory" else SqliteJournal(tmp_path / "a.db", durability="fast")
    operations = volume(5_000, 50_000)
    subjects = tuple(f"user{number}" for number in range(20))
    writer = Writer(journal)
    stories = [Story(random, writer.ports.ids, subjects) for _ in range(25)]
    for number in range(operations // 4):
        # Four streams at a time: as many operations, a quarter of the commits.
        picked = random.sample(range(len(stories)), 4)
        writer.write(*(_part(f"actor/a{index}", stories[index]) for index in picked))
        if number % (operations // 40) == 7:
            erasing.erase(writer.ports, writer.acting, _known(journal, random))
    live = dump(journal)
    report = verify(writer.ports)
    assert report.findings == ()
    assert report.events >= operations
    journal.rebuild()
    assert dump(journal) == live
    journal.close()


def _part(stream: str, story: Story) -> Decided:
    return Decided(stream=stream, events=tuple(story.step()))


def _known(journal: Journal, random: Random) -> str:
    return random.choice([subject.name for subject in journal.subjects("default") if subject.name is not None])

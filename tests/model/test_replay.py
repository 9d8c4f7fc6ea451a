"""Replay equality: whatever happened, what is derived is what the events give."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

import holdfast
from holdfast.client.holdfast import Holdfast
from holdfast.flow.journal import artifacts
from holdfast.flow.journal.append import StreamWrite
from holdfast.flow.journal.verify import verify
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.testing.clock import FrozenClock
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.generate_sessions import SessionGenerator, check_session
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.writer import Writer
from tests.scale import seeded, volume

SUBJECTS = tuple(f"user{number}" for number in range(20))


def _journal(tmp_path: Path, backend: str) -> Journal:
    return MemoryJournal() if backend == "memory" else SqliteJournal(tmp_path / "a.db", durability="fast")


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_rebuilt_equals_live_after_many_random_operations_and_erasures(tmp_path: Path, backend: str) -> None:
    random = seeded("replay")
    journal = _journal(tmp_path, backend)
    operations = volume(5_000, 50_000)
    writer = Writer(journal)
    stories = [FrameGenerator(random, writer.env.ids, SUBJECTS) for _ in range(25)]
    for number in range(operations // 4):
        # Four streams at a time: as many operations, a quarter of the commits.
        picked = random.sample(range(len(stories)), 4)
        writer.write(*(_part(f"actor/a{index}", stories[index]) for index in picked))
        if number % (operations // 40) == 7:
            artifacts.erase_subject(writer.env, _known(journal, random))
    live = dump_projections(journal)
    report = verify(writer.env)
    assert report.findings == ()
    assert report.events >= operations
    journal.rebuild()
    assert dump_projections(journal) == live
    journal.close()


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_conversations_are_told_rebuilt_and_folded_alike_whoever_was_erased(tmp_path: Path, backend: str) -> None:
    random = seeded("replay of conversations")
    journal, clock = _journal(tmp_path, backend), FrozenClock()
    writer = Writer(journal, clock=clock)
    steps = volume(1_200, 24_000)
    stories = [SessionGenerator(random, writer.env.ids, f"s{number}", SUBJECTS) for number in range(steps // 60)]
    for number in range(steps // 12):
        clock.advance(7)
        picked = random.sample(stories, 4)
        writer.write(*(part for story in picked for part in story.step(3)))
        if number % (steps // 60) == 7:
            artifacts.erase_subject(writer.env, _known(journal, random))
    stories = [story for story in stories if story.threads]
    for story in stories:
        check_session(writer.env, story)
    live = dump_projections(journal)
    # Verifying compares every row with what the events project, and every state with what they fold.
    report = verify(writer.env)
    assert report.findings == ()
    assert report.events >= steps
    assert journal.rebuild() == report.events
    assert dump_projections(journal) == live
    for story in stories[:3]:
        check_session(writer.env, story)
    journal.close()


@pytest.mark.parametrize("backend", ["memory", "sqlite"])
def test_a_conversation_whose_every_word_is_erased_is_still_one(tmp_path: Path, backend: str) -> None:
    journal = _journal(tmp_path, backend)
    writer = Writer(journal)
    story = SessionGenerator(seeded("erased"), writer.env.ids, "s", ("alice",))
    while not (story.status == "open" and any(len(line.messages) > 20 for line in story.threads.values())):
        writer.write(*story.step(5))
    before = dump_projections(journal)
    artifacts.erase_subject(writer.env, "alice")
    journal.rebuild()
    assert dump_projections(journal) == before
    assert verify(writer.env).findings == ()
    check_session(writer.env, story)
    client = Holdfast(writer.env, owner=False)
    for thread, line in story.threads.items():
        chat = client.session("s", thread=thread, create=False)
        assert len(chat) == len(chat.messages()) == len(line.messages)
        assert all(one.erased for one in chat.messages())
        shown = str(chat.pack(8_000).messages)
        assert "erased" in shown or not line.messages
        assert not [word for word in ("allergic to nuts", "order 17", "東京") if word in shown]
        if not line.ended:
            chat.append("And on it goes.")
            assert chat.messages(1)[0].text == "And on it goes."
    assert verify(writer.env).findings == ()
    journal.close()


def test_an_exported_conversation_reads_the_same_elsewhere(tmp_path: Path) -> None:
    journal = MemoryJournal()
    writer = Writer(journal)
    story = SessionGenerator(seeded("export"), writer.env.ids, "s", ("alice", "bob"))
    for _ in range(12):
        writer.write(*story.step(10))
    Holdfast(writer.env, owner=False).journal.export(tmp_path / "a.jsonl")
    with holdfast.open(tmp_path / "b.db", durability="fast") as hf:
        hf.journal.import_(tmp_path / "a.jsonl")
        assert dump_projections(hf.env.journal) == dump_projections(journal)
        check_session(hf.env, story)
        assert hf.journal.verify().findings == ()


def _part(stream: str, story: FrameGenerator) -> StreamWrite:
    return StreamWrite(stream=stream, events=tuple(story.step()))


def _known(journal: Journal, random: Random) -> str:
    return random.choice([subject.name for subject in journal.subjects("default") if subject.name is not None])

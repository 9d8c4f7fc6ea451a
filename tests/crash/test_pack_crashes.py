"""Kill before and after every port call of packing and of journaling a pack: all of it is there, or nothing.

The pack and the request lie in two streams, and copies of files beside the database. A retry with the key gives the
call that the dead process began, if it began one, and what that was shown is shown again.
"""

from __future__ import annotations

import itertools
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast, HoldfastError, Usage
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.extras.documents import DocumentRoot
from holdfast.flow.journal import artifacts
from holdfast.flow.packs import manifest
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock
from holdfast.testing.faults import FaultPoints, SimulatedDeath
from tests.packs.journaled import sent
from tests.scale import SOAK

SETTINGS = Settings(inline_artifact_bytes=100)
SCOPE = "actor/main/session/s/thread/main"
LINE = "session/s/thread/main"
WRITES = ("append", "artifact")
COMMIT = ["tokens.counted", "context.packed", "model.requested"]


class Place:
    """A folder of documents, and journals beside it that all begin alike."""

    def __init__(self, folder: Path, backend: str) -> None:
        self.folder, self.backend = folder, backend
        (folder / "docs").mkdir()
        (folder / "docs" / "a.md").write_text("a file that is kept beside the journal " * 10)
        self._numbers = itertools.count(1)
        self.first = MemoryJournal() if backend == "memory" else self._file(0)
        self.frame = self._setup(self.client(self.first))
        self.before = self.first.position()
        if backend == "sqlite":
            self.first.close()

    def _file(self, number: int) -> SqliteJournal:
        return SqliteJournal(self.folder / f"{number}.db", settings=SETTINGS, durability="fast")

    def client(self, journal: Any) -> Holdfast:
        """A process."""
        beside = ClientExtensions(documents=DocumentRoot(self.folder / "docs"))
        return Holdfast(assemble_env(journal, SETTINGS, FrozenClock(), None, beside))

    def make(self) -> Journal:
        if self.backend == "memory":
            journal = MemoryJournal()
            self._setup(self.client(journal))
            return journal
        number = next(self._numbers)
        shutil.copy(self.folder / "0.db", self.folder / f"{number}.db")
        return self._file(number)

    def _setup(self, hf: Holdfast) -> str:
        """A frame within a session, counts that nobody has made yet, and evidence of a file."""
        chat = hf.session("s", system="Be kind.", tokenizer="cl100k_base")
        chat.append(["one", "two", "three"])
        hf.session("s", tokenizer="o200k_base")
        frame = hf.index.push_frame("work", scope=SCOPE, frame_id="01JXT21Q00YJVQMYHEK2DM60V7")
        hf.index.add_handle(frame, "document", handle="file", target="file:a.md")
        hf.index.add_handle(frame, "event_ref", handle="body", body="evidence")
        return frame

    def work(self, journal: Any) -> tuple[Holdfast, str]:
        """What is killed: a pack is made and journaled."""
        hf = self.client(journal)
        pack = hf.index.assemble_context_pack(frame=self.frame)
        return hf, hf.index.begin_model_call(self.frame, pack, request={"n": 1}, key="call")

    def files(self, journal: Journal) -> int:
        """Copies that lie beside the database."""
        if not isinstance(journal, SqliteJournal):
            return 0
        return sum(path.is_file() for path in journal.files.folder.rglob("*"))


@pytest.fixture(params=["memory", "sqlite"])
def place(request: pytest.FixtureRequest, quick_path: Path) -> Place:
    return Place(quick_path, request.param)


def new(hf: Holdfast, after: int) -> list[str]:
    found = [event.type for event in hf.journal.events() if event.seq > after]
    return [name for name in found if not name.startswith("lease.")]


def deaths(place: Place, *, writes: bool) -> Iterator[tuple[str, Journal]]:
    """Die at each point once, or at those at which something is written; gives the point and what is left."""
    whole = place.make()
    passing: Any = FaultPoints(whole)
    place.work(passing)
    whole.close()
    for number, name in enumerate(passing.passed, 1):
        if writes and not any(kind in name for kind in WRITES):
            continue
        journal = place.make()
        points: Any = FaultPoints(journal, die_at=number)
        with pytest.raises(SimulatedDeath):
            place.work(points)
        assert points.passed == passing.passed[:number], "the work is not repeatable"
        yield f"{number}: {name}", journal
        journal.close()


def torture(place: Place, *, writes: bool) -> Counter[str]:
    rows: Counter[str] = Counter()
    for point, journal in deaths(place, writes=writes):
        hf = place.client(journal)
        found = new(hf, place.before)
        assert sorted(found) in ([], sorted(COMMIT)), point
        assert hf.journal.verify().findings == (), point
        torn = [call.id for call in hf.index.get_frame(place.frame).calls]
        assert len(torn) == (1 if found else 0), point
        # What the dead process was about to send can be sent again, before anything is retried.
        shown = [sent(hf.index.pack_at(call)) for call in torn]
        _, call = place.work(journal)
        assert torn in ([], [call]), point
        hf = place.client(journal)
        assert sorted(new(hf, place.before)) == sorted(COMMIT), point
        pack = hf.index.pack_at(call)
        assert shown in ([], [sent(pack)]), point
        assert hf.index.get_frame(place.frame).context_hash == pack.digest, point
        assert [one.handle_id for one in pack.evidence] == ["body", "file"], point
        assert place.files(journal) == (place.backend == "sqlite"), point
        assert hf.journal.verify().findings == (), point
        rows["begun" if found else "nothing"] += 1
    return rows


def test_a_pack_and_its_call_are_journaled_together_or_not_at_all(place: Place) -> None:
    rows = torture(place, writes=place.backend == "sqlite" and not SOAK)
    assert rows["begun"] >= 1
    assert rows["nothing"] > (20 if place.backend == "memory" else 2)


def test_a_torn_call_goes_on_with_what_it_was_shown(place: Place) -> None:
    """Whatever was said, detached or changed meanwhile, also in files."""
    journal = place.make()
    hf, call = place.work(journal)
    before = sent(hf.index.pack_at(call))
    again = place.client(journal)
    again.session("s").append("meanwhile")
    (place.folder / "docs" / "a.md").write_text("another text")
    again.index.remove_handle(place.frame, "body")
    (pending,) = [work for work in again.index.resume_actor(SCOPE).pending if work.call]
    assert (pending.call, pending.if_interrupted, pending.unsafe_to_retry) == (call, "retry", False)
    assert sent(again.index.pack_at(call)) == before
    again.index.end_model_call(place.frame, call, usage=Usage(input=3), doubtful=Usage(input=3))
    assert again.index.resume_actor(SCOPE).pending == ()
    assert sent(again.index.pack_at(call)) == before
    (place.folder / "docs" / "a.md").write_text("a file that is kept beside the journal " * 10)
    journal.close()


# tests that can fail


def in_two_commits(patch: pytest.MonkeyPatch) -> None:
    """The pack first, then the request."""
    original = manifest.decide_and_append

    def change(env: Any, streams: Any, decide: Any, **given: Any) -> Any:
        line = streams[-1]
        original(env, streams, lambda states: {line: decide(states)[line]}, artifacts=given["artifacts"])
        return original(env, streams, lambda states: {streams[0]: decide(states)[streams[0]]}, **given)

    patch.setattr(manifest, "decide_and_append", change)


def key_forgotten(patch: pytest.MonkeyPatch) -> None:
    original = manifest.decide_and_append
    patch.setattr(manifest, "decide_and_append", lambda *args, key=None, **given: original(*args, **given))


def copy_forgotten(patch: pytest.MonkeyPatch) -> None:
    """What a file said is not kept."""
    patch.setattr(manifest, "is_copy", lambda piece: False)
    patch.setattr(artifacts, "withdraw_artifacts", lambda *given: None)


@pytest.mark.parametrize("plant", [in_two_commits, key_forgotten, copy_forgotten])
def test_a_planted_bug_is_caught(plant: Any, monkeypatch: pytest.MonkeyPatch, quick_path: Path) -> None:
    place = Place(quick_path, "memory")
    with monkeypatch.context() as patch:
        plant(patch)
        with pytest.raises((AssertionError, HoldfastError)):
            torture(place, writes=True)

"""Looking at a whole journal while others write: one moment, no false alarm, nothing torn."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import holdfast
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.writer import Writer
from tests.scale import seeded, volume

ROUNDS = volume(6, 60)


@contextmanager
def busy(hf: holdfast.Holdfast) -> Iterator[None]:
    """Two threads that write frames, notes, artifacts and new streams all the time."""
    stop = threading.Event()
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            writer = Writer(hf.env.journal)
            story = FrameGenerator(seeded(f"busy {number}"), writer.env.ids, ("alice", "bob"))
            for count in itertools.count():
                if stop.is_set():
                    return
                writer.append(f"actor/a{number}", *story.step())
                hf.journal.append(f"s{number}-{count % 7}", "app.noted", {"n": count}, files=[b"%d" % count])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert errors == []


@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_verify_raises_no_false_alarm(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open(url) as hf:
        with busy(hf):
            for _ in range(ROUNDS):
                assert hf.journal.verify().findings == ()
                hf.journal.rebuild()
                hf.journal.rebuild(since=max(0, hf.journal.position() - 20))
        assert hf.journal.verify().findings == ()


def test_backups_exports_and_restores_are_of_one_moment(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        with busy(hf):
            for number in range(ROUNDS):
                hf.journal.backup(tmp_path / f"{number}.backup")
                hf.journal.export(tmp_path / f"{number}.jsonl")
        for number in range(ROUNDS):
            last = holdfast.restore(tmp_path / f"{number}.backup", tmp_path / f"{number}.db")
            holdfast.restore(tmp_path / f"{number}.backup", tmp_path / f"{number}-half.db", seq=last // 2)
            for name, count in ((f"{number}.db", last), (f"{number}-half.db", last // 2)):
                with holdfast.open(tmp_path / name) as copy:
                    assert copy.journal.position() == count
                    assert copy.journal.verify().findings == ()
                    prefix = [(e.seq, e.hash) for e in hf.journal.events(until=count)]
                    assert [(e.seq, e.hash) for e in copy.journal.events()] == prefix
            with holdfast.open("memory:") as copy:
                assert copy.journal.import_(tmp_path / f"{number}.jsonl") == copy.journal.position()
                assert copy.journal.verify().findings == ()

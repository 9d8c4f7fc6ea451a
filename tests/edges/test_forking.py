"""Forked while open: parent and child both go on, each with connections of its own, or the child refuses."""

from __future__ import annotations

import os
import threading
import warnings
from pathlib import Path

import pytest

import holdfast
from holdfast.journal.sqlite import SqliteJournal, connections

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


def _in_child(work: object) -> str:
    """Run something in a forked child and return what it says."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about forking beside threads, which is the point here.
        child = os.fork()
    if child == 0:
        try:
            said = str(work())  # type: ignore[operator]
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def test_parent_and_child_both_go_on(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("s", "app.noted", {"n": 0})
        list(hf.journal.events())

        def work() -> int:
            for number in range(20):
                hf.journal.append("child", "app.noted", {"n": number})
            hf.close()
            return 1

        said = []
        forked = threading.Thread(target=lambda: said.append(_in_child(work)))
        forked.start()
        for number in range(20):
            hf.journal.append("parent", "app.noted", {"n": number})
        forked.join()
        assert said == ["1"]
        assert (hf.journal.version("child"), hf.journal.version("parent")) == (20, 20)
        ids = [event.id for event in hf.journal.events()]
        assert len(set(ids)) == len(ids)
        assert hf.journal.verify().findings == ()


def test_a_child_forked_in_the_middle_of_something_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "FORK_PATIENCE", 0.05)
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted")
        journal = hf._ports.journal
        assert isinstance(journal, SqliteJournal)
        with journal.reading():
            assert _in_child(lambda: hf.journal.append("s", "app.noted")).startswith("Refused: This process was forked")
            assert _in_child(lambda: holdfast.open(path)).startswith("Refused: This process was forked")
        hf.journal.append("s", "app.noted")
        assert hf.journal.version("s") == 2

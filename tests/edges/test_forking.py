"""Forked while open: parent and child both go on, each with connections of its own, or the child refuses."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.journal.sqlite import SqliteJournal
from holdfast.sqlite import pool
from tests.forked import in_child

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")


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
        forked = threading.Thread(target=lambda: said.append(in_child(work)))
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
    monkeypatch.setattr(pool, "FORK_WAIT_SECONDS", 0.05)
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted")
        journal = hf.env.journal
        assert isinstance(journal, SqliteJournal)
        with journal.connections.reader():
            assert in_child(lambda: hf.journal.append("s", "app.noted")).startswith("Refused: This process was forked")
            assert in_child(lambda: holdfast.open(path)).startswith("Refused: This process was forked")
        hf.journal.append("s", "app.noted")
        assert hf.journal.version("s") == 2

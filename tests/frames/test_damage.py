"""Unreadable state is an error, never an empty stack; and the view of the documents shows what is live."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.records.ids import ulid_bytes
from tests.frames.conftest import ACTOR


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A journal with a root, its child and a grandchild, and an open call."""
    with holdfast.open(tmp_path / "a.db") as hf:
        root = hf.index.push_frame("root", scope=ACTOR)
        child = hf.index.push_frame("child", parent=root)
        hf.index.begin_tool_call(hf.index.push_frame("grandchild", parent=child), "t")
    return tmp_path / "a.db"


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE frames SET parent_frame_id = zeroblob(16) WHERE depth = 1",
        "UPDATE frames SET depth = 7 WHERE depth = 1",
        "UPDATE frames SET status = 'completed' WHERE depth = 0",
        "UPDATE frames SET frame_id = x'00' WHERE depth = 2",
        "UPDATE frame_calls SET call_id = x'01'",
    ],
)
def test_unreadable_state_is_never_taken_for_an_empty_one(path: Path, damage: str) -> None:
    connection = apsw.Connection(str(path))
    connection.execute(damage)
    connection.close()
    with holdfast.open(path) as hf:
        for act in (
            lambda: hf.index.resume_actor(ACTOR),
            lambda: hf.index.resume_actor(ACTOR, incarnation="new"),
            lambda: hf.index.stack(ACTOR),
            lambda: hf.frame("new work").__enter__(),
        ):
            with pytest.raises(holdfast.Corrupt, match="verify"):
                act()
        assert not hf.journal.verify().ok
        hf.journal.rebuild()
        assert len(hf.index.resume_actor(ACTOR).frames) == 3


def test_the_view_shows_a_waiting_root_and_its_active_child(path: Path) -> None:
    with holdfast.open(path) as hf:
        frames = hf.index.stack(ACTOR)
    connection = apsw.Connection(str(path))
    rows = list(
        connection.execute("SELECT frame_id, status, depth, root_frame_id FROM active_frame_stacks ORDER BY depth")
    )
    connection.close()
    root = ulid_bytes(frames[0].id)
    assert rows == [(ulid_bytes(frame.id), frame.status, frame.depth, root) for frame in frames]
    assert [frame.status for frame in frames] == ["waiting", "waiting", "active"]

"""Unreadable state is an error, never an empty stack; and the view of the documents shows what is live."""

from __future__ import annotations

from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.errors import InvalidValue
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


@pytest.mark.parametrize(
    "damage",
    [
        "DELETE FROM frames WHERE stream = {stream} AND depth = 1",
        "UPDATE frames SET stream = (SELECT min(id) FROM streams) WHERE stream = {stream}",
        "INSERT INTO frame_children SELECT tenant, stream, frame_id, frame_id, 'x' FROM frames WHERE stream = {stream}",
    ],
)
def test_a_rebuild_since_a_cursor_mends_the_streams_that_changed_after_it(path: Path, damage: str) -> None:
    with holdfast.open(path) as hf:
        since = hf.journal.position()
        root = hf.index.push_frame("root", scope="actor/later")
        hf.index.push_frame("child", parent=root)
    connection = apsw.Connection(str(path))
    ((stream,),) = connection.execute("SELECT id FROM streams WHERE name = 'actor/later'").fetchall()
    connection.execute(damage.format(stream=stream))
    connection.close()
    with holdfast.open(path) as hf:
        assert not hf.journal.verify().ok
        assert hf.journal.rebuild(since=since + 2) == 0
        assert not hf.journal.verify().ok, "nothing changed after that"
        assert hf.journal.rebuild(since=since) == 2
        assert hf.journal.verify().findings == ()
        for wrong in (-1, 1.5, True, "1"):
            with pytest.raises(InvalidValue, match="since"):
                hf.journal.rebuild(since=wrong)  # type: ignore[arg-type]


def test_the_view_shows_a_child_in_another_scope_below_its_parent(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        root = hf.index.push_frame("root", scope=ACTOR)
        away = hf.index.push_frame("away", parent=root, scope="actor/other")
        below = hf.index.push_frame("below", parent=away)
        ended = hf.index.push_frame("ended", parent=below, scope="actor/third")
        hf.index.pop_frame(ended)
        back = hf.index.push_frame("back", parent=below, scope=ACTOR)
        frames = [hf.index.get_frame(frame) for frame in (root, away, below, back)]
    columns = "frame_id, parent_frame_id, depth, root_frame_id"
    rows = list(apsw.Connection(str(tmp_path / "a.db")).execute(f"SELECT {columns} FROM active_frame_stacks"))
    ids = [ulid_bytes(frame) for frame in (root, away, below, back)]
    assert rows == list(zip(ids, [None, *ids], [frame.depth for frame in frames], [ids[0]] * 4, strict=False))
    assert [frame.depth for frame in frames] == [0, 1, 2, 3]


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

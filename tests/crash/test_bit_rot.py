"""One flipped bit: whatever changes a stored value is reported, and never given out as verified."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import apsw
import pytest

import holdfast
from holdfast.flow import artifacts
from holdfast.journal.sqlite import SqliteJournal
from holdfast.testing.stories import Story
from holdfast.testing.writer import Writer, note
from tests.scale import seeded, volume

TABLES = [
    "events",
    "streams",
    "tenants",
    "subjects",
    "artifacts",
    "meta",
    "frames",
    "frame_handles",
    "frame_results",
    "frame_reservations",
    "frame_calls",
    "suspended_frames",
    "artifact_refs",
    "sqlite_schema",
]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small journal with something in every table, folded into one file."""
    path = tmp_path_factory.mktemp("rot") / "a.db"
    journal = SqliteJournal(path)
    writer = Writer(journal, user="alice")
    for number in range(6):
        story = Story(Random(number), writer.ports.ids, ("alice", "bob"))
        for count in range(25):
            writer.append(f"actor/a{number}/session/s1/thread/main", *story.step(), key=f"k{number}-{count}")
    for size in (50, 5_000):
        body = artifacts.prepare(writer.ports, writer.acting, Random(size).randbytes(size))
        writer.append("session/s1", note(artifacts=[body.name.hex()]), artifacts=[body])
    Writer(journal, tenant="acme").append("session/s2", note("x" * 9_000))
    assert journal.position() > 100
    journal.close()
    assert not path.with_name("a.db-wal").exists()
    return path


def _values(path: Path) -> object:
    """Every value that anybody could be given, or that they cannot be read at all."""
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        found = []
        for table in TABLES:
            rows = list(connection.execute(f"SELECT * FROM {table}"))
            if table != "sqlite_schema":
                found.append(sorted(rows, key=repr))
            else:
                # Where a table's pages begin is not a value; what it is, is.
                found.append([row[:3] + row[4:] for row in rows])
        found.append(connection.pragma("user_version"))
        found.append(connection.pragma("application_id"))
        return found
    except (apsw.Error, UnicodeDecodeError) as error:
        return f"unreadable: {error}"


def _reported(path: Path) -> bool:
    try:
        with holdfast.open(path) as hf:
            return not hf.journal.verify().ok
    except holdfast.HoldfastError:
        return True


def test_every_flip_that_changes_a_stored_value_is_reported(healthy: Path, tmp_path: Path) -> None:
    random = seeded("bit rot")
    wanted = _values(healthy)
    image = bytearray(healthy.read_bytes())
    assert not _reported(healthy)
    damaged = tmp_path / "b.db"
    changed, missed = 0, []
    for _ in range(volume(100, 3_000)):
        bit = random.randrange(len(image) * 8)
        image[bit // 8] ^= 1 << bit % 8
        damaged.write_bytes(image)
        image[bit // 8] ^= 1 << bit % 8
        if _values(damaged) != wanted:
            changed += 1
            if not _reported(damaged):
                missed.append(bit)
        for end in ("-wal", "-shm"):
            damaged.with_name(damaged.name + end).unlink(missing_ok=True)
    print(f"{changed} flips changed a stored value, {len(missed)} of them went unnoticed")
    assert changed > 10
    assert missed == []


def test_a_changed_artifact_file_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", files=[b"x" * 400_000])
        (file,) = (tmp_path / "a.db-artifacts").glob("*/*")
        assert hf.journal.verify().ok
        body = bytearray(file.read_bytes())
        body[12_345] ^= 4
        file.write_bytes(body)
        assert [finding.kind for finding in hf.journal.verify().findings] == ["artifacts"]
        shutil.move(file, tmp_path / "elsewhere")
        report = hf.journal.verify()
        assert not report.ok
        assert "missing" in report.findings[0].problem

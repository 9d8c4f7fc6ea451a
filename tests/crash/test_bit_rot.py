"""One flipped bit: whatever changes a stored value is reported, and never given out as verified."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random

import apsw
import pytest

import holdfast
from holdfast.flow.journal import artifacts
from holdfast.journal.sqlite import SqliteJournal
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import LeaseTaken
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.generate_sessions import SessionGenerator
from holdfast.testing.generate_state import StateGenerator
from holdfast.testing.writer import Writer, make_note
from tests.scale import seeded, volume

CONVERSATIONS = [
    "sessions",
    "session_threads",
    "session_handovers",
    "threads",
    "messages",
    "message_calls",
    "message_counts",
    "summaries",
]
STATE = ["state", "state_history", "edges", "effects"]
TABLES = [
    "events",
    "streams",
    "tenants",
    "subjects",
    "artifacts",
    "meta",
    "leases",
    "frames",
    "frame_handles",
    "frame_results",
    "frame_reservations",
    "frame_calls",
    "frame_children",
    "suspended_frames",
    "artifact_refs",
    *CONVERSATIONS,
    *STATE,
    "text_cursors",
    "text_segments",
    "text_blocks",
    "sqlite_schema",
]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small journal with something in every table, folded into one file."""
    path = tmp_path_factory.mktemp("rot") / "a.db"
    journal = SqliteJournal(path)
    writer = Writer(journal, user="alice")
    for number in range(6):
        story = FrameGenerator(Random(number), writer.env.ids, ("alice", "bob"))
        for count in range(25):
            writer.append(f"actor/a{number}/session/s1/thread/main", *story.step(), key=f"k{number}-{count}")
    for number in (98, 117):
        told = SessionGenerator(Random(number), writer.env.ids, f"c{number}", ("alice", "bob"), endings=0.3)
        writer.write(*told.step(40))
    for number in (7, 8):
        kept = StateGenerator(Random(number), writer.env.ids, f"user/{number}", ("alice", "bob"))
        writer.append(kept.scope, *(draft for _ in range(60) for draft in kept.step()))
    for size in (50, 5_000):
        body = artifacts.prepare_artifact(writer.env, Random(size).randbytes(size))
        writer.append("session/s1", make_note(artifacts=[body.name.hex()]), artifacts=[body])
    taken = Draft(type="lease.taken", facts=LeaseTaken(epoch=1, owner="somebody"))
    writer.append("actor/owned", taken)
    assert journal.renew_lease("default", "actor/owned", 1)
    Writer(journal, tenant="acme").append("session/s2", make_note("x" * 9_000))
    gone = artifacts.prepare_artifact(writer.env, b"of somebody who left")
    writer.append("session/s1", make_note(artifacts=[gone.name.hex()], subject="carol"), artifacts=[gone])
    assert journal.position() > 100
    journal.close()
    with holdfast.open(path) as hf:
        chat = hf.session("told", tools=[holdfast.ToolDef(name="search")])
        chat.append([word for number in range(8) for word in (f"question {number} " * 60, f"answer {number} " * 60)])
        assert chat.compact(keep=2, store=True) is not None
        assert hf.journal.erase("carol").artifacts == 1
        assert hf.search("question")
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


def _changed(value: object) -> list[object]:
    """Neighbours of a value, of the kind that one bit makes."""
    if isinstance(value, int):
        return [value + 1, value ^ 1 << 20]
    if isinstance(value, bytes):
        return [bytes([value[0] ^ 1]) + value[1:]] if value else []
    return [chr(ord(value[0]) ^ 2) + value[1:], value[:-1]] if isinstance(value, str) and len(value) > 1 else []


def _columns(path: Path) -> list[tuple[str, str]]:
    connection = apsw.Connection(str(path))
    made = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    tables = [name for (name,) in connection.execute(made)]
    assert sorted({*tables, "sqlite_schema"}) == sorted({*TABLES, "erasures"})
    # A place in the log is what indexes are keyed by: there a flip makes page and index differ, as above.
    return [
        (table, column)
        for table in tables
        for _, column, *_ in connection.execute(f"PRAGMA table_info({table})")
        if (table, column) != ("events", "seq")
    ]


def test_a_change_of_any_column_of_any_table_is_reported(healthy: Path, tmp_path: Path) -> None:
    """Not left to chance, and harder than a flip: rows and indexes are changed together, in agreement."""
    check_columns(healthy, tmp_path, {*TABLES} - {"sqlite_schema"})


def check_columns(healthy: Path, folder: Path, tables: set[str]) -> None:
    """Change every column of some tables, one after the other, each in a copy."""
    random = seeded("rot by column")
    damaged = folder / "b.db"
    tried: Counter[str] = Counter()
    empty = []
    missed = []
    for table, column in _columns(healthy):
        if table not in tables:
            continue
        connection = apsw.Connection(str(healthy), flags=apsw.SQLITE_OPEN_READONLY)
        values = [value for (value,) in connection.execute(f"SELECT DISTINCT {column} FROM {table}")]
        connection.close()
        others = [(value, other) for value in values for other in _changed(value)]
        if table in (*CONVERSATIONS, *STATE) and not others:
            empty.append((table, column))
        for value, other in random.sample(others, min(len(others), volume(1, 20))):
            shutil.copyfile(healthy, damaged)
            if _change(damaged, table, column, value, other):
                tried[table] += 1
                if not _reported(damaged):
                    missed.append((table, column, value, other))
            for end in ("-wal", "-shm"):
                damaged.with_name(damaged.name + end).unlink(missing_ok=True)
    print(f"changed on purpose: {dict(tried)}")
    assert missed == []
    assert empty == []
    assert tried.keys() == tables


def _change(path: Path, table: str, column: str, value: object, other: object) -> bool:
    """Change one row behind holdfast's back, past triggers and checks; False where a key forbids it."""
    connection = apsw.Connection(str(path))
    guards = list(connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"))
    connection.execute("PRAGMA ignore_check_constraints = ON")
    for name, _ in guards:
        connection.execute(f"DROP TRIGGER {name}")
    try:
        key = ", ".join(c for _, c, _, _, _, k in connection.execute(f"PRAGMA table_info({table})") if k)
        row = connection.execute(f"SELECT {key} FROM {table} WHERE {column} IS ? LIMIT 1", (value,)).fetchone()
        marks = ", ".join("?" * len(row))
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE ({key}) = ({marks})", (other, *row))
    except apsw.ConstraintError:
        return False
    finally:
        for _, sql in guards:
            connection.execute(sql)
        connection.close()
    return True


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

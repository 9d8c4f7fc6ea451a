"""Bad input: a typed error that says what to do, nothing written, the client still usable or clearly closed."""

from __future__ import annotations

import base64
import json
import math
import shutil
import tempfile
from pathlib import Path
from typing import Any

import apsw
import pytest

import holdfast
from holdfast import connect
from holdfast.journal.sqlite.schema import read_secret
from holdfast.records.settings import Settings
from holdfast.sqlite import connection as sqlite_connection
from tests.forked import as_nobody

BAD_CALLS: list[tuple[str, dict[str, Any]]] = [
    ("empty id", {"scope": ""}),
    ("control character in an id", {"scope": "a\x07"}),
    ("unknown kind of scope", {"scope": "planet/mars"}),
    ("scope of a wrong type", {"scope": 7}),
    ("scope too long", {"scope": "s" * 129}),
    ("NaN", {"content": {"n": math.nan}}),
    ("lone surrogate", {"content": "\ud800"}),
    ("lone surrogate in a key", {"key": "\ud800"}),
    ("20 digits", {"content": 12345678901234567890}),
    ("20 digits among the facts", {"facts": {"n": 12345678901234567890}}),
    ("NUL", {"content": "a\0b"}),
    ("bytes as content", {"content": b"x"}),
    ("empty key", {"key": ""}),
    ("key too long", {"key": "k" * 513}),
    ("key of a wrong type", {"key": 5}),
    ("negative version", {"expected": -1}),
    ("version of a wrong type", {"expected": "1"}),
    ("version that is a flag", {"expected": True}),
    ("type outside the application's own", {"type": "frame.pushed"}),
    ("type without a name", {"type": "app."}),
    ("type with a control character", {"type": "app.a\n"}),
    ("type of a wrong type", {"type": None}),
    ("subject with a control character", {"content": {}, "subject": "a\n"}),
    ("text as a file", {"files": ["text"]}),
    ("facts that are not plain", {"facts": {"when": object()}}),
]


@pytest.mark.parametrize("url", ["memory:", "a.db"])
@pytest.mark.parametrize(("what", "bad"), BAD_CALLS, ids=[what for what, _ in BAD_CALLS])
def test_a_bad_append_is_refused_and_nothing_is_written(
    url: str, what: str, bad: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open(url) as hf:
        call = {"scope": "s", "type": "app.noted", **bad}
        with pytest.raises(holdfast.errors.InvalidValue) as caught:
            hf.journal.append(call.pop("scope"), call.pop("type"), call.pop("content", None), **call)
        assert len(str(caught.value)) > 20
        assert hf.journal.position() == 0
        hf.journal.append("s", "app.noted", {"fine": True})
        assert hf.journal.verify().ok


@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_ten_thousand_levels_and_a_payload_over_the_limit_are_refused(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    with holdfast.open(url) as hf:
        with pytest.raises(holdfast.errors.InvalidValue, match="nested deeper"):
            hf.journal.append("s", "app.noted", deep)
        with pytest.raises(holdfast.errors.TooLarge, match="artifact"):
            hf.journal.append("s", "app.noted", "x" * 1_000_001)
        with pytest.raises(holdfast.errors.TooLarge, match="HOLDFAST_ARTIFACT_BYTES"):
            hf.journal.append("s", "app.noted", files=[bytes(64_000_001)])
        assert hf.journal.position() == 0
        assert list(tmp_path.glob("a.db-artifacts/*/*")) == []


def test_a_bad_query_is_refused() -> None:
    with holdfast.open("memory:") as hf:
        for bad in ({"after": -1}, {"until": "x"}, {"after": True}):
            with pytest.raises(holdfast.errors.InvalidValue):
                list(hf.journal.events(**bad))  # type: ignore[arg-type]
        with pytest.raises(holdfast.errors.NotFound):
            hf.journal.artifact("not hexadecimal")
        with pytest.raises(holdfast.errors.NotFound):
            hf.journal.artifact("ab" * 32)
        with pytest.raises(holdfast.errors.NotFound):
            hf.journal.erase("nobody")


def test_a_folder_is_not_a_journal(tmp_path: Path) -> None:
    with pytest.raises(holdfast.errors.NotAJournal, match="folder"):
        holdfast.open(tmp_path)
    with pytest.raises(holdfast.Refused, match="Create it first"):
        holdfast.open(tmp_path / "missing" / "a.db")


def test_a_file_that_is_not_sqlite_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("dear diary, " * 100)
    with pytest.raises(holdfast.errors.NotAJournal):
        holdfast.open(path)
    assert path.read_text() == "dear diary, " * 100
    assert [file.name for file in tmp_path.iterdir()] == ["notes.txt"]


def test_a_database_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    other = apsw.Connection(str(path))
    other.execute("CREATE TABLE t (x)")
    other.close()
    with pytest.raises(holdfast.errors.NotAJournal, match="something else"):
        holdfast.open(path)
    other = apsw.Connection(str(path))
    assert [row[0] for row in other.execute("SELECT name FROM sqlite_schema")] == ["t"]
    other.close()


def test_a_journal_of_a_later_release_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    holdfast.open(path).close()
    later = apsw.Connection(str(path))
    later.pragma("user_version", 99)
    later.close()
    with pytest.raises(holdfast.errors.NewerSchema, match="Upgrade"):
        holdfast.open(path)


def _look_at_everything(path: Path) -> None:
    with holdfast.open(path) as hf:
        list(hf.journal.events())


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", {"n": 1})
    data = bytearray(path.read_bytes())
    data[4096:8192] = bytes(4096)
    path.write_bytes(data)
    with pytest.raises(holdfast.Corrupt, match="restore from a backup"):
        _look_at_everything(path)


def test_a_secret_that_is_text_is_damage(tmp_path: Path) -> None:
    connection = apsw.Connection(":memory:")
    connection.execute("CREATE TABLE meta (name, value, digest); INSERT INTO meta VALUES ('secret', 'text', 'text')")
    with pytest.raises(holdfast.Corrupt, match="secret is missing or damaged"):
        read_secret(connection)
    path = tmp_path / "a.db"
    holdfast.open(path).close()
    damaged = apsw.Connection(str(path))
    damaged.pragma("writable_schema", 1)
    damaged.execute("UPDATE sqlite_schema SET sql = replace(sql, 'STRICT, ', '') WHERE name = 'meta'")
    damaged.close()
    damaged = apsw.Connection(str(path))
    damaged.execute("UPDATE meta SET value = 'text'")
    damaged.close()
    with pytest.raises(holdfast.HoldfastError):
        _look_at_everything(path)


def test_an_empty_file_becomes_a_journal_with_a_private_mode(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", files=[b"x" * 300_000])
        for file in (path, tmp_path / "a.db-wal", *tmp_path.glob("a.db-artifacts/*/*")):
            assert file.stat().st_mode & 0o077 == 0, file
    (tmp_path / "b.db").touch()
    with holdfast.open(tmp_path / "b.db") as hf:
        assert hf.journal.position() == 0


def test_a_locked_journal_says_who_to_look_for_and_recovers(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path, settings=Settings(busy_ms=50)) as hf:
        hf.journal.append("s", "app.noted")
        blocker = apsw.Connection(str(path))
        blocker.execute("BEGIN IMMEDIATE")
        with pytest.raises(holdfast.errors.Busy, match="write lock"):
            hf.journal.append("s", "app.noted")
        assert hf.journal.version("s") == 1
        blocker.execute("ROLLBACK")
        blocker.close()
        hf.journal.append("s", "app.noted")
        assert hf.journal.version("s") == 2


def test_a_journal_that_cannot_be_written_says_so() -> None:
    folder = Path(tempfile.mkdtemp(prefix="holdfast-readonly-"))
    try:
        path = folder / "a.db"
        holdfast.open(path).close()
        folder.chmod(0o555)
        path.chmod(0o444)
        assert as_nobody(lambda: holdfast.open(path)).startswith("ReadOnly: ")
        assert as_nobody(lambda: holdfast.open(folder / "new.db")).startswith("ReadOnly: ")
        path.chmod(0o666)
        # The file may be written, but its folder takes no log beside it.
        assert as_nobody(lambda: holdfast.open(path)).split(":")[0] in ("ReadOnly", "Unavailable")
    finally:
        folder.chmod(0o755)
        shutil.rmtree(folder)


def test_an_old_sqlite_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sqlite_connection.apsw, "sqlite_lib_version", lambda: "3.51.2")
    with pytest.raises(holdfast.Unsupported, match=r"3\.51\.3"):
        holdfast.open(tmp_path / "a.db")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "error"),
    [
        ("", holdfast.errors.InvalidValue),
        (":memory:", holdfast.errors.InvalidValue),
        ("a\0b", holdfast.errors.InvalidValue),
        ("sqlite://", holdfast.errors.InvalidValue),
        ("sqlite:///", holdfast.errors.InvalidValue),
        ("sqlite://host/a.db", holdfast.errors.InvalidValue),
        ("postgresql://localhost/x", holdfast.Unsupported),
        ("redis://x", holdfast.Unsupported),
    ],
)
def test_a_bad_url_is_refused(url: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        holdfast.open(url)


def test_a_bad_durability_is_refused(tmp_path: Path) -> None:
    with pytest.raises(holdfast.errors.InvalidValue, match="full, fast"):
        holdfast.open(tmp_path / "a.db", durability="yolo")


def test_settings_come_from_the_environment_and_bad_ones_are_named() -> None:
    assert connect.settings_from_environment({"HOLDFAST_CACHED_STREAMS": "5", "OTHER": "x"}).cached_streams == 5
    assert connect.settings_from_environment({"HOLDFAST_CACHED_STREAMS": " "}) == Settings()
    for bad in ("many", "-1", "1.5"):
        with pytest.raises(holdfast.errors.InvalidValue, match="HOLDFAST_NESTING"):
            connect.settings_from_environment({"HOLDFAST_NESTING": bad})


def test_copies_never_overwrite_and_say_what_is_missing(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("s", "app.noted", {"n": 1})
        (tmp_path / "there").write_text("precious")
        for copy in (hf.journal.backup, hf.journal.export):
            with pytest.raises(holdfast.Refused, match="exists already"):
                copy(tmp_path / "there")
        with pytest.raises(holdfast.HoldfastError):
            hf.journal.export(tmp_path / "no" / "folder.jsonl")
        with pytest.raises(holdfast.errors.NotFound):
            hf.journal.import_(tmp_path / "missing.jsonl")
        hf.journal.backup(tmp_path / "b.db")
        for seq in (99, -1):
            with pytest.raises(holdfast.Refused):
                holdfast.restore(tmp_path / "b.db", tmp_path / "c.db", seq=seq)
        with pytest.raises(holdfast.errors.NotFound):
            holdfast.restore(tmp_path / "missing.db", tmp_path / "c.db")
        with pytest.raises(holdfast.Refused, match="exists already"):
            holdfast.restore(tmp_path / "b.db", tmp_path / "there")
    assert (tmp_path / "there").read_text() == "precious"
    assert not (tmp_path / "c.db").exists()


@pytest.mark.parametrize("field", ["id", "causation", "correlation"])
@pytest.mark.parametrize("size", [0, 15, 17, 64])
def test_an_import_with_an_id_of_another_size_is_refused(field: str, size: int, tmp_path: Path) -> None:
    with holdfast.open("memory:") as hf:
        hf.journal.append("s", "app.noted")
        hf.journal.export(tmp_path / "good.jsonl")
    header, line = (tmp_path / "good.jsonl").read_text().splitlines()
    event = {**json.loads(line), field: base64.b64encode(b"\xff" * size).decode()}
    (tmp_path / "bad.jsonl").write_text(f"{header}\n{json.dumps(event)}")
    with holdfast.open("memory:") as copy:
        with pytest.raises(holdfast.errors.InvalidValue, match=f"Line 2 cannot be read .{field} has {size} bytes"):
            copy.journal.import_(tmp_path / "bad.jsonl")
        assert copy.journal.position() == 0


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"not json",
        b"[]",
        b'{"kind":"subject"}',
        b'{"kind":"journal","format":99}',
        b'{"kind":"journal","format":1,"secret":"!!"}',
        b'{"kind":"journal","format":1,"secret":null}',
        b'{"kind":"journal","format":1,"secret":"AAAA"}\n{"kind":"event","tenant":"t"}',
        b'{"kind":"journal","format":1,"secret":"AAAA"}\n{"kind":"wat","tenant":"t"}',
        b'{"kind":"journal","format":1,"secret":"AAAA"}\n{"kind":"subject","id":"x","name":"n","tenant":"t"}',
        b'{"kind":"journal","format":1,"secret":"AAAA"}\n' + b"[" * 20_000,
    ],
)
@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_an_export_that_is_none_is_refused_and_nothing_is_imported(
    url: str, line: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jsonl").write_bytes(line)
    with holdfast.open(url) as hf:
        with pytest.raises(holdfast.Refused):
            hf.journal.import_("bad.jsonl")
        assert hf.journal.position() == 0
        hf.journal.append("s", "app.noted")

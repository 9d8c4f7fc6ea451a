"""Hostile files: no SQL that somebody put into a journal or a store is ever run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import apsw
import pytest

import holdfast
from holdfast.errors import Corrupt
from holdfast.journal.sqlite import SqliteJournal, rebuild
from holdfast.sqlite import connection as sqlite_connection
from tests.edges.test_hostile_imports import use
from tests.scale import SOAK, seeded, volume

ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT "
CRIMES: dict[str, str] = {
    "a trigger that changes what was appended": """
        DROP TRIGGER events_never_changed;
        DROP TRIGGER events_only_erased;
        CREATE TRIGGER evil AFTER INSERT ON events BEGIN
            UPDATE events SET content = replace(content, 'pay 10', 'pay 99') WHERE seq = new.seq;
        END""",
    "a trigger instead of a known one": """
        DROP TRIGGER events_never_deleted;
        CREATE TRIGGER events_never_deleted BEFORE DELETE ON events BEGIN SELECT 1; END""",
    "a trigger on a row": "CREATE TRIGGER evil AFTER INSERT ON streams BEGIN DELETE FROM meta; END",
    "a missing guard": "DROP TRIGGER events_only_erased",
    "a view without end in place of a table": f"""
        ALTER TABLE meta RENAME TO meta_before;
        CREATE VIEW meta AS {ENDLESS} 'secret' AS name, x AS value, x AS digest FROM n""",
    "a view without end in place of the events": f"""
        ALTER TABLE events RENAME TO events_before;
        CREATE VIEW events AS {ENDLESS} x AS seq FROM n""",
    "a view of its own": "CREATE VIEW evil AS SELECT * FROM events",
    "a table of its own": "CREATE TABLE evil (x)",
    "a virtual table": "CREATE VIRTUAL TABLE evil USING fts5(x)",
    "a column with a default": "ALTER TABLE frames ADD COLUMN evil TEXT DEFAULT 'x'",
    "a generated column": "ALTER TABLE streams ADD COLUMN evil TEXT AS (hex(zeroblob(1000000))) VIRTUAL",
    "an index over an expression": "CREATE INDEX evil ON events (hex(zeroblob(1000000)))",
    "a missing index": "DROP INDEX events_key",
    "a unique index that is none": "DROP INDEX events_key; CREATE INDEX events_key ON events (tenant, stream, key)",
    "statistics of its own": "CREATE VIEW evil AS SELECT 1; PRAGMA writable_schema = 1; "
    "UPDATE sqlite_schema SET name = 'sqlite_stat1', tbl_name = 'sqlite_stat1' WHERE name = 'evil'",
    "a quoted keyword": "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = "
    "replace(sql, 'new.mac IS NULL', 'new.mac IS \"NULL\"') WHERE name = 'events_only_erased'",
    "a check that never fails": "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = "
    "replace(sql, 'CHECK (length(name) > 0)', 'CHECK (1)') WHERE name = 'tenants'",
    "a comment that is no text": "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET sql = "
    "CAST(CAST(sql || ' --' AS BLOB) || x'e5' AS TEXT) WHERE name = 'events_never_deleted'",
}
VALUES: dict[str, list[object]] = {
    "INTEGER": [0, 1, -1, 7, 2**31, 2**62, 2**63 - 1, -(2**63)],
    "TEXT": ["", "x", "\0", "session/", "[]", '{"x":1}'],
    "BLOB": [b"", b"x", b"{}", b"[]", bytes(32), b'{"a":1}', b"\xff" * 16],
}
STORE_CRIMES: dict[str, str] = {
    "a trigger": "CREATE TRIGGER evil AFTER INSERT ON entries BEGIN UPDATE entries SET value = x'39' ; END",
    "a view without end": f"""
        ALTER TABLE scopes RENAME TO scopes_before;
        CREATE VIEW scopes AS {ENDLESS} x AS id, 'user/u' AS name, x AS newest, x AS reset FROM n""",
    "a missing index": "DROP INDEX idx_entries_key",
}


@pytest.fixture(scope="module")
def journal_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A journal with texts and vectors, folded into one file."""
    path = tmp_path_factory.mktemp("journal") / "a.db"

    def embed(texts: list[str]) -> list[list[float]]:
        return [[1.0, 0.5] for _ in texts]

    with holdfast.open(path, embedder=embed) as hf:
        for client in (hf, hf.tenant("acme")):
            client.session("s").append("pay 10")
            client.session("s").search("pay")
        with hf.frame("work", actor="a") as frame:
            frame.run(lambda: 7, key="step")
    return path


@pytest.fixture(scope="module")
def store_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("store") / "a.db"
    with holdfast.open_store(f"sqlite:///{path}") as store:
        store("user/u").write("k", "pay 10")
    return path


def commit(file: Path, path: Path, crime: str) -> Path:
    """Copy a file and change it with plain SQLite."""
    shutil.copyfile(file, path)
    connection = apsw.Connection(str(path))
    connection.config(apsw.SQLITE_DBCONFIG_LEGACY_ALTER_TABLE, 1)
    for _ in connection.execute(crime):
        pass
    connection.close()
    return path


def test_an_honest_file_is_opened(journal_file: Path, store_file: Path, tmp_path: Path) -> None:
    with holdfast.open(commit(journal_file, tmp_path / "a.db", "ANALYZE")) as hf:
        assert [one.text for one in hf.session("s").messages()] == ["pay 10"]
        assert hf.journal.verify().findings == ()
        hf.journal.rebuild()
    with holdfast.open(tmp_path / "a.db") as hf:
        assert hf.journal.verify().findings == ()
    with holdfast.open_store(f"sqlite:///{store_file}") as store:
        assert store("user/u").read("k") == "pay 10"


@pytest.mark.parametrize("crime", CRIMES)
def test_a_journal_with_sql_of_somebody_else_is_refused(crime: str, journal_file: Path, tmp_path: Path) -> None:
    path = commit(journal_file, tmp_path / "a.db", CRIMES[crime])
    before = path.read_bytes()
    with pytest.raises(Corrupt, match=r"otherwise than holdfast makes it|malformed database schema|is damaged"):
        holdfast.open(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("crime", STORE_CRIMES)
def test_a_store_with_sql_of_somebody_else_is_refused(crime: str, store_file: Path, tmp_path: Path) -> None:
    path = commit(store_file, tmp_path / "a.db", STORE_CRIMES[crime])
    with pytest.raises(Corrupt, match="otherwise than holdfast makes it"):
        holdfast.open_store(f"sqlite:///{path}")


def test_a_connection_that_is_opened_later_looks_again(journal_file: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    shutil.copyfile(journal_file, path)
    with holdfast.open(path) as hf:
        journal = hf.env.journal
        assert isinstance(journal, SqliteJournal)
        stranger = apsw.Connection(str(path))
        stranger.execute("CREATE TRIGGER evil AFTER INSERT ON events BEGIN SELECT 1; END")
        stranger.close()
        journal.connections.drop_writer(suspect=False)
        with pytest.raises(Corrupt, match="evil"):
            hf.session("s").append("pay 20")


def test_a_file_whose_schema_has_no_end_is_refused(
    journal_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copyfile(journal_file, tmp_path / "a.db")
    monkeypatch.setattr(sqlite_connection, "OPEN_STEPS", 100)
    with pytest.raises(Corrupt, match="takes too long to open"):
        holdfast.open(tmp_path / "a.db")


def test_a_rebuild_in_progress_or_broken_off_keeps_nobody_out(
    journal_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    shutil.copyfile(journal_file, path)

    def die(self: object) -> None:
        with holdfast.open(path) as other:
            assert other.session("s").append("pay 20")
        raise KeyboardInterrupt

    with holdfast.open(path) as hf:
        monkeypatch.setattr(rebuild._ProjectionRebuild, "_newest_seq", die)
        with pytest.raises(KeyboardInterrupt):
            hf.journal.rebuild()
        monkeypatch.undo()
    with holdfast.open(path) as hf:
        assert hf.journal.verify().findings == ()
        hf.journal.rebuild()
        assert hf.journal.verify().findings == ()


def invent_crime(random: Random, tables: list[str]) -> str:
    """A change of the schema, of a kind and at a place chosen at random."""
    table, other = random.choice(tables), random.choice(tables)
    moment = random.choice(["BEFORE", "AFTER"]) + random.choice([" INSERT", " UPDATE", " DELETE"])
    name = random.choice(
        ["evil", f"{table}__new", f"search_{random.randrange(3)}_evil", "events_guard", f"{table}_new"]
    )
    column = random.choice(["type", "name", "tbl_name", "sql"])
    value = random.choice(["NULL", "7", "x''", "'view'"])
    words = random.choice(["NOT NULL", "CHECK", "UNIQUE", "PRIMARY KEY", "REFERENCES", "WHERE", "STRICT", "new.", "1"])
    found = random.choice(["", "1", "NULL", "''x''", '"x"', "/**/", "x --", "CHECK (1)", "old."])
    edit = "PRAGMA writable_schema = 1; UPDATE sqlite_schema SET"
    return random.choice(
        [
            f"CREATE TRIGGER {name} {moment} ON {table} BEGIN DELETE FROM {other}; END",
            f"CREATE TRIGGER {name} {moment} ON {table} WHEN ({ENDLESS} count(*) FROM n) BEGIN SELECT 1; END",
            f"CREATE VIEW {name} AS {ENDLESS} x FROM n",
            f"ALTER TABLE {table} RENAME TO {name}; CREATE VIEW {table} AS {ENDLESS} x FROM n",
            f"CREATE TABLE {name} (x)",
            f"DROP TABLE {table}",
            f"DROP TABLE {table}; CREATE TABLE {table} (x)",
            f"ALTER TABLE {table} ADD COLUMN evil TEXT DEFAULT (hex(zeroblob(10)))",
            f"ALTER TABLE {table} RENAME TO {name}",
            f"CREATE INDEX {name} ON {table} (hex(zeroblob(1000)))",
            f"{edit} sql = replace(sql, '{words}', '{found}') WHERE tbl_name = '{table}'",
            f"{edit} {column} = {value} WHERE name = '{table}'",
            f"{edit} rootpage = {random.choice([0, 1, 2, 7, 10**6])} WHERE name = '{table}'",
            f"PRAGMA user_version = {random.choice([0, -1, 2, 2**31 - 1])}",
            f"PRAGMA application_id = {random.choice([0, 1, 0x68667374])}",
        ]
    )


def read_definitions(path: Path) -> set[str]:
    """The SQL in a file; a table that a rebuild would drop, and that nothing reads, counts as the one it is like."""
    connection = apsw.Connection(str(path))
    found = [sql or "" for (sql,) in connection.execute("SELECT sql FROM sqlite_schema")]
    connection.close()
    return {sql.replace('"', "").replace("__new", "") for sql in found}


def test_a_file_with_an_invented_change_is_refused_or_has_only_sql_of_holdfast(
    journal_file: Path, tmp_path: Path
) -> None:
    random = seeded("hostile files")
    connection = apsw.Connection(str(journal_file))
    tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
    connection.close()
    wanted = read_definitions(journal_file)
    refused = 0
    for number in range(volume(225, 2_500)):
        path, crime = tmp_path / f"{number}.db", invent_crime(random, tables)
        try:
            commit(journal_file, path, crime)
        except apsw.Error:
            pass  # SQLite itself would not do it, or only a part.
        try:
            with holdfast.open(path) as hf:
                hf.session("s").append("pay 20")
        except holdfast.HoldfastError:
            refused += 1
        else:
            assert read_definitions(path) <= wanted, crime
        for left in tmp_path.glob(f"{number}.db*"):
            left.unlink()
    print(f"{refused} refused")
    assert refused > volume(225, 2_500) // 3


def change_row(path: Path, random: Random) -> tuple[str, str, object]:
    """Change one value of one row, past the triggers and checks, and leave the schema as it was."""
    connection = apsw.Connection(str(path))
    guards = connection.execute("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'").fetchall()
    connection.execute("PRAGMA ignore_check_constraints = ON")
    for name, _ in guards:
        connection.execute(f"DROP TRIGGER {name}")
    named = "SELECT name FROM sqlite_schema WHERE type = 'table'"
    tables = [name for (name,) in connection.execute(named).fetchall()]
    table = random.choice([name for name in tables if connection.execute(f"SELECT 1 FROM {name}").fetchone()])
    columns = connection.execute(f"PRAGMA table_info({table})").fetchall()
    _, column, kind, *_ = random.choice(columns)
    value = random.choice([*VALUES[kind], None])
    key = ", ".join(name for _, name, _, _, _, part in columns if part)
    row = random.choice(connection.execute(f"SELECT {key} FROM {table}").fetchall())
    try:
        marks = ", ".join("?" * len(row))
        connection.execute(f"UPDATE {table} SET {column} = ? WHERE ({key}) = ({marks})", (value, *row))
    except (apsw.ConstraintError, apsw.MismatchError):
        pass
    for _, sql in guards:
        connection.execute(sql)
    connection.close()
    return table, column, value


def test_a_file_with_hostile_rows_raises_errors_of_holdfast_only(journal_file: Path, tmp_path: Path) -> None:
    # The same rows in every run but a long one: what is new is for those to find.
    random = seeded("hostile rows") if SOAK else Random(17)
    for number in range(volume(25, 2_500)):
        path = tmp_path / f"{number}.db"
        shutil.copyfile(journal_file, path)
        print(number, change_row(path, random))
        try:
            hf = holdfast.open(path, durability="fast")
        except holdfast.HoldfastError:
            continue
        with hf:
            use(hf)


def looks_at_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(sqlite_connection, "find_schema_changes", lambda *_: ())


def looks_for_what_is_missing_only(patch: pytest.MonkeyPatch) -> None:
    original = sqlite_connection.find_schema_changes

    def find(connection: apsw.Connection, *how: object) -> list[tuple[str, str]]:
        return [one for one in original(connection, *how) if one[1] != "evil"]  # type: ignore[arg-type]

    patch.setattr(sqlite_connection, "find_schema_changes", find)


@pytest.mark.parametrize("plant", [looks_at_nothing, looks_for_what_is_missing_only])
def test_a_file_that_may_run_its_sql_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], journal_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        test_a_journal_with_sql_of_somebody_else_is_refused("a trigger on a row", journal_file, tmp_path)

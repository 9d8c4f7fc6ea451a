"""The schema: equal to the replay of its migrations, as documented, append-only, with every pragma in force."""

from __future__ import annotations

import re
from pathlib import Path

import apsw
import pytest

import holdfast
from holdfast.core.journal.tables import PROJECTIONS
from holdfast.journal.sqlite import SqliteJournal, schema, search, segments
from holdfast.journal.sqlite.statements import migrations, queries, schema_sql
from holdfast.sqlite import connection
from holdfast.sqlite.connection import build_schema, find_schema_changes
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.writer import Writer
from tests.scale import seeded


def test_the_schema_equals_the_replay_of_every_migration() -> None:
    assert build_schema(*(sql for _, _, sql in migrations())) == build_schema(schema_sql())


def test_migrations_are_numbered_without_gaps_and_named() -> None:
    assert [number for number, _, _ in migrations()] == list(range(1, len(migrations()) + 1))
    assert all(re.fullmatch(r"[a-z_]+", name) for _, name, _ in migrations())


def test_the_documented_tables_indexes_and_view_exist() -> None:
    found = build_schema(schema_sql())
    for table in ("events", "frames", "frame_handles", "frame_results", "suspended_frames"):
        assert ("table", table) in found
    for index in (
        "idx_frames_actor",
        "idx_frames_session_thread",
        "idx_frames_status",
        "idx_frames_parent",
        "idx_handles_frame",
        "idx_results_frame",
        "idx_events_type",
        "idx_streams_actor",
    ):
        assert ("index", index) in found
    assert ("view", "active_frame_stacks") in found


def test_every_table_and_unique_key_begins_with_tenant() -> None:
    empty = apsw.Connection(":memory:")
    for _, _, sql in migrations():
        for _ in empty.execute(sql):
            pass
    exempt = {("tenants", "name"), ("meta", "name")}
    for (table,) in empty.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
        for _, index, unique, *_ in empty.execute("SELECT * FROM pragma_index_list(?)", (table,)).fetchall():
            columns = [row[2] for row in empty.execute("SELECT * FROM pragma_index_info(?)", (index,))]
            if unique and (table, columns[0]) not in exempt:
                assert columns[0] == "tenant", (table, index)
    empty.close()


def test_rows_are_read_in_the_order_in_which_tables_describe_their_columns() -> None:
    empty = apsw.Connection(":memory:")
    for _, _, sql in migrations():
        for _ in empty.execute(sql):
            pass
    for table in PROJECTIONS:
        columns = tuple(row[1] for row in empty.execute("SELECT * FROM pragma_table_info(?)", (table.name,)))
        assert columns == ("tenant", "stream", *table.column_names)
    empty.close()


def test_every_query_is_valid(tmp_path: Path) -> None:
    journal = SqliteJournal(tmp_path / "a.db")

    def explain(writer: apsw.Connection) -> None:
        search.create_vector_table(writer)  # These tables are made when they are first needed.
        segments.create_index(writer)
        found = {name: sql for name, sql in queries().items() if name not in ("create_vectors", "create_text_index")}
        for name, sql in found.items():
            for statement in sql.split(";"):
                writer.execute("EXPLAIN " + statement, {}, can_cache=False) if "?" not in statement else writer.execute(
                    "EXPLAIN " + statement, (None,) * _parameters(statement), can_cache=False
                ).fetchall()
            assert name

    journal.connections.write(explain)
    journal.close()


def _parameters(sql: str) -> int:
    numbered = [int(number) for number in re.findall(r"\?(\d+)", sql)]
    return max(numbered) if numbered else sql.count("?")


def test_events_are_append_only_for_everybody(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", {"n": 1})
        vandal = apsw.Connection(str(path))
        for sql in (
            "DELETE FROM events",
            "UPDATE events SET facts = x'00'",
            "UPDATE events SET version = 2",
            "UPDATE events SET hash = zeroblob(32)",
            "UPDATE events SET content = x'7b7d'",
            "UPDATE events SET salt = NULL",
        ):
            with pytest.raises(apsw.ConstraintError):
                vandal.execute(sql)
        vandal.close()
        assert hf.journal.verify().ok


@pytest.mark.parametrize(("durability", "synchronous"), [("full", 2), ("fast", 1)])
def test_every_connection_has_every_pragma_in_force(tmp_path: Path, durability: str, synchronous: int) -> None:
    with holdfast.open(tmp_path / "a.db", durability=durability) as hf:
        journal = hf.env.journal
        assert isinstance(journal, SqliteJournal)
        wanted = {
            "journal_mode": "wal",
            "synchronous": synchronous,
            "fullfsync": 1,
            "checkpoint_fullfsync": 1,
            "foreign_keys": 1,
            "secure_delete": 1,
            "trusted_schema": 0,
            "cell_size_check": 1,
        }
        written = journal.connections.write(lambda writer: {name: writer.pragma(name) for name in wanted})
        with journal.connections.reader() as reader:
            assert {name: reader.pragma(name) for name in wanted} == written == wanted
            assert reader.pragma("query_only") == 1


def test_a_pragma_that_does_not_take_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connection.PRAGMAS, "foreign_keys", 7)
    with pytest.raises(holdfast.Unavailable, match="foreign_keys"):
        holdfast.open(tmp_path / "a.db")


def test_a_file_is_brought_up_step_by_step_and_a_broken_step_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", {"n": 1})
    steps = migrations()
    broken = (*steps, (2, "later", "CREATE TABLE later (x); CREATE TABLE later (x)"))
    monkeypatch.setattr(schema, "migrations", lambda: broken)
    with pytest.raises(holdfast.HoldfastError):
        holdfast.open(path)
    good = (*steps, (2, "later", "CREATE TABLE later (x)"))
    monkeypatch.setattr(schema, "migrations", lambda: good)
    with holdfast.open(path) as hf:
        assert hf.journal.version("s") == 1
    monkeypatch.undo()
    with pytest.raises(holdfast.errors.NewerSchema):
        holdfast.open(path)


def test_a_rebuild_leaves_the_schema_as_it_was_and_others_go_on(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    journal, other = SqliteJournal(path), SqliteJournal(path)
    writer, second = Writer(journal), Writer(other)
    story = FrameGenerator(seeded("rebuild"), writer.env.ids)
    for _ in range(200):
        writer.append("actor/main", *story.step())
    before = dump_projections(journal)
    journal.rebuild()
    with journal.connections.reader() as reader:
        assert find_schema_changes(reader, schema.JOURNAL_FILE, schema.latest_schema()) == []
    assert dump_projections(other) == before
    for _ in range(20):
        second.append("actor/main", *story.step())
    assert dump_projections(other) == dump_projections(journal)
    assert list(journal.check()) == []
    journal.close()
    other.close()


def test_a_rebuild_that_died_is_made_good_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.journal.sqlite import rebuild as rebuilding

    journal = SqliteJournal(tmp_path / "a.db")
    writer = Writer(journal)
    story = FrameGenerator(seeded("rebuild"), writer.env.ids)
    for _ in range(50):
        writer.append("actor/main", *story.step())
    before = dump_projections(journal)

    def dies(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(rebuilding._ProjectionRebuild, "_finish", dies)
    with pytest.raises(KeyboardInterrupt):
        journal.rebuild()
    assert dump_projections(journal) == before
    assert list(journal.check()) == []
    monkeypatch.undo()
    journal.rebuild()
    assert dump_projections(journal) == before
    journal.close()

"""Every command: what it prints, what it leaves behind, and how it fails. In one process, to be quick."""

from __future__ import annotations

import io
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import apsw
import pytest
from rich.console import Console

import holdfast
from holdfast import errors
from holdfast.cli.commands import COMMANDS, GROUPS
from holdfast.cli.main import EXIT_CODES, exit_code, find_command, main, make_app
from holdfast.cli.output import ProgressBar
from holdfast.client.journal import JournalView
from tests.offenders import assert_none

HOSTILE = "red \x1b[31m and \u202e backwards"


class Result(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        (line,) = self.out.splitlines()
        return json.loads(line)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Cli = Callable[..., Result]


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HOLDFAST_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    def call(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        return Result(code, *capsys.readouterr())

    return call


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("original") / "agent.db"
    with holdfast.open(path) as hf:
        for number in range(1, 6):
            hf.journal.append("alice", "app.noted", {"n": number}, facts={"n": number}, key=f"k{number}", subject="al")
        hf.journal.append("bob", "app.asked", HOSTILE, files=[b"large" * 10])
        hf.tenant("acme").journal.append("alice", "app.noted", "of another tenant")
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "agent.db"
    shutil.copy(original, copy)
    return copy


def assert_one_clear_line(result: Result, code: int, *words: str) -> None:
    assert result.code == code, result
    assert result.out == ""
    assert result.err.startswith("holdfast: ")
    assert result.err.count("\n") == 1
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


# help


def test_help_lists_every_command(cli: Cli) -> None:
    for arguments in ([], ["--help"]):
        result = cli(*arguments)
        assert result.code == 0
        assert all(f" {name.split()[0]} " in result.out for name in COMMANDS)
    for group in GROUPS:
        listed = cli(group, "--help")
        assert all(f" {name.split()[1]} " in listed.out for name in COMMANDS if name.startswith(f"{group} "))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_json(cli: Cli, name: str) -> None:
    result = cli(*name.split(), "--help")
    assert result.code == 0
    assert f"Usage: holdfast {name}" in result.out
    assert COMMANDS[name].help in " ".join(result.out.split())
    assert ("--json" in result.out) == (name != "chat"), "a chat is for people, everything else for programs too"


def test_help_names_only_options_that_the_command_has(cli: Cli) -> None:
    app, unknown = make_app(), []
    for name in COMMANDS:
        known = {option for one in find_command(app, name).assemble_argument_collection() for option in one.names}
        named = set(re.findall(r"--[a-z][a-z-]*", cli(*name.split(), "--help").out)) - {"--help"}
        unknown += [f"holdfast {name}: {option}" for option in sorted(named - known)]
    assert_none(unknown, "named in the help of a command that does not have them:")


def test_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version").out.strip() == holdfast.__version__


# log


def test_log_shows_events_in_order_without_cutting_them_in_a_pipe(cli: Cli, path: Path) -> None:
    result = cli("log", path)
    header, *rows = result.out.splitlines()
    assert header.split() == ["seq", "time", "(UTC)", "stream", "v", "type", "facts"]
    assert [row.split()[0] for row in rows] == ["1", "2", "3", "4", "5", "6"]
    assert len(rows[-1].split("artifacts=")[1]) == 68
    assert not any(row.endswith(" ") for row in rows)


def test_log_as_json_is_one_object_a_line(cli: Cli, path: Path) -> None:
    lines = cli("log", path, "--json").lines
    assert [line["seq"] for line in lines] == [1, 2, 3, 4, 5, 6]
    assert lines[0]["stream"] == "session/alice"
    assert lines[0]["facts"] == {"data": {"n": 1}}
    assert lines[0]["key"] == "k1"
    assert not lines[0]["erased"]
    assert "content" not in lines[0]


def test_log_shows_content_only_when_asked(cli: Cli, path: Path) -> None:
    assert "backwards" not in cli("log", path).out
    assert "backwards" in cli("log", path, "--content").out
    assert cli("log", path, "--json", "--content").lines[-1]["content"] == {"data": HOSTILE}


def test_log_spells_out_control_characters(cli: Cli, path: Path) -> None:
    shown = cli("log", path, "--content").out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\u202e" in shown


@pytest.mark.parametrize(
    ("options", "seqs"),
    [
        (["--scope", "alice"], [1, 2, 3, 4, 5]),
        (["--scope", "session/bob"], [6]),
        (["--scope", "nobody"], []),
        (["--type", "app.asked"], [6]),
        (["--type", "app.asked", "--type", "app.noted"], [1, 2, 3, 4, 5, 6]),
        (["--type", "frame.pushed"], []),
        (["--after", "4"], [5, 6]),
        (["--until", "2"], [1, 2]),
        (["--after", "1", "--until", "3"], [2, 3]),
        (["--last", "2"], [5, 6]),
        (["--last", "99"], [1, 2, 3, 4, 5, 6]),
        (["--last", "1", "--until", "3"], [3]),
        (["--last", "1", "--type", "app.noted"], [5]),
        (["--tenant", "acme"], [7]),
        (["--tenant", "nobody"], []),
    ],
)
def test_log_shows_what_was_asked_for(cli: Cli, path: Path, options: list[str], seqs: list[int]) -> None:
    result = cli("log", path, *options, "--json")
    assert result.code == 0
    assert [line["seq"] for line in result.lines] == seqs


def test_log_says_when_nothing_matches(cli: Cli, path: Path) -> None:
    result = cli("log", path, "--scope", "nobody")
    assert (result.code, result.out) == (0, "")
    assert "No events match" in result.err


def test_log_goes_through_many_pages(cli: Cli, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "long.db", durability="fast") as hf:
        for number in range(600):
            hf.journal.append(f"s{number % 7}", "app.noted", facts={"n": number})
    rows = cli("log", tmp_path / "long.db").out.splitlines()[1:]
    assert [int(row.split()[0]) for row in rows] == list(range(1, 601))
    assert len(cli("log", tmp_path / "long.db", "--json", "--last", "300").lines) == 300


# verify and rebuild


def test_verify_says_that_all_is_well(cli: Cli, path: Path) -> None:
    result = cli("verify", path)
    assert result.code == 0
    assert "7 events" in result.out
    assert cli("verify", path, "--json").json == {
        "ok": True,
        "events": 7,
        "streams": 3,
        "rows": 1,
        "artifacts": 1,
        "findings": [],
    }


def test_verify_ends_with_1_and_a_table_when_something_was_changed(cli: Cli, path: Path) -> None:
    change(path, "UPDATE streams SET head = zeroblob(32) WHERE name = 'session/alice' AND tenant = 1")
    result = cli("verify", path)
    assert result.code == 1
    assert "head" in result.out
    assert "session/alice" in result.out
    report = cli("verify", path, "--json")
    assert report.code == 1
    assert not report.json["ok"]
    assert report.json["findings"][0]["kind"] == "head"


def test_rebuild_makes_rows_anew(cli: Cli, path: Path) -> None:
    change(path, "DELETE FROM artifact_refs")
    assert cli("verify", path).code == 1
    assert "7 events" in cli("rebuild", path).out
    assert cli("verify", path).code == 0
    assert cli("rebuild", path, "--json").json == {"events": 7}
    assert cli("rebuild", path, "--since", "7", "--json").json == {"events": 0}
    assert 0 < cli("rebuild", path, "--since", "6", "--json").json["events"] < 7
    assert_one_clear_line(cli("rebuild", path, "--since", "-1"), 2, "since")


# copies


def test_backup_and_restore_give_the_same_journal(cli: Cli, path: Path, tmp_path: Path) -> None:
    copy, again = tmp_path / "copy.db", tmp_path / "again.db"
    assert "Copied" in cli("backup", path, copy).out
    assert cli("restore", copy, again, "--json").json == {"journal": str(again), "seq": 7}
    assert cli("log", again, "--json", "--content").out == cli("log", path, "--json", "--content").out
    assert cli("verify", again).code == 0


def test_backup_as_json_says_where_and_how_large(cli: Cli, path: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert cli("backup", path, copy, "--json").json == {"backup": str(copy), "bytes": copy.stat().st_size}


def test_restore_goes_back_to_a_point_in_time(cli: Cli, path: Path, tmp_path: Path) -> None:
    assert cli("restore", path, tmp_path / "then.db", "--seq", "3").code == 0
    assert [line["seq"] for line in cli("log", tmp_path / "then.db", "--json").lines] == [1, 2, 3]
    assert_one_clear_line(cli("restore", path, tmp_path / "future.db", "--seq", "99"), 2, "99")
    assert not (tmp_path / "future.db").exists()


def test_export_and_import_give_the_same_journal(cli: Cli, path: Path, tmp_path: Path) -> None:
    lines, again = tmp_path / "all.jsonl", tmp_path / "again.db"
    answer = cli("export", path, lines, "--json").json
    assert answer == {
        "export": str(lines),
        "lines": len(lines.read_bytes().splitlines()),
        "bytes": lines.stat().st_size,
    }
    assert cli("import", again, lines, "--json").json == {"journal": str(again), "events": 7}
    assert cli("log", again, "--json", "--content").out == cli("log", path, "--json", "--content").out
    assert cli("verify", again).code == 0


def test_export_and_import_tell_people_what_they_did(cli: Cli, path: Path, tmp_path: Path) -> None:
    assert "lines to" in cli("export", path, tmp_path / "some.jsonl", "--until", "2").out
    assert "Imported 2 events" in cli("import", tmp_path / "some.db", tmp_path / "some.jsonl").out


@pytest.mark.parametrize("command", ["backup", "export", "restore"])
def test_copies_never_overwrite(cli: Cli, path: Path, tmp_path: Path, command: str) -> None:
    target = tmp_path / "precious"
    target.write_text("precious")
    assert_one_clear_line(cli(command, path, target), 2, "exists already")
    assert target.read_text() == "precious"


@pytest.mark.parametrize("damage", [b"no json\n", b"{}\n", b'{"kind":"journal","format":99}\n', None])
def test_import_of_a_bad_export_leaves_no_journal(cli: Cli, path: Path, tmp_path: Path, damage: bytes | None) -> None:
    lines = tmp_path / "bad.jsonl"
    assert cli("export", path, lines).code == 0
    lines.write_bytes(lines.read_bytes()[:-40] if damage is None else damage)
    assert_one_clear_line(cli("import", tmp_path / "new.db", lines), 2)
    assert list(tmp_path.glob("new.db*")) == []


def test_import_that_fails_late_takes_its_files_back(cli: Cli, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "large.db") as hf:
        hf.journal.append("s", "app.noted", files=[bytes(300_000)])
    assert cli("export", tmp_path / "large.db", tmp_path / "all.jsonl").code == 0
    with (tmp_path / "all.jsonl").open("ab") as lines:
        lines.write(b"{}\n")
    assert_one_clear_line(cli("import", tmp_path / "new.db", tmp_path / "all.jsonl"), 2, "Line 4")
    assert list(tmp_path.glob("new.db*")) == []


def test_import_that_fails_leaves_what_others_wrote_meanwhile(
    cli: Cli, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli("export", path, tmp_path / "all.jsonl").code == 0
    real = JournalView.import_

    def somebody_was_first(self: JournalView, source: object, progress: object = None) -> int:
        self.append("s", "app.noted")
        return real(self, str(source))

    monkeypatch.setattr(JournalView, "import_", somebody_was_first)
    assert_one_clear_line(cli("import", tmp_path / "new.db", tmp_path / "all.jsonl"), 2, "empty")
    assert len(cli("log", tmp_path / "new.db", "--json").lines) == 1


def test_import_takes_only_an_empty_journal(cli: Cli, path: Path, tmp_path: Path) -> None:
    assert cli("export", path, tmp_path / "all.jsonl").code == 0
    assert_one_clear_line(cli("import", path, tmp_path / "all.jsonl"), 2, "empty")
    assert cli("verify", path).code == 0
    assert_one_clear_line(cli("import", tmp_path / "new.db", tmp_path / "nothing.jsonl"), 2, "nothing.jsonl")
    assert not (tmp_path / "new.db").exists()


# erase


class Typing(io.StringIO):
    """A terminal at which somebody types."""

    def isatty(self) -> bool:
        return True


def test_erase_removes_content_and_the_chain_still_verifies(cli: Cli, path: Path) -> None:
    assert cli("erase", path, "al", "--yes", "--json").json == {"subject": 1, "events": 5, "artifacts": 0}
    lines = cli("log", path, "--scope", "alice", "--json", "--content").lines
    assert all(line["erased"] and line["content"] is None for line in lines)
    assert "(erased)" in cli("log", path, "--content").out
    assert cli("verify", path).code == 0
    assert_one_clear_line(cli("erase", path, "al", "--yes"), 2, "'al'")


def test_erase_asks_first(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for answer in ("n\n", "\n", ""):
        monkeypatch.setattr("sys.stdin", Typing(answer))
        result = cli("erase", path, "al")
        assert result.code == 2
        assert "cannot be undone" in result.err
        assert "Nothing was erased" in result.err
    monkeypatch.setattr("sys.stdin", Typing("y\n"))
    assert "5 events" in cli("erase", path, "al").out


def test_erase_without_anybody_to_ask_is_refused(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert_one_clear_line(cli("erase", path, "al"), 2, "--yes")
    assert not any(line["erased"] for line in cli("log", path, "--json").lines)


def test_erase_stays_within_its_tenant(cli: Cli, path: Path) -> None:
    assert_one_clear_line(cli("erase", path, "al", "--yes", "--tenant", "acme"), 2, "'al'")


# doctor


def test_doctor_shows_what_is_in_force(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BUSY_MS", "1234")
    report = cli("doctor", path, "--json").json
    assert report["versions"].keys() >= {"holdfast", "python", "apsw", "sqlite"}
    assert report["journal"] | {"events": 7, "cursor": 7, "streams": 3, "tenants": 2} == report["journal"]
    assert report["pragmas"] | {"durability": "full", "journal_mode": "wal", "foreign_keys": 1} == report["pragmas"]
    assert report["settings"]["busy_ms"] == {"value": 1234, "from": "environment", "variable": "HOLDFAST_BUSY_MS"}
    assert report["settings"]["nesting"]["from"] == "default"
    shown = cli("doctor", path).out
    assert "1234 (environment)" in shown
    assert str(path) in shown
    assert "write-ahead log" in shown


def test_doctor_warns_of_open_modes_and_misspelt_variables(
    cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.chmod(0o644)
    monkeypatch.setenv("HOLDFAST_BUSY_MSEC", "1")
    shown = cli("doctor", path).out
    assert "chmod 600" in shown
    assert "HOLDFAST_BUSY_MSEC" in shown
    path.chmod(0o600)
    monkeypatch.delenv("HOLDFAST_BUSY_MSEC")
    assert "No warnings." in cli("doctor", path).out


def test_doctor_needs_no_journal(cli: Cli) -> None:
    report = cli("doctor", "--json").json
    assert "journal" not in report
    assert report["pragmas"]["durability"] == "full"


# which journal


def test_the_environment_names_the_journal(
    cli: Cli, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_URL", f"sqlite:///{path}")
    assert len(cli("log", "--json").lines) == 6
    assert cli("verify").code == 0
    assert cli("doctor", "--json").json["journal"]["events"] == 7
    assert cli("backup", tmp_path / "copy.db").code == 0
    assert cli("export", tmp_path / "all.jsonl").code == 0
    assert cli("erase", "al", "--yes").code == 0
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "new.db"))
    assert cli("import", tmp_path / "all.jsonl").code == 0
    monkeypatch.setenv("HOLDFAST_URL", str(tmp_path / "newer.db"))
    assert cli("restore", tmp_path / "copy.db").code == 0
    assert cli("verify").code == 0


@pytest.mark.parametrize(
    "command", [["log"], ["verify"], ["rebuild"], ["restore", "x"], ["backup", "x"], ["erase", "x"]]
)
def test_without_a_journal_a_command_asks_for_one(cli: Cli, command: list[str], path: Path) -> None:
    command = [str(path) if word == "x" else word for word in command]
    assert_one_clear_line(cli(*command), 2, "HOLDFAST_URL")


# bad input


def change(path: Path, sql: str) -> None:
    connection = apsw.Connection(str(path))
    for _ in connection.execute(sql):
        pass
    connection.close()


def nothing(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def empty(path: Path) -> None:
    path.write_bytes(b"")


def text(path: Path) -> None:
    path.write_text("not SQLite at all " * 500)


def something_else(path: Path) -> None:
    path.unlink()
    change(path, "CREATE TABLE t (x)")


def newer(path: Path) -> None:
    change(path, "PRAGMA user_version = 999")


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() if file.is_file() else b"" for file in folder.iterdir()}


BAD = {
    nothing: "no journal at",
    folder: "folder",
    empty: "not a journal",
    text: "does not hold a holdfast journal",
    something_else: "something else",
    newer: "Upgrade",
}
USES = [
    ["log", "PATH"],
    ["verify", "PATH"],
    ["rebuild", "PATH"],
    ["backup", "PATH", "OTHER"],
    ["restore", "PATH", "OTHER"],
    ["export", "PATH", "OTHER"],
    ["erase", "PATH", "al", "--yes"],
    ["doctor", "PATH"],
]


@pytest.mark.parametrize("use", USES, ids=lambda use: use[0])
@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_what_is_not_a_journal_is_refused_and_left_alone(
    cli: Cli, path: Path, tmp_path: Path, use: list[str], make: Callable[[Path], None]
) -> None:
    make(path)
    before = contents(tmp_path)
    places = {"PATH": str(path), "OTHER": str(tmp_path / "other")}
    for json_option in ([], ["--json"]):
        result = cli(*(places.get(word, word) for word in use), *json_option)
        assert_one_clear_line(result, 2, BAD[make])
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["log", "PATH", "--last", "0"], "--last"),
        (["log", "PATH", "--last", "x"], "--last"),
        (["log", "PATH", "--after", "-1"], "after"),
        (["log", "PATH", "--until", "-1"], "until"),
        (["log", "PATH", "--follow", "--until", "3"], "--until"),
        (["log", "PATH", "--scope", "no/such/kind"], "scope"),
        (["log", "PATH", "--scope", ""], "empty"),
        (["log", "PATH", "--tenant", ""], "empty"),
        (["log", "PATH", "--bogus"], "--bogus"),
        (["log", "PATH", "extra"], "extra"),
        (["log", "memory:"], "memory"),
        (["log", "postgresql://localhost/x"], "postgresql"),
        (["log", "nul\0character"], "NUL"),
        (["log", "evil\x1b[31m.db"], "\\x1b"),
        (["restore", "PATH", "OTHER", "--seq", "-1"], "seq"),
        (["export", "PATH", "OTHER", "--until", "x"], "--until"),
        (["backup", "PATH", "/no/such/folder/copy.db"], "/no/such/folder"),
        (["export", "PATH", "/no/such/folder/copy.jsonl"], "/no/such/folder"),
        (["erase", "PATH", "", "--yes"], "subject"),
        (["bogus"], "bogus"),
        (["--bogus"], "--bogus"),
    ],
)
def test_bad_values_are_refused_in_one_line(
    cli: Cli, path: Path, tmp_path: Path, arguments: list[str], word: str
) -> None:
    places = {"PATH": str(path), "OTHER": str(tmp_path / "other")}
    result = cli(*(places.get(argument, argument) for argument in arguments))
    assert_one_clear_line(result, 3 if "/no/such/folder/copy.jsonl" in arguments else 2, word)
    assert not (tmp_path / "other").exists()


def test_a_bad_setting_is_named(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_NESTING", "many")
    for command in ("log", "verify", "doctor"):
        assert_one_clear_line(cli(command, path), 2, "HOLDFAST_NESTING")


def test_a_locked_journal_is_unavailable(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_BUSY_MS", "50")
    other = apsw.Connection(str(path))
    other.execute("BEGIN IMMEDIATE")
    try:
        assert_one_clear_line(cli("rebuild", path), 3, "lock")
    finally:
        other.close()


# damage


@pytest.mark.parametrize("at", [0.2, 0.4, 0.6, 0.8])
def test_damaged_pages_are_reported_and_never_a_traceback(cli: Cli, path: Path, tmp_path: Path, at: float) -> None:
    with path.open("r+b") as file:
        file.seek(int(path.stat().st_size * at) // 4096 * 4096)
        file.write(b"\xa5" * 4096)
    assert cli("verify", path).code == 1
    assert not cli("verify", path, "--json").json["ok"]
    for command in (["log", path], ["rebuild", path], ["export", path, tmp_path / "e"], ["erase", path, "al", "--yes"]):
        result = cli(*command)
        assert result.code in (0, 1, 2, 3)
        assert "Traceback" not in result.err
        if result.code:
            assert result.err.count("\n") == 1


def test_a_journal_cut_short_is_reported(cli: Cli, path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    assert cli("verify", path).code == 1


# codes, colours, progress


def test_every_error_has_the_code_of_what_can_be_done_about_it() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    assert len(kinds) > 15
    for kind in kinds:
        wanted = 1 if issubclass(kind, holdfast.Corrupt) else 2
        if issubclass(kind, holdfast.Unavailable | holdfast.OutcomeUnknown):
            wanted = 3
        assert exit_code(kind.__new__(kind)) == wanted
        assert wanted in EXIT_CODES


def test_what_takes_long_shows_a_bar_on_a_terminal() -> None:
    terminal = Console(file=io.StringIO(), force_terminal=True, width=100)
    with ProgressBar("verify", patience=0, on=terminal) as progress:
        progress._timer.join()
        progress(250, 1000)
        progress._bar.refresh()
    assert isinstance(terminal.file, io.StringIO)
    assert "250/1000" in terminal.file.getvalue()


def test_what_is_quick_or_unwatched_shows_no_bar() -> None:
    for console in (Console(file=io.StringIO(), force_terminal=True), Console(file=io.StringIO())):
        with ProgressBar("verify", patience=0 if not console.is_terminal else 60, on=console) as progress:
            progress(250, 1000)
        assert isinstance(console.file, io.StringIO)
        assert console.file.getvalue() == ""

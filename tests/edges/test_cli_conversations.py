"""`export` and `import` of one conversation: every form, repairs told, and no trace of what is refused."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import transfer
from holdfast.cli.main import main
from holdfast.cli.output import ProgressBar
from holdfast.cli.transfer import read_conversation
from holdfast.flow.sessions import import_export
from tests.scale import volume

from .test_cli import BAD, Result, assert_one_clear_line, contents
from .test_cli_frames import HOLDFAST, on_a_terminal
from .test_cli_sessions import HOSTILE, position, shown_unsafely

Cli = Callable[..., Result]
FORMATS = ("openai", "responses", "anthropic", "jsonl")

SYSTEM = {"role": "system", "content": "Be terse."}
USER = {"role": "user", "content": "Wie spät?"}
CALLS = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "clock", "arguments": '{"zone":"utc"}'}}],
}
ANSWER = {"role": "tool", "tool_call_id": "c1", "content": "noon"}
SAID = {"role": "assistant", "content": "Noon."}
WHOLE = [SYSTEM, USER, CALLS, ANSWER, SAID]
ORPHAN = {"role": "tool", "tool_call_id": "nobody's \x1b[31m", "content": "lost"}


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
        hf.session("alice", model="gpt-5-mini").import_messages(WHOLE)
    return path


@pytest.fixture
def path(original: Path, tmp_path: Path) -> Path:
    shutil.copy(original, tmp_path / "agent.db")
    return tmp_path / "agent.db"


@pytest.fixture
def given(tmp_path: Path) -> Callable[[Any], Path]:
    """A file that holds something."""

    def write(what: Any) -> Path:
        body = (
            what if isinstance(what, bytes) else what.encode() if isinstance(what, str) else json.dumps(what).encode()
        )
        (tmp_path / "given").write_bytes(body)
        return tmp_path / "given"

    return write


Given = Callable[[Any], Path]


def piped(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(body)))


def said(path: Path, session: str = "alice", thread: str = "main") -> list[Any]:
    with holdfast.open(path) as hf:
        found: list[Any] = hf.session(session, thread=thread, create=False).export()["messages"]
        return found


# out


@pytest.mark.parametrize("format", FORMATS)
def test_a_conversation_goes_out_and_comes_back_in_every_form(
    cli: Cli, path: Path, tmp_path: Path, format: str
) -> None:
    out = tmp_path / "conversation"
    answer = cli("export", path, "--session", "alice", "--format", format, "-o", out, "--json").json
    assert answer == {"export": str(out), "format": format, "messages": 4, "bytes": out.stat().st_size}
    assert cli("export", path, "--session", "alice", "--format", format).out == out.read_text("utf-8")
    assert out.stat().st_mode & 0o077 == 0
    done = cli("import", path, out, "--session", "copy", "--format", format, "--strict", "--json").json
    assert (done["messages"], done["repairs"], done["new_session"]) == (4, [], True)
    assert said(path, "copy") == said(path, "alice") == WHOLE
    assert cli("verify", path).code == 0


def test_openai_is_the_form_if_none_is_named(cli: Cli, path: Path) -> None:
    exported = cli("export", path, "--session", "alice").json
    assert exported["messages"] == WHOLE
    assert exported == cli("export", path, "--session", "alice", "--format", "openai", "-o", "-", "--json").json


def test_an_export_never_overwrites_and_appears_whole(
    cli: Cli, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "precious").write_text("precious")
    assert_one_clear_line(cli("export", path, "--session", "alice", "-o", tmp_path / "precious"), 2, "exists already")
    assert (tmp_path / "precious").read_text() == "precious"
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    assert_one_clear_line(cli("export", path, "--session", "alice", "-o", tmp_path / "new"), 3, "full")
    assert not list(tmp_path.glob("new*"))
    assert_one_clear_line(cli("export", path, "--session", "alice", "-o", "/no/such/folder/x"), 3, "/no/such/folder")


def test_an_export_shown_on_a_terminal_does_nothing_to_it(path: Path) -> None:
    with holdfast.open(path) as hf:
        hf.session("evil").append(HOSTILE)
    code, screen = on_a_terminal("export", path, "--session", "evil")
    assert code == 0
    assert not shown_unsafely(screen.replace("\r", ""))
    assert json.loads(screen)["messages"][0]["content"] == HOSTILE


def test_a_thread_is_exported_and_imported_by_its_name(cli: Cli, path: Path, given: Given) -> None:
    result = cli("import", path, given([USER]), "--session", "alice", "--thread", "other")
    assert "1 messages into thread 'other' of session 'alice'" in result.out
    assert f"holdfast messages {path} alice --thread other" in result.err
    assert cli("export", path, "--session", "alice", "--thread", "other").json["messages"] == [SYSTEM, USER]
    assert said(path) == WHOLE


# in


def lines(*messages: Any) -> str:
    return "".join(json.dumps(message) + "\n" for message in messages)


@pytest.mark.parametrize(
    "form",
    [
        WHOLE,
        {"messages": WHOLE, "model": "gpt-5-mini"},
        lines(*WHOLE),
        "\n" + lines(*WHOLE).replace("\n", "\r\n\r\n"),
        b"\xef\xbb\xbf" + json.dumps(WHOLE, indent=2).encode(),
    ],
    ids=["array", "object", "lines", "blank lines", "byte order mark"],
)
def test_openai_messages_come_as_an_array_an_object_or_lines(cli: Cli, path: Path, given: Given, form: Any) -> None:
    result = cli("import", path, given(form), "--session", "new")
    assert (result.code, result.out) == (0, f"Imported 4 messages into the new session 'new' of {path}.\n")
    assert said(path, "new") == WHOLE


def test_a_single_message_and_an_empty_list_are_conversations_as_well(cli: Cli, path: Path, given: Given) -> None:
    assert "Imported 1 messages" in cli("import", path, given(USER), "--session", "one").out
    assert "Imported 0 messages" in cli("import", path, given([]), "--session", "none").out


def test_standard_input_is_a_dash(cli: Cli, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, json.dumps([USER]).encode())
    assert cli("import", path, "-", "--session", "new", "--json").json["messages"] == 1
    monkeypatch.setenv("HOLDFAST_URL", str(path))
    piped(monkeypatch, json.dumps([SAID]).encode())
    assert cli("import", "-", "--session", "new").code == 0
    assert cli("export", "--session", "new").json["messages"] == [USER, SAID]
    piped(monkeypatch, b"")
    assert_one_clear_line(cli("import", "-", "--session", "new"), 2, "Standard input is empty")
    monkeypatch.setattr("sys.stdin", None)
    assert_one_clear_line(cli("import", "-", "--session", "new"), 2, "standard input")


def test_repairs_are_told_and_many_of_them_in_short(cli: Cli, path: Path, given: Given) -> None:
    result = cli("import", path, given([USER, ORPHAN, SAID, *[ORPHAN] * 24]), "--session", "new")
    assert "Imported 2 messages" in result.out
    assert "25 repairs were needed:\nmessage  problem" in result.out
    assert "\n      1  orphan_result  " in result.out
    assert result.out.count("orphan_result") == 20
    assert result.out.endswith("and 5 more; --json has them all.\n")
    assert not shown_unsafely(result.out)
    assert len(cli("import", path, given([USER, *[ORPHAN] * 25]), "--session", "b", "--json").json["repairs"]) == 25
    assert said(path, "new") == [USER, SAID]


def test_strict_refuses_what_would_be_repaired_and_leaves_no_trace(cli: Cli, path: Path, given: Given) -> None:
    before = position(path)
    for session in ("alice", "new"):
        result = cli("import", path, given([USER, *[ORPHAN] * 5]), "--session", session, "--strict")
        assert_one_clear_line(result, 2, "broken in 5 places", "message 1: orphan_result", "and 2 more", "--strict")
        assert not shown_unsafely(result.err)
    assert position(path) == before


def test_a_refusal_that_comes_too_late_would_be_noticed(
    cli: Cli, path: Path, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_check_import", lambda *_, **__: None)
    before = position(path)
    assert cli("import", path, given([ORPHAN]), "--session", "new", "--strict").code == 2
    assert position(path) > before


def test_a_key_lets_a_conversation_in_once(cli: Cli, path: Path, given: Given) -> None:
    command = ["import", path, given([USER, SAID]), "--session", "new", "--key", "k"]
    assert "Imported 2 messages" in cli(*command).out
    again = cli(*command)
    assert (again.code, again.err) == (0, "")
    assert "with this key before; nothing changed" in again.out
    assert cli(*command, "--json").json["repeated"]
    assert len(said(path, "new")) == 2
    given([SAID])
    assert_one_clear_line(cli(*command), 2, "'k'")


def test_a_new_journal_is_made_for_a_conversation_and_for_nothing_less(cli: Cli, tmp_path: Path, given: Given) -> None:
    new = tmp_path / "new.db"
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": json.dumps("x" * 2_000_000)}}
    too_large = {"role": "assistant", "content": None, "tool_calls": [call]}
    for bad in (b"{", [ORPHAN], b"\x00\xff", [too_large]):
        assert_one_clear_line(cli("import", new, given(bad), "--session", "s", "--strict"), 2)
    assert_one_clear_line(cli("import", new, given(WHOLE), "--session", ""), 2, "empty")
    assert not list(tmp_path.glob("new.db*"))
    result = cli("import", new, given(WHOLE), "--session", "s", "--tenant", "acme", "--json").json
    assert result | {"new_journal": True, "new_session": True, "messages": 4} == result
    assert [one["id"] for one in cli("sessions", new, "--tenant", "acme", "--json").json["sessions"]] == ["s"]
    assert cli("sessions", new, "--json").json["sessions"] == []


def test_a_long_import_shows_how_far_it_is(cli: Cli, path: Path, given: Given, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[int, int]] = []
    monkeypatch.setattr(ProgressBar, "__call__", lambda _, done, total: seen.append((done, total)))
    assert cli("import", path, given([USER] * 250), "--session", "long").code == 0
    assert len(seen) > 1
    assert {total for _, total in seen} == {250}


def test_a_session_that_is_closed_takes_nothing_in(cli: Cli, path: Path, given: Given) -> None:
    with holdfast.open(path) as hf:
        hf.session("alice").close()
    before = position(path)
    assert_one_clear_line(cli("import", path, given([USER]), "--session", "alice"), 2, "closed")
    assert position(path) == before


# what is not what it is said to be

TOOL_USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {}}]}
TRUNCATED = json.dumps(WHOLE)[:-20]


@pytest.mark.parametrize(
    ("format", "body", "words"),
    [
        ("openai", b"", ["is empty", "JSON array"]),
        ("jsonl", b" \n\n", ["is empty", "message a line"]),
        ("openai", b"no json", ["not JSON", "JSON array"]),
        ("openai", TRUNCATED, ["not JSON", "JSON array"]),
        ("openai", lines(USER, SAID)[:-10], ["Line 2", "not JSON"]),
        ("openai", bytes(range(256)), ["not JSON", "UTF-8"]),
        ("openai", json.dumps(WHOLE).encode("utf-16"), ["UTF-8"]),
        ("openai", "[" * 100_000, ["nested"]),
        ("openai", "7", ["a number", "JSON array"]),
        ("openai", '"hello"', ["a text", "JSON array"]),
        ("openai", "null", ["null"]),
        ("openai", {"choices": []}, ['without "messages"', "JSON array"]),
        ("openai", {"messages": {}}, ['"messages" is no list']),
        ("openai", [1, 2], ["no message", "malformed"]),
        ("openai", [{"type": "human", "content": "x"}], ["no message", "--format"]),
        ("openai", lines({"messages": WHOLE}, {"messages": WHOLE}), ["Line 1", "one at a time"]),
        ("openai", [USER, TOOL_USE], ["looks like anthropic", "--format anthropic"]),
        ("openai", {"system": "x", "messages": [USER]}, ["looks like anthropic"]),
        ("openai", {"input": [USER]}, ["looks like responses", "--format responses"]),
        ("openai", lines({"holdfast": 1, "system": "x"}, USER), ["looks like jsonl"]),
        ("openai", lines({"kind": "journal", "format": 1}), ["without --session"]),
        ("jsonl", lines({"kind": "journal", "format": 1}), ["without --session"]),
        ("jsonl", lines(CALLS), ["looks like openai"]),
        ("jsonl", [USER], ["Line 1", "one message"]),
        ("jsonl", lines(USER, {"role": "user", "content": "x", "extra": 1}), ["Line 2", "extra"]),
        ("jsonl", lines(USER, SAID)[:-10], ["Line 2", "not JSON"]),
        ("anthropic", WHOLE, ["looks like openai", "--format openai"]),
        ("anthropic", {"input": "hi"}, ["looks like responses"]),
        ("responses", {"messages": [USER]}, ['without "input"', "JSON array of items"]),
        ("responses", WHOLE, ["looks like openai"]),
        ("xml", WHOLE, ["'xml'", "openai, responses, anthropic, jsonl"]),
    ],
)
def test_a_file_that_is_something_else_is_refused_with_what_was_expected(
    cli: Cli, path: Path, given: Given, format: str, body: Any, words: list[str]
) -> None:
    before = position(path)
    assert_one_clear_line(cli("import", path, given(body), "--session", "new", "--format", format), 2, *words)
    assert position(path) == before


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_cut_off_anywhere_is_read_or_refused_and_never_a_crash(given: Given, format: str) -> None:
    bodies = [lines(*WHOLE).encode(), json.dumps({"messages": WHOLE, "input": WHOLE}, indent=1).encode()]
    for body in bodies:
        for cut in range(0, len(body), volume(31, 3)):
            with suppress(holdfast.HoldfastError):
                import_export.read_format(format, read_conversation(str(given(body[:cut])), format))


def test_the_wrong_format_would_lose_calls_without_a_word(
    cli: Cli, path: Path, given: Given, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "_check_format_marks", lambda *_: None)
    assert cli("import", path, given([USER, TOOL_USE]), "--session", "new").code == 0
    assert "tool_calls" not in said(path, "new")[1]


def test_what_programs_write_that_is_not_quite_json_is_repaired(cli: Cli, path: Path, given: Given) -> None:
    body = '[{"role": "user", "content": "half \\ud83d"}, {"role": "user", "content": "x", "score": NaN}]'
    done = cli("import", path, given(body), "--session", "new", "--json").json
    assert [repair["problem"] for repair in done["repairs"]] == ["malformed", "malformed"]
    assert said(path, "new")[0]["content"] == "half \ufffd"


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["import", "PATH", "FOLDER", "--session", "s"], "folder"),
        (["import", "PATH", "NOTHING", "--session", "s"], "no file at"),
        (["import", "PATH", "nul\0", "--session", "s"], "NUL"),
        (["import", "PATH", "--session", "s"], "HOLDFAST_URL"),
        (["import", "--session", "s"], "HOLDFAST_URL"),
        (["import", "PATH", "--bogus", "--session", "s"], "--bogus"),
        (["import", "PATH", "GIVEN", "--session", "s", "--key", ""], "key"),
        (["import", "PATH", "GIVEN", "--session", "s", "--thread", ""], "thread"),
        (["import", "PATH", "GIVEN", "--session", "s", "--tenant", ""], "tenant"),
        (["import", "PATH", "GIVEN", "--format", "openai"], "--session"),
        (["import", "PATH", "GIVEN", "--strict"], "--session"),
        (["import", "PATH", "GIVEN", "--key", "k"], "--session"),
        (["export", "PATH", "--session", "nobody"], "holdfast sessions"),
        (["export", "PATH", "--session", "alice", "--thread", "x"], "'main'"),
        (["export", "PATH", "--session", "alice", "--format", "xml"], "openai, responses"),
        (["export", "PATH", "--session", "alice", "--until", "3"], "--until"),
        (["export", "PATH", "NOTHING", "-o", "NOTHING", "--session", "alice"], "not both"),
        (["export", "PATH", "NOTHING", "--thread", "main"], "--session"),
        (["export", "--session", "alice"], "HOLDFAST_URL"),
        (["export"], "HOLDFAST_URL"),
    ],
)
def test_bad_values_are_refused_in_one_line_and_change_nothing(
    cli: Cli, path: Path, tmp_path: Path, given: Given, arguments: list[str], word: str
) -> None:
    (tmp_path / "folder").mkdir()
    places = {"PATH": path, "FOLDER": tmp_path / "folder", "NOTHING": tmp_path / "nothing", "GIVEN": given([USER])}
    before = contents(tmp_path).keys(), position(path)
    assert_one_clear_line(cli(*(places.get(argument, argument) for argument in arguments)), 2, word)
    assert (contents(tmp_path).keys(), position(path)) == before


@pytest.mark.parametrize("make", [make for make in BAD if make.__name__ != "nothing"], ids=lambda make: make.__name__)
def test_what_is_not_a_journal_takes_nothing_in_and_is_left_alone(
    cli: Cli, path: Path, tmp_path: Path, given: Given, make: Callable[[Path], None]
) -> None:
    source = given([USER])
    make(path)
    before = contents(tmp_path)
    assert_one_clear_line(cli("import", path, source, "--session", "s"), 2, BAD[make])
    assert contents(tmp_path) == before


def test_a_conversation_is_piped_into_another_process(cli: Cli, path: Path, tmp_path: Path) -> None:
    exported = cli("export", path, "--session", "alice", "--format", "jsonl").out
    into = [*HOLDFAST, "import", str(tmp_path / "new.db"), "-", "--session", "alice", "--format", "jsonl"]
    done = subprocess.run(into, input=exported.encode(), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout + done.stderr
    assert said(tmp_path / "new.db") == WHOLE

"""`pack` and `why`: what a call was shown, where a fact went, what is kept from the terminal, and how they refuse."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

import holdfast
from holdfast.cli import output
from holdfast.cli.main import main
from holdfast.cli.pack import DECISION_COLUMNS, SEGMENT_COLUMNS
from holdfast.core.packs.manifest import REASONS

from .test_cli import BAD, Result, assert_one_clear_line, contents
from .test_cli_frames import HOLDFAST, on_a_terminal
from .test_cli_sessions import HOSTILE, NOBODY, position, shown_unsafely

Cli = Callable[..., Result]
NUTS = "allergic to nuts"
CALLS = 9


class Made(NamedTuple):
    """What the journal of these tests holds."""

    path: Path
    calls: list[str]
    digests: list[str]


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
def original(tmp_path_factory: pytest.TempPathFactory) -> Made:
    path = tmp_path_factory.mktemp("original") / "agent.db"
    calls, digests = [], []
    with holdfast.open(path, durability="fast") as hf:
        chat = hf.session("alice", system="Be terse.", model="gpt-5-mini")
        chat.append("My daughter is allergic to nuts.")
        for turn in range(CALLS):
            pack = chat.pack(300)
            calls.append(chat.packs.begin_model_call(pack))
            digests.append(pack.digest)
            chat.append({"role": "assistant", "content": f"Reply {turn} {'bla ' * 20}"})
            chat.append(f"Question {turn} {'hm ' * 20}")
        chat.fork(thread="other").append("Only in the branch.")
        bob = hf.session("bob", system=HOSTILE)
        bob.append(HOSTILE)
        bob.packs.begin_model_call(bob.pack(4_000))
        hf.session("empty")
        hf.tenant("acme").session("theirs").append("Of another tenant")
    return Made(path, calls, digests)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    shutil.copy(original.path, tmp_path / "agent.db")
    return original._replace(path=tmp_path / "agent.db")


def table(out: str, columns: tuple[str, ...]) -> list[list[str]]:
    """The rows below a header, each as its cells."""
    lines = out.splitlines()
    start = next(at for at, line in enumerate(lines) if line.split()[: len(columns)] == " ".join(columns).split())
    rows = []
    for line in lines[start + 1 :]:
        if not line:
            break
        rows.append(re.split("  +", line.strip(), maxsplit=len(columns) - 1))
    return rows


# pack


def test_a_pack_made_now_is_shown_with_its_pieces(cli: Cli, made: Made) -> None:
    result = cli("pack", made.path, "alice", "--budget", "300")
    with holdfast.open(made.path) as hf:
        pack = hf.session("alice", create=False).pack(300)
    head, legend, *_ = result.out.splitlines()
    assert head.startswith(f"{pack.tokens} of 300 tokens ({pack.tokens / 300:.0%}), level {pack.level}, exact, ")
    assert f"{pack.cached_share:.0%} cached" in head
    assert f"{pack.conversation.truncated_count} left out" in head
    assert legend.split("  ")[-1] == f"free {300 - pack.tokens}"
    rows = table(result.out, SEGMENT_COLUMNS)
    assert [(row[0], row[1], int(row[2])) for row in rows] == [
        (one.kind, one.id, one.estimated_tokens) for one in pack.segments
    ]
    assert rows[0][-1] == "Be terse."
    assert rows[-1][-1].startswith("Question 8 hm")
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize("spelled", ["number", "from the end", "id", "small letters"])
def test_a_call_is_named_by_its_number_or_its_id(cli: Cli, made: Made, spelled: str) -> None:
    for at, call in enumerate(made.calls):
        name = {"number": at + 1, "from the end": at - CALLS, "id": call, "small letters": call.lower()}[spelled]
        shown = cli("pack", made.path, "alice", "--call", name, "--json").json
        assert shown["digest"] == made.digests[at], "what was sent then, and nothing else"
        assert shown["metadata"]["pack_id"]


def test_decisions_are_told_in_words(cli: Cli, made: Made) -> None:
    result = cli("pack", made.path, "alice", "--budget", "300", "--why")
    rows = table(result.out, DECISION_COLUMNS)
    assert any(row[0] == "earlier" and row[2] == "omitted" for row in rows)
    words = set(REASONS.values())
    for row in rows:
        assert re.sub(r" \([\d,]+ messages\)$", "", row[-1]) in words
    known = cli("pack", made.path, "alice", "--budget", "300", "--why", "--json").json["decisions"]
    assert [row[0] for row in rows] == [one["id"] for one in known]
    assert "decisions" not in cli("pack", made.path, "alice", "--budget", "300", "--json").json


def test_two_calls_are_compared(cli: Cli, made: Made) -> None:
    with holdfast.open(made.path) as hf:
        left = hf.session("alice", create=False).why(NUTS).left
    assert left is not None
    at = made.calls.index(left.call) + 1
    result = cli("pack", made.path, "alice", "--call", at, "--diff", at - 1)
    signs = {(line[0], line.split()[2]) for line in result.out.splitlines() if re.match(r"[-+~]  \w", line)}
    assert ("-", "m2") in signs
    assert ("+", "earlier") in signs
    known = cli("pack", made.path, "alice", "--call", at, "--diff", at - 1, "--json").json["diff"]
    assert {one["id"] for one in known["removed"]} == {id for sign, id in signs if sign == "-"}
    assert known["level"] == ["none", "moderate"]
    same = cli("pack", made.path, "alice", "--call", at, "--diff", at)
    assert "The packs are the same." in same.out


def test_a_pack_as_json_has_whole_texts(cli: Cli, made: Made) -> None:
    shown = cli("pack", made.path, "bob", "--json").json
    assert shown["system"] == HOSTILE
    assert shown["segments"][-1]["messages"][0]["content"] == HOSTILE
    assert (shown["session"], shown["thread"], shown["exact"]) == ("bob", "main", False)
    assert shown["tokens"]["budget"] >= shown["tokens"]["used"]


def test_threads_tenants_and_the_environment_are_as_everywhere(
    cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Only in the branch." in cli("pack", made.path, "alice", "--thread", "other").out
    assert "Of another tenant" in cli("pack", made.path, "theirs", "--tenant", "acme").out
    monkeypatch.setenv("HOLDFAST_URL", str(made.path))
    assert "Of another tenant" in cli("pack", "theirs", "--tenant", "acme").out
    assert "Found in m2" in cli("why", "theirs", "another tenant", "--tenant", "acme").out
    hint = cli("why", "alice", NUTS).err
    assert hint.startswith("See that pack with: holdfast pack alice --call ")


def test_a_bar_shows_on_a_terminal_where_the_budget_went(made: Made) -> None:
    code, screen = on_a_terminal("pack", made.path, "alice", "--budget", "300", "--why", "--diff", "1")
    plain = re.sub(r"\x1b\[[\d;]*m|\r", "", screen)
    assert code == 0
    (bar,) = re.findall(r"^[█░]+$", plain, re.MULTILINE)
    assert len(bar) <= 72
    assert len(re.findall(r"\x1b\[[\d;]*m█+", screen)) >= 2, "each kind has a colour of its own"
    assert "■ conversation" in plain
    assert not shown_unsafely(plain)


def test_nothing_in_a_pack_reaches_the_terminal_as_a_command(cli: Cli, made: Made) -> None:
    for command in (["pack", made.path, "bob", "--why"], ["why", made.path, "bob", "back\x9bwards"]):
        for option in ([], ["--json"]):
            result = cli(*command, *option)
            assert result.code == 0
            assert not shown_unsafely(result.out + result.err)
        code, screen = on_a_terminal(*command)
        assert code == 0
        assert "\x1b[31m and" not in screen


def test_a_leak_to_the_terminal_would_be_noticed(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "escape_text", lambda text: text)
    assert shown_unsafely(cli("pack", made.path, "bob").out)


def test_a_journal_whose_tokenizer_is_not_known_here_is_shown(cli: Cli, tmp_path: Path) -> None:
    def of_an_application(text: str) -> int:
        return len(text) // 4 + 1

    with holdfast.open(tmp_path / "own.db", tokenizer=of_an_application) as hf:
        chat = hf.session("s")
        chat.append(["hello", "and again"])
        pack = chat.pack(900)
        chat.packs.begin_model_call(pack)
        digest = pack.digest
    shown = cli("pack", tmp_path / "own.db", "s", "--call", "1", "--json").json
    assert (shown["digest"], shown["tokens"]["used"]) == (digest, pack.tokens)
    assert cli("why", tmp_path / "own.db", "s", "and again").code == 0


def test_a_long_conversation_is_shown_page_by_page(cli: Cli, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "long.db", durability="fast") as hf:
        chat = hf.session("s", model="gpt-5-mini")
        chat.append([f"message {number}" for number in range(700)])
    rows = table(cli("pack", tmp_path / "long.db", "s").out, SEGMENT_COLUMNS)
    assert len(rows) == 701
    code, screen = on_a_terminal("pack", tmp_path / "long.db", "s")
    assert code == 0
    assert "message 699" in screen


# why


def test_why_tells_the_way_of_a_fact_and_the_fix(cli: Cli, made: Made) -> None:
    result = cli("why", made.path, "alice", NUTS)
    with holdfast.open(made.path) as hf:
        trace = hf.session("alice", create=False).why(NUTS)
    assert trace.left is not None
    said, _, shown, absent, *rest = result.out.splitlines()
    assert said.startswith("Found in m2, first said ")
    first, last = re.split("  +", shown.strip()), re.split("  +", absent.strip())
    assert int(first[0]) + int(last[0]) == CALLS
    assert (first[2], first[3:]) == (made.calls[0], ["shown", "m2"])
    assert (last[2], last[3], last[-1]) == (trace.left.call, "absent", "older than the window")
    assert rest[0].startswith(f"left: call {trace.left.call}, ")
    assert rest[-2:] == ["now: absent", f"fix: {trace.fix}"]
    hint = result.err.removeprefix("See that pack with: holdfast ").split()
    assert cli(*hint).code == 0


def test_a_trace_as_json_is_whole(cli: Cli, made: Made) -> None:
    shown = cli("why", made.path, "alice", NUTS, "--json").json
    assert [one["call"] for one in shown["appearances"]] == made.calls
    assert (shown["found"], shown["now"], shown["covered_by"]) == (["m2"], "absent", None)


def test_what_was_never_said_is_an_answer_and_no_error(cli: Cli, made: Made) -> None:
    result = cli("why", made.path, "alice", "the moon")
    assert result.code == 0
    assert result.out.startswith("Not found in this conversation.")
    assert "never said" in result.out


def test_the_summary_that_covers_it_is_named(cli: Cli, made: Made) -> None:
    with holdfast.open(made.path) as hf:
        chat = hf.session("alice")
        summary = chat.compact(keep=2, summarizer=lambda messages: "They spoke.")
        assert summary is not None
        chat.packs.begin_model_call(chat.pack(300))
    shown = cli("why", made.path, "alice", NUTS).out
    assert f"covered by: s{summary.version}" in shown
    assert "a summary stands for it" in shown


# bad input


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["pack", "PATH"], "HOLDFAST_URL"),
        (["pack", "PATH", "nobody"], "holdfast sessions"),
        (["pack", "PATH", ""], "empty"),
        (["pack", "PATH", "evil\x1b[31m"], "control character"),
        (["pack", "PATH", "alice", "--thread", "none"], "'main'"),
        (["pack", "PATH", "alice", "--tenant", "acme"], "no session 'alice'"),
        (["pack", "PATH", "alice", "--call", "10"], "9 calls"),
        (["pack", "PATH", "alice", "--call", "-10"], "9 calls"),
        (["pack", "PATH", "alice", "--call", "0"], "-1"),
        (["pack", "PATH", "alice", "--call", ""], "not the id of a call"),
        (["pack", "PATH", "alice", "--call", "last"], "not the id of a call"),
        (["pack", "PATH", "alice", "--call", NOBODY], NOBODY),
        (["pack", "PATH", "bob", "--call", "2"], "1 call "),
        (["pack", "PATH", "empty", "--call", "1"], "0 calls"),
        (["pack", "PATH", "alice", "--diff", "99"], "9 calls"),
        (["pack", "PATH", "alice", "--call", "1", "--budget", "300"], "--call"),
        (["pack", "PATH", "alice", "--call", "1", "--role", "x"], "--call"),
        (["pack", "PATH", "alice", "--budget", "0"], "budget"),
        (["pack", "PATH", "alice", "--budget", "-5"], "budget"),
        (["pack", "PATH", "alice", "--budget", "5"], "too small"),
        (["pack", "PATH", "alice", "--budget", "many"], "--budget"),
        (["pack", "PATH", "alice", "--role", ""], "role"),
        (["pack", "PATH", "alice", "extra"], "extra"),
        (["why", "PATH"], "HOLDFAST_URL"),
        (["why", "PATH", "alice"], "FACT"),
        (["why", "PATH", "alice", ""], "empty"),
        (["why", "PATH", "alice", " \n "], "empty"),
        (["why", "PATH", "nobody", "x"], "holdfast sessions"),
        (["why", "PATH", "alice", "x", "--thread", "none"], "'main'"),
    ],
)
def test_bad_values_are_refused_in_one_line_and_change_nothing(
    cli: Cli, made: Made, arguments: list[str], word: str
) -> None:
    before = position(made.path)
    result = cli(*(str(made.path) if argument == "PATH" else argument for argument in arguments))
    assert_one_clear_line(result, 2, word)
    assert not shown_unsafely(result.err)
    assert position(made.path) == before


def test_a_session_in_which_nothing_was_said_has_a_pack(cli: Cli, made: Made) -> None:
    assert cli("pack", made.path, "empty").code == 0
    assert "never said" in cli("why", made.path, "empty", "hello").out


@pytest.mark.parametrize("use", [["pack", "alice"], ["why", "alice", "x"]], ids=lambda use: use[0])
@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_what_is_not_a_journal_is_refused_and_left_alone(
    cli: Cli, made: Made, tmp_path: Path, use: list[str], make: Callable[[Path], None]
) -> None:
    make(made.path)
    before = contents(tmp_path)
    assert_one_clear_line(cli(use[0], made.path, *use[1:]), 2, BAD[make])
    assert contents(tmp_path) == before


def test_a_pack_that_is_not_what_it_was_is_damage(cli: Cli, made: Made) -> None:
    """Somebody changed a message behind the journal's back: what a call was shown cannot be shown again."""
    body = made.path.read_bytes()
    assert b"is allergic to nuts" in body
    made.path.write_bytes(body.replace(b"is allergic to nuts", b"is allergic to milk"))
    assert_one_clear_line(cli("pack", made.path, "alice", "--call", "1"), 1, "holdfast verify")
    assert cli("pack", made.path, "alice", "--call", "-1").code == 0, "it is not in this one"


def test_a_reader_that_goes_away_ends_the_table_quietly(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db", durability="fast") as hf:
        hf.session("s", model="gpt-5-mini").append([f"message {number} {'word ' * 40}" for number in range(900)])
    command = [*HOLDFAST, "pack", str(tmp_path / "a.db"), "s"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == ""
        assert listing.wait() == 141


def test_json_is_one_line(cli: Cli, made: Made) -> None:
    for command in (["pack", made.path, "bob", "--why", "--diff", "1"], ["why", made.path, "bob", "red"]):
        (line,) = cli(*command, "--json").out.splitlines()
        assert json.loads(line)["session"] == "bob"

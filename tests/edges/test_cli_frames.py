"""`stack`, `questions` and `answer`: what they show of live work, what an answer does, and how they refuse."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast.cli.frames import shorten_ids
from holdfast.cli.main import main
from holdfast.cli.output import format_duration
from holdfast.records.frames import Limits
from holdfast.system import SystemClock
from holdfast.testing.clock import FrozenClock

from .test_cli import BAD, Result, assert_one_clear_line, contents

Cli = Callable[..., Result]
HOSTILE = "red \x1b[31m and \u202e back\nwards [bold]x[/bold]"
HOLDFAST = [sys.executable, "-c", "from holdfast.cli.main import run; run()"]
MINUTE = 60_000


class Made(NamedTuple):
    """What the journal of these tests holds."""

    path: Path
    ids: dict[str, str]
    token: str


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
    """Made an hour ago, so that a deadline has passed, and its clock stands still where somebody is asked."""
    path, ids = tmp_path_factory.mktemp("original") / "agent.db", {}
    clock = FrozenClock(SystemClock().now_ms() - 60 * MINUTE)
    patient = Limits(timeout_ms=120 * MINUTE)
    with holdfast.open(path, clock=clock) as hf:
        index = hf.index
        ids["root"] = index.push_frame("Answer the mail", scope="alice", tokens=10_000, limits=patient)
        index.reserve(ids["root"], "reply", 500)
        ids["refund"] = index.push_frame("Refund order 17", parent=ids["root"], tokens=4_000, limits=patient)
        index.record_usage(ids["refund"], 1_200)
        index.add_handle(ids["refund"], "document", description="the mail")
        ids["search"] = index.push_frame(
            "Search elsewhere", parent=ids["root"], scope="bob", tokens=100, limits=patient
        )
        index.record_usage(ids["search"], 150)
        ids["call"] = index.begin_tool_call(ids["search"], "look_up")
        asked = index.suspend_frame(
            ids["refund"],
            "May I pay 49.90?",
            options=["yes", "no"],
            recommended="no",
            arguments={"amount": "49.90"},
            token=True,
            expires_ms=180 * MINUTE,
        )
        ids["question"] = asked.question
        ids["late"] = index.push_frame(HOSTILE, scope="carol", limits=Limits(timeout_ms=MINUTE))
        secret = hf.as_user("zoe").index
        ids["secret"] = secret.push_frame("Zoe's own", scope="zoe")
        ids["secret question"] = secret.suspend_frame(ids["secret"], "Zoe's secret?", kind="input").question
        hf.journal.erase("zoe")
        ids["other"] = hf.tenant("acme").index.push_frame("Of another tenant", scope="alice")
    assert asked.token is not None
    return Made(path, ids, asked.token)


@pytest.fixture
def made(original: Made, tmp_path: Path) -> Made:
    shutil.copy(original.path, tmp_path / "agent.db")
    return original._replace(path=tmp_path / "agent.db")


# stack


def test_stack_shows_frames_below_one_another_with_their_budgets(cli: Cli, made: Made) -> None:
    result = cli("stack", made.path, "alice")
    assert (result.code, result.err) == (0, "")
    root, refund = (made.ids[name][-8:] for name in ("root", "refund"))
    assert result.out.splitlines()[:3] == [
        "session/alice",
        f"  - Answer the mail  waiting  …{root}",
        "      tokens: 10,000 granted, 0 used, 500 reserved, 1,300 lent, 8,200 available",
    ]
    assert f"\n    - Refund order 17  suspended  …{refund}\n        tokens: 4,000 granted, 1,200 used" in result.out
    assert "0 available (2,800 given back until it continues)" in result.out
    assert "evidence: 1 attached" in result.out
    assert f"below: …{made.ids['search'][-8:]} in session/bob" in result.out


def test_stack_shows_calls_overdrafts_and_who_is_above_in_another_scope(cli: Cli, made: Made) -> None:
    shown = cli("stack", made.path, "--scope", "session/bob").out
    assert "100 granted, 150 used, 0 reserved, 0 lent, 0 available, 50 overdrawn" in shown
    assert "open call: tool look_up (if interrupted: ask)" in shown
    assert f"above: …{made.ids['root'][-8:]}, in another scope" in shown


def test_stack_says_how_long_is_left_and_how_late_it_is(cli: Cli, made: Made) -> None:
    shown = cli("stack", made.path).out
    assert re.search(r"Answer the mail.*\n.*\n *deadline: (59 min|1 h)\b.* left\n", shown)
    assert "deadline: 2 h left, its clock is stopped" in shown
    assert re.search(r"red.*\n.*no limit.*\n *deadline: (58|59) min.* late", shown)


def test_stack_shows_questions_with_whole_ids_and_whether_they_are_answered(cli: Cli, made: Made) -> None:
    line = f"question: {made.ids['question']} (approval) May I pay 49.90?; "
    assert f"{line}open, expires in 1 h 59 min" in cli("stack", made.path, "alice").out
    assert cli("answer", made.path, made.ids["question"], "--approve").code == 0
    assert f"{line}answered" in cli("stack", made.path, "alice").out


def test_stack_spells_out_control_characters_and_says_what_was_erased(cli: Cli, made: Made) -> None:
    shown = cli("stack", made.path, "--pending").out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "- red \\x1b[31m and \\u202e back\\nwards [bold]x[/bold]  active" in shown
    assert "- (erased)  suspended" in shown
    assert "(input) (erased); open" in shown
    assert "Zoe" not in shown


def test_stack_shows_every_scope_of_one_tenant(cli: Cli, made: Made) -> None:
    def scopes(*options: str) -> list[str]:
        return [line for line in cli("stack", made.path, *options).out.splitlines() if not line.startswith(" ")]

    assert scopes() == ["session/alice", "session/bob", "session/carol", "session/zoe"]
    assert scopes("carol") == ["session/carol"]
    assert scopes("--tenant", "acme") == ["session/alice"]
    assert "Of another tenant" not in cli("stack", made.path).out


def test_stack_says_when_nothing_is_live(cli: Cli, made: Made, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "new.db") as hf:
        hf.journal.append("s", "app.noted")
    for arguments in ([tmp_path / "new.db"], [made.path, "nobody"], [made.path, "--tenant", "nobody"]):
        result = cli("stack", *arguments)
        assert (result.code, result.out) == (0, "")
        assert "No frame is live" in result.err
        assert cli("stack", *arguments, "--json").json == {"scopes": []}


def test_stack_as_json_has_whole_ids_and_every_number(cli: Cli, made: Made) -> None:
    found = {scope["scope"]: scope["frames"] for scope in cli("stack", made.path, "--json").json["scopes"]}
    root, refund = found["session/alice"]
    assert [root["id"], refund["id"]] == [made.ids["root"], made.ids["refund"]]
    assert (root["parent"], refund["parent"]) == (None, root["id"])
    assert root["children_elsewhere"] == {made.ids["search"]: "session/bob"}
    assert refund["question"]["id"] == made.ids["question"]
    assert refund["question"]["reason"] == "May I pay 49.90?"
    (search,), (late,), (secret,) = found["session/bob"], found["session/carol"], found["session/zoe"]
    budget = {"granted": 100, "used": 150, "reserved": 0, "lent": 0, "released": 0, "available": 0, "overdraft": 50}
    assert search["tokens"] == budget
    assert [call["id"] for call in search["calls"]] == [made.ids["call"]]
    assert (late["goal"], late["erased"]) == (HOSTILE, False)
    assert late["left_ms"] < -58 * MINUTE
    assert (secret["goal"], secret["erased"], secret["question"]["reason"]) == (None, True, None)


def test_stack_adds_what_a_restart_would_find_undone(cli: Cli, made: Made) -> None:
    assert "pending" not in cli("stack", made.path).out
    shown = cli("stack", made.path, "--pending").out
    assert "waiting_for_user: Frame 'Refund order 17' suspended: May I pay 49.90?" in shown
    assert "tool_in_progress: Tool 'look_up' incomplete (if interrupted: ask)" in shown
    assert "pending: nothing" in shown
    scopes = cli("stack", made.path, "bob", "--pending", "--json").json["scopes"]
    with holdfast.open(made.path) as hf:
        assert [work["call"] for work in scopes[0]["pending"]] == [
            work.call for work in hf.index.resume_actor("bob").pending
        ]


def test_looking_writes_nothing(cli: Cli, made: Made) -> None:
    before = cli("log", made.path, "--json").out
    for command in (["stack"], ["stack", "--pending"], ["questions"]):
        assert cli(command[0], made.path, *command[1:]).code == 0
    assert cli("log", made.path, "--json").out == before


def test_short_ids_tell_frames_apart() -> None:
    assert shorten_ids(["A" * 26]) == {"A" * 26: "…" + "A" * 8}
    # Made at other times, with the same end: as many characters are shown as it takes.
    assert set(shorten_ids(["01A" + "Z" * 23, "01B" + "Z" * 23]).values()) == {"…A" + "Z" * 23, "…B" + "Z" * 23}


@pytest.mark.parametrize(
    ("milliseconds", "said"),
    [
        (0, "0 ms"),
        (999, "999 ms"),
        (1_000, "1 s"),
        (80_000, "1 min 20 s"),
        (120_000, "2 min"),
        (93_600_000, "1 d 2 h"),
        (86_459_000, "1 d"),
        (10**15, "11,574,074 d 1 h"),
    ],
)
def test_spans_are_said_in_two_units(milliseconds: int, said: str) -> None:
    assert format_duration(milliseconds) == said


# questions


def test_questions_are_a_line_each_in_a_pipe_and_say_how_to_answer(cli: Cli, made: Made) -> None:
    result = cli("questions", made.path)
    header, first, second = result.out.splitlines()
    assert header.split()[:4] == ["question", "kind", "asked", "options"]
    for word in (made.ids["question"], "approval", 'May I pay 49.90? {"amount":"49.90"}', "yes | no (recommended)"):
        assert word in first
    for word in ("Refund order 17", "session/alice", "1 h ago", "open, expires in 1 h 59 min"):
        assert word in first
    assert second.split()[:4] == [made.ids["secret question"], "input", "(erased)", "(erased)"]
    assert f"holdfast answer {made.path} QUESTION --approve" in result.err


def test_questions_as_json_and_of_nobody(cli: Cli, made: Made) -> None:
    first, second = cli("questions", made.path, "--json").json["questions"]
    assert (first["id"], first["frame"], first["goal"]) == (
        made.ids["question"],
        made.ids["refund"],
        "Refund order 17",
    )
    assert (first["options"], first["has_token"], first["answered"]) == (["yes", "no"], True, False)
    assert (second["reason"], second["goal"], second["erased"]) == (None, None, True)
    assert "token" not in {name for name in first if made.token in str(first[name])}
    nobody = cli("questions", made.path, "--tenant", "acme")
    assert (nobody.code, nobody.out) == (0, "")
    assert "No question is open" in nobody.err
    assert cli("questions", made.path, "--tenant", "acme", "--json").json == {"questions": []}


def test_questions_show_which_are_answered_and_name_the_one_that_is_left(cli: Cli, made: Made) -> None:
    assert cli("answer", made.path, made.ids["question"], "--deny").code == 0
    result = cli("questions", made.path)
    assert result.out.splitlines()[1].endswith("  answered")
    assert f"holdfast answer {made.path} {made.ids['secret question']} --approve" in result.err


# answer


def answered(path: Path, question: str, scope: str = "alice") -> Any:
    with holdfast.open(path) as hf:
        return hf.index.answer_to(scope, question)


def test_an_answer_is_what_the_owner_goes_on_with(cli: Cli, made: Made) -> None:
    given = ["--approve", "--args", '{"amount":"9.90"}', "--payload", '"mine"', "--note", "half", "--by", "boss"]
    result = cli("answer", made.path, made.ids["question"], *given)
    assert (result.code, result.err) == (0, "")
    assert f"Question {made.ids['question']}: approved." in result.out
    assert "'Refund order 17' in session/alice continues when its owner runs" in result.out
    answer = answered(made.path, made.ids["question"])
    assert (answer.approved, answer.arguments, answer.payload) == (True, {"amount": "9.90"}, "mine")
    assert (answer.note, answer.via) == ("half", "id")
    with holdfast.open(made.path) as hf:
        assert hf.index.resume_frame(made.ids["question"]) == made.ids["refund"]
        assert hf.index.get_frame(made.ids["refund"]).status == "active"
    (event,) = cli("log", made.path, "--type", "question.answered", "--json").lines
    assert event["user"] is not None
    assert cli("verify", made.path).code == 0


def test_an_answer_as_json_says_whose_frame_goes_on(cli: Cli, made: Made) -> None:
    assert cli("answer", made.path, made.ids["question"], "--deny", "--json").json == {
        "question": made.ids["question"],
        "approved": False,
        "repeated": False,
        "frame": made.ids["refund"],
        "scope": "session/alice",
        "goal": "Refund order 17",
    }


def test_input_needs_neither_yes_nor_no(cli: Cli, made: Made) -> None:
    assert cli("answer", made.path, made.ids["secret question"], "--payload", "[1, null]").code == 0
    answer = answered(made.path, made.ids["secret question"], "zoe")
    assert (answer.approved, answer.payload) == (None, [1, None])


def test_one_question_has_one_answer(cli: Cli, made: Made) -> None:
    assert cli("answer", made.path, made.ids["question"], "--approve").code == 0
    assert_one_clear_line(cli("answer", made.path, made.ids["question"], "--deny"), 2, "answered already")
    again = cli("answer", made.path, made.ids["question"], "--approve")
    assert again.code == 0
    assert "nothing was changed" in again.out
    assert cli("answer", made.path, made.ids["question"], "--approve", "--json").json["repeated"]
    assert len(cli("log", made.path, "--type", "question.answered", "--json").lines) == 1


def test_part_of_an_id_is_enough_if_it_can_mean_only_one(cli: Cli, made: Made) -> None:
    whole = made.ids["question"]
    common = whole
    while not made.ids["secret question"].startswith(common):
        common = common[:-1]
    assert_one_clear_line(cli("answer", made.path, common, "--deny"), 2, "2 questions", whole)
    assert cli("answer", made.path, whole[-6:].lower(), "--deny", "--json").json["question"] == whole
    assert cli("answer", made.path, whole[: len(common) + 1], "--deny", "--json").json["repeated"]


def test_the_environment_names_the_journal(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", str(made.path))
    assert "session/carol" in cli("stack").out
    assert cli("stack", "--scope", "bob", "--json").json["scopes"][0]["scope"] == "session/bob"
    assert "holdfast answer QUESTION --approve" in cli("questions").err
    assert cli("answer", made.ids["question"], "--approve").code == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("wrong\n"))
    assert_one_clear_line(cli("answer", "--token", "--approve"), 2, "token")


# tokens


def test_a_token_comes_from_standard_input_and_works_once(
    cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{made.token}\n"))
    result = cli("answer", made.path, "--token", "--approve", "--json")
    assert (result.code, result.json["question"]) == (0, made.ids["question"])
    assert made.token not in result.out
    assert answered(made.path, made.ids["question"]).via == "token"
    for typed in (f"{made.token}\n", "forged\n"):
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert_one_clear_line(cli("answer", made.path, "--token", "--approve"), 2, "This token opens nothing")


def test_without_a_token_there_is_nothing_to_answer(cli: Cli, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    for stdin in (io.StringIO(""), io.StringIO(" \n"), io.TextIOWrapper(io.BytesIO(b"\xff\n"), "utf-8"), None):
        monkeypatch.setattr("sys.stdin", stdin)
        assert_one_clear_line(cli("answer", made.path, "--token", "--approve"), 2, "token is missing")


def on_a_terminal(*arguments: object, typed: str = "") -> tuple[int, str]:
    """A process with a terminal of its own, in which somebody types."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "100"}
    command = [*HOLDFAST, *map(str, arguments)]
    streams: dict[str, Any] = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    with subprocess.Popen(command, env=variables, start_new_session=True, **streams) as process:
        os.close(theirs)
        shown = b""
        try:
            while chunk := os.read(ours, 65536):
                shown += chunk
                if typed and b"Token: " in shown:
                    os.write(ours, f"{typed}\n".encode())
                    typed = ""
        except OSError:
            pass  # Linux says so when the other side of a terminal is gone.
    os.close(ours)
    return process.returncode, shown.decode()


def test_a_token_is_asked_for_at_a_terminal_and_not_shown(made: Made) -> None:
    code, shown = on_a_terminal("answer", made.path, "--token", "--approve", typed=made.token)
    assert code == 0
    assert made.token not in shown
    assert f"Question {made.ids['question']}: approved." in shown


def test_a_terminal_gets_guides_and_colours_and_none_of_the_journals(made: Made) -> None:
    code, shown = on_a_terminal("stack", made.path)
    assert code == 0
    assert "└── " in shown
    assert "\x1b[33msuspended" in shown
    assert "\x1b[31m and" not in shown
    assert "\\x1b[31m and" in shown
    code, shown = on_a_terminal("questions", made.path)
    assert (code, "\x1b[1m" + made.ids["question"] in shown) == (0, True)
    assert "Answer with:" in shown


# bad input


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["QUESTION", "--approve", "--deny"], "--deny"),
        (["QUESTION"], "--approve"),
        (["QUESTION", "--note", "hm"], "--approve"),
        (["QUESTION", "--payload", "yes"], "JSON"),
        (["QUESTION", "--payload", "{"], "JSON"),
        (["QUESTION", "--payload", "NaN"], "JSON"),
        (["QUESTION", "--payload", "\udcff"], "JSON"),
        (["QUESTION", "--payload", "[" * 5000 + "]" * 5000], "JSON"),
        (["QUESTION", "--payload", "[" * 100 + "]" * 100], "nest"),
        (["QUESTION", "--approve", "--args", "x"], "--args"),
        (["QUESTION", "--deny", "--args", "{}"], "--approve"),
        (["QUESTION", "--args", "{}"], "--approve"),
        (["QUESTION", "--approve", "--by", ""], "user"),
        (["QUESTION", "--approve", "--tenant", "acme"], "not open"),
        (["QUESTION", "--approve", "--token"], "not both"),
        (["QUESTION", "--approve", "extra"], "extra"),
        (["7ZZZZZZZZZZZZZZZZZZZZZZZZZ", "--approve"], "not open"),
        (["!" * 26, "--approve"], "not the id"),
        (["12345", "--approve"], "at least 6"),
        (["ZZZZZZ", "--approve"], "ZZZZZZ"),
        (["x" * 43, "--approve"], "--token"),
        (["--approve"], "HOLDFAST_URL"),
    ],
)
def test_answers_that_are_none_are_refused_in_one_line(cli: Cli, made: Made, arguments: list[str], word: str) -> None:
    given = [made.ids["question"] if argument == "QUESTION" else argument for argument in arguments]
    assert_one_clear_line(cli("answer", made.path, *given), 2, word)
    assert answered(made.path, made.ids["question"]) is None


def test_an_answer_that_comes_too_late_is_refused(cli: Cli, tmp_path: Path) -> None:
    clock = FrozenClock(SystemClock().now_ms() - 60 * MINUTE)
    with holdfast.open(tmp_path / "old.db", clock=clock) as hf:
        frame = hf.index.push_frame("Wait", scope="alice")
        question = hf.index.suspend_frame(frame, "Now?", expires_ms=MINUTE, on_expiry="fail").question
    assert "expired 59 min" in cli("questions", tmp_path / "old.db").out
    assert_one_clear_line(cli("answer", tmp_path / "old.db", question, "--approve"), 2, "expired")


def test_a_question_is_over_once_its_frame_went_on(cli: Cli, made: Made) -> None:
    with holdfast.open(made.path) as hf:
        hf.index.resume_frame(made.ids["question"], approve=True)
    assert_one_clear_line(cli("answer", made.path, made.ids["question"], "--approve"), 2, "not open")


@pytest.mark.parametrize("use", [["stack"], ["questions"], ["answer", "0123456789", "--approve"]], ids=lambda u: u[0])
@pytest.mark.parametrize("make", BAD, ids=lambda make: make.__name__)
def test_what_is_not_a_journal_is_refused_and_left_alone(
    cli: Cli, made: Made, tmp_path: Path, use: list[str], make: Callable[[Path], None]
) -> None:
    make(made.path)
    before = contents(tmp_path)
    assert_one_clear_line(cli(use[0], made.path, *use[1:]), 2, BAD[make])
    assert contents(tmp_path) == before


@pytest.mark.parametrize("scope", ["no/such/kind", "session/", "a/b/c", "\x1b"])
def test_a_scope_that_is_none_is_refused(cli: Cli, made: Made, scope: str) -> None:
    assert_one_clear_line(cli("stack", made.path, scope), 2)


def test_many_scopes_are_all_shown(cli: Cli, tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "many.db", durability="fast") as hf:
        for number in range(300):
            hf.index.push_frame(f"goal {number}", scope=f"s{number:03}")
    shown = cli("stack", tmp_path / "many.db").out
    assert [int(goal) for goal in re.findall(r"- goal (\d+) ", shown)] == list(range(300))
    assert len(json.loads(cli("stack", tmp_path / "many.db", "--json").out)["scopes"]) == 300

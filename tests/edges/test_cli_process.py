"""The command line as processes: start-up, terminals, pipes, signals, and the demo with its real SIGKILL."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.cli import demo
from holdfast.cli.main import main

# Whoever runs the tests in the background ignores Ctrl-C, and children would inherit that.
_HEED = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
HOLDFAST = [sys.executable, "-c", _HEED + "from holdfast.cli.main import run; run()"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with holdfast.open(tmp_path / "agent.db", durability="fast") as hf:
        for number in range(300):
            hf.journal.append("alice", "app.noted", {"text": "x" * 300}, facts={"n": number})
    return tmp_path / "agent.db"


def start(*arguments: object, **options: Any) -> subprocess.Popen[str]:
    command = [*HOLDFAST, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def test_the_installed_command_runs() -> None:
    script = Path(sys.executable).with_name("holdfast")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == holdfast.__version__


def test_help_imports_no_command_and_no_database() -> None:
    code = (
        "import sys; from holdfast.cli.main import main; main(['--help']);"
        "late = {'apsw', 'rich.tree', *(f'holdfast.cli.{name}' for name in "
        "('log', 'frames', 'admin', 'demo', 'demo_agent', 'chat', 'chat_session', 'output', "
        "'sessions', 'transfer', 'pack', 'search', 'state', 'effects'))};"
        "sys.exit(', '.join(late & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_a_reader_that_goes_away_ends_the_listing_quietly(path: Path, option: list[str]) -> None:
    with start("log", path, "--content", *option) as listing:
        assert listing.stdout is not None
        assert listing.stderr is not None
        listing.stdout.readline()
        listing.stdout.close()
        assert listing.stderr.read() == ""
        assert listing.wait() == 141


@pytest.fixture
def following(path: Path) -> Iterator[subprocess.Popen[str]]:
    with start("log", path, "--follow", "--last", "1", "--json") as process:
        yield process
        process.kill()


def test_follow_shows_what_other_processes_write_until_interrupted(
    path: Path, following: subprocess.Popen[str]
) -> None:
    assert following.stdout is not None
    assert following.stderr is not None
    assert json.loads(following.stdout.readline())["seq"] == 300
    with holdfast.open(path) as hf:
        for number in range(3):
            hf.journal.append("bob", "app.noted", facts={"n": number})
    assert [json.loads(following.stdout.readline())["seq"] for _ in range(3)] == [301, 302, 303]
    following.send_signal(signal.SIGINT)
    assert following.stderr.read() == ""
    assert following.wait() == 130


def test_colours_are_for_terminals_only(path: Path) -> None:
    piped = start("log", path, "--last", "2")
    assert "\x1b" not in piped.communicate()[0]
    assert "\x1b[1m" in on_a_terminal("log", path, "--last", "2")
    assert "\x1b[3" not in on_a_terminal("verify", path, NO_COLOR="1")


def test_an_output_that_knows_no_unicode_gets_escapes(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.journal.append("zoë", "app.noted", "naïve → 🙂")
    for option in ([], ["--json"]):
        listing = start("log", tmp_path / "a.db", "--content", *option, env={**os.environ, "PYTHONIOENCODING": "ascii"})
        out, err = listing.communicate()
        assert (listing.returncode, err) == (0, "")
        assert "\\u2192" in out


def test_a_path_that_is_not_unicode_is_named_all_the_same(tmp_path: Path) -> None:
    done = start("log", os.fsdecode(os.fsencode(tmp_path) + b"/\xff.db"))
    out, err = done.communicate()
    assert (done.returncode, out) == (2, "")
    assert "\\udcff.db" in err
    assert err.count("\n") == 1


def on_a_terminal(*arguments: object, **environment: str) -> str:
    reader, writer = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "120", **environment}
    with subprocess.Popen([*HOLDFAST, *map(str, arguments)], stdout=writer, stderr=writer, env=variables):
        os.close(writer)
        shown = b""
        try:
            while chunk := os.read(reader, 65536):
                shown += chunk
        except OSError:
            pass  # Linux says so when the other side of a terminal is gone.
    os.close(reader)
    return shown.decode()


def test_the_demo_kills_an_agent_and_pays_exactly_once(tmp_path: Path) -> None:
    done = start("demo", "--json", env={**os.environ, "TMPDIR": str(tmp_path)})
    out, err = done.communicate(timeout=60)
    story = json.loads(out)
    assert (done.returncode, err) == (0, "")
    assert story["ok"]
    assert (story["killed"], story["live_after_kill"], story["live"]) == (True, 2, 0)
    assert story["ran_before_kill"] == story["ran_before_answer"] == {"model": 2, "find_order": 1, "refund": 1}
    assert story["asked"] == ["refund(17, 240) may have run. Run again?"]
    assert (story["answered"], story["status"]) == (True, "done")
    assert story["reply"] == "Order 17 is refunded: 240 euros are on their way."
    assert (story["ran"], story["paid"]) == ({"model": 3, "find_order": 1, "refund": 1}, 1)
    assert story["tokens"] == story["tokens_journaled"] > 0
    assert '"refunded":17' in "".join(story["shown"]["pieces"].values()), "the model is shown what came of it"
    assert (story["verified"], story["findings"]) == (True, 0)
    assert list(tmp_path.iterdir()) == []


def test_the_demo_tells_its_story_in_a_pipe(tmp_path: Path) -> None:
    variables = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    done = start("demo", env=variables)
    out, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (0, "")
    assert "SIGKILL" in out
    assert "    - refund(17, 240)  active" in out
    assert "open call: tool refund (if interrupted: ask)" in out
    assert "Run again: 0. Paid: 1. It is waiting, and asks:\n   refund(17, 240) may have run. Run again?\n" in out
    assert "$ holdfast answer agent.db " in out
    assert "It is done: Order 17 is refunded" in out
    assert "model 3, find_order 1, refund 1. Paid: 1." in out
    assert "0 findings" in out
    assert out.splitlines()[-1].startswith("Killed during the refund, and paid exactly once")
    assert "\x1b" not in out


BUGS = {
    "a torn call is run again without asking": "next_step.interruption_policy = lambda call: 'retry'",
    "a no is taken for a yes": "calls.read_newest_answer = lambda *given: None",
}


@pytest.mark.parametrize("bug", BUGS)
def test_the_demo_would_notice(bug: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A planted bug, in the processes that do the work."""
    code = (
        f"import sys; from holdfast.core.frames import next_step; from holdfast.flow.turns import calls; {BUGS[bug]}; "
    )
    code += "from holdfast.cli.demo_agent import main; main(*sys.argv[1:])"
    monkeypatch.setattr(demo, "_worker_command", lambda folder, *how: [sys.executable, "-c", code, str(folder), *how])
    assert main(["demo", "--json"]) == 1
    story = json.loads(capsys.readouterr().out)
    assert not story["ok"]
    assert story["paid"] == story["ran"]["refund"] == 2


def test_a_demo_that_cannot_work_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_worker_command", lambda folder, *how: [sys.executable, "-c", "print('failed here')"])
    assert main(["demo", "--json"]) == 3
    assert capsys.readouterr().err == ("holdfast: The demo's agent failed (failed here). Run `holdfast doctor`.\n")


def test_the_command_is_found_without_a_script_on_the_path() -> None:
    done = subprocess.run([sys.executable, "-m", "holdfast", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, holdfast.__version__, "")

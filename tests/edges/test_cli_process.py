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
        "late = {'apsw', *(f'holdfast.cli.{name}' for name in ('show', 'admin', 'doctor', 'demo', 'output'))};"
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


def test_the_demo_kills_a_writer_and_loses_nothing(tmp_path: Path) -> None:
    done = start("demo", "--json", env={**os.environ, "TMPDIR": str(tmp_path)})
    out, err = done.communicate(timeout=60)
    story = json.loads(out)
    assert (done.returncode, err) == (0, "")
    assert story["ok"]
    assert story["acknowledged"] > 20
    assert 0 <= story["found"] - story["acknowledged"] <= 1
    assert (story["lost"], story["invented"], story["twice"]) == (0, 0, 0)
    assert set(story["retried"].values()) <= {"new", "repeated"}
    assert story["seconds"] < 20
    assert list(tmp_path.iterdir()) == []


def test_the_demo_tells_its_story_in_a_pipe(tmp_path: Path) -> None:
    done = start("demo", env={**os.environ, "TMPDIR": str(tmp_path)})
    out, err = done.communicate(timeout=60)
    assert (done.returncode, err) == (0, "")
    assert "SIGKILL" in out
    assert "0 lost" in out
    assert "0 findings" in out
    assert out.splitlines()[-1].startswith("Killed in the middle of its work")
    assert "\x1b" not in out


def test_the_demo_would_notice_a_loss(tmp_path: Path) -> None:
    """A planted bug: every third write is acknowledged without being made."""
    bug = """
import sys, holdfast.client_journal as module
from holdfast.cli import demo
real, seen = module.JournalView.append, []
def append(self, *args, **kwargs):
    seen.append(kwargs["key"])
    return None if len(seen) % 3 == 0 else real(self, *args, **kwargs)
module.JournalView.append = append
demo._write(sys.argv[1])
"""
    code = f"""
import subprocess, sys
from holdfast.cli import demo, main
real = subprocess.Popen
def popen(command, **options):
    return real([command[0], "-c", {bug!r}, command[-1]] if "holdfast.cli.demo" in command else command, **options)
demo.subprocess.Popen = popen
sys.exit(main.main(["demo", "--json"]))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    story = json.loads(done.stdout)
    assert not story["ok"]
    assert story["lost"] > 5

"""`holdfast demo`: a writer is killed in the middle of its work, and nothing it was promised is lost.

Three processes that share nothing but the file: one writes until it is killed, one reads
what is left, and this one keeps the list of what was acknowledged and compares.
"""

from __future__ import annotations

import itertools
import json as json_module
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from holdfast.cli.main import DAMAGED, OK
from holdfast.cli.opening import Json
from holdfast.cli.output import emit, say
from holdfast.client import open as open_journal
from holdfast.errors import Unavailable

SESSION = "demo"
KILL_AFTER = 250
GIVE_UP_SECONDS = 12.0


class Told(msgspec.Struct):
    """What the writer said before it died: what it asked for, and what was acknowledged."""

    asked: list[str] = []
    acknowledged: list[str] = []

    @property
    def in_doubt(self) -> list[str]:
        """Asked for and never answered: stored or not, the writer could not know."""
        return self.asked[len(self.acknowledged) :]


def demo(*, json: Json = False) -> int:
    """Kill a writer in the middle of its work and lose nothing."""
    began = time.monotonic()
    tell = _quiet if json else say
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        path = Path(folder) / "agent.db"
        story = _story(path, tell)
    story["seconds"] = round(time.monotonic() - began, 1)
    if json:
        emit(story)
    else:
        say("")
        if story["ok"]:
            say(
                f"Killed in the middle of its work, and nothing acknowledged was lost ({story['seconds']} s).",
                "bold green",
            )
        else:
            say("Something acknowledged is missing, or something is wrong. Please report this.", "bold red")
    return OK if story["ok"] else DAMAGED


def _story(path: Path, tell: Any) -> dict[str, Any]:
    tell("1. A writer records payments, one event each. An answer means: on disk.", "bold")
    told = _write_until_killed(path)
    tell(f"   {len(told.acknowledged)} acknowledged. Then the process was killed with SIGKILL, no warning given.")

    tell("2. A new process opens the journal and reads it.", "bold")
    found = [event["key"] for event in _holdfast("log", str(path), "--scope", SESSION)]
    lost = sorted(set(told.acknowledged) - set(found))
    invented = sorted(set(found) - set(told.asked))
    tell(f"   {len(told.acknowledged)} acknowledged, {len(found)} found: {len(lost)} lost, {len(invented)} invented.")

    tell("3. What was in doubt is asked for again, with the same key.", "bold")
    outcome = _retry(path, told.in_doubt, tell)

    tell("4. Verify: every hash, version and row.", "bold")
    (report,) = _holdfast("verify", str(path))
    twice = report["events"] - len({*found, *told.in_doubt})
    tell(f"   {report['events']} events, {twice} twice, {len(report['findings'])} findings.")
    return {
        "ok": report["ok"] and not (lost or invented or twice),
        "acknowledged": len(told.acknowledged),
        "found": len(found),
        "lost": len(lost),
        "invented": len(invented),
        "twice": twice,
        "in_doubt": told.in_doubt,
        "retried": outcome,
        "verified": report["ok"],
    }


def _write_until_killed(path: Path) -> Told:
    """Read the writer's words from a pipe, which outlives it, and kill it wherever it stands."""
    told = Told(asked=[], acknowledged=[])
    kill_at = KILL_AFTER + random.randrange(50)  # noqa: S311
    command = [sys.executable, "-m", "holdfast.cli.demo", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:  # noqa: S603
        assert writer.stdout is not None
        # On a slow disk, or if it never says anything, it is killed all the same.
        late = threading.Timer(GIVE_UP_SECONDS, writer.kill)
        late.start()
        try:
            for line in writer.stdout:
                word, _, key = line.rstrip("\n").partition(" ")
                (told.asked if word == "asked" else told.acknowledged).append(key)
                if len(told.asked) == kill_at and word == "asked":
                    time.sleep(random.uniform(0, 0.002))  # noqa: S311
                    writer.kill()
        finally:
            writer.kill()
            late.cancel()
    if not told.acknowledged:
        raise Unavailable("The demo's writer could not start. Run `holdfast doctor`.")
    return told


def _retry(path: Path, in_doubt: list[str], tell: Any) -> dict[str, str]:
    if not in_doubt:
        tell("   Nothing was: the kill fell between two payments.")
    outcomes: dict[str, str] = {}
    with open_journal(path) as hf:
        for key in in_doubt:
            first = hf.journal.append(SESSION, "app.paid", _payment(key), key=key)
            outcomes[key] = "repeated" if first.repeated else "new"
            had = (
                "it had been written, and the first answer is given again"
                if first.repeated
                else "it had not been written, and now it is"
            )
            tell(f"   {key}: {had} ({outcomes[key]}).")
            again = hf.journal.append(SESSION, "app.paid", _payment(key), key=key)
            tell(f"   And once more, to be sure: {'repeated' if again.repeated else 'new'}. One key, one event.")
    return outcomes


def _holdfast(*arguments: str) -> list[dict[str, Any]]:
    """A command of holdfast in a process of its own, as JSON lines."""
    command = [sys.executable, "-c", "from holdfast.cli.main import run; run()", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    return [json_module.loads(line) for line in done.stdout.splitlines()]


def _quiet(text: str, style: str = "") -> None:
    """Tell nobody."""


def _payment(key: str) -> dict[str, Any]:
    return {"order": key, "amount": "9.99"}


def _write(path: str) -> None:
    """The writer: says what it asks for, appends, says that it was answered. It never ends by itself."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started it, and who kills it then.
    with open_journal(path) as hf, suppress(BrokenPipeError):
        for number in itertools.count(1):
            key = f"order-{number}"
            _say_at_once(f"asked {key}\n")
            hf.journal.append(SESSION, "app.paid", _payment(key), key=key)
            _say_at_once(f"acknowledged {key}\n")


def _say_at_once(line: str) -> None:
    """One write for the whole line: a kill falls before it or after it, also where Python does not buffer."""
    os.write(sys.stdout.fileno(), line.encode())


if __name__ == "__main__":
    _write(sys.argv[1])

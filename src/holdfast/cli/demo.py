"""`holdfast demo`: an agent is killed while it pays money back, and the money is paid exactly once.

Processes that share nothing but a folder: one is killed with SIGKILL inside the effect, another
runs the same code and stops to ask, a command answers, a third one completes. This one starts
them, reads the files that they left, and counts. Every number it prints was measured.
"""

from __future__ import annotations

import json as json_module
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

from holdfast.cli import demo_work
from holdfast.cli.demo_work import JOURNAL, PAID, RAN, SPENT, STEPS
from holdfast.cli.main import DAMAGED, OK
from holdfast.cli.opening import Json
from holdfast.cli.output import emit, say
from holdfast.cli.stack import forest_of
from holdfast.cli.stack import stack as show_stack
from holdfast.client import open as open_journal
from holdfast.errors import Unavailable
from holdfast.records.resume import FrameInfo

GIVE_UP_SECONDS = 12.0


def demo(*, json: Json = False) -> int:
    """Kill an agent while it pays money back, resume it, and pay exactly once."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        story = _Story(Path(folder), quiet=json).told()
    story["seconds"] = round(time.monotonic() - began, 1)
    if json:
        emit(story)
    elif story["ok"]:
        say(f"Killed while it paid, and paid exactly once ({story['seconds']} s).", "bold green")
    else:
        say("Something ran twice, was lost or is wrong. Please report this.", "bold red")
    return OK if story["ok"] else DAMAGED


class _Story:
    """Five chapters; each adds what it measured to `facts`."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self._folder = folder
        self._journal = folder / JOURNAL
        self._quiet = quiet
        self._facts: dict[str, Any] = {}

    def told(self) -> dict[str, Any]:
        """Everything that was measured, and whether it is as promised."""
        self._kill()
        frames = self._look()
        self._resume()
        self._answer()
        self._finish()
        ended = self._budgets(frames)
        self._verify()
        facts = self._facts
        facts["ok"] = (
            facts["killed"]
            and facts["live_after_kill"] == len(demo_work.GRANTED)
            and facts["ran_before_kill"] == facts["ran"] == dict.fromkeys(STEPS, 1)
            and facts["paid"] == 1
            and facts["answered"]
            and facts["result"] == facts["outcome"]
            and ended
            and facts["verified"]
        )
        return facts

    def _tell(self, text: str, style: str = "") -> None:
        if not self._quiet:
            say(text, style)

    def _chapter(self, text: str) -> None:
        self._tell(text, "bold")

    def _kill(self) -> None:
        self._chapter("1. An agent answers a mail, in three frames inside one another. It pays money back…")
        self._facts["killed"] = kill_inside(self._folder)
        self._facts["ran_before_kill"] = self._ran()
        self._tell(f"   …and is killed with SIGKILL inside that call. Steps run: {_counts(self._ran())}.")
        self._tell(f"   The bank has the order: {self._paid()} line in {PAID}. What the journal knows:")

    def _look(self) -> list[str]:
        """What `holdfast stack` shows; gives the frames that are live, root first."""
        if not self._quiet:
            show_stack(str(self._journal), pending=True)
        found = holdfast("stack", str(self._journal))
        frames = [frame["id"] for scope in found.get("scopes", ()) for frame in scope["frames"]]
        self._facts["live_after_kill"] = len(frames)
        return frames

    def _resume(self) -> None:
        self._chapter("2. A new process runs the same code.")
        word, said = run_again(self._folder)
        found = holdfast("questions", str(self._journal)).get("questions")
        asked = found[0] if found else {}
        self._facts["question"] = asked.get("id")
        self._facts["asked"] = asked.get("reason")
        again = sum(self._ran().values()) - sum(self._facts["ran_before_kill"].values())
        self._tell(f"   Steps run again: {again}. Paid: {self._paid()}. It is {word}, and asks:")
        self._tell(f"   {asked.get('reason')} ({said})")

    def _answer(self) -> None:
        self._chapter(f"3. Somebody looks into {PAID}: it happened. So: do not, and this is what came of it.")
        paid = (self._folder / PAID).read_text(encoding="utf-8").splitlines()
        self._facts["outcome"] = json_module.loads(paid[0])
        options = ("--deny", "--payload", paid[0], "--by", "operator")
        self._tell(f"   $ {shlex.join(['holdfast', 'answer', JOURNAL, str(self._facts['question']), *options])}")
        answered = holdfast("answer", str(self._journal), str(self._facts["question"]), *options)
        self._facts["answered"] = answered.get("approved") is False
        self._tell(f"   {'Answered.' if self._facts['answered'] else 'It could not be answered.'}")

    def _finish(self) -> None:
        self._chapter("4. A third process runs the same code.")
        word, said = run_again(self._folder)
        self._facts["ran"] = self._ran()
        self._facts["paid"] = self._paid()
        self._facts["result"] = json_module.loads(said) if word == "done" else None
        self._tell(f"   It is {word}: {said}")
        self._tell(f"   Steps run by all three processes: {_counts(self._ran())}. Paid: {self._paid()}.")

    def _budgets(self, frames: list[str]) -> bool:
        """What became of the frames, and whether every token was counted once."""
        with open_journal(self._journal) as hf:
            infos = [hf.index.get_frame(frame) for frame in frames]
            live = sum(len(found) for _, found in hf.index.stacks())
            if infos and not self._quiet:
                forest_of(hf, infos[0].scope, infos).show()
        self._facts["frames"] = [_budget(info) for info in infos]
        self._facts["live"] = live
        used, spent = (infos[0].tokens.used if infos else 0), sum(SPENT.values())
        self._tell(f"   Live frames: {live}. Tokens spent: {spent:,}, counted at the root: {used:,}.")
        return not live and used == spent and all(info.status == "completed" for info in infos)

    def _verify(self) -> None:
        self._chapter("5. Verify: every hash, version and row.")
        report = holdfast("verify", str(self._journal))
        self._facts["events"] = report.get("events")
        self._facts["findings"] = len(report.get("findings", ()))
        self._facts["verified"] = report.get("ok", False)
        self._tell(f"   {self._facts['events']} events, {self._facts['findings']} findings.")

    def _ran(self) -> dict[str, int]:
        """How often each step really ran."""
        return dict(Counter((self._folder / RAN).read_text(encoding="utf-8").split()))

    def _paid(self) -> int:
        return (self._folder / PAID).read_text(encoding="utf-8").count("\n")


def _counts(ran: dict[str, int]) -> str:
    return ", ".join(f"{step} {count}" for step, count in ran.items())


def _budget(info: FrameInfo) -> dict[str, Any]:
    return {"goal": info.goal, "status": info.status, "granted": info.tokens.granted, "used": info.tokens.used}


def kill_inside(folder: Path) -> bool:
    """Start the work and kill it once it says, through a pipe that outlives it, that it is inside the effect."""
    inside, said = False, ""
    with subprocess.Popen(_worker(folder, "hangs"), stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        # On a slow disk, or if it never says anything, it is killed all the same.
        late = threading.Timer(GIVE_UP_SECONDS, process.kill)
        late.start()
        try:
            said = process.stdout.readline().strip()
            inside = said == "inside refund"
        finally:
            process.kill()
            late.cancel()
    if not inside:
        raise Unavailable(
            f"The demo's agent could not do its work ({said or 'it said nothing'}). Run `holdfast doctor`."
        )
    return process.returncode == -signal.SIGKILL


def run_again(folder: Path) -> tuple[str, str]:
    """The same work in a process of its own, to its end; gives how it ended."""
    try:
        done = subprocess.run(  # noqa: S603
            _worker(folder), stdout=subprocess.PIPE, text=True, check=False, timeout=GIVE_UP_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "failed", "it took too long"
    word, _, said = done.stdout.strip().partition(" ")
    return word or "failed", said


def _worker(folder: Path, *how: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli.demo_work", str(folder), *how]


def holdfast(*arguments: str) -> dict[str, Any]:
    """A command of holdfast in a process of its own, as JSON; what it refuses gives nothing."""
    command = [sys.executable, "-c", "from holdfast.cli.main import run; run()", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    found: dict[str, Any] = json_module.loads(done.stdout or "{}")
    return found

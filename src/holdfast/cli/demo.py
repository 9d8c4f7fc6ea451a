"""`holdfast demo`: kill an agent while it pays money back, and show that it pays exactly once.

The processes share nothing but a folder. The first is killed with SIGKILL inside a tool, the second
runs the same code and stops to ask, a command answers, the third completes the work. This process
starts them, reads the files they left, and counts. Every number it prints was measured.
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

from holdfast.cli.demo_agent import ASKED, JOURNAL, PAID, QUESTION, RAN, REPLY, SESSION
from holdfast.cli.main import DAMAGED, OK
from holdfast.cli.open import Json
from holdfast.cli.output import emit, say
from holdfast.cli.pack import call_id, first_words
from holdfast.cli.stack import stack as show_stack
from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_journal
from holdfast.core.packs.manifest import sentence
from holdfast.errors import Unavailable

GIVE_UP_SECONDS = 12.0
BEFORE = {"model": 2, "find_order": 1, "refund": 1}
AFTER = {"model": 3, "find_order": 1, "refund": 1}
LIVE_FRAMES = 2
"""The turn, and the tool call in it."""


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
    """A run of the demo in six chapters; each adds its measurements to `_facts`."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self._folder = folder
        self._journal = folder / JOURNAL
        self._quiet = quiet
        self._facts: dict[str, Any] = {}

    def told(self) -> dict[str, Any]:
        """Run all chapters; return the measurements, with `ok` if all are as promised."""
        self._kill()
        self._look()
        self._resume()
        self._answer()
        self._finish()
        self._check()
        facts = self._facts
        facts["ok"] = (
            facts["killed"]
            and facts["ran_before_kill"] == facts["ran_before_answer"] == BEFORE
            and facts["live_after_kill"] == LIVE_FRAMES
            and facts["asked"] == [QUESTION]
            and facts["answered"]
            and (facts["status"], facts["reply"]) == ("done", REPLY)
            and facts["ran"] == AFTER
            and facts["paid"] == 1
            and facts["live"] == 0
            and facts["tokens"] == facts["tokens_journaled"]
            and facts["verified"]
        )
        return facts

    def _tell(self, text: str, style: str = "") -> None:
        if not self._quiet:
            say(text, style)

    def _chapter(self, text: str) -> None:
        self._tell(text, "bold")

    def _kill(self) -> None:
        self._chapter(f'1. Somebody asks an agent: "{ASKED}". It finds the order, calls the tool refund…')
        self._facts["killed"] = kill_inside(self._folder)
        self._facts["ran_before_kill"] = self._ran()
        self._tell(f"   …and is killed with SIGKILL inside that tool. What really ran: {_counts(self._ran())}.")
        self._tell(f"   The bank has the order: {self._paid()} line in {PAID}.")

    def _look(self) -> None:
        self._chapter("2. What the journal knows.")
        self._tell(f"   $ holdfast stack {JOURNAL} --pending")
        if not self._quiet:
            show_stack(str(self._journal), pending=True)
        with open_journal(self._journal) as hf:
            self._facts["live_after_kill"] = _live(hf)

    def _resume(self) -> None:
        self._chapter("3. A new process runs the same code.")
        word, _ = run_again(self._folder)
        with open_journal(self._journal) as hf:
            found = [(question.id, question.reason) for question in hf.questions()]
        self._facts["question"] = found[0][0] if found else None
        self._facts["asked"] = [reason for _, reason in found]
        self._facts["ran_before_answer"] = self._ran()
        again = sum(self._ran().values()) - sum(self._facts["ran_before_kill"].values())
        self._tell(f"   Run again: {again}. Paid: {self._paid()}. It is {word}, and asks:")
        for reason in self._facts["asked"]:
            self._tell(f"   {reason}", "yellow")

    def _answer(self) -> None:
        self._chapter(f"4. Somebody looks into {PAID}: it happened. So: do not, and this is what came of it.")
        paid = (self._folder / PAID).read_text(encoding="utf-8").splitlines()
        options = ("--deny", "--payload", paid[0], "--by", "operator")
        self._tell(f"   $ {shlex.join(['holdfast', 'answer', JOURNAL, str(self._facts['question']), *options])}")
        answered = holdfast("answer", str(self._journal), str(self._facts["question"]), *options)
        self._facts["answered"] = answered.get("approved") is False
        self._tell(f"   {'Answered.' if self._facts['answered'] else 'It could not be answered.'}")

    def _finish(self) -> None:
        self._chapter("5. A third process runs the same code.")
        self._facts["status"], self._facts["reply"] = run_again(self._folder)
        self._facts["ran"] = self._ran()
        self._facts["paid"] = self._paid()
        self._tell(f"   It is {self._facts['status']}: {self._facts['reply']}")
        self._tell(f"   Run by all three processes: {_counts(self._ran())}. Paid: {self._paid()}.")

    def _check(self) -> None:
        self._chapter("6. Verify: every hash, version and row; every token once; what the model was shown.")
        with open_journal(self._journal) as hf:
            report = hf.journal.verify()
            self._facts["live"] = _live(hf)
            self._facts["tokens_journaled"] = hf.session(SESSION, create=False).usage.spent
            shown = _last_call(hf)
        self._facts["tokens"] = sum(amount for step, amount in self._steps() if step == "model")
        self._facts["events"] = report.events
        self._facts["findings"] = len(report.findings)
        self._facts["verified"] = not report.findings
        self._facts["shown"] = shown
        self._tell(
            f"   {report.events} events, {self._facts['findings']} findings. Live frames: {self._facts['live']}."
        )
        self._tell(f"   Tokens used: {self._facts['tokens']:,}, journaled: {self._facts['tokens_journaled']:,}.")
        self._tell(f"   Its last call was shown {shown['tokens']:,} of {shown['budget']:,} tokens:")
        for id, text in shown["pieces"].items():
            self._tell(f"     {id}  {text}")

    def _steps(self) -> list[tuple[str, int]]:
        lines = (self._folder / RAN).read_text(encoding="utf-8").splitlines()
        return [(step, int(amount)) for step, _, amount in (line.partition(" ") for line in lines)]

    def _ran(self) -> dict[str, int]:
        return dict(Counter(step for step, _ in self._steps()))

    def _paid(self) -> int:
        return (self._folder / PAID).read_text(encoding="utf-8").count("\n")


def _counts(ran: dict[str, int]) -> str:
    return ", ".join(f"{step} {count}" for step, count in ran.items())


def _live(hf: Holdfast) -> int:
    return sum(len(frames) for _, frames in hf.index.stacks())


def _last_call(hf: Holdfast) -> dict[str, Any]:
    """Return the tokens of the newest model call's pack, and each piece with the reason for it."""
    line = hf.session(SESSION, create=False)
    pack = line.pack_at(call_id(hf, line, "-1"))
    words = {segment.id: first_words(pack, segment) for segment in pack.segments}
    pieces = {one.id: f"{words.get(one.id, '')} ({one.outcome}: {sentence(one.reason)})" for one in pack.decisions}
    return {"tokens": pack.tokens, "budget": pack.budget, "pieces": pieces}


def kill_inside(folder: Path) -> bool:
    """Start the agent and kill it once it reports, through a pipe that outlives it, that it is inside the tool."""
    inside, said = False, ""
    with subprocess.Popen(_worker(folder, "hangs"), stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stdout is not None
        # If the disk is slow or the agent reports nothing, it is killed all the same.
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
    """Run the agent to its end in another process; return its status and text."""
    try:
        done = subprocess.run(  # noqa: S603
            _worker(folder), stdout=subprocess.PIPE, text=True, check=False, timeout=GIVE_UP_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "failed", "it took too long"
    word, _, said = done.stdout.strip().partition(" ")
    return word or "failed", said


def _worker(folder: Path, *how: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli.demo_agent", str(folder), *how]


def holdfast(*arguments: str) -> dict[str, Any]:
    """Run a holdfast command in another process and return its JSON; a refused command returns an empty dict."""
    command = [sys.executable, "-c", "from holdfast.cli.main import run; run()", *arguments, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
    found: dict[str, Any] = json_module.loads(done.stdout or "{}")
    return found

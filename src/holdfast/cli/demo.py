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

from holdfast.cli.demo_agent import JOURNAL_FILE, PAYMENTS_FILE, QUESTION, REPLY, REQUEST, SESSION, STEPS_FILE
from holdfast.cli.frames import stack as show_stack
from holdfast.cli.main import DAMAGED, OK
from holdfast.cli.open import Json
from holdfast.cli.output import print_json, print_line
from holdfast.cli.pack import find_call_id, first_words
from holdfast.client.holdfast import open as open_journal
from holdfast.core.packs.manifest import describe_reason
from holdfast.errors import Unavailable

GIVE_UP_SECONDS = 12.0
STEPS_BEFORE_KILL = {"model": 2, "find_order": 1, "refund": 1}
PROMISED = {
    "killed": True,
    "ran_before_kill": STEPS_BEFORE_KILL,
    "live_after_kill": 2,  # The turn, and the tool call in it.
    "ran_before_answer": STEPS_BEFORE_KILL,
    "asked": [QUESTION],
    "answered": True,
    "status": "done",
    "reply": REPLY,
    "ran": {"model": 3, "find_order": 1, "refund": 1},
    "paid": 1,
    "live": 0,
    "verified": True,
}


def demo(*, json: Json = False) -> int:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        story = _DemoRun(Path(folder), quiet=json).run()
    story["seconds"] = round(time.monotonic() - began, 1)
    if json:
        print_json(story)
    elif story["ok"]:
        print_line(f"Killed during the refund, and paid exactly once ({story['seconds']} s).", "bold green")
    else:
        print_line("Something ran twice, was lost or is wrong. Please report this.", "bold red")
    return OK if story["ok"] else DAMAGED


class _DemoRun:
    """A run of the demo in six chapters; each adds its measurements to `_facts`."""

    def __init__(self, folder: Path, *, quiet: bool) -> None:
        self._folder = folder
        self._journal = folder / JOURNAL_FILE
        self._quiet = quiet
        self._facts: dict[str, Any] = {}

    def run(self) -> dict[str, Any]:
        """Run all chapters; return the measurements, with `ok` if all are as promised."""
        for chapter in (self._kill, self._inspect, self._resume, self._answer, self._finish, self._check):
            chapter()
        facts = self._facts
        kept = all(facts[name] == value for name, value in PROMISED.items())
        return {**facts, "ok": kept and facts["tokens"] == facts["tokens_journaled"]}

    def _print(self, text: str, style: str = "") -> None:
        if not self._quiet:
            print_line(text, style)

    def _kill(self) -> None:
        self._print(f'1. Somebody asks an agent: "{REQUEST}". It finds the order, calls the tool refund…', "bold")
        self._facts["killed"] = kill_inside_tool(self._folder)
        self._facts["ran_before_kill"] = self._count_steps()
        self._print(f"   …and is killed with SIGKILL inside that tool. Steps that ran: {self._format_steps()}.")
        self._print(f"   The bank has the order: {self._count_payments()} line in {PAYMENTS_FILE}.")

    def _inspect(self) -> None:
        self._print("2. The journal shows the unfinished call.", "bold")
        self._print(f"   $ holdfast stack {JOURNAL_FILE} --pending")
        if not self._quiet:
            show_stack(str(self._journal), pending=True)
        with open_journal(self._journal) as hf:
            self._facts["live_after_kill"] = sum(len(frames) for _, frames in hf.index.stacks())

    def _resume(self) -> None:
        self._print("3. A new process runs the same code.", "bold")
        word, _ = run_agent(self._folder)
        with open_journal(self._journal) as hf:
            found = [(question.id, question.reason) for question in hf.questions()]
        self._facts["question"] = found[0][0] if found else None
        self._facts["asked"] = [reason for _, reason in found]
        self._facts["ran_before_answer"] = self._count_steps()
        again = sum(self._count_steps().values()) - sum(self._facts["ran_before_kill"].values())
        self._print(f"   Run again: {again}. Paid: {self._count_payments()}. It is {word}, and asks:")
        for reason in self._facts["asked"]:
            self._print(f"   {reason}", "yellow")

    def _answer(self) -> None:
        self._print(
            f"4. An operator checks {PAYMENTS_FILE}: it was paid. Answer: do not run it again; here is the result.",
            "bold",
        )
        paid = (self._folder / PAYMENTS_FILE).read_text(encoding="utf-8").splitlines()
        options = ("--deny", "--payload", paid[0], "--by", "operator")
        self._print(f"   $ {shlex.join(['holdfast', 'answer', JOURNAL_FILE, str(self._facts['question']), *options])}")
        words = ("answer", str(self._journal), str(self._facts["question"]), *options, "--json")
        command = [sys.executable, "-c", "from holdfast.cli.main import run; run()", *words]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)  # noqa: S603
        answered = json_module.loads(done.stdout or "{}")  # A refused command prints nothing.
        self._facts["answered"] = answered.get("approved") is False
        self._print(f"   {'Answered.' if self._facts['answered'] else 'The answer was refused.'}")

    def _finish(self) -> None:
        self._print("5. A third process runs the same code.", "bold")
        self._facts["status"], self._facts["reply"] = run_agent(self._folder)
        self._facts["ran"] = self._count_steps()
        self._facts["paid"] = self._count_payments()
        self._print(f"   It is {self._facts['status']}: {self._facts['reply']}")
        self._print(f"   Run by all three processes: {self._format_steps()}. Paid: {self._count_payments()}.")

    def _check(self) -> None:
        self._print("6. Verify every hash, version and row, count the tokens, and show the last context.", "bold")
        with open_journal(self._journal) as hf:
            report = hf.journal.verify()
            self._facts["live"] = sum(len(frames) for _, frames in hf.index.stacks())
            line = hf.session(SESSION, create=False)
            self._facts["tokens_journaled"] = line.usage.spent
            pack = line.pack_at(find_call_id(hf, line, "-1"))
            words = {segment.id: first_words(pack, segment) for segment in pack.segments}
            reasons = {one.id: f"{one.outcome}: {describe_reason(one.reason)}" for one in pack.decisions}
        self._facts["tokens"] = sum(amount for step, amount in self._read_steps() if step == "model")
        self._facts |= {"events": report.events, "findings": len(report.findings), "verified": not report.findings}
        pieces = {id: f"{words.get(id, '')} ({reason})" for id, reason in reasons.items()}
        self._facts["shown"] = {"tokens": pack.tokens, "budget": pack.budget, "pieces": pieces}
        self._print(f"   {report.events} events, {len(report.findings)} findings. Live frames: {self._facts['live']}.")
        self._print(f"   Tokens used: {self._facts['tokens']:,}, journaled: {self._facts['tokens_journaled']:,}.")
        self._print(f"   The last call got {pack.tokens:,} of {pack.budget:,} tokens:")
        for id, text in pieces.items():
            self._print(f"     {id}  {text}")

    def _read_steps(self) -> list[tuple[str, int]]:
        lines = (self._folder / STEPS_FILE).read_text(encoding="utf-8").splitlines()
        return [(step, int(amount)) for step, _, amount in (line.partition(" ") for line in lines)]

    def _count_steps(self) -> dict[str, int]:
        return dict(Counter(step for step, _ in self._read_steps()))

    def _format_steps(self) -> str:
        return ", ".join(f"{step} {count}" for step, count in self._count_steps().items())

    def _count_payments(self) -> int:
        return (self._folder / PAYMENTS_FILE).read_text(encoding="utf-8").count("\n")


def kill_inside_tool(folder: Path) -> bool:
    """Start the agent and kill it once it reports, through a pipe that outlives it, that it is inside the tool."""
    inside, said = False, ""
    with subprocess.Popen(_worker_command(folder, "hangs"), stdout=subprocess.PIPE, text=True) as process:  # noqa: S603
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
        raise Unavailable(f"The demo's agent failed ({said or 'no message'}). Run `holdfast doctor`.")
    return process.returncode == -signal.SIGKILL


def run_agent(folder: Path) -> tuple[str, str]:
    """Run the agent to its end in another process; return its status and text."""
    try:
        done = subprocess.run(  # noqa: S603
            _worker_command(folder), stdout=subprocess.PIPE, text=True, check=False, timeout=GIVE_UP_SECONDS
        )
    except subprocess.TimeoutExpired:
        return "failed", "it timed out"
    word, _, said = done.stdout.strip().partition(" ")
    return word or "failed", said


def _worker_command(folder: Path, *how: str) -> list[str]:
    return [sys.executable, "-m", "holdfast.cli.demo_agent", str(folder), *how]

"""The agent of `holdfast demo`: ordinary code, run by one process after another until it is done.

It does not know whether it runs for the first time. Every real action appends a line to a file that is never
rolled back, so the actions can be counted independently of the journal.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.cli.output import encode_json
from holdfast.client.holdfast import open as open_journal
from holdfast.errors import HoldfastError
from holdfast.model.scripted import DeltaCallback, Scripted, call
from holdfast.records.messages import ModelCall, ModelReply
from holdfast.records.settings import Settings
from holdfast.runtime.reply import Reply
from holdfast.runtime.tools.tool import AnyTool, tool

SESSION = "demo"
JOURNAL_FILE = "agent.db"
STEPS_FILE = "ran.txt"
PAYMENTS_FILE = "paid.txt"
SYSTEM = "You look after the orders of a small shop. Look an order up before you pay anything back."
REQUEST = "Refund order 17, 240 euros"
REPLY = "Order 17 is refunded: 240 euros are on their way."
QUESTION = "refund(17, 240) may have run. Run again?"


class CountingModel(Scripted):
    """The agent's model: follows a script, and records each call and its tokens outside the journal."""

    def __init__(self, folder: Path) -> None:
        super().__init__([call("find_order", order=17), call("refund", order=17, amount=240), REPLY])
        self._folder = folder

    async def reply(self, asked: ModelCall, say: DeltaCallback | None = None) -> ModelReply:
        """Return the script's next reply, and record the call."""
        made = await super().reply(asked, say)
        _record_step(self._folder, "model", made.usage.spent)
        return made


def make_tools(folder: Path, *, hangs: bool) -> list[AnyTool]:
    """Return the agent's tools: one that may run any number of times, and one that must not."""

    @tool(if_interrupted="retry")
    def find_order(order: int) -> dict[str, Any]:
        """Find an order by its number."""
        _record_step(folder, "find_order")
        return {"order": order, "customer": "alice", "total": 240}

    @tool
    def refund(order: int, amount: int) -> dict[str, Any]:
        """Pay an order back."""
        _record_step(folder, "refund")
        receipt = {"refunded": order, "amount": amount}
        _append_line(folder / PAYMENTS_FILE, encode_json(receipt))
        if hangs:  # The bank's answer never comes.
            print_line_at_once("inside refund")
            time.sleep(60)
        return receipt

    return [find_order, refund]


def answer_customer(folder: Path, *, hangs: bool) -> Reply[Any]:
    """Answer a customer. Sent again under the same key, the turn continues where it stopped."""
    # A short lease: where the system cannot tell that a process is gone, others wait this long.
    with open_journal(folder / JOURNAL_FILE, settings=Settings(lease_ms=1_000)) as hf:
        tools = make_tools(folder, hangs=hangs)
        agent: Any = hf.agent("shop", model=CountingModel(folder), system=SYSTEM, tools=tools)
        reply: Reply[Any] = agent.send(SESSION, REQUEST, key="mail-1")
        return reply


def _record_step(folder: Path, step: str, amount: int = 1) -> None:
    _append_line(folder / STEPS_FILE, f"{step} {amount}")


def _append_line(path: Path, line: str) -> None:
    """Append a line in one write, with no buffer that a killed process would take with it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def print_line_at_once(line: str) -> None:
    """Write a line to stdout in one write, so that a kill falls before or after it even if stdout is unbuffered."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main(folder: str, how: str = "") -> None:
    """Run the agent and print how it ended: done, waiting for an answer, or failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent process, which then kills this one.
    try:
        reply = answer_customer(Path(folder), hangs=how == "hangs")
    except HoldfastError as error:
        print_line_at_once(f"failed {' '.join(str(error).split())}")
    else:
        said = reply.text if reply.status == "done" else reply.reason or ""
        print_line_at_once(f"{reply.status} {' '.join(said.split())}")


if __name__ == "__main__":
    main(*sys.argv[1:])

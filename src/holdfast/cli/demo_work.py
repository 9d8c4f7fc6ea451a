"""The agent of `holdfast demo`: ordinary code, run by one process after another until it is done.

It does not know whether it runs for the first time. Every step leaves a line in a file, which
nobody can take back, so that whoever reads it can count what really ran, whatever a journal says.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.cli.output import compact
from holdfast.client import open as open_journal
from holdfast.client_frame import Frame
from holdfast.errors import HoldfastError, Waiting
from holdfast.records.settings import Settings

SESSION = "demo"
JOURNAL = "agent.db"
RAN = "ran.txt"
PAID = "paid.txt"
STEPS = ("read-mail", "find-payment", "refund")
GRANTED = (10_000, 4_000, 1_500)
SPENT = {"read": 420, "found": 310, "checked": 90, "reply": 150}
"""Tokens that the work records, each once, however often the code runs."""


class Shop:
    """The world outside of the journal: what is done here stays done."""

    def __init__(self, folder: Path, hangs: bool) -> None:
        self._folder = folder
        self._hangs = hangs

    def read_mail(self) -> dict[str, Any]:
        """A step that only reads."""
        self._ran("read-mail")
        return {"order": 17, "from": "alice", "wants": "her money back"}

    def find_payment(self, order: int) -> dict[str, Any]:
        """Another one."""
        self._ran("find-payment")
        return {"payment": f"pay-{order}", "amount": "49.90"}

    def refund(self, payment: dict[str, Any]) -> dict[str, Any]:
        """The effect that must happen once. The bank has the order; its answer may never come."""
        self._ran("refund")
        receipt = {"refunded": payment["payment"], "amount": payment["amount"]}
        _write_line(self._folder / PAID, compact(receipt))
        if self._hangs:
            say_at_once("inside refund")
            time.sleep(60)
        return receipt

    def _ran(self, step: str) -> None:
        _write_line(self._folder / RAN, step)


def work(folder: Path, *, hangs: bool) -> Any:
    """Answer a mail: three frames inside one another, each with a budget, each step under a key."""
    shop = Shop(folder, hangs)
    # A short lease: where a system does not say that a process is gone, others wait that long to be sure.
    with open_journal(folder / JOURNAL, settings=Settings(lease_ms=1_000)) as hf:
        with hf.frame("Answer Alice's mail", session=SESSION, key="mail-1", tokens=GRANTED[0]) as mail:
            mail.reserve("reply", 1_000, key="keep-for-reply")
            wish = mail.run(shop.read_mail, key="read-mail")
            mail.spend(SPENT["read"], key="read")
            with mail.frame("Refund order 17", key="order-17", tokens=GRANTED[1]) as order:
                receipt = _refund(shop, order, wish["order"])
                order.result(receipt)
            mail.spend(SPENT["reply"], purpose="reply", key="reply")
            mail.release("reply", key="replied")
            mail.result(receipt, summary="Alice has her money back.")
        return receipt


def _refund(shop: Shop, order: Frame, number: int) -> Any:
    payment = order.run(shop.find_payment, number, key="find-payment")
    order.attach("document", description=f"Payment of order {number}", body=compact(payment), key="evidence")
    order.spend(SPENT["found"], key="found")
    with order.frame("Pay the money back", key="pay-back", tokens=GRANTED[2]) as pay:
        pay.spend(SPENT["checked"], key="checked")
        receipt = pay.run(shop.refund, payment, key="refund", if_interrupted="ask")
        pay.result(receipt)
        return receipt


def _write_line(path: Path, line: str) -> None:
    """One write, and no buffer that a killed process would take with it."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
    finally:
        os.close(file)


def say_at_once(line: str) -> None:
    """One write for the whole line: a kill falls before it or after it, also where Python does not buffer."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main(folder: str, how: str = "") -> None:
    """Do the work and say how it ended: done, waiting for an answer, or failed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for who started it, and who kills it then.
    try:
        receipt = work(Path(folder), hangs=how == "hangs")
    except Waiting as stopped:
        say_at_once(f"waiting {stopped.question}")
    except HoldfastError as error:
        say_at_once(f"failed {' '.join(str(error).split())}")
    else:
        say_at_once(f"done {compact(receipt)}")


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A session in plain Python: its threads, how it ends and begins anew, and what memory is owed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tests.model.sessions_model import Line, No

ATTEMPTS = 3
"""How often memory is asked before it is given up."""


@dataclass
class Ended:
    """A conversation that memory has not taken yet: what it must be told, and how often it was asked."""

    cause: str
    threads: dict[str, list[str]]
    attempts: int = 0


class Talk:
    """A session."""

    def __init__(self, now: int) -> None:
        self.status = "open"
        self.generation = 0
        self.lines: dict[str, Line] = {}
        self.settings: dict[str, Any] = {}
        self.timeout: int | None = None
        self.active = now
        self.pending: list[Ended] = []

    def add(self, line: Line, now: int) -> None:
        """A new line; in a session that was reset it waits for the next message like the others."""
        self.lines[line.name] = line
        self.active = now
        if self.status != "open":
            line.ended = line.fresh = True
            line.clear()

    def open_line(self, name: str) -> Line:
        line = self.lines[name]
        if line.ended:
            raise No("SessionClosed")
        return line

    def is_over(self) -> bool:
        """Whether it is closed for good, or about to be: after a reset it is not."""
        return self.status in ("closing", "closed") and not any(line.fresh for line in self.lines.values())

    def may_grow(self) -> None:
        """New threads are refused once it is closed for good."""
        if self.is_over():
            raise No("SessionClosed")

    def begin(self, line: Line, now: int) -> None:
        """Something is said in it: after a reset that begins the next generation."""
        if line.ended:
            line.ended = line.fresh = False
            if self.status != "open":
                self.status, self.generation = "open", self.generation + 1
        self.active = now

    def end(self, cause: str, *, reset: bool) -> None:
        """Close or reset it. Memory is owed what every line shows."""
        if cause != "reset" and self.is_over():
            raise No("SessionClosed")
        if self.status == "ended" and reset:
            return
        threads = {name: [said.text for said in line.said] for name, line in sorted(self.lines.items()) if line.said}
        if threads and self.status == "open":
            self.pending.append(Ended(cause, threads))
        for line in self.lines.values():
            line.ended, line.fresh = True, reset
            line.waiting = set()
            if reset:
                line.clear()
        self.status = "closing"
        self.settle()

    def settle(self) -> None:
        """Once memory is owed nothing more, it has ended."""
        if self.status == "closing" and not self.pending:
            self.status = "ended" if any(line.fresh for line in self.lines.values()) else "closed"

    def offer(self, *, fails: bool) -> list[Ended]:
        """Memory is asked to take what it is owed; gives what it took."""
        taken = [] if fails else self.pending
        for one in self.pending:
            one.attempts += 1
        self.pending = [one for one in self.pending if one.attempts < ATTEMPTS] if fails else []
        self.settle()
        return taken

    def is_idle(self, now: int) -> bool:
        return self.status == "open" and self.timeout is not None and now - self.active >= self.timeout

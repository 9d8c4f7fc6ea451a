"""A process that owns an actor and does what it is told, line by line: one command in, one answer out.

An answer is `ok` with what came of it, or the name of the error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import holdfast

SCOPE = "actor/main"


class Owner:
    """One client with at most one block."""

    def __init__(self, path: str) -> None:
        self._hf = holdfast.open(path)
        self._block: holdfast.Frame | None = None

    @property
    def block(self) -> holdfast.Frame:
        assert self._block is not None, "enter first"
        return self._block

    def enter(self, key: str) -> str:
        """Own the actor."""
        block = self._hf.frame("job", key=key)
        block.open()
        self._block = block
        return block.id

    def leave(self) -> str:
        """End the block, as if it were done."""
        block, self._block = self.block, None
        block.leave()
        return block.status

    def run(self, key: str) -> str:
        """An owner's event."""
        return self.block.run(lambda: "done", key=key)

    def busy(self, milliseconds: str) -> str:
        """Compute without a pause: only the other thread can show that this process lives."""
        until = time.monotonic() + int(milliseconds) / 1000

        def compute() -> int:
            count = 0
            while time.monotonic() < until:
                count += 1
            return count

        return str(self.block.run(compute, key=f"busy-{time.monotonic_ns()}") > 0)

    def note(self) -> str:
        """An event that anybody may write."""
        return str(self._hf.journal.append(SCOPE, "app.noted").version)

    def answer(self, question: str) -> str:
        """An answer, which anybody may give."""
        return self._hf.answer(question, approve=True)

    def ask(self) -> str:
        """Ask with a token, and never come to show it."""
        self.block.suspend("Publish?", token=True, key="ask")
        time.sleep(600)
        return "never"


def main(path: str) -> None:
    owner = Owner(path)
    print("ok ready", flush=True)
    for line in sys.stdin:
        verb, *arguments = line.split()
        do: Callable[..., str] = getattr(owner, verb)
        try:
            said = f"ok {do(*arguments)}"
        except holdfast.HoldfastError as error:
            said = type(error).__name__
        print(said, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

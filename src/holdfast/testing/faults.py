"""Fault points before and after every call of a port: die there, and check the state a restart finds.

`FaultPoints` wraps a journal. It counts the points that a program passes and, if told to, raises at one of them:
`SimulatedDeath` stands for kill -9 and is not an `Exception`, so error handling cannot survive it.
`die_everywhere` runs a program once per point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from holdfast.ports.journal import Journal


class SimulatedDeath(BaseException):
    """The process is gone. Raised at a fault point in place of kill -9."""


class FaultPoints:
    """A journal with a fault point before and after each call; it can replace any journal."""

    def __init__(self, journal: Journal, *, die_at: int | None = None, error: BaseException | None = None) -> None:
        self._journal = journal
        self._die_at = die_at
        self._error = error
        self._dead = False
        self.passed: list[str] = []

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._journal, name)
        return self._guard(name, value) if callable(value) and name != "close" else value

    def _guard(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self._pass_point(f"before {name}")
            answer = call(*args, **kwargs)
            self._pass_point(f"after {name}")
            return answer

        return guarded

    def _pass_point(self, name: str) -> None:
        if self._dead:
            raise SimulatedDeath(f"called at {name!r}, after death")
        self.passed.append(name)
        if len(self.passed) == self._die_at:
            if self._error is not None:
                raise self._error
            self._dead = True
            raise SimulatedDeath(name)


def die_everywhere(run: Callable[[Callable[[Journal], Journal]], object]) -> Iterator[str]:
    """Call `run(wrap)` once to count its fault points, then once for each of them, dying there.

    `run` opens its journal, wraps it with the function that it is given, and uses the result.
    Yield the name of each point after the program died at it, so that the caller can check what is left.
    """
    seen: list[FaultPoints] = []

    def wrap(die_at: int | None) -> Callable[[Journal], Any]:
        def wrapping(journal: Journal) -> Any:
            seen.append(FaultPoints(journal, die_at=die_at))
            return seen[-1]

        return wrapping

    run(wrap(None))
    total = len(seen[-1].passed)
    yield "never"
    for number in range(1, total + 1):
        try:
            run(wrap(number))
        except SimulatedDeath as death:
            yield str(death)
        else:
            raise AssertionError(f"The program did not die at point {number} of {total}: it is not repeatable.")

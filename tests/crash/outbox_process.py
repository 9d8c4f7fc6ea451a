"""A process that runs operators and sends what they declare, until it is killed at a point that it was told.

The sink is a file that is only ever appended to, and it checks ids: what it holds already it drops. The clock stands
still within a life and is given, so that nothing waits.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from holdfast.effects import Custom, DeclaredEffect, OperatorOutput, WriteState
from holdfast.errors import RetryLater
from holdfast.journal.sqlite import SqliteJournal
from holdfast.testing.clock import FrozenClock

POINTS = (
    "before declaring",
    "after declaring",
    "before the lease",
    "before delivery",
    "after the sink took it",
    "before settling",
    "after settling",
    "in a second dispatch",
)
SINKS = ("crm", "mail")
STREAMS = ("operator/a", "operator/b")
_AT = {"declaring": "operator.ran", "the lease": "lease.taken", "settling": "effect.settled"}


def die() -> None:
    """As kill -9 from outside, at this very instruction."""
    os.kill(os.getpid(), signal.SIGKILL)


class Killer:
    """Ends this process the n-th time that it comes to a point."""

    def __init__(self, point: str, nth: int) -> None:
        self._point, self._left = point, nth
        self.second = False

    def at(self, point: str) -> None:
        """Here we are."""
        if point == self._point:
            self._left -= 1
            if self._left <= 0:
                die()

    def watch_commits(self) -> None:
        """Be there before and after every commit."""
        real = SqliteJournal.append

        def append(journal: SqliteJournal, batch: Any) -> Any:
            types = {event.type for part in batch.parts for event in part.events}
            words = [word for word, type_name in _AT.items() if type_name in types]
            for word in words:
                self.at(f"before {word}")
            if self.second:
                self.at("in a second dispatch")
            appended = real(journal, batch)
            for word in words:
                self.at(f"after {word}")
            return appended

        SqliteJournal.append = append  # type: ignore[method-assign]


class FileSink:
    """Notes `stream sink id number` in a file, once per id. Now and then it fails, before or after it took one."""

    def __init__(self, path: str, killer: Killer) -> None:
        self._path, self._killer = path, killer

    def deliver(self, effect: DeclaredEffect) -> None:
        self._killer.at("before delivery")
        mood = (int.from_bytes(effect.id.encode()[-2:], "big") + effect.attempt) % 11
        if mood == 0:
            raise RetryLater("not now")
        if effect.id not in Path(self._path).read_text(encoding="ascii"):
            line = f"{effect.scope} {effect.sink} {effect.id} {effect.payload}\n".encode()
            out = os.open(self._path, os.O_WRONLY | os.O_APPEND)
            os.write(out, line)
            os.close(out)
        self._killer.at("after the sink took it")
        if mood == 1:
            raise TimeoutError("it was taken, and nobody heard")


def operator(number: int) -> Callable[[Any, Any], OperatorOutput]:
    """What order `number` declares."""

    def order(given: Any, view: Any) -> OperatorOutput:
        effects = [WriteState("user/1", "orders", 1, reducer="sum"), *(Custom("n", number, sink) for sink in SINKS)]
        return OperatorOutput(number, effects)

    return order


def run_order(hf: holdfast.Holdfast, number: int) -> holdfast.effects.OperatorResult:
    """Order `number`, once."""
    stream = STREAMS[number % len(STREAMS)]
    return hf.effects.operate(operator(number), scope=stream, key=f"order-{number}", name="order")


def opened(path: str, sink: str, killer: Killer, clock: FrozenClock) -> holdfast.Holdfast:
    """A client with both sinks."""
    hf = holdfast.open(path, clock=clock)
    for name in SINKS:
        hf.effects.add_sink(name, FileSink(sink, killer))
    return hf


def live(path: str, sink: str, first: int, last: int, now: int, point: str, nth: int) -> None:
    """One life: some orders, a dispatch, and the same again."""
    killer = Killer(point, nth)
    killer.watch_commits()
    clock = FrozenClock(now)
    with opened(path, sink, killer, clock) as hf:
        middle = (first + last) // 2
        for number in range(first, middle):
            run_order(hf, number)
        hf.effects.dispatch()
        for number in range(middle, last):
            run_order(hf, number)
        killer.second = True
        clock.advance(400_000)  # Everything that failed is due again.
        hf.effects.dispatch()


if __name__ == "__main__":
    path, sink, first, last, now, point, nth = sys.argv[1:]
    live(path, sink, int(first), int(last), int(now), point, int(nth))

"""Ten thousand tenants against ten: opening, a new tenant's first message, and another tenant's message after it.

Both journals hold as many messages, so that what differs is the number of tenants. The text index is on. Another
tenant's message follows a new tenant's first one, which is when it would pay for it.
"""

from __future__ import annotations

import gc
import itertools
import time
from contextlib import ExitStack
from pathlib import Path

import holdfast
from bench.harness import Samples, ratios, spread, timed
from bench.journals import folder
from bench.report import Line, at_least, at_most, ratio_line
from bench.session_texts import POOL, text

TITLE = "Many tenants in one journal"
FEW, MANY, QUICK_MANY = 10, 10_000, 200
MESSAGES = 10_000
BAR = 1.3
SAMPLE = 4
PATIENCE = 40.0
"""Seconds after which no further tenants are made: what was reached is said, and measured."""
OPEN, FIRST, OTHER = "open and read one message", "a new tenant's first message", "another tenant's message after it"


def build(path: Path, tenants: int, messages: int) -> int:
    """A journal of so many tenants with as many messages together; gives how many tenants there was time for."""
    until = time.perf_counter() + PATIENCE
    each = messages // tenants
    with holdfast.open(path, durability="fast") as hf:
        for number in range(tenants):
            session = hf.tenant(f"tenant-{number}").session("alice")
            session.append([{"role": "user", "content": text(at % POOL)} for at in range(each)])
            if time.perf_counter() > until:
                return number + 1
        hf.tenant("tenant-0").session("alice").search("anything")
    return tenants


class Journal:
    """One of the two, and what is measured of it."""

    def __init__(self, path: Path, tenants: int, stack: ExitStack) -> None:
        self._path, self.tenants = path, tenants
        self._numbers, self._others = itertools.count(), itertools.count()
        self._hf = stack.enter_context(holdfast.open(path))

    def measure(self) -> dict[str, float]:
        """One round: seconds of each. Afterwards the index catches up, which is not measured here."""
        found = {OPEN: self._open(), FIRST: 0.0, OTHER: 0.0}
        for _ in range(SAMPLE):
            number, at = next(self._numbers), next(self._others) * 7_919 % self.tenants
            found[FIRST] += self._append(f"new-{number}", text(number % POOL)) / SAMPLE
            found[OTHER] += self._append(f"tenant-{at}", text(at % POOL)) / SAMPLE
        self._hf.tenant("tenant-0").session("alice", create=False).search("anything")
        return found

    def _append(self, tenant: str, words: str) -> float:
        session = self._hf.tenant(tenant).session("alice")
        return timed(lambda: session.append(words))

    def _open(self) -> float:
        """A client more and what it reads first; closing it is not measured."""
        with ExitStack() as stack:

            def act() -> None:
                hf = stack.enter_context(holdfast.open(self._path))
                assert hf.tenant("tenant-1").session("alice", create=False).messages(1)

            return timed(act)

    @property
    def grown(self) -> str:
        """How many tenants there were before measuring, and how many there are."""
        return f"{self.tenants:,} to {self.tenants + next(self._numbers):,}"


def run(quick: bool) -> list[Line]:
    """Both journals in the same rounds, each first in every other."""
    start = time.perf_counter()
    many, count, messages = (QUICK_MANY, 4, QUICK_MANY) if quick else (MANY, 21, MESSAGES)
    with folder() as place, ExitStack() as stack:
        journals = {}
        for name, tenants in (("few", FEW), ("many", many)):
            path = place / f"{name}.db"
            journals[name] = Journal(path, build(path, tenants, messages), stack)
        samples: dict[str, Samples] = {what: {name: [] for name in journals} for what in (OPEN, FIRST, OTHER)}
        for number in range(-1, count):
            for name in sorted(journals, reverse=number % 2 == 0):
                gc.collect()
                for what, took in journals[name].measure().items():
                    if number >= 0:
                        samples[what][name].append(took)
        reached = " and ".join(journals[name].grown for name in ("many", "few"))
        made = Line(
            what=f"tenants of {many:,} that were made in {PATIENCE:.0f} s",
            value=journals["many"].tenants,
            bar=at_least(many),
            note=f"{time.perf_counter() - start:.0f} s for all of it",
        )
    return [made, *(_line(what, one, many, reached, messages) for what, one in samples.items())]


def _line(what: str, samples: Samples, many: int, reached: str, messages: int) -> Line:
    times = " and ".join(f"{1_000 * spread(samples[name]).median:.2f} ms" for name in ("many", "few"))
    note = f"{times}; {reached} tenants with {messages:,} messages together at first"
    return ratio_line(f"{what}, {many:,} tenants against {FEW}", ratios(samples, "many", "few"), at_most(BAR), note)

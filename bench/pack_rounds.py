"""Packs as a loop makes them: after each new round, journaled with the call, with evidence, and made again later.

Every pack here follows a commit of the same process, the first as well as the second, so that both find the pages of
the conversation changed under them.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.harness import Contender, Samples, ratios, rounds, spread
from bench.journals import journal
from bench.report import Line, at_most, ratio_line
from bench.session_packs import BUDGET, forget, name_of
from bench.session_texts import POOL, role, text
from holdfast.client.holdfast import Holdfast
from holdfast.ports import Env

FIRST = "first pack, nothing remembered"
SECOND = "second pack, after one new round"
APPEND = "session.append of one message"
JOURNALED = "session.packs.begin_model_call(pack)"
REBUILT = "session.pack_at(call)"
EVIDENCE = 20
HANDLES = f"frame.pack({BUDGET:,}) with {EVIDENCE} handles"
HALF = 0.5
SAMPLE = 15


class Loop:
    """A conversation that goes on, and what is measured of it."""

    def __init__(self, env: Env, stack: ExitStack) -> None:
        self._env = env
        self._numbers = itertools.count(POOL, step=2)
        client = Holdfast(env, owner=False)
        self._session: Any = client.session("alice", create=False)
        self._frame: Any = stack.enter_context(client.frame("find the parcel", session="alice"))
        self._calls: list[Any] = []

    def _round(self) -> None:
        number = next(self._numbers)
        self._session.append([{"role": role(one), "content": text(one)} for one in (number, number + 1)])

    def _pack(self) -> Any:
        return self._session.pack(BUDGET)

    def first(self) -> float:
        """As the first pack of a process that has its client."""
        self._round()
        forget(self._env)
        return _seconds(self._pack)

    def second(self) -> float:
        """What was shown before is known; the round is not."""
        self._pack()
        self._round()
        return _seconds(self._pack)

    def append(self) -> float:
        """One message, one commit."""
        message = {"role": "user", "content": text(next(self._numbers))}
        return _seconds(lambda: self._session.append(message))

    def journaled(self) -> float:
        """The manifest and the call, one commit."""
        pack = self._pack()
        return _seconds(lambda: self._calls.append(self._session.packs.begin_model_call(pack)))

    def rebuilt(self) -> float:
        """A journaled pack from what its manifest names."""
        if not self._calls:
            self.journaled()
        return _seconds(lambda: self._session.pack_at(self._calls[-1]))

    def attach(self) -> None:
        """Evidence of all priorities, half of it as long as a message."""
        for number in range(EVIDENCE):
            priority = ("high", "medium", "low", "background")[number % 4]
            body = text(number)[: 1_024 if number % 2 else 200]
            self._frame.attach("worker_finding", description=f"finding {number}", body=body, priority=priority)

    def evidence(self) -> float:
        """The frame's own pack."""
        return _seconds(lambda: self._frame.pack(BUDGET))

    def contenders(self) -> dict[str, Contender]:
        """Each of them."""
        self.attach()
        found = {
            FIRST: self.first,
            SECOND: self.second,
            APPEND: self.append,
            JOURNALED: self.journaled,
            REBUILT: self.rebuilt,
            HANDLES: self.evidence,
        }
        return {name: _averaged(act) for name, act in found.items()}


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _averaged(act: Contender) -> Contender:
    return lambda: sum(act() for _ in range(SAMPLE)) / SAMPLE


def lines(place: Path, messages: int, quick: bool) -> list[Line]:
    """All of it on a copy of the conversation, since it grows."""
    shutil.copy(place / name_of(messages), place / "packs-loop.db")
    with journal(place, "packs-loop.db") as env, ExitStack() as stack:
        samples = rounds(Loop(env, stack).contenders(), 5 if quick else 15)
    both = " and ".join(f"{_milliseconds(samples, name):.2f} ms" for name in (FIRST, SECOND))
    found = [ratio_line(f"{SECOND}, against the first", ratios(samples, SECOND, FIRST), at_most(HALF), both)]
    compared = ((JOURNALED, APPEND), (REBUILT, FIRST), (HANDLES, FIRST))
    return [*found, *(_line(samples, name, base) for name, base in compared)]


def _line(samples: Samples, name: str, base: str) -> Line:
    note = f"{_milliseconds(samples, name):.2f} ms and {_milliseconds(samples, base):.2f} ms"
    return ratio_line(f"{name}, against {base}", ratios(samples, name, base), None, note)


def _milliseconds(samples: Samples, name: str) -> float:
    return 1_000 * spread(samples[name]).median

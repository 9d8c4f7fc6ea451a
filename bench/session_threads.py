"""Eight threads on eight sessions of one database, turn after turn, beside openai-agents' SQLiteSession.

A turn is a user's message and the reply, each durable before the next is said: two calls, two commits. Turns that
are written in one call are shown beside it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import holdfast
from bench.harness import Contender, ratios, rounds, spread
from bench.peer_kinds import OPENAI
from bench.peer_process import PeerProcess
from bench.report import Line, at_least, ratio_line
from bench.session_size import MODEL, SYSTEM
from bench.session_texts import role, text

CALLERS = 8
MADE = 100
BAR = 1.3
OURS, OFF = "holdfast", "holdfast, index off"
FAIR = 1 / 3


def turns(session: Any, index: int, calls: int) -> Callable[[int], None]:
    """Takes one turn of those that a thread goes through again and again."""
    made = [{"role": role(number), "content": text(index * MADE + number)} for number in range(MADE)]

    def take(number: int) -> None:
        at = 2 * (number % (MADE // 2))
        if calls == 1:
            session.append(made[at : at + 2])
        else:
            session.append(made[at])
            session.append(made[at + 1])

    return take


def rate(takes: list[Callable[[int], None]], seconds: float) -> tuple[list[int], float]:
    """Turns of each thread until the time is up, and how long that was."""
    done = [0] * len(takes)
    gate = threading.Barrier(len(takes) + 1)
    until = 0.0

    def work(index: int) -> None:
        gate.wait()
        while time.perf_counter() < until:
            takes[index](done[index])
            done[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(len(takes))]
    for worker in workers:
        worker.start()
    start = time.perf_counter()
    until = start + seconds
    gate.wait()
    for worker in workers:
        worker.join()
    return done, time.perf_counter() - start


def _noted(found: Callable[[], tuple[list[int], float]], shares: list[float]) -> Contender:
    """Turns per second of all threads together; what the slowest did of the fastest's is noted."""

    def run() -> float:
        done, took = found()
        shares.append(min(done) / max(done))
        return sum(done) / took

    return run


class _Kept:
    """What threads were told is durable, looked for afterwards; the index catches up while nobody is measured."""

    def __init__(self, hf: holdfast.Holdfast) -> None:
        self._hf, self._turns = hf, [0] * CALLERS

    def add(self, found: tuple[list[int], float]) -> tuple[list[int], float]:
        """Another round."""
        self._turns = [before + now for before, now in zip(self._turns, found[0], strict=True)]
        self._hf.session("thread-0", create=False).search("anything")
        return found

    def check(self) -> None:
        """Every session has every message of every round."""
        sessions = [self._hf.session(f"thread-{index}", create=False) for index in range(CALLERS)]
        found = [len(session.messages()) for session in sessions]
        if found != [2 * turns for turns in self._turns]:
            raise AssertionError(f"{found} messages are there, of {self._turns} turns")


def lines(place: Path, peers: PeerProcess | None, quick: bool) -> list[Line]:
    """Both sides in the same rounds; turns of one call only where there is time for them."""
    seconds, count = (0.2, 3) if quick else (0.6, 11)
    found: list[Line] = []
    for calls, bar in ((2, BAR),) if quick else ((2, BAR), (1, None)):
        found += _compared(place, peers, calls, bar, seconds, count)
    return found


def _takes(hf: holdfast.Holdfast, calls: int) -> list[Callable[[int], None]]:
    sessions = [hf.session(f"thread-{index}", system=SYSTEM, model=MODEL) for index in range(CALLERS)]
    return [turns(session, index, calls) for index, session in enumerate(sessions)]


def _compared(
    place: Path, peers: PeerProcess | None, calls: int, bar: float | None, seconds: float, count: int
) -> list[Line]:
    ours: list[float] = []
    theirs: list[float] = []
    durable: list[str] = []

    def asked() -> tuple[list[int], float]:
        assert peers is not None
        answer = peers.ask("threads", place=os.fspath(place), callers=CALLERS, seconds=seconds, calls=calls)
        durable[:] = [answer["durability"]]
        return answer["done"], answer["seconds"]

    # As it comes, with the text index, which the peer has nothing like; and without.
    with (
        holdfast.open(place / f"threads-{calls}.db") as hf,
        holdfast.open(place / f"unindexed-{calls}.db", settings=holdfast.Settings(index_text=0)) as plainly,
    ):
        takes, off = _takes(hf, calls), _takes(plainly, calls)
        kept = _Kept(hf)
        contenders = {
            OURS: _noted(lambda: kept.add(rate(takes, seconds)), ours),
            OFF: _noted(lambda: rate(off, seconds), []),
        }
        if peers is not None and OPENAI in peers.found:
            contenders[OPENAI] = _noted(asked, theirs)
        samples = rounds(contenders, count)
        kept.check()
    how = f"eight threads, turns of {calls} {'calls' if calls > 1 else 'call'}"
    rates = [f"{spread(samples[name]).median:,.0f}/s" for name in (OURS, OPENAI) if name in samples]
    found = [Line(what=f"{how}: holdfast", value=spread(samples[OURS]).median, unit="turns/s")]
    if theirs:
        assert peers is not None
        read = peers.ask("threads_read_back", place=os.fspath(place))
        note = (
            f"{' and '.join(rates)}; theirs {durable[0]}, {read:,} messages read back; "
            f"their slowest {spread(theirs).median:.2f} of the fastest"
        )
        wanted = None if bar is None else at_least(bar)
        found = [
            ratio_line(f"{how}, against {OPENAI}", ratios(samples, OURS, OPENAI), wanted, note, peer=OPENAI),
            ratio_line(f"{how}, index off, against {OPENAI}", ratios(samples, OFF, OPENAI), peer=OPENAI),
        ]
    share = spread(ours)
    note = f"half of the rounds {share}"
    fair = None if bar is None else at_least(FAIR)
    return [*found, Line(what=f"{how}: slowest, share of the fastest", value=share.median, bar=fair, note=note)]

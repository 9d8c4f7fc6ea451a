"""Ten thousand appends of four messages and one search after them, as one piece of work, against the raw appends.

The text index may follow behind the appends, so that neither of them alone tells what both cost: the search waits for
whatever is not indexed yet. It must find the last message. Every round writes files of its own.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path

import holdfast
from bench.harness import Contender, ratios, rounds, spread
from bench.report import Line, at_most, ratio_line
from bench.session_appends import MESSAGES, RAW, raw, said
from bench.session_size import MODEL, SYSTEM
from bench.session_texts import POOL, texts
from holdfast import Settings

APPENDS = 10_000
BAR = 6
LAST = "The quetzal parcel has arrived."
OURS, OFF = "appends and one search", "appends, index off"


def lines(place: Path, quick: bool) -> list[Line]:
    """Whole runs one after the other: work that an index does in the background has ended before another begins."""
    start = time.perf_counter()
    appends, count = (APPENDS // 20, 2) if quick else (APPENDS, 3)
    searched: list[float] = []
    samples = rounds({RAW: _raw(place, appends), OURS: _ours(place, appends, Settings(), searched)}, count, warm_up=0)
    # Once is enough beside it: nothing is caught up.
    off = rounds(
        {RAW: _raw(place, appends, "off"), OFF: _ours(place, appends, Settings(index_text=0), None)}, 1, warm_up=0
    )
    took = time.perf_counter() - start
    note = (
        f"{spread(samples[OURS]).median:.2f} s, of which the search {1000 * spread(searched).median:.0f} ms, "
        f"and {spread(samples[RAW]).median:.2f} s; {took:.0f} s for all of it"
    )
    what = f"{appends:,} appends of four messages"
    return [
        ratio_line(f"{what} and one search, against the raw appends", ratios(samples, OURS, RAW), at_most(BAR), note),
        ratio_line(f"{what}, index off, against the raw appends", ratios(off, OFF, RAW)),
    ]


def _raw(place: Path, appends: int, name: str = "on") -> Contender:
    numbers = itertools.count()

    def run() -> float:
        own = place / f"raw-appends-{name}-{next(numbers)}"
        own.mkdir()
        bodies = [[one.encode() for one in texts(at % POOL, MESSAGES)] for at in range(0, 4 * POOL, MESSAGES)]
        with raw(own) as ways:
            insert = ways[RAW]
            start = time.perf_counter()
            for number in range(appends):
                insert(bodies[number % POOL])
            return time.perf_counter() - start

    return run


def _ours(place: Path, appends: int, settings: Settings, searched: list[float] | None) -> Contender:
    numbers = itertools.count()

    def run() -> float:
        path = place / f"appends-{settings.index_text}-{next(numbers)}.db"
        made = [said(at % POOL) for at in range(0, 4 * POOL, MESSAGES)]
        with holdfast.open(path, settings=settings) as hf:
            session = hf.session("alice", system=SYSTEM, model=MODEL)
            session.append("Where is my parcel?")  # The tokenizer and the statements are ready.
            start = time.perf_counter()
            for number in range(appends - 1):
                session.append(made[number % POOL])
            session.append([*made[0][:-1], {"role": "assistant", "content": LAST}])
            appended = time.perf_counter()
            if searched is None:
                return appended - start
            found = session.search("quetzal")
            end = time.perf_counter()
            searched.append(end - appended)
            assert found[0].value.text == LAST, "a search that misses what was said is not measured"
            return end - start

    return run

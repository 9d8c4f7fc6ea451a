"""Many scopes through the cache of stream states: it stays at its size, and so does the process.

Measured in a process of its own, `python -m bench.scopes N`, so that nothing else moves its memory.
"""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.journals import fresh
from bench.report import Line, at_most
from bench.workload import pushed
from holdfast.flow.journal.append import Drafts, States, decide_and_append
from holdfast.ports import Env
from holdfast.records.settings import Settings

TITLE = "Many scopes through the cache of states"
STATM = Path("/proc/self/statm")
PAGE = os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else 4096


class Observed(msgspec.Struct):
    """What one process saw: resident bytes after so many scopes, and the cache at the end."""

    scopes: list[int]
    resident: list[int]
    cached: int


def resident_bytes() -> int:
    """Memory of this process that is really there."""
    return int(STATM.read_text().split()[1]) * PAGE


def walk(env: Env, count: int) -> Iterator[int]:
    """Push one frame in each of so many scopes, as a flow does."""
    for number in range(count):
        stream = f"actor/scope-{number}"

        def decide(states: States, stream: str = stream) -> Drafts:
            return {stream: [pushed(env.ids)]}

        decide_and_append(env, [stream], decide)
        yield number + 1


def observe(count: int) -> Observed:
    """Look at memory at every twentieth of the way."""
    found = Observed(scopes=[], resident=[], cached=0)
    # Durability does not touch memory, and waiting for the disk would only make this longer.
    with fresh(durability="fast") as env:
        for done in walk(env, count):
            if done % max(1, count // 20) == 0:
                gc.collect()
                found.scopes.append(done)
                found.resident.append(resident_bytes())
        found.cached = len(env.states)  # type: ignore[arg-type]
    return found


def run(quick: bool) -> list[Line]:
    """The slope of memory once the caches are full."""
    if not STATM.exists():
        return [Line(what="not measured: this system does not tell a process's memory", value=0)]
    count = 10_000 if quick else 100_000
    command = [sys.executable, "-m", "bench.scopes", str(count)]
    answer = subprocess.run(command, check=True, capture_output=True).stdout
    found = msgspec.json.decode(answer, type=Observed)
    # The first fifth fills the cache of states and SQLite's cache of pages.
    warm = len(found.scopes) // 5
    slope = statistics.linear_regression(found.scopes[warm:], found.resident[warm:]).slope
    grown = (found.resident[-1] - found.resident[warm]) / 1e6
    note = f"{found.resident[warm] / 1e6:.1f} MB after {found.scopes[warm]:,}, {grown:+.2f} MB by {count:,} scopes"
    return [
        Line(what="states in the cache at the end", value=found.cached, bar=at_most(Settings().cached_streams)),
        Line(what="resident memory per further scope", value=slope, unit="bytes", bar=at_most(16), note=note),
    ]


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(observe(int(sys.argv[1]))))

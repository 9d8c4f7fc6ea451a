"""Memory and file descriptors of an open session: many sessions, each with a few messages, all kept open.

Each figure is from a process of its own, because memory that was used before hides what is used now: Python's own
allocations as tracemalloc sees them, and everything that is resident.

Imports nothing of holdfast until it runs: the peers' process uses `resident` and `descriptors` too.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.session_texts import role, text

STATM = Path("/proc/self/statm")
FILES = Path("/proc/self/fd")
MESSAGES = 4
BEFORE = 20
"""Sessions that are open before it counts: pools and caches of statements have what they need."""

PAGES = 2_000
"""Messages written before it counts: SQLite's cache of pages is full, and does not look like memory of sessions."""


def resident() -> int:
    """Bytes of this process that are in memory; 0 where the system does not tell."""
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if STATM.exists() else 0


def descriptors() -> int:
    """Files that this process has open; 0 where the system does not tell."""
    return len(list(FILES.iterdir())) if FILES.exists() else 0


def allocated() -> int:
    """Bytes that Python objects take."""
    return tracemalloc.get_traced_memory()[0]


def held(place: Path, sessions: int, measure: Callable[[], int], cached: int | None) -> dict[str, float]:
    """What one open session of many holds on to. `cached` is how many states are remembered, if not as it comes."""
    import holdfast
    from holdfast.records.settings import Settings

    if measure is allocated:
        tracemalloc.start()
    settings = None if cached is None else Settings(cached_streams=cached)
    kept: list[Any] = []
    with holdfast.open(place / "sessions.db", durability="fast", settings=settings) as hf:

        def more(count: int) -> None:
            for _ in range(count):
                session = hf.session(f"session-{len(kept)}", system="You are terse.", model="gpt-5-mini")
                session.append(said(MESSAGES))
                kept.append(session)
            gc.collect()

        more(BEFORE)
        kept[0].append(said(BEFORE))
        kept[0].search("anything")  # The index is begun, and numpy imported.
        for _ in range(0, PAGES if measure is resident else 0, 100):
            kept[0].append(said(100))
        before, files = measure(), descriptors()
        more(sessions)
        return {"bytes": (measure() - before) / sessions, "descriptors": (descriptors() - files) / sessions}


def said(count: int) -> list[Any]:
    """Some messages."""
    return [{"role": role(number), "content": text(number)} for number in range(count)]


def in_a_process(place: Path, sessions: int, how: str, cached: int | None = None) -> dict[str, float]:
    """The same in a fresh process: `allocated` or `resident`."""
    with tempfile.TemporaryDirectory(dir=place) as own:
        command = [sys.executable, "-m", "bench.session_memory", own, str(sessions), how, json.dumps(cached)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, float] = json.loads(answer)
    return found


def main(place: str, sessions: str, how: str, cached: str) -> None:
    """Measure and print."""
    said(100)  # Texts are kept once they were made: they are nobody's memory.
    measure = allocated if how == "allocated" else resident
    print(json.dumps(held(Path(place), int(sessions), measure, json.loads(cached))))


if __name__ == "__main__":
    main(*sys.argv[1:])

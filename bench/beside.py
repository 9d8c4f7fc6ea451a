"""An append beside one CPU-bound Python thread: every driver call waits for the interpreter's lock."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bench.harness import rounds, spread
from bench.journals import folder, journal, raw_insert
from bench.report import Line
from bench.single import PUSH, payload, ways

TITLE = "One append beside one CPU-bound Python thread"


@contextmanager
def busy_thread() -> Iterator[None]:
    """A thread that counts and never waits."""
    stop = False

    def spin() -> None:
        number = 0
        while not stop:
            number += 1

    spinner = threading.Thread(target=spin)
    spinner.start()
    try:
        yield
    finally:
        stop = True
        spinner.join()


def middle(work: Callable[[], object], times: int) -> float:
    """The median time of one call."""
    found: list[float] = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return spread(found).median


def run(quick: bool) -> list[Line]:
    """Alone and beside, holdfast and the raw insert, in the same rounds."""
    times, count = (20, 2) if quick else (40, 5)
    with folder() as place, journal(place) as env:
        way = ways(env)[PUSH]

        def push() -> None:
            way.append(way.make())

        with raw_insert(place, payload(env)) as raw:
            contenders = {
                "append alone": lambda: middle(push, times),
                "append beside": lambda: _beside(push, times),
                "raw insert alone": lambda: middle(raw, times),
                "raw insert beside": lambda: _beside(raw, times),
            }
            samples = rounds(contenders, count)
    note = f"a thread may keep the lock for {1000 * sys.getswitchinterval():.0f} ms"
    return [
        Line(what=f"{name}, p50", value=1000 * spread(values).median, unit="ms", note=note if "beside" in name else "")
        for name, values in samples.items()
    ]


def _beside(work: Callable[[], object], times: int) -> float:
    with busy_thread():
        return middle(work, times)

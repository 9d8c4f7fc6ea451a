"""Group commit: eight callers against one, on a disk with slow syncs and on this one.

Callers are threads that append frames, and asyncio tasks that append an application's
events. Each has a stream of its own and goes on until the time is up. The slow disk is the
simulated one of `holdfast.testing`, whose every sync takes 2 ms.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from bench.harness import Samples, ratios, rounds, spread
from bench.journals import folder, fresh
from bench.report import Line, at_least, at_most, ratio_line
from bench.workload import GOAL, pushed
from holdfast.aio.holdfast import AsyncHoldfast, ThreadPools
from holdfast.client.holdfast import Holdfast
from holdfast.connect import assemble_env
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports import Env
from holdfast.records.settings import Settings
from holdfast.testing.disk import Disk

TITLE = "Group commit: eight callers against one"
DELAY = 0.002
CALLERS = 8


class Shares(msgspec.Struct):
    """What each caller managed, over all rounds."""

    fairness: list[float] = msgspec.field(default_factory=list)
    syncs: list[float] = msgspec.field(default_factory=list)


def threads_rate(env: Env, callers: int, seconds: float) -> tuple[float, list[int]]:
    """Appends per second of so many threads together, and how many each of them did."""
    done = [0] * callers
    gate = threading.Barrier(callers + 1)
    until = 0.0

    def work(index: int) -> None:
        stream = f"actor/thread-{index}"
        gate.wait()
        while time.perf_counter() < until:
            append_events(env, [StreamWrite(stream=stream, events=(pushed(env.ids),))])
            done[index] += 1

    workers = [threading.Thread(target=work, args=(index,)) for index in range(callers)]
    for worker in workers:
        worker.start()
    start = time.perf_counter()
    until = start + seconds
    gate.wait()
    for worker in workers:
        worker.join()
    return sum(done) / (time.perf_counter() - start), done


async def tasks_rate(env: Env, callers: int, seconds: float) -> tuple[float, list[int]]:
    """The same with asyncio tasks on one client."""
    content = {"goal": GOAL.goal, "inputs": GOAL.inputs}
    threads = ThreadPools()
    hf = AsyncHoldfast(Holdfast(env, owner=False), threads)

    async def work(index: int) -> int:
        done = 0
        while time.perf_counter() < until:
            await hf.journal.append(f"actor/task-{index}", "app.noted", content)
            done += 1
        return done

    start = time.perf_counter()
    until = start + seconds
    done = await asyncio.gather(*(work(index) for index in range(callers)))
    took = time.perf_counter() - start
    threads.close()
    return sum(done) / took, done


@contextmanager
def slow_journal() -> Iterator[tuple[Env, Disk]]:
    """A journal on a disk whose every sync takes longer, and that disk."""
    with folder() as place, Disk(place, sync_delay=DELAY) as disk:
        journal = SqliteJournal(place / "journal.db", vfs=disk.name)
        try:
            yield assemble_env(journal, Settings()), disk
        finally:
            journal.close()


Rate = Callable[[int], tuple[float, list[int]]]


def contenders(rate: Rate, shares: Shares, disk: Disk | None = None) -> dict[str, Callable[[], float]]:
    """One caller and eight; what the eight did is noted."""

    def eight() -> float:
        before = 0 if disk is None else disk.counts["sync"]
        found, done = rate(CALLERS)
        shares.fairness.append(min(done) / max(done))
        if disk is not None:
            shares.syncs.append((disk.counts["sync"] - before) / sum(done))
        return found

    return {"one": lambda: rate(1)[0], "eight": eight}


def run(quick: bool) -> list[Line]:
    """Slow syncs first, then this disk as it is."""
    seconds, count = (0.3, 3) if quick else (0.5, 11)
    lines: list[Line] = []
    for what, bar, runner in (("threads", 4.0, threads_rate), ("asyncio tasks", 2.5, _tasks)):
        shares = Shares()
        with slow_journal() as (env, disk):
            rate = _on(runner, env, seconds)
            samples = rounds(contenders(rate, shares, disk), count)
        lines.append(_gain(f"eight {what}, each sync 2 ms", samples, bar))
        syncs = spread(shares.syncs)
        lines.append(Line(what=f"syncs per append, eight {what}", value=syncs.median, bar=at_most(0.25)))
    shares = Shares()
    with fresh() as env:
        samples = rounds(contenders(_on(threads_rate, env, seconds), shares), count)
    lines.append(_gain("eight threads, this disk", samples, 0.9))
    fairness = spread(shares.fairness)
    note = f"half of the rounds {fairness}"
    lines.append(
        Line(what="slowest thread, share of the fastest", value=fairness.median, bar=at_least(1 / 3), note=note)
    )
    return lines


def _tasks(env: Env, callers: int, seconds: float) -> tuple[float, list[int]]:
    return asyncio.run(tasks_rate(env, callers, seconds))


def _on(runner: Callable[[Env, int, float], tuple[float, list[int]]], env: Env, seconds: float) -> Rate:
    return lambda callers: runner(env, callers, seconds)


def _gain(what: str, samples: Samples, bar: float) -> Line:
    rates = f"{spread(samples['one']).median:,.0f}/s and {spread(samples['eight']).median:,.0f}/s"
    return ratio_line(f"{what}, against one", ratios(samples, "eight", "one"), at_least(bar), rates)

"""`python -m bench [--quick] [--only NAME]`: every topic in one run, shown as it is measured.

Only a whole run at full volume, with the machine to itself, writes `bench/results.json`.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from types import ModuleType

from rich.console import Console

from bench import (
    beside,
    calls,
    cold_start,
    conversations,
    counts,
    frames,
    group,
    importing,
    packs,
    retrieval,
    scopes,
    search,
    single,
    size,
    stores,
    tenants,
    turns,
    whole,
)
from bench.neighbours import Neighbours
from bench.report import RESULTS, Report

TOPICS: dict[str, ModuleType] = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        single,
        frames,
        counts,
        calls,
        group,
        beside,
        calls,
        whole,
        size,
        conversations,
        packs,
        turns,
        scopes,
        tenants,
        importing,
        stores,
        search,
        retrieval,
    )
} | {"cold": cold_start}


def main(arguments: list[str]) -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Ratios against the raw limit and a peer.")
    parser.add_argument("--quick", action="store_true", help="small volumes: is everything in order?")
    parser.add_argument("--only", choices=sorted(TOPICS), action="append", help="one topic; may be repeated")
    chosen = parser.parse_args(arguments)
    console = Console(width=None if sys.stdout.isatty() else 160)
    report = Report(console)
    for name, topic in TOPICS.items():
        if chosen.only and name not in chosen.only:
            continue
        start, neighbours = time.perf_counter(), Neighbours()
        lines = topic.run(chosen.quick)
        report.add(name, topic.TITLE, lines, time.perf_counter() - start, neighbours.cores())
    report.close()
    if chosen.quick or chosen.only or report.disturbed:
        console.print(f"{RESULTS.name} is only written by a whole, undisturbed run at full volume.")
    else:
        report.write()


if __name__ == "__main__":
    # Asked to stop, it goes the way of an error: temporary folders are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main(sys.argv[1:])

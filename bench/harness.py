"""Interleaved rounds and medians: what is compared is measured side by side.

A contender is a function that does its work once and returns one number, such as seconds
per append. In each round every contender has its turn, in an order that rotates, and a
ratio is taken within the round; the median over the rounds is what is reported.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

Contender = Callable[[], float]
Samples = dict[str, list[float]]


class Spread(msgspec.Struct, frozen=True):
    """A median with the quartiles around it."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{plain(self.low)} to {plain(self.high)}"


def spread(values: Sequence[float]) -> Spread:
    """The median of some rounds and the middle half of them."""
    if len(values) == 1:
        return Spread(values[0], values[0], values[0])
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return Spread(middle, low, high)


def rounds(contenders: dict[str, Contender], count: int, warm_up: int = 1) -> Samples:
    """Every contender once per round; the first rounds only warm up."""
    samples: Samples = {name: [] for name in contenders}
    names = list(contenders)
    for turn in range(-warm_up, count):
        start = turn % len(names)
        for name in names[start:] + names[:start]:
            gc.collect()
            value = contenders[name]()
            if turn >= 0:
                samples[name].append(value)
    return samples


def ratios(samples: Samples, name: str, base: str) -> Spread:
    """One contender against another, round by round."""
    return spread([ours / theirs for ours, theirs in zip(samples[name], samples[base], strict=True)])


def repeated(work: Callable[[], object], times: int) -> Contender:
    """A contender that does something many times and returns the seconds of one."""

    def run() -> float:
        start = time.perf_counter()
        for _ in range(times):
            work()
        return (time.perf_counter() - start) / times

    return run


def timed(work: Callable[[], object]) -> float:
    """The seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def plain(value: float) -> str:
    """A number with the digits that are worth reading."""
    if value == int(value) or abs(value) >= 1000:
        return f"{value:,.0f}"
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"

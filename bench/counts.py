"""Flatness in counts: an append and a load ask the same of SQLite at 1 000 and at 100 000 events."""

from __future__ import annotations

from collections.abc import Callable

from bench.counting import Counts, counting
from bench.journals import fresh
from bench.report import Line, at_most
from bench.workload import fill, pushed, turns
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.ports import Env
from holdfast.records.events.envelope import DEFAULT_TENANT

TITLE = "What an append asks of SQLite"
SAMPLE = 360
"""Appends that are counted: enough for page splits to average out."""

Work = Callable[[int], object]


def push_of(env: Env, name: str) -> Work:
    """Appends one root frame per call, to one of twenty streams that exist."""

    def work(number: int) -> None:
        stream = f"actor/{name}-{number % 20}"
        append_events(env, [StreamWrite(stream=stream, events=(pushed(env.ids),))])

    return work


def turn_of(env: Env, name: str) -> Work:
    """Appends the next event of a turn, with a key, to one stream."""
    drafts = turns(env.ids)

    def work(number: int) -> None:
        append_events(env, [StreamWrite(stream=f"actor/{name}", events=(next(drafts),), key=f"{name}-{number}")])

    return work


def load_of(env: Env, name: str) -> Work:
    """Loads a stream with one live frame from its rows."""
    append_events(env, [StreamWrite(stream=f"actor/{name}", events=(pushed(env.ids),))])

    def work(number: int) -> None:
        assert len(env.journal.load(DEFAULT_TENANT, f"actor/{name}").frames) == 1

    return work


KINDS: dict[str, Callable[[Env, str], Work]] = {
    "one frame.pushed": push_of,
    "one event of a turn, with key": turn_of,
    "load of a stream": load_of,
}


def counted(env: Env, kind: str, name: str, sample: int = SAMPLE) -> Counts:
    """One operation's counts, averaged over many. `name` keeps this sample's streams apart."""
    work = KINDS[kind](env, name)
    for number in range(40):
        work(-number - 1)
    with counting(env.journal) as counts:
        for number in range(sample):
            work(number)
    return counts.per(sample)


def difference(small: float, large: float) -> float:
    """By how many percent two counts differ."""
    return 0.0 if small == large else 100 * abs(large - small) / max(small, large)


def run(quick: bool) -> list[Line]:
    """Every kind of operation at both sizes."""
    small, large = 1_000, 10_000 if quick else 100_000
    found: dict[str, list[Counts]] = {kind: [] for kind in KINDS}
    with fresh() as env:
        for size, first in ((small, 0), (large, small)):
            fill(env, size - env.journal.position(), first=first)
            for index, kind in enumerate(KINDS):
                found[kind].append(counted(env, kind, f"counted-{size}-{index}"))
    return [line for kind, (few, many) in found.items() for line in _lines(kind, few, many, f"{small:,}", f"{large:,}")]


def _lines(kind: str, few: Counts, many: Counts, small: str, large: str) -> list[Line]:
    lines = [Line(what=f"{kind}: driver calls", value=many.calls, note=f"{few.calls:.2f} at {small} events")]
    for name in ("statements", "vm_steps", "pages"):
        at_small, at_large = getattr(few, name), getattr(many, name)
        if at_small or at_large:
            lines.append(
                Line(
                    what=f"{kind}: {name.replace('vm_', 'VM ')}, {small} against {large}",
                    value=difference(at_small, at_large),
                    unit="% apart",
                    bar=at_most(10),
                    note=f"{at_small:.2f} and {at_large:.2f}",
                )
            )
    return lines

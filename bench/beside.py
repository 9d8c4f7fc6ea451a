"""An append beside one CPU-bound Python thread: every driver call waits for the interpreter's lock."""

from __future__ import annotations

import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import holdfast
from bench.harness import Contender, ratios, rounds, spread, timed
from bench.journals import folder, journal, raw_insert
from bench.report import Bar, Line, at_most, ratio_line
from bench.session_appends import LONG, MESSAGES, RAW, raw, said
from bench.session_size import MODEL, SYSTEM
from bench.session_texts import texts
from bench.single import PUSH, payload, ways
from holdfast import Settings

TITLE = "One append beside one CPU-bound Python thread"

INDEXED, OFF, EVENT, RAW_EVENT = (
    "append of four messages",
    "the same, index off",
    "append of an event",
    "raw insert of it",
)
BESIDE = "beside"
BAR = 3


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


class Work(NamedTuple):
    """Something that is appended: how it is made, and what is measured."""

    make: Callable[[], Any]
    append: Callable[[Any], object]

    def middle(self, times: int) -> float:
        """The median time of one, made before any clock starts."""
        inputs = [self.make() for _ in range(times)]
        return spread([timed(partial(self.append, one)) for one in inputs]).median

    def middle_beside(self, times: int) -> float:
        """The same beside a thread that never waits."""
        inputs = [self.make() for _ in range(times)]
        with busy_thread():
            return spread([timed(partial(self.append, one)) for one in inputs]).median


def run(quick: bool) -> list[Line]:
    """Alone and beside, holdfast and the raw inserts, in the same rounds."""
    times, count = (20, 2) if quick else (40, 7)
    with folder() as place, ExitStack() as stack:
        samples = rounds(_contenders(place, stack, times), count)
    note = f"a thread may keep the lock for {1000 * sys.getswitchinterval():.0f} ms"

    def compared(name: str, base: str, bar: Bar | None = None) -> Line:
        both = " and ".join(f"{1_000 * spread(samples[_beside(one)]).median:.1f} ms" for one in (name, base))
        against = ratios(samples, _beside(name), _beside(base))
        return ratio_line(f"{name} beside, p50, against {base} beside", against, bar, both)

    return [
        compared(INDEXED, RAW, at_most(BAR)),
        compared(OFF, RAW),
        compared(EVENT, RAW_EVENT),
        *(
            Line(
                what=f"{name}, p50", value=1000 * spread(values).median, unit="ms", note=note if BESIDE in name else ""
            )
            for name, values in samples.items()
        ),
    ]


def _contenders(place: Path, stack: ExitStack, times: int) -> dict[str, Contender]:
    numbers = itertools.count(LONG, step=MESSAGES)
    env = stack.enter_context(journal(place))
    insert = stack.enter_context(raw_insert(place, payload(env)))
    works = {
        EVENT: Work(*ways(env)[PUSH]),
        RAW_EVENT: Work(lambda: None, lambda nothing: insert()),
        RAW: Work(
            lambda: [one.encode() for one in texts(next(numbers), MESSAGES)], stack.enter_context(raw(place))[RAW]
        ),
    }
    for name, settings in ((INDEXED, Settings()), (OFF, Settings(index_text=0))):
        hf = stack.enter_context(holdfast.open(place / f"messages-{settings.index_text}.db", settings=settings))
        session = hf.session("alice", system=SYSTEM, model=MODEL)
        session.append(said(0, LONG))
        works[name] = Work(lambda: said(next(numbers)), session.append)
    found: dict[str, Contender] = {}
    for name, work in works.items():
        found[f"{name} alone"] = partial(work.middle, times)
        found[_beside(name)] = partial(work.middle_beside, times)
    return found


def _beside(name: str) -> str:
    return f"{name} {BESIDE}"

"""Frames: a push and a pop against two raw appends of their bytes, and a cold resume against a long history.

A resume loads an actor's live frames from their rows; how much happened before does not
matter. eventsourcing's way, replaying an aggregate's events, is timed beside it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from uuid import uuid4

from eventsourcing.application import Application
from eventsourcing.domain import Aggregate, event

from bench.counting import Counts, counting
from bench.counts import difference
from bench.harness import Contender, ratios, repeated, rounds, spread, timed
from bench.journals import folder, fresh, journal, raw_insert
from bench.report import Line, at_most, ratio_line
from bench.workload import GOAL
from holdfast.client.holdfast import Holdfast
from holdfast.core.frames import stack
from holdfast.flow.frames import lifecycle as flow
from holdfast.flow.frames import takeover
from holdfast.flow.frames.lifecycle import push_frame
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.ports import Env
from holdfast.records.events.envelope import DEFAULT_TENANT, Draft
from holdfast.records.events.frames import FrameSpent, OutcomeContent
from holdfast.records.reports import EventQuery
from holdfast.records.usage import Usage

TITLE = "Frames: push and pop, and a cold resume"
RAW = "two raw apsw inserts of the same bytes"
FLOW = "push and pop a root frame"
INDEX = "hf.index.push_frame and pop_frame"
CHILD = "push and pop a child with a grant"
STREAMS = 20
WRAPPED = 1_300
LONG = "actor/long"


def bodies(env: Env) -> list[bytes]:
    """The bytes of one push and of one pop: facts and content."""
    frame = push_frame(env, "actor/payload", GOAL, tokens=1000)
    flow.pop_frame(env, frame, "completed", OutcomeContent(summary="done"))
    stored = env.journal.read(EventQuery(tenant=DEFAULT_TENANT, stream="actor/payload"))
    return [event.facts + (event.content or b"") for event in stored]


def ways(env: Env) -> dict[str, Callable[[], object]]:
    """Ways to push and pop one frame."""
    numbers = itertools.count()
    index = Holdfast(env, owner=False).index
    roots = [push_frame(env, f"actor/roots-{number}", GOAL, tokens=10**9) for number in range(STREAMS)]

    def plain() -> None:
        frame = push_frame(env, f"actor/flow-{next(numbers) % STREAMS}", GOAL, tokens=1000)
        flow.pop_frame(env, frame, "completed", OutcomeContent(summary="done"))

    def child() -> None:
        frame = push_frame(env, None, GOAL, parent=roots[next(numbers) % STREAMS], tokens=1000)
        flow.pop_frame(env, frame, "completed", OutcomeContent(summary="done"))

    def through_the_index() -> None:
        scope = f"actor/index-{next(numbers) % STREAMS}"
        frame = index.push_frame(str(GOAL.goal), scope=scope, inputs=GOAL.inputs, tokens=1000)
        index.pop_frame(frame, summary="done")

    return {FLOW: plain, CHILD: child, INDEX: through_the_index}


def pushing(quick: bool) -> list[Line]:
    """All ways in the same rounds."""
    times, count = (40, 5) if quick else (120, 25)
    with ExitStack() as exits:
        place = exits.enter_context(folder())
        env = exits.enter_context(journal(place))
        raws = []
        for number, body in enumerate(bodies(env)):
            (place / str(number)).mkdir()
            raws.append(exits.enter_context(raw_insert(place / str(number), body)))
        raw: Contender = repeated(lambda: [one() for one in raws], times)
        ours = {name: repeated(way, times) for name, way in ways(env).items()}
        samples = rounds({RAW: raw, **ours}, count, warm_up=WRAPPED // times + 1)
    lines = [Line(what=RAW, value=1e6 * spread(samples[RAW]).median, unit="us", note="two commits")]
    for name in ours:
        note = f"{1e6 * spread(samples[name]).median:.0f} us"
        bar = at_most(3.5) if name == INDEX else None
        lines.append(ratio_line(f"{name}, against raw", ratios(samples, name, RAW), bar, note))
    return lines


class Worker(Aggregate):
    """The same work as an aggregate of the peer: every event is replayed to get it back."""

    def __init__(self, goal: str) -> None:
        self.goal = goal
        self.used = 0
        self.at = datetime.now().astimezone()

    @event("Spent")
    def spend(self, tokens: int) -> None:
        """One event."""
        self.used += tokens


def replay_seconds(events: int, times: int) -> float:
    """How long the peer takes to get an aggregate of so many events back."""
    application: Application = Application()
    worker = Worker("long")
    assert worker.id != uuid4()
    for _ in range(events - 1):
        worker.spend(1)
    application.save(worker)
    return min(timed(lambda: application.repository.get(worker.id)) for _ in range(times))


def resume_counts(env: Env) -> Counts:
    """What one cold resume asks of SQLite."""
    with counting(env.journal) as counts:
        env.states.clear()
        assert len(takeover.resume_actor(env, LONG).frames) == 3
    return counts.per(1)


def grow(env: Env, events: int) -> None:
    """A long history of one actor, in its own stream."""
    live = env.journal.load(DEFAULT_TENANT, LONG).frames
    if not live:
        root = push_frame(env, LONG, GOAL, tokens=10**9)
        child = push_frame(env, None, GOAL, parent=root, tokens=10**6)
        push_frame(env, None, GOAL, parent=child, tokens=10**3)
    leaf = stack.leaves(env.journal.load(DEFAULT_TENANT, LONG).frames)[0].id
    spent = Draft(type="frame.spent", facts=FrameSpent(frame=leaf, usage=Usage(output=1)))
    while (missing := events - env.journal.position()) > 0:
        append_events(env, [StreamWrite(stream=LONG, events=(spent,) * min(500, missing))])


def resuming(quick: bool) -> list[Line]:
    """The same resume at both sizes, and the peer's replay beside it."""
    small, large = 1_000, 10_000 if quick else 100_000
    found: list[Counts] = []
    seconds: list[float] = []
    with fresh() as env:
        for size in (small, large):
            grow(env, size)
            found.append(resume_counts(env))
            seconds.append(min(timed(lambda: resume_counts(env)) for _ in range(20)))
    few, many = found
    lines = []
    for name in ("calls", "statements", "vm_steps"):
        at_small, at_large = getattr(few, name), getattr(many, name)
        what = f"resume_actor, cold: {name.replace('vm_', 'VM ')}, {small:,} against {large:,} events"
        note = f"{at_small:.0f} and {at_large:.0f}"
        lines.append(Line(what=what, value=difference(at_small, at_large), unit="% apart", bar=at_most(10), note=note))
    for size, took in zip((small, large), seconds, strict=True):
        peer = replay_seconds(size, 1 if size == large else 5)
        note = f"eventsourcing replays an aggregate of so many events, in memory, in {1e3 * peer:.1f} ms"
        lines.append(Line(what=f"resume_actor, cold, at {size:,} events", value=1e3 * took, unit="ms", note=note))
    return lines


def run(quick: bool) -> list[Line]:
    """Both."""
    return [*pushing(quick), *resuming(quick)]

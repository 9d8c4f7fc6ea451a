"""One event, one FULL commit: against the least that its bytes can cost, and against a peer.

The peer is eventsourcing's SQLite recorder as it comes: Python's own sqlite3, WAL, whatever
`synchronous` that leaves, one table with one index and a pool of connections. It keeps no
rows beside the events, no chain and no keys.

What is to be written is made beforehand, as the bytes of the raw insert are. Checking,
encoding, ids, chain, rows and the commit are what is measured.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from eventsourcing.persistence import StoredEvent
from eventsourcing.sqlite import SQLiteApplicationRecorder, SQLiteDatastore

from bench.harness import Contender, Samples, ratios, repeated, rounds, spread, timed
from bench.journals import folder, journal, raw_insert, sync_seconds
from bench.report import Line, at_most, ratio_line
from bench.workload import GOAL, pushed
from holdfast.client.holdfast import Holdfast
from holdfast.flow.journal.append import StreamWrite, append_events, decide_and_append, seal_batch
from holdfast.ports import Env

TITLE = "Append of one event with its rows, chain and FULL commit"
RAW = "raw apsw insert of the same bytes"
PEER = "eventsourcing's SQLite recorder"
PUSH = "frame.pushed, flow append"
KEYED = "frame.pushed, flow append with key"
CHANGE = "frame.pushed, load, decide, append, fold"
APP = "app event, hf.journal.append"
SYNCHRONOUS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}
STREAMS = 20
WRAPPED = 1_300
"""Commits after which each write-ahead log was folded in and is written over: growing a file costs more."""

Work = Callable[[], object]


class Way(NamedTuple):
    """A way to append one event: how its input is made, and what is measured."""

    make: Callable[[], Any]
    append: Callable[[Any], object]


def ways(env: Env) -> dict[str, Way]:
    """The ways in which holdfast appends one event, each to streams of its own."""
    numbers = itertools.count()
    view = Holdfast(env, owner=False).journal
    content = {"goal": GOAL.goal, "inputs": GOAL.inputs}

    def push(name: str, key: str | None = None) -> list[StreamWrite]:
        return [StreamWrite(stream=f"actor/{name}-{next(numbers) % STREAMS}", events=(pushed(env.ids),), key=key)]

    def decide_and_push(stream: str) -> object:
        return decide_and_append(env, [stream], lambda states: {stream: [pushed(env.ids)]})

    return {
        PUSH: Way(lambda: push("push"), lambda decided: append_events(env, decided)),
        KEYED: Way(lambda: push("keyed", f"request-{next(numbers)}"), lambda decided: append_events(env, decided)),
        CHANGE: Way(lambda: f"actor/change-{next(numbers)}", decide_and_push),
        APP: Way(lambda: f"actor/app-{next(numbers) % STREAMS}", lambda at: view.append(at, "app.noted", content)),
    }


def each(way: Way, times: int) -> Contender:
    """Seconds of one append, many in a row, their inputs made before the clock starts."""

    def run() -> float:
        inputs = [way.make() for _ in range(times)]
        return timed(lambda: [way.append(one) for one in inputs]) / times

    return run


def payload(env: Env) -> bytes:
    """The bytes of one push: facts and content."""
    batch = seal_batch(env, [StreamWrite(stream="actor/payload", events=(pushed(env.ids),))])
    event = batch.parts[0].events[0]
    return event.facts + (event.content or b"")


@contextmanager
def peer_insert(place: Path, body: bytes) -> Iterator[tuple[Work, str]]:
    """eventsourcing's recorder with its own defaults, and what it leaves `synchronous` at."""
    store = SQLiteDatastore(str(place / "peer.db"))
    try:
        recorder = SQLiteApplicationRecorder(store)
        recorder.create_table()
        with store.transaction(commit=False) as cursor:
            cursor.execute("PRAGMA synchronous")
            level = SYNCHRONOUS[cursor.fetchone()[0]]
        versions = itertools.count(1)
        origins = [UUID(int=number) for number in range(STREAMS)]

        def insert() -> None:
            version = next(versions)
            event = StoredEvent(origins[version % STREAMS], version, "bench:FramePushed", body)
            recorder.insert_events([event])

        yield insert, level
    finally:
        store.close()


def run(quick: bool) -> list[Line]:
    """All of them in the same rounds."""
    times, count = (60, 5) if quick else (200, 49)
    with ExitStack() as stack:
        place = stack.enter_context(folder())
        env = stack.enter_context(journal(place))
        body = payload(env)
        insert, level = stack.enter_context(peer_insert(place, body))
        raw = stack.enter_context(raw_insert(place, body))
        peers = {RAW: repeated(raw, times), PEER: repeated(insert, times)}
        ours = {name: each(way, times) for name, way in ways(env).items()}
        samples = rounds({**peers, **ours}, count, warm_up=WRAPPED // times + 1)
        sync = spread(sync_seconds(place))
    lines = [
        Line(what="one page made durable, no database", value=1e6 * sync.median, unit="us"),
        Line(what=RAW, value=_microseconds(samples, RAW), unit="us", note=f"{len(body)} bytes, one commit each"),
    ]
    bars = {PUSH: at_most(3), APP: at_most(3)}
    for name in (PUSH, APP, KEYED, CHANGE, PEER):
        note = f"{_microseconds(samples, name):.0f} us"
        if name == PEER:
            note += f"; its defaults: stdlib sqlite3, WAL, synchronous={level}; no rows, no chain"
        lines.append(ratio_line(f"{name}, against raw", ratios(samples, name, RAW), bars.get(name), note))
    without = "the peer keeps no rows, no chain and no keys"
    return lines + [
        ratio_line(f"{name}, times the speed of {PEER}", ratios(samples, PEER, name), None, without, peer=PEER)
        for name in (PUSH, APP)
    ]


def _microseconds(samples: Samples, name: str) -> float:
    return 1e6 * spread(samples[name]).median

"""Sixteen processes on one file: dense versions, no lost update, no busy error, and a follower that sees all."""

from __future__ import annotations

import time
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Any

import holdfast
from tests.forked import PROCESSES
from tests.scale import volume

WRITERS = 16
STREAMS = 4


def _write(path: str, writer: int, count: int, results: Queue[Any]) -> None:
    """Compare-and-set appends: read the version, write at it, try again when another was first."""
    conflicts, errors = 0, []
    try:
        with holdfast.open(path) as hf:
            for number in range(count):
                stream = f"s{(writer + number) % STREAMS}"
                while True:
                    version = hf.journal.version(stream)
                    try:
                        hf.journal.append(
                            stream, "app.noted", {"saw": version}, facts={"w": writer, "n": number}, expected=version
                        )
                        break
                    except holdfast.errors.VersionConflict:
                        conflicts += 1
    except BaseException as error:
        errors.append(repr(error))
    results.put((conflicts, errors))


def _follow(path: str, total: int, ready: Any, results: Queue[Any]) -> None:
    """Follow from another process; note the order per stream and how long each event took to be seen."""
    seen: dict[str, list[int]] = {}
    slowest = 0
    with holdfast.open(path) as hf:
        ready.set()
        for count, event in enumerate(hf.journal.subscribe(after=0, timeout=60), 1):
            seen.setdefault(event.stream, []).append(event.version)
            slowest = max(slowest, time.time_ns() // 1_000_000 - event.at)
            if count == total:
                break
    results.put((seen, slowest))


def test_sixteen_writers_and_a_follower_agree(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    each = volume(1_600, 16_000) // WRITERS
    results: Queue[Any] = PROCESSES.Queue()
    followed: Queue[Any] = PROCESSES.Queue()
    ready = PROCESSES.Event()
    follower = PROCESSES.Process(target=_follow, args=(path, each * WRITERS, ready, followed))
    follower.start()
    assert ready.wait(60)
    writers = [PROCESSES.Process(target=_write, args=(path, number, each, results)) for number in range(WRITERS)]
    for writer in writers:
        writer.start()
    outcomes = [results.get(timeout=600) for _ in writers]
    for writer in writers:
        writer.join()
    seen, slowest = followed.get(timeout=120)
    follower.join()
    assert [error for _, errors in outcomes for error in errors] == []
    with holdfast.open(path) as hf:
        written = [(event.facts.data["w"], event.facts.data["n"]) for event in hf.journal.events()]
        assert sorted(written) == [(w, n) for w in range(WRITERS) for n in range(each)]
        for stream in hf.journal.streams():
            events = list(hf.journal.events(stream))
            assert [event.version for event in events] == list(range(1, len(events) + 1))
            # Each writer saw exactly the version that it built on: nobody's update was lost.
            assert [event.content.data["saw"] for event in events] == list(range(len(events)))
            assert seen[stream] == [event.version for event in events]
        assert hf.journal.verify().findings == ()
    print(f"{each * WRITERS} appends, {sum(c for c, _ in outcomes)} conflicts, slowest seen after {slowest} ms")


def _append_one(path: str, go: Any) -> None:
    go.wait()
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", {"n": 1})
        time.sleep(30)


def test_a_commit_of_another_process_is_seen_within_half_a_second(tmp_path: Path) -> None:
    path = str(tmp_path / "a.db")
    go = PROCESSES.Event()
    writer = PROCESSES.Process(target=_append_one, args=(path, go))
    with holdfast.open(path) as hf:
        writer.start()
        try:
            following = hf.journal.subscribe("s", timeout=30)
            go.set()
            event = next(following)
            # The event's time is taken before its commit, so this is an upper bound.
            delay = time.time_ns() // 1_000_000 - event.at
            assert delay < 500, f"seen only after {delay} ms"
        finally:
            writer.kill()
            writer.join()


def _create(path: str, go: Any, results: Queue[Any]) -> None:
    go.wait()
    try:
        with holdfast.open(path) as hf:
            hf.journal.append("s", "app.noted", {"n": 1})
        results.put(None)
    except BaseException as error:
        results.put(repr(error))


def test_processes_that_create_one_journal_together_all_succeed(tmp_path: Path) -> None:
    for round_number in range(volume(2, 20)):
        path = str(tmp_path / f"{round_number}.db")
        go, results = PROCESSES.Event(), PROCESSES.Queue()
        processes = [PROCESSES.Process(target=_create, args=(path, go, results)) for _ in range(6)]
        for process in processes:
            process.start()
        go.set()
        assert [results.get(timeout=60) for _ in processes] == [None] * 6
        for process in processes:
            process.join()
        with holdfast.open(path) as hf:
            assert hf.journal.version("s") == 6
            assert hf.journal.verify().ok

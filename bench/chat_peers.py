"""The peers' process: `python -m bench.chat_peers` in their own environment, one JSON line in, one JSON line out.

It does as it is told, one thing at a time, so that peers have their turn in the same rounds as holdfast. It ends with
its input. What peers print goes to standard error.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.peer_kinds import KINDS, Peer, Run, checkpointed_bytes, durability, known, loop
from bench.session_memory import descriptors, resident
from bench.session_texts import role, text

TOGETHER = 8
PART = 500
"""Messages of a list with which a conversation is made long."""


class Opened:
    """A peer at work, and where in the texts it is."""

    def __init__(self, name: str, place: Path, run: Run) -> None:
        self.path = place / f"{name.replace(' ', '-')}-{time.monotonic_ns()}.db"
        self.peer: Peer = KINDS[name](self.path, run)
        self.next = self.held = 0
        self.peer.begin()

    def begin(self) -> None:
        """Go on with a conversation in which nothing was said yet."""
        self.peer.begin()
        self.held = 0

    def make(self, count: int) -> Any:
        """So many messages more."""
        self.next += count
        self.held += count
        return self.peer.make(range(self.next - count, self.next))

    def lengthen(self, messages: int) -> None:
        """Say that much more."""
        for _ in range(0, messages, PART):
            self.peer.append(self.make(min(PART, messages)))


class Peers:
    """What can be asked: every public method."""

    def __init__(self) -> None:
        self._run, self._stop = loop()
        self._opened: dict[str, Opened] = {}
        self._written: list[int] = []

    def hello(self, place: str) -> dict[str, Any]:
        """Which peers work here, and why others do not."""
        found: dict[str, str] = {}
        absent: dict[str, str] = {}
        for name in KINDS:
            try:
                opened = Opened(name, Path(place), self._run)
                opened.lengthen(2)
                opened.peer.close()
                found[name] = known(name)
            except Exception as error:
                absent[name] = f"{type(error).__name__}: {error}"
        gc.collect()
        gc.freeze()  # What was imported stays: collecting before each measurement need not look at it again.
        return {"found": found, "absent": absent}

    def open(self, name: str, label: str, place: str, messages: int) -> str:
        """A conversation of so many messages under a label; says how durable its commits are."""
        opened = Opened(name, Path(place), self._run)
        opened.lengthen(messages)
        self._opened[label] = opened
        return durability(opened.path)

    def append(self, label: str, times: int, count: int, anew: int | None = None) -> float:
        """Seconds of one append of so many messages; with `anew`, to a new conversation of that length."""
        opened = self._opened[label]
        if anew is not None:
            opened.begin()
            opened.lengthen(anew)
        inputs = [opened.make(count) for _ in range(times)]
        gc.collect()
        start = time.perf_counter()
        for one in inputs:
            opened.peer.append(one)
        return (time.perf_counter() - start) / times

    def read_back(self, label: str) -> int:
        """The messages of a conversation: as many as were acknowledged, or it fails."""
        opened = self._opened[label]
        found = opened.peer.count()
        if found != opened.held:
            raise AssertionError(f"{label}: {found} messages are there, {opened.held} were acknowledged")
        return found

    def size(self, name: str, place: str, turns: int) -> dict[str, Any]:
        """Bytes on disk after so many turns, and how long they took."""
        opened = Opened(name, Path(place), self._run)
        start = time.perf_counter()
        for number in range(turns):
            opened.peer.turn(2 * number, 2 * number + 1)
        took = time.perf_counter() - start
        if opened.peer.count() != 2 * turns:
            raise AssertionError(f"{name}: {opened.peer.count()} messages are there, {2 * turns} were acknowledged")
        opened.peer.close()
        found = checkpointed_bytes(opened.path)
        opened.path.unlink()
        return {"bytes": found, "seconds": took}

    def threads(self, place: str, callers: int, seconds: float, calls: int) -> dict[str, Any]:
        """Turns that so many threads took, each on a session and an event loop of its own, one database for all."""
        done, took = openai_threads(Path(place) / "threads.db", callers, seconds, calls)
        known = self._written or [0] * callers
        self._written = [before + 2 * (turns + 1) for before, turns in zip(known, done, strict=True)]
        return {"done": done, "seconds": took, "durability": durability(Path(place) / "threads.db")}

    def threads_read_back(self, place: str) -> int:
        """The messages that threads wrote, all rounds together: as many as were acknowledged, or it fails."""
        from agents import SQLiteSession

        found = []
        for index in range(len(self._written)):
            session = SQLiteSession(f"thread-{index}", Path(place) / "threads.db")
            found.append(len(self._run(session.get_items())))
            session.close()
        if found != self._written:
            raise AssertionError(f"threads: {found} messages are there, {self._written} were acknowledged")
        return sum(found)

    def memory(self, place: str, warm_up: int, sessions: int, messages: int) -> dict[str, Any]:
        """What an open session holds on to: resident bytes and file descriptors."""
        return self._run(openai_memory(Path(place) / "memory.db", warm_up, sessions, messages))

    def close(self) -> None:
        """Let go of everything."""
        for opened in self._opened.values():
            opened.peer.close()
        self._stop()


def openai_threads(path: Path, callers: int, seconds: float, calls: int) -> tuple[list[int], float]:
    """SQLiteSession on eight threads; a turn is two messages, in one call or in two."""
    from agents import SQLiteSession

    done = [0] * callers
    gate = threading.Barrier(callers + 1)
    until = 0.0

    async def turns(index: int) -> None:
        session: Any = SQLiteSession(f"thread-{index}", path)
        made: list[Any] = [{"role": role(number), "content": text(index * 100 + number)} for number in range(100)]
        await session.add_items(made[:2])
        gate.wait()
        while time.perf_counter() < until:
            at = 2 * (done[index] % 50)
            for items in (made[at : at + 2],) if calls == 1 else (made[at : at + 1], made[at + 1 : at + 2]):
                await session.add_items(items)
            done[index] += 1
        session.close()

    workers = [threading.Thread(target=lambda index=index: asyncio.run(turns(index))) for index in range(callers)]
    gc.collect()
    for worker in workers:
        worker.start()
    while gate.n_waiting < callers:
        time.sleep(0.001)
    start = time.perf_counter()
    until = start + seconds
    gate.wait()
    for worker in workers:
        worker.join()
    return done, time.perf_counter() - start


async def openai_memory(path: Path, warm_up: int, sessions: int, messages: int) -> dict[str, Any]:
    """SQLiteSession objects that stay open, each with a few messages, eight at a time as a server has them."""
    from agents import SQLiteSession

    kept: list[Any] = []

    async def said(session: Any) -> None:
        for number in range(messages):
            await session.add_items([{"role": role(number), "content": text(number)}])

    async def more(count: int) -> None:
        for _ in range(0, count, TOGETHER):
            fresh = [SQLiteSession(f"session-{len(kept) + index}", path) for index in range(TOGETHER)]
            kept.extend(fresh)
            await asyncio.gather(*map(said, fresh))
        gc.collect()

    await more(warm_up)
    before, files = resident(), descriptors()
    await more(sessions)
    found = {"resident": (resident() - before) / sessions, "descriptors": (descriptors() - files) / sessions}
    for session in kept:
        session.close()
    return found


def serve(peers: Any) -> None:
    """Answer until there are no more questions, each by the public method that it names."""
    warnings.simplefilter("ignore")
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        question = json.loads(line)
        asked: Callable[..., Any] = getattr(peers, question.pop("ask"))
        try:
            answer = {"answer": asked(**question)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=answers)


if __name__ == "__main__":
    serve(Peers())

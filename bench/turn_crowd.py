"""A thousand agents at once in one process: each answers in a conversation of its own, all of them in one SQLite file.

`python -m bench.turn_crowd` is a process of its own, because memory that was used before hides what is used now; it
is asked as the peers are, which take their turns in the same rounds (bench.crowd_peers). After a few agents, which
import and warm up what all of them use, every agent takes a turn at the same time, round after round: how many turns
per second, how far memory rises, and whether it goes on rising.

Whether memory goes on rising is told by what is in use, as the allocators count it: resident memory rises in steps of
megabytes and tells nothing about a few rounds.
"""

from __future__ import annotations

import ctypes
import gc
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from bench.chat_peers import serve
from bench.crowd_peers import WARM, commit_kind, conversation_names, questions, take_turns
from bench.harness import Samples, plain, ratios
from bench.peer_kinds import Run, loop
from bench.peer_process import PeerProcess, peer_process
from bench.report import Line, at_least, at_most, ratio_line
from bench.session_memory import resident
from bench.turn_words import FUNCTIONS, MODEL, PLAIN, SHAPES, SYSTEM, TOOLS, asked

STATUS = Path("/proc/self/status")
AGENTS = 1_000
ROUNDS = {PLAIN: 2, TOOLS: 2}
"""Rounds in which peers take their turns as well."""
FURTHER = 8
"""Rounds of holdfast alone, without tools, that tell whether memory goes on rising."""
SETTLED = 6
"""Rounds after which every conversation is longer than what is shown of it, and caches of pages are full."""
SHOWN = 2_000
RATE_BARS = {PLAIN: 300, TOOLS: 130}
PEAK_BAR = 100_000
"""Bytes by which an agent at work may raise the process's memory, while all others are at work as well."""
GROWTH_BAR = 2_000
"""Bytes by which an agent may raise it with every further turn."""
OURS = "holdfast"


def peak() -> int:
    """The most that this process ever had in memory, in bytes; 0 where the system does not tell.

    Not `ru_maxrss`, which begins with what the process had that started this one.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    return 1_024 * int(found[1]) if found else 0


class _Malloc(ctypes.Structure):
    """What glibc's `mallinfo2` tells."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "used", "free", "keep")
    ]


def in_use() -> int:
    """Bytes that Python's objects and the C library's callers, such as SQLite, have and have not given back.

    0 where the C library does not tell.
    """
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return 0
    ask.restype = _Malloc
    found = ask()
    return int(found.used + found.hblkhd) + _pymalloc()


def _pymalloc() -> int:
    """Bytes of small objects, which Python takes from arenas of its own. It writes them to standard error only."""
    with tempfile.TemporaryFile() as file:
        before = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            sys._debugmallocstats()
        finally:
            os.dup2(before, 2)
            os.close(before)
        file.seek(0)
        found = re.search(rb"# bytes in allocated blocks\s+=\s+([\d,]+)", file.read())
    return int(found[1].replace(b",", b"")) if found else 0


class Ours:
    """holdfast's agents, each with a conversation."""

    def __init__(self, hf: Any, shape: str) -> None:
        import holdfast
        from bench.turn_ways import scripted

        self._hf, self._model = hf, scripted(shape, MODEL)
        self._tools = list(FUNCTIONS.values()) if shape == TOOLS else []
        self._limits = holdfast.Limits(context_tokens=SHOWN)
        self._agents: dict[str, Any] = {}

    def meet(self, names: list[str]) -> None:
        """Make agents, if they were not made before."""
        for name in names:
            if name not in self._agents:
                self._agents[name] = self._hf.agent(
                    name,
                    model=self._model,
                    system=SYSTEM,
                    tools=self._tools,
                    limits=self._limits,
                    history=False,
                )

    async def send(self, name: str, words: str) -> str:
        """One turn of the agent of this name."""
        return str((await self._agents[name].send(f"with-{name}", words)).text)


class Crowd:
    """What holdfast's process can be asked: every public method."""

    def __init__(self) -> None:
        self._run: Run
        self._run, self._stop = loop()

    def hello(self, place: str) -> dict[str, Any]:
        """Nothing to choose from."""
        return {"found": {OURS: ""}, "absent": {}}

    def open(self, place: str, shape: str) -> str:
        """The file, and a few agents that warm up; says how durable commits are."""
        import holdfast

        for number in range(100 * (ROUNDS[PLAIN] + FURTHER + 1)):
            asked(number)  # Texts are kept once they were made: they are nobody's memory.
        self._path = Path(place) / f"crowd-{shape.replace(' ', '-')}.db"
        self._opened: Any = holdfast.open_async(self._path)
        self._hf = self._run(self._opened.__aenter__())
        self._ours, self._rounds = Ours(self._hf, shape), 0
        self._turns(["first"], 0)  # Alone: it imports, and prepares what all of them use.
        for number in range(4):
            self._turns([f"warm-{at}" for at in range(WARM)], number)
        gc.collect()
        self._before = {"resident": resident(), "in_use": in_use()}
        return str(self._hf.env.journal.connections.write(commit_kind))

    def turns(self, agents: int) -> float:
        """Seconds of one turn of every agent."""
        self._rounds += 1
        return self._turns(conversation_names(agents), 100 * (self._rounds - 1))

    def _turns(self, names: list[str], number: int) -> float:
        self._ours.meet(names)
        return float(self._run(take_turns(self._ours, names, number)))

    def memory(self) -> dict[str, int]:
        """By how many bytes the process has risen, what it has in use of them, and the most it ever rose by."""
        gc.collect()
        before = self._before
        return {
            "resident": resident() - before["resident"],
            "in_use": in_use() - before["in_use"],
            "peak": peak() - before["resident"],
        }

    def read_back(self, agents: int) -> int:
        """How many conversations hold every question and reply, as a client that was just opened finds them."""
        import holdfast

        self._run(self._opened.__aexit__(None, None, None))
        whole = 0
        with holdfast.open(self._path) as hf:
            for at, name in enumerate(conversation_names(agents)):
                messages = hf.session(f"with-{name}", create=False).messages()
                texts = [one.content for one in messages if one.role in ("user", "assistant") and one.content]
                whole += texts == questions(at, self._rounds)
        return whole


def lines(place: Path, quick: bool) -> list[Line]:
    """Turns per second, memory, and peers in the same rounds, without tools and with two."""
    agents = AGENTS // 10 if quick else AGENTS
    found: list[Line] = []
    with peer_process(place, "bench.crowd_peers") as peers:
        for shape in SHAPES:
            with tempfile.TemporaryDirectory(dir=place) as own:
                found += _Shape(Path(own), peers, shape, agents, quick).lines()
    return found


class _Shape:
    """A crowd of one shape, and the peers beside it."""

    def __init__(self, place: Path, peers: PeerProcess | None, shape: str, agents: int, quick: bool) -> None:
        self._place, self._peers, self._shape, self._agents = place, peers, shape, agents
        self._further = FURTHER if shape == PLAIN and not quick else 0
        self._who = f"{agents:,} agents at once, {shape}"

    def lines(self) -> list[Line]:
        """What was measured, after everybody's file was read back."""
        start = time.perf_counter()
        names = [] if self._peers is None else list(self._peers.found)
        samples: Samples = {name: [] for name in (OURS, *names)}
        held: list[dict[str, int]] = []
        with ExitStack() as stack:
            ours = stack.enter_context(_own_process(self._place))
            self._durable = {OURS: ours.ask("open", place=os.fspath(self._place), shape=self._shape)}
            for name in names:
                self._durable[name] = self._ask(
                    name, "open", name=name, place=os.fspath(self._place), shape=self._shape
                )
            for number in range(ROUNDS[self._shape]):
                # Nobody is always the first.
                for name in names[number % 2 :] + names[: number % 2]:
                    samples[name].append(float(self._ask(name, "turns", agents=self._agents)))
                samples[OURS].append(float(ours.ask("turns", agents=self._agents)))
                held.append(ours.ask("memory"))
            for _ in range(self._further):
                samples[OURS].append(float(ours.ask("turns", agents=self._agents)))
                held.append(ours.ask("memory"))
            whole = {OURS: ours.ask("read_back", agents=self._agents)}
            for name in names:
                whole[name] = self._ask(name, "read_back", agents=self._agents)
                self._ask(name, "close")
        self._note = f"; {time.perf_counter() - start:.0f} s for all of it"
        return [*self._rates(samples, whole), *self._memory(held)]

    def _ask(self, peer: str, what: str, **given: Any) -> Any:
        assert self._peers is not None
        return self._peers.ask(what, label=f"{peer}, {self._shape}", **given)

    def _rates(self, samples: Samples, whole: dict[str, int]) -> Iterator[Line]:
        seconds = samples[OURS]
        each = ", ".join(f"{self._agents / one:,.0f}" for one in seconds)
        yield Line(
            what=self._who,
            value=self._agents / statistics.median(seconds),
            unit="turns/s",
            bar=at_least(RATE_BARS[self._shape]),
            note=f"one SQLite file, {SHOWN:,} tokens shown; rounds: {each}; {self._kept(OURS, whole)}{self._note}",
        )
        for name in samples:
            if name == OURS:
                continue
            both = {name: samples[name], OURS: seconds[: len(samples[name])]}
            rates = " and ".join(f"{self._agents / statistics.median(both[one]):,.0f}" for one in (OURS, name))
            yield ratio_line(
                f"{self._who}, times the speed of {name}",
                ratios(both, name, OURS),
                at_least(1),
                f"{rates} turns/s; theirs {self._kept(name, whole)}",
                peer=name,
            )

    def _kept(self, name: str, whole: dict[str, int]) -> str:
        return f"{self._durable[name]}, {whole[name]:,} of {self._agents:,} conversations read back whole"

    def _memory(self, held: list[dict[str, int]]) -> list[Line]:
        """How far it rose, and by how much it still rises at the end."""
        agents = self._agents
        most = held[-1]["peak"]
        # A few agents share what a thousand share: that says nothing about one.
        bars = agents == AGENTS
        found = [
            Line(
                what=f"{self._who}: memory at its peak, each",
                value=most / agents,
                unit="bytes",
                bar=at_most(PEAK_BAR) if bars else None,
                note=f"the process by {most / 1e6:.0f} MB",
            )
        ]
        later = held[SETTLED - 1 :]
        if len(later) > 1:
            slope = {
                kind: statistics.linear_regression(range(len(later)), [one[kind] for one in later]).slope / agents
                for kind in ("in_use", "resident")
            }
            used = ", ".join(f"{one['in_use'] / 1e6:.1f}" for one in held)
            found.append(
                Line(
                    what=f"{self._who}: memory that a further turn keeps, each",
                    value=max(0.0, slope["in_use"]),
                    unit="bytes",
                    bar=at_most(GROWTH_BAR) if bars else None,
                    note=f"slope from round {SETTLED} on of what allocators have in use; MB after each round: {used}; "
                    f"slope of resident memory, which rises in steps: {plain(slope['resident'])} bytes",
                )
            )
        return found


@contextmanager
def _own_process(place: Path) -> Iterator[PeerProcess]:
    with peer_process(place, "bench.turn_crowd", Path(sys.executable)) as process:
        assert process is not None
        yield process


if __name__ == "__main__":
    serve(Crowd())

"""A thousand agents at once in one process: each answers in a conversation of its own, all of them in one SQLite file.

`python -m bench.turn_crowd` is a process of its own, because memory that was used before hides what is used now. After
a few agents, which import and warm up what all of them use, every agent takes a turn at the same time, round after
round: how many turns per second, how far memory rises, and whether it goes on rising.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.report import Line, at_most
from bench.session_memory import resident
from bench.turn_words import FUNCTIONS, MODEL, PLAIN, REPLY, SHAPES, SYSTEM, TOOLS, asked

STATUS = Path("/proc/self/status")
AGENTS = 1_000
WARM = 50
ROUNDS = {PLAIN: 8, TOOLS: 2}
SETTLED = 5
"""Rounds after which every conversation is longer than what is shown of it, and caches of pages are full."""
SHOWN = 2_000
PEAK_BAR = 100_000
"""Bytes by which an agent at work may raise the process's memory, while all others are at work as well."""
GROWTH_BAR = 2_000
"""Bytes by which an agent may raise it with every further turn."""


def peak() -> int:
    """The most that this process ever had in memory, in bytes; 0 where the system does not tell.

    Not `ru_maxrss`, which begins with what the process had that started this one.
    """
    found = re.search(r"VmHWM:\s+(\d+) kB", STATUS.read_text()) if STATUS.exists() else None
    return 1_024 * int(found[1]) if found else 0


async def crowd(place: Path, agents: int, shape: str, rounds: int) -> dict[str, Any]:
    """Rates of each round, and what memory was at its end."""
    import holdfast
    from bench.turn_ways import scripted

    tools, limits = list(FUNCTIONS.values()) if shape == TOOLS else [], holdfast.Limits(context_tokens=SHOWN)
    rates, kept = [], []
    async with holdfast.open_async(place / "crowd.db") as hf:
        model = scripted(shape, MODEL)

        def made(name: str) -> Any:
            return hf.agent(name, model=model, system=SYSTEM, tools=tools, limits=limits, history=False)

        async def all_at_once(many: list[Any], number: int) -> float:
            said = [asked(number + at % 100) for at in range(len(many))]
            start = time.perf_counter()
            replies = await asyncio.gather(
                *(one.send(f"with-{one.name}", words) for one, words in zip(many, said, strict=True))
            )
            took = time.perf_counter() - start
            assert all(reply.text == REPLY for reply in replies)
            return took

        await all_at_once([made("first")], 0)  # Alone: it imports, and prepares what all of them use.
        for number in range(4):
            await all_at_once([made(f"warm-{at}") for at in range(WARM)], number)
        gc.collect()
        before = resident()
        many = [made(f"agent-{at}") for at in range(agents)]
        for number in range(rounds):
            rates.append(agents / await all_at_once(many, 100 * number))
            gc.collect()
            kept.append(resident() - before)
    return {"rates": rates, "kept": kept, "peak": peak() - before}


def in_a_process(place: Path, agents: int, shape: str, rounds: int) -> dict[str, Any]:
    """The same in a fresh process."""
    with tempfile.TemporaryDirectory(dir=place) as own:
        command = [sys.executable, "-m", "bench.turn_crowd", own, str(agents), shape, str(rounds)]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found: dict[str, Any] = json.loads(answer)
    return found


def lines(place: Path, quick: bool) -> list[Line]:
    """Turns per second and memory, without tools and with two."""
    agents = AGENTS // 10 if quick else AGENTS
    found: list[Line] = []
    for shape in SHAPES:
        came = in_a_process(place, agents, shape, ROUNDS[shape])
        who = f"{agents:,} agents at once, {shape}"
        each = ", ".join(f"{rate:,.0f}" for rate in came["rates"])
        note = f"one SQLite file, {SHOWN:,} tokens shown; rounds: {each}"
        found.append(Line(what=who, value=statistics.median(came["rates"]), unit="turns/s", note=note))
        found += _memory(who, agents, came["peak"], came["kept"])
    return found


def _memory(who: str, agents: int, most: int, kept: list[int]) -> list[Line]:
    """How far it rose, and by how much it still rises at the end."""
    found = [
        Line(
            what=f"{who}: memory at its peak, each",
            value=most / agents,
            unit="bytes",
            # A few agents share what a thousand share: that says nothing about one.
            bar=at_most(PEAK_BAR) if agents == AGENTS else None,
            note=f"the process by {most / 1e6:.0f} MB",
        )
    ]
    if len(kept) > SETTLED:
        later = kept[SETTLED - 1 :]
        found.append(
            Line(
                what=f"{who}: memory that a further turn keeps, each",
                value=max(0.0, (later[-1] - later[0]) / agents / (len(later) - 1)),
                unit="bytes",
                bar=at_most(GROWTH_BAR) if agents == AGENTS else None,
                note=f"MB after each round: {', '.join(f'{one / 1e6:.1f}' for one in kept)}",
            )
        )
    return found


def main(place: str, agents: str, shape: str, rounds: str) -> None:
    """Measure and print."""
    for number in range(100 * ROUNDS[PLAIN]):
        asked(number)  # Texts are kept once they were made: they are nobody's memory.
    print(json.dumps(asyncio.run(crowd(Path(place), int(agents), shape, int(rounds)))))


if __name__ == "__main__":
    main(*sys.argv[1:])

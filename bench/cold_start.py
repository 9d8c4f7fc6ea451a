"""A new process until its first append is acknowledged and its first pack is there.

Measured from before the process is started to the moment at which it has the pack; ending it is not counted. A
process reads the machine's monotonic clock, which all processes share, and its own processor time since it began. The
journal is new and on disk, with the defaults of `holdfast.open`. The text has a word that no vocabulary holds.
"""

from __future__ import annotations

import compileall
import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import holdfast
from bench.harness import Samples, rounds, spread
from bench.journals import folder
from bench.peer_process import PYTHON
from bench.report import Line, at_most

TITLE = "A new process, to its first append and pack"
BAR = 200
MESSAGE = {"role": "user", "content": "Refund order 17 of 1299.50 EUR to zqxjkwv, please. Ja, natürlich!"}
OURS = "new process to the first append and pack"
OPENED = "the same with a journal that exists"
OFF = "the same, counted by splintr from the first text on"
SQLITE_SESSION = "openai-agents SQLiteSession: to the first add_items and get_items"
BARE = "python -c pass"
ASYNCIO = "import asyncio"
READ_CLOCKS = "\nimport time; print(time.monotonic(), time.process_time())"
WORK = f"""
import sys, holdfast
hf = holdfast.open(sys.argv[1])
session = hf.session("s")
session.append({MESSAGE!r})
assert session.pack(8_000).messages
"""
WITHOUT_VOCABULARY = "import holdfast.model.tokenizers as t\nt.load_vocabulary = lambda _: None\n"
PEER = f"""
import asyncio, sys
from agents import SQLiteSession
session = SQLiteSession("s", sys.argv[1])
async def work():
    await session.add_items([{MESSAGE!r}])
    assert await session.get_items()
asyncio.run(work())
"""


def run(quick: bool) -> list[Line]:
    """The medians of several processes, in turns."""
    # Where Python may write no byte code, each process would compile what was edited, and that would be measured.
    compileall.compile_dir(Path(holdfast.__file__).parent, quiet=1)
    with folder() as place:
        used: Samples = {}
        numbers = itertools.count()

        def start(what: str, code: str, python: str = sys.executable, path: Path | None = None) -> Callable[[], float]:
            def contend() -> float:
                wall, cpu = start_process(python, code, path or place / f"{next(numbers)}.db")
                used.setdefault(what, []).append(cpu)
                return wall

            return contend

        opened = place / "opened.db"
        with holdfast.open(opened) as hf:
            hf.session("s").append(MESSAGE)
        contenders = {
            OURS: start(OURS, WORK),
            OPENED: start(OPENED, WORK, path=opened),
            OFF: start(OFF, WITHOUT_VOCABULARY + WORK),
            BARE: start(BARE, "pass"),
            ASYNCIO: start(ASYNCIO, "import asyncio"),
        }
        if PYTHON.exists():
            contenders[SQLITE_SESSION] = start(SQLITE_SESSION, PEER, os.fspath(PYTHON))
        samples = rounds(contenders, 3 if quick else 15)
    return [
        Line(
            what=what,
            value=1000 * spread(samples[what]).median,
            unit="ms",
            bar=at_most(BAR) if what == OURS else None,
            note=f"half of the rounds {spread([1000 * wall for wall in samples[what]])}; "
            f"{1000 * spread(used[what]).median:.0f} ms of processor time",
        )
        for what in contenders
    ]


def start_process(python: str, code: str, path: Path) -> tuple[float, float]:
    """The seconds from starting a process until its code is done, and its processor time until then."""
    command = [python, "-c", code + READ_CLOCKS, os.fspath(path)]
    began = time.monotonic()
    done, cpu = map(float, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    return done - began, cpu

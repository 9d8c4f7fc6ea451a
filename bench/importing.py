"""`import holdfast` in a fresh process, alone and with the client that is imported on first use, and what takes
longest in it."""

from __future__ import annotations

import compileall
import subprocess
import sys
from functools import partial
from pathlib import Path

import holdfast
from bench.harness import rounds, spread
from bench.report import Line, at_most

TITLE = "import holdfast, in a fresh process"
CLIENT = "from holdfast import Holdfast"
TIMED = "import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"


def import_seconds(statement: str) -> float:
    """How long one import takes where nothing was imported before."""
    command = [sys.executable, "-c", TIMED.format(statement=statement)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def slowest(count: int = 5) -> list[tuple[str, float]]:
    """Modules by the milliseconds they take themselves, without those they import."""
    command = [sys.executable, "-X", "importtime", "-c", CLIENT]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    found: list[tuple[str, float]] = []
    for line in text.splitlines():
        own, _, module = line.removeprefix("import time:").split("|")
        if own.strip().isdigit():
            found.append((module.strip(), int(own) / 1000))
    # What Python imports before anything else is not ours to count.
    begin = next((index for index, (module, _) in enumerate(found) if module == "site"), -1) + 1
    return sorted(found[begin:], key=lambda item: -item[1])[:count]


def run(quick: bool) -> list[Line]:
    """The median of several processes, with the byte code that an installed package has."""
    # Where Python may write none, each process would compile what was edited, and that would be measured.
    compileall.compile_dir(Path(holdfast.__file__).parent, quiet=1)
    samples = rounds(
        {each: partial(import_seconds, each) for each in ("import holdfast", CLIENT, "import asyncio")},
        3 if quick else 11,
    )
    lines = [
        Line(
            what=what,
            value=1000 * spread(samples[what]).median,
            unit="ms",
            bar=at_most(150),
            note=f"import asyncio in the same rounds: {1000 * spread(samples['import asyncio']).median:.0f} ms",
        )
        for what in ("import holdfast", CLIENT)
    ]
    lines.extend(Line(what=f"of which {module} itself", value=took, unit="ms") for module, took in slowest())
    return lines

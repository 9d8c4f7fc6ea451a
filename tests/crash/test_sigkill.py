"""Real kill -9: what was acknowledged is there, what is there was attempted, and a retry settles the rest."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from random import Random

import holdfast
from tests.crash.writer_process import tell
from tests.forked import PROCESSES
from tests.scale import seeded, volume

CYCLES_PER_CHECK = 20


def _one_life(path: Path, life: str, random: Random) -> list[str]:
    """Start a writer, let it work for a moment, kill it; returns the lines that it managed to write."""
    reading, writing = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=tell, args=(str(path), life, writing))
    process.start()
    writing.close()
    with reading:
        assert reading.poll(30), "the writer did not start"
        time.sleep(random.uniform(0, 0.02))
        process.kill()
        process.join()
        assert process.exitcode == -signal.SIGKILL
        said = b""
        while more := os.read(reading.fileno(), 65_536):
            said += more
    return said.decode().split("\n")[:-1]


def test_nothing_acknowledged_is_lost_and_nothing_unasked_appears(tmp_path: Path) -> None:
    random = seeded("sigkill")
    path = tmp_path / "a.db"
    tried: dict[tuple[str, str], int | None] = {}
    acknowledged = 0
    cycles = volume(40, 2_000)
    for cycle in range(cycles):
        for line in _one_life(path, str(cycle), random):
            word, stream, key, *version = line.split()
            if word == "try":
                tried[stream, key] = None
            else:
                tried[stream, key] = int(version[0])
                acknowledged += 1
        if cycle % CYCLES_PER_CHECK == CYCLES_PER_CHECK - 1 or cycle == cycles - 1:
            _check(path, tried)
    print(f"{cycles} cycles, {len(tried)} attempts, {acknowledged} acknowledged, {len(tried) - acknowledged} in doubt")
    assert acknowledged > cycles


def _check(path: Path, tried: dict[tuple[str, str], int | None]) -> None:
    with holdfast.open(path) as hf:
        found = {(event.stream.removeprefix("session/"), event.key): event.version for event in hf.journal.events()}
        lost = [place for place, version in tried.items() if version is not None and found.get(place) != version]
        phantoms = [place for place in found if place not in tried]
        assert (lost, phantoms) == ([], [])
        for (stream, key), version in tried.items():
            if version is None:
                # In doubt: asking again with the same key settles it, exactly once.
                number = int(key.split("-")[1])
                appended = hf.journal.append(stream, "app.noted", {"n": number}, key=key)
                assert appended.repeated == ((stream, key) in found)
                tried[stream, key] = appended.version
        assert hf.journal.verify().findings == ()


def test_a_process_that_dies_while_others_write_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        for cycle in range(volume(5, 50)):
            _one_life(path, f"d{cycle}", Random(cycle))
            started = time.monotonic()
            hf.journal.append("mine", "app.noted", {"cycle": cycle})
            assert time.monotonic() - started < 20
        assert hf.journal.version("mine") == volume(5, 50)

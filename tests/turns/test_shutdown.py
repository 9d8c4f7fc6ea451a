"""SIGTERM: nothing new begins, what can end within the grace ends, the rest stays live, and the next process goes on.

Real processes are told to end, told twice, and killed in the midst of it. After each of these every turn is answered
or live, none has failed, and nothing is done twice that nobody allowed.
"""

from __future__ import annotations

import asyncio
import json
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from tests.scale import volume
from tests.turns.loops import place
from tests.turns.shutdown_process import World, kind_of

GRACE, PATIENCE = 5.0, 60


class Program:
    """A process with many turns that stand in the middle of something."""

    def __init__(self, folder: Path, turns: int, grace: float, how: str = "async") -> None:
        command = [sys.executable, "-m", "tests.turns.shutdown_process", str(folder), str(turns), str(grace), how]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        heard, _, _ = select.select([self._process.stdout], [], [], PATIENCE)
        if not heard or self._process.stdout.readline() != "ready\n":
            self.kill()
            raise AssertionError("the program did not come so far")

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> tuple[int, Any]:
        """Its exit code, and what it said became of what was sent."""
        said = self._process.communicate(timeout=PATIENCE)[0]
        return self._process.returncode, json.loads(said) if said else None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """None outlives the test."""
    started: list[Program] = []
    yield started
    for program in started:
        program.kill()


def check_left(folder: Path, turns: int, *, released: bool) -> list[int]:
    """Each turn is answered or live, and none has failed; gives those that are live."""
    live = []
    with holdfast.open(folder / "a.db") as hf:
        ends = [event.facts for event in hf.journal.events() if event.type == "frame.popped"]
        assert {facts.status for facts in ends} <= {"completed"}
        assert hf.journal.verify().findings == ()
        for number in range(turns):
            found = hf.index.resume_actor(place(f"s{number}"))
            said = hf.session(f"s{number}").messages()
            assert [one.text for one in said if one.role == "user"] == [kind_of(number)], "what was refused is not said"
            assert bool(found.frames) != (said[-1].role == "assistant" and not said[-1].tool_calls)
            if found.frames:
                live.append(number)
            if released:
                assert found.holder is None
    return live


async def finish(folder: Path, turns: int, live: list[int]) -> None:
    """What a new process does: go on with everything that is left, and answer what is asked."""
    world, ended = World(folder, stuck=False), set[str]()
    async with holdfast.open_async(folder / "a.db") as hf:
        hf.on("frame.popped", lambda event: None if event.facts.parent else ended.add(event.stream))
        agent = world.agent(hf)
        async with asyncio.timeout(30), agent.recovering(every=0.05):
            while len(ended) < len(live):
                async for question in hf.questions():
                    if not question.answered:
                        await hf.answer(question.id, approve=question.call is None)  # No torn call may run again.
                await asyncio.sleep(0.02)
        assert ended == {place(f"s{number}") for number in live}
        for number in range(turns):
            again = await agent.send(f"s{number}", kind_of(number), key=f"k{number}")
            assert (again.status, again.text) == ("done", "Quick." if kind_of(number) == "quick" else "Done.")
        assert (await hf.journal.verify()).findings == ()
    check_effects(world.effects.read_text("ascii").splitlines(), kinds(turns))


def check_effects(lines: list[str], wanted: Counter[str]) -> None:
    """Nothing was done twice that nobody allowed, and nothing was left out."""
    effects = Counter(lines)
    for name in ("pay", "ask"):
        assert [count for effect, count in effects.items() if effect.startswith(name)] == [1] * wanted[name]
    assert len([effect for effect in effects if effect.startswith("lookup")]) == wanted["lookup"]
    assert max(effects.values()) <= 2, "the same key, once more"


def kinds(turns: int) -> Counter[str]:
    return Counter(kind_of(number) for number in range(turns))


def test_a_hundred_turns_end_or_stay_live_when_the_process_is_told_to_end(
    tmp_path: Path, programs: list[Program]
) -> None:
    turns = volume(100, 300)
    programs.append(Program(tmp_path, turns, GRACE))
    began = time.monotonic()
    programs[0].signal(signal.SIGTERM)
    code, said = programs[0].end()
    took = time.monotonic() - began
    assert code == 0
    assert took <= GRACE
    wanted = kinds(turns)
    stuck = turns - wanted["quick"] - wanted["ask"]
    assert Counter(said["sent"]) == {"done": wanted["quick"], "waiting": wanted["ask"], "Draining": stuck}
    assert set(said["queued"]) == {"Draining"}
    assert said["late"] == "Draining"
    live = check_left(tmp_path, turns, released=True)
    assert len(live) == stuck + wanted["ask"]
    asyncio.run(finish(tmp_path, turns, live))


def test_a_second_signal_hurries_and_the_interrupt_key_is_a_signal(tmp_path: Path, programs: list[Program]) -> None:
    programs.append(Program(tmp_path, 10, 600.0))
    programs[0].signal(signal.SIGINT)
    time.sleep(0.3)
    programs[0].signal(signal.SIGTERM)
    began = time.monotonic()
    code, said = programs[0].end()
    assert (code, time.monotonic() - began < 10) == (0, True)
    assert said["sent"].count("done") == kinds(10)["quick"]
    asyncio.run(finish(tmp_path, 10, check_left(tmp_path, 10, released=True)))


@pytest.mark.parametrize("moment", volume([0.02, 0.15], [0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.6, 1.0]))
def test_a_kill_while_it_ends_changes_nothing(tmp_path: Path, programs: list[Program], moment: float) -> None:
    programs.append(Program(tmp_path, 30, GRACE))
    programs[0].signal(signal.SIGTERM)
    time.sleep(moment)
    programs[0].kill()
    asyncio.run(finish(tmp_path, 30, check_left(tmp_path, 30, released=False)))


def test_a_program_without_asyncio_ends_as_well(tmp_path: Path, programs: list[Program]) -> None:
    programs.append(Program(tmp_path, 4, GRACE, "sync"))
    began = time.monotonic()
    programs[0].signal(signal.SIGTERM)
    code, said = programs[0].end()
    assert (code, time.monotonic() - began <= GRACE) == (0, True)
    assert said == {"after": "Draining", "sent": ["Draining"] * 4}
    with holdfast.open(tmp_path / "a.db") as hf:
        for name in ("own", "s0", "s1", "s2", "s3"):
            found = hf.index.resume_actor(place(name))
            assert (len(found.stack) > 0, found.holder) == (True, None), name

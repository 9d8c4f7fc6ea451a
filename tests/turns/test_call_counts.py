"""An agent's turn in Python calls: of all threads, comprehensions counted, C functions not.

Counts do not depend on the machine.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Self

import pytest

import holdfast
from holdfast.aio.executor import ThreadPools
from holdfast.flow.frames import read
from holdfast.model.scripted import Scripted, call
from holdfast.model.tokenizers import resolve_tokenizer
from holdfast.runtime import tasks

MOST = {"no tool": 1_770, "one tool": 3_590}
CROSSINGS = {"no tool": 3, "one tool": 6}
"""Opening, the first steps, each reply with what follows from it; a tool, and its outcome with what follows from it."""
WARM = 8
"""Turns after which statements are prepared and everything is imported."""


class Calls:
    """Counts Python calls in every thread that is started while it is entered, and in this one."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()
        self._counting = False

    def _note(self, frame: FrameType, event: str, arg: object) -> None:
        if self._counting and event == "call":
            self.made[frame.f_code.co_qualname] += 1

    def __enter__(self) -> Self:
        threading.setprofile(self._note)
        sys.setprofile(self._note)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def of(self, work: Callable[[], object]) -> int:
        """Count one run of some work."""
        self.made.clear()
        self._counting = True
        try:
            work()
        finally:
            self._counting = False
        return self.made.total()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Calls]:
    """A counter; as long as it counts, agents do not look for what other processes want."""
    monkeypatch.setattr(tasks, "STOP_POLL_SECONDS", 3_600.0)
    with Calls() as found:
        yield found


def counted(calls: Calls, path: Path, shape: str) -> tuple[int, int]:
    """Python calls and thread crossings of one warm send."""

    def look(order: str) -> str:
        """Look at an order."""
        return "on its way"

    wanted = [[call("look", order="17")]] if shape == "one tool" else []
    settings = holdfast.Settings(lease_ms=3_600_000)
    tokenizer: Any = resolve_tokenizer()
    tokenizer.load()  # Until then short texts are counted in Python.
    with holdfast.open(path / "a.db", durability="fast", settings=settings) as hf:
        model = Scripted([*wanted, "Soon."], name="gpt-5-mini")
        agent: Any = hf.agent("clerk", model=model, system="Be brief.", tools=[look])
        for name in [*["elsewhere"] * WARM, "here"]:
            agent.send(name, "Where is it?")
        made = calls.of(lambda: agent.send("here", "Where is it?"))
        return made, calls.made["_run_at_level"]


@pytest.mark.parametrize("shape", MOST)
def test_a_turn_makes_few_calls_and_crosses_into_a_thread_once_for_each_operation(
    calls: Calls, tmp_path: Path, shape: str
) -> None:
    made, crossings = counted(calls, tmp_path, shape)
    assert made <= MOST[shape], calls.made.most_common(20)
    assert crossings == CROSSINGS[shape]


def test_a_state_that_is_loaded_each_time_is_found(
    calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sound = read.load_state
    monkeypatch.setattr(
        "holdfast.flow.journal.append.load_state", lambda env, stream, **how: sound(env, stream, fresh=True)
    )
    assert counted(calls, tmp_path, "no tool")[0] > MOST["no tool"]


def test_a_crossing_too_many_is_found(calls: Calls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound = ThreadPools.cross

    def twice(self: ThreadPools, pool: str, work: Any) -> Any:
        self.submit(pool, int)
        return sound(self, pool, work)

    monkeypatch.setattr(ThreadPools, "cross", twice)
    assert counted(calls, tmp_path, "no tool")[1] > CROSSINGS["no tool"]

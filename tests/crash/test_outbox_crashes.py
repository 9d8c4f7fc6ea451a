"""Real kill -9 at each point of the outbox: everything declared arrives, each id once, in order; replay sends none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.flow.effects import operators, outbox
from holdfast.records.batches import RowQuery
from holdfast.testing.clock import FrozenClock
from tests.crash.outbox_process import POINTS, SINKS, STREAMS, Killer, die, live, opened, run_order
from tests.scale import seeded, volume

START = 1_750_000_000_000
STEP_MS = 600_000
"""Longer than any wait between two attempts: in the next life everything is due."""
ORDERS = 4


def _in_child(work: Callable[[], object]) -> int:
    """The number of a new process that does something and ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python warns about forking beside threads; the child uses none of them.
        child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


class Lives:
    """One journal and one sink through many lives."""

    def __init__(self, folder: Path, plant: Callable[[], None] = lambda: None) -> None:
        self.path, self.sink = str(folder / "a.db"), str(folder / "sink.txt")
        Path(self.sink).touch()
        self._plant = plant
        self.now, self.orders = START, 0
        self.ended: Counter[str] = Counter()

    def life(self, point: str, nth: int) -> bool:
        """One process from its start to its end; whether it was killed."""
        self.now += STEP_MS
        first, self.orders = self.orders, self.orders + ORDERS
        given = (self.path, self.sink, max(0, first - 1), self.orders, self.now, point, nth)

        def work() -> None:
            self._plant()
            live(*given)

        _, status = os.waitpid(_in_child(work), 0)
        killed = os.WIFSIGNALED(status)
        assert killed or os.WEXITSTATUS(status) == 0, "the process failed by itself"
        self.ended[point if killed else "by itself"] += 1
        return killed

    def finish(self) -> None:
        """What was in doubt is asked again, and everything is sent."""
        clock = FrozenClock(self.now)
        with opened(self.path, self.sink, Killer("", 0), clock) as hf:
            for number in range(self.orders):
                run_order(hf, number)
            clock.advance(STEP_MS)
            while hf.effects.dispatch().attempts:
                clock.advance(STEP_MS)
            assert list(hf.effects.pending()) == []
            assert list(hf.effects.dead()) == []
            self.check(hf)

    def check(self, hf: holdfast.Holdfast) -> None:
        """Everything that was declared is in the sink, once and in order, and nothing else."""
        declared: dict[tuple[str, str], list[str]] = {(stream, sink): [] for stream in STREAMS for sink in SINKS}
        for stream in STREAMS:
            for event in hf.journal.events(stream, types=["effect.declared"]):
                declared[stream, event.facts.sink].append(event.facts.effect)
        assert sum(map(len, declared.values())) == self.orders * len(SINKS), "an effect got lost before it was sent"
        taken: dict[tuple[str, str], list[str]] = {lane: [] for lane in declared}
        for stream, sink, id, _ in self.lines():
            taken[stream, sink].append(id)
        assert taken == declared, "the sink has not seen each effect once and in order"
        assert hf.state("user/1").read("orders") == self.orders
        assert hf.journal.verify().findings == ()

    def lines(self) -> list[list[str]]:
        """What the sink holds."""
        return [line.split() for line in Path(self.sink).read_text(encoding="ascii").splitlines()]

    def replay(self, folder: Path) -> None:
        """Rebuilding and restoring send nothing."""
        before = self.lines()
        with opened(self.path, self.sink, Killer("", 0), FrozenClock(self.now)) as hf:
            hf.journal.rebuild()
            hf.journal.backup(folder / "backup.db")
            last = hf.journal.position()
        holdfast.restore(folder / "backup.db", folder / "again.db", seq=last)
        with opened(str(folder / "again.db"), self.sink, Killer("", 0), FrozenClock(self.now)) as hf:
            hf.journal.rebuild()
            assert hf.effects.dispatch().attempts == 0
            self.check(hf)
        assert self.lines() == before


def test_kills_at_every_point_lose_nothing_and_repeat_nothing(quick_path: Path) -> None:
    random = seeded("outbox")
    lives, kills, number = Lives(quick_path), volume(40, 500), 0
    while lives.ended.total() - lives.ended["by itself"] < kills:
        restart = random.random() < 0.1
        point = "" if restart else POINTS[number % len(POINTS)]
        lives.life(point, 1 if point == POINTS[-1] else 1 + random.randrange(3))
        number += not restart
    lives.finish()
    lives.replay(quick_path)
    print(f"{dict(lives.ended)}, {lives.orders} orders, {len(lives.lines())} effects")
    assert all(lives.ended[point] >= kills // len(POINTS) // 2 for point in POINTS)


def _is_at_work(process: subprocess.Popen[bytes], lives: Lives, before: int) -> bool:
    return len(lives.lines()) > before + 3 or process.poll() is not None


def test_a_process_of_its_own_is_killed_from_outside(quick_path: Path) -> None:
    random = seeded("outbox from outside")
    lives = Lives(quick_path)
    for _ in range(volume(2, 50)):
        lives.now += STEP_MS
        first, lives.orders = lives.orders, lives.orders + 40
        given = (lives.path, lives.sink, str(first), str(lives.orders), str(lives.now), "never", "1")
        process = subprocess.Popen([sys.executable, "-m", "tests.crash.outbox_process", *given])
        _until(partial(_is_at_work, process, lives, len(lives.lines())))
        time.sleep(random.uniform(0, 0.02))
        process.send_signal(signal.SIGKILL)
        process.wait()
    lives.finish()


def test_what_kills_its_process_is_given_up_after_so_many_processes(quick_path: Path) -> None:
    """Real processes, each killed by its work: an effect is dead at last, and a hand-over is given up."""
    path, asked = quick_path / "a.db", quick_path / "asked.txt"
    settings = holdfast.Settings(effect_attempts=3, handover_attempts=3)
    with holdfast.open(path) as hf:
        run_order(hf, 0)
        hf.session("a").append("hello")

    class Fatal:
        def deliver(self, effect: Any) -> None:
            self.take(effect)

        def take(self, ended: Any) -> None:
            with asked.open("a", encoding="ascii") as out:
                out.write(f"{type(ended).__name__}\n")
            die()

    def work() -> None:
        with holdfast.open(path, settings=settings, memory=Fatal(), clock=FrozenClock(START)) as hf:
            hf.effects.add_sink("crm", Fatal())
            hf.effects.dispatch(sink="crm")
            if hf.session("a").details.status == "open":
                hf.session("a").close()
            hf.sweep_sessions()

    ends = [os.waitpid(_in_child(work), 0)[1] for _ in range(9)]
    assert [os.WIFSIGNALED(end) for end in ends] == [True] * 8 + [False]
    assert Counter(asked.read_text(encoding="ascii").split()) == {"DeclaredEffect": 4, "EndedConversation": 4}
    with holdfast.open(path) as hf:
        assert [(one.sink, one.attempts) for one in hf.effects.dead()] == [("crm", 3)]
        assert hf.session("a").details.status == "closed"
        assert hf.journal.verify().findings == ()


# planted bugs


def _settles_first() -> None:
    """The outcome is noted before the sink is asked."""

    def attempt(env: Any, lane: Any, row: Any) -> Any:
        event = outbox.read_event(env, lane.stream, row["version"])
        outcome = outbox.settle_effect(env, lane.stream, row, "applied", attempts=1)
        sink = env.sinks.find(env.tenant, lane.sink)
        assert event is not None
        assert sink is not None
        with suppress(Exception):
            sink.deliver(outbox._build_declared_effect(env, lane, row, event))
        return outcome

    outbox._attempt_effect = attempt


def _declares_later() -> None:
    """What is for the outbox is written after the operator's event, in an append of its own."""
    real = operators.decide_and_append

    def change(env: Any, streams: Any, decide: Any, **named: Any) -> Any:
        later: list[Any] = []

        def first(states: Any) -> Any:
            drafts = decide(states)
            later[:] = [draft for draft in drafts[streams[0]] if draft.type == "effect.declared"]
            return {**drafts, streams[0]: [draft for draft in drafts[streams[0]] if draft not in later]}

        changed = real(env, streams, first, **named)
        if not changed.repeated:
            real(env, streams[:1], lambda states: {streams[0]: list(later)})
        return changed

    operators.decide_and_append = change


def _takes_any_order() -> None:
    """The newest effect of a lane goes first."""

    def newest(env: Any, lane: Any) -> Any:
        query = RowQuery(table="effects", stream=lane.stream, column="sink", value=lane.sink, limit=1, backwards=True)
        return next((row for _, row in env.journal.select(env.tenant, query)), None)

    outbox._find_next_row = newest


@pytest.mark.parametrize(
    ("plant", "points"),
    [
        (_settles_first, ("before delivery",)),
        (_declares_later, ("after declaring",)),
        (_takes_any_order, ("before settling",)),
    ],
)
def test_planted_bugs_are_noticed(quick_path: Path, plant: Callable[[], None], points: Iterable[str]) -> None:
    lives = Lives(quick_path, plant)
    for number in range(6):
        for point in points:
            lives.life(point, 1 + number % 3)
    with pytest.raises(AssertionError, match=r"got lost|once and in order"):
        lives.finish()


# somebody else's lease


def _until(true: Callable[[], bool]) -> None:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < 20, "it did not happen"
        time.sleep(0.002)


def test_a_process_that_was_stopped_and_thought_to_be_dead_sends_nothing_more(quick_path: Path) -> None:
    """Two real processes: the first is stopped while its sink works, and wakes up after the second took over."""
    path, asked, go = quick_path / "a.db", quick_path / "asked.txt", quick_path / "go"
    settings = holdfast.Settings(lease_ms=100)
    with holdfast.open(path) as hf:
        for number in range(3):
            run_order(hf, number * len(STREAMS))
    asked.touch()

    def sends(name: str) -> None:
        def deliver(effect: holdfast.effects.DeclaredEffect) -> str:
            with asked.open("a", encoding="ascii") as out:
                out.write(f"{name} {effect.id}\n")
            if name == "first":
                _until(go.exists)
            return name

        with holdfast.open(path, settings=settings) as hf:
            hf.effects.add_sink("crm", deliver)
            hf.effects.dispatch(sink="crm")

    first = _in_child(lambda: sends("first"))
    try:
        _until(lambda: bool(asked.read_text(encoding="ascii")))
        os.kill(first, signal.SIGSTOP)
        second = _in_child(lambda: sends("second"))
        assert os.waitpid(second, 0)[1] == 0
        go.touch()
        os.kill(first, signal.SIGCONT)
        assert os.waitpid(first, 0)[1] == 0
        first = 0
    finally:
        if first:
            os.kill(first, signal.SIGKILL)
            os.waitpid(first, 0)
    lines = [line.split() for line in asked.read_text(encoding="ascii").splitlines()]
    with holdfast.open(path) as hf:
        events = list(hf.journal.events(STREAMS[0]))
        ids = [e.facts.effect for e in events if e.type == "effect.declared" and e.facts.sink == "crm"]
        answers = [e.content.answer for e in events if e.type == "effect.settled" and e.facts.outcome == "applied"]
        assert lines == [["first", ids[0]], *(["second", id] for id in ids)]
        assert answers == ["second"] * 3
        assert hf.journal.verify().findings == ()

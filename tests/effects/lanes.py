"""A random schedule of failures over several lanes and sinks, and what must be true of it whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import holdfast
from holdfast.effects import Custom, DeclaredEffect, OperatorOutput
from holdfast.errors import EffectRefused, RetryLater
from holdfast.testing.clock import FrozenClock

STREAMS = ("operator/a", "operator/b", "operator/c")
SINKS = ("crm", "mail", "ledger", "broken")


class World:
    """Sinks that fail at random, of which `broken` always does, and what they were given."""

    def __init__(self, hf: holdfast.Holdfast, clock: FrozenClock, random: Random) -> None:
        self.hf, self.clock, self.random = hf, clock, random
        self.declared: dict[tuple[str, str], list[str]] = {}
        self.taken: dict[tuple[str, str], list[str]] = {}
        self.dead_for_good: set[str] = set()
        self.failing = True
        for name in SINKS:
            hf.effects.add_sink(name, self._sink(name))

    def _sink(self, name: str) -> Callable[[DeclaredEffect], None]:
        def deliver(effect: DeclaredEffect) -> None:
            if name == "broken":
                raise ConnectionError("always")
            if self.failing:
                chance = self.random.random()
                if chance < 0.15:
                    raise RetryLater("later", retry_after=self.random.choice([None, 3.0]))
                if chance < 0.2:
                    raise EffectRefused("not like this")
            known = self.taken.setdefault((effect.scope, name), [])
            if effect.id not in known:
                known.append(effect.id)
            if self.failing and self.random.random() < 0.15:
                raise TimeoutError("it was taken, and nobody heard")

        return deliver

    def declare(self) -> None:
        """An operator declares a few effects."""
        stream = self.random.choice(STREAMS)
        sinks = self.random.choices(SINKS, k=self.random.randrange(1, 5))
        effects = [Custom("note", number, sink) for number, sink in enumerate(sinks)]
        done = self.hf.effects.operate(lambda given, view: OperatorOutput(None, effects), scope=stream, name="x")
        for one in done.outcomes:
            self.declared.setdefault((stream, str(one.sink)), []).append(one.effect)

    def step(self) -> None:
        """Something happens."""
        chance = self.random.random()
        if chance < 0.4:
            self.declare()
        elif chance < 0.8:
            self.hf.effects.dispatch(limit=self.random.choice([None, 1, 3]))
        elif chance < 0.9:
            self.clock.advance(self.random.choice([100, 2_000, 400_000]))
        else:
            for info in self.hf.effects.dead():
                if info.sink != "broken" and self.random.random() < 0.5:
                    self.hf.effects.revive(info.id)

    def check(self) -> None:
        """What is true at every moment: each lane was taken in order, each id once, and nothing else."""
        for lane, taken in self.taken.items():
            assert taken == self.declared[lane][: len(taken)], f"{lane} is out of order"

    def finish(self) -> None:
        """Once nothing fails any more, everything arrives, whatever the broken sink does."""
        self.failing = False
        for _ in range(12):
            for info in self.hf.effects.dead():
                if info.sink != "broken":
                    self.hf.effects.revive(info.id)
            self.hf.effects.dispatch()
            self.clock.advance(400_000)
        self.check()
        for lane, declared in self.declared.items():
            expected = [] if lane[1] == "broken" else declared
            assert self.taken.get(lane, []) == expected, f"{lane} did not arrive"
        left = {info.sink for info in (*self.hf.effects.pending(), *self.hf.effects.dead())}
        assert left <= {"broken"}


def run(seed: int, url: str, steps: int) -> World:
    """One random schedule from its beginning to its end."""
    clock = FrozenClock()
    with holdfast.open(url, clock=clock) as hf:
        world = World(hf, clock, Random(seed))
        for _ in range(steps):
            world.step()
            world.check()
        world.finish()
        assert hf.journal.verify().findings == ()
        return world

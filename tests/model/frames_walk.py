"""A random walk over `hf.index` beside the model: several clients, scopes and actors, faults, crashes and clock jumps.

After every step the journal's live frames are compared with the model and their budgets
are counted; from time to time, and at the end, everything that can be seen is compared.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.client.holdfast import Holdfast
from holdfast.client.index import IndexView
from holdfast.connect import assemble_env
from holdfast.errors import HoldfastError, OutcomeUnknown, StaleEpoch
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports.journal import Journal
from holdfast.records.batches import AppendResult, Batch
from holdfast.records.ids import ulid_text
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.model import frames_look as look
from tests.model.frames_model import No, Plan
from tests.model.frames_owners_model import Model

SCOPES = ("actor/a", "actor/b", "actor/c")
FULL_LOOK = 25
REMEMBERED = 20


class StillClock(FrozenClock):
    """Whoever watches an owner waits without the wall clock moving, so that only the walk moves it."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], None] = lambda: None

    def sleep(self, seconds: float) -> None:
        self._monotonic += seconds
        self.meanwhile()


class Flaky:
    """A journal whose commits may seem to fail, before or after they happen, for some calls in a row."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self.times = 0
        self.after = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    def append(self, batch: Batch) -> AppendResult:
        if not self.times:
            return self._journal.append(batch)
        if self.after:
            self._journal.append(batch)  # A refusal is a refusal: only what is committed can be unknown.
        self.times -= 1
        raise OutcomeUnknown


class Client:
    """One process, as far as leases and caches can tell."""

    def __init__(self, number: int, journal: Journal, clock: FrozenClock, ids: SeededIds, cached: int) -> None:
        self.number = number
        self.journal = Flaky(journal)
        # The signs of life of a real thread would come by real time: a lease that lasts long gives none in a walk.
        settings = Settings(cached_streams=cached, lease_ms=3_600_000)
        self.hf = Holdfast(assemble_env(self.journal, settings, clock, ids))

    @property
    def index(self) -> IndexView:
        return self.hf.index

    def end(self, close: bool) -> None:
        self.hf.env.leases.close()
        if close:
            self.journal.close()


@dataclass
class Op:
    """One operation, for the model and for real. `other` is the same with other content, to reuse a key wrongly."""

    name: str
    args: dict[str, Any]
    scope: str
    plan: Callable[[], Plan]
    act: Callable[[IndexView, str | None], Any]
    other: Callable[[IndexView, str], Any] | None = None
    frame: str | None = None
    keyed: bool = False
    learn: Callable[[Any], Any] = lambda result: result
    after: Callable[[Any], None] = lambda result: None
    again: Callable[[Any, Any], None] = field(default=lambda first, second: None)
    repeatable: bool = False
    """Asked twice in the same way it is done once, also without a key."""
    empty: bool = False
    """It asks for nothing, so nobody need look whether what it was about is there still."""
    differs: Any = None
    """How the other differs, for who reads of it."""
    wrong: bool = False
    """A value in it is of a wrong type, so that it is refused even where the plan is fine."""


class Walk:
    """One journal, its model, and the way through both."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        self.seed, self.folder = seed, folder
        self.random = random.Random(seed)
        self.clock = StillClock()
        self.clock.meanwhile = self.give_signs
        self.ids = SeededIds(self.clock, seed)
        self.model = Model()
        self.memory = None if folder is not None else MemoryJournal()
        self.born = 0
        self.clients = [self.new_client(), self.new_client()]
        self.keys: dict[tuple[str, str], tuple[Op, Any]] = {}
        self.log: deque[str] = deque(maxlen=REMEMBERED)
        self.steps = 0
        self.pushes: dict[str, dict[str, Any]] = {}
        self.removals: list[tuple[str, str]] = []
        self.calls: list[tuple[str, str, str]] = []
        self.ended_calls: list[tuple[Any, ...]] = []
        self.tokens: list[str] = []
        self.questions: list[str] = []
        self.said: list[tuple[Any, ...]] = []

    def new_client(self) -> Client:
        self.born += 1
        journal: Journal
        if self.memory is not None:
            journal = self.memory
        else:
            assert self.folder is not None
            journal = SqliteJournal(self.folder / "walk.db", durability="fast")
        return Client(self.born, journal, self.clock, self.ids, self.random.choice((0, 1, 1000, 1000)))

    def close(self) -> None:
        for client in self.clients:
            client.end(close=self.memory is None)

    def give_signs(self) -> None:
        """What a lively client's thread would do while somebody else watches."""
        for number, scope in list(self.model.leases):
            if number in self.model.lively and self.model.thinks_it_owns(number, scope):
                self.journal.renew_lease(look.TENANT, scope, self.model.leases[number, scope].epoch)

    # one step

    def step(self, choose: Callable[[Walk], Op | None]) -> None:
        self.steps += 1
        self.model.now = self.clock.now_ms()
        self.model.popped = []
        self.model.lively = {client.number for client in self.clients if self.random.random() < 0.25}
        op = choose(self)
        if op is not None:
            self.perform(op)
        states = look.states_of(self.journal, SCOPES)
        look.at_live_frames(self.model, states)
        look.at_budgets(self.model, states)
        if self.steps % FULL_LOOK == 0:
            self.look_at_everything()

    @property
    def journal(self) -> Any:
        return self.clients[0].journal

    def perform(self, op: Op) -> None:
        client = self.random.choice(self.clients)
        known = [key for (scope, key) in self.keys if scope == op.scope] if op.keyed else []
        if known and self.random.random() < 0.08:
            self.reuse_key(client, op, self.random.choice(known))
            return
        key = f"k{self.steps}" if op.keyed and self.random.random() < 0.4 else None
        self.note(client, op.name, op.args, key)
        plan, allowed = self.predict(client, op)
        sure = op.repeatable or key is not None
        fault = self.plan_fault(client, plan is not None and not allowed and plan.writes, sure)
        before = self.journal.position()
        try:
            result = self.attempt(client, op, key, fault)
        except HoldfastError as error:
            self.told_of(client.number, error, allowed, op.name)
            assert self.journal.position() == before, f"{op.name} was refused and wrote something all the same"
            return
        if op.empty and plan is None and allowed & {"FrameEnded", "NotFound"}:
            assert self.journal.position() == before
            return
        assert not allowed, f"{op.name} was done, and should be refused with {sorted(allowed)}"
        assert plan is not None
        self.model.carry_out(client.number, plan, op.learn(result))
        if key is not None and plan.writes:
            self.keys[op.scope, key] = (op, result)
        look.at_order(self.model, self.journal, before, SCOPES)
        if op.frame in self.model.units:
            look.at_frame(self.model, client.index, op.frame)
        op.after(result)

    def predict(self, client: Client, op: Op) -> tuple[Plan | None, set[str]]:
        try:
            plan = op.plan()
        except No as refused:
            # A client that lost its lease may be told that first, if it decided on what it remembered.
            stale = self.model.may_write(client.number, op.scope)
            mistyped = ["InvalidValue"] if op.wrong else []
            return None, {*refused.names, *mistyped, *([] if stale is None else [stale])}
        forbidden = self.model.forbidden(client.number, plan)
        return plan, {"InvalidValue", *forbidden} if op.wrong else forbidden

    def plan_fault(self, client: Client, writes: bool, sure: bool) -> bool:
        """Let the commit seem to fail once, which nobody notices, or for good, if the caller can ask again."""
        if not writes or self.random.random() > 0.12:
            return False
        client.journal.after = self.random.random() < 0.5
        client.journal.times = 3 if sure and self.random.random() < 0.5 else 1
        self.log.append(f"      (commit seems to fail {client.journal.times}x, after={client.journal.after})")
        return client.journal.times == 3

    def attempt(self, client: Client, op: Op, key: str | None, fault: bool) -> Any:
        if not fault:
            return op.act(client.index, key)
        try:
            op.act(client.index, key)
        except OutcomeUnknown:
            assert client.journal.times == 0
            return op.act(client.index, key)
        raise AssertionError(f"{op.name} did not say that its outcome is unknown")

    def told_of(self, client: int, error: HoldfastError, allowed: set[str], what: str) -> None:
        """A refusal must be one that the model expects; a client that is told of its lost lease knows of it."""
        name = type(error).__name__
        self.log.append(f"      → {name}")
        assert allowed, f"{what} was refused, and should not be: {name}: {error}"
        assert name in allowed, f"{what} was refused with {name}, not with {sorted(allowed)}: {error}"
        if isinstance(error, StaleEpoch) and (client, error.stream) in self.model.leases:
            self.model.leases[client, error.stream].lost = True

    def reuse_key(self, client: Client, op: Op, key: str) -> None:
        """A key again: for what it stands for, which changes nothing, or for something else, which is refused."""
        first, result = self.keys[op.scope, key]
        same = self.random.random() < 0.6
        self.note(client, f"again {first.name}" if same else f"reuse a key of {first.name}", first.args, key)
        self.log.append(f"      (the other: {first.differs})")
        others = {wrong for scope in SCOPES if (wrong := self.model.may_write(client.number, scope)) is not None}
        try:
            if same:
                second = first.act(client.index, key)
            else:
                assert first.other is not None
                first.other(client.index, key)
        except HoldfastError as error:
            self.told_of(client.number, error, others if same else {*others, "KeyReused"}, "a key again")
            return
        assert same, f"key {key} of {first.name} was used for something else and nobody noticed"
        first.again(result, second)

    def note(self, client: Client, name: str, args: dict[str, Any], key: str | None) -> None:
        self.log.append(f"{self.steps:5} client {client.number}: {name} {args}{'' if key is None else f' key={key}'}")

    # everything at once

    def look_at_everything(self) -> None:
        for client in self.clients:
            look.at_everything(self.model, client.index, SCOPES)

    def finish(self) -> None:
        self.look_at_everything()
        look.at_the_end(self.model, self.clients[0].hf, self.journal, SCOPES)

    def new_id(self) -> str:
        return ulid_text(self.ids.ulid())

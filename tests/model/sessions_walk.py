"""A random walk over sessions beside the model: two clients with caches and tokenizers of their own, on one journal.

Commits seem to fail, clients come and go, memory refuses, time passes. After every step the thread that was
touched shows what the model says; from time to time, and at the end, every thread does, through every client.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.errors import HoldfastError
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports import EndedConversation
from holdfast.ports.journal import Journal
from holdfast.records.messages import Message
from holdfast.records.settings import Settings
from holdfast.testing.clock import SeededIds
from tests.backends import rebuild_alone
from tests.model.frames_walk import Flaky, StillClock
from tests.model.sessions_life_model import ATTEMPTS, Talk
from tests.model.sessions_model import Line, Note

SESSIONS = ("a", "b", "c")
FULL_LOOK = 40
REMEMBERED = 25


def count_fours(text: str) -> int:
    return len(text) // 4 + 1


def count_threes(text: str) -> int:
    return len(text) // 3 + 1


def label(message: Message) -> str:
    """What tells one message of a walk from all others."""
    return str(message.tool_results[0].result) if message.role == "tool" else message.text


class Engine:
    """Memory as it should be: it knows by their keys what it has, and takes nothing twice."""

    def __init__(self) -> None:
        self.fails = False
        self.asked = 0
        self.taken: dict[str, tuple[str, str, dict[str, list[str]]]] = {}

    def take(self, ended: EndedConversation) -> None:
        self.asked += 1
        if self.fails:
            raise ConnectionError("memory is not there")
        threads = {name: [label(message) for message in ended.messages(name)] for name in ended.threads}
        assert self.taken.setdefault(ended.key, (ended.session, ended.cause, threads))[2] == threads


class Client:
    """One process, as far as caches and leases can tell."""

    def __init__(self, number: int, walk: Walk) -> None:
        self.number = number
        journal: Journal = walk.memory or SqliteJournal(walk.folder / "walk.db", durability="fast")
        self.journal = Flaky(journal)
        cached = walk.random.choice((0, 1, 1000, 1000))
        settings = Settings(cached_streams=cached, lease_ms=3_600_000, handover_attempts=ATTEMPTS)
        count = count_threes if number % 3 == 0 else count_fours
        beside = ClientExtensions(tokenizer=count, memory=walk.engine)
        self.hf = Holdfast(assemble_env(self.journal, settings, walk.clock, walk.ids, beside))

    def end(self, *, close: bool) -> None:
        self.hf.env.leases.close()
        if close:
            self.journal.close()


class Walk:
    """One journal, its model, and the way through both."""

    careful = True
    """Whether every thread that was touched is looked at, at once."""

    def __init__(self, seed: int, folder: Path | None) -> None:
        self.random = random.Random(seed)
        self.folder = folder or Path()
        self.clock = StillClock()
        self.ids = SeededIds(self.clock, seed)
        self.memory = MemoryJournal() if folder is None else None
        self.engine = Engine()
        self.born = 0
        self.clients = [self.new_client(), self.new_client()]
        self.talks: dict[str, Talk] = {}
        self.notes: list[tuple[str, str, Note]] = []
        """Every summary that was ever made, with where it was seen: originals come back for good."""
        self.keys: dict[tuple[str, str, str], tuple[Any, Any]] = {}
        self.handed: list[tuple[str, str, dict[str, list[str]]]] = []
        self.log: deque[str] = deque(maxlen=REMEMBERED)
        self.steps = self.words = 0

    def new_client(self) -> Client:
        self.born += 1
        return Client(self.born, self)

    def close(self) -> None:
        for client in self.clients:
            client.end(close=self.memory is None)

    # what an operation works with

    @property
    def journal(self) -> Any:
        return self.clients[0].journal._journal

    def client(self) -> Client:
        return self.random.choice(self.clients)

    def pick(self) -> tuple[str, Talk, Line]:
        """A thread, more often one of an open session."""
        id = self.random.choice(list(self.talks))
        talk = self.talks[id]
        if talk.status == "closed" and self.random.random() < 0.7:
            id = self.random.choice(list(self.talks))
            talk = self.talks[id]
        return id, talk, self.random.choice(list(talk.lines.values()))

    def session(self, id: str, thread: str, client: Client | None = None) -> Session:
        hf = (client or self.client()).hf
        return Session(hf.env, id, thread)

    def word(self, *, long: bool = False) -> str:
        self.words += 1
        return f"w{self.words}" + (" and so on" * self.random.randint(1, 12) if long else "")

    def note(self, what: str) -> None:
        self.log.append(f"{self.steps:5} {what}")

    def attempt(self, what: str, refused: Collection[str], act: Callable[[], Any]) -> Any:
        """Do it: it is refused exactly if the model says so, with one of these errors, and then writes nothing."""
        self.note(what if not refused else f"{what} (to be refused)")
        before = self.journal.position()
        if self.random.random() < 0.05:
            self.fault()
        error: HoldfastError | None = None
        result = None
        try:
            result = act()
        except HoldfastError as raised:
            error = raised
        for client in self.clients:
            client.journal.times = 0
        if error is None:
            assert not refused, f"{what} was done, and should be refused with {sorted(refused)}"
        else:
            assert type(error).__name__ in refused, f"{what} was refused: {type(error).__name__}: {error}"
            assert self.journal.position() == before, f"{what} was refused and wrote something all the same"
        return result

    def fault(self) -> None:
        """The next commit of each client seems to fail once, which nobody may notice."""
        for client in self.clients:
            client.journal.times, client.journal.after = 1, self.random.random() < 0.5
        self.log.append("      (a commit seems to fail)")

    # one step, and the whole way

    def step(self, operations: Callable[[Walk], Callable[[Walk], None]], look: Any) -> None:
        self.steps += 1
        operations(self)(self)
        if self.steps % FULL_LOOK == 0:
            self.look(look)

    def look(self, look: Any) -> None:
        for client in self.clients:
            for id, talk in self.talks.items():
                look.at_talk(self, client, id, talk)
                for line in talk.lines.values():
                    look.at_line(self, id, line, client)

    def finish(self, look: Any) -> None:
        self.look(look)
        assert sorted(map(repr, self.engine.taken.values())) == sorted(map(repr, self.handed))
        hf = self.clients[0].hf
        assert hf.journal.verify().findings == ()
        rebuild_alone(self.journal)
        for client in self.clients:
            client.hf.env.states.clear()
        self.look(look)

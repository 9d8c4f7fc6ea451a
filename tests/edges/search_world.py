"""What searches must find, in plain dicts and lists: several tenants, scopes and sessions, over two clients.

An entry is live from its write until it is deleted, overwritten, erased or over; a message as long as it is part of a
line. The model knows nothing of events, indexes or vectors.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import msgspec

from holdfast import Holdfast, Message, Session, Settings, State
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.effects import OperatorOutput, WriteState
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.journal.sqlite import SqliteJournal
from tests.edges.tenant_actor import WORDS, SteadyIds, by_words, count_fours, shorter
from tests.model.frames_walk import StillClock

TENANTS = ("acme", "globex")
SCOPES = ("user/ann", "user/42", "global", "session/s", "session/s/thread/main", "custom/notes/id/x")
KEYS = ("k1", "k2", "amber", "birch/cobalt")
USERS = (None, "ann", "bob")

Place = tuple[str, str]
"""Tenant and scope, or tenant and session."""


class Kept(msgspec.Struct):
    """An entry of the model."""

    value: Any
    owner: str | None
    expires: float = float("inf")
    lifetime: str | None = None


class Said(msgspec.Struct):
    """A message of the model, with the line that it was said in."""

    text: str
    owner: str | None
    line: tuple[str, str, str]


class World:
    """The model, the clients, and chance."""

    def __init__(self, seed: int, folder: Path | None, *, meaning: bool) -> None:
        self.random = random.Random(seed)
        self.clock = StillClock()
        ids, shared = SteadyIds(self.clock, seed), MemoryJournal() if folder is None else None
        beside = ClientExtensions(tokenizer=count_fours, summarizer=shorter, embedder=by_words if meaning else None)
        self.clients = [
            Holdfast(
                assemble_env(
                    shared or SqliteJournal((folder or Path()) / "a.db", durability="fast"),
                    Settings(cached_vectors=self.random.choice((0, 5, 10_000))),
                    self.clock,
                    ids,
                    beside,
                )
            )
            for _ in range(2)
        ]
        self.entries: dict[Place, dict[str, Kept]] = {}
        self.over: dict[tuple[int, Place], dict[str, float]] = {}
        """When transient entries are over, by client."""
        self.lines: dict[Place, dict[str, list[str]]] = {}
        self.closed: set[Place] = set()
        self.said: dict[tuple[str, str], Said] = {}
        self.count = 0

    def close(self) -> None:
        for client in self.clients:
            client.close()

    # what to do it with

    def one(self, pool: Any) -> Any:
        return self.random.choice(list(pool))

    def text(self) -> str:
        """Some words of the few there are, and a number that no other text has."""
        self.count += 1
        return " ".join([*(self.one(WORDS) for _ in range(self.random.randint(0, 3))), f"n{self.count}"])

    def number(self) -> int:
        """One of the clients."""
        return self.random.randrange(len(self.clients))

    def view(self, client: int, tenant: str, user: str | None = None) -> Holdfast:
        found = self.clients[client].tenant(tenant)
        return found if user is None else found.as_user(user)

    def state(self, client: int, place: Place, user: str | None = None) -> State:
        return self.view(client, place[0], user).state(place[1])

    def session(self, client: int, place: Place, thread: str, user: str | None = None) -> Session:
        return self.view(client, place[0], user).session(place[1], thread=thread)

    # what is live

    def live(self, place: Place) -> dict[str, Any]:
        """The values of a scope."""
        now = self.clock.now_ms()
        return {key: kept.value for key, kept in self.entries.get(place, {}).items() if kept.expires > now}

    def hidden(self, client: int, place: Place) -> set[str]:
        """Keys that a transient entry lies over, for one client."""
        now = self.clock.now_ms()
        return {key for key, until in self.over.get((client, place), {}).items() if until > now}

    def texts(self, tenant: str, ids: list[str]) -> dict[str, str]:
        """What messages say, as far as they were not erased."""
        return {id: self.said[tenant, id].text for id in ids if (tenant, id) in self.said}

    def standing(self, tenant: str) -> dict[str, str]:
        """Messages that are part of the line that they were said in."""
        found: dict[str, str] = {}
        for (owner, session), lines in self.lines.items():
            for thread, ids in lines.items() if owner == tenant else ():
                own = [
                    id for id in ids if (known := self.said.get((tenant, id))) and known.line[1:] == (session, thread)
                ]
                found |= self.texts(tenant, own)
        return found

    def shared(self, tenant: str) -> dict[str, str]:
        """Messages that are part of any line."""
        found: dict[str, str] = {}
        for (owner, _), lines in self.lines.items():
            for ids in lines.values() if owner == tenant else ():
                found |= self.texts(tenant, ids)
        return found

    # writing to both

    def keep(self, client: int, place: Place, key: str, kept: Kept) -> None:
        """What is written for good takes the place of what was written for a moment, in the client that writes it."""
        self.entries.setdefault(place, {})[key] = kept
        self.over.get((client, place), {}).pop(key, None)

    def note(self, place: Place, thread: str, message: Message, text: str, owner: str | None) -> None:
        self.said[place[0], message.id] = Said(text, owner, (*place, thread))
        self.lines[place][thread].append(message.id)

    def end(self, place: Place, *, reset: bool) -> None:
        """A session ends: its entries go, and with a reset its messages."""
        for (tenant, scope), kept in self.entries.items():
            if tenant == place[0] and f"{scope}/".startswith(f"session/{place[1]}/"):
                for key in [key for key, entry in kept.items() if entry.lifetime == "session"]:
                    del kept[key]
        if reset:
            self.lines[place] = {thread: [] for thread in self.lines[place]}
            self.closed.discard(place)
        else:
            self.closed.add(place)

    def erase(self, tenant: str, owner: str) -> None:
        for (whose, _), entries in self.entries.items():
            for key in [key for key, kept in entries.items() if whose == tenant and kept.owner == owner]:
                del entries[key]
        for place in [place for place, said in self.said.items() if place[0] == tenant and said.owner == owner]:
            del self.said[place]


def written(place: Place, key: str, text: str, options: dict[str, Any]) -> OperatorOutput:
    """A write as an operator declares it."""
    return OperatorOutput(None, [WriteState(place[1], key, text, **options)])

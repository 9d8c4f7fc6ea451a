"""Two clients of one journal for short stories of frames."""

from __future__ import annotations

from holdfast.client.holdfast import Holdfast
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.model.frames_walk import Client

A, B = "actor/a", "actor/b"


class World:
    """Two clients on one journal, with time in hand."""

    def __init__(self) -> None:
        self.clock = FrozenClock()
        ids, journal = SeededIds(self.clock), MemoryJournal()
        self.clients = [Client(number, journal, self.clock, ids, 1000) for number in (1, 2)]
        self.hf: Holdfast = self.clients[0].hf
        self.index, self.other = (client.index for client in self.clients)

"""Two clients of one journal for short stories of sessions."""

from __future__ import annotations

from typing import Any

from holdfast.client.holdfast import Holdfast
from holdfast.client.session import Session
from holdfast.connect import ClientExtensions, assemble_env
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.records.settings import Settings
from holdfast.testing.clock import FrozenClock, SeededIds
from tests.model.sessions_walk import Engine, count_fours


class World:
    """Two clients on one journal, each with a memory of its own of how things stand, and time in hand."""

    def __init__(self) -> None:
        self.clock, self.engine = FrozenClock(), Engine()
        journal, ids = MemoryJournal(), SeededIds(self.clock)
        beside = ClientExtensions(tokenizer=count_fours, memory=self.engine)
        self.hf, self.other = (Holdfast(assemble_env(journal, Settings(), self.clock, ids, beside)) for _ in range(2))


def texts(session: Session) -> list[str]:
    return [message.text for message in session.messages()]


def asks(*provider: str) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "look_up", "arguments": "{}"}} for id in provider]
    return {"role": "assistant", "content": "a moment", "tool_calls": calls}

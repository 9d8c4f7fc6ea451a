"""Several threads of one process hand one conversation over once."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import holdfast
from holdfast.types import EndedConversation


class Slow:
    """A memory that takes its time, so that others come meanwhile."""

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.inside, self.go_on = threading.Event(), threading.Event()

    def take(self, ended: EndedConversation) -> None:
        self.taken.append(ended.key)
        self.inside.set()
        assert self.go_on.wait(10)


def test_while_one_thread_offers_a_conversation_no_other_does(tmp_path: Path) -> None:
    memory = Slow()
    with holdfast.open(tmp_path / "a.db", memory=memory) as hf:
        chat = hf.session("alice")
        chat.append("hello")
        closing = threading.Thread(target=chat.close)
        closing.start()
        assert memory.inside.wait(10)
        assert chat.details.status == "closing"
        assert hf.sweep_sessions().handed_over == 0
        memory.go_on.set()
        closing.join()
        assert len(memory.taken) == 1
        assert chat.details.status == "closed"


def test_a_memory_that_must_be_awaited_is_refused_where_nobody_awaits(tmp_path: Path) -> None:
    class Awaited:
        async def take(self, ended: EndedConversation) -> None: ...

    for wrong in (Awaited(), "memory", object()):
        with pytest.raises(holdfast.errors.InvalidValue, match="memory must have"):
            holdfast.open(tmp_path / "a.db", memory=wrong)
    assert not (tmp_path / "a.db").exists()

"""Memories for a pack are searched while nothing of the journal is held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Holdfast
from holdfast.flow.packs import evidence, visibility
from holdfast.flow.packs import pack as pack_flow
from holdfast.flow.packs.visibility import PackRequest
from holdfast.records.frames import Limits
from tests.packs.reserved import remember

WIDE = Limits(context_tokens=50_000)


class Watched:
    """A journal that knows whether somebody holds it."""

    def __init__(self, journal: Any) -> None:
        self._journal, self.held = journal, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._journal, name)

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        self.held += 1
        try:
            with self._journal.snapshot():
                yield
        finally:
            self.held -= 1


class Far:
    """An embedder that notes how the journal was when it was asked."""

    name, dimensions = "far", 4

    def __init__(self) -> None:
        self.watched: Any = None
        self.held: list[int] = []

    def embed(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        if query and self.watched is not None:
            self.held.append(self.watched.held)
        return [bytes((90, 60, 40, 30)) for _ in texts]


@pytest.fixture(params=["memory", "sqlite"])
def far(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Holdfast, Far]]:
    embedder = Far()
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, embedder=embedder, durability="fast") as client:
        embedder.watched = Watched(client.env.journal)
        yield Holdfast(replace(client.env, journal=embedder.watched), owner=False), embedder


def known(hf: Holdfast) -> None:
    remember(hf, "session/s", "x", {"text": "The garage code is 4471.", "trust": "user"})
    hf.session("s").append(["What is the garage code?", {"role": "assistant", "content": "I will look."}])


def recalled(pack: holdfast.ContextPack) -> list[str]:
    return [one.text.splitlines()[-2] for one in pack.segments if one.kind == "memory"]


def test_memories_are_searched_while_nothing_is_held(far: tuple[Holdfast, Far]) -> None:
    hf, embedder = far
    known(hf)
    assert recalled(hf.session("s").pack(recall=2)) == ["The garage code is 4471."]
    with hf.frame("Work", session="s", limits=WIDE) as frame, frame.frame("Below", limits=WIDE) as child:
        assert recalled(frame.pack(9_000, recall=2)) == ["The garage code is 4471."]
        assert recalled(child.pack(9_000, recall=2)) == []
        assert recalled(child.pack(9_000, recall=2, query="garage code")) == ["The garage code is 4471."]
    assert embedder.held == [0, 0, 0]


def test_a_search_that_holds_the_journal_is_noticed(far: tuple[Holdfast, Far], monkeypatch: pytest.MonkeyPatch) -> None:
    hf, embedder = far
    known(hf)
    search = evidence.gather_evidence

    def held(env: Any, *given: Any) -> Any:
        with env.journal.snapshot():
            return search(env, *given)

    monkeypatch.setattr(evidence, "gather_evidence", held)
    hf.session("s").pack(recall=2)
    assert embedder.held == [1]


def test_a_session_that_is_not_there_is_refused_as_such(far: tuple[Holdfast, Far]) -> None:
    hf, _ = far
    seen, asked = visibility.thread_visibility("session/nobody/thread/main"), PackRequest(recall=2)
    with pytest.raises(holdfast.errors.SessionNotFound):
        pack_flow.build_pack(hf.env, seen, asked)

"""What is found and recalled as of a moment is what was then, though much was retracted before or since."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Session
from holdfast.core.search.documents import TextSearch
from holdfast.core.search.words import query_terms
from holdfast.journal.memory import journal as memory_journal
from holdfast.ports.journal import Journal
from tests.scale import seeded, volume

WORDS = ("nuts", "refund", "order", "parcel", "Hull", "seven", "late", "blue")
QUERY = "nuts refund"


@pytest.fixture(params=("memory", "sqlite"))
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, durability="fast") as client:
        yield client


def said(rng: random.Random) -> str:
    """Short things are found with what was said before them, so most are short."""
    return " ".join(rng.choices(WORDS, k=rng.choice((1, 2, 3, 8, 60))))


def lived(hf: Holdfast, rng: random.Random) -> Session:
    """A conversation that was rewound, compacted into memory, and rewound again."""
    chat = hf.session(f"s{rng.randrange(10**6)}", model="gpt-4o")
    for _ in range(rng.randint(2, 4)):
        chat.append([said(rng) for _ in range(rng.randint(2, 6))])
        if rng.random() < 0.8:
            chat.rewind(to=rng.choice(chat.messages(4)))
            chat.append([said(rng) for _ in range(rng.randint(2, 4))])
        chat.compact(keep=1, store=True)
    chat.append(QUERY)
    return chat


def hits(journal: Journal, tenant: str) -> list[tuple[int, float]]:
    """Everything that a search finds, with its score."""
    found = journal.search(tenant, TextSearch(terms=query_terms(QUERY), now=0, limit=500))
    return sorted((hit.event.seq, round(hit.score, 9)) for hit in found)


def differences(hf: Holdfast, name: str, worlds: int) -> Iterator[str]:
    """What is found or recalled otherwise when the same moment is looked at later."""
    rng = seeded(name)
    env: Any = hf.env
    for _ in range(worlds):
        chat = lived(hf, rng)
        pack, scores = chat.pack(3_000, recall=3, query=QUERY), hits(env.journal, hf.env.tenant)
        chat.rewind(to=chat.messages(3)[0])
        chat.append("Never mind.")
        cursor = pack.metadata.log_seq
        if hits(env.past(env, cursor).journal, hf.env.tenant) != scores:
            yield f"scores at {cursor}"
        if chat.pack(3_000, recall=3, query=QUERY, as_of=cursor).digest != pack.digest:
            yield f"a pack at {cursor}"


def test_what_was_found_and_recalled_is_so_again_as_of_then(hf: Holdfast) -> None:
    assert list(differences(hf, "recalled", volume(6, 60))) == []


def test_a_retraction_that_came_later_is_not_seen_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_journal, "_was_in_thread", lambda retracted, at: retracted is None)
    with holdfast.open("memory:") as client:
        assert next(differences(client, "planted", 60), None) is not None

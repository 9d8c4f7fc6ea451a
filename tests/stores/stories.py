"""What is done to any store and compared with the one in memory, whose versions differ and nothing else."""

from __future__ import annotations

import random
from typing import Any

from msgspec.structs import replace

from holdfast.records.entries import EntryPageQuery, StoredEntry
from holdfast.store.memory import MemoryStore

SCOPES = ("user/1", "user/11", "session/%2E")
LETTERS = ("a", "b", "B", "é", "z", "%", "_", "/", "\ud7ff", "\ue000", "\uffff", "😀", "\U0010ffff", "*", "[", "(")
NOW = 1_000


def entry(value: bytes = b"1", **options: Any) -> StoredEntry:
    """An entry written at time 0."""
    return StoredEntry(value=value, **options)


def keys_of(store: Any, scope: str, **options: Any) -> list[str]:
    """The keys of one page."""
    return [key for key, _ in store.page(scope, EntryPageQuery(**{"now": NOW, **options}))]


def same_as_memory(store: Any, rng: random.Random, steps: int) -> None:
    """Random writes, deletions and pages, and the same verdicts throughout."""
    model = MemoryStore()
    given: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for _ in range(steps):
        scope, key = rng.choice(SCOPES), _key(rng)
        known = given.setdefault((scope, key), [(0, 0)])
        expected = rng.choice([(None, None), (None, None), known[-1], rng.choice(known)])
        if rng.random() < 0.7:
            new = _entry(rng)
            versions = store.put(scope, key, new, expected[0]), model.put(scope, key, new, expected[1])
            assert (versions[0] is None) == (versions[1] is None), "the same verdict on the expected version"
            if versions[0] is not None and versions[1] is not None:
                assert versions[0] > max(version for version, _ in known), "a version is never given twice"
                known.append((versions[0], versions[1]))
        else:
            assert store.drop(scope, key, expected[0]) == model.drop(scope, key, expected[1])
        page = _page(rng)
        assert _shown(store.page(scope, page)) == _shown(model.page(scope, page)), page
    for scope, key in given:
        assert _plain(store.get(scope, key)) == _plain(model.get(scope, key))


def _key(rng: random.Random) -> str:
    return "".join(rng.choices(LETTERS, k=rng.randint(1, 3)))


def _entry(rng: random.Random) -> StoredEntry:
    return entry(
        rng.choice([b"null", b'"\\u0000"', b'{"a":[1.5,"\xc3\xa9"]}', b"[" + b"1," * 50 + b"1]"]),
        written_at=rng.randint(0, 5),
        expires_at=rng.choice([None, None, NOW - 1, NOW, NOW + 1]),
        lifetime=rng.choice([None, "session", "durable"]),
        tier=rng.choice([None, "hot"]),
        salience=rng.choice([None, 0.0, 0.25]),
        schema=rng.choice([None, "prefs@2"]),
        words=rng.choice([None, "some words"]),
        applied=rng.choice([(), ("01", "02")]),
    )


def _page(rng: random.Random) -> EntryPageQuery:
    return EntryPageQuery(
        now=NOW,
        prefix=rng.choice(["", "", _key(rng)[:1], _key(rng)]),
        after=rng.choice([None, None, _key(rng)]),
        limit=rng.choice([1, 2, 5, 1_000]),
        lifetime=rng.choice([None, None, "session"]),
    )


def _shown(page: list[tuple[str, StoredEntry]]) -> list[tuple[str, StoredEntry | None]]:
    return [(key, _plain(found)) for key, found in page]


def _plain(found: StoredEntry | None) -> StoredEntry | None:
    return None if found is None else replace(found, version=0)


def count_up(store: Any, times: int, key: str = "n") -> None:
    """Add one so many times, each by reading and writing if nothing changed meanwhile."""
    for _ in range(times):
        while True:
            known = store.get("user/1", key)
            value, version = (0, 0) if known is None else (int(known.value), known.version)
            if store.put("user/1", key, entry(str(value + 1).encode()), version) is not None:
                break


def counted(store: Any, key: str = "n") -> int:
    """How far it was counted."""
    return int(store.get("user/1", key).value)

"""Entries whose time is over are purged, in pages and by tenant, and neither come back nor pile up."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from holdfast.client.state import open_store
from holdfast.flow.state import journal_store
from holdfast.records.entries import StoredEntry
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract.fixtures import SCOPE, store_backend


def test_the_journal_notes_what_it_purged_and_keeps_what_was_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FrozenClock()
    with holdfast.open("memory:", clock=clock) as hf:
        one, other = hf.state(SCOPE), hf.state("user/43")
        for state in (one, other):
            state.write("a", 1, ttl=1)
            state.write("b", 1, ttl=1)
        clock.advance(1_000)
        journal = store_backend(hf.state)._env.journal  # type: ignore[attr-defined]
        late = journal.find_expired("default", clock.now_ms(), 10)
        one.write("a", "anew")
        answers = [late, []]
        with monkeypatch.context() as patch:
            patch.setattr(type(journal), "find_expired", lambda *given: answers.pop(0))
            assert hf.state.purge() == 3
        assert one.read("a") == "anew"
        assert [(revision.deleted, revision.cause) for revision in one.history("b")] == [
            (True, "expiry"),
            (False, "call"),
        ]
        assert hf.state.purge() == 0
        hf.journal.rebuild()
        assert one.list() == ["a"]
        assert other.list() == []
        assert hf.journal.verify().ok


def test_purging_goes_on_over_pages_and_over_what_was_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_store, "PURGE_BATCH", 4)
    clock = FrozenClock()
    with holdfast.open("memory:", clock=clock) as hf:
        hf.as_user("ann").state("global").write("hers", "secret", ttl=1)
        for number in range(18):
            hf.state(f"user/{number % 3}").write(f"k{number}", number, ttl=1)
        hf.journal.erase("ann")
        clock.advance(1_000)
        assert hf.state.purge() == 19
        assert hf.state.purge() == 0


def test_a_tenant_purges_its_own(tmp_path: Path) -> None:
    clock = FrozenClock()
    with holdfast.open(tmp_path / "a.db", clock=clock) as hf:
        tenants = [hf.tenant(name) for name in ("acme", "other")]
        for each in tenants:
            each.state(SCOPE).write("k", 1, ttl=1)
        clock.advance(1_000)
        assert [each.state.purge() for each in (tenants[0], tenants[0], tenants[1])] == [1, 0, 1]


def test_a_cache_in_memory_does_not_grow_with_what_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def left(store: MemoryStore) -> tuple[int, int]:
        for now in range(1, 2_000):
            store.put("global", f"k{now}", StoredEntry(value=b"1", written_at=now, expires_at=now + 10))
            store.put("global", "same", StoredEntry(value=b"1", written_at=now, expires_at=10**9 + now))
        return len(store._entries), len(store._dates)

    entries, dates = left(MemoryStore())
    assert entries <= 14
    assert dates <= 2 * entries + 65
    monkeypatch.setattr(MemoryStore, "_purge", lambda *given: 0)
    assert left(MemoryStore())[0] == 2_000


def test_an_older_copy_of_what_is_over_does_not_come_back(tmp_path: Path) -> None:
    clock = FrozenClock()
    with open_store(f"fs:///{tmp_path}/fs", clock=clock) as store:
        store("operator/o").write("k", "old")
        old = tmp_path / "fs/operator/o/k.json"
        kept = old.read_bytes()
        store("operator/o").write("k", "new", ttl=1)
        copy = tmp_path / "fs/agent/o/k.json"
        copy.parent.mkdir(parents=True)
        copy.write_bytes(kept)
        (tmp_path / "fs/user/42").mkdir(parents=True)
        (tmp_path / "fs/user/42/broken.json").write_text("{")
        (tmp_path / "fs/notes.txt").write_text("of somebody else")
        clock.advance(1_000)
        assert store.purge() == 1
        assert store("operator/o").read("k") is None
        assert not copy.exists()
        assert (tmp_path / "fs/user/42/broken.json").exists()

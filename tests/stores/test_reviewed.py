"""What reducers keep, what deletions remember, and what is over: each was once otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_overloads, get_type_hints

import pytest

import holdfast
from holdfast.client.state import open_store
from holdfast.errors import Corrupt, HoldfastError, InvalidValue, KeyReused, Unavailable
from holdfast.flow.sessions import sessions as sessions_flow
from holdfast.flow.state import journal_store
from holdfast.records.entries import Direction, Lifetime, Reducer, StoredEntry, Tier
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract.fixtures import SCOPE, ToyEmbedder, run_in_threads, store_backend

# what reducers keep


def test_a_transient_reducer_keeps_on_too() -> None:
    clock = FrozenClock()
    with open_store("memory:", clock=clock) as store:
        state = store(SCOPE)
        state.write("n", 1, tier="hot", ttl=5)
        state.write("n", 1, reducer="sum", lifetime="transient")
        over = state.entry("n")
        assert over is not None
        assert (over.value, over.lifetime, over.tier) == (2, "transient", "hot")
        state.write("n", 1, reducer="sum")
        below = state.entry("n")
        assert below is not None
        assert (below.value, below.lifetime, below.expires_at) == (2, None, clock.now_ms() + 5_000)


def test_an_effect_with_a_reducer_keeps_what_it_does_not_say() -> None:
    with holdfast.open("memory:") as hf:
        hf.state(SCOPE).write("n", 1, tier="hot", salience=0.5)
        effect = holdfast.effects.WriteState(SCOPE, "n", 1, reducer="sum")
        hf.effects.operate(lambda given, view: holdfast.effects.OperatorOutput(effects=[effect]), name="o")
        entry = hf.state(SCOPE).entry("n")
        assert entry is not None
        assert (entry.value, entry.tier, entry.salience) == (2, "hot", 0.5)


# deletions


def test_a_damaged_file_can_be_deleted_as_its_error_says(tmp_path: Path) -> None:
    with open_store(f"fs:///{tmp_path}/fs") as store:
        state = store(SCOPE)
        state.write("a", 1)
        damaged = tmp_path / "fs/user/42/todo.md"
        damaged.write_text("# buy milk\n")
        with pytest.raises(Corrupt, match="delete the entry"):
            state.list()
        with pytest.raises(Corrupt):
            state.delete("todo", expected_version=1)
        assert damaged.exists()
        assert state.delete("todo")
        assert not state.delete("todo")
        assert state.list() == ["a"]


def test_one_key_is_one_deletion_whoever_is_first() -> None:
    with holdfast.open("memory:") as hf:
        state = hf.state(SCOPE)
        answers: list[bool] = []
        run_in_threads(4, lambda number: answers.append(state.delete("k", key="once")))
        assert answers == [False] * 4
        assert hf.journal.version(SCOPE) == 1
        with pytest.raises(KeyReused):
            state.delete("other", key="once")
        assert hf.journal.verify().ok
        hf.journal.rebuild()
        assert state.history("k") == []


def test_a_deletion_without_a_key_that_finds_nothing_writes_nothing() -> None:
    with holdfast.open("memory:") as hf:
        assert not hf.state(SCOPE).delete("k")
        assert not hf.state(SCOPE).delete("k", expected_version=0)
        assert hf.journal.version(SCOPE) == 0


def test_a_session_ends_with_more_entries_than_a_page_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_flow, "MAX_PAGE", 7)
    with holdfast.open("memory:") as hf:
        session = hf.session("s")
        for number in range(23):
            hf.state("session/s").write(f"k{number}", number, lifetime="session")
        hf.state("session/s").write("kept", 1)
        session.close()
        assert hf.state("session/s").list() == ["kept"]


# embedders that fail


class Failing(ToyEmbedder):
    error: HoldfastError | None = None

    def embed(self, texts: Any, *, query: bool = False) -> list[bytes]:
        if self.error is not None:
            raise self.error
        return super().embed(texts, query=query)


@pytest.mark.parametrize("error", [Unavailable("The endpoint is dead."), InvalidValue("Vectors of another length.")])
def test_an_embedder_that_fails_leaves_the_words(tmp_path: Path, error: HoldfastError) -> None:
    embedder = Failing()
    with open_store(f"sqlite:///{tmp_path}/a.db", embedder=embedder) as store:
        state = store(SCOPE)
        state.write("first", "a physician")
        embedder.error = error
        state.write("second", "a doctor and a nurse")
        kept = store_backend(store).get(SCOPE, "second")
        assert kept is not None
        assert (kept.vector, kept.embedder) == (None, None)
        assert [found.key for found in state.search("doctor")] == ["second"]
        embedder.error = None
        state.write("second", "a doctor and a nurse")
        assert {found.key for found in state.search("doctor")} == {"first", "second"}
    with holdfast.open("memory:", embedder=embedder) as hf:
        hf.state(SCOPE).write("k", "a doctor")
        embedder.error = error
        assert [found.key for found in hf.state(SCOPE).search("doctor")] == ["k"]


# what is over


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


# types


@pytest.mark.parametrize("kind", [holdfast.State, holdfast.AsyncState])
def test_what_may_be_said_is_said_in_the_types(kind: Any) -> None:
    written, walked = get_type_hints(kind.write), get_type_hints(kind.traverse)
    assert (written["reducer"], written["tier"], written["lifetime"]) == (Reducer, Tier | None, Lifetime | None)
    assert walked["direction"] == get_type_hints(kind.neighbours)["direction"] == Direction
    read = [str(get_type_hints(one)["return"]) for one in get_overloads(kind.read)]
    assert read == ["typing.Optional[~T]", "typing.Union[~T, ~D]", "typing.Any"]

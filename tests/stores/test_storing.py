"""The rules above every store: pages behind a list, retries, what lies over, and what an embedder is asked."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.client.state import State, StateStore, open_store
from holdfast.errors import (
    Conflict,
    HoldfastError,
    InvalidValue,
    TooLarge,
    Unavailable,
    VersionConflict,
)
from holdfast.flow.state.store import Storage, TransientEntries
from holdfast.records.entries import EntryPageQuery, StoredEntry
from holdfast.records.settings import Settings
from holdfast.store.memory import MemoryStore
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract.fixtures import SCOPE, ToyEmbedder, run_in_threads, store_backend
from tests.scale import seeded, volume


def over(store: MemoryStore, **parts: Any) -> StateStore:
    settings = Settings()
    known = {"clock": FrozenClock(), "settings": settings, "transients": TransientEntries(3), "tenant": "default"}
    return StateStore(Storage(store=store, **(known | parts)))


def test_a_list_goes_on_until_nothing_is_left() -> None:
    state = open_store("memory:")(SCOPE)
    keys = [f"k{number:04}" for number in range(600)]
    for key in keys:
        state.write(key, 1)
    assert state.list() == keys
    for limit in (255, 256, 257, 512, 599, 600, 10_000):
        assert state.list(limit=limit) == keys[:limit]
    assert state.list("k05", after="k0510") == keys[511:600]


def test_a_list_reads_no_more_than_it_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    state = open_store("memory:")(SCOPE)
    for number in range(300):
        state.write(f"k{number:03}", 1)
    given: list[int] = []
    original = MemoryStore.page

    def page(self: MemoryStore, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        found = original(self, scope, page)
        given.append(len(found))
        return found

    monkeypatch.setattr(MemoryStore, "page", page)
    assert len(state.list(limit=3)) == 3
    assert given == [3]


class AlwaysLate(MemoryStore):
    """Somebody else is always first."""

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> Any:
        return None if expected is not None else super().put(scope, key, entry)


def test_whoever_never_gets_a_turn_is_told_and_has_written_nothing() -> None:
    state = over(AlwaysLate())(SCOPE)
    with pytest.raises(Conflict, match="try again"):
        state.write("k", 1, reducer="sum")
    assert state.list() == []


class WrittenMeanwhile(MemoryStore):
    """Between a page and what follows from it, another writer turns an entry into a durable one."""

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        found = super().page(scope, page)
        if page.lifetime == "session":
            self.put(scope, "b", StoredEntry(value=b'"kept"', lifetime="durable"))
        return found


def test_the_end_of_a_session_leaves_what_was_written_anew_meanwhile() -> None:
    store = over(WrittenMeanwhile())
    for key in "abc":
        store("s").write(key, 1, lifetime="session")
    assert store.end_session("s") == 2
    assert [(entry.key, entry.value) for entry in store("s").entries()] == [("b", "kept")]


def test_a_store_that_forgets_keeps_what_was_used_last() -> None:
    state = open_store("memory:", most=3, search=True)(SCOPE)
    first = [state.write(key, f"word{key}") for key in "abc"]
    state.read("a")
    fourth = state.write("d", "wordd")
    assert state.list() == ["a", "c", "d"]
    assert state.read("b") is None
    assert state.search("wordb") == []
    assert [result.key for result in state.search("worda")] == ["a"]
    assert state.write("b", 1, expected_version=0) > fourth > max(first)
    assert state.list() == ["a", "b", "d"] or state.list() == ["b", "c", "d"]
    assert len(state.list()) == 3


def test_a_store_that_forgets_is_like_a_plain_one_that_does_not_forget_too_much() -> None:
    random = seeded("forgetting")
    for _ in range(volume(20, 500)):
        most = random.randrange(1, 6)
        store = open_store("memory:", most=most)
        order: list[tuple[str, str]] = []
        held: dict[tuple[str, str], int] = {}
        for step in range(40):
            place = (random.choice(("user/1", "user/2")), random.choice("abcd"))
            state, act = store(place[0]), random.randrange(4)
            if act < 2:
                state.write(place[1], step)
                held[place] = step
            elif act == 2:
                assert state.read(place[1]) == held.get(place)
            else:
                assert state.delete(place[1]) == (held.pop(place, None) is not None)
            order = [known for known in order if known != place and known in held] + [place] * (place in held)
            while len(order) > most:
                held.pop(order.pop(0))
            assert {(scope, key) for scope in ("user/1", "user/2") for key in store(scope).list()} == set(held)


class Watched(ToyEmbedder):
    """Notes what it was asked, and may be out of order."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.broken = False

    def embed(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        if self.broken:
            raise Unavailable("The model is away.")
        self.asked += texts
        return super().embed(texts, query=query)


class WithVectors(MemoryStore):
    @property
    def capabilities(self) -> frozenset[str]:
        return super().capabilities | {"vectors"}


def test_an_embedder_is_given_text_that_is_unicode_and_has_an_end() -> None:
    embedder = Watched()
    state = over(WithVectors(search=True), embedder=embedder)(SCOPE)
    state.write("k", "needle")
    for query in ("needle\ud800", "needle\0", "needle " * 5_000):
        assert [result.key for result in state.search(query)] == ["k"]
    for text in embedder.asked:
        assert len(text) <= 10_000
        text.encode()
    state.write("long", "needle " * 10_000)
    assert len(embedder.asked[-1]) < 21_000


def test_without_its_embedder_a_search_has_the_words() -> None:
    embedder = Watched()
    state = over(WithVectors(search=True), embedder=embedder)(SCOPE)
    state.write("k", "needle")
    embedder.broken = True
    assert [result.key for result in state.search("needle")] == ["k"]
    state.write("k", "other")
    assert [result.key for result in state.search("other")] == ["k"]


def test_transient_entries_are_counted_for_each_tenant_and_leave_nothing_behind() -> None:
    random = seeded("transients")
    for _ in range(volume(30, 1_000)):
        kept, now = TransientEntries(4), 0
        model: dict[tuple[tuple[str, str], str], StoredEntry] = {}
        for step in range(40):
            place, key, act = (random.choice("tu"), random.choice("xy")), random.choice("abc"), random.randrange(5)
            now += random.randrange(2)
            if act < 3:
                ends = None if random.random() < 0.5 else now + random.randrange(1, 4)
                _lay(kept, model, place, key, StoredEntry(value=b"%d" % step, written_at=now, expires_at=ends))
            elif act == 3:
                assert kept.drop(place, key) == (model.pop((place, key), None) is not None)
            else:
                gone = [name for name in model if name[0] == place]
                assert kept.clear(place) == len(gone)
                for name in gone:
                    del model[name]
            live = {key: one for (where, key), one in model.items() if where == place and one.is_live(now)}
            assert dict(kept.live_entries(place, now)) == live
            assert kept.get(place, key, now) == live.get(key)
        for place, key in list(model):
            assert kept.drop(place, key)
        assert not kept.kept
        assert not kept._counts


def _lay(
    kept: TransientEntries, model: dict[Any, StoredEntry], place: tuple[str, str], key: str, entry: StoredEntry
) -> None:
    """Lay an entry over a key, as the model allows: four of a tenant, of which those go first whose time is over."""
    before, theirs = kept.at(place, key), [name for name in model if name[0][0] == place[0]]
    if before is None and len(theirs) >= 4:
        for name in [name for name in theirs if not model[name].is_live(entry.written_at)]:
            del model[name]
        if all(name in model for name in theirs):
            with pytest.raises(TooLarge):
                kept.put(place, key, entry, before)
            return
    assert kept.put(place, key, entry, before)
    assert not kept.put(place, key, entry, before)
    model[place, key] = entry


def test_options_are_looked_at_before_anything_is_embedded_or_asked() -> None:
    embedder = Watched()
    store = over(WithVectors(search=True), embedder=embedder)
    store_backend(store).close()
    for call in (
        lambda state: state.write("k", {1}),
        lambda state: state.write("k", 1, ttl=-1),
        lambda state: state.write("k", 1, reducer="product"),
        lambda state: state.write("", 1),
        lambda state: state.read("\0"),
        lambda state: state.list(limit=0),
        lambda state: state.search("x", limit=0),
        lambda state: state.traverse("a", depth=0),
        lambda state: state.link("a", "", "b"),
    ):
        with pytest.raises(InvalidValue):
            call(store(SCOPE))
    assert embedder.asked == []


def test_deleting_at_once_succeeds_once() -> None:
    store = open_store("memory:")
    for _ in range(volume(10, 200)):
        store(SCOPE).write("k", 1)
        gone: list[bool] = []
        run_in_threads(4, lambda number, gone=gone: gone.append(store(SCOPE).delete("k")))
        assert sorted(gone) == [False, False, False, True]


def test_a_deletion_that_others_overtake_is_decided_anew() -> None:
    class Overtaken(MemoryStore):
        turns = 1

        def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
            if self.turns:
                self.turns -= 1
                self.put(scope, key, StoredEntry(value=b"2"))
            return super().drop(scope, key, expected, once)

    state: State = over(Overtaken())(SCOPE)
    version = state.write("k", 1)
    with pytest.raises(VersionConflict) as refused:
        state.delete("k", expected_version=version)
    assert refused.value.actual == version + 1
    assert state.read("k") == 2


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

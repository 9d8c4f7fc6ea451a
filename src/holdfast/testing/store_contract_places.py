"""The contract of places: what outlives a process, what a closed store says, and what only some stores offer."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.client.state import State, StateStore
from holdfast.errors import Closed, InvalidValue, KeyReused, Unsupported
from holdfast.records.entries import CAPABILITIES, Reducer, Revision
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract_kit import SCOPE, OpenAt, StoreFixtures, at_once, seen


class PlaceContract(StoreFixtures):
    """Opening, closing, and the capabilities that are left."""

    def test_what_is_declared_is_known(self, store: StateStore) -> None:
        assert store.capabilities <= CAPABILITIES

    def test_a_durable_store_has_everything_when_it_is_opened_again(self, open_at: OpenAt, clock: FrozenClock) -> None:
        store = open_at()
        state = store(SCOPE)
        state.write("k", {"a": [1, None]}, tier="cold", salience=0.5, ttl=60)
        state.write("é/🙂", "needle")
        state.write("over", 1, lifetime="transient")
        gone = [state.write("gone", 1), state.write("gone", 2)][-1]
        state.delete("gone")
        if "graph" in store.capabilities:
            state.link("k", "to", "é/🙂", data=[1])
        state.clear_transient()
        before, found, capabilities = seen(state), state.search("needle"), store.capabilities
        store.close()
        again = open_at()
        assert again.capabilities == capabilities
        if "durable" not in capabilities:
            assert "shared" in capabilities or seen(again(SCOPE)) == []
            return
        assert seen(again(SCOPE)) == before
        assert again(SCOPE).search("needle") == found
        assert again(SCOPE).write("gone", 3) > gone
        if "graph" in capabilities:
            assert [(edge.target, edge.data) for edge in again(SCOPE).neighbours("k")] == [("é/🙂", [1])]

    def test_a_closed_store_says_so(self, store: StateStore, state: State) -> None:
        state.write("k", 1)
        store.close()
        store.close()
        for use in (
            lambda: state.read("k"),
            lambda: state.require("k"),
            lambda: state.entry("k"),
            state.list,
            state.entries,
            lambda: state.write("k", 2),
            lambda: state.write("k", 2, expected_version=0),
            lambda: state.write("k", 2, reducer="sum"),
            lambda: state.delete("k"),
            lambda: store.end_session("s"),
        ):
            with pytest.raises(Closed):
                use()
        if "graph" in store.capabilities:
            with pytest.raises(Closed):
                state.link("a", "to", "b")
            with pytest.raises(Closed):
                state.traverse("a")
        if "text" in store.capabilities:
            with pytest.raises(Closed):
                state.search("k")

    def test_a_block_closes_its_store(self, open_at: OpenAt) -> None:
        with open_at() as store:
            store(SCOPE).write("k", 1)
        with pytest.raises(Closed):
            store(SCOPE).read("k")

    def test_a_reader_reads_what_was_written_and_nothing_else(self, store: StateStore, state: State) -> None:
        state.write("k", 1)
        store("user/43").write("k", 2)
        reader = state.reader()
        assert (reader.read("k"), reader.require("k"), reader.list()) == (1, 1, ["k"])
        assert (reader.entry("k"), list(reader.entries())) == (state.entry("k"), seen(state))
        assert list(reader.search("k")) == list(state.search("k"))
        assert reader("user/43").read("k") == store.reader("user/43").read("k") == 2
        assert not hasattr(reader, "write")

    def test_a_key_makes_a_retry_safe(self, store: StateStore, state: State) -> None:
        if "keys" not in store.capabilities:
            state.write("k", 1)
            before = seen(state)
            for lifetime in (None, "transient"):
                with pytest.raises(Unsupported, match="key="):
                    state.write("k", 2, key="once", lifetime=lifetime)
            with pytest.raises(Unsupported, match="key="):
                state.delete("k", key="once")
            assert seen(state) == before
            return
        version = state.write("k", 1, key="once", expected_version=0)
        state.write("k", 2)
        assert state.write("k", 1, key="once", expected_version=0) == version
        assert [state.write("n", 1, reducer="sum", key="add") for _ in range(3)] == [state.entry("n").version] * 3  # type: ignore[union-attr]
        assert state.delete("k", key="away")
        state.write("k", 3)
        assert state.delete("k", key="away")
        assert [(entry.key, entry.value) for entry in seen(state)] == [("k", 3), ("n", 1)]
        assert store("user/43").write("k", 9, key="once") > 0
        assert store("user/43").read("k") == 9

    def test_a_key_that_comes_many_times_at_once_counts_once(self, store: StateStore) -> None:
        if "keys" not in store.capabilities:
            return
        given: list[int] = []
        gone: list[bool] = []
        store(SCOPE).write("k", 1)

        def call(number: int) -> None:
            given.append(store(SCOPE).write("n", 1, reducer="sum", key="add"))
            gone.append(store(SCOPE).delete("k", key="away"))

        at_once(6, call)
        assert len(set(given)) == 1
        assert gone == [True] * 6
        assert [(entry.key, entry.value) for entry in seen(store(SCOPE))] == [("n", 1)]

    def test_a_deletion_that_found_nothing_finds_nothing_again(self, store: StateStore, state: State) -> None:
        if "keys" not in store.capabilities:
            return
        assert not state.delete("k", key="once")
        state.write("k", 1)
        assert not state.delete("k", key="once")
        assert not state.delete("k", key="once", expected_version=0)
        assert state.read("k") == 1
        assert not state.delete("l", key="none", expected_version=0)
        with pytest.raises(KeyReused):
            state.write("k", 2, key="once")
        with pytest.raises(KeyReused):
            state.delete("l", key="once")
        assert state.delete("k", key="another")
        state.write("k", 3)
        assert state.delete("k", key="another")
        assert state.read("k") == 3
        if "history" in store.capabilities:
            assert [revision.value for revision in state.history("k")] == [3, None, 1]

    def test_a_key_stands_for_one_call(self, store: StateStore, state: State) -> None:
        if "keys" not in store.capabilities:
            return
        state.write("k", {"a": 1}, key="once")
        before = seen(state)
        calls: tuple[tuple[str, Any, Reducer], ...] = (
            *(("k", {"a": 2}, "overwrite"), ("l", {"a": 1}, "overwrite")),
            *(("k", {"a": 1}, "merge"), ("k", {"a": 1}, "append")),
        )
        for name, value, reducer in calls:
            with pytest.raises(KeyReused):
                state.write(name, value, key="once", reducer=reducer)
        with pytest.raises(KeyReused):
            state.delete("k", key="once")
        for key in ("", "a\0", "k" * 513, 5):
            with pytest.raises(InvalidValue):
                state.write("k", 1, key=key)  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="transient"):
            state.write("k", 1, key="new", lifetime="transient")
        assert seen(state) == before

    def test_history_tells_what_a_key_held(self, store: StateStore, state: State, clock: FrozenClock) -> None:
        if "history" not in store.capabilities:
            with pytest.raises(Unsupported, match="history"):
                state.history("k")
            return
        wanted = []
        for value in ("one", "two"):
            wanted.append(Revision(version=state.write("k", value), at=clock.now_ms(), value=value))
            clock.advance(1)
        state.write("k", "over", lifetime="transient")
        state.write("other", 1)
        state.delete("k")
        found = state.history("k")
        assert found[0].deleted
        assert found[0].version > wanted[1].version
        assert list(found[1:]) == wanted[::-1]
        assert list(state.history("k", limit=2)) == list(found[:2])
        assert state.history("never") == store("user/43").history("k") == []

    def test_datalog_reads(self, store: StateStore) -> None:
        if "datalog" not in store.capabilities:
            with pytest.raises(Unsupported, match="Datalog"):
                store.datalog("?[x] <- [[1]]")
            return
        assert store.datalog("?[x, y] <- [[1, $y]]", {"y": "a"})["rows"] == [[1, "a"]]
        for script in (5, "this is no Datalog", "?[x] <- [[1]] :create stolen {x}", "::remove entries"):
            with pytest.raises(InvalidValue):
                store.datalog(script)  # type: ignore[arg-type]

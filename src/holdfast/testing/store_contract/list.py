"""The contract of lists, reopening and capabilities.

Keys are listed in order, exactly those of a scope and prefix, in pages without gaps or repeats. A durable store
keeps everything when it is reopened, a closed one refuses calls, and an undeclared capability is refused.
"""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from holdfast.client.state import State, StateStore
from holdfast.errors import Closed, InvalidValue, KeyReused, Unsupported
from holdfast.records.entries import CAPABILITIES, EntryPageQuery, Reducer, Revision
from holdfast.records.scope import Scope
from holdfast.testing.clock import FrozenClock
from holdfast.testing.store_contract.fixtures import (
    SCOPE,
    OpenAt,
    StoreFixtures,
    list_entries,
    run_in_threads,
    store_backend,
)
from holdfast.testing.store_contract.hostile_keys import ACCEPTED_KEYS, HOSTILE_KEYS, REFUSED_KEYS

KEY_LETTERS = "aAbZ_%/.é\uff5a🙂"
SEPARATE_SCOPES = (
    *("global", "session/a", "session/ab", "session/a/thread/b", "session/A", "thread/b", "user/a", "operator/a"),
    *("workflow/a", "workflow/a/operator/a", "actor/a", "actor/a/session/a", "custom/a/id/b", "custom/b/id/a"),
)


class ListContract(StoreFixtures):
    """The contract of lists of keys, and of the separation of scopes."""

    def test_keys_are_in_order_of_their_code_points(self, store: StateStore, state: State, clock: FrozenClock) -> None:
        keys = ["Z", "a", "a b", "a/b", "aB", "ab", "a\u00e9", "b", "\u00e9", "\u4e16", "\uff5a", "\uffff", "🙂", "🙂a"]
        for key in reversed(keys):
            state.write(key, key)
        assert state.list() == keys
        assert [entry.value for entry in list_entries(state)] == keys
        assert list(state) == keys
        assert [key for page in _list_pages(state, "", 3) for key in page] == keys
        assert [key for key, _ in store_backend(store).page(state.scope, EntryPageQuery(now=clock.now_ms()))] == keys

    def test_a_prefix_is_compared_exactly(self, state: State) -> None:
        for key in ("user_%", "user_%x", "user_1", "user", "userX1", "User_1", "USER_1", "\u00e9t", "\u00e9T", "[u]*?"):
            state.write(key, 1)
        for prefix, keys in (
            ("user_%", ["user_%", "user_%x"]),
            ("user_", ["user_%", "user_%x", "user_1"]),
            ("User_", ["User_1"]),
            ("\u00e9t", ["\u00e9t"]),
            ("\u00c9", []),
            ("user_1 ", []),
            ("%", []),
            ("*", []),
            ("[u]", ["[u]*?"]),
        ):
            assert state.list(prefix) == keys, prefix
            assert [entry.key for entry in state.entries(prefix)] == keys

    def test_pages_of_any_size_make_the_whole(self, state: State, random: Random, clock: FrozenClock) -> None:
        keys = sorted({"".join(random.choices(KEY_LETTERS, k=random.randrange(1, 5))) for _ in range(30 * self.scale)})
        for key in random.sample(keys, len(keys)):
            over = random.random() < 0.1
            state.write(key, key, ttl=1 if random.random() < 0.1 else None, lifetime="transient" if over else None)
        clock.advance(1_000)
        for prefix in ("", "a", "\uff5a", "a_", random.choice(keys)):
            whole = state.list(prefix)
            assert set(whole) <= {key for key in keys if key.startswith(prefix)}
            for size in (1, 2, 3, 7, len(keys)):
                pages = _list_pages(state, prefix, size)
                assert [key for page in pages for key in page] == whole
                assert all(len(page) == size for page in pages[:-1])

    def test_keys_that_come_and_go_while_paging_disturb_no_others(self, state: State) -> None:
        keys = [f"k{number:02}" for number in range(1, 11)]
        for key in keys:
            state.write(key, 1)
        found = state.list(limit=4)
        state.write("k00", "before the page")
        state.write("k05x", "behind it")
        state.delete("k04")
        state.delete("k09")
        while page := state.list(after=found[-1], limit=4):
            assert page[0] > found[-1]
            found += page
        assert found == sorted({*keys, "k05x"} - {"k09"})

    def test_the_port_gives_pages_of_what_is_live(self, store: StateStore, state: State, clock: FrozenClock) -> None:
        port, now = store_backend(store), clock.now_ms()
        for key, ttl in (("a1", 1), ("a2", None), ("a3", 1), ("a4", 5), ("b", None)):
            state.write(key, key, ttl=ttl)
        store("user/4").write("a2", 1)
        for page, keys in (
            (EntryPageQuery(now=now, limit=2), ["a1", "a2"]),
            (EntryPageQuery(now=now, after="a1", limit=2), ["a2", "a3"]),
            (EntryPageQuery(now=now + 1_000, prefix="a", limit=2), ["a2", "a4"]),
            (EntryPageQuery(now=now + 1_000, prefix="a", after="a2", limit=9), ["a4"]),
            (EntryPageQuery(now=now + 5_000, limit=9), ["a2", "b"]),
            (EntryPageQuery(now=now, after="b", limit=9), []),
            (EntryPageQuery(now=now, lifetime="session", limit=9), []),
        ):
            assert [key for key, _ in port.page(state.scope, page)] == keys

    def test_scopes_do_not_see_each_other(self, store: StateStore) -> None:
        for scope in SEPARATE_SCOPES:
            store(scope).write("k", scope)
            store(scope).write("k/k", scope)
        for scope in SEPARATE_SCOPES:
            assert [(entry.key, entry.value) for entry in list_entries(store(scope))] == [("k", scope), ("k/k", scope)]
        store("session/a").write("k", "changed")
        store("session/a").delete("k/k")
        for scope in SEPARATE_SCOPES[2:]:
            assert store(scope).list() == ["k", "k/k"]
            assert store(scope).read("k") == scope
        assert store("a").read("k") == store(Scope.session("a")).read("k") == "changed"

    def test_scopes_of_hostile_ids_do_not_meet(self, store: StateStore) -> None:
        ids = [key for key in ACCEPTED_KEYS if len(key) <= 128]
        for number, name in enumerate(ids):
            store(Scope.user(name)).write("k", number)
        for number, name in enumerate(ids):
            scope = Scope.user(name)
            assert [(entry.key, entry.value) for entry in list_entries(store(scope.text))] == [("k", number)]

    def test_a_scope_that_is_none_is_refused(self, store: StateStore) -> None:
        bad = ("user/", "/user/1", "user/1/", "planet/mars", "user/1/session", "", "a\0", "user/%2e", "user/..", 5)
        for scope in bad:
            with pytest.raises(InvalidValue):
                store(scope)  # type: ignore[arg-type]

    def test_hostile_keys_are_kept_each_in_its_own_place(self, state: State) -> None:
        assert len(set(HOSTILE_KEYS)) == 108
        for number, key in enumerate(HOSTILE_KEYS):
            if key in REFUSED_KEYS:
                for refused in (state.read, state.entry, state.require, state.delete):
                    with pytest.raises(InvalidValue):
                        refused(key)
                with pytest.raises(InvalidValue):
                    state.write(key, number)
            else:
                state.write(key, number)
        assert state.list() == sorted(ACCEPTED_KEYS)
        for number, key in enumerate(HOSTILE_KEYS):
            if key not in REFUSED_KEYS:
                assert state.read(key) == number, key
        assert [(entry.key, HOSTILE_KEYS[entry.value]) for entry in list_entries(state)] == [
            (key, key) for key in state.list()
        ]
        for key in ACCEPTED_KEYS[::2]:
            assert state.delete(key), key
        assert state.list() == sorted(ACCEPTED_KEYS[1::2])

    def test_what_cannot_be_listed_is_refused(self, state: State) -> None:
        for limit in (0, -1, 10_001, 1.0, True, "1", 10**5_000):
            with pytest.raises(InvalidValue, match="limit"):
                state.list(limit=limit)  # type: ignore[arg-type]
        for text in ("a\0", "\ud800", "cafe\u0301", 5, None):
            with pytest.raises(InvalidValue):
                state.list(text)  # type: ignore[arg-type]
        for text in ("a\0", "\ud800", "", 5):
            with pytest.raises(InvalidValue):
                state.list(after=text)  # type: ignore[arg-type]

    def test_what_was_deleted_is_gone(self, state: State) -> None:
        state.write("k", 1, salience=1)
        state.write("k/below", 2)
        assert state.delete("k")
        assert not state.delete("k")
        assert state.read("k") is None
        assert state.list() == ["k/below"]
        state.write("k", 3)
        entry = state.entry("k")
        assert entry is not None
        assert (entry.value, entry.salience) == (3, None)


def _list_pages(state: State, prefix: str, size: int) -> list[list[str]]:
    found: list[list[str]] = []
    after = None
    while page := state.list(prefix, after=after, limit=size):
        assert after is None or page[0] > after, "a page begins after the one before"
        found.append(page)
        after = page[-1]
    return found


class CapabilityContract(StoreFixtures):
    """The contract of opening, closing and the remaining capabilities."""

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
        before, found, capabilities = list_entries(state), state.search("needle"), store.capabilities
        store.close()
        again = open_at()
        assert again.capabilities == capabilities
        if "durable" not in capabilities:
            assert "shared" in capabilities or list_entries(again(SCOPE)) == []
            return
        assert list_entries(again(SCOPE)) == before
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
        assert (reader.entry("k"), list(reader.entries())) == (state.entry("k"), list_entries(state))
        assert list(reader.search("k")) == list(state.search("k"))
        assert reader("user/43").read("k") == store("user/43").reader().read("k") == 2
        assert not hasattr(reader, "write")

    def test_a_key_makes_a_retry_safe(self, store: StateStore, state: State) -> None:
        if "keys" not in store.capabilities:
            state.write("k", 1)
            before = list_entries(state)
            for lifetime in (None, "transient"):
                with pytest.raises(Unsupported, match="key="):
                    state.write("k", 2, key="once", lifetime=lifetime)
            with pytest.raises(Unsupported, match="key="):
                state.delete("k", key="once")
            assert list_entries(state) == before
            return
        version = state.write("k", 1, key="once", expected_version=0)
        state.write("k", 2)
        assert state.write("k", 1, key="once", expected_version=0) == version
        assert [state.write("n", 1, reducer="sum", key="add") for _ in range(3)] == [state.entry("n").version] * 3  # type: ignore[union-attr]
        assert state.delete("k", key="away")
        state.write("k", 3)
        assert state.delete("k", key="away")
        assert [(entry.key, entry.value) for entry in list_entries(state)] == [("k", 3), ("n", 1)]
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

        run_in_threads(6, call)
        assert len(set(given)) == 1
        assert gone == [True] * 6
        assert [(entry.key, entry.value) for entry in list_entries(store(SCOPE))] == [("n", 1)]

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
        before = list_entries(state)
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
        assert list_entries(state) == before

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

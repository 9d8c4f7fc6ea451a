"""The contract of listing: keys in order, exactly those of a scope and prefix, in pages that fit together."""

from __future__ import annotations

from random import Random

import pytest

from holdfast.client.state import State, StateStore
from holdfast.errors import InvalidValue
from holdfast.records.entries import EntryPage
from holdfast.records.scope import Scope
from holdfast.testing.clock import FrozenClock
from holdfast.testing.hostile_keys import ACCEPTED, HOSTILE_KEYS, REFUSED
from holdfast.testing.store_contract_kit import StoreFixtures, port_of, seen

KEY_LETTERS = "aAbZ_%/.é\uff5a🙂"
SCOPES = (
    *("global", "session/a", "session/ab", "session/a/thread/b", "session/A", "thread/b", "user/a", "operator/a"),
    *("workflow/a", "workflow/a/operator/a", "actor/a", "actor/a/session/a", "custom/a/id/b", "custom/b/id/a"),
)


class ListContract(StoreFixtures):
    """Which keys there are, and in which scope."""

    def test_keys_are_in_order_of_their_code_points(self, store: StateStore, state: State, clock: FrozenClock) -> None:
        keys = ["Z", "a", "a b", "a/b", "aB", "ab", "a\u00e9", "b", "\u00e9", "\u4e16", "\uff5a", "\uffff", "🙂", "🙂a"]
        for key in reversed(keys):
            state.write(key, key)
        assert state.list() == keys
        assert [entry.value for entry in seen(state)] == keys
        assert list(state) == keys
        assert [key for page in _pages(state, "", 3) for key in page] == keys
        assert [key for key, _ in port_of(store).page(state.scope, EntryPage(now=clock.now_ms()))] == keys

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
                pages = _pages(state, prefix, size)
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
        port, now = port_of(store), clock.now_ms()
        for key, ttl in (("a1", 1), ("a2", None), ("a3", 1), ("a4", 5), ("b", None)):
            state.write(key, key, ttl=ttl)
        store("user/4").write("a2", 1)
        for page, keys in (
            (EntryPage(now=now, limit=2), ["a1", "a2"]),
            (EntryPage(now=now, after="a1", limit=2), ["a2", "a3"]),
            (EntryPage(now=now + 1_000, prefix="a", limit=2), ["a2", "a4"]),
            (EntryPage(now=now + 1_000, prefix="a", after="a2", limit=9), ["a4"]),
            (EntryPage(now=now + 5_000, limit=9), ["a2", "b"]),
            (EntryPage(now=now, after="b", limit=9), []),
            (EntryPage(now=now, lifetime="session", limit=9), []),
        ):
            assert [key for key, _ in port.page(state.scope, page)] == keys

    def test_scopes_do_not_see_each_other(self, store: StateStore) -> None:
        for scope in SCOPES:
            store(scope).write("k", scope)
            store(scope).write("k/k", scope)
        for scope in SCOPES:
            assert [(entry.key, entry.value) for entry in seen(store(scope))] == [("k", scope), ("k/k", scope)]
        store("session/a").write("k", "changed")
        store("session/a").delete("k/k")
        for scope in SCOPES[2:]:
            assert store(scope).list() == ["k", "k/k"]
            assert store(scope).read("k") == scope
        assert store("a").read("k") == store(Scope.session("a")).read("k") == "changed"

    def test_scopes_of_hostile_ids_do_not_meet(self, store: StateStore) -> None:
        ids = [key for key in ACCEPTED if len(key) <= 128]
        for number, name in enumerate(ids):
            store(Scope.user(name)).write("k", number)
        for number, name in enumerate(ids):
            scope = Scope.user(name)
            assert [(entry.key, entry.value) for entry in seen(store(scope.text))] == [("k", number)]

    def test_a_scope_that_is_none_is_refused(self, store: StateStore) -> None:
        for scope in (
            "user/",
            "/user/1",
            "user/1/",
            "planet/mars",
            "user/1/session",
            "",
            "a\0",
            "user/%2e",
            "user/..",
            5,
        ):
            with pytest.raises(InvalidValue):
                store(scope)  # type: ignore[arg-type]

    def test_hostile_keys_are_kept_each_in_its_own_place(self, state: State) -> None:
        assert len(set(HOSTILE_KEYS)) == 108
        for number, key in enumerate(HOSTILE_KEYS):
            if key in REFUSED:
                for refused in (state.read, state.entry, state.require, state.delete):
                    with pytest.raises(InvalidValue):
                        refused(key)
                with pytest.raises(InvalidValue):
                    state.write(key, number)
            else:
                state.write(key, number)
        assert state.list() == sorted(ACCEPTED)
        for number, key in enumerate(HOSTILE_KEYS):
            if key not in REFUSED:
                assert state.read(key) == number, key
        assert [(entry.key, HOSTILE_KEYS[entry.value]) for entry in seen(state)] == [(key, key) for key in state.list()]
        for key in ACCEPTED[::2]:
            assert state.delete(key), key
        assert state.list() == sorted(ACCEPTED[1::2])

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


def _pages(state: State, prefix: str, size: int) -> list[list[str]]:
    found: list[list[str]] = []
    after = None
    while page := state.list(prefix, after=after, limit=size):
        assert after is None or page[0] > after, "a page begins after the one before"
        found.append(page)
        after = page[-1]
    return found

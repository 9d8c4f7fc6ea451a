"""The store in Redis, on a real server: compared writes, pages in order, expiry, forks and processes."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from holdfast.errors import Closed, InvalidValue, Unsupported
from holdfast.records.entries import Edge, EdgeQuery, EntrySearchQuery
from holdfast.store import redis as backend
from holdfast.store.redis import RedisStore
from tests.forked import in_child
from tests.redis_server import running
from tests.scale import seeded, volume
from tests.stores.stories import count_up, counted, entry, keys_of, same_as_memory

PREFIXES = itertools.count()


@pytest.fixture
def store() -> Iterator[RedisStore]:
    """A store with a prefix of its own on the server that all tests of this process share."""
    opened = RedisStore(running().url, prefix=f"test-{next(PREFIXES)}")
    yield opened
    opened.close()


def test_it_does_what_the_store_in_memory_does(store: RedisStore) -> None:
    same_as_memory(store, seeded("redis"), volume(400, 20_000))


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("_PUT", backend._PUT.replace("ARGV[1] ~= current", "false")),
        ("_PUT", backend._PUT.replace("ZADD", "ZSCORE").replace("0, ARGV[2]", "ARGV[2]")),
        ("_DROP", backend._DROP.replace("ARGV[1] ~= current", "false")),
        ("_key_range", lambda prefix, after: (b"(" + (after or "").encode(), b"+")),
        ("_key_range", lambda prefix, after: (b"[" + prefix.encode(), b"(" + prefix.encode() + b"z")),
    ],
)
def test_a_planted_bug_is_seen(store: RedisStore, monkeypatch: pytest.MonkeyPatch, name: str, planted: object) -> None:
    monkeypatch.setattr(backend, name, planted)
    with pytest.raises(AssertionError):
        same_as_memory(store, seeded("planted in redis"), 400)


def test_a_long_list_comes_in_pages_that_miss_nothing(store: RedisStore) -> None:
    keys = [f"k{number:05}" for number in range(700)]
    for key in keys:
        store.put("user/1", key, entry())
    assert keys_of(store, "user/1", limit=10_000) == keys
    assert keys_of(store, "user/1", limit=300, after="k00100") == keys[101:401]


def test_threads_and_processes_that_count_together_lose_nothing(store: RedisStore) -> None:
    times = volume(40, 2_000)
    threads = [threading.Thread(target=count_up, args=(store, times)) for _ in range(3)]
    for thread in threads:
        thread.start()
    said = in_child(lambda: count_up(store, times))
    for thread in threads:
        thread.join()
    assert said == "None"
    assert counted(store) == 4 * times


def test_a_forked_child_has_sockets_of_its_own(store: RedisStore) -> None:
    store.put("user/1", "k", entry(b'"parent"'))
    own = store._server.run_command("CLIENT", "ID")
    other = in_child(lambda: (store.get("user/1", "k").value, store._server.run_command("CLIENT", "ID")))
    assert other.startswith("(b'\"parent\"', ")
    assert other != str((b'"parent"', own))
    assert store._server.run_command("CLIENT", "ID") == own, "and the parent goes on with its own"


def test_versions_go_on_after_everything_was_lost() -> None:
    """A version that was given once must not come to mean something else, also not after FLUSHALL or a crash."""
    store = RedisStore(running().url, prefix="lost")
    first = store.put("user/1", "k", entry())
    for name in store._server.run_command("KEYS", "lost:*"):
        store._server.run_command("DEL", name)
    second = store.put("user/1", "k", entry(), 0)
    assert first < second
    assert store.put("user/1", "k", entry(), first) is None


def test_the_server_frees_what_has_expired_and_pages_stay_full(
    store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "GRACE_MS", 0)
    for number in range(60):
        store.put("user/1", f"k{number:02}", entry(expires_at=1 if number % 3 else None))
    index = store._name("user/1", "keys")
    assert store._server.run_command("ZCARD", index) == 60
    _until(lambda: len(store._server.run_command("KEYS", f"{store._prefix}:*:entry:*")) == 20)
    assert keys_of(store, "user/1", limit=15) == [f"k{number:02}" for number in range(0, 45, 3)]
    assert len(keys_of(store, "user/1", limit=1_000)) == 20
    assert store._server.run_command("ZCARD", index) == 20, "and what is freed is taken off the list"
    assert store.get("user/1", "k01") is None
    assert store.drop("user/1", "k01") is False


def test_an_entry_is_kept_a_while_after_its_time(store: RedisStore) -> None:
    """Whoever reads has a clock of their own, which may stand where the server's was."""
    store.put("user/1", "k", entry(written_at=5_000, expires_at=5_001))
    assert store.get("user/1", "k") is not None
    left = store._server.run_command("PTTL", store._entry_name("user/1", "k"))
    assert 0 < left <= backend.GRACE_MS + 1
    store.put("user/1", "k", entry())
    assert store._server.run_command("PTTL", store._entry_name("user/1", "k")) == -1, (
        "written anew without ttl, it stays"
    )


def test_a_key_that_is_written_again_is_not_swept(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = store._sweep_keys

    def late(scope: str, keys: list[str]) -> None:
        store.put(scope, "k", entry())
        sweep(scope, keys)

    def page_while_it_is_written() -> list[str]:
        store.put("user/1", "k", entry())
        store._server.run_command("DEL", store._entry_name("user/1", "k"))  # as after an expiry
        with monkeypatch.context() as patched:
            patched.setattr(store, "_sweep_keys", late)
            keys_of(store, "user/1")
        return keys_of(store, "user/1")

    assert page_while_it_is_written() == ["k"]
    monkeypatch.setattr(backend, "_SWEEP", backend._SWEEP.replace("== 0", ">= 0"))
    assert page_while_it_is_written() == [], "without looking again it would be lost"


def test_scripts_that_the_server_forgot_are_given_again(store: RedisStore) -> None:
    store.put("user/1", "k", entry())
    store._server.run_command("SCRIPT", "FLUSH")
    assert store.put("user/1", "k", entry()) is not None
    store._server.run_command("SCRIPT", "FLUSH")
    assert store.drop("user/1", "k") is True


def test_names_in_redis_are_hashes_and_one_scope_stays_together(store: RedisStore) -> None:
    store.put("user/secret-scope", "secret-key}{*", entry(expires_at=10**15))
    names = [name.decode() for name in store._server.run_command("KEYS", f"{store._prefix}:*")]
    assert len(names) == 3
    assert not [name for name in names if "secret" in name]
    assert len({name[name.index("{") : name.index("}")] for name in names}) == 1


def test_prefixes_keep_stores_apart(store: RedisStore) -> None:
    other = RedisStore(running().url, prefix=f"{store._prefix}:more")
    store.put("user/1", "k", entry())
    assert other.get("user/1", "k") is None
    assert keys_of(other, "user/1") == []
    for bad in ("", "a{b}", "a\n", 7):
        with pytest.raises(InvalidValue):
            RedisStore(running().url, prefix=bad)


def test_what_redis_does_not_offer_is_said(store: RedisStore) -> None:
    assert store.capabilities == {"shared"}
    store.put("user/1", "k", entry(words="hello"))
    assert store.search("user/1", EntrySearchQuery(now=0, terms=("hello",))) == []
    edge = Edge(scope="user/1", source="a", kind="k", target_scope="user/1", target="b")
    for call in (lambda: store.link(edge), lambda: store.unlink(edge), lambda: store.edges(_at("a"))):
        with pytest.raises(Unsupported, match="graph"):
            call()


def test_a_closed_store_says_so() -> None:
    store = RedisStore(running().url)
    store.close()
    store.close()
    with pytest.raises(Closed):
        store.get("user/1", "k")


def _at(key: str) -> EdgeQuery:
    return EdgeQuery(scope="user/1", keys=(key,))


def _until(done: Callable[[], bool], seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.002)

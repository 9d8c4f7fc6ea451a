"""A Redis that is dead, full, foreign, slow or read-only: holdfast's own errors, and never a password in them."""

from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.errors import Corrupt, HoldfastError, InvalidValue, OutcomeUnknown, ReadOnly, StorageFull, Unavailable
from holdfast.store import redis
from holdfast.store.redis import RedisStore
from tests.redis_server import RedisServer, answering, running
from tests.scale import volume
from tests.stores.stories import entry, keys_of

SECRET = "s3cr3t-hunter2"


def failure(call: Callable[[], object]) -> HoldfastError:
    """The error, which is holdfast's own and tells no secret, also not in what it is shown with."""
    with pytest.raises(HoldfastError) as caught:
        call()
    shown = "".join(traceback.format_exception(caught.value))
    assert SECRET not in shown
    assert "redis.exceptions" not in shown
    return caught.value


def calls(store: RedisStore) -> list[Callable[[], object]]:
    """A read of each kind, then a write of each kind."""
    return [
        lambda: store.get("user/1", "k"),
        lambda: keys_of(store, "user/1"),
        lambda: store.put("user/1", "k", entry()),
        lambda: store.drop("user/1", "k"),
    ]


def _welcome(asked: bytes) -> bytes | None:
    """What is said to whoever connects; nothing to what they come for."""
    return b"+OK\r\n" if b"AUTH" in asked or b"CLIENT" in asked else None


def test_nobody_at_that_address(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for url in (f"redis://me:{SECRET}@127.0.0.1:{port}/1", f"unix://:{SECRET}@{tmp_path}/ROOM/none.sock"):
        for call in calls(RedisStore(url)):
            error = failure(call)
            assert type(error) is Unavailable
            assert "cannot be reached" in str(error)


def test_a_wrong_password_and_none_where_one_is_needed() -> None:
    with RedisServer("--requirepass", SECRET) as server:
        for url in (server.url, server.url.replace("unix://", "unix://:wrong@")):
            for call in calls(RedisStore(url)):
                error = failure(call)
                assert type(error) is Unavailable
                assert "Correct them in the URL" in str(error)
        right = RedisStore(server.url.replace("unix://", f"unix://:{SECRET}@"))
        assert right.put("user/1", "k", entry()) is not None
        right._server.run_command("ACL", "SETUSER", "O", "on", f">{SECRET}", "+@read", "~*")
        error = failure(calls(RedisStore(server.url.replace("unix://", f"unix://O:{SECRET}@")))[2])
        assert "does not let this user" in str(error)
        right.close()


def test_a_server_that_repeats_what_it_was_sent_tells_no_password(tmp_path: Path) -> None:
    said = f"-ERR unknown command 'AUTH', with args beginning with: '{SECRET}'\r\n".encode()
    other = f"-ERR what is {SECRET}?\r\n".encode()
    for number, answer in enumerate((said, other)):
        (tmp_path / str(number)).mkdir()
        with answering(tmp_path / str(number), SECRET, lambda asked, answer=answer: answer) as url:
            store = RedisStore(url)
            for call in calls(store):
                assert type(failure(call)) is Unavailable
            store.close()


def test_a_server_that_never_answers(tmp_path: Path) -> None:
    with answering(tmp_path, SECRET, lambda asked: _welcome(asked) or b"") as url:
        store = RedisStore(f"{url}?socket_timeout=0.05")
        kinds = [type(failure(call)) for call in calls(store)]
        assert kinds == [Unavailable, Unavailable, OutcomeUnknown, OutcomeUnknown]
        store.close()


def test_a_server_that_dies_after_it_was_asked(tmp_path: Path) -> None:
    with answering(tmp_path, SECRET, _welcome) as url:
        store = RedisStore(url)
        kinds = [type(failure(call)) for call in calls(store)]
        assert kinds == [Unavailable, Unavailable, OutcomeUnknown, OutcomeUnknown]
        assert "with expected_version" in str(failure(calls(store)[2]))
        store.close()


def test_something_that_is_not_redis(tmp_path: Path) -> None:
    with answering(tmp_path, SECRET, lambda asked: b"HTTP/1.1 400 Bad Request\r\n\r\n") as url:
        store = RedisStore(url)
        assert [type(failure(call)) for call in calls(store)] == [Unavailable] * 4
        store.close()


def test_an_answer_that_came_too_late_is_not_taken_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    store = RedisStore(running().url, prefix="late")
    store.put("user/1", "a", entry(b'"a"'))
    store.put("user/1", "b", entry(b'"b"'))
    connection = store._server._pool.get_connection()
    store._server._pool.release(connection)

    def interrupted() -> None:
        raise KeyboardInterrupt

    def next_answer() -> bytes:
        with monkeypatch.context() as patched:
            patched.setattr(connection, "read_response", interrupted)
            with pytest.raises(KeyboardInterrupt):
                store.get("user/1", "a")
        found = store.get("user/1", "b")
        assert found is not None
        return found.value

    assert next_answer() == b'"b"'
    monkeypatch.setattr(connection, "disconnect", lambda: None)
    monkeypatch.setattr(connection, "can_read", lambda: False)  # The answer is still on its way.
    assert next_answer() == b'"a"', "without hanging up, the next caller would be told something else"


def test_a_full_server_can_still_be_read_and_emptied() -> None:
    with RedisServer("--maxmemory", "2mb", "--maxmemory-policy", "noeviction") as server:
        store = RedisStore(server.url)
        written: list[str] = []
        error = failure(lambda: [written.append(store.put("user/1", f"{n}", entry(b"1" * 50_000))) for n in range(999)])
        assert type(error) is StorageFull
        assert "maxmemory" in str(error)
        assert sorted(keys_of(store, "user/1"), key=int) == [f"{n}" for n in range(len(written))]
        assert all(store.drop("user/1", f"{n}") for n in range(len(written)))
        assert store.put("user/1", "k", entry()) is not None
        store.close()


def test_a_replica_is_read_and_not_written() -> None:
    with RedisServer() as server:
        store = RedisStore(server.url)
        store.put("user/1", "k", entry())
        store._server.run_command("REPLICAOF", "127.0.0.1", "1")
        store._server.run_command("CONFIG", "SET", "replica-serve-stale-data", "yes")
        assert store.get("user/1", "k") is not None
        assert keys_of(store, "user/1") == ["k"]
        for call in calls(store)[2:]:
            error = failure(call)
            assert type(error) is ReadOnly
            assert "primary" in str(error)
        store.close()


@pytest.mark.parametrize("place", ["entry", "keys", "version"])
def test_something_else_under_our_keys_is_left_alone(place: str) -> None:
    store = RedisStore(running().url, prefix=f"foreign-{place}")
    name = store._entry_name("user/1", "k") if place == "entry" else store._name("user/1", place)
    for other in (("HSET", name, "a", "b"), ("SET", name, "hello")):
        store._server.run_command("DEL", name)
        store._server.run_command(*other)
        error = failure(lambda: store.put("user/1", "k", entry()))
        assert type(error) is Corrupt
        assert "prefix" in str(error)
        if place == "entry":
            assert type(failure(lambda: store.get("user/1", "k"))) is Corrupt
            assert type(failure(lambda: store.drop("user/1", "k"))) is Corrupt
        assert len(store._server.run_command("KEYS", f"foreign-{place}:*")) == 1, "and nothing is half written"
    store.close()


def test_urls_that_name_no_server() -> None:
    for url in (
        f"http://:{SECRET}@host",
        f"redis://:{SECRET}@host:port",
        f"redis://:{SECRET}@[::1",
        f"redis://:{SECRET}@host/name",
        f"redis://:{SECRET}@host?decode_responses=1",
        f"redis://:{SECRET}@host?max_connections=-1",
        "",
        None,
    ):
        assert type(failure(lambda url=url: RedisStore(url))) is InvalidValue


def test_a_server_killed_and_started_again_is_used_without_opening_anew() -> None:
    """SIGKILL while threads write: every call ends in a version or in an error of ours, and what was given is there."""
    with RedisServer(durable=True) as server:
        store = RedisStore(server.url)
        for round_ in range(volume(2, 25)):
            given: dict[str, int] = {}
            errors: list[BaseException] = []
            writers = [threading.Thread(target=_write_until_it_fails, args=(store, n, given, errors)) for n in range(4)]
            for writer in writers:
                writer.start()
            while len(given) < 40 * (round_ + 1) and not errors:
                pass
            server.kill()
            for writer in writers:
                writer.join()
            assert len(errors) == len(writers)
            assert {type(error) for error in errors} <= {Unavailable, OutcomeUnknown}
            assert type(failure(lambda: store.get("user/1", "k"))) is Unavailable
            server.start()
            for key, version in given.items():
                found = store.get("user/1", key)
                assert found is not None
                assert found.version >= version
            assert set(given) <= set(keys_of(store, "user/1", limit=100_000))
        store.close()


def _write_until_it_fails(store: RedisStore, number: int, given: dict[str, int], errors: list[BaseException]) -> None:
    for turn in range(1_000_000):
        key = f"{number}-{turn}"
        try:
            version = store.put("user/1", key, entry())
        except BaseException as error:
            errors.append(error)
            return
        assert version is not None
        given[key] = version


def test_what_the_driver_calls_differently_is_known_by_its_class() -> None:
    """Later servers say it outside of the script's own words, and the driver takes the word away."""
    from redis import exceptions

    server = redis.RedisConnection("redis://127.0.0.1:1")
    assert type(server._refusal(exceptions.OutOfMemoryError("command not allowed"))) is StorageFull
    assert type(server._refusal(exceptions.ReadOnlyError("You can't write"))) is ReadOnly
    assert type(server._failure(exceptions.BusyLoadingError("Redis is loading"), writes=True)) is Unavailable
    assert (
        type(server._failure(exceptions.ConnectionError("max number of clients reached"), writes=True)) is Unavailable
    )
    assert type(server._failure(exceptions.ConnectionError("Connection closed"), writes=True)) is OutcomeUnknown

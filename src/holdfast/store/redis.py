"""The store in Redis: shared by many processes, as durable as that server is set up to be.

Every write is one Lua script that compares, counts and keeps the list of keys in order, so that
readers see all of it or nothing. Names in Redis are hashes; keys and values are only ever data.
Run it without eviction: an entry that the server evicts is gone, and one that has expired is freed
by the server itself a while after its time.

A command that was not sent whole is not run, so nothing was written. If it was sent and no answer came, a write
may have happened: the outcome is unknown, and nothing is retried here. No error ever shows a password.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

import msgspec
from msgspec.structs import asdict, replace
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool, parse_url
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)
from redis.exceptions import TimeoutError as RedisTimeout
from redis.retry import Retry

from holdfast.errors import (
    Closed,
    Corrupt,
    HoldfastError,
    InvalidValue,
    OutcomeUnknown,
    ReadOnly,
    StorageFull,
    Unavailable,
    Unsupported,
)
from holdfast.records.entries import Edge, EdgeQuery, EntryMatch, EntryPageQuery, EntrySearchQuery, StoredEntry
from holdfast.records.ids import check_id
from holdfast.system import renew_in_child

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
NOT_AN_ENTRY = "NOTANENTRY"
"""The answer of our scripts when they find data that they did not write."""

_TOO_MANY_CLIENTS = "max number of clients"
_FOREIGN_DATA = "holds something else under our keys. Use another prefix or database number, or remove it."
_SERVER_ANSWERS: tuple[tuple[str, type[Exception] | None, type[HoldfastError], str], ...] = (
    (NOT_AN_ENTRY, None, Corrupt, _FOREIGN_DATA),
    ("WRONGTYPE", None, Corrupt, _FOREIGN_DATA),
    ("READONLY", ReadOnlyError, ReadOnly, "is a replica that takes no writes. Give the URL of the primary."),
    ("OOM", OutOfMemoryError, StorageFull, "has used all the memory it may. Raise maxmemory, or delete entries."),
    ("MISCONF", None, Unavailable, "cannot save to its disk and takes no writes. See its log, and free space there."),
    ("NOAUTH", AuthenticationError, Unavailable, "did not accept the name or password. Correct them in the URL."),
    ("NOPERM", NoPermissionError, Unavailable, "does not let this user do that. Allow it scripts and our keys."),
    ("MOVED", MovedError, Unsupported, "is a node of a cluster, and the entry is on another. Use a single server."),
    ("LOADING", BusyLoadingError, Unavailable, "is still reading its data. Try again in a moment."),
    ("MASTERDOWN", MasterDownError, Unavailable, "has lost its primary. Try again when that is back."),
    ("CLUSTERDOWN", ClusterDownError, Unavailable, "is in a cluster that is down. Try again when that is back."),
    ("NOREPLICAS", None, Unavailable, "has too few replicas and takes no writes. Try again when they are back."),
    ("BUSY", None, Unavailable, "is running someone's long script. Try again, or stop that script."),
    (_TOO_MANY_CLIENTS, None, Unavailable, "takes no more connections. Try again, or raise its maxclients."),
)
"""The server's word, redis-py's exception for it (which drops the word), our error, and the advice.

All of these are answers that precede any write."""
_URL_OPTIONS = (
    *("client_name", "db", "health_check_interval", "max_connections", "password"),
    *("socket_connect_timeout", "socket_keepalive", "socket_timeout", "username"),
)
_parse: Any = parse_url  # It has no types.
GRACE_MS: Final = 60_000
"""The time after expiry for which the server keeps an entry: a reader's own clock may run behind."""
VERSION_TTL_MS: Final = 30 * 24 * 3600 * 1000
"""The time after a scope's last write for which its last version is remembered."""
BATCH_KEYS: Final = 256
_COMPARE = f"""
local head = redis.call('GETRANGE', KEYS[1], 0, 31)
local current = '0'
if head ~= '' then
  current = string.match(head, '^(%d+)\\n')
  if not current then return redis.error_reply('{NOT_AN_ENTRY}') end
end
if ARGV[1] ~= '' and ARGV[1] ~= current then return false end
local listed = redis.call('ZSCORE', KEYS[2], ARGV[2])
"""
_DECODER = msgspec.msgpack.Decoder(StoredEntry)
_NO_GRAPH = "Redis keeps no edges. Use a store that declares graph: sqlite, memory or cozo."


class RedisConnection:
    """Sockets to one server, each used by one thread at a time and opened on demand."""

    def __init__(self, url: str) -> None:
        self._options = _parse_options(url)
        self._secrets = [text for name in ("password", "username") if (text := str(self._options.get(name) or ""))]
        address = f"{self._options.get('host', 'localhost')}:{self._options.get('port', 6379)}"
        self.place = f"Redis at {self._options.get('path') or address}"
        self._closed = False
        try:
            self.after_fork()
            self._pool.connection_class(**self._pool.connection_kwargs)
        except (TypeError, ValueError, RedisError):
            raise InvalidValue("An option after ? in the Redis URL has a value that redis-py does not take.") from None
        renew_in_child(self)

    def after_fork(self) -> None:
        """Open new sockets in a child: on shared ones, answers would reach whichever process reads first."""
        self._pool = ConnectionPool(**self._options)

    def run_command(self, *command: bytes | str | int) -> Any:
        """Run a command that only reads, and return its answer."""
        return self._send_command(command, writes=False)

    def run_script(self, script: str, names: Sequence[str], values: Sequence[bytes | str | int]) -> Any:
        """Run a Lua script that writes, atomically, and return its answer; the server receives its text only once."""
        rest = (len(names), *names, *values)
        cached = hashlib.sha1(script.encode(), usedforsecurity=False).hexdigest()
        try:
            return self._send_command(("EVALSHA", cached, *rest), writes=True)
        except NoScriptError:
            return self._send_command(("EVAL", script, *rest), writes=True)

    def _send_command(self, command: tuple[bytes | str | int, ...], *, writes: bool) -> Any:
        if self._closed:
            raise Closed
        pool = self._pool
        try:
            connection: Any = pool.get_connection()
        except (RedisError, OSError, ValueError) as error:
            raise self._refusal(error) from None
        whole = False
        try:
            try:
                connection.send_command(*command)
            except (RedisError, OSError) as error:
                raise self._refusal(error) from None
            answer = connection.read_response()
            whole = True
        except NoScriptError:
            whole = True
            raise
        except (RedisError, OSError) as error:
            whole = isinstance(error, ResponseError)
            raise self._failure(error, writes=writes) from None
        finally:
            if not whole:
                # The answer may still come, and must not be taken for that of the next command.
                connection.disconnect()
            pool.release(connection)
        return answer

    def _failure(self, error: Exception, *, writes: bool) -> HoldfastError:
        """Return the error for a failure after a whole command was sent."""
        if not writes or isinstance(error, ResponseError) or self._match_answer(error) is not None:
            return self._refusal(error)
        return OutcomeUnknown(
            f"{self.place} broke off before it answered, so the write may or may not be there. "
            "Read the entry and write again if it is missing; with expected_version nothing is written twice."
        )

    def _match_answer(self, error: Exception) -> HoldfastError | None:
        text = _error_text(error)
        # Other errors are worded by redis-py, with a path or a host that may look like one of the server's words.
        said = text if isinstance(error, ResponseError) or text.startswith(_TOO_MANY_CLIENTS) else ""
        for word, named, kind, advice in _SERVER_ANSWERS:
            if word in said or (named is not None and isinstance(error, named)):
                return kind(f"{self.place} {advice}")
        return None

    def _refusal(self, error: Exception) -> HoldfastError:
        """Return the error for a command after which nothing was written."""
        known = self._match_answer(error)
        if known is not None:
            return known
        text = _error_text(error)
        for secret in self._secrets:
            text = text.replace(secret, "***")
        text = text[:200]
        if isinstance(error, ResponseError):
            return Unavailable(f"{self.place} refused the command and nothing was written: {text}")
        if isinstance(error, RedisTimeout):
            return Unavailable(f"{self.place} does not answer in time. Check that it runs, and try again.")
        return Unavailable(f"{self.place} cannot be reached. Check that it runs and that the URL is right. {text}")

    def close(self) -> None:
        """Close idle sockets; those in use are closed when their answer has arrived."""
        self._closed = True
        self._pool.disconnect(inuse_connections=False)


def _error_text(error: Exception) -> str:
    # A server that does not know a command repeats its arguments, which may be a password or an entry.
    return str(error).partition(", with args")[0]


def _parse_options(url: str) -> dict[str, Any]:
    """Return redis-py's options from the URL; a few of them cannot be set there."""
    try:
        options = dict(_parse(url))
        parts = urlsplit(url)
    except (ValueError, AttributeError, TypeError):
        raise InvalidValue(
            "This is not the URL of a Redis server. Write redis://host:6379/0, rediss://… or unix:///path.sock."
        ) from None
    unknown = [name for name, _ in parse_qsl(parts.query) if name not in _URL_OPTIONS and not name.startswith("ssl_")]
    if unknown:
        raise InvalidValue(
            f"The Redis URL has the option {unknown[0][:40]!r}. Known are: {', '.join(_URL_OPTIONS)}, ssl_…."
        )
    number = parts.path.strip("/")
    if parts.scheme != "unix" and number and not number.isdecimal():
        raise InvalidValue("After the host of a Redis URL comes the number of a database: redis://host:6379/0.")
    return {
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": ANSWER_SECONDS,
        **options,
        "decode_responses": False,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }


# Steps that may fail come before the first write: a script that stops halfway is not undone.
# The time is the floor of every version, so that a server that lost its newest writes, or all of them,
# does not give the same version to something else.
_PUT = f"""{_COMPARE}
local last = tonumber(redis.call('GET', KEYS[3]) or '0')
if not last then return redis.error_reply('{NOT_AN_ENTRY}') end
local time = redis.call('TIME')
local version = math.max(last + 1, tonumber(current) + 1, tonumber(time[1]) * 1000000 + tonumber(time[2]))
local text = string.format('%.0f', version)
redis.call('SET', KEYS[3], text, 'PX', {VERSION_TTL_MS})
if ARGV[4] == '' then
  redis.call('SET', KEYS[1], text .. '\\n' .. ARGV[3])
else
  redis.call('SET', KEYS[1], text .. '\\n' .. ARGV[3], 'PX', ARGV[4])
end
if not listed then redis.call('ZADD', KEYS[2], 0, ARGV[2]) end
return text
"""
_DROP = f"""{_COMPARE}
if listed then redis.call('ZREM', KEYS[2], ARGV[2]) end
return redis.call('DEL', KEYS[1])
"""
_SWEEP = """
for place, key in ipairs(ARGV) do
  if redis.call('EXISTS', KEYS[place + 1]) == 0 then redis.call('ZREM', KEYS[1], key) end
end
return 0
"""


class RedisStore:
    """Entries as strings, and for each scope the sorted set of its keys. It connects with the first call."""

    capabilities: frozenset[str] = frozenset({"shared"})

    def __init__(self, url: str, *, prefix: str = "holdfast") -> None:
        if set(check_id(prefix, "prefix")) & set("{}"):
            raise InvalidValue("prefix must not hold braces: they say where a Redis cluster keeps a key.")
        self._prefix = prefix
        self._server = RedisConnection(url)

    def get(self, scope: str, key: str) -> StoredEntry | None:
        body = self._server.run_command("GET", self._entry_name(scope, key))
        return None if body is None else self._decode_entry(body)

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> int | None:
        # Without empty fields; the script puts the version before the bytes.
        said = {name: value for name, value in asdict(entry).items() if value not in (None, ()) and name != "version"}
        free_after = "" if entry.expires_at is None else max(0, entry.expires_at - entry.written_at) + GRACE_MS
        names = [*self._key_names(scope, key), self._name(scope, "version")]
        values = ["" if expected is None else expected, key, msgspec.msgpack.encode(said), free_after]
        version = self._server.run_script(_PUT, names, values)
        return None if version is None else int(version)

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        wanted = "" if expected is None else expected
        gone = self._server.run_script(_DROP, self._key_names(scope, key), [wanted, key])
        return None if gone is None else bool(gone)

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        found: list[tuple[str, StoredEntry]] = []
        for keys, entries in self._iterate_batches(scope, page):
            gone = [key for key, entry in zip(keys, entries, strict=True) if entry is None]
            if gone:
                self._sweep_keys(scope, gone)
            found += [
                (key, entry)
                for key, entry in zip(keys, entries, strict=True)
                if entry is not None and entry.is_live(page.now) and page.lifetime in (None, entry.lifetime)
            ]
            if len(found) >= page.limit:
                break
        return found[: page.limit]

    def _iterate_batches(
        self, scope: str, page: EntryPageQuery
    ) -> Iterator[tuple[list[str], list[StoredEntry | None]]]:
        """Yield keys in order with their entries, in growing batches until the page is full."""
        after, wanted = page.after, min(page.limit, BATCH_KEYS)
        while True:
            lowest, highest = _key_range(page.prefix, after)
            place = self._name(scope, "keys")
            found = self._server.run_command("ZRANGEBYLEX", place, lowest, highest, "LIMIT", 0, wanted)
            keys = [_decode_key(key, self._server.place) for key in found]
            if keys:
                bodies = self._server.run_command("MGET", *(self._entry_name(scope, key) for key in keys))
                yield keys, [None if body is None else self._decode_entry(body) for body in bodies]
            if len(keys) < wanted:
                return
            after, wanted = keys[-1], min(2 * wanted, BATCH_KEYS)

    def _sweep_keys(self, scope: str, keys: Sequence[str]) -> None:
        """Remove listed keys whose entries the server has freed, unless they were rewritten."""
        names = [self._name(scope, "keys"), *(self._entry_name(scope, key) for key in keys)]
        try:
            self._server.run_script(_SWEEP, names, keys)
        except HoldfastError:
            pass  # It only saves memory, and a client of a replica may not write.

    def purge(self, now: int) -> int:
        """Delete expired entries and return their number; also remove keys whose entries the server has freed."""
        cursor, gone = b"0", 0
        while True:
            literal = "".join(f"\\{letter}" if letter in "*?[]\\^-" else letter for letter in self._prefix)
            pattern = f"{literal}:{{*}}:keys"
            cursor, names = self._server.run_command("SCAN", cursor, "MATCH", pattern, "COUNT", 1_000)
            found = (_decode_key(name, self._server.place).removesuffix(":keys") for name in names)
            gone += sum(self._purge_scope(place, now) for place in found)
            if int(cursor) == 0:
                return gone

    def _purge_scope(self, place: str, now: int) -> int:
        gone, lowest = 0, b"-"
        while keys := self._server.run_command("ZRANGEBYLEX", f"{place}:keys", lowest, b"+", "LIMIT", 0, BATCH_KEYS):
            lowest = b"(" + keys[-1]
            names = [f"{place}:entry:{hashlib.sha256(key).hexdigest()}" for key in keys]
            freed = []
            for key, name, body in zip(keys, names, self._server.run_command("MGET", *names), strict=True):
                entry = None if body is None else self._decode_entry(body)
                if entry is None:
                    freed.append((key, name))
                elif not entry.is_live(now):
                    gone += bool(self._server.run_script(_DROP, [name, f"{place}:keys"], [entry.version, key]))
            if freed:
                places = [f"{place}:keys", *(name for _, name in freed)]
                self._server.run_script(_SWEEP, places, [key for key, _ in freed])
        return gone

    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        """Return no matches: Redis has no index of the entries."""
        return []

    def link(self, edge: Edge) -> None:
        raise Unsupported(_NO_GRAPH)

    def unlink(self, edge: Edge) -> bool:
        raise Unsupported(_NO_GRAPH)

    def edges(self, query: EdgeQuery) -> list[Edge]:
        raise Unsupported(_NO_GRAPH)

    def close(self) -> None:
        self._server.close()

    def _key_names(self, scope: str, key: str) -> list[str]:
        return [self._entry_name(scope, key), self._name(scope, "keys")]

    def _entry_name(self, scope: str, key: str) -> str:
        return self._name(scope, f"entry:{_hash_text(key)}")

    def _name(self, scope: str, what: str) -> str:
        # In braces: a cluster then keeps everything of one scope on one node, as scripts need it.
        return f"{self._prefix}:{{{_hash_text(scope)}}}:{what}"

    def _decode_entry(self, body: bytes) -> StoredEntry:
        version, separator, rest = body.partition(b"\n")
        try:
            if not separator:
                raise ValueError
            return replace(_DECODER.decode(rest), version=int(version))
        except (ValueError, msgspec.MsgspecError):
            raise Corrupt(
                f"{self._server.place} holds something under our keys that is not an entry. "
                "Use another prefix or database number, or remove it."
            ) from None


def _hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _key_range(prefix: str, after: str | None) -> tuple[bytes, bytes]:
    """Return the range in the list of keys. UTF-8 sorts as its code points do, and no byte of it is 255."""
    lowest = b"[" + prefix.encode() if prefix else b"-"
    if after is not None and after >= prefix:
        lowest = b"(" + after.encode()
    return lowest, b"(" + prefix.encode() + b"\xff" if prefix else b"+"


def _decode_key(key: bytes, place: str) -> str:
    try:
        return key.decode()
    except UnicodeDecodeError:
        raise Corrupt(f"{place} holds something under our keys that is not a key. Use another prefix.") from None

"""Commands to one Redis server. What went wrong is said in holdfast's words, and never with a password in them.

A command that was not sent whole is not run, so nothing was written. Once it was sent and no answer came,
a write may have happened: that is an unknown outcome, and nothing is repeated here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
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

from holdfast.ambient import renew_in_child
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

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
NOT_AN_ENTRY = "NOTANENTRY"
"""What our scripts answer where they find something that they did not write."""

_TOO_MANY = "max number of clients"
_FOREIGN = "holds something else under our keys. Use another prefix or database number, or remove it."
_ANSWERS: tuple[tuple[str, type[Exception] | None, type[HoldfastError], str], ...] = (
    (NOT_AN_ENTRY, None, Corrupt, _FOREIGN),
    ("WRONGTYPE", None, Corrupt, _FOREIGN),
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
    (_TOO_MANY, None, Unavailable, "takes no more connections. Try again, or raise its maxclients."),
)
"""A word of the server, how redis-py calls it (and then takes the word away), what it means, and what to do.

Whatever is here was said before anything was written."""


class Script(msgspec.Struct, frozen=True):
    """Lua that the server runs as one step."""

    source: str

    @property
    def name(self) -> str:
        """The name under which the server remembers it."""
        return hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()


class RedisConnection:
    """Sockets to one server, each used by one thread at a time. They are opened when they are needed."""

    def __init__(self, url: str) -> None:
        self._options = _options(url)
        self._secrets = [text for name in ("password", "username") if (text := str(self._options.get(name) or ""))]
        place = (
            self._options.get("path") or f"{self._options.get('host', 'localhost')}:{self._options.get('port', 6379)}"
        )
        self.place = f"Redis at {place}"
        self._closed = False
        try:
            self.after_fork()
            self._pool.connection_class(**self._pool.connection_kwargs)
        except (TypeError, ValueError, RedisError):
            raise InvalidValue("An option after ? in the Redis URL has a value that redis-py does not take.") from None
        renew_in_child(self)

    def after_fork(self) -> None:
        """A child opens sockets of its own: on shared ones, answers would go to whoever reads first."""
        self._pool = ConnectionPool(**self._options)

    def ask(self, *command: bytes | str | int) -> Any:
        """What a command that only reads answers."""
        return self._answer(command, writes=False)

    def run(self, script: Script, names: Sequence[str], values: Sequence[bytes | str | int]) -> Any:
        """What a script that writes answers; the server is given its text once."""
        rest = (len(names), *names, *values)
        try:
            return self._answer(("EVALSHA", script.name, *rest), writes=True)
        except NoScriptError:
            return self._answer(("EVAL", script.source, *rest), writes=True)

    def _answer(self, command: tuple[bytes | str | int, ...], *, writes: bool) -> Any:
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
        """After a whole command was sent."""
        if not writes or isinstance(error, ResponseError) or self._known(error) is not None:
            return self._refusal(error)
        return OutcomeUnknown(
            f"{self.place} broke off before it answered, so the write may or may not be there. "
            "Read the entry and write again if it is missing; with expected_version nothing is written twice."
        )

    def _known(self, error: Exception) -> HoldfastError | None:
        text = _said(error)
        # Other errors are in words of redis-py, with a path or a host that may look like one of the server's.
        said = text if isinstance(error, ResponseError) or text.startswith(_TOO_MANY) else ""
        for word, named, kind, advice in _ANSWERS:
            if word in said or (named is not None and isinstance(error, named)):
                return kind(f"{self.place} {advice}")
        return None

    def _refusal(self, error: Exception) -> HoldfastError:
        """Nothing was written."""
        known = self._known(error)
        if known is not None:
            return known
        text = self._without_secrets(_said(error))[:200]
        if isinstance(error, ResponseError):
            return Unavailable(f"{self.place} refused the command and nothing was written: {text}")
        if isinstance(error, RedisTimeout):
            return Unavailable(f"{self.place} does not answer in time. Check that it runs, and try again.")
        return Unavailable(f"{self.place} cannot be reached. Check that it runs and that the URL is right. {text}")

    def _without_secrets(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def close(self) -> None:
        """Close the sockets that nobody uses; the others when their answer is there."""
        self._closed = True
        self._pool.disconnect(inuse_connections=False)


def _said(error: Exception) -> str:
    # A server that does not know a command repeats its arguments, which may be a password or an entry.
    return str(error).partition(", with args")[0]


_TAKEN = (
    "client_name",
    "db",
    "health_check_interval",
    "max_connections",
    "password",
    "socket_connect_timeout",
    "socket_keepalive",
    "socket_timeout",
    "username",
)
_parse: Any = parse_url  # It has no types.


def _options(url: str) -> dict[str, Any]:
    """What redis-py needs, read from the URL; a few things are not the URL's to say."""
    try:
        options = dict(_parse(url))
        parts = urlsplit(url)
    except (ValueError, AttributeError, TypeError):
        raise InvalidValue(
            "This is not the URL of a Redis server. Write redis://host:6379/0, rediss://… or unix:///path.sock."
        ) from None
    unknown = [name for name, _ in parse_qsl(parts.query) if name not in _TAKEN and not name.startswith("ssl_")]
    if unknown:
        raise InvalidValue(f"The Redis URL has the option {unknown[0][:40]!r}. Known are: {', '.join(_TAKEN)}, ssl_….")
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

"""The composition root of stores: a URL becomes a store with its rules. Only the backend asked for is imported."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from holdfast.ambient import SystemClock
from holdfast.connect import DURABILITIES, check_settings, embedder_for, settings_from_environment, text_of
from holdfast.core.entries import shown
from holdfast.errors import InvalidValue, Unsupported
from holdfast.flow.state.storing import Storage
from holdfast.flow.state.transients import Transients
from holdfast.ports import Clock, Store
from holdfast.records.events.envelope import DEFAULT_TENANT
from holdfast.records.settings import Settings

FORMATS = ("json", "markdown")
EXAMPLES = "memory:, fs:///folder, sqlite:///file.db, redis://host:6379/0 or cozo:///file.cozo"


def open_storage(
    url: str | os.PathLike[str],
    *,
    embedder: Any = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    options: dict[str, Any] | None = None,
) -> Storage:
    """A store with its rules. `options` are those that only some backends take."""
    settings = check_settings(settings_from_environment() if settings is None else settings)
    given = {name: value for name, value in (options or {}).items() if value is not None}
    # The store comes last: whatever is refused before it leaves nothing open behind.
    embeds, text = embedder_for(embedder), _text(url)
    return Storage(
        store=_open(text, settings, given),
        clock=clock or SystemClock(),
        settings=settings,
        transients=Transients(settings.transient_entries),
        tenant=DEFAULT_TENANT,
        embedder=embeds,
    )


def _text(url: object) -> str:
    try:
        text = text_of(url)
        text.encode()
    except (InvalidValue, UnicodeEncodeError):
        raise InvalidValue(f"Give the URL of a store: {EXAMPLES}.") from None
    return text


def _open(text: str, settings: Settings, options: dict[str, Any]) -> Store:
    scheme, separator, rest = text.partition(":")
    backend = _BACKENDS.get(scheme) if separator else None
    if backend is None:
        raise Unsupported(f"{_without_secrets(text)!r} is not a store that this release opens. Use {EXAMPLES}.")
    opened, allowed = backend
    for name in options:
        if name not in allowed:
            takes = ", ".join(allowed) or "no options"
            raise InvalidValue(f"A {scheme} store takes {takes}, not {name}.")
    if not isinstance(options.get("search", False), bool):
        raise InvalidValue(f"search must be True or False, not {shown(options['search'])}.")
    return opened(text, rest, settings, options)


def _memory(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    from holdfast.store.memory import MemoryStore

    if rest:
        raise InvalidValue(f"{_without_secrets(text)!r} names nothing: a store in memory is opened with 'memory:'.")
    most = options.get("most")
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise InvalidValue(f"most must be a whole number of at least 1, not {shown(most)}.")
    return MemoryStore(most=most, search=bool(options.get("search", False)))


def _fs(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    from holdfast.store.fs import FsStore

    kept = options.get("format", "json")
    if kept not in FORMATS:
        raise InvalidValue(f"format must be one of {', '.join(FORMATS)}, not {shown(kept)}.")
    return FsStore(_path(text), format=kept, search=bool(options.get("search", False)))


def _sqlite(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    from holdfast.store.sqlite import SqliteStore

    durability = options.get("durability", "full")
    if durability not in DURABILITIES:
        raise InvalidValue(f"durability must be one of {', '.join(DURABILITIES)}, not {shown(durability)}.")
    return SqliteStore(_path(text), settings=settings, durability=durability)


def _redis(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    try:
        from holdfast.store.redis import RedisStore
    except ImportError:
        raise Unsupported("Redis needs redis-py. Run: pip install 'holdfast[redis]'") from None
    return RedisStore(text, **options)


def _cozo(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    try:
        from holdfast.store.cozo import CozoStore
    except ImportError:
        raise Unsupported("Cozo needs its engine. Run: pip install 'holdfast[cozo]'") from None
    if rest == "":
        return CozoStore(":memory:", engine="mem")
    return CozoStore(_path(text), engine="sqlite")


_Opening = Callable[[str, str, Settings, dict[str, Any]], Store]
_BACKENDS: dict[str, tuple[_Opening, tuple[str, ...]]] = {
    "memory": (_memory, ("most", "search")),
    "fs": (_fs, ("format", "search")),
    "sqlite": (_sqlite, ("durability",)),
    "redis": (_redis, ("prefix",)),
    "rediss": (_redis, ("prefix",)),
    "unix": (_redis, ("prefix",)),
    "cozo": (_cozo, ()),
}


def _path(text: str) -> Path:
    """The path behind `scheme:///relative` or `scheme:////absolute`, in printable characters."""
    scheme = text.partition(":")[0]
    try:
        parts = urlsplit(text)
        path = unquote(parts.path.removeprefix("/"), errors="strict")
        odd = parts.netloc or parts.query or parts.fragment or not text.isprintable()
    except ValueError:
        path, odd = "", True
    if odd or not path.strip("/") or "\0" in path:
        raise InvalidValue(
            f"{_without_secrets(text)!r} names no place. Write {scheme}:///relative or {scheme}:////absolute, "
            "with ? # and % percent-encoded."
        )
    return Path(path)


def _without_secrets(text: str) -> str:
    """A URL that can be shown."""
    head, at, tail = text.rpartition("@")
    return f"{head.split('://')[0]}://…@{tail}" if at and "://" in head else text

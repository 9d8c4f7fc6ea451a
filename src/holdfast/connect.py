"""The composition root: a URL becomes an environment, or a store with its rules. The only module that names a backend.

Settings come from the call, else from the environment, else from their defaults. Only the requested
backend is imported.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote, urlsplit

import msgspec

from holdfast.core.numbers import check_number, short_repr
from holdfast.core.packs.runs import MAX_HINT_MESSAGES
from holdfast.errors import InvalidValue, NotFound, Refused, Unsupported
from holdfast.flow.effects.sinks import SinkRegistry
from holdfast.flow.frames.leases import StreamLeases
from holdfast.flow.journal import transfer
from holdfast.flow.journal.caches import StateCache
from holdfast.flow.journal.observers import EventCallbacks
from holdfast.flow.journal.read import check_cursor
from holdfast.flow.journal.redact import check_hook
from holdfast.flow.packs.past import ExcerptJournal, build_past_factory
from holdfast.flow.state.store import Storage, TransientEntries
from holdfast.flow.state.vectors import count_vectors
from holdfast.flow.turns.open import TurnQueue
from holdfast.ports import Clock, Embedder, Env, Ids, Model, Models, Store, Summarizer, Tokenizer
from holdfast.ports.capabilities import BACKUP, MAINTENANCE, require
from holdfast.ports.journal import Journal
from holdfast.records.compaction import STRATEGIES
from holdfast.records.events.envelope import DEFAULT_TENANT
from holdfast.records.ids import check_id
from holdfast.records.reports import Progress
from holdfast.records.settings import Settings
from holdfast.records.usage import Usage
from holdfast.system import Lru, SystemClock, SystemIds

DURABILITIES = ("full", "fast")
MAX_PERCENT = 100


class ClientExtensions(msgspec.Struct, frozen=True, kw_only=True):
    """The optional extensions that a client may be given in addition to its journal."""

    tokenizer: Any = None
    prices: Any = None
    redact: Any = None
    memory: Any = None
    summarizer: Any = None
    embedder: Any = None
    documents: Any = None
    fetcher: Any = None
    telemetry: Any = None
    strategies: Any = None


def settings_from_environment(environment: dict[str, str] | None = None) -> Settings:
    """Return the settings that `HOLDFAST_…` variables of the environment name; others keep their defaults."""
    source = os.environ if environment is None else environment
    given: dict[str, int] = {}
    for name in Settings.__struct_fields__:
        variable = f"HOLDFAST_{name.upper()}"
        text = source.get(variable)
        if text is None or not text.strip():
            continue
        try:
            given[name] = int(text)
        except ValueError:
            raise InvalidValue(f"{variable} must be a whole number, not {text!r}.") from None
        if given[name] < 0:
            raise InvalidValue(f"{variable} must not be negative.")
    return Settings(**given)


_POSITIVE_SETTINGS = frozenset(
    {"event_bytes", "nesting", "group_members", "group_bytes", "lease_ms", "default_context_tokens"}
)


def check_settings(settings: Settings) -> Settings:
    """Return the settings if every value is usable; refuse any other value by name."""
    if not isinstance(settings, Settings):
        raise InvalidValue(f"settings must be holdfast.Settings, not {type(settings).__name__}.")
    for name in Settings.__struct_fields__:
        value = getattr(settings, name)
        least = 1 if name in _POSITIVE_SETTINGS else 0
        check_number(f"The setting {name}", value, least=least)
        if name.endswith("_percent") and value > MAX_PERCENT:
            raise InvalidValue(f"The setting {name} is a share: at most {MAX_PERCENT}, not {value!r}.")
    return settings


def open_journal(url: str | os.PathLike[str], settings: Settings, durability: str = "full") -> Journal:
    """Open the journal at `memory:`, a path, or `sqlite:///path`."""
    if durability not in DURABILITIES:
        raise InvalidValue(f"durability must be one of {', '.join(DURABILITIES)}, not {durability!r}.")
    text = url_text(url)
    if text == "memory:":
        from holdfast.journal.memory.journal import MemoryJournal

        return MemoryJournal(settings)
    from holdfast.journal.sqlite import SqliteJournal

    return SqliteJournal(file_path(text), settings=settings, durability="full" if durability == "full" else "fast")


def url_text(url: object) -> str:
    """Return a path or URL as text."""
    if not isinstance(url, str | os.PathLike) or not os.fspath(url) or not isinstance(os.fspath(url), str):
        raise InvalidValue("Give the path of a journal file, or 'memory:'.")
    return str(os.fspath(url))


def file_path(text: str) -> Path:
    """Return the file that a path or URL names."""
    scheme, separator, _ = text.partition("://")
    if not separator:
        if text == ":memory:":
            raise InvalidValue("A journal in memory is opened with 'memory:'.")
        return _journal_path(text)
    if scheme != "sqlite":
        raise Unsupported(
            f"{scheme}:// is not a journal that this release opens. Use a path, sqlite:///path or memory:."
        )
    parts = urlsplit(text)
    if parts.netloc or parts.query or parts.fragment or not parts.path.strip("/"):
        raise InvalidValue(f"{text!r} names no file. Write sqlite:///relative.db or sqlite:////absolute.db.")
    return _journal_path(unquote(parts.path[1:]))


def _journal_path(text: str) -> Path:
    if text == "memory:" or not Path(text).name:
        raise InvalidValue(f"{text!r} names no file. Give the path of a file, such as agent.db.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"The path {text!r} is not Unicode, which SQLite needs. Rename it.") from None
    if "\0" in text:
        raise InvalidValue("A path cannot hold a NUL character.")
    return Path(text)


_MODELS_METHODS = ("info", "tokenizer", "calibration", "note")


class LazyModels:
    """The models port, loaded when tokens are first counted, so that programs that count none pay nothing."""

    def __init__(self, tokenizer: str | Tokenizer | Callable[[str], int] | None) -> None:
        self._given = tokenizer

    def __getattr__(self, name: str) -> Any:
        if name not in _MODELS_METHODS:
            raise AttributeError(name)
        from holdfast.model.registry import ModelRegistry

        registry = ModelRegistry(self._given)
        # All at once, so that threads that load it at the same time end up with the methods of one registry.
        vars(self).update({each: getattr(registry, each) for each in _MODELS_METHODS})
        return getattr(self, name)


def make_price_function(given: Any) -> Callable[[str | None, Usage], int | None]:
    """Return a price function for `given`; without one, list prices, loaded when the first call has ended."""
    if given is None:
        return _list_price
    from holdfast.model.prices import make_price_hook

    return make_price_hook(given)


def _list_price(model: str | None, usage: Usage) -> int | None:
    from holdfast.model.prices import compute_cost

    return compute_cost(usage, model)


def make_model(text: str) -> Model:
    """Return a language model by its name; see model/providers.py. `scripted` needs no key: it replies by itself."""
    if text == "scripted":
        from holdfast.model.scripted import Scripted

        return Scripted()
    from holdfast.model.providers import create_model

    return create_model(text)


def make_summarizer(
    given: Any = None, count: Callable[[str], int] | None = None, window: int | None = None
) -> Summarizer:
    """Return a Summarizer made from `given`, also from a model or its name; see `resolve_summarizer`."""
    from holdfast.model.summarizers import resolve_summarizer

    given = make_model(given) if isinstance(given, str) else given
    if callable(getattr(given, "reply", None)) and not isinstance(given, type):
        from holdfast.model.prompt import make_model_summarizer

        given = make_model_summarizer(given)
    return resolve_summarizer(given, count=count, window=window)


def check_summarizer(given: Any) -> None:
    """Refuse a summarizer that cannot work, and one that must be awaited, which nothing would do here."""
    if given is not None and getattr(make_summarizer(given), "awaits", False):
        raise InvalidValue(
            "summarizer must be done when it returns. One that must be awaited works with holdfast.open_async."
        )


def make_embedder(given: Any) -> Embedder | None:
    """Return an Embedder made from `given`, or None without one."""
    if given is None:
        return None
    from holdfast.model.embedders import resolve_embedder

    return resolve_embedder(given)


def check_memory(memory: Any) -> Any:
    """Return `memory` if it has a synchronous `take`; refuse a coroutine, which would never be awaited here."""
    take = getattr(memory, "take", None)
    if memory is not None and (not callable(take) or inspect.iscoroutinefunction(take)):
        raise InvalidValue(
            "memory must have a method take(ended) that is done when it returns. "
            "One that must be awaited works with holdfast.open_async."
        )
    return memory


def check_callable(name: str, given: Any, method: str) -> None:
    """Refuse anything but a function, an object with `method`, or (for the tokenizer) a name.

    Only the shape is checked; errors inside it appear when it is used.
    """
    text = isinstance(given, str) and name == "tokenizer"
    if given is not None and not text and not callable(given) and not callable(getattr(given, method, None)):
        raise InvalidValue(f"{name} must be a function, or have a method {method}, not {type(given).__name__}.")


def check_port(name: str, given: Any, method: str) -> None:
    """Refuse anything but an instance with `method`; a class or a plain function does not count."""
    if given is not None and (isinstance(given, type) or not callable(getattr(given, method, None))):
        raise InvalidValue(f"{name} must have a method {method}, not be {given!r:.80}.")


def check_strategies(given: Any) -> dict[str, Callable[..., Any]]:
    """Return compaction strategies by name; each must be callable and must not replace a built-in one."""
    named = {} if given is None else given
    if not isinstance(named, dict) or not all(isinstance(name, str) and callable(made) for name, made in named.items()):
        raise InvalidValue("strategies must be a mapping from names to functions.")
    for name in named:
        check_id(name, "name of a strategy")
    taken = [name for name in named if name in STRATEGIES]
    if taken:
        raise InvalidValue(f"{', '.join(taken)} is a strategy of holdfast's own. Call yours something else.")
    return dict(named)


def assemble_env(
    journal: Journal,
    settings: Settings,
    clock: Clock | None = None,
    ids: Ids | None = None,
    beside: ClientExtensions | None = None,
    *,
    tenant: str = DEFAULT_TENANT,
    user: str | None = None,
) -> Env:
    """Build the environment around a journal, with every other part made from `beside` or from defaults."""
    clock = clock or SystemClock()
    beside = beside or ClientExtensions()
    return Env(
        tenant=tenant,
        user=user,
        journal=journal,
        clock=clock,
        ids=ids or SystemIds(clock),
        states=StateCache(settings.cached_streams),
        settings=settings,
        leases=StreamLeases(journal, clock, settings.lease_ms),
        observers=EventCallbacks(),
        models=cast(Models, LazyModels(beside.tokenizer)),
        prices=make_price_function(beside.prices),
        redact=check_hook(beside.redact),
        memory=check_memory(beside.memory),
        summarizer=beside.summarizer,
        embedder=make_embedder(beside.embedder),
        transients=TransientEntries(settings.transient_entries),
        sinks=SinkRegistry(),
        vectors=Lru(settings.cached_vectors, weigh=count_vectors),
        past=build_past_factory(_make_empty_journal),
        queues=TurnQueue(),
        recent=Lru(settings.cached_windows),
        hints=Lru(MAX_HINT_MESSAGES, weigh=len),
        documents=beside.documents,
        fetcher=beside.fetcher,
        telemetry=beside.telemetry,
        strategies=check_strategies(beside.strategies),
    )


def _make_empty_journal(settings: Settings) -> ExcerptJournal:
    from holdfast.journal.memory.journal import MemoryJournal

    return MemoryJournal(settings)


def connect(
    url: str | os.PathLike[str],
    *,
    durability: str = "full",
    settings: Settings | None = None,
    clock: Clock | None = None,
    ids: Ids | None = None,
    beside: ClientExtensions | None = None,
) -> Env:
    """Open the journal at a URL and return its environment."""
    settings = check_settings(settings or settings_from_environment())
    if beside is not None:
        check_hook(beside.redact)
        check_memory(beside.memory)
        check_callable("tokenizer", beside.tokenizer, "count")
        make_price_function(beside.prices)
        if beside.summarizer is not None:
            make_summarizer(beside.summarizer)
        check_port("documents", beside.documents, "read")
        check_port("fetcher", beside.fetcher, "fetch")
        for method in ("span", "begin_call", "end_call"):
            check_port("telemetry", beside.telemetry, method)
        check_strategies(beside.strategies)
    return assemble_env(open_journal(url, settings, durability), settings, clock, ids, beside)


def restore(
    backup: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    seq: int | None = None,
    progress: Progress | None = None,
) -> int:
    """Restore a backup to a new path, whole or up to one cursor; return the cursor of its last event."""
    source_path, target_path = file_path(url_text(backup)), file_path(url_text(into))
    if not source_path.is_file() or not source_path.stat().st_size:
        raise NotFound(f"There is no backup at {source_path}.")
    if seq is not None:
        check_cursor("seq", seq)
    source = connect(source_path)
    try:
        if seq is None:
            require(source.journal, BACKUP).backup(target_path, progress)
            return source.journal.position()
        return _restore_until(source, target_path, seq, progress)
    finally:
        source.journal.close()


def _restore_until(source: Env, target_path: Path, seq: int, progress: Progress | None) -> int:
    from holdfast.journal.sqlite.maintenance import publish_copy

    if seq > source.journal.position():
        raise Refused(f"The backup ends at {source.journal.position()}, before {seq}. Give a smaller seq, or none.")
    with publish_copy(target_path) as partial:
        target = connect(partial, settings=source.settings)
        try:
            copies = transfer.check_chains(transfer.read_items(source, seq, progress))
            return require(target.journal, MAINTENANCE).restore(source.journal.secret, copies)
        finally:
            target.journal.close()


FS_FORMATS = ("json", "markdown")
STORE_EXAMPLES = "memory:, fs:///folder, sqlite:///file.db, redis://host:6379/0 or cozo:///file.cozo"


def open_storage(
    url: str | os.PathLike[str],
    *,
    embedder: Any = None,
    settings: Settings | None = None,
    clock: Clock | None = None,
    options: dict[str, Any] | None = None,
) -> Storage:
    """Open a store with its rules. `options` are those that only some backends take."""
    settings = check_settings(settings_from_environment() if settings is None else settings)
    given = {name: value for name, value in (options or {}).items() if value is not None}
    # The store is opened last, so that a refusal of another argument leaves nothing open.
    embeds = make_embedder(embedder)
    try:
        text = url_text(url)
        text.encode()
    except (InvalidValue, UnicodeEncodeError):
        raise InvalidValue(f"Give the URL of a store: {STORE_EXAMPLES}.") from None
    return Storage(
        store=_open_store(text, settings, given),
        clock=clock or SystemClock(),
        settings=settings,
        transients=TransientEntries(settings.transient_entries),
        tenant=DEFAULT_TENANT,
        embedder=embeds,
        reserving=True,
    )


def _open_store(text: str, settings: Settings, options: dict[str, Any]) -> Store:
    scheme, separator, rest = text.partition(":")
    backend = _STORE_BACKENDS.get(scheme) if separator else None
    if backend is None:
        raise Unsupported(f"{_hide_secrets(text)!r} is not a store that this release opens. Use {STORE_EXAMPLES}.")
    opened, allowed = backend
    for name in options:
        if name not in allowed:
            takes = ", ".join(allowed) or "no options"
            raise InvalidValue(f"A {scheme} store takes {takes}, not {name}.")
    if not isinstance(options.get("search", False), bool):
        raise InvalidValue(f"search must be True or False, not {short_repr(options['search'])}.")
    return opened(text, rest, settings, options)


def _open_memory_store(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    from holdfast.store.memory import MemoryStore

    if rest:
        raise InvalidValue(f"{_hide_secrets(text)!r} names nothing: a store in memory is opened with 'memory:'.")
    most = options.get("most")
    if most is not None:
        check_number("most", most, least=1)
    return MemoryStore(most=most, search=bool(options.get("search", False)))


def _open_fs_store(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    from holdfast.store.fs.store import FsStore

    kept = options.get("format", "json")
    if kept not in FS_FORMATS:
        raise InvalidValue(f"format must be one of {', '.join(FS_FORMATS)}, not {short_repr(kept)}.")
    return FsStore(_store_path(text), format=kept, search=bool(options.get("search", False)))


def _open_sqlite_store(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    from holdfast.store.sqlite import SqliteStore

    durability = options.get("durability", "full")
    if durability not in DURABILITIES:
        raise InvalidValue(f"durability must be one of {', '.join(DURABILITIES)}, not {short_repr(durability)}.")
    return SqliteStore(_store_path(text), settings=settings, durability=durability)


def _open_redis_store(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    try:
        from holdfast.store.redis import RedisStore
    except ImportError:
        raise Unsupported("Redis needs redis-py. Run: pip install 'holdfast[redis]'") from None
    return RedisStore(text, **options)


def _open_cozo_store(text: str, rest: str, settings: Settings, options: dict[str, Any]) -> Store:
    try:
        from holdfast.store.cozo import CozoStore
    except ImportError:
        raise Unsupported("Cozo needs its engine. Run: pip install 'holdfast[cozo]'") from None
    if rest == "":
        return CozoStore(":memory:", engine="mem")
    return CozoStore(_store_path(text), engine="sqlite")


_StoreOpener = Callable[[str, str, Settings, dict[str, Any]], Store]
_STORE_BACKENDS: dict[str, tuple[_StoreOpener, tuple[str, ...]]] = {
    "memory": (_open_memory_store, ("most", "search")),
    "fs": (_open_fs_store, ("format", "search")),
    "sqlite": (_open_sqlite_store, ("durability",)),
    "redis": (_open_redis_store, ("prefix",)),
    "rediss": (_open_redis_store, ("prefix",)),
    "unix": (_open_redis_store, ("prefix",)),
    "cozo": (_open_cozo_store, ()),
}


def _store_path(text: str) -> Path:
    """Return the path in `scheme:///relative`, `scheme:////absolute` or `scheme:/absolute`; it must be printable."""
    scheme, _, rest = text.partition(":")
    try:
        parts = urlsplit(text)
        # The first slash after an authority, even an empty one, only ends that authority.
        path = unquote(parts.path.removeprefix("/") if rest.startswith("//") else parts.path, errors="strict")
        odd = parts.netloc or parts.query or parts.fragment or not text.isprintable()
    except ValueError:
        path, odd = "", True
    if odd or not path.strip("/") or "\0" in path:
        raise InvalidValue(
            f"{_hide_secrets(text)!r} names no place. Write {scheme}:///relative or {scheme}:////absolute, "
            "with ? # and % percent-encoded."
        )
    return Path(path)


def _hide_secrets(text: str) -> str:
    head, at, tail = text.rpartition("@")
    return f"{head.split('://')[0]}://…@{tail}" if at and "://" in head else text

"""The ports: the Protocols that have several implementations or that users implement, and the environment of a flow.

The journal's own are in `ports/journal.py`. A backend translates every driver error into holdfast's own. The public
contract suites in `holdfast.testing` specify the rest. Caches and registries of one process have one implementation
each, in `flow`: the environment names these classes, for type checkers only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from holdfast.ports.journal import Journal
from holdfast.records.effects import DeclaredEffect
from holdfast.records.entries import (
    Edge,
    EdgeQuery,
    EntryMatch,
    EntryPageQuery,
    EntrySearchQuery,
    Revision,
    StoredEntry,
)
from holdfast.records.events.envelope import Trust
from holdfast.records.ids import SessionId
from holdfast.records.messages import Delta, Message, ModelCall, ModelInfo, ModelReply
from holdfast.records.settings import Settings
from holdfast.records.usage import Usage

if TYPE_CHECKING:
    from holdfast.flow.compaction.recall import PassageMirror
    from holdfast.flow.effects.sinks import SinkRegistry
    from holdfast.flow.frames.leases import StreamLeases
    from holdfast.flow.journal.caches import StateCache
    from holdfast.flow.journal.observers import EventCallbacks
    from holdfast.flow.state.store import TransientEntries
    from holdfast.flow.state.vectors import VectorBlocks
    from holdfast.flow.turns.open import TurnQueue
    from holdfast.system import Lru


class Clock(Protocol):
    """An injected clock. Wall time is recorded and never orders events; monotonic time measures durations."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """An injected source of ids and salts."""

    def ulid(self) -> bytes: ...

    def salt(self) -> bytes: ...


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """A receiver of effects. A `patient` one may wait for other work, and waiting does not count as failing."""

    deliver: Callable[[DeclaredEffect], Any]
    when_dead: str = "stop"
    patient: bool = False


class Tokenizer(Protocol):
    """A counter of a text's tokens; `exact` is True for the model's own tokenizer, False for an upper estimate."""

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def count(self, text: str) -> int: ...


class Model(Protocol):
    """A language model behind a wire. It retries failures that waiting can cure and raises ModelFailed for others.

    `say` is called with each piece of the reply as it arrives.
    """

    @property
    def name(self) -> str:
        """The model's name in requests, by which its context window and tokenizer are looked up."""

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply: ...

    async def close(self) -> None:
        """Close the connections of the running event loop. The model may be called again."""


class Summarizer(Protocol):
    """A writer of summaries of messages; `name` is recorded with every summary."""

    @property
    def name(self) -> str: ...

    def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


SUMMARY_CALLS: Final[ContextVar[list[tuple[str, Usage]] | None]] = ContextVar("holdfast_summary_calls", default=None)
"""The model calls of the summary being made: a summarizer adds each of its own, with the name of the model."""


class Embedder(Protocol):
    """A source of vectors of one length for texts; `name` is stored with every vector and changes when vectors do."""

    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        """Return for each text `dimensions` numbers of one byte each: the unit vector times 127."""


class Store(Protocol):
    """Scoped entries in one technology. A store keeps bytes that were encoded above it and compares versions.

    Rules are applied above it: scopes are canonical texts and keys were checked, so backends agree on both.
    """

    @property
    def capabilities(self) -> frozenset[str]:
        """The optional features of this backend: see `records.entries.CAPABILITIES`."""

    def get(self, scope: str, key: str) -> StoredEntry | None:
        """Return the entry, even if expired, or None if there is none."""

    def put(
        self, scope: str, key: str, entry: StoredEntry, expected: int | None = None, once: str | None = None
    ) -> int | None:
        """Write an entry and return its new version; None if `expected` is given and is not the version (0: no entry).

        `once` is an idempotency key, for stores that take them.
        """

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        """Remove an entry; return False if there was none, None if it is not at the expected version."""

    def page(self, scope: str, page: EntryPageQuery) -> list[tuple[str, StoredEntry]]:
        """Return live entries in order of key by Unicode code points; the cost follows the answer."""

    def search(self, scope: str, wanted: EntrySearchQuery) -> list[EntryMatch]:
        """Return matching live entries of this scope alone, in any order; none if the store has no such search."""

    def purge(self, now: int) -> int:
        """Delete expired entries of every scope for good; return their number. Entries rewritten meanwhile stay."""

    def link(self, edge: Edge) -> None:
        """Add an edge, or replace the data of the same edge."""

    def unlink(self, edge: Edge) -> bool:
        """Remove an edge, whatever its data; return False if there was none."""

    def edges(self, query: EdgeQuery) -> list[Edge]:
        """Return the edges at some keys."""

    def close(self) -> None:
        """Release all resources. Closing twice is fine."""


class KeyedStore(Store, Protocol):
    """A store that declares `keys`."""

    def version_by_key(self, scope: str, key: str, once: str, given: bytes | None, reducer: str) -> int | None:
        """Return the version that a call with this idempotency key wrote, or None; raise KeyReused if it differs."""


class HistoryStore(Store, Protocol):
    """A store that declares `history`."""

    def history(self, scope: str, key: str, limit: int | None) -> list[Revision]:
        """Return the revisions of a key, newest first."""

    def scopes(self, now: int, after: str, limit: int) -> list[str]:
        """Return the scopes that have entries, in order, after one of them."""


class DatalogStore(Store, Protocol):
    """A store that declares `datalog`."""

    def datalog(self, script: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Run a read-only script and return its result."""


class Documents(Protocol):
    """A reader of files that evidence may point to, under one folder and nowhere else."""

    def read(self, path: str) -> str: ...


class Fetcher(Protocol):
    """A reader of web pages that evidence points to. None unless a client is given one."""

    def fetch(self, url: str) -> str: ...


class Telemetry(Protocol):
    """Spans around operations. None unless a client is given one."""

    def span(self, name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[Callable[[str, Any], None]]:
        """Open a span around an operation; yield a function that adds an attribute to it."""

    def begin_call(self, call: str, attributes: Mapping[str, Any]) -> None:
        """Record the start of a model call, which may end in another operation, in another thread, or never."""

    def end_call(self, call: str, attributes: Mapping[str, Any], error: str | None = None) -> None:
        """Record the end of a model call, or its failure with an error of this kind."""


class Models(Protocol):
    """The known models and the tokenizers that count for them."""

    def info(self, model: str | None) -> ModelInfo: ...

    def tokenizer(self, name: str | None = None) -> Tokenizer: ...

    def calibration(self, model: str | None, tokenizer: str | None = None, *, tenant: str = "") -> float | None:
        """Return the factor for a model's estimated tokens; None if they are exact or no factor is known."""

    def note(
        self, model: str | None, estimated: int, reported: int, tokenizer: str | None = None, *, tenant: str = ""
    ) -> None:
        """Record the estimated and the reported tokens of a request to a model."""


class EndedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that has ended, as it is offered to memory. The same `key` means the same conversation."""

    key: str
    tenant: str
    session: SessionId
    generation: int
    cause: str
    ended_at: int
    threads: tuple[str, ...]
    read: Callable[[str], Iterator[Message]]

    def messages(self, thread: str = "main") -> Iterator[Message]:
        """Yield all messages of a thread from its beginning, including those that windows left out."""
        return self.read(thread)


class Memory(Protocol):
    """The memory that outlives sessions. Offers repeat with the same key until `take` returns, so it is idempotent."""

    def take(self, ended: EndedConversation) -> None: ...


class Env(msgspec.Struct, frozen=True, kw_only=True):
    """The environment of a flow: every dependency that it may use, and the tenant and user on whose behalf it acts.

    The tenant is the part of an address that is never a query argument.
    """

    tenant: str
    whole: bool = True
    """True if the journal as a whole may be read and copied; False in a tenant's view."""
    user: str | None = None
    origin: str = "client"
    trust: Trust = "system"
    journal: Journal
    clock: Clock
    ids: Ids
    states: StateCache
    settings: Settings
    leases: StreamLeases
    observers: EventCallbacks
    models: Models
    prices: Callable[[str | None, Usage], int | None] | None = None
    """The cost of a model call in billionths of a US dollar; None if unknown."""
    redact: Callable[[str], str] | None = None
    memory: Memory | None = None
    summarizer: Summarizer | None = None
    embedder: Embedder | None = None
    transients: TransientEntries
    vectors: Lru[tuple[str, str, str], VectorBlocks]
    sinks: SinkRegistry
    documents: Documents | None = None
    fetcher: Fetcher | None = None
    telemetry: Telemetry | None = None
    recent: Lru[tuple[str, str, str], Any] | None = None
    hints: Lru[tuple[str, str, str], Any] | None = None
    queues: TurnQueue
    past: Callable[[Env, int], Env] | None = None
    """Return the environment of the journal as it was at a cursor, in memory."""
    endings: list[Callable[[], None]] = []
    """Callbacks that release resources before the client is closed."""
    strategies: dict[str, Callable[..., Any]] = {}
    """The compaction strategies that this client was given, by name."""
    rules: dict[tuple[str, str], Any] = {}
    """The session rules of this process, by tenant and session's stream."""
    mirrors: dict[tuple[str, int], PassageMirror] = {}
    """The stores with copies of compacted passages, by tenant and identity of the store."""

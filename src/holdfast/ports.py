"""The ports: what the flows need from the outside, at the level of meaning.

A backend stores bytes that were made above it and applies row changes that it need not
understand. It translates every driver error into holdfast's own. The public contract
suite in `holdfast.testing` says the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import msgspec

from holdfast.core.searchable import Hit, TextSearch
from holdfast.records.batches import Appended, Artifact, Batch, Head
from holdfast.records.effects import DeclaredEffect
from holdfast.records.entries import Edge, EdgeQuery, EntryPage, Match, Stored, Wanted
from holdfast.records.events.envelope import Draft, Event, Sealed, Source, StoredEvent, Trust
from holdfast.records.events.frames import GoalContent
from holdfast.records.frames import StreamState
from holdfast.records.messages import Message
from holdfast.records.models import ModelInfo
from holdfast.records.reports import Erasure, Finding, Progress, Query, Subject
from holdfast.records.rows import Found, Row, SessionQuery, SessionRow, Span, Value
from holdfast.records.settings import Settings


class Clock(Protocol):
    """Time, injected. Wall time is recorded and never orders; monotonic time measures."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """Names and salts, injected."""

    def ulid(self) -> bytes: ...

    def salt(self) -> bytes: ...


class Journal(Protocol):
    """Where events live, in order, per stream."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What this backend offers beyond the base: `backup`, `files`, `shared`."""

    @property
    def secret(self) -> bytes:
        """This journal's own random key, from which artifact names and fences are derived."""

    def append(self, batch: Batch) -> Appended:
        """Write a batch, all of it or nothing; the one write. Returns once it is on disk."""

    def head(self, tenant: str, stream: str) -> Head | None:
        """The end of a stream, or None if it has no events."""

    def heads(self, tenant: str, after: str, limit: int) -> list[Head]:
        """Streams in order of name, after one name."""

    def tenants(self) -> list[str]:
        """Every tenant that has written something."""

    def load(self, tenant: str, stream: str) -> StreamState:
        """A stream's state from its rows, at a cost that follows its live frames."""

    def find(self, tenant: str, table: str, column: str | None, value: Value, after: bytes, limit: int) -> list[Found]:
        """Rows of a projection by one of the columns that it declares, or all, in order of key after its first."""

    def event(self, tenant: str, id: bytes) -> StoredEvent | None:
        """The event with this id, in whatever stream it is."""

    def span(self, tenant: str, stream: str, span: Span) -> list[Row]:
        """Rows of one stream's projection in order of version, forwards or backwards; the cost follows the answer."""

    def sessions(self, tenant: str, query: SessionQuery) -> list[SessionRow]:
        """Sessions, the most recently active first."""

    def idle_sessions(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        """Streams of open sessions that have been quiet for as long as their timeouts say, in order of name."""

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        """The event that holds a key's value, also if its time is over; None if the key has none or it was erased."""

    def entries(self, tenant: str, stream: str, page: EntryPage) -> list[StoredEvent]:
        """The same for a page of live entries, in order of key by code points."""

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        """The events below a version that wrote or deleted a key, newest first."""

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        """The events that made edges, whose streams are the scopes that they begin in."""

    def linked(self, tenant: str, edge: Edge) -> bool:
        """Whether there is this edge, whatever its data; the cost does not follow how many its ends have."""

    def expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        """(stream, key, version) of entries whose time is over, in any order; the cost follows the answer."""

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        """Streams that have live entries, in order of name, after one name."""

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        """Messages and entries that hold some of the words, best first; nothing that no longer stands."""

    def hits(self, tenant: str, seqs: Sequence[int]) -> list[Hit]:
        """The same for events that were found by other means, without scores."""

    def unembedded(self, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
        """Messages and entries of a stream that have no vector of this embedder yet, oldest first."""

    def known_vectors(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Vectors that were kept under these digests of their texts."""

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Keep (seq, digest, vector) for events of a stream. A cache: it is never told to others, and may be lost."""

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        """(seq, vector) of a stream, after one event, in order."""

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        """Forget the vectors of events that no longer stand for anything."""

    def lanes(self, tenant: str, sink: str | None = None) -> list[Found]:
        """The first effect of every lane, or of those of one sink, in order of sink and stream."""

    def lane(self, tenant: str, sink: str, stream: str, limit: int) -> list[Row]:
        """Rows of effects of one lane, in the order in which they were declared."""

    def streams_with_work(self, tenant: str, after: str, limit: int) -> list[str]:
        """Names of streams that have live frames, in order, after one name; the cost follows the live frames."""

    def renew(self, tenant: str, stream: str, epoch: int) -> bool:
        """A sign of life from the owner under this epoch; False if somebody else owns the stream now."""

    def renewals(self, tenant: str, stream: str) -> int:
        """How many signs of life a stream's owners have given: whoever watches looks for a change."""

    def read(self, query: Query) -> list[StoredEvent]:
        """One page of events."""

    def by_key(self, tenant: str, stream: str, key: str) -> list[StoredEvent]:
        """The events that a key stands for, or none."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Within it, everything this thread reads is of one moment, whatever others write."""

    def position(self) -> int:
        """The cursor of the newest committed event, also of other processes; 0 if there is none."""

    def watch(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each commit of this process; returns what undoes it."""

    def artifact(self, tenant: str, name: bytes) -> bytes | None:
        """An artifact's bytes; None if it was erased. Unknown names are refused."""

    def place_artifact(self, tenant: str, name: bytes, body: bytes, at: int) -> Artifact:
        """Make a body ready for the append that will refer to it; on disk if it is to be a file."""

    def withdraw_artifact(self, tenant: str, name: bytes) -> None:
        """Take back what was placed for an append that did not need it, unless something else refers to it."""

    def collect(self, before_ms: int) -> int:
        """Remove artifacts that nothing refers to and that were placed before then."""

    def subjects(self, tenant: str) -> list[Subject]:
        """The pseudonyms of a tenant, with the names that are not erased."""

    def erase(self, tenant: str, subject: str, marker: Callable[[int, int, int], Sealed], source: Source) -> Erasure:
        """Remove a subject's content, salts, artifacts and name, and append `marker` in the same commit."""

    def rows(self, table: str) -> Iterator[tuple[str, str, Row]]:
        """Every row of a projection with its tenant and stream, in order of tenant, stream and key."""

    def rebuild(self, progress: Progress | None = None) -> int:
        """Make every projection anew from the events; returns how many were applied."""

    def check(self) -> Iterator[Finding]:
        """What is wrong in ways that only this backend can see."""

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        """Every artifact with its tenant, its body read in."""

    def restore(self, secret: bytes, items: Iterable[tuple[str, StoredEvent | Subject | Artifact]]) -> int:
        """Write exact copies, each with its tenant, into this journal, which must be empty, and take the secret."""

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        """A consistent copy while others write."""

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""


class States(Protocol):
    """A bounded cache of stream states, and the locks under which they are changed. A hint, never the truth."""

    def get(self, tenant: str, stream: str) -> StreamState | None: ...

    def put(self, tenant: str, stream: str, state: StreamState) -> None: ...

    def drop(self, tenant: str, stream: str) -> None: ...

    def clear(self) -> None: ...

    def place(self, tenant: str, frame: str) -> str | None: ...

    def note_place(self, tenant: str, frame: str, stream: str) -> None: ...

    def note_goal(self, tenant: str, stream: str, version: int, goal: GoalContent) -> None: ...

    def take_goal(self, tenant: str, stream: str, version: int) -> GoalContent | None: ...

    def locked(self, tenant: str, streams: Iterable[str]) -> AbstractContextManager[None]: ...


class Leases(Protocol):
    """Which streams this process owns, and whether others still work on theirs."""

    draining: bool
    claims: dict[tuple[str, str], int]
    blocks: set[tuple[str, str]]

    def taking(self, tenant: str, stream: str) -> AbstractContextManager[object]: ...

    @property
    def name(self) -> str: ...

    def epoch(self, tenant: str, stream: str, state: StreamState) -> int: ...

    def holds(self, tenant: str, stream: str) -> bool: ...

    def enter_block(self, tenant: str, frame: str) -> bool: ...

    def users(self) -> int: ...

    def wanted(self, tenant: str, stream: str, state: StreamState) -> list[Draft]: ...

    def released(self, tenant: str, stream: str, epoch: int) -> list[Draft]: ...

    def taken(self, tenant: str, stream: str, epoch: int) -> None: ...

    def left(self, tenant: str, stream: str, epoch: int) -> None: ...

    def lost(self, tenant: str, stream: str) -> None: ...

    def await_free(self, tenant: str, stream: str, state: StreamState) -> None: ...

    def close(self) -> None: ...


class Observers(Protocol):
    """Callbacks of this process, told after a commit."""

    def wanted(self, tenant: str, type_name: str) -> bool: ...

    def tell(self, event: Event) -> None: ...

    def later(self) -> AbstractContextManager[object]: ...

    def add(self, tenant: str, pattern: str, callback: Callable[[Event], object]) -> Callable[[], None]: ...


class Transients(Protocol):
    """Entries that lie over what is stored, of this process alone, until they are cleared."""

    def get(self, place: tuple[str, str], key: str, now: int) -> Stored | None: ...

    def at(self, place: tuple[str, str], key: str) -> Stored | None: ...

    def put(self, place: tuple[str, str], key: str, entry: Stored, before: Stored | None) -> bool: ...

    def drop(self, place: tuple[str, str], key: str) -> bool: ...

    def clear(self, place: tuple[str, str]) -> int: ...

    def clear_below(self, place: tuple[str, str]) -> None: ...

    def over(self, place: tuple[str, str], now: int) -> Iterable[tuple[str, Stored]]: ...


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """Something that takes effects. A `patient` one waits for others to be done and is not given up for that."""

    deliver: Callable[[DeclaredEffect], Any]
    when_dead: str = "stop"
    patient: bool = False


class Sinks(Protocol):
    """The sinks and the middleware of one client; a tenant's own, or with None everybody's."""

    def add(self, tenant: str | None, name: str, sink: Sink) -> Callable[[], None]: ...

    def find(self, tenant: str, name: str) -> Sink | None: ...

    def add_middleware(self, tenant: str | None, function: Callable[[Any], Any]) -> Callable[[], None]: ...

    def middleware(self, tenant: str) -> Sequence[Callable[[Any], Any]]: ...


class VectorCache(Protocol):
    """Vectors of streams in memory, in blocks. Bounded, and a hint: what is not there is read."""

    def get(self, place: tuple[str, str, str]) -> tuple[Any, ...]: ...

    def put(self, place: tuple[str, str, str], blocks: tuple[Any, ...]) -> None: ...

    def clear(self) -> None: ...


class Tokenizer(Protocol):
    """Counts the tokens of a text; `exact` says whether it is the model's own or an upper estimate."""

    @property
    def name(self) -> str: ...

    @property
    def exact(self) -> bool: ...

    def count(self, text: str) -> int: ...


class Summarizer(Protocol):
    """Puts messages into fewer words; `name` is noted with every summary."""

    @property
    def name(self) -> str: ...

    def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str: ...


class Embedder(Protocol):
    """Texts as vectors of one length; `name` is stored with every vector and changes when the vectors would."""

    @property
    def name(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def embed(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        """For each text `dimensions` numbers of one byte: the unit vector times 127."""


class Store(Protocol):
    """Scoped entries in one technology. It keeps bytes that were made above it and compares versions; rules are above.

    Scopes are canonical texts and keys were checked, so every backend gives the same verdict on both.
    """

    @property
    def capabilities(self) -> frozenset[str]:
        """What this backend offers beyond reading and writing: see `records.entries.CAPABILITIES`."""

    def get(self, scope: str, key: str) -> Stored | None:
        """The entry, also if its time is over; None if there is none."""

    def put(
        self, scope: str, key: str, entry: Stored, expected: int | None = None, once: str | None = None
    ) -> int | None:
        """Write an entry and give its new version. With `expected` only in place of that one (0: of none), else None.

        `once` is an idempotency key, for stores that take them.
        """

    def drop(self, scope: str, key: str, expected: int | None = None, once: str | None = None) -> bool | None:
        """Remove an entry; False if there was none, None if it is not at the expected version."""

    def page(self, scope: str, page: EntryPage) -> list[tuple[str, Stored]]:
        """Live entries in order of key by Unicode code points; the cost follows the answer."""

    def search(self, scope: str, wanted: Wanted) -> list[Match]:
        """Live entries of this scope alone that match, in any order; none where nothing of the kind is offered."""

    def purge(self, now: int) -> int:
        """Remove entries whose time is over, of every scope, for good; gives how many. What was written since stays."""

    def link(self, edge: Edge) -> None:
        """An edge, new or in place of the same one with other data."""

    def unlink(self, edge: Edge) -> bool:
        """An edge goes, whatever its data; False if there was none."""

    def edges(self, query: EdgeQuery) -> list[Edge]:
        """Edges at some keys."""

    def close(self) -> None:
        """Let go of everything. Closing twice is fine."""


class Models(Protocol):
    """What is known about models, and the tokenizers that count for them."""

    def info(self, model: str | None) -> ModelInfo: ...

    def tokenizer(self, name: str | None = None) -> Tokenizer: ...


class EndedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """A conversation that has ended, as it is offered to memory. The same `key` is the same conversation again."""

    key: str
    tenant: str
    session: str
    generation: int
    cause: str
    ended_at: int
    threads: tuple[str, ...]
    read: Callable[[str], Iterator[Message]]

    def messages(self, thread: str = "main") -> Iterator[Message]:
        """The whole line from its beginning, whatever any window left out."""
        return self.read(thread)


class Memory(Protocol):
    """What outlives sessions. Offered again with the same key until it returns, so taking twice must do nothing."""

    def take(self, ended: EndedConversation) -> None: ...


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a flow may touch."""

    journal: Journal
    clock: Clock
    ids: Ids
    states: States
    settings: Settings
    leases: Leases
    observers: Observers
    models: Models | None = None
    redact: Callable[[str], str] | None = None
    memory: Memory | None = None
    summarizer: Summarizer | None = None
    embedder: Embedder | None = None
    transients: Transients | None = None
    vectors: VectorCache | None = None
    sinks: Sinks | None = None


class Acting(msgspec.Struct, frozen=True, kw_only=True):
    """Who acts, and for which tenant: the part of an address that is never an argument of a query."""

    tenant: str
    whole: bool = True
    """Whether the journal as a whole may be looked at and copied: not through a tenant's view."""
    user: str | None = None
    origin: str = "client"
    trust: Trust = "system"

"""The ports: what the flows need from the outside, at the level of meaning.

The journal's own, which is the largest, is in `journal_port.py`. A backend translates every driver
error into holdfast's own. The public contract suites in `holdfast.testing` say the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import msgspec

from holdfast.ports.journal import Journal
from holdfast.records.effects import DeclaredEffect
from holdfast.records.entries import Edge, EdgeQuery, EntryPage, Match, Revision, Stored, Wanted
from holdfast.records.events.envelope import Draft, Event, Trust
from holdfast.records.events.frames import GoalContent
from holdfast.records.frames import StreamState
from holdfast.records.messages import Message
from holdfast.records.models import Delta, ModelCall, ModelInfo, ModelReply
from holdfast.records.settings import Settings
from holdfast.records.usage import Usage


class Clock(Protocol):
    """Time, injected. Wall time is recorded and never orders; monotonic time measures."""

    def now_ms(self) -> int: ...

    def monotonic(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class Ids(Protocol):
    """Names and salts, injected."""

    def ulid(self) -> bytes: ...

    def salt(self) -> bytes: ...


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

    def watching(self, tenant: str, stream: str) -> Iterator[float]: ...

    def seems_free(self, tenant: str, stream: str) -> bool: ...

    def close(self) -> None: ...


class Queues(Protocol):
    """Who works on a conversation in this process, and who waits for it, in order."""

    def enter(self, place: tuple[str, str]) -> bool: ...

    def wait(self, place: tuple[str, str], wake: Callable[[], None], *, ahead: bool = False) -> Any: ...

    def dismiss(self) -> None: ...

    def give_up(self, ticket: Any) -> None: ...

    def leave(self, place: tuple[str, str]) -> None: ...


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


class Recent(Protocol):
    """Ends of conversations, decoded and counted. Bounded, and a hint: whoever takes one checks that it still holds."""

    def get(self, place: tuple[str, str, str]) -> Any: ...

    def put(self, place: tuple[str, str, str], window: Any) -> None: ...

    def clear(self) -> None: ...


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


class Model(Protocol):
    """A language model behind a wire. It retries what can be cured by waiting; what it cannot give raises ModelFailed.

    `say` is called with each piece of the reply as it comes.
    """

    @property
    def name(self) -> str:
        """What requests call it; the window and the tokenizer are looked up by it."""

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply: ...

    async def close(self) -> None: ...


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


class KeyedStore(Store, Protocol):
    """What a store that declares `keys` offers besides."""

    def answered(self, scope: str, key: str, once: str, given: bytes | None, reducer: str) -> int | None:
        """What a call with this idempotency key made before; None if there was none, KeyReused if it was another."""


class TellingStore(Store, Protocol):
    """What a store that declares `history` offers besides."""

    def history(self, scope: str, key: str, limit: int | None) -> list[Revision]:
        """What a key held, newest first."""

    def scopes(self, now: int, after: str, limit: int) -> list[str]:
        """Scopes that have entries, in order, after one of them."""


class DatalogStore(Store, Protocol):
    """What a store that declares `datalog` offers besides."""

    def datalog(self, script: str, params: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """What a script finds; it can only read."""


class Documents(Protocol):
    """Files that evidence may point to, under one folder and nowhere else."""

    def read(self, path: str) -> str: ...


class Fetcher(Protocol):
    """Texts from the web, for evidence that points there. There is none unless a client is given one."""

    def fetch(self, url: str) -> str: ...


class Telemetry(Protocol):
    """Spans around what takes time. There is none unless a client is given one."""

    def span(self, name: str, attributes: Mapping[str, Any]) -> AbstractContextManager[Callable[[str, Any], None]]:
        """Around a piece of work; gives what adds an attribute to it."""

    def begin_call(self, call: str, attributes: Mapping[str, Any]) -> None:
        """A model is called; it answers in another operation, perhaps in another thread, or never."""

    def end_call(self, call: str, attributes: Mapping[str, Any], error: str | None = None) -> None:
        """It has answered, or failed with an error of this kind."""


class Models(Protocol):
    """What is known about models, and the tokenizers that count for them."""

    def info(self, model: str | None) -> ModelInfo: ...

    def tokenizer(self, name: str | None = None) -> Tokenizer: ...

    def calibration(self, model: str | None, tokenizer: str | None = None, *, tenant: str = "") -> float | None:
        """What tokens that are estimated for a model are to be multiplied by; None if they are exact, or not known."""

    def note(
        self, model: str | None, estimated: int, reported: int, tokenizer: str | None = None, *, tenant: str = ""
    ) -> None:
        """A request to a model was estimated to have so many tokens, and had so many."""


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
    prices: Callable[[str | None, Usage], int | None] | None = None
    """What a call of a model cost in billionths of a US dollar; None if that is not known."""
    redact: Callable[[str], str] | None = None
    memory: Memory | None = None
    summarizer: Summarizer | None = None
    embedder: Embedder | None = None
    transients: Transients | None = None
    vectors: VectorCache | None = None
    sinks: Sinks | None = None
    documents: Documents | None = None
    fetcher: Fetcher | None = None
    telemetry: Telemetry | None = None
    recent: Recent | None = None
    queues: Queues | None = None
    past: Callable[[Ports, Acting, int], Ports] | None = None
    """The journal as it was at a cursor, in memory."""
    endings: list[Callable[[], None]] = []
    """What has to be let go of before the client is closed."""
    strategies: dict[str, Callable[..., Any]] = {}
    """Ways of compacting that this client was given, by name."""
    rules: dict[tuple[str, str], Any] = {}
    """Rules of this process for sessions, by tenant and session's stream."""


class Acting(msgspec.Struct, frozen=True, kw_only=True):
    """Who acts, and for which tenant: the part of an address that is never an argument of a query."""

    tenant: str
    whole: bool = True
    """Whether the journal as a whole may be looked at and copied: not through a tenant's view."""
    user: str | None = None
    origin: str = "client"
    trust: Trust = "system"

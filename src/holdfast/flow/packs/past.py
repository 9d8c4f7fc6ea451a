"""The journal as it was at a cursor: a read-only copy of one tenant's events up to there, in memory.

Events are exact copies, with their cursors, ids, versions and hashes; rows are projected from them again. Content
erased since stays erased. Artifact bodies are read from the live journal on demand. The clock stands still at the
newest event, so exactly the entries that had expired by then are expired. Nothing can be written, and nothing outside
is reached: files and web pages exist only as they are now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NoReturn, Protocol, cast

from msgspec.structs import replace

from holdfast.core.compaction.sentences import word_set
from holdfast.core.journal.codec import decode_facts
from holdfast.core.numbers import is_number
from holdfast.errors import InvalidValue, NotFound, ReadOnly
from holdfast.flow.effects.sinks import SinkRegistry
from holdfast.flow.frames.leases import StreamLeases
from holdfast.flow.journal.caches import StateCache
from holdfast.flow.journal.observers import EventCallbacks
from holdfast.flow.journal.read import iterate_stored
from holdfast.flow.state.store import TransientEntries
from holdfast.flow.state.vectors import count_vectors
from holdfast.ports import Clock, Env
from holdfast.ports.capabilities import ARTIFACTS, GROUPS, VECTORS, require
from holdfast.ports.journal import Journal
from holdfast.records.batches import Artifact
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.reports import EventQuery, Subject
from holdfast.records.settings import Settings
from holdfast.system import Lru

PAGE: Final = 512

_READ_METHODS: Final = word_set(
    """
    secret head heads tenants load select event sessions idle_sessions entry entries revisions edges has_edge
    find_expired scopes search hits find_unembedded keep_vectors vectors drop_vectors lanes renewals
    is_writable read events_by_key snapshot position watch subjects count rows check close
    """
)
"""Methods answered from the copied events. Vectors are cached for the copy alone."""
_WRITE_METHODS: Final = word_set(
    """
    append renew_lease place_artifact withdraw_artifact collect erase rebuild restore backup
    """
)

ExcerptItem = tuple[str, StoredEvent | Subject | Artifact]


class ExcerptJournal(Journal, Protocol):
    """A journal that can hold some events of another journal, with gaps."""

    def hold(
        self, secret: bytes, position: int, items: Iterable[ExcerptItem], bodies: Callable[[str, bytes], bytes | None]
    ) -> None: ...


class PastJournal:
    """A journal that answers from copied events and refuses to write."""

    def __init__(self, held: ExcerptJournal, source: Journal, tenant: str, bodies: frozenset[bytes]) -> None:
        self._source, self._tenant, self._bodies = source, tenant, bodies
        for name in _READ_METHODS:
            setattr(self, name, getattr(held, name))
        for name in _WRITE_METHODS:
            setattr(self, name, _refuse_write)

    @property
    def capabilities(self) -> frozenset[str]:
        """Every group: those that write are refused as ReadOnly, not as unsupported."""
        return frozenset(group.name for group in GROUPS)

    def artifact(self, tenant: str, name: bytes) -> bytes | None:
        """Return a body that one of the events refers to, as the live journal has it now."""
        if tenant != self._tenant or name not in self._bodies:
            raise NotFound(f"There was no artifact {name.hex()} in this journal then.")
        return require(self._source, ARTIFACTS).artifact(tenant, name)

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        """Yield these artifacts."""
        for tenant, artifact in require(self._source, ARTIFACTS).artifacts():
            if tenant == self._tenant and artifact.name in self._bodies:
                yield tenant, artifact

    def vectors_by_digest(self, tenant: str, embedder: str, digests: Any) -> dict[bytes, bytes]:
        """Return vectors from the live journal: a text's vector does not depend on time."""
        return require(self._source, VECTORS).vectors_by_digest(tenant, embedder, digests)


def _refuse_write(*_: Any, **__: Any) -> NoReturn:
    raise ReadOnly("This is the journal as it was, and the past cannot be changed. Write to the journal itself.")


class PastClock:
    """A clock that stands still; `monotonic` and `sleep` go on."""

    def __init__(self, clock: Clock, now: int) -> None:
        self._now = now
        self.monotonic, self.sleep = clock.monotonic, clock.sleep

    def now_ms(self) -> int:
        return self._now


def build_past_factory(empty: Callable[[Settings], ExcerptJournal]) -> Callable[[Env, int], Env]:
    """Return a function that builds an environment as of a cursor, on journals from `empty`."""

    def past(env: Env, as_of: int) -> Env:
        held = empty(env.settings)
        with env.journal.snapshot():
            newest = env.journal.position()
            if not is_number(as_of, least=0, most=newest):
                raise InvalidValue(
                    f"as_of is {as_of!r:.40}. Give a cursor of this journal: a whole number from 0 to {newest}, which "
                    "is now."
                )
            copies = _TenantCopy(env.journal, env.tenant, as_of)
            held.hold(env.journal.secret, as_of, copies.items(), require(env.journal, ARTIFACTS).artifact)
        journal = cast(Journal, PastJournal(held, env.journal, env.tenant, frozenset(copies.bodies)))
        clock = env.clock if copies.at is None else cast(Clock, PastClock(env.clock, copies.at))
        return _replace_journal(env, journal, clock)

    return past


def _replace_journal(env: Env, journal: Journal, clock: Clock) -> Env:
    """Return the environment on another journal, with new caches and nothing that reaches outside."""
    settings = env.settings
    return replace(
        env,
        journal=journal,
        clock=clock,
        states=StateCache(settings.cached_streams),
        leases=StreamLeases(journal, clock, settings.lease_ms),
        observers=EventCallbacks(),
        memory=None,
        summarizer=None,
        transients=TransientEntries(settings.transient_entries),
        vectors=Lru(settings.cached_vectors, weigh=count_vectors),
        sinks=SinkRegistry(),
        documents=None,
        fetcher=None,
        recent=None,
        rules={},
    )


class _TenantCopy:
    """One tenant's events up to a cursor; notes the artifacts and the newest time on the way."""

    def __init__(self, journal: Journal, tenant: str, until: int) -> None:
        self._journal, self._tenant, self._until = journal, tenant, until
        self.bodies: set[bytes] = set()
        self.at: int | None = None

    def items(self) -> Iterator[ExcerptItem]:
        """Yield each event after the artifacts it names; at the end, the subjects that occur."""
        people: set[int | None] = set()
        for event in self._read_events():
            facts = decode_facts(event.type, event.schema, event.facts)
            for name in {bytes.fromhex(name) for name in getattr(facts, "artifacts", ())} - self.bodies:
                self.bodies.add(name)
                yield self._tenant, Artifact(name=name, size=0, at=event.at, body=None)
            yield self._tenant, event
            people.update((event.user, event.subject))
            self.at = event.at
        for subject in self._journal.subjects(self._tenant):
            if subject.id in people:
                yield self._tenant, subject

    def _read_events(self) -> Iterator[StoredEvent]:
        return iterate_stored(self._journal, EventQuery(tenant=self._tenant, until=self._until, limit=PAGE))

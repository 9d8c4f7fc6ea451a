"""Groups of operations that a journal's backend may implement beyond `Journal`, and the way to ask for one.

A backend lists the groups it implements in `Journal.capabilities`. Flows ask for a group with `require` and use no
other way to reach its methods, so a backend without it refuses with Unsupported and everything else works.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import msgspec

from holdfast.core.search.documents import Hit, TextSearch
from holdfast.errors import Unsupported
from holdfast.ports.journal import Journal
from holdfast.records.batches import Artifact, Row
from holdfast.records.entries import Edge, EdgeQuery, EntryEvent, EntryPageQuery
from holdfast.records.events.envelope import SealedEvent, Source, StoredEvent
from holdfast.records.reports import Erasure, Finding, Progress, Subject


class EntryReader(Protocol):
    """Reads of scoped entries and edges, each as the event that holds it."""

    def entry(self, tenant: str, stream: str, key: str) -> StoredEvent | None:
        """Return the event that holds a key's value, even if expired; None if the key has none or it was erased."""

    def entries(self, tenant: str, stream: str, page: EntryPageQuery) -> list[EntryEvent]:
        """Return what the events of a page of live entries hold, in order of key by code points."""

    def revisions(self, tenant: str, stream: str, key: str, before: int, limit: int) -> list[StoredEvent]:
        """Return the events below a version that wrote or deleted a key, newest first."""

    def find_expired(self, tenant: str, now: int, limit: int) -> list[tuple[str, str, int]]:
        """Return (stream, key, version) of expired entries, in any order; the cost follows the answer."""

    def scopes(self, tenant: str, now: int, after: str, limit: int) -> list[str]:
        """Return streams with live entries, in order of name, after one name."""

    def edges(self, tenant: str, query: EdgeQuery) -> list[StoredEvent]:
        """Return the events that made edges; an event's stream is the scope that its edge begins in."""

    def has_edge(self, tenant: str, edge: Edge) -> bool:
        """Return True if this edge exists, with any data; the cost does not follow the number of edges at its ends."""


class TextSearcher(Protocol):
    """Search by words."""

    def search(self, tenant: str, search: TextSearch) -> list[Hit]:
        """Return current messages and entries that hold some of the words, best first.

        A message whose text is in an artifact is indexed by the beginning of the text.
        """


class VectorKeeper(Protocol):
    """A cache of the vectors of texts. It is never exported, and may be lost."""

    def find_unembedded(self, tenant: str, stream: str, embedder: str, limit: int) -> list[StoredEvent]:
        """Return messages and entries of a stream without a vector of this embedder, oldest first."""

    def vectors_by_digest(self, tenant: str, embedder: str, digests: Sequence[bytes]) -> dict[bytes, bytes]:
        """Return the vectors stored under these digests of their texts."""

    def keep_vectors(self, tenant: str, stream: str, embedder: str, rows: Sequence[tuple[int, bytes, bytes]]) -> None:
        """Store (seq, digest, vector) for events of a stream."""

    def vectors(self, tenant: str, stream: str, embedder: str, after: int) -> list[tuple[int, bytes]]:
        """Return (seq, vector) of a stream, after one event, in order."""

    def drop_vectors(self, tenant: str, seqs: Sequence[int]) -> None:
        """Delete the vectors of events that are no longer current."""


class ArtifactKeeper(Protocol):
    """Large bodies. The backend decides where they are stored: with the events, or apart."""

    def artifact(self, tenant: str, name: bytes) -> bytes | None:
        """Return an artifact's bytes, or None if it was erased. Raise NotFound for an unknown name."""

    def place_artifact(self, tenant: str, name: bytes, body: bytes, at: int) -> Artifact:
        """Prepare a body for the append that will refer to it; a body that is stored apart is durable on return."""

    def withdraw_artifact(self, tenant: str, name: bytes) -> None:
        """Remove a body stored apart for an append that did not need it, unless something else refers to it."""

    def collect(self, before_ms: int) -> int:
        """Remove artifacts that nothing refers to and that were placed before `before_ms`; return their number."""

    def artifacts(self) -> Iterator[tuple[str, Artifact]]:
        """Yield every artifact with its tenant and its body."""


class Maintainer(Protocol):
    """Operations on a journal as a whole."""

    def count(self) -> int:
        """Return the number of stored events of all tenants."""

    def rows(self, table: str) -> Iterator[tuple[str, str, Row]]:
        """Yield every row of a projection with its tenant and stream, in order of tenant, stream and key."""

    def check(self) -> Iterator[Finding]:
        """Yield the problems that only this backend can detect."""

    def rebuild(self, progress: Progress | None = None, since: int = 0) -> int:
        """Rebuild every projection from the events; return the number of events applied.

        With `since`, rebuild only the rows of streams with events after that cursor, from all events of these streams.
        """

    def restore(self, secret: bytes, items: Iterable[tuple[str, StoredEvent | Subject | Artifact]]) -> int:
        """Write exact copies, each with its tenant, into this empty journal, and adopt the secret."""

    def erase(
        self, tenant: str, subject: str, marker: Callable[[int, int, int], SealedEvent], source: Source
    ) -> Erasure:
        """Remove a subject's content, salts, artifacts and name, and append `marker` in the same commit."""


class FileBackup(Protocol):
    """A copy of the journal in one file that a client can open."""

    def backup(self, target: Path, progress: Progress | None = None) -> None:
        """Write a consistent copy while other writers go on."""


Group = TypeVar("Group")


class Capability(msgspec.Struct, Generic[Group], frozen=True):
    """A group by its name in `capabilities`, with the words for its absence."""

    name: str
    refusal: str


STATE: Final = Capability[EntryReader]("state", "This journal keeps no entries. Open a store for them.")
TEXT: Final = Capability[TextSearcher]("text", "This journal cannot be searched by words.")
VECTORS: Final = Capability[VectorKeeper]("vectors", "This journal keeps no vectors. Search without an embedder.")
ARTIFACTS: Final = Capability[ArtifactKeeper]("artifacts", "This journal keeps no artifacts. Send smaller texts.")
MAINTENANCE: Final = Capability[Maintainer]("maintenance", "This journal cannot be verified, rebuilt or copied here.")
BACKUP: Final = Capability[FileBackup]("backup", "This journal has no file to back up. Use export, or open a file.")
GROUPS: Final[tuple[Capability[Any], ...]] = (STATE, TEXT, VECTORS, ARTIFACTS, MAINTENANCE, BACKUP)


def require(journal: Journal, capability: Capability[Group]) -> Group:
    """Return the journal as a group of operations; raise Unsupported if its backend does not declare them."""
    if capability.name not in journal.capabilities:
        raise Unsupported(capability.refusal)
    return cast(Group, journal)

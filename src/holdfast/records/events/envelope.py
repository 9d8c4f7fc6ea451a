"""The envelope that every event carries.

`facts` are ids, numbers and statuses, all that folding needs, and are kept for ever. `content` is text and data that
belongs to a subject, and can be erased.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

Trust = Literal["system", "operator", "user", "tool", "model", "external"]
TRUST_LEVELS: Final[tuple[Trust, ...]] = ("system", "operator", "user", "tool", "model", "external")

DEFAULT_TENANT: Final = "default"


class Facts(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The part of an event kept for ever: never free text. `artifacts` names large bodies that it keeps alive."""

    artifacts: tuple[str, ...] = ()


class Content(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The part of an event that belongs to a subject and can be erased."""


class AppFacts(Facts, frozen=True):
    """Facts of an application's own event (`app.…`): small values that holdfast does not fold."""

    data: dict[str, Any] = {}


class AppContent(Content, frozen=True):
    """Content of an application's own event: any JSON."""

    data: Any = None


class Erased(msgspec.Struct, frozen=True):
    """The placeholder for erased content."""

    def __repr__(self) -> str:
        return "ERASED"

    def __bool__(self) -> bool:
        return False


ERASED: Final = Erased()


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """An event to be written."""

    type: str
    facts: Facts
    content: Content | None = None
    subject: str | None = None
    id: str | None = None
    """The event's id if it is known before the write; otherwise one is generated."""


class SealedEvent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A draft in canonical bytes with its id, time, salt and digest: complete but for its position in the stream.

    The records are what the bytes decode to. They go with the bytes, so that nothing on the way to disk decodes again.
    """

    id: bytes
    at: int
    type: str
    schema: int
    facts: bytes
    content: bytes | None
    salt: bytes | None
    digest: bytes | None
    subject: str | None
    facts_record: Any
    content_record: Any


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """The writer and the cause: the part of the envelope that a whole batch shares."""

    user: str | None = None
    origin: str = "client"
    trust: Trust = "system"
    causation: bytes | None = None
    correlation: bytes | None = None
    app: str | None = None


class StoredEvent(msgspec.Struct, frozen=True, gc=False):
    """An event exactly as the journal stores it: bytes, never re-encoded. Fields are in the order of the columns.

    `digest` is the content's under its salt; erasure removes all three and leaves the MAC made of them. `user` and
    `subject` are pseudonyms: integers of a table whose names can be erased. `rest` counts the events of the same append
    that follow in this stream.
    """

    seq: int
    tenant: str
    stream: str
    version: int
    id: bytes
    at: int
    type: str
    schema: int
    key: str | None
    rest: int
    epoch: int | None
    origin: str
    trust: str
    user: int | None
    subject: int | None
    causation: bytes | None
    correlation: bytes | None
    app: str | None
    facts: bytes
    content: bytes | None
    salt: bytes | None
    digest: bytes | None
    mac: bytes | None
    hash: bytes

    @property
    def erased(self) -> bool:
        """True if the event had content and it was erased."""
        return self.content is None and self.mac is not None


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """A fact that happened, as callers read it.

    `facts` is the typed record of the catalogue, or a plain mapping for types that this release does not know.
    `content` is None if there was none and ERASED if it was erased.
    """

    seq: int
    tenant: str
    stream: str
    version: int
    id: str
    at: int
    type: str
    schema: int
    facts: Any
    content: Any = None
    key: str | None = None
    epoch: int | None = None
    origin: str = "client"
    trust: str = "system"
    user: int | None = None
    subject: int | None = None
    causation: str | None = None
    correlation: str | None = None
    app: str | None = None
    hash: str = ""

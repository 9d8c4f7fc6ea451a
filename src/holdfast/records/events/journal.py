"""Events of the journal itself: ownership, endings, erasure."""

from __future__ import annotations

from holdfast.records.events.envelope import Content, Facts


class LeaseTaken(Facts, frozen=True):
    """Somebody owns the stream from now on; owner events must carry this epoch."""

    epoch: int
    owner: str
    ttl_ms: int = 0


class LeaseReleased(Facts, frozen=True):
    """The owner let go; the next one takes the next epoch."""

    epoch: int
    owner: str


class StreamClosed(Facts, frozen=True):
    """The stream takes no more events, for ever."""


class SubjectErased(Facts, frozen=True):
    """Everything that belonged to a pseudonym is gone; chains still verify."""

    subject: int
    events: int
    artifacts_erased: int = 0


class ActorResumed(Facts, frozen=True):
    """An actor came back; written once per incarnation."""

    incarnation: str
    frames: int
    pending: int
    last_seq: int
    took_ms: int


class ReasonContent(Content, frozen=True):
    """Why, in somebody's words."""

    reason: str | None = None

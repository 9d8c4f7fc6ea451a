"""Events of the journal itself: ownership, closed streams, erasure."""

from __future__ import annotations

from holdfast.records.events.envelope import Content, Facts


class LeaseTaken(Facts, frozen=True):
    """The stream has a new owner; owner events must carry this epoch."""

    epoch: int
    owner: str
    lease_ms: int = 0
    """The silence of this owner after which another may take over."""


class LeaseReleased(Facts, frozen=True):
    """The owner released the stream; the next one takes the next epoch."""

    epoch: int
    owner: str


class StreamClosedFacts(Facts, frozen=True):
    """The stream accepts no more events, for ever."""


class SubjectErased(Facts, frozen=True):
    """All content that belonged to a pseudonym was erased; hash chains still verify."""

    subject: int
    events: int
    artifacts_erased: int = 0


class ActorResumed(Facts, frozen=True):
    """An actor resumed; written once per incarnation."""

    incarnation: str
    frames: int
    pending: int
    last_seq: int
    took_ms: int


class ReasonContent(Content, frozen=True):
    """A reason in free text."""

    reason: str | None = None

"""Erasure on request: everything that belongs to one subject, and proof that it was done."""

from __future__ import annotations

from holdfast.core.codec import seal
from holdfast.ports import Acting, Ports
from holdfast.records.events.envelope import Draft, Sealed, Source
from holdfast.records.events.journal import SubjectErased
from holdfast.records.ids import check_id
from holdfast.records.reports import Erasure
from holdfast.version import __version__


def erase(ports: Ports, acting: Acting, subject: str) -> Erasure:
    """Remove a subject's content for good. Chains still verify, and rebuilt equals live."""
    check_id(subject, "subject")

    def marker(pseudonym: int, events: int, artifacts: int) -> Sealed:
        facts = SubjectErased(subject=pseudonym, events=events, artifacts_erased=artifacts)
        draft = Draft(type="subject.erased", facts=facts)
        return seal(draft, id=ports.ids.ulid(), at=ports.clock.now_ms(), salt=b"", settings=ports.settings)

    # The one who erases themselves must not come back as the author of their erasure.
    user = None if acting.user == subject else acting.user
    source = Source(user=user, origin=acting.origin, trust=acting.trust, app=__version__)
    try:
        return ports.journal.erase(acting.tenant, subject, marker, source)
    finally:
        ports.states.clear()
        if ports.recent is not None:
            ports.recent.clear()
        if ports.vectors is not None:
            ports.vectors.clear()

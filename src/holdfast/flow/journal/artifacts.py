"""Artifacts and erasure.

Artifacts are large bodies, stored once per tenant under a keyed digest of their content. Erasure removes everything
that belongs to one subject and records proof of it.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from holdfast.core.journal.codec import RESTORE, decode_event, seal_draft
from holdfast.core.search.documents import decode_beginning
from holdfast.errors import Corrupt, InvalidValue, NotFound, TooLarge
from holdfast.ports import Env
from holdfast.ports.capabilities import ARTIFACTS, MAINTENANCE, require
from holdfast.records.batches import Artifact
from holdfast.records.events.envelope import ERASED, Draft, Erased, SealedEvent, Source
from holdfast.records.events.journal import SubjectErased
from holdfast.records.ids import check_id
from holdfast.records.reports import Erasure, EventQuery
from holdfast.records.scope import Scope
from holdfast.version import __version__

DAY_MS = 86_400_000


def artifact_name(secret: bytes, tenant: str, body: bytes) -> bytes:
    """Return a body's name: keyed, so that it reveals nothing, and per tenant, so that no tenant can probe another."""
    key = hmac.digest(secret, tenant.encode(), "sha256")
    return hmac.digest(key, body, hashlib.sha256)


def prepare_artifact(env: Env, body: bytes) -> Artifact:
    """Prepare a body for the append that refers to it; a body that is stored apart is durable when this returns."""
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidValue(f"An artifact is bytes, not {type(body).__name__}. Encode text first.")
    body = bytes(body)
    if len(body) > env.settings.artifact_bytes:
        raise TooLarge(
            f"The artifact has {len(body):,} bytes; {env.settings.artifact_bytes:,} are allowed. "
            "Split it, or raise HOLDFAST_ARTIFACT_BYTES."
        )
    name = artifact_name(env.journal.secret, env.tenant, body)
    return require(env.journal, ARTIFACTS).place_artifact(env.tenant, name, body, env.clock.now_ms())


def withdraw_artifacts(env: Env, placed: Sequence[Artifact]) -> None:
    """Remove the bodies stored apart for an append that was refused or repeated."""
    for artifact in placed:
        if artifact.body is None:
            require(env.journal, ARTIFACTS).withdraw_artifact(env.tenant, artifact.name)


def read_artifact(env: Env, name: str) -> bytes | Erased:
    """Return an artifact's bytes by its hexadecimal name, or ERASED; raise Corrupt if they are not what was written."""
    try:
        raw = bytes.fromhex(name)
    except (ValueError, TypeError):
        raise NotFound(f"{name!r} is not the name of an artifact.") from None
    body = require(env.journal, ARTIFACTS).artifact(env.tenant, raw)
    if body is None:
        return ERASED
    if artifact_name(env.journal.secret, env.tenant, body) != raw:
        raise Corrupt(f"Artifact {name} (tenant {env.tenant}) is not what was written. {RESTORE}")
    return body


def read_artifact_beginning(env: Env, name: str) -> str:
    """Return the searchable beginning of a text in an artifact; empty if the artifact is lost or erased."""
    try:
        body = read_artifact(env, name)
    except (NotFound, Corrupt):
        return ""
    return decode_beginning(body if isinstance(body, bytes) else None)


def collect_artifacts(env: Env) -> int:
    """Remove artifacts that have been unreferenced for a day; return how many."""
    return require(env.journal, ARTIFACTS).collect(env.clock.now_ms() - DAY_MS)


def erase_subject(env: Env, subject: str) -> Erasure:
    """Remove a subject's content for good. Chains still verify, and a rebuild equals the live rows."""
    check_id(subject, "subject")

    def marker(pseudonym: int, events: int, artifacts: int) -> SealedEvent:
        facts = SubjectErased(subject=pseudonym, events=events, artifacts_erased=artifacts)
        draft = Draft(type="subject.erased", facts=facts)
        return seal_draft(draft, id=env.ids.ulid(), at=env.clock.now_ms(), salt=b"", settings=env.settings)

    # Users who erase themselves must not reappear as the author of the erasure.
    user = None if env.user == subject else env.user
    source = Source(user=user, origin=env.origin, trust=env.trust, app=__version__)
    try:
        erasure = require(env.journal, MAINTENANCE).erase(env.tenant, subject, marker, source)
    finally:
        env.states.clear()
        if env.recent is not None:
            env.recent.clear()
        if env.hints is not None:
            env.hints.clear()
        env.vectors.clear()
    if env.observers.list_callbacks(env.tenant, "subject.erased"):
        place = Scope.GLOBAL.text
        last = EventQuery(tenant=env.tenant, stream=place, types=("subject.erased",), backwards=True, limit=1)
        for event in env.journal.read(last):
            env.observers.notify(decode_event(event))
    # A process that died before its append left bodies without an owner: they may be this subject's.
    if ARTIFACTS.name in env.journal.capabilities:
        collect_artifacts(env)
    return erasure

"""Events and streams as rows of SQLite, and back. The one place that knows the order of their columns."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from typing import Any

import apsw

from holdfast.journal.sqlite.connection import ask
from holdfast.journal.sqlite.statements import queries
from holdfast.records.batches import Head
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.scope import parse_scope


def subject_digest(secret: bytes, name: str) -> bytes:
    """Shows that a stored name was not damaged; erased with it."""
    return hmac.digest(secret, name.encode(), hashlib.sha256)


def stream_row(tenant: int | None, head: Head) -> tuple[Any, ...]:
    """A new row of `streams`."""
    scope = parse_scope(head.stream)
    names = (scope.get("actor"), scope.get("session"), scope.get("thread"))
    return (head.id, tenant, head.stream, *names, head.version, head.hash, head.epoch, head.holder, head.closed)


def event_row(event: StoredEvent, tenant: int, stream: int) -> tuple[Any, ...]:
    """A new row of `events`, in the order of its columns."""
    return (
        event.seq,
        tenant,
        stream,
        event.version,
        event.id,
        event.at,
        event.type,
        event.schema,
        event.key,
        event.rest,
        event.epoch,
        event.origin,
        event.trust,
        event.user,
        event.subject,
        event.causation,
        event.correlation,
        event.app,
        event.facts,
        event.content,
        event.salt,
        event.mac,
        event.hash,
    )


def stored_event(row: Sequence[Any], tenant: str, stream: str) -> StoredEvent:
    """A row of `events` as it was stored."""
    return StoredEvent(
        seq=row[0],
        tenant=tenant,
        stream=stream,
        version=row[3],
        id=row[4],
        at=row[5],
        type=row[6],
        schema=row[7],
        key=row[8],
        rest=row[9],
        epoch=row[10],
        origin=row[11],
        trust=row[12],
        user=row[13],
        subject=row[14],
        causation=row[15],
        correlation=row[16],
        app=row[17],
        facts=row[18],
        content=row[19],
        salt=row[20],
        mac=row[21],
        hash=row[22],
    )


def read_append(
    connection: apsw.Connection, tenant: tuple[str, int | None], stream: tuple[str, int], version: int
) -> list[StoredEvent]:
    """The events of one append to a stream, of which the first has this version."""
    values = (tenant[1], stream[1], version, version)
    (row,) = ask(connection, queries()["events_between"], values)
    first = stored_event(row, tenant[0], stream[0])
    if not first.rest:
        return [first]
    values = (tenant[1], stream[1], version, version + first.rest)
    rows = ask(connection, queries()["events_between"], values)
    return [stored_event(row, tenant[0], stream[0]) for row in rows]

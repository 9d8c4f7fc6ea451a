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

_COLUMNS = len(StoredEvent.__struct_fields__)


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
    # In the order of the columns: naming each field costs more than all the rest, and this is done for every event.
    return StoredEvent(row[0], tenant, stream, *row[3:_COLUMNS])


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

"""Lists of sessions: most recently active first, page by page; by cost or title, all of them are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from holdfast.errors import InvalidValue
from holdfast.flow.stack.showing import event_at, field
from holdfast.ports import Acting, Ports
from holdfast.records.ids import check_id
from holdfast.records.lines import SessionInfo
from holdfast.records.rows import SessionQuery, SessionRow
from holdfast.records.scope import parse_scope
from holdfast.records.usage import Usage

PAGE = 100
MANY = 1_000
"""Rows that are only added up are read by the thousand."""
ORDERS = ("activity", "cost", "title")
STATUSES = ("open", "closing", "ended", "closed")


def sessions(
    ports: Ports,
    acting: Acting,
    *,
    user: str | None = None,
    title: str | None = None,
    status: str | None = None,
    order: str = "activity",
    limit: int | None = None,
) -> Iterator[SessionInfo]:
    """Sessions, most recently active first, or by cost or title; `title` keeps those whose title holds it."""
    if order not in ORDERS:
        raise InvalidValue(f"order must be one of {', '.join(ORDERS)}, not {order!r}.")
    if status is not None and status not in STATUSES:
        raise InvalidValue(f"status must be one of {', '.join(STATUSES)}, not {status!r}.")
    if user is not None:
        check_id(user, "user")
    if title is not None and not isinstance(title, str):
        raise InvalidValue(f"title must be text to look for, not {title!r}.")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or limit < 0):
        raise InvalidValue(f"limit must be a number of sessions, not {limit!r}.")
    page = PAGE if limit is None or order != "activity" or title is not None else min(max(limit, 1), PAGE)
    found = _listed(ports, acting, SessionQuery(user=user, status=status, limit=page), title)
    return islice(_ordered(found, order), limit)


def usage(ports: Ports, acting: Acting) -> Usage:
    """What all sessions of a tenant used and cost; looks at each of them once, page by page, as of one moment."""
    query, total = SessionQuery(limit=MANY), Usage(cost=0)
    with ports.journal.snapshot():
        while page := ports.journal.sessions(acting.tenant, query):
            total = sum((row.usage for row in page), total)
            query = msgspec.structs.replace(query, before=page[-1].place)
    return total


def _ordered(found: Iterator[SessionInfo], order: str) -> Iterator[SessionInfo]:
    if order == "cost":
        yield from sorted(found, key=lambda one: (-(one.usage.cost or 0), -one.usage.spent, one.id))
    elif order == "title":
        yield from sorted(found, key=lambda one: ((one.title or "").casefold(), one.id))
    else:
        yield from found


def _listed(ports: Ports, acting: Acting, query: SessionQuery, title: str | None) -> Iterator[SessionInfo]:
    while page := ports.journal.sessions(acting.tenant, query):
        for row in page:
            info = _info(ports, acting, row)
            if title is None or title.casefold() in (info.title or "").casefold():
                yield info
        query = msgspec.structs.replace(query, before=page[-1].place)


def _info(ports: Ports, acting: Acting, row: SessionRow) -> SessionInfo:
    title = None
    if row.title_version is not None:
        title = field(event_at(ports, acting, row.stream, row.title_version), "title") or None
    return SessionInfo(
        id=str(parse_scope(row.stream).get("session")),
        status=row.status,
        title=title,
        model=row.model,
        user=row.user,
        opened_at=row.opened_at,
        active_at=row.active_at,
        messages=row.messages,
        threads=row.threads,
        usage=row.usage,
    )

"""Read events page by page to the end, without caps, and follow them as they are committed."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.journal.codec import decode_event
from holdfast.core.numbers import is_number
from holdfast.errors import Corrupt, InvalidValue
from holdfast.ports import Env
from holdfast.ports.journal import Journal
from holdfast.records.events.envelope import Event, StoredEvent
from holdfast.records.reports import EventQuery

PAGE = 256
POLL_SECONDS = 0.1
"""The interval of polling for other processes' commits; commits of this process wake the reader at once."""


def build_query(
    env: Env,
    stream: str | None,
    *,
    after: int = 0,
    until: int | None = None,
    types: Sequence[str] = (),
    backwards: bool = False,
) -> EventQuery:
    """Build a checked query."""
    check_cursor("after", after)
    if until is not None:
        check_cursor("until", until)
    if not isinstance(types, str | list | tuple):
        raise InvalidValue("types must be a list of event types.")
    names = (types,) if isinstance(types, str) else tuple(types)
    return EventQuery(
        tenant=env.tenant, stream=stream, after=after, until=until, types=names, backwards=backwards, limit=PAGE
    )


def check_cursor(name: str, value: object) -> int:
    """Check a position in a journal or stream."""
    if not is_number(value, least=0, most=2**62 - 1):
        raise InvalidValue(f"{name} must be a cursor of 0 or more, not {value!r}.")
    return value


def read_page(env: Env, query: EventQuery) -> list[Event]:
    """Read one page, decoded."""
    return [decode_event(stored) for stored in env.journal.read(query)]


def next_query(query: EventQuery, events: list[Event]) -> EventQuery | None:
    """Return the query for the page after these events; None at the end."""
    if len(events) < query.limit:
        return None
    last = events[-1].seq if query.stream is None else events[-1].version
    return (
        replace(query, until=last - 1) if query.backwards else replace(query, after=advance_cursor(query.after, last))
    )


def advance_cursor(after: Any, last: Any) -> Any:
    """Return `last` as the next page's cursor. Raise Corrupt if it does not advance: the read would never end."""
    if last <= after:
        raise Corrupt(f"Pages go from {after!r} back to {last!r}: an index is damaged. Run `holdfast verify`.")
    return last


def iterate_stored(journal: Journal, query: EventQuery) -> Iterator[StoredEvent]:
    """Yield every event of a forward query as it is stored, a page at a time, until a page is empty."""
    while found := journal.read(query):
        yield from found
        last = found[-1].seq if query.stream is None else found[-1].version
        query = replace(query, after=advance_cursor(query.after, last))


def iterate_events(env: Env, query: EventQuery) -> Iterator[Event]:
    """Yield every event of the query. Each page is a separate read, so nothing is held open."""
    following: EventQuery | None = query
    while following is not None:
        found = read_page(env, following)
        yield from found
        following = next_query(following, found)


class JournalTail:
    """A position in the journal that advances as events are committed."""

    def __init__(self, env: Env, query: EventQuery) -> None:
        self._env = env
        self._query = query
        self._seen = -1

    def poll(self) -> list[Event]:
        """Return the next page of new events, or an empty list."""
        position = self._env.journal.position()
        if position == self._seen:
            return []
        found = read_page(self._env, self._query)
        if len(found) < self._query.limit:
            # Everything up to this position was read, whether or not it matched the query.
            self._seen = position
        if found:
            last = found[-1].seq if self._query.stream is None else found[-1].version
            self._query = replace(self._query, after=last)
        return found


def check_timeout(timeout: object) -> None:
    """Check the seconds to wait, or None for ever."""
    if timeout is not None and (not isinstance(timeout, int | float) or isinstance(timeout, bool) or timeout < 0):
        raise InvalidValue(f"timeout must be seconds or None, not {timeout!r}.")


def subscribe(env: Env, query: EventQuery, *, timeout: float | None) -> Iterator[Event]:
    """Yield events from a cursor onwards as they are committed, also by other processes.

    Ends when nothing has been committed for `timeout` seconds; never if that is None.
    """
    check_timeout(timeout)
    following = JournalTail(env, query)
    happened = threading.Event()
    unwatch = env.journal.watch(happened.set)
    try:
        last = env.clock.monotonic()
        while True:
            happened.clear()
            found = following.poll()
            if found:
                yield from found
                last = env.clock.monotonic()
                continue
            if timeout is not None and env.clock.monotonic() - last >= timeout:
                return
            happened.wait(POLL_SECONDS)
    finally:
        unwatch()

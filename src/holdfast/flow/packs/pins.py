"""Find the messages that stay in every pack: leading instructions, and pinned messages with their calls and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

from holdfast.flow.sessions.read import Place, facts_of, line_of, places, places_after, segments, stands
from holdfast.ports import Acting, Ports
from holdfast.records.batches import Span
from holdfast.records.events.sessions import Segment

INSTRUCTIONS = frozenset({"system", "developer"})
FIRST = 4
"""The number of messages at the beginning of a thread that are checked for instructions."""
NEAR = 64
"""The number of messages around a pinned one that are searched for its calls and results."""


def with_pinned(
    ports: Ports, acting: Acting, stream: str, found: Sequence[Place], first: Sequence[Place]
) -> list[Place]:
    """Add leading instructions and pinned rounds to some places of a thread; oldest first, each once."""
    line = segments(stream, line_of(ports, acting, stream))
    kept = {(place.stream, place.version): place for place in found}
    kept.update({(place.stream, place.version): place for place in first})
    for place in _pinned(ports, acting, line):
        kept.update({(one.stream, one.version): one for one in _round(ports, acting, stream, place)})
    nearness = {segment.stream: at for at, segment in enumerate(line)}
    return sorted(kept.values(), key=lambda place: (-nearness[place.stream], place.version))


def leading(ports: Ports, acting: Acting, stream: str) -> Iterator[Place]:
    """Iterate over the instructions at the very beginning of a thread, as in lists that include their system prompt."""
    first = islice(places_after(ports, acting, stream, page=FIRST), FIRST)
    return takewhile(lambda place: place.row["role"] in INSTRUCTIONS, first)


def _pinned(ports: Ports, acting: Acting, line: Sequence[Segment]) -> Iterator[Place]:
    for segment in line:
        span = Span(table="messages", after=segment.after, until=segment.until, limit=1_000, pinned=True)
        for row in ports.journal.span(acting.tenant, segment.stream, span):
            if stands(row, segment):
                yield Place(segment.stream, row)


def _round(ports: Ports, acting: Acting, stream: str, place: Place) -> list[Place]:
    """Return a message with the calls it answers, and with the results of all these calls."""
    found = [place]
    if place.row["role"] == "tool":
        wanted = set(facts_of(ports, acting, place).answers)
        for one in islice(places(ports, acting, stream, before=place), NEAR if wanted else 0):
            if one.row["calls"] and wanted & (made := _made(ports, acting, one)):
                wanted -= made
                found.append(one)
    for head in [one for one in found if one.row["calls"]]:
        found += _results(ports, acting, stream, head)
    return found


def _results(ports: Ports, acting: Acting, stream: str, head: Place) -> Iterator[Place]:
    """Iterate over the messages near `head` that answer its calls."""
    wanted = _made(ports, acting, head)
    for one in islice(places_after(ports, acting, stream, head), NEAR):
        if one.row["role"] == "tool" and wanted & (answers := set(facts_of(ports, acting, one).answers)):
            wanted -= answers
            yield one
        if not wanted:
            return


def _made(ports: Ports, acting: Acting, place: Place) -> set[str]:
    return {id for id, _ in facts_of(ports, acting, place).calls}

"""What a live turn answers: the message that began it, and those that joined it.

However long a turn gets, a model that is shown a tool's result and no question does not know what it is for. So no pack
of the turn is without the first and the newest of them; the others are at hand for as long as there is room.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from holdfast.flow.conversation.lines import Place, stands
from holdfast.ports import Acting, Ports
from holdfast.records.events.conversations import Segment
from holdfast.records.messages import Message
from holdfast.records.rows import Span

MOST = 32
"""Messages that a turn is held to answer: what began it, and the newest of those that joined it."""
PAGE = 1_000
ASKING = "user"


def asked(found: Sequence[Place], messages: Sequence[Message], stream: str, turn: int) -> frozenset[tuple[str, int]]:
    """Which of these messages the turn answers that began with one; none if there is no turn.

    What the library said in a user's place is about what is near it, and no question.
    """
    if not turn:
        return frozenset()
    said = [
        (place.stream, place.version)
        for place, message in zip(found, messages, strict=True)
        if place.version >= turn and place.stream == stream and place.row["role"] == ASKING and not message.synthetic
    ]
    return frozenset((*said[:1], *said[max(len(said) - MOST + 1, 1) :]))


def users_before(ports: Ports, acting: Acting, stream: str, turn: int, end: Sequence[Place]) -> list[Place]:
    """What users said in a turn before the end of its line that was read, newest first; the cost follows the turn."""
    if not turn or (end and (end[-1].stream != stream or end[-1].version <= turn)):
        return []
    until = end[-1].version - 1 if end else 2**62
    return list(_users(ports, acting, Segment(stream, turn - 1, until, 2**62)))


def _users(ports: Ports, acting: Acting, segment: Segment) -> Iterator[Place]:
    after = segment.after
    while after < segment.until:
        span = Span(table="messages", after=after, until=segment.until, limit=PAGE)
        rows = ports.journal.span(acting.tenant, segment.stream, span)
        for row in rows:
            if row["role"] == ASKING and stands(row, segment):
                yield Place(segment.stream, row)
        if len(rows) < PAGE:
            return
        after = int(rows[-1]["version"] or 0)


def merged(stays: Sequence[Place], users: Sequence[Place], stream: str) -> list[Place]:
    """What stays in a pack and what users said in the turn, in the order of the line; each once."""
    if not users:
        return list(stays)
    both = {(place.stream, place.version): place for place in (*stays, *users)}
    # What a branch shares comes before what is its own, and is in order already.
    return sorted(both.values(), key=lambda place: place.version if place.stream == stream else 0)

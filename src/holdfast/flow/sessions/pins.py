"""Find the messages that stay in every pack: leading instructions, and pinned messages with their calls and results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, takewhile

from holdfast.flow.sessions.read import (
    MessageLocation,
    is_standing,
    iter_places,
    iter_places_after,
    message_facts,
    thread_segments,
    thread_state,
)
from holdfast.ports import Env
from holdfast.records.batches import RowQuery
from holdfast.records.events.sessions import SharedSegment

INSTRUCTIONS = frozenset({"system", "developer"})
MAX_LEADING = 4
"""The number of messages at the beginning of a thread that are checked for instructions."""
ROUND_SEARCH_MESSAGES = 64
"""The number of messages around a pinned one that are searched for its calls and results."""


def add_pinned(env: Env, stream: str, instructions: Sequence[MessageLocation]) -> list[MessageLocation]:
    """Return leading instructions together with all pinned rounds of a thread; oldest first, each once."""
    thread = thread_segments(stream, thread_state(env, stream))
    kept = {place.key: place for place in instructions}
    for place in _iter_pinned(env, thread):
        kept.update({one.key: one for one in _load_round(env, stream, place)})
    nearness = {segment.stream: at for at, segment in enumerate(thread)}
    return sorted(kept.values(), key=lambda place: (-nearness[place.stream], place.version))


def leading_instructions(env: Env, stream: str) -> Iterator[MessageLocation]:
    """Iterate over the instructions at the very beginning of a thread, as in lists that include their system prompt."""
    first = islice(iter_places_after(env, stream, page=MAX_LEADING), MAX_LEADING)
    return takewhile(lambda place: place.row["role"] in INSTRUCTIONS, first)


def _iter_pinned(env: Env, thread: Sequence[SharedSegment]) -> Iterator[MessageLocation]:
    for segment in thread:
        query = RowQuery(
            table="messages",
            stream=segment.stream,
            column="pinned",
            value=1,
            after=segment.after,
            until=segment.until,
            limit=1_000,
        )
        for stream, row in env.journal.select(env.tenant, query):
            if is_standing(row, segment):
                yield MessageLocation(stream, row)


def _load_round(env: Env, stream: str, place: MessageLocation) -> list[MessageLocation]:
    """Return a message with the calls it answers, and with the results of all these calls."""
    found = [place]
    if place.row["role"] == "tool":
        wanted = set(message_facts(env, place).answers)
        for one in islice(iter_places(env, stream, before=place), ROUND_SEARCH_MESSAGES if wanted else 0):
            if one.row["calls"] and wanted & (made := _call_ids(env, one)):
                wanted -= made
                found.append(one)
    for head in [one for one in found if one.row["calls"]]:
        found += _iter_results(env, stream, head)
    return found


def _iter_results(env: Env, stream: str, head: MessageLocation) -> Iterator[MessageLocation]:
    """Iterate over the messages near `head` that answer its calls."""
    wanted = _call_ids(env, head)
    for one in islice(iter_places_after(env, stream, head), ROUND_SEARCH_MESSAGES):
        if one.row["role"] == "tool" and wanted & (answers := set(message_facts(env, one).answers)):
            wanted -= answers
            yield one
        if not wanted:
            return


def _call_ids(env: Env, place: MessageLocation) -> set[str]:
    return {id for id, _ in message_facts(env, place).calls}

"""Run a caller's own strategy, which may choose the segments that stay, and nothing else.

It is given segments and returns some of them, unchanged and in their order. Nothing critical may be missing, nothing
may be added or altered, no call may lose its result, and what is left must be within the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.packs.segments import message_handle
from holdfast.core.sessions.pairing import group_rounds
from holdfast.core.sessions.tokens import CountMessage
from holdfast.core.trust import lowest_trust
from holdfast.core.values import exception_text
from holdfast.errors import HoldfastError, StrategyFailed
from holdfast.records.compaction import priority_of
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message
from holdfast.records.packs import Segment


def make_segments(messages: Sequence[Message], thread: str, size: CountMessage) -> list[Segment]:
    """Return the rounds of a conversation as segments, oldest first."""
    found = []
    for each in group_rounds(messages):
        said = tuple(messages[index] for index in each.indexes)
        priority = max((priority_of(message.policy) for message in said), key=PRIORITY_SCORE.__getitem__)
        found.append(
            Segment(
                kind="conversation",
                id=message_handle(said[0], thread),
                priority="critical" if any(message.pinned for message in said) else priority,
                trust=lowest_trust(*(message.trust for message in said)),
                estimated_tokens=sum(map(size, said)),
                messages=said,
            )
        )
    return found


def run_strategy(
    name: str, function: Callable[..., Any], given: Sequence[Segment], budget: int, held: frozenset[str] = frozenset()
) -> list[Segment]:
    """Return the segments that a strategy keeps, checked. `held` must stay although they are not critical."""
    try:
        kept = list(function(list(given), budget=budget))
    except HoldfastError:
        raise
    except Exception as error:
        raise StrategyFailed(f"The strategy {name} failed: {exception_text(error)}. Nothing was changed.") from error
    problem = _find_problem(kept, given, budget, held)
    if problem is not None:
        raise StrategyFailed(f"The strategy {name} {problem} Nothing was changed.")
    return kept


def _find_problem(kept: list[Any], given: Sequence[Segment], budget: int, held: frozenset[str]) -> str | None:
    by_id = {segment.id: (at, segment) for at, segment in enumerate(given)}
    last = -1
    for one in kept:
        if not isinstance(one, Segment):
            return f"returned {type(one).__name__} where it was given segments. Let it return some of those."
        at, known = by_id.get(one.id, (-1, None))
        if known is None:
            return f"returned {one.id!r:.40}, which it was not given. Let it only leave out."
        if one.messages != known.messages:
            return _describe_change(one, known)
        if one != known:
            return f"returned {one.id!r:.40} altered. Let it return segments as they are."
        if at <= last:
            return f"returned {one.id!r:.40} twice, or not in its place. Let it keep the order."
        last = at
    names = {one.id for one in kept}
    for segment in given:
        if segment.id not in names and (segment.priority == "critical" or segment.id in held):
            why = "is critical" if segment.priority == "critical" else "an open call needs"
            return f"left out {segment.id!r:.40}, which {why}. Let it keep that."
    used = sum(one.estimated_tokens for one in kept)
    if used > budget and any(one.priority != "critical" and one.id not in held for one in kept):
        return f"kept {used} tokens where {budget} are allowed. Let it leave out more."
    return None


def _describe_change(one: Segment, known: Segment) -> str:
    def pairs(segment: Segment) -> list[Any]:
        return [
            *(call.id for message in segment.messages for call in message.tool_calls),
            *(result.tool_call_id for message in segment.messages for result in message.tool_results),
        ]

    if pairs(one) != pairs(known):
        return f"tore calls from their results in {one.id!r:.40}. Let it keep or leave out a segment as a whole."
    return f"changed what {one.id!r:.40} says. Let it return segments as they are."

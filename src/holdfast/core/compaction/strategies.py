"""Compaction strategies by name: pure choices of what goes, by size, priority and policy, or by a caller's own code.

Nothing critical goes, nor anything that an open call still needs. Items that were not marked for removal go last:
lowest priority first, and of equals the oldest. Tokens saturate: a size estimated too high takes nothing below zero.

A caller's own strategy is given segments and returns some of them, unchanged and in their order. Nothing may be added
or altered, no call may lose its result, and what is left must be within the budget.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.packs.segments import message_handle
from holdfast.core.sessions.rounds import group_rounds
from holdfast.core.sessions.tokens import CountMessage
from holdfast.core.trust import lowest_trust
from holdfast.core.values import exception_text
from holdfast.errors import HoldfastError, StrategyFailed
from holdfast.records.compaction import priority_of
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel, Segment

UNKNOWN_TOKENS: Final = 100
"""The size assumed for evidence of unknown size."""
CRITICAL_SCORE: Final = PRIORITY_SCORE["critical"]
_POLICY_ORDER: Final = ("discard_when_done", "compress_first", "normal")
"""The order in which items go by policy; pinned ones never go."""


class CompactionItem(msgspec.Struct, frozen=True, kw_only=True):
    """An item that may go. `held`: an open call still needs it. `done`: the work it came from has ended."""

    id: str
    score: int
    position: int
    tokens: int
    policy: str = "normal"
    held: bool = False
    done: bool = True

    @property
    def is_kept(self) -> bool:
        """True if no strategy may take it."""
        return self.score >= CRITICAL_SCORE or self.policy == "pinned" or self.held


class CompactionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The items that go, and the resulting sizes."""

    gone: tuple[str, ...]
    original: int
    final: int
    level: CompactionLevel


def choose_by_priority(items: Sequence[CompactionItem], target: int) -> CompactionChoice:
    """Choose the lowest scores first until the rest is within the target."""
    return _drop_until(items, sorted(items, key=lambda item: (item.score, item.position)), target)


def choose_by_policy(items: Sequence[CompactionItem], target: int) -> CompactionChoice:
    """Choose finished items to discard, then those to compress first, then the rest by priority."""

    def place(item: CompactionItem) -> tuple[int, int, int]:
        waits = item.policy == "discard_when_done" and not item.done
        return _POLICY_ORDER.index("normal" if waits or item.is_kept else item.policy), item.score, item.position

    return _drop_until(items, sorted(items, key=place), target)


def keep_only(items: Sequence[CompactionItem], kept: Sequence[str]) -> CompactionChoice:
    """Choose everything except the ids to keep."""
    return _make_choice(items, [item for item in items if item.id not in set(kept)])


def _drop_until(items: Sequence[CompactionItem], order: Sequence[CompactionItem], target: int) -> CompactionChoice:
    left, gone = sum(item.tokens for item in items), []
    for item in order:
        if left <= target:
            break
        if item.tokens and not item.is_kept:
            left = max(0, left - item.tokens)
            gone.append(item)
    return _make_choice(items, gone)


def _make_choice(items: Sequence[CompactionItem], gone: Sequence[CompactionItem]) -> CompactionChoice:
    original = sum(item.tokens for item in items)
    final = max(0, original - sum(item.tokens for item in gone))
    names = {item.id for item in gone}
    rest = [item for item in items if item.id not in names]
    bare = all(item.score >= CRITICAL_SCORE for item in rest)
    some = CompactionLevel.CRITICAL_ONLY if bare else CompactionLevel.AGGRESSIVE
    level = some if gone else CompactionLevel.NONE
    return CompactionChoice(gone=tuple(item.id for item in gone), original=original, final=final, level=level)


def count_rounds_within(messages: Sequence[Message], most: int, size: CountMessage) -> int:
    """Return how many of the newest rounds fit into `most` together; at least the newest one."""
    kept = 0
    for each in reversed(group_rounds(messages)):
        most -= sum(size(messages[index]) for index in each)
        if most < 0 and kept:
            break
        kept += 1
    return kept


def omission_note(left_out: int) -> str:
    """Return the note for messages that were left out without a summary."""
    return f"[{left_out} earlier message{'' if left_out == 1 else 's'} left out]"


# strategies of callers


def make_segments(messages: Sequence[Message], thread: str, size: CountMessage) -> list[Segment]:
    """Return the rounds of a conversation as segments, oldest first."""
    found = []
    for each in group_rounds(messages):
        said = tuple(messages[index] for index in each)
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
        if _call_ids(one) != _call_ids(known):
            return f"tore calls from their results in {one.id!r:.40}. Let it keep or leave out a segment as a whole."
        if one.messages != known.messages:
            return f"changed what {one.id!r:.40} says. Let it return segments as they are."
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


def _call_ids(segment: Segment) -> list[str | None]:
    calls = [call.id for message in segment.messages for call in message.tool_calls]
    return [*calls, *(one.tool_call_id for message in segment.messages for one in message.tool_results)]

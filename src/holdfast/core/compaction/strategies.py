"""Compaction strategies by name: pure choices of what goes, by size, priority and policy.

Nothing critical goes, nor anything that an open call still needs. Items that were not marked for removal go last:
lowest priority first, and of equals the oldest. Tokens saturate: a size estimated too high takes nothing below zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from holdfast.core.sessions.pairing import rounds
from holdfast.errors import InvalidValue
from holdfast.records.compaction import POLICY_PRIORITY
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel

UNKNOWN_TOKENS: Final = 100
"""The size assumed for evidence of unknown size."""
CRITICAL: Final = PRIORITY_SCORE["critical"]
_STEPS: Final = ("discard_when_done", "compress_first", "normal")
"""The order in which items go by policy; pinned ones never go."""

CountMessage = Callable[[Message], int]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """An item that may go. `held`: an open call still needs it. `done`: the work it came from has ended."""

    id: str
    score: int
    position: int
    tokens: int
    policy: str = "normal"
    held: bool = False
    done: bool = True

    @property
    def stays(self) -> bool:
        """True if no strategy may take it."""
        return self.score >= CRITICAL or self.policy == "pinned" or self.held


class Chosen(msgspec.Struct, frozen=True, kw_only=True):
    """The items that go, and the resulting sizes."""

    gone: tuple[str, ...]
    original: int
    final: int
    level: CompactionLevel


def priority_of(policy: str | None, priority: str | None = None) -> str:
    """Return a priority by name: the given one, or the one that a policy stands for."""
    if policy is not None and (not isinstance(policy, str) or policy not in POLICY_PRIORITY):
        raise InvalidValue(f"{policy!r} is not a policy. Known policies: {', '.join(POLICY_PRIORITY)}.")
    return priority if priority is not None else POLICY_PRIORITY.get(policy or "normal", "medium")


def policy_of(score: int) -> str:
    """Return the policy that a priority stands for; high has none of its own and counts as normal."""
    by_score = {PRIORITY_SCORE[name]: policy for policy, name in POLICY_PRIORITY.items()}
    return by_score.get(score, "normal")


def by_priority(items: Sequence[Item], target: int) -> Chosen:
    """Choose the lowest scores first until the rest is within the target."""
    return _until(items, sorted(items, key=lambda item: (item.score, item.position)), target)


def by_policy(items: Sequence[Item], target: int) -> Chosen:
    """Choose finished items to discard, then those to compress first, then the rest by priority."""

    def place(item: Item) -> tuple[int, int, int]:
        waits = item.policy == "discard_when_done" and not item.done
        return _STEPS.index("normal" if waits or item.stays else item.policy), item.score, item.position

    return _until(items, sorted(items, key=place), target)


def kept_only(items: Sequence[Item], kept: Sequence[str]) -> Chosen:
    """Choose everything except the ids to keep."""
    return _chosen(items, [item for item in items if item.id not in set(kept)])


def _until(items: Sequence[Item], order: Sequence[Item], target: int) -> Chosen:
    left, gone = sum(item.tokens for item in items), []
    for item in order:
        if left <= target:
            break
        if item.tokens and not item.stays:
            left = max(0, left - item.tokens)
            gone.append(item)
    return _chosen(items, gone)


def _chosen(items: Sequence[Item], gone: Sequence[Item]) -> Chosen:
    original = sum(item.tokens for item in items)
    final = max(0, original - sum(item.tokens for item in gone))
    names = {item.id for item in gone}
    rest = [item for item in items if item.id not in names]
    bare = all(item.score >= CRITICAL for item in rest)
    level = CompactionLevel.CRITICAL_ONLY if bare else CompactionLevel.AGGRESSIVE
    return Chosen(
        gone=tuple(item.id for item in gone),
        original=original,
        final=final,
        level=level if gone else CompactionLevel.NONE,
    )


# Conversations: the number of newest rounds that stay


def rounds_within(messages: Sequence[Message], most: int, size: CountMessage) -> int:
    """Return how many of the newest rounds fit into `most` together; at least the newest one."""
    kept = 0
    for each in reversed(rounds(messages)):
        most -= sum(size(messages[index]) for index in each.indexes)
        if most < 0 and kept:
            break
        kept += 1
    return kept


def marker(left_out: int) -> str:
    """Return the note for messages that were left out without a summary."""
    return f"[{left_out} earlier message{'' if left_out == 1 else 's'} left out]"

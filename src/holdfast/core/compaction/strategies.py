"""Compaction strategies by name: pure choices of what goes, by size, priority and policy.

Nothing critical goes, nor anything that an open call still needs. Items that were not marked for removal go last:
lowest priority first, and of equals the oldest. Tokens saturate: a size estimated too high takes nothing below zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from holdfast.core.sessions.pairing import group_rounds
from holdfast.core.sessions.tokens import CountMessage
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel

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
    level = CompactionLevel.CRITICAL_ONLY if bare else CompactionLevel.AGGRESSIVE
    return CompactionChoice(
        gone=tuple(item.id for item in gone),
        original=original,
        final=final,
        level=level if gone else CompactionLevel.NONE,
    )


def count_rounds_within(messages: Sequence[Message], most: int, size: CountMessage) -> int:
    """Return how many of the newest rounds fit into `most` together; at least the newest one."""
    kept = 0
    for each in reversed(group_rounds(messages)):
        most -= sum(size(messages[index]) for index in each.indexes)
        if most < 0 and kept:
            break
        kept += 1
    return kept


def omission_note(left_out: int) -> str:
    """Return the note for messages that were left out without a summary."""
    return f"[{left_out} earlier message{'' if left_out == 1 else 's'} left out]"

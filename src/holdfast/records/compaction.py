"""Compaction as data: what may go (policy and priority), how (a strategy), and when (a rule with its trigger)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel, Packed
from holdfast.records.sessions import Summary

Policy = Literal["pinned", "normal", "compress_first", "discard_when_done"]
POLICY_PRIORITY: Final[dict[str, str]] = {
    "pinned": "critical",
    "normal": "medium",
    "compress_first": "low",
    "discard_when_done": "background",
}
"""Policies and priorities are one order; a priority that is given wins."""

Strategy = Literal["priority", "summarise_oldest", "truncate_at", "sliding_window", "policy_trim", "extract_state"]
STRATEGIES: Final[tuple[Strategy, ...]] = (
    "priority",
    "summarise_oldest",
    "truncate_at",
    "sliding_window",
    "policy_trim",
    "extract_state",
)
OF_EVIDENCE: Final = frozenset({"priority", "policy_trim"})
"""Strategies that detach a frame's evidence. The others make its conversation shorter."""

KEEP: Final = 10
SUMMARY_TOKENS: Final = 500


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a compaction did. `id` is what `restore_handles` takes; None if nothing was detached.

    Tokens are those of what the strategy works on: a frame's evidence, or its conversation that nothing stands for.
    """

    id: str | None
    strategy: str
    original_tokens: int
    final_tokens: int
    compaction_level: CompactionLevel
    items_removed: int = 0
    items_summarized: int = 0
    reached_target: bool = True
    summary: Summary | None = None
    flushed: str | None = None
    """The entry that what was compacted was written to first."""
    note: str | None = None
    """Why nothing was done, or less than was asked for."""


class Recalled(msgspec.Struct, frozen=True, kw_only=True):
    """Something that was compacted away and found again: an entry of the state, with the trust of its sources."""

    id: str
    scope: str
    key: str
    version: int
    text: str
    trust: str
    score: float


# when


class MessagesOver(msgspec.Struct, frozen=True):
    """More than `n` messages stand in the line that no summary covers."""

    n: int


class TokensOver(msgspec.Struct, frozen=True):
    """They take more than `n` tokens; without a number, more than the session's model is shown at once."""

    n: int | None = None


class PackOverBudget(msgspec.Struct, frozen=True):
    """A pack that goes to a model had to leave messages out."""


class Always(msgspec.Struct, frozen=True):
    """Every time something was appended or packed."""


Trigger = MessagesOver | TokensOver | PackOverBudget | Always


class Occasion(msgspec.Struct, frozen=True, kw_only=True):
    """What happened when a rule fires: messages were appended, or a pack is about to go to a model."""

    kind: Literal["appended", "packed"]
    stream: str
    new: tuple[Message, ...] = ()
    packed: Packed | None = None


# what is done


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """How conversations are made shorter, and when; also an action of a rule.

    Over `threshold` messages, or when a pack had to leave some out, the strategy is applied to all but the newest
    `keep` rounds. Over `max_messages` or `max_tokens` so much goes that it fits again, whatever it takes.
    """

    strategy: str = "summarise_oldest"
    keep: int = KEEP
    threshold: int | None = None
    max_messages: int | None = None
    max_tokens: int | Literal["model"] | None = None
    """Tokens of the messages that no summary covers; "model" is what the session's model is shown at once."""
    summary_tokens: int = SUMMARY_TOKENS
    max_length: int | None = None
    """Characters of a summary, at most."""
    when_packed: bool = False
    keep_goal: bool = False
    """Whether the first thing that the user said is pinned before it is covered."""
    store: bool | str = False
    """Whether what is compacted is also written to the state, to be found again: of the session, or of a scope."""
    recall: int = 0
    """How many of these entries a pack looks for."""
    summarizer: Any = None
    timeout: float | None = None
    """Seconds that a summarizer may take."""
    enabled: bool = True

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """When it is to be looked at."""
        numbers = [number for number in (self.threshold, self.max_messages) if number is not None]
        found: list[Trigger] = [MessagesOver(min(numbers))] if numbers else []
        if self.max_tokens is not None:
            found.append(TokensOver(None if self.max_tokens == "model" else self.max_tokens))
        return (*found, PackOverBudget()) if self.when_packed else tuple(found)


class BudgetGuard(msgspec.Struct, frozen=True, kw_only=True):
    """Refuses the next model call: of a line that has used so many `tokens` or cost so much, or with a larger `pack`.

    Money is `usd`, in US dollars, or `cost`, in billionths of one as in `Usage.cost`. Calls without a known price
    do not count there: where there may be some, bound the tokens as well.
    """

    tokens: int | None = None
    cost: int | None = None
    pack: int | None = None
    usd: float | None = None


class TelemetryRecorder(msgspec.Struct, frozen=True):
    """Tells a function, or without one the client's telemetry, what was appended, packed and compacted."""

    record: Callable[[dict[str, Any]], object] | None = None


Action = CompactionConfig | BudgetGuard | TelemetryRecorder | Callable[[Occasion], object]


class Rule(msgspec.Struct, frozen=True):
    """When something happens to a session, do something about it. A second rule of the same name takes its place."""

    name: str
    trigger: Trigger | tuple[Trigger, ...]
    action: Any

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """Any of them is enough."""
        return tuple(self.trigger) if isinstance(self.trigger, tuple | list) else (self.trigger,)


class Fired(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a rule: what it made, or why it could not. One that failed is tried again at the next occasion."""

    rule: str
    made: tuple[Any, ...] = ()
    error: str | None = None


PRESETS: Final[dict[str, CompactionConfig]] = {
    "default": CompactionConfig(max_tokens="model"),
    "eko": CompactionConfig(
        keep=5, threshold=10, max_messages=15, max_tokens=64_000, max_length=6_000, summary_tokens=2_000, keep_goal=True
    ),
    "none": CompactionConfig(enabled=False),
}
"""Named configurations. `eko` are the numbers of its `memoryConfig`."""

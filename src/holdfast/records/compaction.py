"""Compaction as data: policies and priorities, strategies, and rules with their triggers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, get_args

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message
from holdfast.records.packs import AssembledPack, CompactionLevel
from holdfast.records.sessions import Summary

POLICY_PRIORITY: Final[dict[str, str]] = {
    "pinned": "critical",
    "normal": "medium",
    "compress_first": "low",
    "discard_when_done": "background",
}
"""Policies and priorities form one order; an explicit priority wins."""

Strategy = Literal["priority", "summarise_oldest", "truncate_at", "sliding_window", "policy_trim", "extract_state"]
STRATEGIES: Final[tuple[Strategy, ...]] = get_args(Strategy)
EVIDENCE_STRATEGIES: Final = frozenset({"priority", "policy_trim"})
"""Strategies that detach a frame's evidence. The others shorten its conversation."""

DEFAULT_KEEP_ROUNDS: Final = 10
DEFAULT_SUMMARY_TOKENS: Final = 500


class CompactionResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a compaction. `id` is accepted by `restore_handles`; None if nothing was detached.

    Tokens are those the strategy works on: a frame's evidence, or the messages of its conversation that no summary
    covers.
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
    """The entry to which the compacted content was written first."""
    note: str | None = None
    """The reason why nothing was done, or less than was asked for."""


class RecalledEntry(msgspec.Struct, frozen=True, kw_only=True):
    """Compacted content that was found again: an entry of the state, with the trust of its sources."""

    id: str
    scope: str
    key: str
    version: int
    text: str
    trust: str
    score: float


# triggers


class MessagesOver(msgspec.Struct, frozen=True):
    """A trigger: the thread has more than `n` messages that no summary covers."""

    n: int


class TokensOver(msgspec.Struct, frozen=True):
    """A trigger: those messages have more than `n` tokens; None means more than the session's model is shown."""

    n: int | None = None


class PackOverBudget(msgspec.Struct, frozen=True):
    """A trigger: a pack for a model had to leave messages out."""


class Always(msgspec.Struct, frozen=True):
    """A trigger for every append and every pack."""


Trigger = MessagesOver | TokensOver | PackOverBudget | Always


class Occasion(msgspec.Struct, frozen=True, kw_only=True):
    """The occasion on which a rule fires: messages were appended, or a pack is about to go to a model."""

    kind: Literal["appended", "packed"]
    stream: str
    new: tuple[Message, ...] = ()
    packed: AssembledPack | None = None


# actions


class CompactionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of compaction; also an action of a rule.

    Over `threshold` messages, or when a pack had to leave messages out, the strategy is applied to all but the newest
    `keep` rounds. Over `max_messages` or `max_tokens`, as much is compacted as it takes to fit again.
    """

    strategy: str = "summarise_oldest"
    keep: int = DEFAULT_KEEP_ROUNDS
    threshold: int | None = None
    max_messages: int | None = None
    max_tokens: int | Literal["model"] | None = None
    """Tokens of the messages that no summary covers; "model" is the number the session's model is shown at once."""
    summary_tokens: int = DEFAULT_SUMMARY_TOKENS
    max_length: int | None = None
    """Maximum number of characters of a summary."""
    when_packed: bool = False
    keep_goal: bool = False
    """Pin the user's first message before it is covered by a summary."""
    store: Any = False
    """Also write compacted content to the state, where it can be found again: True for the session's scope, another
    scope, or another store, `store` or `store(scope)`, which gets a copy and is searched."""
    recall: int = 0
    """Number of these entries that a pack looks for."""
    summarizer: Any = None
    timeout: float | None = None
    """Seconds that a summarizer may take."""
    background: bool = False
    """Let a rule compact in a background thread, while the append or the model call goes on."""
    enabled: bool = True

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers that apply this configuration."""
        numbers = [number for number in (self.threshold, self.max_messages) if number is not None]
        found: list[Trigger] = [MessagesOver(min(numbers))] if numbers else []
        if self.max_tokens is not None:
            found.append(TokensOver(None if self.max_tokens == "model" else self.max_tokens))
        return (*found, PackOverBudget()) if self.when_packed else tuple(found)


class BudgetGuard(msgspec.Struct, frozen=True, kw_only=True):
    """An action that refuses a model call: of a thread over these `tokens` or this cost, or with a larger `pack`.

    Money is `usd`, in US dollars, or `cost`, in billionths of one as in `Usage.cost`. Calls without a known price do
    not count towards it: where there may be some, limit the tokens as well.
    """

    tokens: int | None = None
    cost: int | None = None
    pack: int | None = None
    usd: float | None = None


class TelemetryRecorder(msgspec.Struct, frozen=True):
    """An action that reports appends, packs and compactions to a function, or by default to the client's telemetry."""

    record: Callable[[dict[str, Any]], object] | None = None


class Rule(msgspec.Struct, frozen=True):
    """A rule of a session: an action for one or more triggers. A later rule of the same name replaces it."""

    name: str
    trigger: Trigger | tuple[Trigger, ...]
    action: Any

    @property
    def triggers(self) -> tuple[Trigger, ...]:
        """The triggers; any one of them is enough."""
        return tuple(self.trigger) if isinstance(self.trigger, tuple | list) else (self.trigger,)


class RuleOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a rule: the records it made, or its error. A failed rule is tried again on the next occasion."""

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
"""Named configurations. `eko` has the numbers of Eko's `memoryConfig`."""


def priority_of(policy: str | None, priority: str | None = None) -> str:
    """Return a priority by name: the given one, or the one that a policy stands for."""
    if policy is not None and (not isinstance(policy, str) or policy not in POLICY_PRIORITY):
        raise InvalidValue(f"{policy!r} is not a policy. Known policies: {', '.join(POLICY_PRIORITY)}.")
    return priority if priority is not None else POLICY_PRIORITY.get(policy or "normal", "medium")


def policy_of(score: int) -> str:
    """Return the policy that a priority stands for; high has none of its own and counts as normal."""
    by_score = {PRIORITY_SCORE[name]: policy for policy, name in POLICY_PRIORITY.items()}
    return by_score.get(score, "normal")

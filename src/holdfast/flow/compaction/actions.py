"""The actions of rules: compact a thread, refuse the next model call, record telemetry.

Up to its limits a configuration is soft: above the threshold its strategy is tried, and on failure tried again
later. Above a limit it must succeed: by the next strategy, and finally by leaving messages out.
"""

from __future__ import annotations

from typing import Any, Final

from msgspec.structs import replace

from holdfast.core.frames.budgets import to_nano_usd
from holdfast.errors import BudgetExhausted, SummaryFailed
from holdfast.flow.compaction.threads import compact_thread, compact_with_fallback, count_uncovered
from holdfast.flow.journal import telemetry
from holdfast.flow.journal.append import load_state
from holdfast.flow.sessions.append import thread_tokenizer
from holdfast.ports import Env, Summarizer
from holdfast.records.compaction import BudgetGuard, CompactionConfig, Occasion, Rule, RuleOutcome, TelemetryRecorder
from holdfast.records.packs import AssembledPack
from holdfast.records.sessions import Summary, ThreadState

TARGET_SHARE: Final = 0.6
"""The share of an exceeded limit that is left afterwards; otherwise the next message would exceed it again."""
KEEP_ALL_ROUNDS: Final = 2**31
"""The number of rounds to keep where only their tokens are limited."""


def token_limit(env: Env, stream: str, given: int | str | None) -> int:
    """Return the given number of tokens, or the input budget of the thread's model."""
    return given if isinstance(given, int) else thread_tokenizer(env, stream)[1].input_budget


class ThreadCompaction:
    """A compaction of one thread by a configuration, run when a rule fires."""

    def __init__(self, env: Env, stream: str, config: CompactionConfig, summarizer: Summarizer) -> None:
        self._place = (env, stream)
        self._config, self._summarizer = config, summarizer
        self.made: list[Summary] = []
        self.failed: list[str] = []

    def run(self, *, packed: bool) -> None:
        """Run the strategy, then do whatever is needed to be within the limits."""
        config = self._config
        messages, _ = count_uncovered(*self._place)
        over = config.max_messages is not None and messages > config.max_messages
        soft = config.threshold is not None and messages > config.threshold
        unlimited = config.threshold is None and config.max_messages is None and config.max_tokens is None
        if over:
            self._compact_with_fallback(config)
        elif soft or packed or unlimited:
            self._compact_once(config)
        if config.max_messages is not None and count_uncovered(*self._place)[0] > config.max_messages:
            most = max(1, int(config.max_messages * TARGET_SHARE))
            self._compact_with_fallback(replace(config, strategy="truncate_at", keep=most))
        if config.max_tokens is not None:
            limit = token_limit(*self._place, config.max_tokens)
            if count_uncovered(*self._place, enough=limit)[1] > limit:
                self._compact_with_fallback(replace(config, keep=KEEP_ALL_ROUNDS), within=int(limit * TARGET_SHARE))

    def _compact_once(self, config: CompactionConfig) -> None:
        try:
            self._add_summary(compact_thread(*self._place, config, self._summarizer))
        except SummaryFailed as error:
            if not error.longer:
                raise  # Otherwise there is too little to summarise so far, which is no failure.

    def _compact_with_fallback(self, config: CompactionConfig, within: int | None = None) -> None:
        summary, failed = compact_with_fallback(*self._place, config, self._summarizer, within=within)
        self._add_summary(summary)
        if summary is not None or not all(one.longer for one in failed):
            self.failed += [one.text for one in failed]

    def _add_summary(self, summary: Summary | None) -> None:
        if summary is not None:
            self.made.append(summary)


def check_guard(env: Env, stream: str, rule: Rule, packed: AssembledPack) -> None:
    """Refuse a model call that would exceed a limit."""
    wanted: BudgetGuard = rule.action
    used = packed.token_summary.used
    if wanted.pack is not None and used > wanted.pack:
        raise BudgetExhausted(
            f"This pack has {used} tokens, and the rule {rule.name} allows {wanted.pack} for a call (pack). "
            "Make it with a smaller budget, or raise the limit.",
            left=wanted.pack,
            requested=used,
        )
    usage = (load_state(env, stream).thread or ThreadState()).usage
    spent = usage.spent
    if wanted.tokens is not None and spent >= wanted.tokens:
        raise BudgetExhausted(
            f"The model calls of {stream} have used {spent} tokens, and the rule {rule.name} allows {wanted.tokens} "
            "(tokens). Raise the limit, or end the conversation."
        )
    most = wanted.cost if wanted.usd is None else to_nano_usd(wanted.usd, "usd")
    if most is not None and (usage.cost or 0) >= most:
        raise BudgetExhausted(
            f"The model calls of {stream} have cost {usage.cost or 0}, and the rule {rule.name} allows {most} "
            f"({'cost' if wanted.usd is None else 'usd'}, in billionths of a dollar). Raise the limit, or end the "
            "conversation."
        )


def record_occasion(
    env: Env, recorder: TelemetryRecorder, occasion: Occasion, fired: tuple[RuleOutcome, ...]
) -> object:
    """Record an occasion as numbers and names, never content; return the recorder function's result, if any."""
    told: dict[str, Any] = {"kind": occasion.kind, "stream": occasion.stream}
    if occasion.packed is None:
        told["messages"] = len(occasion.new)
        told["tokens"] = sum(message.tokens or 0 for message in occasion.new)
    else:
        summary = occasion.packed.token_summary
        told |= {
            "messages": occasion.packed.conversation.message_count,
            "tokens": summary.used,
            "budget": summary.budget,
            "level": str(summary.compaction_level),
            "left_out": occasion.packed.conversation.truncated_count,
        }
    told["summaries"] = sum(len(one.made) for one in fired)
    told["failed"] = ", ".join(one.rule for one in fired if one.error is not None) or None
    if recorder.record is not None:
        return recorder.record(told)
    telemetry.record_span(env, f"holdfast.{occasion.kind}", {k: v for k, v in told.items() if v is not None})
    return None

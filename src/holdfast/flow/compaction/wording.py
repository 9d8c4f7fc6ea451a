"""What a strategy makes of the older part of a conversation: other words for it, or a note that it is left out.

Only `summarise_oldest` asks anybody; the other strategies give the same words for the same messages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import ContextVar, copy_context
from typing import Any, Final

import msgspec

from holdfast.core.compaction import worded
from holdfast.core.compaction.custom import chosen_by, segments_of
from holdfast.core.compaction.extract import fit
from holdfast.core.compaction.state_extract import as_text, extracted
from holdfast.core.compaction.strategies import marker
from holdfast.core.counting import framing_of
from holdfast.errors import SummaryFailed
from holdfast.flow.compaction.summing import Plan, source, summary_tokens
from holdfast.flow.compaction.weighing import SMALL, gone, sizes, within
from holdfast.flow.conversation.conversing import counting
from holdfast.ports import Acting, Ports, Summarizer
from holdfast.records.compaction import CompactionConfig
from holdfast.records.packs import CompactionLevel

BUILT_IN: Final = "extractive"
"""The name of the summarizer that is used where nobody gave one."""
SLACK: Final = 2
"""Counts of parts are a little less than the count of the whole."""
ALLOWED: Final[ContextVar[float | None]] = ContextVar("holdfast_seconds_allowed", default=None)
"""How long what is being asked for a summary may take."""


class Words(msgspec.Struct, frozen=True, kw_only=True):
    """What older messages became, by which method, and how hard that was on them."""

    text: str
    strategy: str
    method: str
    """Who made them: the strategy, or what it asked."""
    level: CompactionLevel
    state: dict[str, Any] | None = None


def told(ports: Ports, acting: Acting, plan: Plan, config: CompactionConfig, summarizer: Summarizer) -> Words:
    """What the configured strategy makes of what is to be covered."""
    words = _told(ports, acting, plan, config, summarizer)
    return words if config.max_length is None else shortened(words, config.max_length)


def shortened(words: Words, most: int) -> Words:
    """Within so many characters."""
    return msgspec.structs.replace(words, text=fit(words.text, most, len))


def _told(ports: Ports, acting: Acting, plan: Plan, config: CompactionConfig, summarizer: Summarizer) -> Words:
    count, messages = counting(ports, acting, plan.stream)[0].count, plan.messages
    match config.strategy:
        case "summarise_oldest":
            most = allowed(ports, acting, plan, config, summarizer.name)
            text = in_time(config.timeout, lambda: summarizer.summarise(source(plan), max_tokens=most))
            return summarised(config, text, summarizer.name, count)
        case "extract_state":
            state = extracted(messages)
            text = as_text(state, allowed(ports, acting, plan, config), count)
            return _words(config, text, CompactionLevel.MODERATE, state=state)
        case "truncate_at" | "sliding_window":
            left_out = sum(1 for message in messages if not message.pinned)
            return _words(config, marker(left_out), CompactionLevel.AGGRESSIVE)
        case "priority":
            made = worded.by_priority(messages, allowed(ports, acting, plan, config), count)
        case "policy_trim":
            made = worded.by_policy(messages, allowed(ports, acting, plan, config), count)
        case _:
            made = _chosen(ports, acting, plan, config)
    return _words(config, made.text, made.level)


def allowed(ports: Ports, acting: Acting, plan: Plan, config: CompactionConfig, method: str = BUILT_IN) -> int:
    """How many tokens words may take: of our own so few that they are small, or shorter than what they stand for."""
    if method != BUILT_IN:
        return config.summary_tokens
    tokenizer, info = counting(ports, acting, plan.stream)
    saved = gone(plan.messages, sizes(ports, acting, plan.stream))
    around = SLACK + summary_tokens("", tokenizer, framing_of(info.provider, info.name))
    return min(config.summary_tokens, max(saved, SMALL) - around)


def summarised(config: CompactionConfig, text: str, method: str, count: Callable[[str], int]) -> Words:
    """What a summarizer said, cut to what it was allowed: not every model keeps to that."""
    return _words(config, within(text, config.summary_tokens, count), CompactionLevel.MODERATE, method=method)


def _words(
    config: CompactionConfig,
    text: str,
    level: CompactionLevel,
    *,
    method: str | None = None,
    state: dict[str, Any] | None = None,
) -> Words:
    return Words(text=text, strategy=config.strategy, method=method or config.strategy, level=level, state=state)


def _chosen(ports: Ports, acting: Acting, plan: Plan, config: CompactionConfig) -> worded.Worded:
    """By a strategy of the caller's own: what it keeps is told, the rest is left out."""
    given = segments_of(plan.messages, plan.stream, sizes(ports, acting, plan.stream))
    kept = chosen_by(config.strategy, ports.strategies[config.strategy], given, config.summary_tokens)
    names = {segment.id for segment in kept}
    stay = {id(message) for segment in given if segment.id in names for message in segment.messages}
    return worded.of_kept(plan.messages, {at for at, message in enumerate(plan.messages) if id(message) in stay})


def in_time(seconds: float | None, work: Callable[[], str]) -> str:
    """What a summarizer gives. If it takes too long, nobody waits for it any more, and what it gives later is lost."""
    if seconds is None:
        return work()
    answers: list[str] = []
    errors: list[BaseException] = []

    def run() -> None:
        ALLOWED.set(seconds)
        try:
            answers.append(work())
        except BaseException as error:  # noqa: BLE001  # Whoever waits raises it.
            errors.append(error)

    # Not from a pool: its threads would keep the process alive for as long as one of them hangs. With the context of
    # whoever waits: it knows the loop that an async summarizer is awaited on.
    thread = threading.Thread(target=copy_context().run, args=(run,), name="holdfast-summary", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise too_long(seconds)
    return answers[0]


def too_long(seconds: float) -> SummaryFailed:
    """A summarizer that nobody waits for any more."""
    return SummaryFailed(f"The summarizer took longer than {seconds:g} seconds. Nothing was changed; try again.")

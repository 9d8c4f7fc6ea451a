"""A window with a summary, over messages and with any function that makes the summary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.compaction.summary import insert_summary, plan_summary
from holdfast.core.sessions.rounds import ConversationRounds, check_bounds
from holdfast.core.sessions.windows import Window, fit_window
from holdfast.core.values import exception_text
from holdfast.records.messages import Message


def summarise_window(
    messages: Sequence[Message],
    *,
    summarize: Callable[[Sequence[Message]], Any],
    keep: int = 4,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    count: Callable[[Message], int] | None = None,
) -> Window:
    """Everything if it fits; else the newest `keep` rounds, or fewer, behind a summary of those before."""
    plan = plan_summary(ConversationRounds(messages, check_bounds(max_messages, max_tokens, count)), keep)
    if isinstance(plan, Window):
        return plan
    try:
        text = summarize(plan.covered)
    except Exception as error:
        return fit_window(plan.talk, exception_text(error))
    return insert_summary(plan, text)

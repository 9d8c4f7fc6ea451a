"""What must hold of every window, checked without the code that makes windows."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from holdfast.core.sessions.rounds import ConversationRounds, check_bounds, repair_messages
from holdfast.core.sessions.windows import Window, fit_window
from holdfast.core.wire import anthropic, openai_chat
from holdfast.records.messages import Message
from tests.sessions.generated import torn
from tests.sessions.provider_rules import anthropic_problems, openai_problems

Count = Callable[[Message], int]
NO_LIMIT = 1 << 60


def slide_window(
    messages: list[Message],
    *,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    count: Count | None = None,
    reserve: int = 0,
    leading: int | None = None,
) -> Window:
    """The window over messages that are kept in a list."""
    return fit_window(ConversationRounds(messages, check_bounds(max_messages, max_tokens, count, reserve), leading))


def complaints(
    given: list[Message],
    window: Window,
    *,
    max_messages: int = NO_LIMIT,
    max_tokens: int = NO_LIMIT,
    count: Count = lambda _: 0,
) -> list[str]:
    """Everything that is wrong with a sliding window over these messages."""
    valid = repair_messages(given).messages
    shown = window.messages
    wrong = [*torn(shown), *refused(shown)]
    if len(shown) > max_messages or sum(map(count, shown)) > max_tokens:
        wrong.append(f"over: {len(shown)} messages, {sum(map(count, shown))} tokens")
    first = instructions(valid)
    if [id(message) for message in shown[: len(first)]] != [id(message) for message in first]:
        return [*wrong, "the first instructions are not there"]
    parts = in_rounds(valid[len(first) :])
    # Repairing makes a message anew here and there, but never the one that a round begins with.
    places = {id(part[0]): nth for nth, part in enumerate(parts)}
    *older, newest = in_rounds(shown[len(first) :]) or [[]]
    at = [places.get(id(part[0]), -1) for part in older]
    if any(nth < 0 or parts[nth] != part for nth, part in zip(at, older, strict=True)):
        wrong.append("something was invented")
    if any(left >= right for left, right in pairwise([*at, len(parts) - 1])):
        wrong.append("not in order")
    if parts and (not newest or newest[0].role != parts[-1][0].role or len(newest) > len(parts[-1])):
        wrong.append("the newest round is not there")
    missing = [part for nth, part in enumerate(parts[:-1]) if nth not in at]
    return wrong + too_short(missing, max_messages - len(shown), max_tokens - sum(map(count, shown)), count)


def refused(messages: list[Message]) -> list[str]:
    """What OpenAI or Anthropic would refuse."""
    return [
        *(f"openai: {each}" for each in openai_problems(openai_chat.render_request(messages)["messages"])),
        *(f"anthropic: {each}" for each in anthropic_problems(anthropic.render_request(messages))),
    ]


def too_short(missing: list[list[Message]], messages: int, tokens: int, count: Count) -> list[str]:
    """Whether a round that was left out would have fitted in what is free: the newest of them, or a pinned one."""
    candidates = [part for nth, part in enumerate(reversed(missing)) if nth == 0 or any(each.pinned for each in part)]
    fit = [part for part in candidates if len(part) <= messages and sum(map(count, part)) <= tokens]
    return [f"{len(part)} messages more would have fitted" for part in fit]


def in_rounds(valid: list[Message]) -> list[list[Message]]:
    """A valid list in rounds."""
    parts: list[list[Message]] = []
    for message in valid:
        if message.role == "tool" and parts:
            parts[-1].append(message)
        else:
            parts.append([message])
    return parts


def instructions(valid: list[Message]) -> list[Message]:
    """The system and developer messages a list begins with."""
    end = next((at for at, each in enumerate(valid) if each.role not in ("system", "developer")), len(valid))
    return valid[:end]

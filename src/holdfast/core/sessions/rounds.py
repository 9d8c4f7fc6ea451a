"""A conversation made valid and cut into rounds, which are measured only when they are looked at.

So tokens are counted for the part of a long history that is shown and one round more, not for all of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.checks import is_number
from holdfast.core.sessions.pairing import repair_messages
from holdfast.core.sessions.shorten import CountMessage
from holdfast.core.values import exception_text
from holdfast.errors import HoldfastError, InvalidValue
from holdfast.records.messages import Message

SUMMARY_PREFIX = "Summary of previous context: "
UNLIMITED = 1 << 62

Size = tuple[int, int]
"""Messages and tokens."""


class WindowBounds(msgspec.Struct, frozen=True, kw_only=True):
    """The size that a window may have, and the function that counts its tokens."""

    messages: int = UNLIMITED
    tokens: int = UNLIMITED
    reserve: int = 0
    """Tokens of the limit that are not for the messages."""
    count: CountMessage | None = None

    @property
    def size(self) -> Size:
        """The room for messages within both limits."""
        return self.messages, self.tokens - self.reserve


def check_bounds(
    max_messages: int | None, max_tokens: int | None, count: CountMessage | None = None, reserve: int = 0
) -> WindowBounds:
    """Check the limits that a caller gave."""
    if max_messages is None and max_tokens is None:
        raise InvalidValue("A window needs a limit. Give max_messages, max_tokens or both.")
    for name, value in (("max_messages", max_messages), ("max_tokens", max_tokens), ("reserve", reserve)):
        if value is not None and not is_number(value, least=0):
            raise InvalidValue(f"{name} is {value!r}. Give a whole number, not below zero.")
    if max_tokens is not None and count is None:
        raise InvalidValue("max_tokens needs a way to count. Give count=, a function from a message to its tokens.")
    return WindowBounds(
        messages=UNLIMITED if max_messages is None else max_messages,
        tokens=UNLIMITED if max_tokens is None else max_tokens,
        reserve=reserve,
        count=count,
    )


def is_summary(message: Message) -> bool:
    """Return True if a message stands for others that were summarised."""
    return message.role == "system" and message.text.startswith(SUMMARY_PREFIX)


def subtract_size(room: Size, size: Size) -> Size:
    """Return the room that is left; below zero if there is not enough."""
    return room[0] - size[0], room[1] - size[1]


def fits(size: Size, room: Size) -> bool:
    """Return True if both messages and tokens fit."""
    return size[0] <= room[0] and size[1] <= room[1]


class ConversationRounds:
    """A valid list of messages: the first instructions, then rounds by number."""

    __slots__ = ("_known", "_starts", "first", "limits", "messages", "repairs", "rounds")

    def __init__(self, messages: Sequence[Message], limits: WindowBounds, leading: int | None = None) -> None:
        """Repair the messages and find the rounds.

        `leading` is the number of first instructions, if the list is only the end of a thread.
        """
        found = repair_messages(messages)
        self.messages = found.messages
        self.repairs = tuple(found.repairs)
        self.limits = limits
        begin = 0
        for message in self.messages:
            if message.role not in ("system", "developer") or is_summary(message) or begin == leading:
                break
            begin += 1
        self.first = self.messages[:begin]
        # Results now follow their calls, so a new round begins with each message that is not a tool's.
        starts = [index for index in range(begin, len(self.messages)) if self.messages[index].role != "tool"]
        self._starts = [*starts, len(self.messages)]
        self.rounds = len(starts)
        self._known: dict[int, tuple[Message, int]] = {}

    def round(self, nth: int) -> list[Message]:
        """Return the messages of a round; negative numbers count from the newest."""
        nth = nth % self.rounds
        return self.messages[self._starts[nth] : self._starts[nth + 1]]

    def head(self, nth: int) -> Message:
        """Return the first message of a round."""
        return self.messages[self._starts[nth % self.rounds]]

    def size(self, messages: Sequence[Message]) -> Size:
        """Return the size of these messages."""
        return len(messages), sum(map(self.count, messages))

    def fits(self) -> bool:
        """Return True if the whole conversation is within the limits."""
        room = subtract_size(self.limits.size, self.size(self.first))
        for nth in range(self.rounds - 1, -1, -1):
            if min(room) < 0:
                return False
            room = subtract_size(room, self.size(self.round(nth)))
        return min(room) >= 0

    def choose_rounds(self, room: Size, *, most: int = UNLIMITED, keep_summaries: bool) -> list[int]:
        """Choose rounds to show before the newest: pinned ones, then newer ones up to the first that is too large."""
        chosen: set[int] = set()
        older = range(self.rounds - 2, -1, -1)
        for nth in older:
            if self._is_kept(nth, keep_summaries) and fits(size := self.size(self.round(nth)), room):
                room = subtract_size(room, size)
                chosen.add(nth)
        for nth in older[:most]:
            if nth in chosen:
                continue
            if not fits(size := self.size(self.round(nth)), room):
                break
            room = subtract_size(room, size)
            chosen.add(nth)
        return sorted(chosen)

    def count(self, message: Message) -> int:
        """Return the tokens of a message, counted once; 0 if there is no counter."""
        if self.limits.count is None:
            return 0
        known = self._known.get(id(message))
        if known is None:
            # The message is kept with its count, so that its identity is not reused for another object.
            known = self._known[id(message)] = (message, _call_counter(self.limits.count, message))
        return known[1]

    def _is_kept(self, nth: int, keep_summaries: bool) -> bool:
        messages = self.round(nth)
        return any(message.pinned for message in messages) or (keep_summaries and is_summary(messages[0]))


def _call_counter(count: CountMessage, message: Message) -> int:
    try:
        tokens = count(message)
    except HoldfastError:
        raise
    except Exception as error:  # The counter is the caller's own code.
        raise InvalidValue(f"The tokens of a message could not be counted: {exception_text(error)}.") from error
    if not is_number(tokens, least=0):
        raise InvalidValue(f"count gave {tokens!r} for a message. It must give a whole number, not below zero.")
    return tokens

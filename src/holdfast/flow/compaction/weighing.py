"""What summaries weigh: none is longer than was allowed, and none but a small one takes the room of what it covers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.core.compaction.extract import fit
from holdfast.core.counting import framing_of, message_tokens
from holdfast.core.shortening import cut
from holdfast.errors import SummaryFailed
from holdfast.flow.conversation.conversing import counting
from holdfast.ports import Acting, Ports
from holdfast.records.messages import Message

SMALL: Final = 256
"""A summary of at most so many tokens is no burden, whatever it stands for."""

CountMessage = Callable[[Message], int]
Count = Callable[[str], int]


def sizes(ports: Ports, acting: Acting, stream: str) -> CountMessage:
    """The tokens of stored messages of a line, as they were counted or else are now."""
    tokenizer, info = counting(ports, acting, stream)
    framing = framing_of(info.provider, info.name)

    def size(message: Message) -> int:
        return message_tokens(message, tokenizer.count, framing) if message.tokens is None else message.tokens

    return size


def gone(messages: Sequence[Message], size: CountMessage) -> int:
    """The tokens that are saved where something stands for messages: what is pinned is shown all the same."""
    return sum(size(message) for message in messages if not message.pinned)


def check_shorter(messages: Sequence[Message], tokens: int, size: CountMessage) -> None:
    """Refuse a summary that takes no less than the messages that it stands for, unless it is small."""
    saved = gone(messages, size)
    if tokens >= saved and tokens > SMALL:
        raise SummaryFailed(
            f"The summary takes {tokens} tokens, and what it stands for takes {saved}. Nothing was changed; "
            "cover more, allow fewer tokens, or go on until there is more to summarise.",
            longer=True,
        )


def within(text: str, most: int, count: Count) -> str:
    """A text in at most so many tokens: its beginning and its end, around a marker that says how much is missing."""
    if count(text) <= most:
        return text
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(cut(text, middle)[0]) <= most else (low, middle)
    short = cut(text, low)[0]
    # Where there is no room for a marker, its beginning has to do.
    return short if low and count(short) <= most else fit(text, most, count)

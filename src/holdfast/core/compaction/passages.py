"""What was compacted away, in passages that are small enough to be shown again one by one, each with its trust.

A passage is plain data: an entry of the state holds it as its value, under a key that nobody else can write. Its own
word about its trust counts only as far as it does not go beyond who had it written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.compaction.transcript import transcript
from holdfast.core.entries import RESERVED
from holdfast.core.fencing import lowest
from holdfast.records.events.envelope import TRUST_LEVELS
from holdfast.records.messages import Message

PREFIX: Final = f"{RESERVED}context/"
"""Reserved, so that nobody else can write what would be shown as remembered."""
PASSAGE: Final = 1_000
"""Characters of a passage, about two hundred tokens."""


class Passage(msgspec.Struct, frozen=True):
    """Something that was said, in words, and the lowest trust of who said it."""

    text: str
    trust: str


def of_messages(messages: Sequence[Message], size: int = PASSAGE) -> list[Passage]:
    """Messages in words, neighbours together as far as they fit; a long one is cut into several."""
    return passages([(transcript([message]), message.trust) for message in messages], size)


def passages(texts: Iterable[tuple[str, str]], size: int = PASSAGE) -> list[Passage]:
    """Texts, each with its trust, in pieces of about one size. Nothing is missing."""
    found: list[Passage] = []
    for whole, trust in texts:
        for text in _cut(whole, size):
            last = found[-1] if found else None
            if last is not None and len(last.text) + len(text) < size:
                found[-1] = Passage(f"{last.text}\n{text}", lowest(last.trust, trust))
            else:
                found.append(Passage(text, lowest(trust)))
    return found


def _cut(text: str, size: int) -> Iterator[str]:
    start = 0
    while len(text) - start > size:
        space = max(text.rfind("\n", start + size // 2, start + size), text.rfind(" ", start + size // 2, start + size))
        end = space if space > 0 else start + size
        yield text[start:end]
        start = end
    if rest := text[start:]:
        yield rest


def entry_key(id: str, number: int) -> str:
    """The key of a passage of what a summary or compaction stands for, from 0."""
    return f"{PREFIX}{id}" if number == 0 else f"{PREFIX}{id}/{number + 1}"


def entry_value(passage: Passage, id: str) -> dict[str, Any]:
    """A passage as an entry holds it."""
    return {"text": passage.text, "trust": passage.trust, "of": id}


def remembered(value: Any, vouched: str) -> Passage | None:
    """The passage that an entry holds, whoever wrote it; None if it is none."""
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str) or not text.strip():
        return None
    own = value.get("trust")
    return Passage(text, lowest(own if own in TRUST_LEVELS else None, vouched))

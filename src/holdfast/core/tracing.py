"""A fact and where it can be read: by its very words, whatever their case, accents and blanks. Nothing is guessed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal, Self

import msgspec

from holdfast.core.search.words import folded
from holdfast.core.telling import message_text, value_text
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import Appearance

Status = Literal["standing", "retracted", "reset", "elsewhere", "past"]
"""`past` is what packs showed from beside the conversation, and what is there no more."""
SightingKind = Literal["message", "summary", "evidence", "memory", "brief"]

_ORDER: Final = ("shown", "recalled", "repeated", "shortened", "summarised", "absent")
"""What a pack may do with a fact, best first."""


class Fact(msgspec.Struct, frozen=True):
    """Words that are looked for; `plain` is how they are compared."""

    text: str
    plain: str

    @classmethod
    def of(cls, text: object) -> Self:
        """What somebody asks about; refuses what has no words."""
        if not isinstance(text, str):
            raise InvalidValue(f"text must be some words of what was said, not {type(text).__name__}.")
        plain = plainly(text)
        if not plain:
            raise InvalidValue("text is empty. Give some words of what was said, as they were said.")
        return cls(text, plain)

    def within(self, *texts: str | None) -> bool:
        """Whether one of these texts says it."""
        return any(text is not None and (self.text in text or self.plain in plainly(text)) for text in texts)


def plainly(text: str) -> str:
    """A text as it is compared: without accents, case and line breaks."""
    return " ".join(folded(text).casefold().split())


def words(message: Message) -> str:
    """Everything that a model can read in a message: its text, its calls and its results."""
    if message.erased:
        return ""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([message_text(message), *calls])


def tool_words(tools: Sequence[ToolDef]) -> str:
    """What a model is told about tools."""
    return value_text([msgspec.to_builtins(tool) for tool in tools]) if tools else ""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a fact stands."""

    name: str
    """As a pack calls it: m57, s12, a handle, an entry's key, or brief."""
    kind: SightingKind
    status: Status = "standing"
    stream: str = ""
    version: int = 0
    at: int | None = None
    id: str = ""
    """What `pin` takes; for evidence the frame that has it."""
    pinned: bool = False
    gone_at: int = 0
    """The version of the line at which it was taken back, if it was."""


class Look(msgspec.Struct, frozen=True):
    """What a pack does with a fact."""

    state: str
    by: str | None = None
    reason: str | None = None

    @property
    def seen(self) -> bool:
        """Whether a model could read it."""
        return self.state in ("shown", "recalled") or (self.state == "summarised" and self.reason == "repeated")

    @property
    def rank(self) -> int:
        """How near it is to being shown as it was said."""
        return _ORDER.index("repeated" if self.state == "summarised" and self.seen else self.state)


def best(looks: Iterable[Look | None]) -> Look | None:
    """The one that counts, if a pack does several things with a fact."""
    return min((look for look in looks if look is not None), key=lambda look: look.rank, default=None)


def left_at(appearances: Sequence[Appearance]) -> Appearance | None:
    """Where it left last: the first pack without it after one with it. Each role has a window of its own."""
    same = [one for one in appearances if one.role == appearances[-1].role]
    pairs = list(pairwise(same))
    return next((after for before, after in reversed(pairs) if before.seen and not after.seen), None)

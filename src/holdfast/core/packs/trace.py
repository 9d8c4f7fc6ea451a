"""Trace a fact through a conversation and its packs, and advise how to make it visible to the model.

A fact is found by its exact words, regardless of case, accents and blanks. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal, Self

import msgspec

from holdfast.core.packs.event_text import message_text, value_text
from holdfast.core.packs.manifest import sentence
from holdfast.core.search.words import folded
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import Appearance

Status = Literal["standing", "retracted", "reset", "elsewhere", "past"]
"""`past`: packs showed it from outside the conversation, and it is no longer there."""
SightingKind = Literal["message", "summary", "evidence", "memory", "brief"]

_ORDER: Final = ("shown", "recalled", "repeated", "shortened", "summarised", "absent")
"""The states of a fact in a pack, best first."""


class Fact(msgspec.Struct, frozen=True):
    """Words to look for; `plain` is their form for comparison."""

    text: str
    plain: str

    @classmethod
    def of(cls, text: object) -> Self:
        """Return the fact that a caller asks about; refuse a text without words."""
        if not isinstance(text, str):
            raise InvalidValue(f"text must be some words of what was said, not {type(text).__name__}.")
        plain = plainly(text)
        if not plain:
            raise InvalidValue("text is empty. Give some words of what was said, as they were said.")
        return cls(text, plain)

    def within(self, *texts: str | None) -> bool:
        """Return True if one of these texts contains the fact."""
        return any(text is not None and (self.text in text or self.plain in plainly(text)) for text in texts)


def plainly(text: str) -> str:
    """Return a text in its form for comparison: without accents, case and line breaks."""
    return " ".join(folded(text).casefold().split())


def words(message: Message) -> str:
    """Return everything that a model can read in a message: its text, its calls and its results."""
    if message.erased:
        return ""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([message_text(message), *calls])


def tool_words(tools: Sequence[ToolDef]) -> str:
    """Return the tool definitions as a model sees them."""
    return value_text([msgspec.to_builtins(tool) for tool in tools]) if tools else ""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a fact appears."""

    name: str
    """Its name in a pack: m57, s12, a handle, an entry's key, or brief."""
    kind: SightingKind
    status: Status = "standing"
    stream: str = ""
    version: int = 0
    at: int | None = None
    id: str = ""
    """The id that `pin` takes; for evidence, the frame that has it."""
    pinned: bool = False
    gone_at: int = 0
    """The version of the thread at which it was retracted, if it was."""


class Look(msgspec.Struct, frozen=True):
    """The visibility of a fact in a pack."""

    state: str
    by: str | None = None
    reason: str | None = None

    @property
    def seen(self) -> bool:
        """True if a model could read it."""
        return self.state in ("shown", "recalled") or (self.state == "summarised" and self.reason == "repeated")

    @property
    def rank(self) -> int:
        """The rank of its state; lower is nearer to being shown in its original words."""
        return _ORDER.index("repeated" if self.state == "summarised" and self.seen else self.state)


def best(looks: Iterable[Look | None]) -> Look | None:
    """Return the best of several visibilities in one pack."""
    return min((look for look in looks if look is not None), key=lambda look: look.rank, default=None)


def left_at(appearances: Sequence[Appearance]) -> Appearance | None:
    """Return the first pack without the fact after the last pack with it. Each role has a window of its own."""
    same = [one for one in appearances if one.role == appearances[-1].role]
    pairs = list(pairwise(same))
    return next((after for before, after in reversed(pairs) if before.seen and not after.seen), None)


RECALLED: Final = 3
_SHOWN: Final = 80


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a fact and the pack that would be made now."""

    text: str
    session: str
    line: str
    found: tuple[Sighting, ...]
    now: Look
    covered_by: str | None = None
    budget: int | None = None
    """A budget with which a pack shows it, if one was found."""
    tools: bool = False
    """True if the model has tools to read its own history."""
    ended: bool = False
    refused: str | None = None
    """The reason why no pack can be made now."""
    erased: int = 0
    nearest: tuple[str, str] | None = None
    """The message with most of these words, and an excerpt of it."""
    threads: dict[str, str] = {}
    """The thread of each stream that is named."""


def target(found: tuple[Sighting, ...], line: str) -> Sighting | None:
    """Return the newest standing message that says it, in the thread itself if possible."""
    standing = [one for one in found if one.kind == "message" and one.status == "standing"]
    own = [one for one in standing if one.stream == line]
    return next(reversed(own or standing), None)


def advice(known: Known) -> str:
    """Return the advice."""
    if not known.found:
        return _not_said(known)
    if not any(one.status == "standing" for one in known.found):
        return _out_of_sight(known)
    if known.ended:
        return "This conversation has ended, so no further pack is made of it. Say it again in a new one."
    if known.refused is not None:
        return f"No pack can be made now: {known.refused}"
    return _in_sight(known) if known.now.seen else _hidden(known)


def _not_said(known: Known) -> str:
    if known.erased:
        return (
            f"Nothing in this conversation says it now. {_messages(known.erased)} erased, and what was erased cannot "
            "be looked for: say it again with session.append(…) if it may be known."
        )
    if known.nearest is not None:
        name, words = known.nearest
        return f"It was never said in these words. Nearest is {name}: “{words[:_SHOWN]}”. Ask with some words of it."
    return "It was never said in this conversation. Say it with session.append(…), or put it into the system prompt."


def _messages(number: int) -> str:
    return "1 message of it was" if number == 1 else f"{number:,} messages of it were"


def _out_of_sight(known: Known) -> str:
    last = known.found[-1]
    if last.status == "elsewhere":
        thread = known.threads.get(last.stream, "")
        return (
            f"It was said in thread {thread!r} of this session (message {last.id}), which this line does not see. "
            f"Say it here as well, or go on there: hf.session({known.session!r}, thread={thread!r})."
        )
    if last.status == "reset":
        return f"It was said before this conversation began anew ({last.name}). Say it again with session.append(…)."
    if last.status == "past":
        return _past(last)
    return f"It was taken back by a rewind ({last.name}). Say it again with session.append(…)."


def _past(last: Sighting) -> str:
    match last.kind:
        case "evidence":
            return (
                f"It was evidence {last.name}, which no live frame has. Attach it where it is needed: frame.attach(…)."
            )
        case "memory":
            return f"It was recalled as {last.name}, which is there no more. Say it again with session.append(…)."
        case "summary":
            return (
                f"It was repeated by summary {last.name}, which no longer stands. Say it again with session.append(…)."
            )
    return "It stood in a brief or a goal that has changed since. Say it with session.set_brief(…), or append it."


def _in_sight(known: Known) -> str:
    by = known.now.by
    one = next((one for one in known.found if one.name == by), None)
    if known.now.state == "recalled":
        return f"Nothing: a pack made now shows it in {by}."
    if known.now.state == "summarised":
        return f"Nothing: a pack made now has summary {by}, which repeats it."
    if one is None or one.kind != "message" or one.pinned:
        why = " It is pinned, so every pack does." if one is not None and one.pinned else ""
        return f"Nothing: a pack made now shows it in {by}.{why}"
    return f"Nothing: a pack made now shows it in {by}. To keep it when the window moves on, {_pin(known, one)}."


def _hidden(known: Known) -> str:
    one = target(known.found, known.line)
    if one is None:
        return _beside(known)
    if known.now.state == "shortened":
        return f"It is cut out of what is shown of {one.name}. {_longer(known)} {_expand(known, one.name)}"
    if known.covered_by is not None:
        what = "does not repeat it" if known.now.state == "summarised" else "has no room in this pack"
        return (
            f"Summary {known.covered_by} stands for {one.name} and {what}. To show it in every pack, "
            f"{_pin(known, one)}. {_expand(known, known.covered_by)}"
        )
    reach = "" if known.budget is None else f" Or raise the budget: session.pack({known.budget}) shows it."
    more = reach or f" {_expand(known, one.name)}"
    return f"{one.name} is older than the window. To keep it in every pack, {_pin(known, one)}.{more}"


def _pin(known: Known, one: Sighting) -> str:
    if one.stream == known.line:
        return f'call session.pin("{one.id}")'
    thread = known.threads.get(one.stream, "")
    return f'pin it where it was said: hf.session({known.session!r}, thread={thread!r}).pin("{one.id}")'


def _longer(known: Known) -> str:
    if known.budget is not None:
        return f"Raise the budget: session.pack({known.budget}) shows it."
    return "Say what matters of it again in a short message, and pin that one."


def _expand(known: Known, name: str) -> str:
    if known.tools:
        return f"The model can read it with its tools: expand {name}."
    return f"With session.history_tools() the model could read it itself: expand {name}."


def _beside(known: Known) -> str:
    """Advise on a fact that no message says, but evidence, a memory, a summary or the brief does."""
    one = next(one for one in known.found if one.status == "standing")
    because = sentence(known.now.reason) if known.now.reason is not None and known.now.by == one.name else None
    match one.kind:
        case "evidence":
            why = "" if because is None else f", and left out: {because}"
            return (
                f'It is evidence of frame {one.id}{why}. Ask for it there by name: frame.pack(include=["{one.name}"]).'
            )
        case "memory":
            return (
                f"It was compacted away into {one.name}. A pack that looks for it shows it: "
                f"session.pack(recall={RECALLED}, query=…)."
            )
        case "summary":
            reach = "Raise the budget" if known.budget is None else f"Raise the budget: session.pack({known.budget})"
            return f"Only summary {one.name} says it, and it is not shown. {reach}, or say it again."
    return "It stands in the brief of role main, and this role has another one. Say it there with session.set_brief(…)."

"""Trace a fact through a conversation and its packs, and advise how to make it visible to the model.

A fact is found by its exact words, regardless of case, accents and blanks. Nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, Literal, Self

import msgspec

from holdfast.core.packs.event_text import message_text, value_text
from holdfast.core.packs.manifest import describe_reason
from holdfast.core.search.words import fold_text
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import Appearance

SightingStatus = Literal["standing", "retracted", "reset", "elsewhere", "past"]
"""`past`: packs showed it from outside the conversation, and it is no longer there."""
SightingKind = Literal["message", "summary", "evidence", "memory", "brief"]

_STATE_ORDER: Final = ("shown", "recalled", "repeated", "shortened", "summarised", "absent")
"""The states of a fact in a pack, best first."""

_PAST_ADVICE: Final = {
    "evidence": "It was evidence {}, which no live frame has. Attach it where it is needed: frame.attach(…).",
    "memory": "It was recalled as {}, which is there no more. Say it again with session.append(…).",
    "summary": "It was repeated by summary {}, which no longer stands. Say it again with session.append(…).",
    "brief": "It stood in a brief or a goal that has changed since. "
    "Say it with session.packs.set_brief(…), or append it.",
}
"""Advice on a fact that packs showed and that is no longer there, by its kind; {} is its name."""
RECALL_LIMIT: Final = 3
_QUOTE_CHARS: Final = 80


class Fact(msgspec.Struct, frozen=True):
    """Words to look for; `plain` is their form for comparison."""

    text: str
    plain: str

    @classmethod
    def of(cls, text: object) -> Self:
        """Return the fact that a caller asks about; refuse a text without words."""
        if not isinstance(text, str):
            raise InvalidValue(f"text must be some words of what was said, not {type(text).__name__}.")
        plain = normalize_text(text)
        if not plain:
            raise InvalidValue("text is empty. Give some words of what was said, as they were said.")
        return cls(text, plain)

    def is_in(self, *texts: str | None) -> bool:
        """Return True if one of these texts contains the fact."""
        return any(text is not None and (self.text in text or self.plain in normalize_text(text)) for text in texts)


def normalize_text(text: str) -> str:
    """Return a text in its form for comparison: without accents, case and line breaks."""
    return " ".join(fold_text(text).casefold().split())


def readable_text(message: Message) -> str:
    """Return everything that a model can read in a message: its text, its calls and its results."""
    if message.erased:
        return ""
    calls = [f"{call.name}({call.arguments})" for call in message.tool_calls]
    return "\n".join([message_text(message), *calls])


def tools_text(tools: Sequence[ToolDef]) -> str:
    """Return the tool definitions as a model sees them."""
    return value_text([msgspec.to_builtins(tool) for tool in tools]) if tools else ""


class Sighting(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a fact appears."""

    name: str
    """Its name in a pack: m57, s12, a handle, an entry's key, or brief."""
    kind: SightingKind
    status: SightingStatus = "standing"
    stream: str = ""
    version: int = 0
    at: int | None = None
    id: str = ""
    """The id that `pin` takes; for evidence, the frame that has it."""
    pinned: bool = False
    gone_at: int = 0
    """The version of the thread at which it was retracted, if it was."""


class FactVisibility(msgspec.Struct, frozen=True):
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
        return _STATE_ORDER.index("repeated" if self.state == "summarised" and self.seen else self.state)


def best_visibility(looks: Iterable[FactVisibility | None]) -> FactVisibility | None:
    """Return the best of several visibilities in one pack."""
    return min((look for look in looks if look is not None), key=lambda look: look.rank, default=None)


def find_departure(appearances: Sequence[Appearance]) -> Appearance | None:
    """Return the first pack without the fact after the last pack with it. Each role has a window of its own."""
    same = [one for one in appearances if one.role == appearances[-1].role]
    pairs = list(pairwise(same))
    return next((after for before, after in reversed(pairs) if before.seen and not after.seen), None)


class PackForecast(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of a pack built now."""

    look: FactVisibility
    tools: bool = False
    """True if the model has tools to read its own history."""
    budget: int | None = None
    """A budget with which a pack shows it, if one was found."""
    refused: str | None = None
    """The reason why no pack can be made now."""


class FactContext(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a fact and the pack that would be made now."""

    session: str
    thread_stream: str
    found: tuple[Sighting, ...]
    now: PackForecast
    covered_by: str | None = None
    ended: bool = False
    erased: int = 0
    nearest: tuple[str, str] | None = None
    """The message with most of these words, and an excerpt of it."""
    threads: dict[str, str] = {}
    """The thread of each stream that is named."""


def find_target(found: tuple[Sighting, ...], thread: str) -> Sighting | None:
    """Return the newest standing message that says it, in the thread itself if possible."""
    standing = [one for one in found if one.kind == "message" and one.status == "standing"]
    own = [one for one in standing if one.stream == thread]
    return next(reversed(own or standing), None)


def advise(known: FactContext) -> str:
    """Return the advice."""
    if not known.found:
        return _advise_unsaid(known)
    if not any(one.status == "standing" for one in known.found):
        return _advise_out_of_sight(known)
    if known.ended:
        return "This conversation has ended, so no further pack is made of it. Say it again in a new one."
    if known.now.refused is not None:
        return f"No pack can be made now: {known.now.refused}"
    return _advise_visible(known) if known.now.look.seen else _advise_hidden(known)


def _advise_unsaid(known: FactContext) -> str:
    if known.erased:
        many = "1 message of it was" if known.erased == 1 else f"{known.erased:,} messages of it were"
        return (
            f"No message of this conversation contains it now. {many} erased, and erased text "
            "cannot be searched. Append it again with session.append(…) if it may be known."
        )
    if known.nearest is not None:
        name, words = known.nearest
        return (
            f"It was never said in these words. Nearest is {name}: “{words[:_QUOTE_CHARS]}”. Ask with some words of it."
        )
    return "It was never said in this conversation. Say it with session.append(…), or put it into the system prompt."


def _advise_out_of_sight(known: FactContext) -> str:
    last = known.found[-1]
    if last.status == "elsewhere":
        thread = known.threads.get(last.stream, "")
        return (
            f"It was said in thread {thread!r} of this session (message {last.id}), which is not part of this thread. "
            f"Append it here as well, or continue there: hf.session({known.session!r}, thread={thread!r})."
        )
    if last.status == "reset":
        return f"It was said before this conversation was reset ({last.name}). Say it again with session.append(…)."
    if last.status == "past":
        return _PAST_ADVICE[last.kind].format(last.name)
    return f"It was taken back by a rewind ({last.name}). Say it again with session.append(…)."


def _advise_visible(known: FactContext) -> str:
    by = known.now.look.by
    one = next((one for one in known.found if one.name == by), None)
    if known.now.look.state == "recalled":
        return f"Nothing: a pack made now shows it in {by}."
    if known.now.look.state == "summarised":
        return f"Nothing: a pack made now has summary {by}, which repeats it."
    if one is None or one.kind != "message" or one.pinned:
        why = " It is pinned, so every pack does." if one is not None and one.pinned else ""
        return f"Nothing: a pack made now shows it in {by}.{why}"
    return f"Nothing: a pack made now shows it in {by}. To keep it when the window moves on, {_pin_call(known, one)}."


def _advise_hidden(known: FactContext) -> str:
    one = find_target(known.found, known.thread_stream)
    if one is None:
        return _advise_other_source(known)
    if known.now.look.state == "shortened":
        hint = "Say what matters of it again in a short message, and pin that one."
        if known.now.budget is not None:
            hint = f"Raise the budget: session.pack({known.now.budget}) shows it."
        return f"It is cut out of what is shown of {one.name}. {hint} {_expand_hint(known, one.name)}"
    if known.covered_by is not None:
        what = "does not repeat it" if known.now.look.state == "summarised" else "has no room in this pack"
        return (
            f"Summary {known.covered_by} stands for {one.name} and {what}. To show it in every pack, "
            f"{_pin_call(known, one)}. {_expand_hint(known, known.covered_by)}"
        )
    reach = "" if known.now.budget is None else f" Or raise the budget: session.pack({known.now.budget}) shows it."
    more = reach or f" {_expand_hint(known, one.name)}"
    return f"{one.name} is older than the window. To keep it in every pack, {_pin_call(known, one)}.{more}"


def _pin_call(known: FactContext, one: Sighting) -> str:
    if one.stream == known.thread_stream:
        return f'call session.pin("{one.id}")'
    thread = known.threads.get(one.stream, "")
    return f'pin it where it was said: hf.session({known.session!r}, thread={thread!r}).pin("{one.id}")'


def _expand_hint(known: FactContext, name: str) -> str:
    if known.now.tools:
        return f"The model can read it with its tools: expand {name}."
    return f"With session.packs.history_tools() the model could read it itself: expand {name}."


def _advise_other_source(known: FactContext) -> str:
    """Advise on a fact that no message says, but evidence, a memory, a summary or the brief does."""
    one = next(one for one in known.found if one.status == "standing")
    look, budget = known.now.look, known.now.budget
    because = describe_reason(look.reason) if look.reason is not None and look.by == one.name else None
    match one.kind:
        case "evidence":
            why = "" if because is None else f", and left out: {because}"
            return (
                f'It is evidence of frame {one.id}{why}. Ask for it there by name: frame.pack(include=["{one.name}"]).'
            )
        case "memory":
            return (
                f"It was compacted away into {one.name}. A pack that looks for it shows it: "
                f"session.pack(recall={RECALL_LIMIT}, query=…)."
            )
        case "summary":
            reach = "Raise the budget" if budget is None else f"Raise the budget: session.pack({budget})"
            return f"Only summary {one.name} says it, and it is not shown. {reach}, or say it again."
    return (
        "It stands in the brief of role main, and this role has another one. "
        "Say it there with session.packs.set_brief(…)."
    )

"""Records that go in and out of fitting, and the errors if no pack is possible.

The errors name the parts that must be shown, their tokens, and how to reduce them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.core.packs.rounds import Form, Rounds
from holdfast.core.packs.segments import Item, ItemForm, Items
from holdfast.errors import BudgetTooSmall
from holdfast.records.packs import CompactionLevel, Decision, Segment


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """The division of a budget, in hundredths."""

    conversation: int = 60
    included: int = 75
    memory: int = 15


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on the size of a pack, and on the movement of its window."""

    budget: int
    max_messages: int
    floor: CompactionLevel
    stickiness: float
    before: tuple[str, int] | None = None
    """The oldest message of the window that was journaled last."""
    shares: Shares = Shares()


class Sources(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that may be shown."""

    fixed: int
    """Tokens of the system prompt, tools and notes, and of what a provider puts around a request."""
    crumbs: Segment | None
    last_crumb: Segment | None
    rounds: Rounds
    complete: bool
    """True if these are all rounds that no summary covers."""
    summaries: tuple[Segment, ...]
    hidden: bool
    """True if there are messages that neither these rounds nor these summaries stand for."""
    items: tuple[Item, ...]
    forms: Items
    marker: Segment | None
    """The marker for earlier messages that are not shown, at its longest."""
    fixed_parts: Callable[[], Sequence[Part]] = tuple
    """The parts that `fixed` consists of, for the error if they are too large."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of what is shown."""

    level: CompactionLevel
    crumbs: Segment | None
    summaries: tuple[Segment, ...]
    marked: bool
    rounds: dict[int, Form]
    start: int
    """The first round of the window; rounds shown before it are pinned, or questions that the turn answers."""
    items: tuple[ItemForm, ...]
    decisions: tuple[Decision, ...]


NAMED = 3
"""The number of parts that the error names, the largest first."""
MATTERS = 10
"""The error gives advice only on parts that take at least one in this many of the required tokens."""


class Part(msgspec.Struct, frozen=True):
    """Something that every pack must show, at its shortest."""

    name: str
    tokens: int
    helps: str = ""
    """The advice to make it smaller; empty if only a larger budget helps."""
    count: int = 0
    """The number of messages or items, if more than one."""

    def __str__(self) -> str:
        return f"{self.name} {self.tokens} ({self.count})" if self.count > 1 else f"{self.name} {self.tokens}"


def round_parts(rounds: Rounds, must: Mapping[int, Form], evidence: Sequence[int]) -> tuple[Part, ...]:
    """Return the required parts of the conversation, and critical evidence."""
    newest = rounds.number - 1
    asked = [form for nth, form in must.items() if nth != newest and rounds.asked(nth)]
    pinned = [form for nth, form in must.items() if nth != newest and not rounds.asked(nth)]
    first = [Form([message], rounds.talk.count(message)) for message in rounds.talk.first]
    return (
        _part("the first instructions", first, "shorten them"),
        _part("pinned messages", pinned, "unpin some"),
        _part("what the turn answers", asked, "stop the turn and ask for less"),
        _part("the newest round", [must[newest]] if newest in must else ()),
        Part("critical evidence", sum(evidence), "lower its priority", len(evidence)),
    )


def _part(name: str, forms: Sequence[Form], helps: str = "") -> Part:
    messages = sum(len(form.messages) for form in forms)
    return Part(name, sum(form.tokens for form in forms), helps, messages)


def too_small(budget: int, required: int, parts: Sequence[Part]) -> BudgetTooSmall:
    """Return the error for too few tokens, with the largest parts."""
    largest = sorted((part for part in parts if part.tokens > 0), key=lambda part: -part.tokens)[:NAMED]
    told = f" (the most: {', '.join(map(str, largest))})" if largest else ""
    advice = [f", or {part.helps}" for part in largest if part.helps and part.tokens * MATTERS >= required]
    return BudgetTooSmall(
        f"A pack of {budget} tokens is too small: what must be shown needs {required}, shortened as it can be{told}. "
        f"Raise the budget to {required}{''.join(advice)}.",
        required=required,
    )


def too_few(most: int, required: int) -> BudgetTooSmall:
    """Return the error for too few messages."""
    return BudgetTooSmall(
        f"A pack of {most} messages is too small: the first instructions, what is pinned, what the turn answers and "
        f"the newest round need {required} messages. Raise max_messages to that.",
        required=required,
        unit="messages",
    )

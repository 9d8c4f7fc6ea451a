"""What a pack is made from, on which terms, and what came of it: records that go in and out of fitting.

Why there is no pack: what must be shown, part by part with what each takes, and what makes it less.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.core.packs.rounds import Form, Rounds
from holdfast.core.packs.segments import Item, ItemForm, Items
from holdfast.errors import BudgetTooSmall
from holdfast.records.packs import CompactionLevel, Decision, Segment


class Shares(msgspec.Struct, frozen=True, kw_only=True):
    """How a budget is divided, in hundredths."""

    conversation: int = 60
    included: int = 75
    memory: int = 15


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """How much may be shown, and how a window moves."""

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
    """What the system prompt, tools and notes take, with what a provider puts around a request."""
    crumbs: Segment | None
    last_crumb: Segment | None
    rounds: Rounds
    complete: bool
    """Whether these are all rounds that no summary covers."""
    summaries: tuple[Segment, ...]
    hidden: bool
    """Whether there are messages that neither these rounds nor these summaries stand for."""
    items: tuple[Item, ...]
    forms: Items
    marker: Segment | None
    """What stands for earlier messages that are not shown, at its longest."""
    fixed_parts: Callable[[], Sequence[Part]] = tuple
    """What `fixed` consists of, for who is told that it is too much."""


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown."""

    level: CompactionLevel
    crumbs: Segment | None
    summaries: tuple[Segment, ...]
    marked: bool
    rounds: dict[int, Form]
    start: int
    """The first round of the window; what is shown before it is pinned, or what the turn answers."""
    items: tuple[ItemForm, ...]
    decisions: tuple[Decision, ...]


NAMED = 3
"""How many parts are named, the largest first."""
MATTERS = 10
"""Of what is needed, a part must take one in so many to be worth making smaller."""


class Part(msgspec.Struct, frozen=True):
    """Something that every pack must show, at its shortest."""

    name: str
    tokens: int
    helps: str = ""
    """What makes it smaller, as something to do; nothing if only a larger budget does."""
    count: int = 0
    """How many there are, where that says something."""

    def __str__(self) -> str:
        return f"{self.name} {self.tokens} ({self.count})" if self.count > 1 else f"{self.name} {self.tokens}"


def round_parts(rounds: Rounds, must: Mapping[int, Form], evidence: Sequence[int]) -> tuple[Part, ...]:
    """The conversation that must be shown, and the tokens of critical evidence."""
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
    """Not enough tokens, and where they would go."""
    largest = sorted((part for part in parts if part.tokens > 0), key=lambda part: -part.tokens)[:NAMED]
    told = f" (the most: {', '.join(map(str, largest))})" if largest else ""
    advice = [f", or {part.helps}" for part in largest if part.helps and part.tokens * MATTERS >= required]
    return BudgetTooSmall(
        f"A pack of {budget} tokens is too small: what must be shown needs {required}, shortened as it can be{told}. "
        f"Raise the budget to {required}{''.join(advice)}.",
        required=required,
    )


def too_few(most: int, required: int) -> BudgetTooSmall:
    """Not enough messages."""
    return BudgetTooSmall(
        f"A pack of {most} messages is too small: the first instructions, what is pinned, what the turn answers and "
        f"the newest round need {required} messages. Raise max_messages to that.",
        required=required,
        unit="messages",
    )

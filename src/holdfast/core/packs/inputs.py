"""Records that go in and out of fitting, and the errors if no pack is possible.

The errors name the parts that must be shown, their tokens, and how to reduce them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.core.packs.rounds import RoundForm, ThreadRounds
from holdfast.core.packs.segments import ItemForm, ItemForms, PackItem
from holdfast.errors import BudgetTooSmall
from holdfast.records.packs import CompactionLevel, Decision, Segment
from holdfast.records.settings import Settings

MAX_NAMED_PARTS = 3
"""The number of parts that the error names, the largest first."""
ADVICE_DIVISOR = 10
"""The error gives advice only on parts that take at least one in this many of the required tokens."""


class PackLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits on the size of a pack, and on the movement of its window."""

    budget: int
    max_messages: int
    floor: CompactionLevel
    stickiness: float
    before: tuple[str, int] | None = None
    """The oldest message of the window that was journaled last."""
    settings: Settings
    """The division of a budget, in hundredths."""


class PackSources(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that may be shown."""

    fixed: int
    """Tokens of the system prompt, tools and notes, and of what a provider puts around a request."""
    crumbs: Segment | None
    last_crumb: Segment | None
    rounds: ThreadRounds
    complete: bool
    """True if these are all rounds that no summary covers."""
    summaries: tuple[Segment, ...]
    hidden: bool
    """True if there are messages that neither these rounds nor these summaries stand for."""
    items: tuple[PackItem, ...]
    forms: ItemForms
    marker: Segment
    """The marker for earlier messages that are not shown, at its longest."""
    summarise: Callable[[int, int], Segment | None] = lambda first, room: None
    """A function that summarises the messages before a window's first round, in at most so many tokens."""
    fixed_parts: Callable[[], Sequence[RequiredPart]] = tuple
    """The parts that `fixed` consists of, for the error if they are too large."""


class FitResult(msgspec.Struct, frozen=True, kw_only=True):
    """The choice of what is shown."""

    level: CompactionLevel
    crumbs: Segment | None
    summaries: tuple[Segment, ...]
    marked: bool
    rounds: dict[int, RoundForm]
    start: int
    """The first round of the window; rounds shown before it are pinned, or questions that the turn answers."""
    items: tuple[ItemForm, ...]
    decisions: tuple[Decision, ...]


class RequiredPart(msgspec.Struct, frozen=True):
    """Something that every pack must show, at its shortest."""

    name: str
    tokens: int
    helps: str = ""
    """The advice to make it smaller; empty if only a larger budget helps."""
    count: int = 0
    """The number of messages or items, if more than one."""

    def __str__(self) -> str:
        return f"{self.name} {self.tokens} ({self.count})" if self.count > 1 else f"{self.name} {self.tokens}"


def round_parts(
    rounds: ThreadRounds, must: Mapping[int, RoundForm], evidence: Sequence[int]
) -> tuple[RequiredPart, ...]:
    """Return the required parts of the conversation, and critical evidence."""
    newest = rounds.number - 1
    asked = [form for nth, form in must.items() if nth != newest and nth in rounds.all_asked]
    pinned = [form for nth, form in must.items() if nth != newest and nth not in rounds.all_asked]
    first = [RoundForm([message], rounds.talk.count(message)) for message in rounds.talk.first]
    return (
        _make_part("the first instructions", first, "shorten them"),
        _make_part("pinned messages", pinned, "unpin some"),
        _make_part("what the turn answers", asked, "stop the turn and ask for less"),
        _make_part("the newest round", [must[newest]] if newest in must else ()),
        RequiredPart("critical evidence", sum(evidence), "lower its priority", len(evidence)),
    )


def _make_part(name: str, forms: Sequence[RoundForm], helps: str = "") -> RequiredPart:
    messages = sum(len(form.messages) for form in forms)
    return RequiredPart(name, sum(form.tokens for form in forms), helps, messages)


def too_small_error(budget: int, required: int, parts: Sequence[RequiredPart]) -> BudgetTooSmall:
    """Return the error for too few tokens, with the largest parts."""
    largest = sorted((part for part in parts if part.tokens > 0), key=lambda part: -part.tokens)[:MAX_NAMED_PARTS]
    told = f" (the most: {', '.join(map(str, largest))})" if largest else ""
    advice = [f", or {part.helps}" for part in largest if part.helps and part.tokens * ADVICE_DIVISOR >= required]
    return BudgetTooSmall(
        f"A pack of {budget} tokens is too small: what must be shown needs {required}, shortened as it can be{told}. "
        f"Raise the budget to {required}{''.join(advice)}.",
        required=required,
    )

"""What a pack is made from, on which terms, and what came of it: records that go in and out of fitting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.pack.items import Item, ItemForm, Items
from holdfast.core.pack.refusing import Part
from holdfast.core.pack.rounds import Form, Rounds
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

"""The best that fits: level by level, until everything that must be shown is, and the rest as far as there is room.

| level | what is done |
|---|---|
| none | everything is shown as it is |
| light | prose loses blanks, long texts keep their ends; the newest round stays as it is |
| moderate | older rounds leave the window; evidence that does not fit is left out |
| aggressive | evidence of low and background priority goes; the newest round and critical evidence are shortened |
| critical | only the newest round, what is pinned and critical evidence are left, and the last breadcrumb |

What is critical is in every pack, or there is none: then `BudgetTooSmall` says how much it takes. A larger budget
never loses something critical or asked for by name: those are counted at their shortest before anything grows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.pack.items import Item, ItemForm, Items, in_order
from holdfast.core.pack.older import Choosing, Older
from holdfast.core.pack.rounds import Form, Rounds
from holdfast.errors import BudgetTooSmall
from holdfast.records.packs import LEVELS, CompactionLevel, Decision, Segment

_UNIMPORTANT = frozenset({"low", "background"})
_WITH_EVERYTHING = LEVELS[:2]


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


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """What is shown."""

    level: CompactionLevel
    crumbs: Segment | None
    summaries: tuple[Segment, ...]
    marked: bool
    rounds: dict[int, Form]
    start: int
    """The first round of the window; what is shown before it is pinned."""
    items: tuple[ItemForm, ...]
    decisions: tuple[Decision, ...]


def fit(sources: Sources, limits: Limits) -> Fit:
    """The first level that fits, from the floor on."""
    all_there = sources.complete and not sources.hidden
    for level in LEVELS[LEVELS.index(limits.floor) :]:
        everything = level in _WITH_EVERYTHING
        if everything and not all_there:
            continue
        attempt = _Attempt(sources, limits, level)
        found = attempt.everything() if everything else attempt.bounded()
        if found is not None:
            return found
    raise _too_small(limits.budget, limits.budget)  # Never reached: the last level fits, or says what it needs.


class _Attempt:
    """One level."""

    def __init__(self, sources: Sources, limits: Limits, level: CompactionLevel) -> None:
        self._sources, self._limits, self._level = sources, limits, level
        self._messages = self._room = self._total = self._included = 0
        self._rounds, self._forms = sources.rounds, sources.forms
        self._items = in_order(sources.items)
        self._bare = level is CompactionLevel.CRITICAL_ONLY
        self._crumbs = sources.last_crumb if self._bare else sources.crumbs
        self._shown: dict[int, Form] = {}
        self._unshortened: dict[int, Form] = {}
        self._chosen: dict[str, ItemForm] = {}
        self._why: dict[str, str] = {}

    # all of it

    def everything(self) -> Fit | None:
        """Levels none and light: all of it, or nothing."""
        forms = {nth: self._form(nth) for nth in range(self._rounds.number)}
        items = tuple(map(self._forms.whole, self._items))
        parts = [*self._sources.summaries, *([self._crumbs] if self._crumbs else ())]
        used = self._sources.fixed + self._first()[1] + sum(part.estimated_tokens for part in parts)
        used += sum(form.tokens for form in forms.values()) + sum(form.tokens for form in items)
        said = sum(len(form.messages) for form in forms.values()) + self._first()[0] + len(self._sources.summaries)
        memory = sum(form.tokens for form in items if form.item.kind == "memory")
        if memory > (self._limits.budget - self._sources.fixed) * self._limits.shares.memory // 100:
            return None  # They have a share of their own, however much room there is.
        if used > self._limits.budget or said > self._limits.max_messages:
            return None
        self._chosen = {form.item.id: form for form in items}
        self._shown = forms
        return self._fit(self._sources.summaries, 0, marked=False)

    def _form(self, nth: int) -> Form:
        """A round at this level; the newest is not touched unless it must be."""
        if self._level is CompactionLevel.NONE or nth == self._rounds.number - 1:
            return self._rounds.whole(nth)
        return self._rounds.light(nth)

    def _first(self) -> tuple[int, int]:
        """Messages and tokens of the first instructions."""
        return self._rounds.talk.size(self._rounds.talk.first)

    # what fits

    def bounded(self) -> Fit | None:
        """Levels moderate to critical: what must be shown first, and then what can be."""
        crumbs = 0 if self._crumbs is None else self._crumbs.estimated_tokens
        self._messages = self._limits.max_messages - self._first()[0]
        self._room = self._limits.budget - self._sources.fixed - crumbs - self._first()[1]
        if not self._take_least():
            return None
        self._grow()
        if self._bare:
            return self._fit((), self._rounds.number - 1, marked=False)
        self._add_items(self._evidence_room())
        older = self._older()
        self._shown.update(older.forms)
        self._room -= older.tokens
        self._add_items(self._room)
        return self._fit(older.summaries, older.first, marked=older.marked)

    def _older(self) -> Older:
        """The window before the newest round, in what is left."""
        return Choosing(
            rounds=self._rounds,
            form=self._rounds.light,
            shown=self._shown,
            complete=self._sources.complete,
            summaries=self._sources.summaries,
            hidden=self._sources.hidden,
            marker=self._sources.marker,
            room=self._room,
            messages=self._messages,
            stickiness=self._limits.stickiness,
            before=self._limits.before,
        ).chosen()

    def _take_least(self) -> bool:
        """Everything that must be shown, at its shortest; False if this level cannot."""
        must = self._must_rounds()
        critical = [item for item in self._items if item.critical]
        least = sum(form.tokens for form in must.values()) + sum(self._forms.least(item).tokens for item in critical)
        if least > self._room:
            if self._bare:
                raise _too_small(self._limits.budget, self._limits.budget - self._room + least)
            return False
        self._total = self._room
        self._shown.update(must)
        self._chosen.update({item.id: self._forms.least(item) for item in critical})
        self._room -= least
        if not self._bare:
            self._take_included()
        return self._level is not CompactionLevel.MODERATE or self._all_whole(critical, must)

    def _must_rounds(self) -> dict[int, Form]:
        """The newest round and those that are pinned, at their shortest if anything else may want the room."""
        newest = self._rounds.number - 1
        must = {nth: self._form(nth) for nth in self._rounds.all_pinned if nth < newest}
        pinned = sum(len(form.messages) for form in must.values())
        if newest >= 0:
            whole = self._form(newest)
            # A call of the newest round may go, but not what is pinned.
            least = len(whole.messages) if self._rounds.pinned(newest) else min(len(whole.messages), 2)
            if least > self._messages - pinned:
                raise _too_few(self._limits.max_messages, self._first()[0] + pinned + least)
            must[newest] = self._rounds.fewer(whole, self._messages - pinned)
        self._messages -= sum(len(form.messages) for form in must.values())
        self._unshortened.update(must)
        if not self._items and sum(form.tokens for form in must.values()) <= self._room:
            return must
        return {nth: self._rounds.within(form, 0) for nth, form in must.items()}

    def _take_included(self) -> None:
        """What was asked for by name, at its shortest, one after the other as far as their share goes."""
        self._included = self._room * self._limits.shares.included // 100
        for item in self._items:
            if item.mandatory and not item.critical:
                form = self._forms.least(item)
                if form.tokens > self._included:
                    break
                self._included -= form.tokens
                self._room -= form.tokens
                self._chosen[item.id] = form

    def _all_whole(self, critical: Sequence[Item], must: dict[int, Form]) -> bool:
        """Whether all that must be shown can be shown whole, which is what level moderate means."""
        more = sum(self._forms.whole(item).tokens - self._forms.least(item).tokens for item in critical)
        more += sum(self._unshortened[nth].tokens - form.tokens for nth, form in must.items())
        return more <= self._room

    def _grow(self) -> None:
        """What is there at its shortest gets longer: the newest round, what is pinned, critical evidence, the rest."""
        critical = [one for one in self._chosen.values() if one.item.critical]
        wanted = sum(self._forms.whole(one.item).tokens - one.tokens for one in critical)
        for nth in sorted(self._shown, reverse=True):
            share = self._room * self._limits.shares.conversation // 100
            allowed = max(share, self._room - wanted)
            form = self._rounds.within(self._unshortened[nth], self._shown[nth].tokens + allowed)
            self._room -= form.tokens - self._shown[nth].tokens
            self._shown[nth] = form
        for one in critical:
            self._regrow(one.item, self._room)
        for one in [one for one in self._chosen.values() if not one.item.critical]:
            self._included -= self._regrow(one.item, min(self._room, self._included))

    def _regrow(self, item: Item, more: int) -> int:
        """An item made longer by up to so many tokens; gives how many it took."""
        before = self._chosen[item.id].tokens
        form = self._forms.within(item, before + more)
        form = form if form.tokens <= before + more else self._chosen[item.id]
        self._chosen[item.id] = form
        self._room -= form.tokens - before
        return form.tokens - before

    def _evidence_room(self) -> int:
        """What evidence may take before the conversation is asked."""
        share = self._total * (100 - self._limits.shares.conversation) // 100
        return min(self._room, max(0, share - sum(form.tokens for form in self._chosen.values())))

    def _add_items(self, room: int) -> None:
        """Optional evidence in order; what does not fit is skipped, and the next one tried."""
        memory = self._total * self._limits.shares.memory // 100
        memory -= sum(form.tokens for form in self._chosen.values() if form.item.kind == "memory")
        # What was asked for by name is there at its shortest, or there was no room even for that: then there is none
        # for evidence that nobody asked for.
        full = any(item.mandatory and item.id not in self._chosen for item in self._items)
        for item in self._items:
            if item.id in self._chosen or item.mandatory or (full and item.kind == "evidence"):
                continue
            if self._level is CompactionLevel.AGGRESSIVE and item.priority in _UNIMPORTANT:
                self._why[item.id] = "level"
                continue
            form = self._forms.whole(item)
            if form.tokens > room or (item.kind == "memory" and form.tokens > memory):
                self._why[item.id] = "no_room"
                continue
            self._chosen[item.id] = form
            self._why.pop(item.id, None)
            self._room -= form.tokens
            room -= form.tokens
            memory -= form.tokens if item.kind == "memory" else 0

    # what came of it

    def _fit(self, summaries: tuple[Segment, ...], start: int, *, marked: bool) -> Fit:
        return Fit(
            level=self._level,
            crumbs=self._crumbs,
            summaries=summaries,
            marked=marked,
            rounds=dict(sorted(self._shown.items())),
            start=max(start, 0),
            items=tuple(self._chosen[item.id] for item in self._items if item.id in self._chosen),
            decisions=tuple(self._decision(item) for item in self._items),
        )

    def _decision(self, item: Item) -> Decision:
        form = self._chosen.get(item.id)
        whole = self._forms.whole(item).tokens
        if form is None:
            why = "level" if self._bare else self._why.get(item.id, "no_room")
            return Decision(
                id=item.id,
                kind=item.kind,
                outcome="omitted",
                reason=why,
                priority=item.priority,
                tokens=whole,
                trust=item.trust,
            )
        return Decision(
            id=item.id,
            kind=item.kind,
            outcome="shortened" if form.segment.shortened else "included",
            reason="critical" if item.critical else "asked_for" if item.mandatory else "fits",
            priority=item.priority,
            tokens=whole,
            shown=form.tokens,
            trust=item.trust,
        )


def _too_small(budget: int, required: int) -> BudgetTooSmall:
    return BudgetTooSmall(
        f"A pack of {budget} tokens is too small: the brief, the newest round and what is critical need {required}, "
        "shortened as they can be. Raise the budget to that, or shorten the brief.",
        required=required,
    )


def _too_few(most: int, required: int) -> BudgetTooSmall:
    return BudgetTooSmall(
        f"A pack of {most} messages is too small: the first instructions, what is pinned and the newest round need "
        f"{required} messages. Raise max_messages to that.",
        required=required,
        unit="messages",
    )

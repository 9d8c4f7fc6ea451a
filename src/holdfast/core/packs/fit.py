"""Fit a pack into its budget: level by level, until everything that must be shown fits, and the rest as room allows.

| level | measures |
|---|---|
| none | everything is shown as it is |
| light | prose loses blanks, long texts keep their ends; the newest round stays as it is |
| moderate | older rounds leave the window and are summarised; evidence that does not fit is left out |
| aggressive | evidence of low and background priority goes; the newest round and critical evidence are shortened;
older rounds are left out without a summary if there is no room for one |
| critical | only the newest round, pins, the turn's questions, critical evidence and the last breadcrumb are left |

Everything critical is in every pack, or there is none: then `BudgetTooSmall` says how much is needed, and for what. A
larger budget never loses something critical or asked for by name: those are counted at their shortest before anything
grows. Of the questions that the turn answers, two are critical and have a minimum size; others are taken as far as
they fit. Questions grow before the newest round does, whose tool outputs are shortened first. Before either grows, room
is kept for the marker that earlier messages are not shown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter

from holdfast.core.packs import rounds
from holdfast.core.packs.manifest import decide_item
from holdfast.core.packs.rounds import RoundForm, ThreadRounds, share_evenly
from holdfast.core.packs.runs import RoundRun
from holdfast.core.packs.segments import ItemForm, PackItem, rank_item
from holdfast.core.packs.window import (
    MIN_SUMMARY_TOKENS,
    FitResult,
    OlderChooser,
    PackLimits,
    PackSources,
    RequiredPart,
)
from holdfast.errors import BudgetTooSmall
from holdfast.records.packs import LEVELS, CompactionLevel, Segment

MAX_NAMED_PARTS = 3
"""The number of parts that the error names, the largest first."""
ADVICE_DIVISOR = 10
"""The error gives advice only on parts that take at least one in this many of the required tokens."""
_LOW_PRIORITIES = frozenset({"low", "background"})
_COMPLETE_LEVELS = LEVELS[:2]
_SHOWN = attrgetter("crumbs", "summaries", "rounds", "items")


def fit_pack(sources: PackSources, limits: PackLimits) -> FitResult:
    """Return the first level that fits, from the floor on. A floor that changes nothing is not reported."""
    floor = LEVELS.index(limits.floor)
    found = next(filter(None, (_fit_level(sources, limits, level) for level in LEVELS[floor:])))
    for level in LEVELS[:floor] if found.level is limits.floor else ():
        lower = _fit_level(sources, limits, level)
        if lower is not None and _SHOWN(lower) == _SHOWN(found):
            return lower
    return found


def _fit_level(sources: PackSources, limits: PackLimits, level: CompactionLevel) -> FitResult | None:
    """Fit a pack at one level, or return None. The last level fits, or says what it needs."""
    if level not in _COMPLETE_LEVELS:
        return _Attempt(sources, limits, level).fit_bounded()
    return _Attempt(sources, limits, level).fit_everything() if sources.complete and not sources.hidden else None


class _Attempt:
    """The attempt to fit a pack at one level."""

    def __init__(self, sources: PackSources, limits: PackLimits, level: CompactionLevel) -> None:
        self._sources, self._limits, self._level = sources, limits, level
        self._messages = self._room = self._total = self._included = self._held = self._joined = 0
        self._rounds, self._forms = sources.rounds, sources.forms
        self._first, self._first_tokens = self._rounds.talk.size(self._rounds.talk.first)
        self._items = sorted(sources.items, key=rank_item)
        self._bare = level is CompactionLevel.CRITICAL_ONLY
        self._crumbs = sources.last_crumb if self._bare else sources.crumbs
        self._shown: dict[int, RoundForm] = {}
        self._unshortened: dict[int, RoundForm] = {}
        self._chosen: dict[str, ItemForm] = {}
        self._why: dict[str, str] = {}

    def fit_everything(self) -> FitResult | None:
        """Fit everything, at levels none and light, or return None."""
        run = self._find_run()
        forms = {nth: self._level_form(nth) for nth in range(len(run.segments), self._rounds.number)}
        items = tuple(map(self._level_item, self._items))
        parts = [*self._sources.summaries, *([self._crumbs] if self._crumbs else ())]
        used = self._sources.fixed + self._first_tokens + sum(part.estimated_tokens for part in parts)
        used += run.tokens + sum([form.tokens for form in forms.values()]) + sum([form.tokens for form in items])
        said = sum([len(form.messages) for form in forms.values()]) + self._first + len(self._sources.summaries)
        memory = sum(form.tokens for form in items if form.item.kind == "memory")
        if memory > (self._limits.budget - self._sources.fixed) * self._limits.settings.memory_percent // 100:
            return None  # Memories have a share of their own, however much room there is.
        if used > self._limits.budget or said + len(run.messages) > self._limits.max_messages:
            return None
        self._chosen = {form.item.id: form for form in items}
        self._shown = forms
        return self._make_result(self._sources.summaries, 0, marked=False, run=run)

    def _find_run(self) -> RoundRun:
        """Return the run of an earlier pack over the oldest rounds; an empty one if levels are to be compared."""
        known = self._sources.runs.get(self._level) if self._limits.floor is CompactionLevel.NONE else None
        run = None if known is None else known.fit_to(self._rounds.reasons)
        return run or RoundRun(level=self._level)

    def _level_form(self, nth: int) -> RoundForm:
        """Return a round at this level; the newest is not changed unless necessary."""
        if self._level is CompactionLevel.NONE or nth == self._rounds.number - 1:
            return self._rounds.whole_form(nth)
        return self._rounds.light_form(nth)

    def _level_item(self, item: PackItem) -> ItemForm:
        """Return evidence or a memory at this level."""
        whole = self._level is CompactionLevel.NONE
        return self._forms.whole_form(item) if whole else self._forms.light_form(item)

    def fit_bounded(self) -> FitResult | None:
        """Fit what must be shown, then what can be, at levels moderate to critical."""
        crumbs = 0 if self._crumbs is None else self._crumbs.estimated_tokens
        self._messages = self._limits.max_messages - self._first
        self._room = self._limits.budget - self._sources.fixed - crumbs - self._first_tokens
        if not self._take_least():
            return None
        self._room -= self._held
        self._grow()
        if self._bare:
            start = self._rounds.window_start(max(self._rounds.number - 1, 0), self._shown)
            return self._make_result((), start, marked=self._held > 0)
        share = self._total * (100 - self._limits.settings.conversation_percent) // 100
        share -= sum(form.tokens for form in self._chosen.values())
        # What was not asked for leaves room for a summary of older messages.
        self._add_items(max(0, min(share, self._room - 2 * MIN_SUMMARY_TOKENS)))
        self._room += self._held
        older = OlderChooser(self._sources, self._limits, self._shown, self._room, self._messages).choose()
        if self._level is CompactionLevel.MODERATE and older.left_out and not older.summaries:
            return None  # This level summarises what it leaves out.
        self._shown.update(older.forms)
        self._room -= older.tokens
        self._add_items(self._room)
        return self._make_result(older.summaries, older.first, marked=older.marked)

    def _take_least(self) -> bool:
        """Take everything that must be shown, at its shortest; return False if this level cannot."""
        must = self._find_required_rounds()
        critical = [item for item in self._items if item.critical]
        least = sum(form.tokens for form in must.values()) + sum(
            self._forms.shortest_form(item).tokens for item in critical
        )
        if least > self._room:
            if self._bare:
                crumb = 0 if self._crumbs is None else self._crumbs.estimated_tokens
                evidence = [self._forms.shortest_form(item).tokens for item in critical]
                parts = (
                    *self._sources.fixed_parts(),
                    RequiredPart("the breadcrumb", crumb),
                    *round_parts(self._rounds, must, evidence),
                )
                raise too_small_error(self._limits.budget, self._limits.budget - self._room + least, parts)
            return False
        self._total = self._room
        self._shown.update(must)
        self._chosen.update({item.id: self._forms.shortest_form(item) for item in critical})
        self._room -= least
        if not self._bare:
            self._take_included()
        whole = self._take_questions()
        self._held = self._marker_room()
        if self._level is not CompactionLevel.MODERATE or not whole:
            return whole
        must = dict(self._shown)
        # Tool outputs give way to the marker, but other texts do not.
        outputs = any(message.tool_results for form in must.values() for message in form.messages)
        if not outputs and not self._fits_whole(critical, must, self._held):
            self._held = 0
        return self._fits_whole(critical, must, self._held)

    def _find_required_rounds(self) -> dict[int, RoundForm]:
        """Return the newest round, pinned ones and two questions, at their shortest if others may need the room."""
        newest = self._rounds.number - 1
        must = {nth: self._level_form(nth) for nth in self._rounds.rounds_to_keep if nth < newest}
        pinned = sum(len(form.messages) for form in must.values())
        if newest >= 0:
            whole = self._level_form(newest)
            # A call of the newest round may be dropped, but not if the round is pinned.
            least = len(whole.messages) if newest in self._rounds.all_pinned else min(len(whole.messages), 2)
            if least > self._messages - pinned:
                required = self._first + pinned + least
                raise BudgetTooSmall(
                    f"A pack of {self._limits.max_messages} messages is too small: the first instructions, what is "
                    f"pinned, what the turn answers and the newest round need {required} messages. Raise "
                    "max_messages to that.",
                    required=required,
                    unit="messages",
                )
            must[newest] = self._rounds.drop_calls(whole, self._messages - pinned)
        self._messages -= sum(len(form.messages) for form in must.values())
        self._unshortened.update(must)
        joined = {nth: self._level_form(nth) for nth in rounds.unshown_questions(self._rounds, must, self._messages)}
        self._unshortened.update(joined)
        total = sum(form.tokens for form in (*must.values(), *joined.values()))
        if not self._items and total + self._sources.marker.estimated_tokens <= self._room:
            return must
        return {nth: self._rounds.shortest_form(nth, form) for nth, form in must.items()}

    def _take_questions(self) -> bool:
        """Take the other questions of the turn, at their shortest; return False if this level must show all and cannot.

        Half of the room is left to the newest round, as far as it needs that, and room for the marker.
        """
        wanted = rounds.unshown_questions(self._rounds, self._shown, self._messages)
        forms = {nth: rounds.shorten_question(self._rounds, self._unshortened[nth]) for nth in wanted}
        all_of_it = self._level is CompactionLevel.MODERATE
        left = self._room - self._sources.marker.estimated_tokens
        room = self._room if all_of_it or not forms else self._question_room(left)
        taken = {}
        for nth, form in forms.items():
            if self._joined + form.tokens > room:
                break  # Up to the first that does not fit: more room never loses one.
            self._joined += form.tokens
            taken[nth] = form
        self._shown.update(taken)
        self._messages -= sum(len(form.messages) for form in taken.values())
        self._room -= self._joined
        return len(taken) == len(forms) or not all_of_it

    def _take_included(self) -> None:
        """Take evidence that was asked for by name, at its shortest and in order, as far as its share goes."""
        self._included = self._room * self._limits.settings.included_percent // 100
        for item in self._items:
            if item.mandatory and not item.critical:
                form = self._forms.shortest_form(item)
                if form.tokens > self._included:
                    break
                self._included -= form.tokens
                self._room -= form.tokens
                self._chosen[item.id] = form

    def _marker_room(self) -> int:
        """Return the room kept for the marker, or for all it would stand for if that is less; 0 if there is no room."""
        if not self._messages:
            return 0
        room = self._sources.marker.estimated_tokens
        asked = rounds.unshown_questions(self._rounds, self._shown, self._messages)
        if self._level is CompactionLevel.AGGRESSIVE and not asked and self._room > 8 * MIN_SUMMARY_TOKENS:
            room += 2 * MIN_SUMMARY_TOKENS  # What is shortened leaves room for a summary as well.
        if self._sources.complete and not self._sources.hidden and not self._sources.summaries:
            others = 0  # The tokens of the rounds that need not be shown, as far as they matter.
            for nth in range(self._rounds.number):
                if others < room and nth not in self._shown:
                    others += self._rounds.light_form(nth).tokens
            room = min(room, others) if not self._bare else room if others else 0
        return room if room <= self._room else 0

    def _fits_whole(self, critical: Sequence[PackItem], must: dict[int, RoundForm], held: int) -> bool:
        """Return True if everything required fits whole beside the marker, as level moderate demands."""
        more = sum(self._level_item(item).tokens - self._forms.shortest_form(item).tokens for item in critical)
        more += sum(self._unshortened[nth].tokens - form.tokens for nth, form in must.items())
        return more <= self._room - held

    def _grow(self) -> None:
        """Lengthen what is shown at its shortest: the turn's questions, the newest round, pins, evidence."""
        critical = [one for one in self._chosen.values() if one.item.critical]
        wanted = sum(self._level_item(one.item).tokens - one.tokens for one in critical)
        asked = self._grow_questions(wanted)
        for nth in sorted(self._shown, reverse=True):
            if nth not in asked:
                self._lengthen_round(nth, self._conversation_room(wanted))
        for one in critical:
            self._lengthen_item(one.item, self._room)
        for one in [one for one in self._chosen.values() if not one.item.critical]:
            self._included -= self._lengthen_item(one.item, min(self._room, self._included))

    def _grow_questions(self, wanted: int) -> dict[int, int]:
        """Lengthen the turn's questions: to all they need, or half of the room if the newest round needs the rest."""
        newest = self._rounds.number - 1
        asked = {
            nth: self._missing_tokens(nth) for nth in self._rounds.all_asked if nth in self._shown and nth != newest
        }
        room = self._question_room(self._conversation_room(wanted) + self._joined) - self._joined if asked else 0
        for nth, more in share_evenly(asked, room).items():
            self._lengthen_round(nth, more)
        return asked

    def _question_room(self, room: int) -> int:
        """Return the part of some room that the turn's questions may take: the newest round may need half of it."""
        return max(room // 2, room - self._missing_tokens(self._rounds.number - 1))

    def _conversation_room(self, wanted: int) -> int:
        """Return the room of the conversation, if critical evidence wants `wanted` more tokens."""
        return max(self._room * self._limits.settings.conversation_percent // 100, self._room - wanted)

    def _missing_tokens(self, nth: int) -> int:
        return self._unshortened[nth].tokens - self._shown[nth].tokens

    def _lengthen_round(self, nth: int, more: int) -> None:
        short = self._shown[nth]
        form = self._rounds.shorten_to(self._unshortened[nth], short.tokens + more)
        if form.left_out > short.left_out:
            return  # The length that fits is found by search, which may miss the form that is shown already.
        self._shown[nth] = form
        self._room -= form.tokens - short.tokens

    def _lengthen_item(self, item: PackItem, more: int) -> int:
        """Lengthen an item by up to `more` tokens; return the tokens that it took."""
        before = self._chosen[item.id].tokens
        form = self._forms.shorten_to(item, before + more)
        form = form if form.tokens <= before + more else self._chosen[item.id]
        self._chosen[item.id] = form
        self._room -= form.tokens - before
        return form.tokens - before

    def _add_items(self, room: int) -> None:
        """Add optional evidence in order; what does not fit is skipped, and the next one tried."""
        memory = self._total * self._limits.settings.memory_percent // 100
        memory -= sum(form.tokens for form in self._chosen.values() if form.item.kind == "memory")
        # Evidence that was asked for by name is there at its shortest, or there was no room even for that: then there
        # is none for evidence that was not asked for.
        full = any(item.mandatory and item.id not in self._chosen for item in self._items)
        for item in self._items:
            if item.id in self._chosen or item.mandatory or (full and item.kind == "evidence"):
                continue
            if self._level is CompactionLevel.AGGRESSIVE and item.priority in _LOW_PRIORITIES:
                self._why[item.id] = "level"
                continue
            form = self._level_item(item)
            if form.tokens > room or (item.kind == "memory" and form.tokens > memory):
                self._why[item.id] = "no_room"
                continue
            self._chosen[item.id] = form
            self._why.pop(item.id, None)
            self._room -= form.tokens
            room -= form.tokens
            memory -= form.tokens if item.kind == "memory" else 0

    def _make_result(
        self, summaries: tuple[Segment, ...], start: int, *, marked: bool, run: RoundRun | None = None
    ) -> FitResult:
        return FitResult(
            run=run,
            level=self._level,
            crumbs=self._crumbs,
            summaries=summaries,
            marked=marked,
            rounds=dict(sorted(self._shown.items())),
            start=max(start, 0),
            items=tuple(self._chosen[item.id] for item in self._items if item.id in self._chosen),
            decisions=tuple(
                decide_item(
                    self._forms.whole_form(item),
                    self._chosen.get(item.id),
                    "level" if self._bare else self._why.get(item.id, "no_room"),
                )
                for item in self._items
            ),
        )


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

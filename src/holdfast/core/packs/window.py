"""Choose the window over a conversation: where it begins, the summaries of what is older, and the omission marker.

A provider's cache holds the beginning of the last request. A window that slides by a message with every call never
has the same beginning twice. So a window that was journaled stays where it is until what follows no longer fits, and
then gives up a part of its share at once. Without a journaled window, it begins at a grid mark, which the next call
will choose again without knowing of this one. The records that go in and out of fitting are here as well.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence

import msgspec

from holdfast.core.packs.rounds import OUTPUTS_ONLY, RoundForm, ThreadRounds
from holdfast.core.packs.runs import RoundRun
from holdfast.core.packs.segments import ItemForm, ItemForms, PackItem
from holdfast.records.packs import LEVELS, CompactionLevel, Decision, Segment
from holdfast.records.settings import Settings

MIN_SUMMARY_TOKENS, MAX_SUMMARY_TOKENS = 64, 500
"""The tokens of a summary that is made for a pack."""
SUMMARY_DIVISOR = 8
"""It takes one in this many of a pack's tokens, and at most half of what is left for older messages."""
FLOOR_ROUNDS = 10
"""The newest rounds that a pack keeps if all would fit and its floor asks for summaries."""
MIN_STRETCHES = 2
"""The least number of stretches in a window, if none was journaled."""


def sticky_start(tokens: Sequence[int], room: int, share: int, before: int, stickiness: float) -> int:
    """Return the first of the older rounds to show, by the tokens of each; `len(tokens)` shows none.

    `before` is the start of the last journaled window. If it has to move, it leaves `stickiness` of its share free.
    """
    if dense_start(tokens, room) <= before:
        return before
    return dense_start(tokens, room - int(share * stickiness))


def dense_start(tokens: Sequence[int], room: int) -> int:
    """Return the oldest round from which all up to the newest fit."""
    start = len(tokens)
    while start and tokens[start - 1] <= room:
        room -= tokens[start - 1]
        start -= 1
    return start


def grid_start(tokens: Sequence[int], places: Sequence[int], room: int) -> int:
    """Return a start that does not depend on earlier packs, and that later ones find again.

    Places are cut into stretches of a power of two, about half as long as what fits. The window begins with the first
    stretch that fits as a whole, so it moves by a stretch at a time.
    """
    densest = dense_start(tokens, room)
    if densest == 0 or densest == len(tokens):
        return densest
    stretch = 1 << max(((places[-1] - places[densest] + 1) // MIN_STRETCHES).bit_length() - 1, 0)
    for start in range(densest, len(tokens)):
        if places[start] // stretch != places[start - 1] // stretch:
            return start
    return densest


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
    runs: Mapping[CompactionLevel, RoundRun] = {}
    """Runs of an earlier pack over the oldest of these rounds."""
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
    run: RoundRun | None = None
    """The rounds before these, if all of the conversation is shown."""


class OlderRounds(msgspec.Struct, frozen=True, kw_only=True):
    """The summaries and rounds that were chosen."""

    summaries: tuple[Segment, ...]
    forms: dict[int, RoundForm]
    first: int
    """The first round of the window."""
    marked: bool
    left_out: bool
    """True if there are messages that neither these rounds nor standing summaries stand for."""
    tokens: int


class OlderChooser(msgspec.Struct, frozen=True):
    """The choice of what is shown before the newest round, in the room that is left."""

    sources: PackSources
    limits: PackLimits
    shown: Mapping[int, RoundForm]
    """Rounds that are shown already: the newest, pinned ones, and as many of the turn's questions as fit."""
    room: int
    messages: int

    def choose(self) -> OlderRounds:
        """Choose as many summaries and rounds as fit, from a place where the window can stay."""
        sources, rounds = self.sources, self.sources.rounds
        mark = sources.marker.estimated_tokens
        # No window reaches back to a question older than the unbroken rounds.
        alone = {nth for nth in rounds.all_asked if nth < rounds.unbroken}
        older = [nth for nth in range(rounds.number - 1) if nth not in self.shown and nth not in alone]
        # A summary is not worth its tokens if the marker for everything it does not cover would have no room.
        for summed in (self.room, self.room - mark):
            summaries = self._choose_summaries(summed)
            room = self.room - sum([one.estimated_tokens for one in summaries])
            messages = self.messages - len(summaries)
            looked, tokens, sizes = self._measure_rounds(older, room)
            told = len(summaries) == len(sources.summaries) and not sources.hidden
            fits = told and sources.complete and sum(tokens) <= room and sum(sizes) <= messages
            if fits or mark <= room:
                break
        most = messages
        if self.limits.floor not in LEVELS[:2] and len(older) >= FLOOR_ROUNDS:
            fits, most = False, min(messages, sum(sizes[1 - FLOOR_ROUNDS :]))
            messages = min(messages, most + 1)  # One more for a summary, but not for a round.
        marked = not fits and 0 < mark <= room
        room -= mark if marked else 0
        held = 0 if fits or messages < 2 or not rounds.number else self._summary_room(room)
        start = self._choose_start(older, tokens, sizes, room - held, min(most, messages - (held > 0)))
        made = sources.summarise(self._find_first(older, start), held) if held else None
        if made is not None:
            room, messages = room - made.estimated_tokens, messages - 1
        elif held:
            start = self._choose_start(older, tokens, sizes, room, most)
        forms = {nth: looked[nth] for nth in older[start:]}
        if start and not self.limits.stickiness:
            start -= self._add_edge_round(older[start - 1], forms, room, min(most, messages))
        taken = sum([form.tokens for form in forms.values()])
        # The marker must not take the place of a message.
        marked = marked and sum([len(form.messages) for form in forms.values()]) < messages
        return OlderRounds(
            summaries=summaries if made is None else (*summaries, made),
            forms=forms,
            first=self._find_first(older, start),
            marked=marked,
            left_out=not fits,
            tokens=self.room - room + taken,
        )

    def _find_first(self, older: Sequence[int], start: int) -> int:
        """Return the first round of a window that begins with one of the older rounds."""
        newest = max(self.sources.rounds.number - 1, 0)
        return self.sources.rounds.window_start(older[start] if start < len(older) else newest, self.shown)

    def _summary_room(self, room: int) -> int:
        """Return the tokens kept for a summary of what is older: the same in every call, or it could not stay."""
        if room < 2 * MIN_SUMMARY_TOKENS:
            return 0
        share = (self.limits.budget - self.sources.fixed) // SUMMARY_DIVISOR
        return min(max(share, MIN_SUMMARY_TOKENS), MAX_SUMMARY_TOKENS, room // 2)

    def _measure_rounds(self, older: Sequence[int], room: int) -> tuple[dict[int, RoundForm], list[int], list[int]]:
        """Return forms, tokens and messages; rounds too far back to fit are not measured and count as too large."""
        rounds, looked = self.sources.rounds, dict[int, RoundForm]()
        tokens, sizes, left = [], [], room
        for nth in reversed(older):
            if left < 0:
                break
            known = rounds.measured[nth]
            form = looked[nth] = (known and known.light) or rounds.light_form(nth)
            tokens.append(form.tokens)
            sizes.append(len(form.messages))
            left -= form.tokens
        beyond = len(older) - len(tokens)
        return looked, [room + 1] * beyond + tokens[::-1], [1] * beyond + sizes[::-1]

    def _choose_summaries(self, room: int) -> tuple[Segment, ...]:
        """Return the newest summaries that leave half of the room to the rounds; one if it fits at all."""
        found: list[Segment] = []
        left = room // 2
        for summary in reversed(self.sources.summaries):
            left -= summary.estimated_tokens
            alone = not found and summary.estimated_tokens <= room
            if (left < 0 and not alone) or len(found) >= self.messages:
                break
            found.append(summary)
        return tuple(reversed(found))

    def _choose_start(
        self, older: Sequence[int], tokens: Sequence[int], sizes: Sequence[int], room: int, messages: int
    ) -> int:
        least = dense_start(sizes, messages)
        open_to = [room + 1 if at < least else size for at, size in enumerate(tokens)]
        stickiness = self.limits.stickiness
        if not stickiness:
            return dense_start(open_to, room)
        share = self.room + sum([form.tokens for form in self.shown.values()])
        before = self._find_previous_start(older)
        if before is not None:
            start = sticky_start(open_to, room, share, before, stickiness)
            # A window that is full of messages leaves a part of its places free as well.
            return (
                start
                if start <= before
                else max(start, dense_start(sizes, messages - math.ceil(messages * stickiness)))
            )
        places = [self.sources.rounds.messages[nth][0].version for nth in older]
        return grid_start(open_to, places, room)

    def _find_previous_start(self, older: Sequence[int]) -> int | None:
        """Return where the last journaled window began, among these rounds; -1 if before all of them."""
        rounds, before = self.sources.rounds, self.limits.before
        if before is None or not rounds.number:
            return None
        for nth, (head, *_) in enumerate(rounds.messages):
            if (head.stream, head.version) == before:
                return bisect_left(older, nth)  # It may be shown in any case by now.
        return None if self.sources.complete else -1

    def _add_edge_round(self, nth: int, forms: dict[int, RoundForm], room: int, messages: int) -> int:
        """Add the round at the edge of a dense window with its tool outputs shortened; return 1 if it fits."""
        left = room - sum(form.tokens for form in forms.values())
        said = sum(len(form.messages) for form in forms.values())
        form = self.sources.rounds.shorten_to(self.sources.rounds.light_form(nth), left, OUTPUTS_ONLY)
        if form.tokens > left or said + len(form.messages) > messages:
            return 0
        forms[nth] = form
        return 1

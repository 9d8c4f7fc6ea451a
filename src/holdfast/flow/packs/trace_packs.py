"""Tell what a journaled pack did with a fact, and what a pack built now would do with it. Nothing is journaled.

A journaled pack is judged by its manifest; texts are read only where the manifest does not decide. For the next
pack, a budget large enough to show the fact is searched for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from holdfast.core.packs.fences import marks
from holdfast.core.packs.handles import summary_handle
from holdfast.core.packs.history_tools import NAMES
from holdfast.core.packs.rounds import remade
from holdfast.core.packs.segments import BREADCRUMBS, crumb_segment, remade_text
from holdfast.core.packs.trace import Fact, Look, Sighting, SightingKind, best, target, tool_words, words
from holdfast.core.sessions.pairing import repaired
from holdfast.errors import BudgetExhausted, BudgetTooSmall, EvidenceFailed, FrameEnded, InvalidValue, NotFound, Refused
from holdfast.flow.compaction import summaries
from holdfast.flow.packs import briefs, pack, visibility
from holdfast.flow.packs.rebuild import evidence_text, memory_text, messages_of, origin_of
from holdfast.flow.packs.request import Asked
from holdfast.flow.packs.trace_sources import Said
from holdfast.flow.packs.visibility import Seen
from holdfast.flow.sessions.append import counting, models
from holdfast.flow.sessions.read import Place, places
from holdfast.ports import Acting, Ports
from holdfast.records.events.calls import ContextPacked, PackedPiece
from holdfast.records.events.envelope import Event
from holdfast.records.packs import Layout, Packed, Segment
from holdfast.records.sessions import Summary

BRIEF = "brief"
_CONVERSATION = "conversation"


class Glimpses:
    """An inspector of one thread's packs. Pieces that several packs share are read once."""

    def __init__(self, ports: Ports, acting: Acting, line: str, fact: Fact, known: Said) -> None:
        self._ports, self._acting, self._line, self._fact = ports, acting, line, fact
        self._said = _by_stream(known.messages)
        self._own = sorted(known.messages, key=lambda one: one.version)
        self._handles = {one.name for one in known.found if one.kind == "evidence"}
        self._read: dict[tuple[Any, ...], Any] = {}
        self._names = {one.name for one in known.found} | {one.id for one in known.found}
        self._met: dict[str, Sighting] = {}

    @property
    def met(self) -> tuple[Sighting, ...]:
        """Sightings in packs whose source is no longer visible."""
        return tuple(self._met.values())

    def look(self, event: Event) -> Look | None:
        """Return what a pack did with the fact; None if it had not been said by then."""
        found = best(self._looks(event.facts))
        return self._absent(event) if found is None else found

    def _looks(self, facts: ContextPacked) -> Iterator[Look | None]:
        yield self._brief(facts)
        yield self._breadcrumbs(facts)
        for piece in facts.manifest:
            if piece.kind == _CONVERSATION and piece.part is None:
                yield self._run(piece, facts)
            elif piece.kind == "summary":
                yield self._summary(piece)
            elif piece.kind in ("evidence", "memory"):
                yield self._item(piece)
        for one in facts.left_out:
            if one.id in self._handles:
                yield Look("absent", one.id, one.why)

    def _absent(self, event: Event) -> Look | None:
        """Explain why a pack lacks the fact: its messages were too old, or no longer part of the thread."""
        before = [one for one in self._own if one.stream != self._line or one.version < event.version]
        if not before:
            return None
        stood = [one for one in before if not one.gone_at or one.gone_at > event.version]
        return Look("absent", None, "older" if stood else before[-1].status)

    def _meet(self, name: str, kind: SightingKind) -> None:
        if name not in self._names:
            self._met.setdefault(name, Sighting(name=name, kind=kind, status="past"))

    # the conversation

    def _run(self, piece: PackedPiece, facts: ContextPacked) -> Look | None:
        said = self._said.get(piece.stream or "", [])
        first = bisect_left(said, piece.first or 0, key=lambda one: one.version)
        within = [one for one in said[first:] if one.version <= (piece.last or 0)]
        if not within:
            return None
        if piece.cut is None or self._is_left(piece, facts):
            return Look("shown", within[-1].name)
        return Look("shortened", within[-1].name, "cut")

    def _is_left(self, piece: PackedPiece, facts: ContextPacked) -> bool:
        """Return True if the remaining text of a shortened round still states the fact."""
        parts = [one for one in facts.manifest if one.kind == _CONVERSATION and one.part is None]
        parts = [one for one in parts if (one.id, one.cut) == (piece.id, piece.cut)]
        key = (piece.cut, *((one.stream, one.first, one.last) for one in parts))
        if key not in self._read:
            whole = [message for part in parts for message in messages_of(self._ports, self._acting, part)]
            shown = remade(repaired(whole).messages, (piece.cut or "").split(","), self._line)
            self._read[key] = self._fact.within(*map(words, shown))
        left: bool = self._read[key]
        return left

    def _summary(self, piece: PackedPiece) -> Look | None:
        summary = self._summary_at(piece.stream or "", piece.first or 0)
        name = summary_handle(summary.version) if summary.stream == self._line else summary.id
        if self._fact.within(summary.text):
            self._meet(name, "summary")
            return Look("summarised", name, "repeated")
        return Look("summarised", name, "covered") if covers(summary, self._own) else None

    def _summary_at(self, stream: str, version: int) -> Summary:
        key = ("summary", stream, version)
        if key not in self._read:
            self._read[key] = summaries.summary_at(self._ports, self._acting, stream, version)
        found: Summary = self._read[key]
        return found

    # beside the conversation

    def _item(self, piece: PackedPiece) -> Look | None:
        key = (piece.kind, piece.id, piece.stream, piece.first, piece.artifact, piece.handle_version, piece.cut)
        if key not in self._read:
            self._read[key] = self._told(piece)
        found: Look | None = self._read[key]
        return found

    def _told(self, piece: PackedPiece) -> Look | None:
        read = memory_text if piece.kind == "memory" else evidence_text
        try:
            text, _ = read(self._ports, self._acting, origin_of(piece))
        except NotFound:
            return None  # Its source is missing; `pack_at` reports that.
        if self._fact.within(text):
            self._meet(piece.id, "memory" if piece.kind == "memory" else "evidence")
        if self._fact.within(remade_text(text, piece.cut, piece.id)):
            return Look("recalled", piece.id)
        return Look("shortened", piece.id, "cut") if self._fact.within(text) else None

    def _brief(self, facts: ContextPacked) -> Look | None:
        pieces = [one for one in facts.manifest if one.kind == BRIEF and one.part != "note"]
        key = (BRIEF, *(_identity(one) for one in pieces))
        if key not in self._read:
            told = briefs.reload(self._ports, self._acting, [origin_of(one) for one in pieces])
            notes = (note.text for note in told.notes)
            self._read[key] = self._fact.within(told.system, tool_words(told.tools), *notes)
        if self._read[key]:
            self._meet(BRIEF, "brief")
        return Look("shown", BRIEF) if self._read[key] else None

    def _breadcrumbs(self, facts: ContextPacked) -> Look | None:
        pieces = [one for one in facts.manifest if one.kind == "breadcrumb"]
        key = (BREADCRUMBS, *(_identity(one) for one in pieces))
        if pieces and key not in self._read:
            origins = [origin_of(one) for one in pieces]
            goals = [visibility.reload_breadcrumb(self._ports, self._acting, one)[0] for one in origins]
            mark = marks(self._ports.journal.secret, self._acting.tenant)
            self._read[key] = self._fact.within(crumb_segment(goals, origins, mark, lambda _: 0).text)
        if self._read.get(key):
            self._meet(BREADCRUMBS, "brief")
        return Look("shown", BREADCRUMBS) if self._read.get(key) else None


def covers(summary: Summary, said: Sequence[Sighting]) -> bool:
    """Return True if a summary covers one of these messages."""
    return any(
        part.stream == one.stream and part.first <= one.version <= part.last for part in summary.covers for one in said
    )


def _by_stream(said: Sequence[Sighting]) -> dict[str, list[Sighting]]:
    found: dict[str, list[Sighting]] = {}
    for one in sorted(said, key=lambda one: one.version):
        found.setdefault(one.stream, []).append(one)
    return found


def _identity(piece: PackedPiece) -> tuple[Any, ...]:
    return (piece.stream, piece.first, piece.part, piece.entry, piece.artifact, piece.cut)


FARTHEST: Final = 2_000
"""The most messages that a larger budget may have to reach back over."""
_TRIES: Final = (100, 130, 180, 260)
"""Percentages of the estimated budget to try: windows and shares move with the budget."""
_ROUND: Final = 50


class Foreseen(msgspec.Struct, frozen=True, kw_only=True):
    """The forecast of a pack built now."""

    look: Look
    tools: bool = False
    budget: int | None = None
    refused: str | None = None


def foreseen(
    ports: Ports,
    acting: Acting,
    line: str,
    fact: Fact,
    known: Said,
    newest: ContextPacked | None,
    *,
    covered: bool,
) -> Foreseen:
    """Forecast the next pack, built with the options of the newest journaled one."""
    seen = _seen(ports, acting, line, newest)
    asked = _asked(ports, newest)
    try:
        made = pack.pack(ports, acting, seen, asked)
    except (BudgetTooSmall, BudgetExhausted, EvidenceFailed) as error:
        return Foreseen(look=Look("absent"), refused=str(error))
    look = look_into(made, fact, known)
    tools = {tool.name for tool in made.tools} >= NAMES
    # No budget shows a message that a summary covers.
    budget = None if look.seen or covered else _reaching(ports, acting, seen, asked, fact, known, made)
    return Foreseen(look=look, tools=tools, budget=budget)


def _asked(ports: Ports, newest: ContextPacked | None) -> Asked:
    if newest is None:
        return Asked()
    layout: Layout = "classic" if newest.layout == "classic" else "stable"
    return Asked(budget=newest.asked, role=newest.role, tokenizer=_known(ports, newest.tokenizer), layout=layout)


def _known(ports: Ports, tokenizer: str) -> str | None:
    """Return the tokenizer's name if it is known here. The command line may lack an application's own one."""
    try:
        return models(ports).tokenizer(tokenizer).name
    except InvalidValue:
        return None


def _seen(ports: Ports, acting: Acting, line: str, newest: ContextPacked | None) -> Seen:
    """Return the visibility of the newest pack's frame while it is live; else of the thread alone."""
    if newest is not None and newest.frame is not None:
        try:
            found = visibility.seen_by(ports, acting, newest.frame)
        except (FrameEnded, NotFound):
            return visibility.seen_in(line)
        return found if found.line == line else visibility.seen_in(line)
    return visibility.seen_in(line)


def look_into(made: Packed, fact: Fact, known: Said) -> Look:
    """Return what a pack does with a fact, judged by its content."""
    messages = {(one.stream, one.version): one for one in known.messages}
    beside = {one.name for one in known.found if one.kind == "evidence"}
    looks = [_look(made, segment, fact, messages, beside) for segment in made.segments]
    looks += [Look("absent", one.id, one.reason) for one in made.decisions if one.id in beside and not one.shown]
    return best(looks) or Look("absent", None, "older" if messages else None)


def _look(
    made: Packed, segment: Segment, fact: Fact, messages: dict[tuple[str, int], Sighting], beside: set[str]
) -> Look | None:
    told = [made.system, tool_words(made.tools)] if segment.id == BRIEF else []
    saying = [one for one in segment.messages if fact.within(words(one))]
    match segment.kind:
        case "conversation":
            cut = list(_shown(segment, messages))
            names = [messages[one.stream, one.version].name for one in saying if (one.stream, one.version) in messages]
            if saying:
                return Look("shown", (names or [segment.id])[-1])
            return Look("shortened", cut[-1].name, "cut") if cut else None
        case "summary":
            if saying:
                return Look("summarised", segment.id, "repeated")
            summary = next(one for one in made.summaries if _is_of(segment, one.stream, one.version))
            return Look("summarised", segment.id, "covered") if covers(summary, [*messages.values()]) else None
        case "evidence" | "memory":
            if saying:
                return Look("recalled", segment.id)
            return Look("shortened", segment.id, "cut") if segment.id in beside else None
    return Look("shown", segment.id) if saying or fact.within(*told) else None


def _shown(segment: Segment, messages: dict[tuple[str, int], Sighting]) -> Iterator[Sighting]:
    """Iterate over the messages stating the fact that a segment was made from."""
    for origin in segment.origins:
        for (stream, version), one in messages.items():
            if stream == origin.stream and (origin.first or 0) <= version <= (origin.last or 0):
                yield one


def _is_of(segment: Segment, stream: str, version: int) -> bool:
    return any((origin.stream, origin.first) == (stream, version) for origin in segment.origins)


# a larger budget


def _reaching(
    ports: Ports, acting: Acting, seen: Seen, asked: Asked, fact: Fact, known: Said, made: Packed
) -> int | None:
    """Find by trial a budget with which a pack shows the fact; None if the model's window is too small."""
    one = target(known.found, seen.line)
    if one is None or seen.frame is not None:
        return None  # A frame's budget is not the caller's alone to raise.
    _, info = counting(ports, acting, seen.line)
    needed = _needed(ports, acting, seen.line, one, made)
    for share in _TRIES if needed is not None else ():
        budget = -(-(needed or 0) * share // (100 * _ROUND)) * _ROUND
        if budget > info.input_budget:
            return None
        try:
            tried = pack.pack(ports, acting, seen, replace(asked, budget=budget))
        except Refused:
            continue
        if look_into(tried, fact, known).seen:
            return budget
    return None


def _needed(ports: Ports, acting: Acting, line: str, one: Sighting, made: Packed) -> int | None:
    """Estimate the tokens of a pack that reaches back to a message."""
    between: list[Place] = []
    for place in takewhile(lambda _: len(between) < FARTHEST, places(ports, acting, line)):
        between.append(place)
        if (place.stream, place.version) == (one.stream, one.version):
            break
    else:
        return None
    summary = made.token_summary
    beside = summary.used - summary.breakdown.conversation
    return max(summary.budget, beside + sum(int(place.row["tokens"] or 0) for place in between)) + _ROUND

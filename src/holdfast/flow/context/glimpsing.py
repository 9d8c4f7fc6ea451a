"""What one journaled pack did with a fact, told by its manifest; texts are read only where that cannot tell."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

from holdfast.core.fencing import marks
from holdfast.core.naming import summary_handle
from holdfast.core.pack.items import remade_text
from holdfast.core.pack.parts import BREADCRUMBS, crumb_segment
from holdfast.core.pack.rounds import remade
from holdfast.core.pairing import repaired
from holdfast.core.tracing import Fact, Look, Sighting, SightingKind, best, tool_words, words
from holdfast.errors import NotFound
from holdfast.flow.compaction import summing
from holdfast.flow.context import briefs, seeing
from holdfast.flow.context.reloading import evidence_text, memory_text, messages_of, origin_of
from holdfast.flow.context.sighting import Said
from holdfast.ports import Acting, Ports
from holdfast.records.events.calls import ContextPacked, PackedPiece
from holdfast.records.events.envelope import Event
from holdfast.records.lines import Summary

BRIEF = "brief"
_CONVERSATION = "conversation"


class Glimpses:
    """Looks at packs of one line. What several of them show is read once."""

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
        """What packs showed it in that nobody can see any more."""
        return tuple(self._met.values())

    def look(self, event: Event) -> Look | None:
        """What a pack did with it; None if it had not been said by then."""
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
        """Why a pack without it has it not: it was too old, or no longer part of the line."""
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
        """Whether what was left of a round that was cut still says it."""
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
            self._read[key] = summing.summary_at(self._ports, self._acting, stream, version)
        found: Summary = self._read[key]
        return found

    # what stood beside it

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
            return None  # What it came from is gone; `pack_at` says so.
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
            goals = [seeing.reload_breadcrumb(self._ports, self._acting, one)[0] for one in origins]
            mark = marks(self._ports.journal.secret, self._acting.tenant)
            self._read[key] = self._fact.within(crumb_segment(goals, origins, mark, lambda _: 0).text)
        if self._read.get(key):
            self._meet(BREADCRUMBS, "brief")
        return Look("shown", BREADCRUMBS) if self._read.get(key) else None


def covers(summary: Summary, said: Sequence[Sighting]) -> bool:
    """Whether a summary stands for one of these messages."""
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

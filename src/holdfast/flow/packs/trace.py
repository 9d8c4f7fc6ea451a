"""Trace a fact through the journaled packs: why the model knows it or not. Read-only.

A pack's manifest says what it showed, so most packs are judged without reading text. Only pieces that were cut,
summarised or fetched are read again, once for all packs that show them. The cost follows the packs, up to a cap. For
the next pack, a budget large enough to show the fact is searched for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice, takewhile
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from holdfast.core.numbers import is_number
from holdfast.core.packs import segments, trace
from holdfast.core.packs.fences import FenceMarks
from holdfast.core.packs.history_tools import HISTORY_TOOL_NAMES
from holdfast.core.packs.rounds import remake_round
from holdfast.core.packs.trace import Fact, FactContext, FactVisibility, PackForecast, Sighting, SightingKind
from holdfast.core.sessions.rounds import repair_messages
from holdfast.errors import BudgetExhausted, BudgetTooSmall, EvidenceFailed, FrameEnded, InvalidValue, NotFound, Refused
from holdfast.flow.packs import briefs, manifest, pack, rebuild, visibility
from holdfast.flow.packs.trace_sources import FactSightings, find_fact
from holdfast.flow.packs.visibility import PackRequest, Visibility
from holdfast.flow.sessions import summaries
from holdfast.flow.sessions.append import thread_tokenizer
from holdfast.flow.sessions.read import MessageLocation, iter_places, thread_state
from holdfast.flow.state.search import search_journal
from holdfast.ports import Env
from holdfast.records.events.calls import ContextPacked, PackedPiece
from holdfast.records.events.envelope import Event
from holdfast.records.packs import Appearance, AssembledPack, Layout, PackInfo, Segment, Trace
from holdfast.records.scope import MAIN_THREAD, parse_scope
from holdfast.records.sessions import Summary

T = TypeVar("T")

BRIEF = "brief"
_CONVERSATION = "conversation"
MAX_REACH: Final = 2_000
"""The most messages that a larger budget may have to reach back over."""
_BUDGET_STEPS: Final = (100, 130, 180, 260)
"""Percentages of the estimated budget to try: windows and shares move with the budget."""
_BUDGET_ROUNDING: Final = 50
MAX_PACKS: Final = 1_000
"""The most packs that a trace looks at, newest first."""
MAX_LIMIT: Final = 2**63 - 1


def trace_fact(env: Env, thread: str, text: str) -> Trace:
    """Trace a fact: where it was said, which packs showed it, where it left, and what to do about it."""
    fact = Fact.of(text)
    quiet = replace(env, recent=None)  # Leave the cached tail of the next pack alone.
    with env.journal.snapshot():
        known = find_fact(quiet, thread, fact)
        events = list(islice(manifest.iter_packs(quiet, thread), MAX_PACKS + 1))
        capped = len(events) > MAX_PACKS
        events = events[:MAX_PACKS][::-1]
        glimpses = PackInspector(quiet, thread, fact, known)
        appearances = _list_appearances(glimpses, events)
        known = replace(known, found=(*known.found, *glimpses.past.values()))
        newest: ContextPacked | None = events[-1].facts if events else None
        # The standing summary that covers the newest message stating the fact.
        one = trace.find_target(known.found, thread)
        standing = () if one is None else summaries.iter_summaries(quiet, thread)
        covering = next((summary for summary in standing if one and _covers_any(summary, [one])), None)
        covered_by = None if covering is None else segments.summary_handle(covering, thread)
        now = forecast_pack(quiet, thread, fact, known, newest, covered=covered_by is not None)
        fix = _advise(quiet, thread, fact, known, now, covered_by)
    messages = [one.at for one in known.messages if one.at is not None]
    notes = (f"Only the newest {MAX_PACKS:,} packs were looked at." if capped else None, known.note)
    return Trace(
        text=fact.text,
        found=tuple(dict.fromkeys(one.name for one in known.found)),
        said_at=min(messages, default=None),
        appearances=appearances,
        now=now.look.state,
        left=trace.find_departure(appearances),
        covered_by=covered_by,
        fix=fix,
        note=" ".join(note for note in notes if note) or None,
    )


def _list_appearances(glimpses: PackInspector, events: Sequence[Event]) -> tuple[Appearance, ...]:
    """List what each pack did with a fact, oldest first, from the first one that could have shown it."""
    found: list[Appearance] = []
    for event in events:
        look = glimpses.inspect_pack(event)
        if look is None and not found:
            continue
        look = look or FactVisibility("absent")
        facts: ContextPacked = event.facts
        found.append(
            Appearance(
                call=facts.call,
                pack=facts.pack,
                at=event.at,
                role=facts.role,
                state=look.state,
                seen=look.seen,
                by=look.by,
                reason=look.reason,
            )
        )
    return tuple(found)


def _advise(env: Env, thread: str, fact: Fact, known: FactSightings, now: PackForecast, covered_by: str | None) -> str:
    state = thread_state(env, thread)
    streams = {one.stream for one in known.found if one.kind == "message"}
    nearest = None
    # For a caller who remembers it slightly differently: the message with most of the words.
    for result in [] if known.found else search_journal(replace(env, embedder=None), thread, fact.text, 1):
        said = result.snippet or trace.readable_text(result.value)
        nearest = (segments.message_handle(result.value, thread), " ".join(said.split()))
    return trace.advise(
        FactContext(
            session=str(parse_scope(thread).get("session")),
            thread_stream=thread,
            found=known.found,
            now=now,
            covered_by=covered_by,
            ended=state.ended and not state.fresh,
            erased=known.erased,
            nearest=nearest,
            threads={stream: parse_scope(stream).get("thread") or MAIN_THREAD for stream in streams},
        )
    )


def list_packs(env: Env, thread: str, limit: int | None = None) -> list[PackInfo]:
    """List a thread's journaled packs, newest first: all, or the newest `limit`."""
    if limit is not None and not is_number(limit, least=0, most=MAX_LIMIT):
        raise InvalidValue(f"limit must be a number of packs, not {limit!r:.40}. Leave it out for all of them.")
    thread_state(env, thread)
    events = islice(manifest.iter_packs(env, thread), limit)
    return [
        PackInfo(
            call=facts.call,
            pack=facts.pack,
            at=event.at,
            role=facts.role,
            level=facts.level,
            tokens=facts.used,
            budget=facts.budget,
            cached_share=facts.cached_tokens / facts.used if facts.used else 0.0,
            shown=facts.shown,
            left_out=facts.truncated,
        )
        for event in events
        for facts in [event.facts]
    ]


class PackInspector:
    """An inspector of one thread's packs. Pieces that several packs share are read once."""

    def __init__(self, env: Env, thread: str, fact: Fact, known: FactSightings) -> None:
        self._env, self._thread, self._fact = env, thread, fact
        self._own = sorted(known.messages, key=lambda one: one.version)
        self._said: dict[str, list[Sighting]] = {}
        for one in self._own:
            self._said.setdefault(one.stream, []).append(one)
        self._handles = {one.name for one in known.found if one.kind == "evidence"}
        self._read: dict[tuple[Any, ...], Any] = {}
        self._names = {one.name for one in known.found} | {one.id for one in known.found}
        self.past: dict[str, Sighting] = {}
        """Sightings in packs whose source is no longer visible."""

    def inspect_pack(self, event: Event) -> FactVisibility | None:
        """Return what a pack did with the fact; None if it had not been said by then."""
        found = trace.best_visibility(self._iter_looks(event.facts))
        if found is not None:
            return found
        before = [one for one in self._own if one.stream != self._thread or one.version < event.version]
        if not before:
            return None
        # Its messages were too old, or no longer part of the thread.
        stood = [one for one in before if not one.gone_at or one.gone_at > event.version]
        return FactVisibility("absent", None, "older" if stood else before[-1].status)

    def _iter_looks(self, facts: ContextPacked) -> Iterator[FactVisibility | None]:
        yield self._look_at_brief(facts)
        yield self._look_at_breadcrumbs(facts)
        for piece in facts.manifest:
            if piece.kind == _CONVERSATION and piece.part is None:
                yield self._look_at_run(piece, facts)
            elif piece.kind == "summary":
                yield self._look_at_summary(piece)
            elif piece.kind in ("evidence", "memory"):
                yield self._look_at_item(piece)
        for one in facts.left_out:
            if one.id in self._handles:
                yield FactVisibility("absent", one.id, one.why)

    def _note_past(self, name: str, kind: SightingKind) -> None:
        if name not in self._names:
            self.past.setdefault(name, Sighting(name=name, kind=kind, status="past"))

    # the conversation

    def _look_at_run(self, piece: PackedPiece, facts: ContextPacked) -> FactVisibility | None:
        said = self._said.get(piece.stream or "", [])
        first = bisect_left(said, piece.first or 0, key=lambda one: one.version)
        within = [one for one in said[first:] if one.version <= (piece.last or 0)]
        if not within:
            return None
        if piece.cut is None or self._is_still_said(piece, facts):
            return FactVisibility("shown", within[-1].name)
        return FactVisibility("shortened", within[-1].name, "cut")

    def _is_still_said(self, piece: PackedPiece, facts: ContextPacked) -> bool:
        """Return True if the remaining text of a shortened round still states the fact."""
        parts = [one for one in facts.manifest if one.kind == _CONVERSATION and one.part is None]
        parts = [one for one in parts if (one.id, one.cut) == (piece.id, piece.cut)]

        def read() -> bool:
            whole = [message for part in parts for message in rebuild.load_piece_messages(self._env, part)]
            shown = remake_round(repair_messages(whole).messages, (piece.cut or "").split(","), self._thread)[0]
            return self._fact.is_in(*map(trace.readable_text, shown))

        return self._read_once((piece.cut, *((one.stream, one.first, one.last) for one in parts)), read)

    def _look_at_summary(self, piece: PackedPiece) -> FactVisibility | None:
        stream, version = piece.stream or "", piece.first or 0
        summary = self._read_once(
            ("summary", stream, version), lambda: summaries.load_summary(self._env, stream, version)
        )
        name = segments.summary_handle(summary, self._thread)
        if self._fact.is_in(summary.text):
            self._note_past(name, "summary")
            return FactVisibility("summarised", name, "repeated")
        return FactVisibility("summarised", name, "covered") if _covers_any(summary, self._own) else None

    # beside the conversation

    def _look_at_item(self, piece: PackedPiece) -> FactVisibility | None:
        key = (piece.kind, piece.id, piece.stream, piece.first, piece.artifact, piece.handle_version, piece.cut)

        def read() -> FactVisibility | None:
            load = rebuild.load_memory_text if piece.kind == "memory" else rebuild.load_evidence_text
            try:
                text, _ = load(self._env, rebuild.piece_origin(piece))
            except NotFound:
                return None  # Its source is missing; `pack_at` reports that.
            if self._fact.is_in(text):
                self._note_past(piece.id, "memory" if piece.kind == "memory" else "evidence")
            if self._fact.is_in(segments.cut_by_recipe(text, piece.cut, piece.id)[0]):
                return FactVisibility("recalled", piece.id)
            return FactVisibility("shortened", piece.id, "cut") if self._fact.is_in(text) else None

        return self._read_once(key, read)

    def _look_at_brief(self, facts: ContextPacked) -> FactVisibility | None:
        pieces = rebuild.list_brief_pieces(facts)

        def read() -> bool:
            told = briefs.reload_brief(self._env, [rebuild.piece_origin(one) for one in pieces])
            return self._fact.is_in(told.system, trace.tools_text(told.tools), *(note.text for note in told.notes))

        return self._look_at_pieces(BRIEF, pieces, read)

    def _look_at_breadcrumbs(self, facts: ContextPacked) -> FactVisibility | None:
        pieces = [one for one in facts.manifest if one.kind == "breadcrumb"]

        def read() -> bool:
            origins = [rebuild.piece_origin(one) for one in pieces]
            goals = [visibility.reload_breadcrumb(self._env, one)[0] for one in origins]
            marks = FenceMarks(self._env.journal, self._env.tenant)
            return self._fact.is_in(segments.crumb_segment(goals, origins, marks, lambda _: 0).text)

        return self._look_at_pieces(segments.BREADCRUMBS_ID, pieces, read) if pieces else None

    def _look_at_pieces(
        self, name: str, pieces: Iterable[PackedPiece], read: Callable[[], bool]
    ) -> FactVisibility | None:
        """Return that a part of the pack shows the fact, if its text as `read` says it does."""
        same = ((one.stream, one.first, one.part, one.entry, one.artifact, one.cut) for one in pieces)
        if not self._read_once((name, *same), read):
            return None
        self._note_past(name, "brief")
        return FactVisibility("shown", name)

    def _read_once(self, key: tuple[Any, ...], read: Callable[[], T]) -> T:
        if key not in self._read:
            self._read[key] = read()
        found: T = self._read[key]
        return found


def _covers_any(summary: Summary, said: Iterable[Sighting]) -> bool:
    return any(segments.is_covered(one.stream, one.version, (summary,)) for one in said)


def forecast_pack(
    env: Env, thread: str, fact: Fact, known: FactSightings, newest: ContextPacked | None, *, covered: bool
) -> PackForecast:
    """Forecast the next pack, built with the options of the newest journaled one."""
    seen = _choose_visibility(env, thread, newest)
    asked = _repeat_request(env, newest)
    try:
        made = pack.build_pack(env, seen, asked)
    except (BudgetTooSmall, BudgetExhausted, EvidenceFailed) as error:
        return PackForecast(look=FactVisibility("absent"), refused=str(error))
    look = look_at_pack(made, fact, known)
    tools = {tool.name for tool in made.tools} >= HISTORY_TOOL_NAMES
    # No budget shows a message that a summary covers.
    budget = None if look.seen or covered else _find_budget(env, seen, asked, fact, known, made)
    return PackForecast(look=look, tools=tools, budget=budget)


def _repeat_request(env: Env, newest: ContextPacked | None) -> PackRequest:
    if newest is None:
        return PackRequest()
    layout: Layout = "classic" if newest.layout == "classic" else "stable"
    try:
        tokenizer = env.models.tokenizer(newest.tokenizer).name
    except InvalidValue:
        tokenizer = None  # The command line may lack an application's own one.
    return PackRequest(budget=newest.asked, role=newest.role, tokenizer=tokenizer, layout=layout)


def _choose_visibility(env: Env, thread: str, newest: ContextPacked | None) -> Visibility:
    """Return the visibility of the newest pack's frame while it is live; else of the thread alone."""
    if newest is not None and newest.frame is not None:
        with suppress(FrameEnded, NotFound):
            found = visibility.frame_visibility(env, newest.frame)
            if found.thread == thread:
                return found
    return visibility.thread_visibility(thread)


def look_at_pack(made: AssembledPack, fact: Fact, known: FactSightings) -> FactVisibility:
    """Return what a pack does with a fact, judged by its content."""
    messages = {(one.stream, one.version): one for one in known.messages}
    beside = {one.name for one in known.found if one.kind == "evidence"}
    looks = [_look_at_segment(made, segment, fact, messages, beside) for segment in made.segments]
    looks += [
        FactVisibility("absent", one.id, one.reason) for one in made.decisions if one.id in beside and not one.shown
    ]
    return trace.best_visibility(looks) or FactVisibility("absent", None, "older" if messages else None)


def _look_at_segment(
    made: AssembledPack, segment: Segment, fact: Fact, messages: dict[tuple[str, int], Sighting], beside: set[str]
) -> FactVisibility | None:
    told = [made.system, trace.tools_text(made.tools)] if segment.id == BRIEF else []
    saying = [one for one in segment.messages if fact.is_in(trace.readable_text(one))]
    match segment.kind:
        case "conversation":
            cut = [
                one
                for origin in segment.origins
                for (stream, version), one in messages.items()
                if stream == origin.stream and (origin.first or 0) <= version <= (origin.last or 0)
            ]
            names = [messages[one.stream, one.version].name for one in saying if (one.stream, one.version) in messages]
            if saying:
                return FactVisibility("shown", (names or [segment.id])[-1])
            return FactVisibility("shortened", cut[-1].name, "cut") if cut else None
        case "summary":
            if saying:
                return FactVisibility("summarised", segment.id, "repeated")
            places = {(origin.stream, origin.first) for origin in segment.origins}
            summary = next(one for one in made.summaries if (one.stream, one.version) in places)
            covered = _covers_any(summary, messages.values())
            return FactVisibility("summarised", segment.id, "covered") if covered else None
        case "evidence" | "memory":
            if saying:
                return FactVisibility("recalled", segment.id)
            return FactVisibility("shortened", segment.id, "cut") if segment.id in beside else None
    return FactVisibility("shown", segment.id) if saying or fact.is_in(*told) else None


# a larger budget


def _find_budget(
    env: Env, seen: Visibility, asked: PackRequest, fact: Fact, known: FactSightings, made: AssembledPack
) -> int | None:
    """Find by trial a budget with which a pack shows the fact; None if the model's window is too small."""
    one = trace.find_target(known.found, seen.thread)
    if one is None or seen.frame is not None:
        return None  # A frame's budget is not the caller's alone to raise.
    _, info = thread_tokenizer(env, seen.thread)
    needed = _estimate_budget(env, seen.thread, one, made)
    for share in _BUDGET_STEPS if needed is not None else ():
        budget = -(-(needed or 0) * share // (100 * _BUDGET_ROUNDING)) * _BUDGET_ROUNDING
        if budget > info.input_budget:
            return None
        try:
            tried = pack.build_pack(env, seen, replace(asked, budget=budget))
        except Refused:
            continue
        if look_at_pack(tried, fact, known).seen:
            return budget
    return None


def _estimate_budget(env: Env, thread: str, one: Sighting, made: AssembledPack) -> int | None:
    """Estimate the tokens of a pack that reaches back to a message."""
    between: list[MessageLocation] = []
    for place in takewhile(lambda _: len(between) < MAX_REACH, iter_places(env, thread)):
        between.append(place)
        if place.key == (one.stream, one.version):
            break
    else:
        return None
    summary = made.token_summary
    beside = summary.used - summary.breakdown.conversation
    return max(summary.budget, beside + sum(int(place.row["tokens"] or 0) for place in between)) + _BUDGET_ROUNDING

"""Trace a fact through the journaled packs: why the model knows it or not. Read-only.

A pack's manifest says what it showed, so most packs are judged without reading text. Only pieces that were cut,
summarised or fetched are read again, once for all packs that show them. The cost follows the packs, up to a cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from holdfast.core.packs.handles import handle_of, summary_handle
from holdfast.core.packs.trace import Fact, Known, Look, advice, left_at, target, words
from holdfast.errors import InvalidValue
from holdfast.flow.compaction import summaries
from holdfast.flow.packs import manifest
from holdfast.flow.packs.trace_packs import Foreseen, Glimpses, foreseen
from holdfast.flow.packs.trace_sources import Said, said
from holdfast.flow.sessions.read import line_of
from holdfast.flow.state.search import search_line
from holdfast.ports import Acting, Ports
from holdfast.records.events.calls import ContextPacked
from holdfast.records.events.envelope import Event
from holdfast.records.packs import Appearance, PackInfo, Trace
from holdfast.records.scope import MAIN_THREAD, parse_scope

MOST_PACKS: Final = 1_000
"""The most packs that a trace looks at, newest first."""
LARGEST: Final = 2**63 - 1


def why(ports: Ports, acting: Acting, line: str, text: str) -> Trace:
    """Trace a fact: where it was said, which packs showed it, where it left, and what to do about it."""
    fact = Fact.of(text)
    quiet = replace(ports, recent=None)  # Leave the cached tail of the next pack alone.
    with ports.journal.snapshot():
        known = said(quiet, acting, line, fact)
        events = list(islice(manifest.journaled(quiet, acting, line), MOST_PACKS + 1))
        capped = len(events) > MOST_PACKS
        events = events[:MOST_PACKS][::-1]
        glimpses = Glimpses(quiet, acting, line, fact, known)
        appearances = _appearances(glimpses, events)
        known = replace(known, found=(*known.found, *glimpses.met))
        newest: ContextPacked | None = events[-1].facts if events else None
        covered_by = _covered_by(quiet, acting, line, known)
        now = foreseen(quiet, acting, line, fact, known, newest, covered=covered_by is not None)
        fix = _fix(quiet, acting, line, fact, known, now, covered_by)
    messages = [one.at for one in known.messages if one.at is not None]
    return Trace(
        text=fact.text,
        found=tuple(dict.fromkeys(one.name for one in known.found)),
        said_at=min(messages, default=None),
        appearances=appearances,
        now=now.look.state,
        left=left_at(appearances),
        covered_by=covered_by,
        fix=fix,
        note=_note(known, capped=capped),
    )


def _note(known: Said, *, capped: bool) -> str | None:
    notes = [f"Only the newest {MOST_PACKS:,} packs were looked at."] if capped else []
    return " ".join(notes + ([] if known.note is None else [known.note])) or None


def _appearances(glimpses: Glimpses, events: Sequence[Event]) -> tuple[Appearance, ...]:
    """List what each pack did with a fact, oldest first, from the first one that could have shown it."""
    found: list[Appearance] = []
    for event in events:
        look = glimpses.look(event)
        if look is not None or found:
            found.append(_appearance(event, look or Look("absent")))
    return tuple(found)


def _appearance(event: Event, look: Look) -> Appearance:
    facts: ContextPacked = event.facts
    return Appearance(
        call=facts.call,
        pack=facts.pack,
        at=event.at,
        role=facts.role,
        state=look.state,
        seen=look.seen,
        by=look.by,
        reason=look.reason,
    )


def _covered_by(ports: Ports, acting: Acting, line: str, known: Said) -> str | None:
    """Return the standing summary that covers the newest message stating the fact."""
    one = target(known.found, line)
    if one is None:
        return None
    for summary in summaries.standing(ports, acting, line):
        if any(part.stream == one.stream and part.first <= one.version <= part.last for part in summary.covers):
            return summary_handle(summary.version) if summary.stream == line else summary.id
    return None


def _fix(
    ports: Ports, acting: Acting, line: str, fact: Fact, known: Said, now: Foreseen, covered_by: str | None
) -> str:
    state = line_of(ports, acting, line)
    streams = {one.stream for one in known.found if one.kind == "message"}
    return advice(
        Known(
            text=fact.text,
            session=str(parse_scope(line).get("session")),
            line=line,
            found=known.found,
            now=now.look,
            covered_by=covered_by,
            budget=now.budget,
            tools=now.tools,
            ended=state.ended and not state.fresh,
            refused=now.refused,
            erased=known.erased,
            nearest=None if known.found else _nearest(ports, acting, line, fact),
            threads={stream: parse_scope(stream).get("thread") or MAIN_THREAD for stream in streams},
        )
    )


def _nearest(ports: Ports, acting: Acting, line: str, fact: Fact) -> tuple[str, str] | None:
    """Return the message with most of the words, for a caller who remembers it slightly differently."""
    results = search_line(replace(ports, embedder=None), acting, line, fact.text, 1)
    for result in results:
        return handle_of(result.value, line), " ".join((result.snippet or words(result.value)).split())
    return None


def packs(ports: Ports, acting: Acting, line: str, limit: int | None = None) -> list[PackInfo]:
    """List a thread's journaled packs, newest first: all, or the newest `limit`."""
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool) or not 0 <= limit <= LARGEST):
        raise InvalidValue(f"limit must be a number of packs, not {limit!r:.40}. Leave it out for all of them.")
    line_of(ports, acting, line)
    return [_info(event) for event in islice(manifest.journaled(ports, acting, line), limit)]


def _info(event: Event) -> PackInfo:
    facts: ContextPacked = event.facts
    return PackInfo(
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

"""Trace a fact through the journaled packs: why the model knows it or not. Read-only.

A pack's manifest says what it showed, so most packs are judged without reading text. Only pieces that were cut,
summarised or fetched are read again, once for all packs that show them. The cost follows the packs, up to a cap.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from holdfast.core.checks import is_number
from holdfast.core.packs.segments import message_handle, summary_handle
from holdfast.core.packs.trace import (
    Fact,
    FactContext,
    FactVisibility,
    advise,
    find_departure,
    find_target,
    readable_text,
)
from holdfast.errors import InvalidValue
from holdfast.flow.packs import manifest
from holdfast.flow.packs.trace_packs import PackForecast, PackInspector, forecast_pack
from holdfast.flow.packs.trace_sources import FactSightings, find_fact
from holdfast.flow.sessions import summaries
from holdfast.flow.sessions.read import thread_state
from holdfast.flow.state.search import search_thread
from holdfast.ports import Env
from holdfast.records.events.calls import ContextPacked
from holdfast.records.events.envelope import Event
from holdfast.records.packs import Appearance, PackInfo, Trace
from holdfast.records.scope import MAIN_THREAD, parse_scope

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
        known = replace(known, found=(*known.found, *glimpses.past_sightings))
        newest: ContextPacked | None = events[-1].facts if events else None
        covered_by = _covering_summary(quiet, thread, known)
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
        left=find_departure(appearances),
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


def _covering_summary(env: Env, thread: str, known: FactSightings) -> str | None:
    """Return the standing summary that covers the newest message stating the fact."""
    one = find_target(known.found, thread)
    if one is None:
        return None
    for summary in summaries.iter_summaries(env, thread):
        if summaries.is_covered(one.stream, one.version, (summary,)):
            return summary_handle(summary, thread)
    return None


def _advise(env: Env, thread: str, fact: Fact, known: FactSightings, now: PackForecast, covered_by: str | None) -> str:
    state = thread_state(env, thread)
    streams = {one.stream for one in known.found if one.kind == "message"}
    return advise(
        FactContext(
            text=fact.text,
            session=str(parse_scope(thread).get("session")),
            thread_stream=thread,
            found=known.found,
            now=now.look,
            covered_by=covered_by,
            budget=now.budget,
            tools=now.tools,
            ended=state.ended and not state.fresh,
            refused=now.refused,
            erased=known.erased,
            nearest=None if known.found else _nearest_message(env, thread, fact),
            threads={stream: parse_scope(stream).get("thread") or MAIN_THREAD for stream in streams},
        )
    )


def _nearest_message(env: Env, thread: str, fact: Fact) -> tuple[str, str] | None:
    """Return the message with most of the words, for a caller who remembers it slightly differently."""
    results = search_thread(replace(env, embedder=None), thread, fact.text, 1)
    for result in results:
        return message_handle(result.value, thread), " ".join((result.snippet or readable_text(result.value)).split())
    return None


def list_packs(env: Env, thread: str, limit: int | None = None) -> list[PackInfo]:
    """List a thread's journaled packs, newest first: all, or the newest `limit`."""
    if limit is not None and not is_number(limit, least=0, most=MAX_LIMIT):
        raise InvalidValue(f"limit must be a number of packs, not {limit!r:.40}. Leave it out for all of them.")
    thread_state(env, thread)
    return [_pack_info(event) for event in islice(manifest.iter_packs(env, thread), limit)]


def _pack_info(event: Event) -> PackInfo:
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

"""`holdfast search` and `holdfast state search`: find messages and entries by their words, best first. Read-only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, cast

from cyclopts import Parameter
from rich.padding import Padding
from rich.text import Text

from holdfast.cli import output
from holdfast.cli.open import (
    Json,
    LeadingPath,
    ScopeText,
    StateLocation,
    StoreUrl,
    Tenant,
    locate_state,
    open_existing,
    open_state,
    option,
    resolve_arguments,
)
from holdfast.cli.sessions import Thread, check_limit, find_session, format_role, message_to_json
from holdfast.cli.state import StateJournalPath, TierName
from holdfast.core.search.words import query_terms
from holdfast.errors import InvalidValue
from holdfast.records.entries import SearchResult
from holdfast.records.messages import Message
from holdfast.records.scope import MAIN_THREAD, Scope

DEFAULT_LIMIT = 10
STEM_CHARS = 5
"""Words that share this many first letters count as the same: the index goes by stems."""
COLUMNS = ("score", "where", "key", "time (UTC)", "by", "text")

_WORD = re.compile(r"[^\W_]+")
Query = Annotated[str | None, option("The words to search for.", name="QUERY")]
Limit = Annotated[int, Parameter(help="Show the best N results.")]


def search(
    path: LeadingPath,
    query: Query = None,
    /,
    *,
    session: Annotated[str | None, option("Only messages of this session.")] = None,
    thread: Thread = None,
    scope: Annotated[str | None, option("Only entries of this scope.")] = None,
    limit: Limit = DEFAULT_LIMIT,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    check_limit(limit)
    if session is not None and scope is not None:
        raise InvalidValue("--session searches messages and --scope searches entries. Give one of them.")
    if thread is not None and session is None:
        raise InvalidValue("--thread needs --session. Add --session, or leave out --thread.")
    journal, asked = resolve_arguments(path, query, "what to look for")
    with open_existing(journal, tenant) as hf, output.ProgressBar("search"):
        if session is not None:
            found = find_session(hf, session, thread).search(asked, limit=limit)
        else:
            found = (hf if scope is None else hf.state(scope)).search(asked, limit=limit)
    _report_results(found, asked, StateLocation(journal, tenant), json=json)


def state_search(
    path: StateJournalPath = None,
    scope: ScopeText = None,
    query: Query = None,
    /,
    *,
    limit: Limit = DEFAULT_LIMIT,
    tier: TierName = None,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    check_limit(limit)
    place, (where, asked) = locate_state((path, scope, query), ("SCOPE", "QUERY"), store=store, tenant=tenant)
    with open_state(place) as stored, output.ProgressBar("search"):
        found = stored(where).search(asked, limit=limit, tier=cast(Any, tier))  # `search` checks it.
        able = stored.capabilities & {"text", "vectors"}
    if not able and not json:
        output.print_note("This store has no search index.")
        return
    _report_results(found, asked, place, json=json)


def _report_results(found: Sequence[SearchResult], query: str, place: StateLocation, *, json: bool) -> None:
    if json:
        values = [message_to_json(one.value) if isinstance(one.value, Message) else one.value for one in found]
        results = [{**output.plain_fields(one), "value": value} for one, value in zip(found, values, strict=True)]
        output.print_json({"query": query, "results": results})
        return
    if not found:
        output.print_note("Nothing found. Try other words; only whole words match.")
        return
    out, words = output.console(), query_terms(query)
    if out.is_terminal:
        for result in found:
            out.print(_format_head(result))
            out.print(Padding(highlight_matches(result.snippet, words), (0, 0, 1, 2)))
    else:
        output.print_rows(COLUMNS, map(_format_row, found), (0,))
    output.print_note(f"Read the first with: {_suggest_command(found[0], place)}")


def _suggest_command(result: SearchResult, place: StateLocation) -> str:
    if result.kind == "entry":
        return place.format_command("state get", result.scope, result.key)
    line = Scope.of(result.scope)
    thread = line.get("thread")
    which = () if thread in (None, MAIN_THREAD) else ("--thread", str(thread))
    return place.format_command("messages", str(line.get("session")), *which)


def _format_row(result: SearchResult) -> tuple[str, ...]:
    return (
        f"{result.score:.3f}",
        output.escape_text(result.scope),
        output.escape_text(result.key),
        output.format_time(result.at),
        _format_author(result),
        output.escape_text(" ".join(result.snippet.split())),
    )


def _format_author(result: SearchResult) -> str:
    return format_role(result.value) if isinstance(result.value, Message) else ""


def _format_head(result: SearchResult) -> Text:
    who = _format_author(result)
    return Text.assemble(
        (f"{result.score:.3f}", "green"),
        f"  {output.escape_text(result.scope)}  ",
        (output.escape_text(result.key), "bold"),
        (f"{f'  {who}' if who else ''}  {output.format_time(result.at)}", "dim"),
    )


def highlight_matches(snippet: str, words: Sequence[str]) -> Text:
    """Highlight the matches in a snippet, on one line. Every part is escaped on its own."""
    text = " ".join(snippet.split())
    line, at = Text(), 0
    for start, end in _find_matches(text, words):
        line.append(output.escape_text(text[at:start])).append(output.escape_text(text[start:end]), style="bold yellow")
        at = end
    return line.append(output.escape_text(text[at:]))


def _find_matches(text: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of words that match, in order; in languages without spaces, of pairs of letters."""
    for word in _WORD.finditer(text):
        pieces = query_terms(word[0])
        if len(pieces) > 1:
            # Occurrences may overlap.
            starts = ((term, one.start()) for term in words for one in re.finditer(f"(?={re.escape(term)})", word[0]))
            pairs = {word.start() + at for term, start in starts for at in range(start, start + len(term))}
            yield from ((at, at + 1) for at in sorted(pairs))
        elif any(_has_same_stem(piece, term) for piece in pieces for term in words):
            yield word.span()


def _has_same_stem(one: str, other: str) -> bool:
    """Return True if two words probably have the same stem, which is precise enough for highlighting."""
    if one == other or not (one.isalpha() and other.isalpha()):
        return one == other
    same = min(len(one), len(other), STEM_CHARS)
    return same > 2 and one[:same] == other[:same] and (same == STEM_CHARS or abs(len(one) - len(other)) < 3)

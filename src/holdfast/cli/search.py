"""`holdfast search` and `holdfast state search`: find messages and entries by their words, best first. Read-only."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from cyclopts import Parameter
from rich.padding import Padding
from rich.text import Text

from holdfast.cli.log import when
from holdfast.cli.main import OK
from holdfast.cli.messages import message_json, role_of
from holdfast.cli.open import JournalPathFirst, Json, Tenant, journal_and, open_existing
from holdfast.cli.output import Waiting, aligned, console, emit, fields, note, printable, widest
from holdfast.cli.sessions import Thread, check_limit, find_session
from holdfast.cli.state import JournalPath
from holdfast.cli.stores import Place, ScopeText, StoreUrl, opened, placed
from holdfast.client.holdfast import Holdfast
from holdfast.core.search.words import terms
from holdfast.errors import InvalidValue
from holdfast.records.entries import SearchResult
from holdfast.records.messages import Message
from holdfast.records.scope import MAIN_THREAD, Scope

FOUND = 10
STEM = 5
"""Words that share this many first letters count as the same: the index goes by stems."""
MATCH = "bold yellow"
COLUMNS = ("score", "where", "key", "time (UTC)", "by", "text")

_WORD = re.compile(r"[^\W_]+")
Query = Annotated[str | None, Parameter(name="QUERY", show_default=False, help="What to look for, in any words.")]
Limit = Annotated[int, Parameter(help="Only the best N.")]


def search(
    path: JournalPathFirst,
    query: Query = None,
    /,
    *,
    session: Annotated[str | None, Parameter(show_default=False, help="Only messages of this session.")] = None,
    thread: Thread = None,
    scope: Annotated[str | None, Parameter(show_default=False, help="Only entries of this scope.")] = None,
    limit: Limit = FOUND,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Find messages and entries by their words."""
    check_limit(limit)
    if session is not None and scope is not None:
        raise InvalidValue("--session looks at messages and --scope at entries. Give one of them.")
    if thread is not None and session is None:
        raise InvalidValue("--thread is one of a session. Say which with --session, or leave it out.")
    journal, asked = journal_and(path, query, "what to look for")
    with open_existing(journal, tenant) as hf, Waiting("search"):
        found = _results(hf, asked, session, thread, scope, limit)
    return _tell(found, asked, Place(journal, tenant), json=json)


def state_search(
    path: JournalPath = None,
    scope: ScopeText = None,
    query: Query = None,
    /,
    *,
    limit: Limit = FOUND,
    store: StoreUrl = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Find entries of a scope by their words."""
    check_limit(limit)
    place, (where, asked) = placed((path, scope, query), ("SCOPE", "QUERY"), store=store, tenant=tenant)
    with opened(place) as stored, Waiting("search"):
        found = stored(where).search(asked, limit=limit)
        able = stored.capabilities & {"text", "vectors"}
    if not able and not json:
        note("This store cannot search: it keeps entries and does not index them.")
        return OK
    return _tell(found, asked, place, json=json)


def _results(
    hf: Holdfast, query: str, session: str | None, thread: str | None, scope: str | None, limit: int
) -> Sequence[SearchResult]:
    if session is not None:
        return find_session(hf, session, thread).search(query, limit=limit)
    return hf.search(query, limit=limit) if scope is None else hf.state(scope).search(query, limit=limit)


def _tell(found: Sequence[SearchResult], query: str, place: Place, *, json: bool) -> int:
    if json:
        emit({"query": query, "results": [_as_json(result) for result in found]})
        return OK
    if not found:
        note("Nothing was found. Look for other words; whole words count, not parts of them.")
        return OK
    _print(found, terms(query))
    note(f"Read the first with: {_how_to_read(found[0], place)}")
    return OK


def _as_json(result: SearchResult) -> dict[str, Any]:
    value = message_json(result.value) if isinstance(result.value, Message) else result.value
    return {**fields(result), "value": value}


def _how_to_read(result: SearchResult, place: Place) -> str:
    if result.kind == "entry":
        return place.spelled("state get", result.scope, result.key)
    line = Scope.of(result.scope)
    thread = line.get("thread")
    which = () if thread in (None, MAIN_THREAD) else ("--thread", str(thread))
    return place.spelled("messages", str(line.get("session")), *which)


def _print(found: Sequence[SearchResult], words: tuple[str, ...]) -> None:
    out = console()
    if out.is_terminal:
        for result in found:
            out.print(_head(result))
            out.print(Padding(marked(result.snippet, words), (0, 0, 1, 2)))
        return
    rows = [_cells(result) for result in found]
    widths = [*widest([COLUMNS[:-1], *(row[:-1] for row in rows)]), 0]
    sys.stdout.writelines(aligned([COLUMNS, *rows], widths, (0,)))
    sys.stdout.flush()


def _cells(result: SearchResult) -> tuple[str, ...]:
    snippet = printable(" ".join(result.snippet.split()))
    return (
        f"{result.score:.3f}",
        printable(result.scope),
        printable(result.key),
        when(result.at),
        _by(result),
        snippet,
    )


def _by(result: SearchResult) -> str:
    return role_of(result.value) if isinstance(result.value, Message) else ""


def _head(result: SearchResult) -> Text:
    who = _by(result)
    return Text.assemble(
        (f"{result.score:.3f}", "green"),
        f"  {printable(result.scope)}  ",
        (printable(result.key), "bold"),
        (f"{f'  {who}' if who else ''}  {when(result.at)}", "dim"),
    )


def marked(snippet: str, words: Sequence[str]) -> Text:
    """Highlight the matches in a snippet, on one line. Every part is escaped on its own."""
    text = " ".join(snippet.split())
    line, at = Text(), 0
    for start, end in _matches(text, words):
        line.append(printable(text[at:start])).append(printable(text[start:end]), style=MATCH)
        at = end
    return line.append(printable(text[at:]))


def _matches(text: str, words: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Yield the spans of words that match, in order; in languages without spaces, of pairs of letters."""
    for word in _WORD.finditer(text):
        pieces = terms(word[0])
        if len(pieces) > 1:
            pairs = {word.start() + at for term in words for at in _all(word[0], term)}
            yield from ((at, at + 1) for at in sorted(pairs))
        elif any(_alike(piece, term) for piece in pieces for term in words):
            yield word.span()


def _all(text: str, part: str) -> Iterator[int]:
    """Yield every position that an occurrence of the part covers."""
    at = text.find(part)
    while at >= 0:
        yield from range(at, at + len(part))
        at = text.find(part, at + 1)


def _alike(one: str, other: str) -> bool:
    """Return True if two words probably have the same stem, which is precise enough for highlighting."""
    if one == other or not (one.isalpha() and other.isalpha()):
        return one == other
    same = min(len(one), len(other), STEM)
    return same > 2 and one[:same] == other[:same] and (same == STEM or abs(len(one) - len(other)) < 3)

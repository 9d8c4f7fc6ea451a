"""`holdfast why`: the way of a fact through the packs of a conversation, and what to do about it. It only looks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Annotated

from cyclopts import Parameter
from rich.text import Text

from holdfast.cli.main import OK
from holdfast.cli.messages import Id
from holdfast.cli.opening import Json, Tenant, open_existing
from holdfast.cli.output import Waiting, console, emit, fields, note, printable, say
from holdfast.cli.pack_text import show_rows
from holdfast.cli.places import placed
from holdfast.cli.sessions import Thread, find_session
from holdfast.cli.show import when
from holdfast.cli.state import JournalPath
from holdfast.core.pack.reasons import sentence
from holdfast.records.packs import Appearance, Trace

COLUMNS = ("calls", "time (UTC)", "first call", "state", "by", "why")
STYLES = {"shown": "green", "recalled": "green", "summarised": "magenta", "shortened": "yellow", "absent": "red"}
NAMED = 12


def why(
    path: JournalPath = None,
    session: Id = None,
    fact: Annotated[
        str | None, Parameter(name="FACT", show_default=False, help="Some words of what was said, as they were said.")
    ] = None,
    /,
    *,
    thread: Thread = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show why a model knows a fact or not, and what to do about it."""
    place, (id, text) = placed((path, session, fact), ("SESSION", "FACT"), store=None, tenant=tenant)
    with open_existing(place.journal, tenant) as hf, Waiting("why"):
        line = find_session(hf, id, thread)
        trace = line.why(text)
    if json:
        emit({"session": line.id, "thread": line.thread, **fields(trace)})
        return OK
    show_trace(trace)
    if trace.left is not None:
        thread_of = () if thread is None else ("--thread", thread)
        note(f"See that pack with: {place.spelled('pack', line.id, '--call', trace.left.call, '--why', *thread_of)}")
    return OK


def show_trace(trace: Trace) -> None:
    """Where a fact was said, which calls were shown it, and what to do about it."""
    say(_said(trace), "bold")
    stretches = list(_stretches(trace.appearances))
    if stretches:
        show_rows(COLUMNS, stretches, (0,), lambda row: STYLES.get(row[3], ""))
    else:
        say("No journaled pack could have shown it.")
    if trace.left is not None:
        say(f"left: call {trace.left.call}, {when(trace.left.at)}, {_why(trace.left)}")
    if trace.covered_by is not None:
        say(f"covered by: {trace.covered_by}")
    console().print(Text.assemble("now: ", (trace.now, STYLES.get(trace.now, ""))))
    say(f"fix: {trace.fix}", "bold")
    if trace.note is not None:
        note(trace.note)


def _said(trace: Trace) -> str:
    if not trace.found:
        return "Not found in this conversation."
    names = ", ".join(map(printable, trace.found[:NAMED]))
    more = f" and {len(trace.found) - NAMED:,} more" if len(trace.found) > NAMED else ""
    since = "" if trace.said_at is None else f", first said {when(trace.said_at)}"
    return f"Found in {names}{more}{since}."


def _stretches(found: Sequence[Appearance]) -> Iterator[tuple[str, ...]]:
    """Calls in a row that did the same are one line."""
    for _, group in groupby(found, key=lambda one: (one.role, one.state, one.by, one.reason)):
        calls = list(group)
        first = calls[0]
        yield f"{len(calls):,}", when(first.at), first.call, first.state, printable(first.by or ""), _why(first)


def _why(one: Appearance) -> str:
    role = "" if one.role == "main" else f" (role {one.role})"
    return printable(f"{'' if one.reason is None else sentence(one.reason)}{role}".strip())

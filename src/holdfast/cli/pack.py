"""`holdfast pack`: what a model call was shown, or would be shown now, and why. It only looks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli.main import OK
from holdfast.cli.messages import Id, message_json
from holdfast.cli.opening import JournalPathFirst, Json, Tenant, journal_and, open_existing, switch
from holdfast.cli.output import Waiting, emit, fields, plain, say
from holdfast.cli.pack_text import show_decisions, show_difference, show_pack
from holdfast.cli.sessions import Thread, find_session
from holdfast.cli.show import when
from holdfast.client.holdfast import Holdfast
from holdfast.client.pack import ContextPack
from holdfast.client.session import Session
from holdfast.errors import CallNotFound, InvalidValue
from holdfast.records.events.envelope import Event
from holdfast.records.packs import PackDiff, Segment
from holdfast.records.scope import Scope

PACKED = ("context.packed",)
_ULID = 26
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")

WhichCall = "1 is the first call of the thread and -1 the newest; or a call's or a pack's id."


def pack(
    path: JournalPathFirst,
    session: Id = None,
    /,
    *,
    call: Annotated[
        str | None, Parameter(show_default=False, help=f"What this call was shown, exactly. {WhichCall}")
    ] = None,
    budget: Annotated[
        int | None, Parameter(show_default=False, help="Tokens of a pack made now; the model's window if not given.")
    ] = None,
    role: Annotated[str | None, Parameter(show_default=False, help="The role that a pack made now is for.")] = None,
    why: Annotated[bool, switch("Show every candidate, and why it is in the pack or not.")] = False,
    diff: Annotated[
        str | None, Parameter(show_default=False, help="Compare with the pack of this call, named as for --call.")
    ] = None,
    thread: Thread = None,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Show what a model call was shown, or would be shown now."""
    if call is not None and (budget is not None or role is not None):
        raise InvalidValue("--budget and --role are for a pack made now. Leave them out, or leave out --call.")
    journal, id = journal_and(path, session, "the session's id")
    with open_existing(journal, tenant) as hf, Waiting("pack"):
        line = find_session(hf, id, thread)
        made = _made(line, budget, role) if call is None else line.pack_at(call_id(hf, line, call))
        other = None if diff is None else line.pack_at(call_id(hf, line, diff))
        found = None if other is None else other.diff(made)
        shown = _as_json(line, made, other, found, why=why) if json else None
    if shown is not None:
        emit(shown)
        return OK
    if made.metadata.pack_id is not None:
        say(f"pack {made.metadata.pack_id}, {when(made.metadata.created_at)}, role {made.metadata.role}", "dim")
    show_pack(made)
    if why:
        show_decisions(made.decisions)
    if found is not None and other is not None:
        show_difference(found, str(other.metadata.pack_id))
    return OK


def _made(line: Session, budget: int | None, role: str | None) -> ContextPack:
    return line.pack(budget) if role is None else line.pack(budget, role=role)


def call_id(hf: Holdfast, line: Session, given: str) -> str:
    """The id of a call: by its number from the first one, by a negative one from the newest, or as it is."""
    text = given.strip()
    if not _NUMBER.fullmatch(text):
        return text.upper() if len(text) == _ULID else text  # What is no id is complained of as it was typed.
    number = int(text)
    if number == 0:
        raise InvalidValue(f"There is no call 0. {WhichCall}")
    scope = Scope.thread(line.id, line.thread)
    known = 0
    events: Iterator[Event] = hf.journal.events(scope, types=PACKED, backwards=number < 0)
    for known, event in enumerate(events, 1):
        if known == abs(number):
            return str(event.facts.pack)
    calls = "1 call that was given a pack" if known == 1 else f"{known:,} calls that were given packs"
    raise CallNotFound(f"There is no call {number}: thread {line.thread!r} of session {line.id!r} has {calls}.")


def _as_json(
    line: Session, made: ContextPack, other: ContextPack | None, found: PackDiff | None, *, why: bool
) -> dict[str, Any]:
    """All that is known of a pack; nothing is shortened."""
    shown: dict[str, Any] = {
        "session": line.id,
        "thread": line.thread,
        "metadata": fields(made.metadata),
        "digest": made.digest,
        "tokens": fields(made.token_summary),
        "exact": made.exact,
        "tokenizer": made.tokenizer,
        "model": made.model,
        "limited_by": made.limited_by,
        "cached_share": made.cached_share,
        "shown": made.conversation.message_count,
        "left_out": made.conversation.truncated_count,
        "system": made.system,
        "tools": plain(made.tools),
        "segments": [_segment(segment) for segment in made.segments],
    }
    if why:
        shown["decisions"] = [fields(one) for one in made.decisions]
    if found is not None and other is not None:
        shown["diff"] = {
            **fields(found),
            "with": other.metadata.pack_id,
            "added": [_name(one) for one in found.added],
            "removed": [_name(one) for one in found.removed],
            "changed": [_name(one) for _, one in found.changed],
        }
    return shown


def _segment(segment: Segment) -> dict[str, Any]:
    known = fields(segment)
    known["messages"] = [message_json(message) for message in segment.messages]
    return known


def _name(segment: Segment) -> dict[str, Any]:
    return {"kind": segment.kind, "id": segment.id, "tokens": segment.estimated_tokens}

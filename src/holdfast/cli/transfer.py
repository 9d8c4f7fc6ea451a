"""`holdfast export` and `holdfast import`: a whole journal, or with --session one conversation in a provider's form."""

from __future__ import annotations

import os
from typing import Annotated

from cyclopts import Parameter

from holdfast.cli.conversation import Conversation, export_conversation, import_conversation
from holdfast.cli.conversation_file import STDIN
from holdfast.cli.main import OK
from holdfast.cli.opening import VARIABLE, Json, filling, journal_and, named, open_existing, stored_path, switch
from holdfast.cli.output import Waiting, size, tell
from holdfast.cli.sessions import Thread
from holdfast.errors import InvalidValue, NotFound
from holdfast.flow.conversation.porting import ALL_FORMATS

JournalPath = Annotated[
    str | None,
    Parameter(
        name="PATH",
        show_default=False,
        allow_leading_hyphen=True,
        help=f"The journal: a path or sqlite:///path. May be left out when {VARIABLE} names it.",
    ),
]
SessionId = Annotated[
    str | None, Parameter(show_default=False, help="Only the conversation of this session, not the whole journal.")
]
Format = Annotated[
    str | None,
    Parameter(show_default=False, help=f"With --session: {', '.join(ALL_FORMATS)}; {ALL_FORMATS[0]} if not given."),
]
Whose = Annotated[str | None, Parameter(help="With --session: whose; 'default' if not given.", show_default=False)]


def export(
    path: JournalPath = None,
    target: Annotated[
        str | None, Parameter(name="TARGET", show_default=False, help="Where to; must not exist yet.")
    ] = None,
    /,
    *,
    session: SessionId = None,
    thread: Thread = None,
    format: Format = None,
    output: Annotated[
        str | None,
        Parameter(
            name=["--output", "-o"],
            show_default=False,
            allow_leading_hyphen=True,
            help="TARGET by another name, also -o. With --session and without either, standard output.",
        ),
    ] = None,
    until: Annotated[int | None, Parameter(help="Only events up to this cursor.")] = None,
    tenant: Whose = None,
    json: Json = False,
) -> int:
    """Write the whole journal as JSON lines that `import` can take back, or one conversation."""
    _no_options(path)
    if target is not None and output is not None:
        raise InvalidValue("Give TARGET or --output, not both.")
    into = target if output is None else output
    if session is not None:
        if until is not None:
            raise InvalidValue("--until is for a whole journal. Leave out --until or --session.")
        conversation = Conversation.of(session, thread, format, tenant)
        return export_conversation(named(path or os.environ.get(VARIABLE)), conversation, into, json=json)
    _only_with_session(thread=thread, format=format, tenant=tenant)
    journal, into = journal_and(path, into, "the path of the new export")
    copy = stored_path(into)
    with open_existing(journal) as hf, Waiting("export") as progress:
        lines = hf.journal.export(copy, until=until, progress=progress)
    written = copy.stat().st_size
    said = f"Wrote {lines:,} lines to {copy} ({size(written)}). They hold the journal's secret."
    tell(json, {"export": str(copy), "lines": lines, "bytes": written}, said)
    return OK


def import_(
    path: JournalPath = None,
    source: Annotated[
        str | None,
        Parameter(
            name="SOURCE",
            show_default=False,
            allow_leading_hyphen=True,
            help="An export to read. With --session a conversation, or - for standard input.",
        ),
    ] = None,
    /,
    *,
    session: SessionId = None,
    thread: Thread = None,
    format: Format = None,
    strict: Annotated[bool, switch("With --session: refuse a broken conversation instead of repairing it.")] = False,
    key: Annotated[
        str | None, Parameter(show_default=False, help="With --session: under this key it comes in once.")
    ] = None,
    tenant: Whose = None,
    json: Json = False,
) -> int:
    """Make a journal of an export, or add a conversation to a session."""
    _no_options(path, source)
    if session is not None:
        journal, given = journal_and(path, source, "the path of a conversation")
        conversation = Conversation.of(session, thread, format, tenant)
        return import_conversation(journal, conversation, given, strict=strict, key=key, json=json)
    _only_with_session(thread=thread, format=format, tenant=tenant, key=key, strict=strict or None)
    journal, given = journal_and(path, source, "the path of an export")
    lines, target = stored_path(given), stored_path(journal)
    if not lines.is_file():
        raise NotFound(f"There is no export at {lines}.")
    with filling(target) as hf, Waiting("import") as progress:
        events = hf.journal.import_(lines, progress=progress)
    said = f"Imported {events:,} events into {target}. Check it with `holdfast verify`."
    tell(json, {"journal": str(target), "events": events}, said)
    return OK


def _no_options(*given: str | None) -> None:
    """An argument may be -, for standard input; what else begins so was meant as an option."""
    for argument in given:
        if argument is not None and argument.startswith("-") and argument != STDIN:
            raise InvalidValue(f"Unknown option: {argument}. A path that begins so is written ./{argument}.")


def _only_with_session(**options: object) -> None:
    """Refuse options that would be ignored."""
    for name, value in options.items():
        if value is not None:
            raise InvalidValue(f"--{name} is for one conversation. Say which with --session, or leave it out.")

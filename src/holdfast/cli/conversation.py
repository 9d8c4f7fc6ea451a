"""One conversation out of a journal and into it, in a provider's form.

Nothing is overwritten. A conversation comes in as a whole or not at all; what had to be repaired is told.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple, Self

import msgspec
from rich.table import Table
from rich.text import Text

from holdfast.cli.conversation_file import STDIN, check_format, read_conversation
from holdfast.cli.main import OK
from holdfast.cli.opening import existing_path, filling, open_existing, spelled, stored_path
from holdfast.cli.output import Waiting, aligned, console, emit, harmless, note, printable, say, size, tell, widest
from holdfast.cli.sessions import find_session, threads_of
from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_journal
from holdfast.client.journal import FULL
from holdfast.errors import InvalidMessage, ReadOnly, Refused, StorageFull
from holdfast.flow.conversation import porting
from holdfast.records.messages import Repair
from holdfast.records.scope import MAIN_THREAD, Scope

SHOWN = 20
NAMED = 3
COLUMNS = ("message", "problem", "what was done")


class Conversation(NamedTuple):
    """Which conversation is meant, and the form that it has outside."""

    session: str
    thread: str | None
    format: str
    tenant: str | None

    @classmethod
    def of(cls, session: str, thread: str | None, format: str | None, tenant: str | None) -> Self:
        """As it was said on the command line."""
        return cls(session, thread, check_format(porting.ALL_FORMATS[0] if format is None else format), tenant)

    @property
    def line(self) -> str:
        """The thread that is meant."""
        return MAIN_THREAD if self.thread is None else self.thread

    def of_tenant(self, client: Holdfast) -> Holdfast:
        """The client for whoever it belongs to."""
        return client if self.tenant is None else client.tenant(self.tenant)


# out


def export_conversation(journal: str, wanted: Conversation, into: str | None, *, json: bool) -> int:
    """Write it to a new file, or to standard output and nothing else there."""
    path = None if into is None or into == STDIN else stored_path(into)
    if path is not None and path.exists():
        raise Refused(f"{path} exists already. Give the path of a new file.")
    with open_existing(journal, wanted.tenant) as hf, Waiting("export"):
        line = find_session(hf, wanted.session, wanted.thread)
        messages, exported = len(line), line.export(wanted.format)
    lines = exported if wanted.format == "jsonl" else [msgspec.json.encode(exported).decode()]
    if path is None:
        _write_out(lines)
        return OK
    written = _write_new(path, lines)
    said = f"Wrote {messages:,} messages to {path} ({size(written)})."
    answer = {"export": str(path), "format": wanted.format, "messages": messages, "bytes": written}
    tell(json, answer, said)
    return OK


def _write_out(lines: Iterable[str]) -> None:
    watched = sys.stdout.isatty()
    sys.stdout.writelines((harmless(line) if watched else line) + "\n" for line in lines)
    sys.stdout.flush()


def _write_new(path: Path, lines: Iterable[str]) -> int:
    """A file that appears whole or not at all, and that only its owner can read; gives its size."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        with os.fdopen(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if not isinstance(error, OSError):
            raise
        if error.errno in FULL:
            raise StorageFull() from None
        raise ReadOnly(f"{path} cannot be written ({error.strerror}). Check the folder and its permissions.") from None
    return path.stat().st_size


# in


def import_conversation(
    journal: str, wanted: Conversation, source: str, *, strict: bool, key: str | None, json: bool
) -> int:
    """Add a conversation to a session, which is made if it is not there, as is the journal."""
    given = read_conversation(source, wanted.format)
    _try_out(given, wanted, source, strict=strict)
    target = stored_path(journal)
    new = not target.exists()
    if not new:
        existing_path(journal)
    with filling(target) as client, Waiting("import") as progress:
        hf = wanted.of_tenant(client)
        stream = Scope.thread(wanted.session, wanted.line)
        repeated = key is not None and bool(hf.journal.happened(stream, key))
        begun = not threads_of(hf, wanted.session)
        line = hf.session(wanted.session, thread=wanted.line)
        done = line.import_messages(given, wanted.format, strict=strict, key=key, progress=progress)
    if json:
        where = {"journal": str(target), "session": line.id, "thread": line.thread}
        made = {"new_journal": new, "new_session": begun, "repeated": repeated}
        emit({**where, **made, "messages": done.messages, "repairs": msgspec.to_builtins(done.repairs)})
        return OK
    _tell_import(done, target, wanted, repeated=repeated, new=new, begun=begun)
    if not repeated:
        thread = () if wanted.thread is None else ("--thread", wanted.thread)
        note(f"Read it with: {spelled('messages', journal, line.id, *thread, tenant=wanted.tenant)}")
    return OK


def _try_out(given: Any, wanted: Conversation, source: str, *, strict: bool) -> None:
    """Refuse what holds no message or is too large, and what is broken if nothing may be repaired.

    It is tried in memory, before a journal or a session is made for it: what is refused leaves nothing behind.
    """
    with open_journal("memory:", tokenizer=len) as trial, Waiting("check") as progress:
        line = trial.session(wanted.session, thread=wanted.line)
        done = line.import_messages(given, wanted.format, progress=progress)
        empty = not done.messages and line.system is None
    repairs = done.repairs
    if not repairs or not (empty or strict):
        return
    name = "Standard input" if source == STDIN else source
    said = "; ".join(f"message {one.index}: {one.problem} ({one.done})" for one in repairs[:NAMED])
    more = f"; and {len(repairs) - NAMED:,} more" if len(repairs) > NAMED else ""
    if empty:
        raise InvalidMessage(f"{name} holds no message that can be read: {said}{more}. Check it, and --format.")
    raise InvalidMessage(
        f"{name} is broken in {len(repairs):,} places, so nothing was imported: {said}{more}. "
        "Leave out --strict to have it repaired."
    )


def _tell_import(
    done: porting.Imported, target: Path, wanted: Conversation, *, repeated: bool, new: bool, begun: bool
) -> None:
    session = f"{'the new ' if begun else ''}session {wanted.session!r}"
    if wanted.thread is not None:
        session = f"thread {wanted.thread!r} of {session}"
    journal = f"the new journal {target}" if new else str(target)
    if repeated:
        say(f"These {done.messages:,} messages came into {session} under this key already; nothing was changed.")
    else:
        say(f"Imported {done.messages:,} messages into {session} of {journal}.", "green")
    if done.repairs:
        say(f"{len(done.repairs):,} repairs were needed:", "yellow")
        _print_repairs(sorted(done.repairs, key=lambda one: one.index)[:SHOWN])
        if len(done.repairs) > SHOWN:
            say(f"and {len(done.repairs) - SHOWN:,} more; --json has them all.", "yellow")


def _print_repairs(repairs: Iterable[Repair]) -> None:
    rows = [(str(one.index), printable(one.problem), printable(one.done)) for one in repairs]
    out = console()
    if not out.is_terminal:
        every: list[tuple[Any, ...]] = [COLUMNS, *rows]
        sys.stdout.writelines(aligned(every, widest(every), (0,)))
        return
    table = Table(*COLUMNS, box=None, header_style="dim", pad_edge=False)
    table.columns[0].justify = "right"
    for row in rows:
        table.add_row(*map(Text, row))
    out.print(table)

"""Commands that act on a whole journal: verify, rebuild, backup, restore, erase."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter
from rich.table import Table
from rich.text import Text

from holdfast.cli.main import DAMAGED, OK
from holdfast.cli.open import (
    JournalPath,
    JournalPathFirst,
    Json,
    Tenant,
    existing_path,
    journal_and,
    named,
    open_existing,
    stored_path,
    switch,
)
from holdfast.cli.output import Waiting, console, emit, plain, printable, say, size, tell
from holdfast.connect import restore as restore_backup
from holdfast.errors import Corrupt, Refused
from holdfast.records.reports import Finding, Verified

Target = Annotated[str | None, Parameter(name="TARGET", show_default=False, help="Where to; must not exist yet.")]
Subject = Annotated[str | None, Parameter(name="SUBJECT", show_default=False, help="Whose content, by name.")]


def verify(
    path: JournalPath = None,
    /,
    *,
    packs: Annotated[bool, switch("Also show every journaled pack again.")] = False,
    json: Json = False,
) -> int:
    """Check every chain, version, row, reference and artifact."""
    try:
        with open_existing(path) as hf, Waiting("verify") as progress:
            report = hf.journal.verify(packs=packs, progress=progress)
    except Corrupt as error:
        # A journal too damaged to open is reported as a finding too.
        finding = Finding(kind="unreadable", where=str(existing_path(path)), problem=str(error))
        report = Verified(events=0, streams=0, rows=0, artifacts=0, findings=(finding,))
    if json:
        emit({"ok": report.ok, **plain(report)})
    else:
        _print_report(report)
    return OK if report.ok else DAMAGED


def _print_report(report: Verified) -> None:
    looked = (
        f"{report.events:,} events, {report.streams:,} streams, {report.rows:,} rows, {report.artifacts:,} artifacts"
    )
    if report.ok:
        say(f"All is as it was written: {looked}.", "green")
        return
    table = Table("kind", "where", "problem", box=None, header_style="dim", pad_edge=False)
    for finding in report.findings:
        table.add_row(
            *(Text(printable(" ".join(cell.split()))) for cell in (finding.kind, finding.where, finding.problem))
        )
    console().print(table)
    say(f"{len(report.findings):,} findings in {looked}. Stop writing and restore from a backup.", "red")


def rebuild(path: JournalPath = None, /, *, json: Json = False) -> int:
    """Rebuild every projection from the events, while others keep working."""
    with open_existing(path) as hf, Waiting("rebuild") as progress:
        events = hf.journal.rebuild(progress=progress)
    tell(json, {"events": events}, f"Rebuilt from {events:,} events.")
    return OK


def backup(path: JournalPathFirst, target: Target = None, /, *, json: Json = False) -> int:
    """Copy the journal while others write. The copy appears whole or not at all."""
    journal, into = journal_and(path, target, "the path of the new backup")
    copy = stored_path(into)
    with open_existing(journal) as hf, Waiting("backup") as progress:
        hf.journal.backup(copy, progress=progress)
    written = copy.stat().st_size
    said = f"Copied to {copy} ({size(written)}). It holds the journal's secret."
    tell(json, {"backup": str(copy), "bytes": written}, said)
    return OK


def restore(
    backup: Annotated[str, Parameter(name="BACKUP", help="A backup, or any journal.")],
    path: Annotated[
        str | None,
        Parameter(name="PATH", env_var="HOLDFAST_URL", show_default=False, help="Where the new journal goes."),
    ] = None,
    /,
    *,
    seq: Annotated[int | None, Parameter(help="Only up to this cursor: the journal as it was then.")] = None,
    json: Json = False,
) -> int:
    """Restore a journal from a backup, whole or up to a cursor. The path must not exist yet."""
    source, target = existing_path(backup), stored_path(named(path))
    with Waiting("restore") as progress:
        last = restore_backup(source, target, seq=seq, progress=progress)
    tell(json, {"journal": str(target), "seq": last}, f"Restored to {target}, up to {last:,}.")
    return OK


def erase(
    path: JournalPathFirst,
    subject: Subject = None,
    /,
    *,
    yes: Annotated[bool, switch("Do not ask.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> int:
    """Remove all content that belongs to a subject, for good."""
    journal, whose = journal_and(path, subject, "the subject")
    found = existing_path(journal)
    if not yes:
        _confirm(f"Erase everything that belongs to {whose!r} from {found}? It cannot be undone. [y/N] ")
    with open_existing(str(found), tenant) as hf, Waiting("erase"):
        erasure = hf.journal.erase(whose)
    said = f"Erased the content of {erasure.events:,} events and {erasure.artifacts:,} artifacts."
    tell(json, plain(erasure), said)
    return OK


def _confirm(question: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused("Nothing was erased: there is nobody to ask. Add --yes to erase without asking.")
    sys.stderr.write(printable(question))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("Nothing was erased.")

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
    open_existing,
    option,
    require_file_path,
    require_path,
    resolve_arguments,
    switch,
)
from holdfast.cli.output import (
    ProgressBar,
    console,
    escape_text,
    format_size,
    print_json,
    print_line,
    print_result,
    to_plain,
)
from holdfast.connect import restore as restore_backup
from holdfast.errors import Corrupt, Refused
from holdfast.records.reports import Finding, VerificationReport

Target = Annotated[str | None, option("The file to write; must not exist.", name="TARGET")]
Subject = Annotated[str | None, option("The subject whose content is erased.", name="SUBJECT")]


def verify(
    path: JournalPath = None,
    /,
    *,
    packs: Annotated[bool, switch("Also rebuild every journaled pack and compare it.")] = False,
    json: Json = False,
) -> int:
    """Check every chain, version, row, reference and artifact."""
    try:
        with open_existing(path) as hf, ProgressBar("verify") as progress:
            report = hf.journal.verify(packs=packs, progress=progress)
    except Corrupt as error:
        # A journal too damaged to open is reported as a finding too.
        finding = Finding(kind="unreadable", where=str(existing_path(path)), problem=str(error))
        report = VerificationReport(events=0, streams=0, rows=0, artifacts=0, findings=(finding,))
    if json:
        print_json({"ok": report.ok, **to_plain(report)})
    else:
        _print_report(report)
    return OK if report.ok else DAMAGED


def _print_report(report: VerificationReport) -> None:
    looked = (
        f"{report.events:,} events, {report.streams:,} streams, {report.rows:,} rows, {report.artifacts:,} artifacts"
    )
    if report.ok:
        print_line(f"The journal is intact: {looked}.", "green")
        return
    table = Table("kind", "where", "problem", box=None, header_style="dim", pad_edge=False)
    for finding in report.findings:
        table.add_row(
            *(Text(escape_text(" ".join(cell.split()))) for cell in (finding.kind, finding.where, finding.problem))
        )
    console().print(table)
    print_line(f"{len(report.findings):,} findings in {looked}. Stop writing and restore from a backup.", "red")


def rebuild(path: JournalPath = None, /, *, json: Json = False) -> None:
    """Rebuild every projection from the events, while others keep working."""
    with open_existing(path) as hf, ProgressBar("rebuild") as progress:
        events = hf.journal.rebuild(progress=progress)
    print_result(json, {"events": events}, f"Rebuilt from {events:,} events.")


def backup(path: JournalPathFirst, target: Target = None, /, *, json: Json = False) -> None:
    """Copy the journal while others write. The copy appears whole or not at all."""
    journal, into = resolve_arguments(path, target, "the path of the new backup")
    copy = require_file_path(into)
    with open_existing(journal) as hf, ProgressBar("backup") as progress:
        hf.journal.backup(copy, progress=progress)
    written = copy.stat().st_size
    said = f"Copied to {copy} ({format_size(written)}). It holds the journal's secret."
    print_result(json, {"backup": str(copy), "bytes": written}, said)


def restore(
    backup: Annotated[str, Parameter(name="BACKUP", help="A backup, or any journal.")],
    path: Annotated[str | None, option("The path of the new journal.", name="PATH", env_var="HOLDFAST_URL")] = None,
    /,
    *,
    seq: Annotated[int | None, Parameter(help="Restore events up to this cursor only.")] = None,
    json: Json = False,
) -> None:
    """Restore a journal from a backup, whole or up to a cursor. The path must not exist yet."""
    source, target = existing_path(backup), require_file_path(require_path(path))
    with ProgressBar("restore") as progress:
        last = restore_backup(source, target, seq=seq, progress=progress)
    print_result(json, {"journal": str(target), "seq": last}, f"Restored to {target}, up to {last:,}.")


def erase(
    path: JournalPathFirst,
    subject: Subject = None,
    /,
    *,
    yes: Annotated[bool, switch("Erase without asking.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    """Remove all content that belongs to a subject, for good."""
    journal, whose = resolve_arguments(path, subject, "the subject")
    found = existing_path(journal)
    if not yes:
        _confirm(f"Erase everything that belongs to {whose!r} from {found}? This cannot be undone. [y/N] ")
    with open_existing(str(found), tenant) as hf, ProgressBar("erase"):
        erasure = hf.journal.erase(whose)
    said = f"Erased the content of {erasure.events:,} events and {erasure.artifacts:,} artifacts."
    print_result(json, to_plain(erasure), said)


def _confirm(question: str) -> None:
    if sys.stdin is None or not sys.stdin.isatty():
        raise Refused("Nothing was erased: confirmation needs a terminal. Add --yes to erase without asking.")
    sys.stderr.write(escape_text(question))
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise Refused("Nothing was erased.")

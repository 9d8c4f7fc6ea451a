"""Commands that act on a whole journal: verify, rebuild, backup, restore, erase, doctor."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.cli import output
from holdfast.cli.main import DAMAGED, OK
from holdfast.cli.open import (
    URL_VARIABLE,
    JournalPath,
    Json,
    LeadingPath,
    Tenant,
    existing_path,
    open_existing,
    option,
    require_file_path,
    require_path,
    resolve_arguments,
    switch,
)
from holdfast.connect import connect, settings_from_environment
from holdfast.connect import restore as restore_backup
from holdfast.errors import Corrupt, Refused
from holdfast.ports import Env
from holdfast.records.batches import HeadQuery
from holdfast.records.reports import Finding, VerificationReport
from holdfast.records.settings import Settings
from holdfast.version import __version__

Target = Annotated[str | None, option("The file to write; must not exist.", name="TARGET")]


def verify(
    path: JournalPath = None,
    /,
    *,
    packs: Annotated[bool, switch("Also rebuild every journaled pack and compare it.")] = False,
    json: Json = False,
) -> int:
    try:
        with open_existing(path) as hf, output.ProgressBar("verify") as progress:
            report = hf.journal.verify(packs=packs, progress=progress)
    except Corrupt as error:
        # A journal too damaged to open is reported as a finding too.
        finding = Finding(kind="unreadable", where=str(existing_path(path)), problem=str(error))
        report = VerificationReport(events=0, streams=0, rows=0, artifacts=0, findings=(finding,))
    parts = ("events", "streams", "rows", "artifacts")
    looked = ", ".join(f"{getattr(report, part):,} {part}" for part in parts)
    if json:
        output.print_json({"ok": report.ok, **output.to_plain(report)})
    elif report.ok:
        output.print_line(f"The journal is intact: {looked}.", "green")
    else:
        cells = ((one.kind, one.where, one.problem) for one in report.findings)
        rows = [tuple(output.escape_text(" ".join(cell.split())) for cell in row) for row in cells]
        output.console().print(output.plain_table(("kind", "where", "problem"), rows))
        said = f"{len(report.findings):,} findings in {looked}. Stop writing and restore from a backup."
        output.print_line(said, "red")
    return OK if report.ok else DAMAGED


def rebuild(
    path: JournalPath = None,
    /,
    *,
    since: Annotated[int, Parameter(help="Rebuild only streams with events after this cursor.")] = 0,
    json: Json = False,
) -> None:
    """Rebuild every projection from the events, while others keep working."""
    with open_existing(path) as hf, output.ProgressBar("rebuild") as progress:
        events = hf.journal.rebuild(since=since, progress=progress)
    output.print_result(json, {"events": events}, f"Rebuilt from {events:,} events.")


def backup(path: LeadingPath, target: Target = None, /, *, json: Json = False) -> None:
    journal, into = resolve_arguments(path, target, "the path of the new backup")
    copy = require_file_path(into)
    with open_existing(journal) as hf, output.ProgressBar("backup") as progress:
        hf.journal.backup(copy, progress=progress)
    written = copy.stat().st_size
    said = f"Copied to {copy} ({output.format_size(written)}). It holds the journal's secret."
    output.print_result(json, {"backup": str(copy), "bytes": written}, said)


def restore(
    backup: Annotated[str, Parameter(name="BACKUP", help="A backup, or any journal.")],
    path: Annotated[str | None, option("The path of the new journal.", name="PATH", env_var="HOLDFAST_URL")] = None,
    /,
    *,
    seq: Annotated[int | None, Parameter(help="Restore events up to this cursor only.")] = None,
    json: Json = False,
) -> None:
    source, target = existing_path(backup), require_file_path(require_path(path))
    with output.ProgressBar("restore") as progress:
        last = restore_backup(source, target, seq=seq, progress=progress)
    output.print_result(json, {"journal": str(target), "seq": last}, f"Restored to {target}, up to {last:,}.")


def erase(
    path: LeadingPath,
    subject: Annotated[str | None, option("The subject whose content is erased.", name="SUBJECT")] = None,
    /,
    *,
    yes: Annotated[bool, switch("Erase without asking.")] = False,
    tenant: Tenant = None,
    json: Json = False,
) -> None:
    journal, whose = resolve_arguments(path, subject, "the subject")
    found = existing_path(journal)
    if not yes:
        if sys.stdin is None or not sys.stdin.isatty():
            raise Refused("Nothing was erased: confirmation needs a terminal. Add --yes to erase without asking.")
        question = f"Erase everything that belongs to {whose!r} from {found}? This cannot be undone. [y/N] "
        sys.stderr.write(output.escape_text(question))
        sys.stderr.flush()
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise Refused("Nothing was erased.")
    with open_existing(str(found), tenant) as hf, output.ProgressBar("erase"):
        erasure = hf.journal.erase(whose)
    said = f"Erased the content of {erasure.events:,} events and {erasure.artifacts:,} artifacts."
    output.print_result(json, output.to_plain(erasure), said)


PRAGMAS = (
    *("journal_mode", "synchronous", "fullfsync", "checkpoint_fullfsync"),
    *("foreign_keys", "secure_delete", "trusted_schema", "cell_size_check"),
)
NOT_SETTINGS = {URL_VARIABLE, "HOLDFAST_MODEL", "HOLDFAST_SCALE", "HOLDFAST_SEED"}
SIZES = {
    "bytes": "size",
    "log_bytes": "write-ahead log",
    "artifact_file_bytes": "artifact files",
    "free_bytes": "free on this disk",
}
STREAMS_PER_PAGE = 1_000
LARGE_LOG = 100_000_000
LOW_SPACE = 1_000_000_000


def doctor(path: JournalPath = None, /, *, json: Json = False) -> None:
    report: dict[str, Any] = {
        "versions": {
            "holdfast": __version__,
            "python": platform.python_version(),
            "apsw": version("apsw"),
            "system": f"{platform.system()} {platform.machine()}",
        },
        "settings": _collect_settings(),
        "warnings": _find_unknown_variables(),
    }
    if path:
        found = existing_path(path)
        _inspect_journal(found, report)
        report["warnings"] += _find_warnings(found, report["journal"])
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-doctor-") as folder:
            _inspect_journal(Path(folder) / "tried.db", report)
        del report["journal"]
    if json:
        output.print_json(report)
    else:
        _print_diagnosis(report)


def _inspect_journal(path: Path, report: dict[str, Any]) -> None:
    env = connect(path)
    try:
        report["journal"] = _describe_journal(path, env)
        # Read back from a connection that holdfast opened, rather than assumed.
        journal: Any = env.journal
        with journal.connections.reader() as connection:
            report["versions"]["sqlite"] = str(connection.execute("SELECT sqlite_version()").get)
            found = {name: connection.pragma(name) for name in PRAGMAS}
        report["pragmas"] = {"durability": "full" if found["synchronous"] >= 2 else "fast", **found}
    finally:
        env.journal.close()


def _collect_settings() -> dict[str, dict[str, Any]]:
    """Return each setting in force, and whether it comes from the environment or is a default."""
    in_force = settings_from_environment()
    given: dict[str, dict[str, Any]] = {}
    for name in Settings.__struct_fields__:
        variable = f"HOLDFAST_{name.upper()}"
        origin = "environment" if os.environ.get(variable, "").strip() else "default"
        given[name] = {"value": getattr(in_force, name), "from": origin, "variable": variable}
    return given


def _find_unknown_variables() -> list[str]:
    known = NOT_SETTINGS | {f"HOLDFAST_{name.upper()}" for name in Settings.__struct_fields__}
    wrong = sorted(name for name in os.environ if name.startswith("HOLDFAST_") and name not in known)
    return [f"{name} is set but is not a setting. Check its spelling." for name in wrong]


def _describe_journal(path: Path, env: Env) -> dict[str, Any]:
    log, artifacts = path.with_name(path.name + "-wal"), path.with_name(path.name + "-artifacts")
    cursor, tenants = env.journal.position(), env.journal.tenants()
    return {
        "path": str(path.absolute()),
        "mode": stat.filemode(path.stat().st_mode),
        "bytes": path.stat().st_size,
        "log_bytes": log.stat().st_size if log.exists() else 0,
        "artifact_file_bytes": sum(file.stat().st_size for file in artifacts.glob("*/*")),
        "free_bytes": shutil.disk_usage(path.absolute().parent).free,
        # Events are numbered without gaps and never deleted, so the cursor counts them.
        "events": cursor,
        "cursor": cursor,
        "tenants": len(tenants),
        "streams": sum(_count_streams(env, tenant) for tenant in tenants),
    }


def _count_streams(env: Env, tenant: str) -> int:
    count, after = 0, ""
    while heads := env.journal.heads(tenant, HeadQuery(after=after, limit=STREAMS_PER_PAGE)):
        count += len(heads)
        if heads[-1].stream <= after:
            raise Corrupt("The names of the streams are out of order. Stop writing and run `holdfast verify`.")
        after = heads[-1].stream
    return count


def _find_warnings(path: Path, journal: dict[str, Any]) -> list[str]:
    found = []
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        found.append(f"Others may open the journal ({journal['mode']}). Run: chmod 600 {path}")
    if journal["log_bytes"] > LARGE_LOG:
        size = output.format_size(journal["log_bytes"])
        found.append(f"The write-ahead log has {size}. An open reader keeps it from shrinking.")
    if journal["free_bytes"] < max(LOW_SPACE, journal["bytes"]):
        size = output.format_size(journal["free_bytes"])
        found.append(f"Only {size} are free on this disk. Writes fail when it is full.")
    if not os.access(path.parent, os.W_OK):
        found.append("The folder is not writable. SQLite keeps its log next to the journal.")
    return found


def _print_diagnosis(report: dict[str, Any]) -> None:
    rows = list(report["versions"].items())
    if "journal" in report:
        known = report["journal"] | {name: output.format_size(report["journal"][name]) for name in SIZES}
        rows += [("", ""), *((SIZES.get(name, name), str(value)) for name, value in known.items())]
    rows += [("", ""), *((name, str(value)) for name, value in report["pragmas"].items()), ("", "")]
    rows += [(name, f"{row['value']} ({row['from']})") for name, row in report["settings"].items()]
    output.console().print(output.facts_table(rows))
    output.print_line("")
    for warning in report["warnings"]:
        output.print_line(f"warning: {warning}", "yellow")
    if not report["warnings"]:
        output.print_line("No warnings.", "green")

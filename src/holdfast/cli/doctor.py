"""`holdfast doctor`: report versions, settings in force, sizes, and anything to worry about."""

from __future__ import annotations

import os
import platform
import shutil
import stat
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from holdfast.cli.open import URL_VARIABLE, JournalPath, Json, existing_path
from holdfast.cli.output import console, facts_table, format_size, print_json, print_line
from holdfast.connect import connect, settings_from_environment
from holdfast.errors import Corrupt
from holdfast.ports import Env
from holdfast.records.batches import HeadQuery
from holdfast.records.settings import Settings
from holdfast.version import __version__

PRAGMAS = (
    "journal_mode",
    "synchronous",
    "fullfsync",
    "checkpoint_fullfsync",
    "foreign_keys",
    "secure_delete",
    "trusted_schema",
    "cell_size_check",
)
NOT_SETTINGS = {URL_VARIABLE, "HOLDFAST_MODEL", "HOLDFAST_SCALE", "HOLDFAST_SEED"}
SIZES = {
    "bytes": "size",
    "log_bytes": "write-ahead log",
    "artifact_file_bytes": "artifact files",
    "free_bytes": "free on this disk",
}
PAGE = 1_000
LARGE_LOG = 100_000_000
LOW_SPACE = 1_000_000_000


def doctor(path: JournalPath = None, /, *, json: Json = False) -> None:
    """Show versions, settings, sizes and anything to worry about."""
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
        print_json(report)
    else:
        _print_report(report)


def _inspect_journal(path: Path, report: dict[str, Any]) -> None:
    env = connect(path)
    try:
        report["journal"] = _describe_journal(path, env)
        report["pragmas"] = _read_pragmas(env, report["versions"])
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
    while heads := env.journal.heads(tenant, HeadQuery(after=after, limit=PAGE)):
        count += len(heads)
        if heads[-1].stream <= after:
            raise Corrupt("The names of the streams are out of order. Stop writing and run `holdfast verify`.")
        after = heads[-1].stream
    return count


def _read_pragmas(env: Env, versions: dict[str, str]) -> dict[str, Any]:
    """Read the pragmas back from a connection that holdfast opened, rather than assume them."""
    journal: Any = env.journal
    with journal.connections.reader() as connection:
        versions["sqlite"] = str(connection.execute("SELECT sqlite_version()").get)
        found = {name: connection.pragma(name) for name in PRAGMAS}
    return {"durability": "full" if found["synchronous"] >= 2 else "fast", **found}


def _find_warnings(path: Path, journal: dict[str, Any]) -> list[str]:
    found = []
    if os.name == "posix" and path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
        found.append(f"Others may open the journal ({journal['mode']}). Run: chmod 600 {path}")
    if journal["log_bytes"] > LARGE_LOG:
        found.append(
            f"The write-ahead log has {format_size(journal['log_bytes'])}. An open reader keeps it from shrinking."
        )
    if journal["free_bytes"] < max(LOW_SPACE, journal["bytes"]):
        found.append(f"Only {format_size(journal['free_bytes'])} are free on this disk. Writes fail when it is full.")
    if not os.access(path.parent, os.W_OK):
        found.append("The folder is not writable. SQLite keeps its log next to the journal.")
    return found


def _print_report(report: dict[str, Any]) -> None:
    rows = list(report["versions"].items())
    if "journal" in report:
        shown = {name: (format_size(value) if name in SIZES else value) for name, value in report["journal"].items()}
        rows += [("", ""), *((SIZES.get(name, name), str(value)) for name, value in shown.items())]
    rows += [("", ""), *((name, str(value)) for name, value in report["pragmas"].items()), ("", "")]
    rows += [(name, f"{row['value']} ({row['from']})") for name, row in report["settings"].items()]
    console().print(facts_table(rows))
    print_line("")
    for warning in report["warnings"]:
        print_line(f"warning: {warning}", "yellow")
    if not report["warnings"]:
        print_line("No warnings.", "green")

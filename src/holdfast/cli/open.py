"""Find and open the journal of a command. Commands that only read never create a journal."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_journal
from holdfast.connect import file_path
from holdfast.errors import InvalidValue, NotAJournal, NotFound

URL_VARIABLE = "HOLDFAST_URL"


def option(help: str, **more: Any) -> Parameter:
    """Return the parameter of an option or argument that may be left out."""
    return Parameter(show_default=False, help=help, **more)


def switch(help: str) -> Parameter:
    """Return the parameter of a flag: an option without a value and without a `--no-…` form."""
    return Parameter(negative=(), show_default=False, help=help)


PATH_HELP = f"The journal: a path or sqlite:///path. Optional if {URL_VARIABLE} names it."
JournalPath = Annotated[str | None, option("The journal: a path or sqlite:///path.", env_var=URL_VARIABLE)]
JournalPathFirst = Annotated[str, Parameter(name="PATH", help=PATH_HELP)]
Json = Annotated[bool, switch("Print only JSON.")]
Tenant = Annotated[str | None, option("The tenant; 'default' if not given.")]


def resolve_arguments(first: str | None, second: str | None, what: str) -> tuple[str, str]:
    """Return the journal's path and one more argument; the path may come from the environment."""
    if first is not None and second is not None:
        return first, second
    journal = os.environ.get(URL_VARIABLE)
    if first is None or not journal:
        raise InvalidValue(f"Give the journal's path and {what}, or set {URL_VARIABLE} to the journal and give {what}.")
    return journal, first


def require_path(path: str | None) -> str:
    """Return the journal's path, or refuse if neither the command line nor the environment gives one."""
    if not path:
        raise InvalidValue(f"No journal is named. Give its path, or set {URL_VARIABLE}.")
    return path


def format_command(command: str, path: str, *words: str, tenant: str | None = None) -> str:
    """Format a command for the user to type next, quoted for a shell.

    The journal's path is left out if the environment names the journal.
    """
    journal = () if os.environ.get(URL_VARIABLE) == path else (path,)
    whose = () if tenant is None else ("--tenant", tenant)
    return shlex.join(("holdfast", *command.split(), *journal, *words, *whose))


def require_file_path(path: str) -> Path:
    """Return the file of a journal; refuse one in memory, which would be gone with this command."""
    if path == "memory:":
        raise InvalidValue("A journal in memory ends with its process. Give the path of a file.")
    return file_path(path)


def existing_path(path: str | None) -> Path:
    """Return the file of an existing journal. Nothing is created or opened."""
    found = require_file_path(require_path(path))
    if not found.exists():
        raise NotFound(
            f"There is no journal at {found}. Check the path; holdfast.open, `holdfast import` and "
            "`holdfast restore` make new ones."
        )
    if found.is_dir():
        raise NotAJournal(f"{found} is a folder. Give the path of a journal's file in it.")
    if not found.is_file() or not found.stat().st_size:
        raise NotAJournal(f"{found} is not a journal: it is empty or not a plain file. Give the path of a journal.")
    return found


@contextmanager
def open_existing(path: str | None, tenant: str | None = None) -> Iterator[Holdfast]:
    """Open an existing journal for one tenant."""
    with open_journal(existing_path(path)) as client:
        yield client if tenant is None else client.tenant(tenant)


@contextmanager
def open_for_import(target: Path) -> Iterator[Holdfast]:
    """Open a journal for an import: create it if missing, and remove it again if the import fails."""
    files = [target.with_name(target.name + end) for end in ("", "-wal", "-shm", "-artifacts")]
    made = [] if target.exists() else [path for path in files if not path.exists()]
    try:
        with open_journal(target) as client:
            yield client
    except BaseException:
        _remove_if_empty(target, made)
        raise


def _remove_if_empty(target: Path, made: Sequence[Path]) -> None:
    """Remove the files that a failed import created, if the journal holds no events."""
    if target.is_file():
        with open_journal(target) as hf:
            if hf.journal.position():
                return
    for path in made:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

"""Find and open the journal or store of a command. Commands that only read never create one."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple
from urllib.parse import unquote, urlsplit

from cyclopts import Parameter

from holdfast.client.holdfast import Holdfast
from holdfast.client.holdfast import open as open_journal
from holdfast.client.state import StateStore, open_store
from holdfast.connect import file_path
from holdfast.errors import InvalidValue, NotAJournal, NotFound

URL_VARIABLE = "HOLDFAST_URL"


def option(help: str, **more: Any) -> Parameter:
    """Return the parameter of an option or argument that may be left out."""
    return Parameter(show_default=False, help=help, **more)


def switch(help: str, **more: Any) -> Parameter:
    """Return the parameter of a flag: an option without a value and without a `--no-…` form."""
    return Parameter(negative=(), show_default=False, help=help, **more)


PATH_HELP = f"The journal: a path or sqlite:///path. Optional if {URL_VARIABLE} names it."
JournalPath = Annotated[str | None, option("The journal: a path or sqlite:///path.", env_var=URL_VARIABLE)]
LeadingPath = Annotated[str, Parameter(name="PATH", help=PATH_HELP)]
Json = Annotated[bool, switch("Print one JSON object and nothing else.")]
Tenant = Annotated[str | None, option("The tenant; 'default' if not given.")]


def resolve_arguments(first: str | None, second: str | None, what: str) -> tuple[str, str]:
    """Return the journal's path and one more argument; the path may come from the environment."""
    place, (found,) = locate_state((first, second), (what,))
    return place.journal, found


def require_path(path: str | None) -> str:
    """Return the journal's path, or refuse if neither the command line nor the environment gives one."""
    if not path:
        raise InvalidValue(f"No journal is named. Give its path, or set {URL_VARIABLE}.")
    return path


def format_command(command: str, path: str, *words: str, tenant: str | None = None) -> str:
    """Format a command to type next, quoted for a shell, without a journal path that the environment names."""
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
        if target.is_file():
            with open_journal(target) as hf:
                if hf.journal.position():
                    raise  # The journal holds events, so it stays.
        for path in made:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        raise


ScopeText = Annotated[str | None, option("A scope's text, such as user/42, or a session's id.", name="SCOPE")]
EntryKey = Annotated[str | None, option("The key of an entry.", name="KEY")]
StoreUrl = Annotated[
    str | None,
    option(
        "Use this store instead of a journal: fs:///folder, sqlite:///file, redis://host or cozo:///file.",
        name="--store",
    ),
]
ExpectedVersion = Annotated[int | None, option("Write only if the key is at this version; 0 if it has no value.")]
IdempotencyKey = Annotated[str | None, option("An idempotency key: the same key writes once.", name="--key")]


class StateLocation(NamedTuple):
    """The location of entries: a journal and tenant, or another store."""

    journal: str
    tenant: str | None = None
    store: str | None = None

    def format_command(self, command: str, *words: str) -> str:
        """Format a command for the user to type next, for the same location. A URL with a password is not repeated."""
        if self.store is None:
            return format_command(command, self.journal, *words, tenant=self.tenant)
        store = "URL" if "@" in self.store else self.store
        return shlex.join(("holdfast", *command.split(), *words, "--store", store))


def locate_state(
    given: Sequence[str | None], wanted: Sequence[str], *, store: str | None = None, tenant: str | None = None
) -> tuple[StateLocation, list[str]]:
    """Return the location and the remaining arguments.

    The journal's path comes first, unless the environment or --store gives the location.
    """
    words = [word for word in given if word is not None]
    missing = " and ".join(wanted)
    if store is not None:
        if tenant is not None:
            raise InvalidValue("A store has no tenants. Leave out --tenant or --store.")
        if len(words) != len(wanted):
            raise InvalidValue(f"With --store, give {missing} and no journal.")
        return StateLocation("", store=store), words
    if len(words) == len(wanted) + 1:
        return StateLocation(words[0], tenant), words[1:]
    journal = os.environ.get(URL_VARIABLE)
    if len(words) != len(wanted) or not journal:
        raise InvalidValue(
            f"Give the journal's path and {missing}, or set {URL_VARIABLE} to the journal and give {missing}."
        )
    return StateLocation(journal, tenant), words


@contextmanager
def open_state(place: StateLocation, *, make: bool = False) -> Iterator[StateStore]:
    """Open the entries of a location. A missing store is created only if `make` is set."""
    if place.store is None:
        with open_existing(place.journal, place.tenant) as hf:
            yield hf.state
        return
    if place.store in ("memory:", "cozo:"):
        raise InvalidValue("A store in memory ends with its process. Give one that stays, such as sqlite:///file.db.")
    if not make and is_new(place):
        raise NotFound(
            f"There is no store at {_local_path(place.store)}. Check --store; `holdfast state set` makes new ones."
        )
    # A folder store may be used with or without an index; entries written without one would never be found.
    with open_store(place.store, search=True if place.store.startswith("fs:") else None) as store:
        yield store


def is_new(place: StateLocation) -> bool:
    """Return True if opening the location would create a file or folder."""
    path = None if place.store is None else _local_path(place.store)
    return path is not None and not path_exists(path)


def _local_path(url: str) -> Path | None:
    """Return the file or folder of a store; None for a remote store, or for a URL that opening will refuse."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    text = unquote(parts.path.removeprefix("/"))
    local = parts.scheme in ("fs", "sqlite", "cozo") and text and not parts.netloc and url.isprintable()
    return Path(text) if local else None


def path_exists(path: Path) -> bool:
    """Return True if a path exists; False for a path that the file system cannot represent."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False

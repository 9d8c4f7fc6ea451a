"""Find and open the state of a command: that of a journal, or another store. Reading never creates a store."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, NamedTuple
from urllib.parse import unquote, urlsplit

from holdfast.cli.open import URL_VARIABLE, format_command, open_existing, option
from holdfast.client.state import StateStore, open_store
from holdfast.errors import InvalidValue, NotFound

LOCAL_SCHEMES = ("fs", "sqlite", "cozo")
"""Schemes of stores that are a file or a folder."""
MEMORY_URLS = ("memory:", "cozo:")

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
    given: Sequence[str | None], wanted: Sequence[str], *, store: str | None, tenant: str | None
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
    if place.store in MEMORY_URLS:
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
    return Path(text) if parts.scheme in LOCAL_SCHEMES and text and not parts.netloc and url.isprintable() else None


def path_exists(path: Path) -> bool:
    """Return True if a path exists; False for a path that the file system cannot represent."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False

"""Which call asks which public member, and why the others have no answer that could leak.

A call is a function of an Actor; `@call(owner, "name …")` says what it asks. Whatever is public and has no row
here makes a test fail, and so does a row whose call does not ask what it says.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

import holdfast
from holdfast.client.effects import Effects
from holdfast.client.index import IndexView
from holdfast.client.journal import JournalView
from holdfast.client.session_views import SessionCompaction, SessionDetails, SessionPacks
from holdfast.runtime.agent import Agent
from tests.edges.tenant_actor import Actor

OWNERS: dict[str, type] = {
    "Holdfast": holdfast.Holdfast,
    "Session": holdfast.Session,
    "packs": SessionPacks,
    "compaction": SessionCompaction,
    "details": SessionDetails,
    "Agent": Agent,
    "ContextPack": holdfast.ContextPack,
    "Frame": holdfast.Frame,
    "journal": JournalView,
    "index": IndexView,
    "effects": Effects,
    "StateStore": holdfast.types.StateStore,
    "State": holdfast.State,
    "StateReader": holdfast.types.StateReader,
    "DualWrite": holdfast.DualWrite,
}
"""Everything that a tenant's view hands out and that can be asked something."""

SPEAKING = ("__len__", "__iter__", "__contains__", "__call__", "__repr__", "_repr_html_")
"""What Python calls by itself, and what answers."""

OF_THE_WHOLE = {
    f"journal.{name}" for name in ("collect", "verify", "rebuild", "backup", "export", "import_", "tenants")
}
"""About the journal as a whole: refused through a tenant's view."""

SILENT = {
    "Holdfast.close": "A view closes nothing and answers nothing.",
    "Holdfast.drain": "It is about the process; a test of its own shows what a view may do.",
    "Holdfast.graceful_shutdown": "It is about the process; a test of its own shows what a view may do.",
    "StateStore.close": "A view closes nothing and answers nothing.",
    "StateStore.datalog": "The journaled store refuses it, whatever is in it.",
    "Agent.recovering": "It sends without a message, for each turn that it finds; a test of its own has two tenants.",
    "Session.id": "What the caller named it.",
    "Session.thread": "What the caller named it.",
    "State.scope": "What the caller named it.",
    "State.storage": "The store itself, for compaction; a test of its own shows that a store serves one tenant.",
    "StateReader.scope": "What the caller named it.",
    "Frame.scope": "What the caller named it.",
}
"""Members that no call needs to ask, and why."""

FUNCTIONS = {
    "count_tokens": "Counts what it is given.",
    "model_info": "What this release knows about models.",
    "open": "Opens a journal: what it gives is asked here.",
    "open_async": "The same flows behind a thread; a test compares every signature with these.",
    "open_store": "Other stores know no tenants: each is the sink of one.",
    "open_store_async": "Other stores know no tenants: each is the sink of one.",
    "register_model": "A program's own configuration.",
    "register_price": "A program's own configuration.",
    "register_type": "A program's own configuration.",
    "restore": "A whole journal, from a file that its operator has.",
    "slide_window": "A window over the caller's own list.",
    "summarise_window": "A window over the caller's own list.",
    "tool": "Makes a tool of the caller's own function.",
    "verify_webhook": "Checks what it is given.",
}
"""Public functions, none of which takes a tenant's view."""


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a tenant does, and the members that it asks."""

    make: Callable[[Actor], Any]
    asks: frozenset[str]


CALLS: dict[str, Call] = {}
"""Every call by its name; filled by the modules beside this one."""


def call(owner: str, names: str, *more: str) -> Callable[[Callable[[Actor], Any]], Callable[[Actor], Any]]:
    """Note a call: it asks these members of an owner, and perhaps (owner, names) of others."""
    pairs = (owner, names, *more)

    def noted(make: Callable[[Actor], Any]) -> Callable[[Actor], Any]:
        asks = {
            f"{whose}.{name}" for whose, which in zip(pairs[::2], pairs[1::2], strict=True) for name in which.split()
        }
        CALLS[make.__name__] = Call(make=make, asks=frozenset(asks))
        return make

    return noted


def members() -> Iterator[tuple[str, type, str]]:
    """Every public member of every owner, as (row, owner, name)."""
    for owner, kind in OWNERS.items():
        for name, member in inspect.getmembers(kind):
            own = getattr(object, name, None) is not member
            if not name.startswith("_") or (name in SPEAKING and own):
                yield f"{owner}.{name}", kind, name


def functions() -> set[str]:
    """Every public function of the package."""
    modules = (holdfast, holdfast.compaction, holdfast.effects, holdfast.models, holdfast.types)
    found = {name for module in modules for name in module.__all__ if inspect.isroutine(getattr(module, name))}
    return found | {"open"}

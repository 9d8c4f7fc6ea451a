"""Entries that were to live as long as a session go with it, in the commit that ends it."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from holdfast.core.entries import MAX_PAGE
from holdfast.flow.state.entries import deleted_draft, stored_entry
from holdfast.ports import Acting, Ports
from holdfast.records.entries import EntryPage
from holdfast.records.events.envelope import Draft

PAGE = 256


def ending_drafts(ports: Ports, acting: Acting, streams: Iterable[str]) -> dict[str, list[Draft]]:
    """The deletions that the end of a session entails, by stream."""
    found: dict[str, list[Draft]] = {}
    for stream in streams:
        keys = _ending(ports, acting, stream)
        if keys:
            found[stream] = [deleted_draft(key, cause="session") for key in keys]
    return found


def _ending(ports: Ports, acting: Acting, stream: str) -> list[str]:
    keys: list[str] = []
    # At the beginning of time nothing is over yet: what has expired goes as well.
    page = EntryPage(now=0, lifetime="session", limit=MAX_PAGE)
    while True:
        more = [stored_entry(event)[0] for event in ports.journal.entries(acting.tenant, stream, page)]
        keys += more
        if len(more) < page.limit:
            return keys
        page = replace(page, after=more[-1])


def scopes_in(ports: Ports, acting: Acting, session: str) -> list[str]:
    """The streams in a session, whether anything was said in them or not, at the cost of their number."""
    found: list[str] = []
    below, after = f"{session}/", f"{session}/"
    while heads := ports.journal.heads(acting.tenant, after, PAGE):
        names = [head.stream for head in heads if head.stream.startswith(below)]
        found += names
        if len(names) < PAGE:
            break
        after = names[-1]
    return found


def clear_transients(ports: Ports, acting: Acting, session: str) -> None:
    """What lay over the entries of a session is gone with it."""
    if ports.transients is not None:
        ports.transients.clear_below((acting.tenant, session))

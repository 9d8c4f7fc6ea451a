"""Flush and recall: compacted passages are written to the state in the same commit, and later packs search them.

If they cannot be written, nothing is compacted. A recalled passage has the trust of its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from holdfast.core.compaction.summary import PREFIX, Passage, entry_key, entry_value, remembered
from holdfast.core.entries import Options, check_options
from holdfast.core.journal.codec import decode_event
from holdfast.errors import InvalidValue
from holdfast.flow.sessions.read import bodies, places
from holdfast.flow.state import search
from holdfast.flow.state.entry_events import written_draft
from holdfast.flow.state.journal_store import storage
from holdfast.flow.state.search import MOST_RESULTS
from holdfast.flow.state.write import made
from holdfast.ports import Acting, Ports
from holdfast.records.compaction import Recalled
from holdfast.records.events.envelope import Draft
from holdfast.records.scope import Address, Scope

MORE = 4
"""Entries searched per entry wanted: other entries of the scope may match as well."""
NEAR = 64
"""The number of messages from the end that are searched for the user's last message."""
MOST_QUERY = 2_000
"""The most characters of that message used as a query."""


def flushed(ports: Ports, acting: Acting, scope: str, id: str, told: Sequence[Passage]) -> list[Draft]:
    """Return the events that write the passages of compaction `id` to the state of a scope."""
    store = storage(ports, acting)
    options = check_options(Options(content_kind="episodic"), Scope.of(scope))
    drafts = []
    for number, passage in enumerate(told):
        key = entry_key(id, number)
        drafts.append(written_draft(scope, key, made(store, key, entry_value(passage, id), options, None)))
    return drafts


def memories(ports: Ports, acting: Acting, scopes: Sequence[Address], query: str, limit: int = 5) -> list[Recalled]:
    """Search compacted passages in some scopes by a query; best first, each once."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise InvalidValue(f"limit must be a number of entries, 0 or more, not {limit!r}.")
    found: dict[str, Recalled] = {}
    for scope in dict.fromkeys(Scope.of(one).text for one in scopes) if limit and query.strip() else ():
        for result in search.search(storage(ports, acting), scope, query, min(limit * MORE, MOST_RESULTS)):
            one = recalled(ports, acting, scope, result.key, result.score) if result.key.startswith(PREFIX) else None
            if one is not None and one.text not in {known.text for known in found.values()}:
                found.setdefault(one.id, one)  # A passage compacted twice, in two threads, is returned once.
    return sorted(found.values(), key=lambda one: (-one.score, one.scope, one.key))[:limit]


def recalled(ports: Ports, acting: Acting, scope: str, key: str, score: float = 0.0) -> Recalled | None:
    """Load one passage as it is now; None if it is gone, erased or cannot be shown."""
    stored = ports.journal.entry(acting.tenant, scope, key)
    if stored is None or stored.content is None:
        return None
    event = decode_event(stored)
    passage = remembered(event.content.value, event.trust)
    if passage is None:
        return None
    return Recalled(
        id=event.id,
        scope=scope,
        key=key,
        version=event.version,
        text=passage.text,
        trust=passage.trust,
        score=score,
    )


def query_of(ports: Ports, acting: Acting, stream: str) -> str:
    """Return the default query: the last user message of a thread."""
    for place in islice(places(ports, acting, stream), NEAR):
        if place.row["role"] == "user":
            return bodies(ports, acting, [place])[0].text[:MOST_QUERY]
    return ""

"""Flush and recall: compacted passages are written to the state in the same commit, and later packs search them.

If they cannot be written, nothing is compacted. A recalled passage has the trust of its source.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from holdfast.core.compaction.summary import PASSAGE_PREFIX, CompactedPassage, passage_key, read_passage
from holdfast.core.entries import EntryOptions, check_options
from holdfast.core.journal.codec import decode_event
from holdfast.core.numbers import is_number
from holdfast.errors import InvalidValue, Refused, Unavailable
from holdfast.flow.compaction.mirror import searched_storage
from holdfast.flow.sessions.read import iter_places, load_messages
from holdfast.flow.state import search
from holdfast.flow.state.journal_store import journal_storage, write_draft
from holdfast.flow.state.search import MAX_RESULTS
from holdfast.flow.state.write import build_entry
from holdfast.ports import Env
from holdfast.ports.capabilities import STATE, require
from holdfast.records.compaction import RecalledEntry
from holdfast.records.entries import SearchResult
from holdfast.records.events.envelope import Draft
from holdfast.records.scope import Address, Scope

CANDIDATE_FACTOR = 4
"""Entries searched per entry wanted: other entries of the scope may match as well."""
MAX_QUERY_SEARCH = 64
"""The number of messages from the end that are searched for the user's last message."""
MAX_QUERY_CHARS = 2_000
"""The most characters of that message used as a query."""


def flush_passages(env: Env, scope: str, id: str, told: Sequence[CompactedPassage]) -> list[Draft]:
    """Return the events that write the passages of compaction `id` to the state of a scope."""
    store = journal_storage(env)
    options = check_options(EntryOptions(content_kind="episodic"), Scope.of(scope))
    drafts = []
    for number, passage in enumerate(told):
        key, value = passage_key(id, number), {"text": passage.text, "trust": passage.trust, "of": id}
        drafts.append(write_draft(scope, key, build_entry(store, key, value, options, None)))
    return drafts


def search_memories(env: Env, scopes: Sequence[Address], query: str, limit: int = 5) -> list[RecalledEntry]:
    """Search compacted passages in some scopes by a query; best first, each once."""
    if not is_number(limit, least=0):
        raise InvalidValue(f"limit must be a number of entries, 0 or more, not {limit!r}.")
    found: dict[str, RecalledEntry] = {}
    for scope in dict.fromkeys(Scope.of(one).text for one in scopes) if limit and query.strip() else ():
        for result in _search_passages(env, scope, query, min(limit * CANDIDATE_FACTOR, MAX_RESULTS)):
            one = _load_memory(env, scope, result.key, result.score) if result.key.startswith(PASSAGE_PREFIX) else None
            if one is not None and one.text not in {known.text for known in found.values()}:
                found.setdefault(one.id, one)  # A passage compacted twice, in two threads, is returned once.
    return sorted(found.values(), key=lambda one: (-one.score, one.scope, one.key))[:limit]


def _search_passages(env: Env, scope: str, query: str, limit: int) -> list[SearchResult]:
    """Search a scope in the store that mirrors it; in the journal if there is none, or if it cannot be searched now."""
    try:
        return search.search_scope(searched_storage(env, scope), scope, query, limit)
    except (Refused, Unavailable):
        return search.search_scope(journal_storage(env), scope, query, limit)


def _load_memory(env: Env, scope: str, key: str, score: float) -> RecalledEntry | None:
    """Load one passage as it is now; None if it is gone, erased or cannot be shown."""
    stored = require(env.journal, STATE).entry(env.tenant, scope, key)
    if stored is None or stored.content is None:
        return None
    event = decode_event(stored)
    passage = read_passage(event.content.value, event.trust)
    if passage is None:
        return None
    return RecalledEntry(
        id=event.id, scope=scope, key=key, version=event.version, text=passage.text, trust=passage.trust, score=score
    )


def default_query(env: Env, stream: str) -> str:
    """Return the default query: the last user message of a thread."""
    for place in islice(iter_places(env, stream), MAX_QUERY_SEARCH):
        if place.row["role"] == "user":
            return load_messages(env, [place])[0].text[:MAX_QUERY_CHARS]
    return ""

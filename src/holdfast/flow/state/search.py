"""Search entries and messages by words and by meaning, and follow the edges between entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core import entries as rules
from holdfast.core.journal.codec import decode, decode_event, decode_facts, encode
from holdfast.core.numbers import check_number
from holdfast.core.packs.event_text import message_text
from holdfast.core.search.documents import (
    INDEXED_CHARS,
    MESSAGE_APPENDED,
    STATE_WRITTEN,
    Hit,
    TextSearch,
    is_match,
    read_nothing,
)
from holdfast.core.search.rank import SearchCandidate, rank_candidates
from holdfast.core.search.words import (
    content_text,
    find_named,
    flatten_value,
    full_message_text,
    make_snippet,
    query_terms,
)
from holdfast.core.sessions.message_events import text_artifacts
from holdfast.core.values import to_plain
from holdfast.errors import InvalidValue, TooLarge, Unavailable
from holdfast.flow.sessions.read import decode_messages, session_stream, thread_segments, thread_state
from holdfast.flow.state.store import Storage, check_writable, require_capability
from holdfast.flow.state.vectors import find_similar
from holdfast.ports import Embedder, Env
from holdfast.ports.capabilities import TEXT, require
from holdfast.records.batches import RowQuery
from holdfast.records.entries import Edge, EntryMatch, EntrySearchQuery, SearchResult, TraversalResult
from holdfast.records.events.envelope import Event, StoredEvent
from holdfast.records.events.sessions import MessageContent
from holdfast.records.ids import check_id
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Address, Scope

MAX_REACHED = 100_000
STORE_CANDIDATES = 100
"""The matches by words and by meaning that are ranked together. Measurements show that more change almost nothing."""
WORD_CANDIDATES: Final = 400
MEANING_CANDIDATES: Final = 100
NEIGHBOUR_HITS: Final = 20
"""The number of hits whose neighbours are considered too: the next message is often the answer."""
NEIGHBOUR_STEPS: Final = 2
LENGTH_SAMPLE: Final = 200
CHARACTERS_PER_TOKEN: Final = 4
MAX_RESULTS: Final = 1_000
MAX_QUERY_CHARS: Final = 10_000
EventFilter = Callable[[StoredEvent], bool]
"""A predicate that is True for messages that take part in the search."""


def search_scope(
    storage: Storage, scope: Address, query: str, limit: int, tier: str | None = None
) -> list[SearchResult]:
    """Search the entries of one scope, all or of one tier, best first. A store that cannot search finds nothing."""
    place, query = Scope.of(scope).text, check_query(query)
    words = query_terms(query)
    check_number("limit", limit, least=1, most=MAX_RESULTS)
    if tier is not None:
        rules.check_choice("tier", tier)
    if not words or not storage.store.capabilities & {"text", "vectors"}:
        return []
    now = storage.clock.now_ms()
    over = {key for key, _ in storage.transients.live_entries(storage.place(place), now)}
    embedder = storage.embedder if "vectors" in storage.store.capabilities else None
    vector = _embed_query(embedder, query)
    name = None if embedder is None or vector is None else embedder.name
    most = max(STORE_CANDIDATES, 2 * limit)
    wanted = EntrySearchQuery(now=now, terms=words, vector=vector, embedder=name, limit=most)
    while True:
        matches = storage.store.search(place, wanted)
        # Drop entries hidden by a transient one: a reader would get another value.
        kept = [one for one in matches if one.key not in over and tier in (None, one.entry.tier)]
        if tier is None or len(kept) >= limit or len(matches) < wanted.limit:
            return rank_matches(place, kept, words, limit)
        # Stores do not know tiers, and entries of others filled the answer: ask for more.
        wanted = replace(wanted, limit=4 * len(matches))


def _embed_query(embedder: Embedder | None, query: str) -> bytes | None:
    """Embed a query. If the embedder fails, return None, which leaves the search by words."""
    try:
        return None if embedder is None else embedder.embed([query], query=True)[0]
    except (Unavailable, InvalidValue):
        return None


def rank_matches(scope: str, matches: list[EntryMatch], words: tuple[str, ...], limit: int) -> list[SearchResult]:
    """Rank matches and return results, best first; of equals, the newest first."""
    matches = sorted(matches, key=lambda match: match.key)
    candidates = [
        SearchCandidate(
            id=number, text=one.text, cosine=one.cosine, salience=one.entry.salience, newest=one.entry.written_at
        )
        for number, one in enumerate(matches)
    ]
    best = rank_candidates(candidates, mean_length=0.0, limit=limit)
    found = [(matches[number], score, decode(matches[number].entry.value)) for number, score in best]
    return [_entry_result(scope, one.key, value, one.entry.written_at, score, words) for one, score, value in found]


def _entry_result(scope: str, key: str, value: Any, at: int, score: float, words: tuple[str, ...]) -> SearchResult:
    snippet = make_snippet(flatten_value(value, INDEXED_CHARS), words)
    return SearchResult(score=score, snippet=snippet, scope=scope, key=key, value=value, at=at)


def make_edge(
    scope: Address,
    source: str,
    kind: str,
    target: str,
    *,
    target_scope: Address | None = None,
    weight: float | None = None,
    data: Any = None,
) -> Edge:
    """Check the arguments and return an edge as it is stored."""
    place = Scope.of(scope).text
    value = to_plain(data)
    encode(value)
    return Edge(
        scope=place,
        source=rules.check_entry_key(source),
        kind=check_id(kind, "kind"),
        target_scope=place if target_scope is None else Scope.of(target_scope).text,
        target=rules.check_entry_key(target),
        weight=None if weight is None else check_number("weight", weight, whole=False),
        data=value,
    )


def link_keys(storage: Storage, edge: Edge) -> None:
    """Connect two keys, which need not have values. Linking again replaces the edge's weight and data."""
    require_capability(storage, "graph", "a graph")
    check_writable(storage, edge.source, edge.target)
    size = len(encode(edge.data, storage.settings.nesting))
    if size > storage.settings.event_bytes:
        raise TooLarge(
            f"The data of an edge has {size:,} bytes; {storage.settings.event_bytes:,} are allowed. "
            "Keep it in an entry, or raise HOLDFAST_EVENT_BYTES."
        )
    storage.store.link(edge)


def unlink_keys(storage: Storage, edge: Edge) -> bool:
    """Remove an edge; return True if it was there."""
    require_capability(storage, "graph", "a graph")
    check_writable(storage, edge.source, edge.target)
    return storage.store.unlink(edge)


def list_edges(
    storage: Storage, scope: Address, key: str, kinds: Any, direction: str, limit: int | None = None
) -> list[Edge]:
    """List the edges at a key, up to `limit`."""
    require_capability(storage, "graph", "a graph")
    node = (Scope.of(scope).text, rules.check_entry_key(key))
    way, wanted = rules.check_choice("direction", direction), rules.check_kinds(kinds)
    most = None if limit is None else check_number("limit", limit, least=1, most=MAX_REACHED)
    steps = rules.load_edges(storage.store.edges, [node], way, wanted, most)
    # An edge from a key to itself is found from both ends.
    found = {rules.edge_name(edge): edge for _, _, edge in steps}
    return list(found.values())[:most]


def traverse_edges(
    storage: Storage, scope: Address, key: str, depth: int, kinds: Any, direction: str, limit: int | None
) -> list[TraversalResult]:
    """Return every key within `depth` edges of a key, nearest first."""
    require_capability(storage, "graph", "a graph")
    node = (Scope.of(scope).text, rules.check_entry_key(key))
    return rules.traverse(
        storage.store.edges,
        node,
        check_number("depth", depth, least=1, most=rules.MAX_DEPTH),
        rules.check_choice("direction", direction),
        rules.check_kinds(kinds),
        MAX_REACHED if limit is None else check_number("limit", limit, least=1, most=MAX_REACHED),
    )


def check_query(query: object) -> str:
    """Check a query and return it, cut to a bounded length and made valid UTF-8."""
    if not isinstance(query, str):
        raise InvalidValue(f"query must be text, not {type(query).__name__}.")
    return query[:MAX_QUERY_CHARS].encode("utf-8", "replace").decode()


def search_journal(
    env: Env, stream: str | None, query: str, limit: int, *, counts: EventFilter = lambda event: True
) -> list[SearchResult]:
    """Search the messages of one thread, shared ones included, best first. `counts` filters the messages.

    Without a thread, search messages and entries of the whole tenant by their words.
    """
    query = check_query(query)
    check_number("limit", limit, least=1, most=MAX_RESULTS)
    threads = () if stream is None else tuple(thread_segments(stream, thread_state(env, stream)))
    words = query_terms(query)
    if not words:
        return []
    search = TextSearch(terms=words, now=env.clock.now_ms(), threads=threads, limit=WORD_CANDIDATES)
    matches = _drop_overlaid(env, search, require(env.journal, TEXT).search(env.tenant, search))
    hits = {hit.event.seq: hit for hit in matches if counts(hit.event)}
    near: dict[int, tuple[Hit, float]] = {}
    vector = None if search.everywhere else _embed_query(env.embedder, query)
    if vector is not None and env.embedder is not None:
        near = find_similar(env, replace(search, limit=MEANING_CANDIDATES), vector, env.embedder, hits)
    for seq, (hit, _) in near.items():
        if seq not in hits and counts(hit.event):
            hits[seq] = hit
    for hit in _find_neighbours(env, search, [hit.event for hit in hits.values()]):
        if counts(hit.event):
            hits.setdefault(hit.event.seq, hit)
    candidates = [_make_candidate(hit, near[seq][1] if seq in near else 0.0) for seq, hit in hits.items()]
    best = rank_candidates(
        candidates,
        mean_length=_mean_length(env, search, [hit.event for hit in hits.values()]),
        speakers_named=find_named(query, {one.speaker for one in candidates if one.speaker is not None}),
        limit=limit,
    )
    return [_make_result(env, decode_event(hits[seq].event), score, words) for seq, score in best]


def _drop_overlaid(env: Env, search: TextSearch, hits: Sequence[Hit]) -> list[Hit]:
    """Drop entries hidden by a transient one: a reader would get another value."""
    streams = {hit.event.stream for hit in hits if hit.event.type == STATE_WRITTEN}
    lists = {stream: env.transients.live_entries((env.tenant, stream), search.now) for stream in streams}
    over = {(stream, key) for stream, entries in lists.items() for key, _ in entries}
    return [
        hit
        for hit in hits
        if not over
        or hit.event.type != STATE_WRITTEN
        or (hit.event.stream, decode_facts(hit.event.type, hit.event.schema, hit.event.facts).key) not in over
    ]


def _find_neighbours(env: Env, search: TextSearch, found: Sequence[StoredEvent]) -> list[Hit]:
    """Find messages around the best hits, within the searched places."""
    known = {event.seq for event in found}
    with env.journal.snapshot():
        near = {
            beside.seq
            for event in [event for event in found if event.type == MESSAGE_APPENDED][:NEIGHBOUR_HITS]
            for beside in _adjacent_messages(env, event)
            if beside.seq not in known
        }
        hits = env.journal.hits(env.tenant, sorted(near))
    return [hit for hit in hits if is_match(search, hit)]


def _adjacent_messages(env: Env, event: StoredEvent) -> list[StoredEvent]:
    """Return the messages just before and after one; in most threads nothing else is between them."""
    query = EventQuery(
        tenant=event.tenant,
        stream=event.stream,
        after=event.version - NEIGHBOUR_STEPS - 1,
        until=event.version + NEIGHBOUR_STEPS,
        types=(MESSAGE_APPENDED,),
        limit=2 * NEIGHBOUR_STEPS + 1,
    )
    found = env.journal.read(query)
    if len(found) == query.limit:
        return found
    before = replace(query, after=0, until=event.version - 1, limit=NEIGHBOUR_STEPS, backwards=True)
    behind = replace(query, after=event.version, until=None, limit=NEIGHBOUR_STEPS)
    return [*env.journal.read(before), *env.journal.read(behind)]


def _make_candidate(hit: Hit, cosine: float) -> SearchCandidate:
    event, text = hit.event, hit.score
    assert event.content is not None, "what has lost its content is not given out"
    facts = decode_facts(event.type, event.schema, event.facts)
    if event.type == STATE_WRITTEN:
        return SearchCandidate(id=event.seq, text=text, cosine=cosine, salience=facts.salience, newest=event.seq)
    content = decode(event.content, MessageContent)
    return SearchCandidate(
        id=event.seq,
        text=text,
        cosine=cosine,
        thread=event.stream,
        position=facts.position,
        session=session_stream(event.stream),
        speaker=content.name,
        is_question=not text_artifacts(content) and content_text(content, read_nothing).rstrip().endswith("?"),
        newest=event.seq,
    )


def _mean_length(env: Env, search: TextSearch, events: Sequence[StoredEvent]) -> float:
    """Return the mean length of messages in the searched thread, sampled from the newest."""
    lengths: list[float] = []
    for one in search.threads[:1]:
        query = RowQuery(
            table="messages", stream=one.stream, after=one.after, until=one.until, limit=LENGTH_SAMPLE, backwards=True
        )
        tokens = (row["tokens"] for _, row in env.journal.select(env.tenant, query))
        lengths += [int(count) * CHARACTERS_PER_TOKEN for count in tokens if count is not None]
    if not lengths:
        contents = (event.content for event in events if event.type == MESSAGE_APPENDED and event.content is not None)
        lengths = [len(content_text(decode(content, MessageContent), read_nothing)) for content in contents]
    return sum(lengths) / len(lengths) if lengths else 0.0


def _make_result(env: Env, event: Event, score: float, words: tuple[str, ...]) -> SearchResult:
    if event.type == STATE_WRITTEN:
        return _entry_result(event.stream, event.facts.key, event.content.value, event.at, score, words)
    (message,) = decode_messages(env, [event])
    return SearchResult(
        score=score,
        snippet=make_snippet(full_message_text(message).strip() or message_text(message), words),
        scope=event.stream,
        key=event.id,
        value=message,
        kind="message",
        at=event.at,
    )

"""Settings: every limit in one place, the same on every door."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and sizes. `holdfast.open(settings=…)` or the environment set them."""

    event_bytes: int = 1_000_000
    """Facts and content of one event. `HOLDFAST_EVENT_BYTES`"""

    artifact_bytes: int = 64_000_000
    """One artifact. `HOLDFAST_ARTIFACT_BYTES`"""

    inline_artifact_bytes: int = 256_000
    """Artifacts up to this size lie in the database, larger ones in files. `HOLDFAST_INLINE_ARTIFACT_BYTES`"""

    message_bytes: int = 16_000_000
    """One message with everything in it but its files. `HOLDFAST_MESSAGE_BYTES`"""

    inline_text_bytes: int = 200_000
    """Texts and results of messages up to this size lie in the event, larger ones in artifacts.
    `HOLDFAST_INLINE_TEXT_BYTES`"""

    handover_attempts: int = 10
    """How often an ended conversation is offered to memory before it is given up. `HOLDFAST_HANDOVER_ATTEMPTS`"""

    index_text: int = 1
    """Whether messages and entries can be found by their words; 0 appends without indexing. `HOLDFAST_INDEX_TEXT`"""

    transient_entries: int = 10_000
    """Transient entries that one client keeps for a tenant, at most. `HOLDFAST_TRANSIENT_ENTRIES`"""

    cached_vectors: int = 400_000
    """Vectors kept in memory for searching; 0 reads them anew for each search. `HOLDFAST_CACHED_VECTORS`"""

    effect_attempts: int = 10
    """How often a sink is tried before an effect is dead. `HOLDFAST_EFFECT_ATTEMPTS`"""

    nesting: int = 64
    """Levels of lists and objects inside one another. `HOLDFAST_NESTING`"""

    cached_streams: int = 1_000
    """Stream states kept in memory; 0 turns the cache off. `HOLDFAST_CACHED_STREAMS`"""

    busy_ms: int = 30_000
    """How long to wait for another process's write lock. `HOLDFAST_BUSY_MS`"""

    lease_ms: int = 10_000
    """How long an owner may give no sign of life before others take over. `HOLDFAST_LEASE_MS`"""

    default_context_tokens: int = 4_000
    """Context limit of a frame that is pushed without limits. `HOLDFAST_DEFAULT_CONTEXT_TOKENS`"""

    min_pack_tokens: int = 500
    """The smallest budget that `hf.index.assemble_context_pack` takes. `HOLDFAST_MIN_PACK_TOKENS`"""

    breadcrumb_tokens: int = 50
    """Tokens of one breadcrumb, at most. `HOLDFAST_BREADCRUMB_TOKENS`"""

    conversation_percent: int = 60
    """Share of a pack for the conversation; the rest is for evidence, and what one does not use goes to the other.
    `HOLDFAST_CONVERSATION_PERCENT`"""

    included_percent: int = 75
    """Share that evidence which is asked for by name may take, at most. `HOLDFAST_INCLUDED_PERCENT`"""

    memory_percent: int = 15
    """Share that memories may take, at most. `HOLDFAST_MEMORY_PERCENT`"""

    abbreviate_chars: int = 8_000
    """Texts longer than this are abbreviated from level light on. `HOLDFAST_ABBREVIATE_CHARS`"""

    cached_windows: int = 256
    """Ends of conversations kept in memory for the next pack; 0 reads them anew. `HOLDFAST_CACHED_WINDOWS`"""

    group_members: int = 64
    """Callers that share one commit, at most. `HOLDFAST_GROUP_MEMBERS`"""

    group_bytes: int = 1_000_000
    """Bytes that share one commit, at most. `HOLDFAST_GROUP_BYTES`"""

"""Settings: every limit in one place, the same for every entry point."""

from __future__ import annotations

import msgspec


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Limits and sizes, set by `holdfast.open(settings=…)` or by environment variables."""

    event_bytes: int = 1_000_000
    """Maximum size of one event's facts and content. `HOLDFAST_EVENT_BYTES`"""

    artifact_bytes: int = 64_000_000
    """Maximum size of one artifact. `HOLDFAST_ARTIFACT_BYTES`"""

    inline_artifact_bytes: int = 256_000
    """Artifacts up to this size are stored in the database, larger ones in files. `HOLDFAST_INLINE_ARTIFACT_BYTES`"""

    message_bytes: int = 16_000_000
    """Maximum size of one message, files excluded. `HOLDFAST_MESSAGE_BYTES`"""

    inline_text_bytes: int = 200_000
    """Message texts and results up to this size are stored in the event, larger ones as artifacts.
    `HOLDFAST_INLINE_TEXT_BYTES`"""

    handover_attempts: int = 10
    """Attempts to hand an ended conversation to memory before giving up. `HOLDFAST_HANDOVER_ATTEMPTS`"""

    index_text: int = 1
    """1 indexes the words of messages and entries for search; 0 neither indexes nor finds them.
    `HOLDFAST_INDEX_TEXT`"""

    transient_entries: int = 10_000
    """Maximum number of transient entries that one client keeps per tenant. `HOLDFAST_TRANSIENT_ENTRIES`"""

    cached_vectors: int = 400_000
    """Vectors cached in memory for search; 0 reads them from storage for each search. `HOLDFAST_CACHED_VECTORS`"""

    effect_attempts: int = 10
    """Attempts to deliver an effect to its sink before the effect is dead. `HOLDFAST_EFFECT_ATTEMPTS`"""

    nesting: int = 64
    """Maximum nesting depth of lists and objects. `HOLDFAST_NESTING`"""

    cached_streams: int = 4_000
    """Stream states cached in memory; 0 turns the cache off. `HOLDFAST_CACHED_STREAMS`"""

    busy_ms: int = 30_000
    """Time to wait for another process's write lock. `HOLDFAST_BUSY_MS`"""

    lease_ms: int = 10_000
    """Time without a sign of life from this process before another may take over. `HOLDFAST_LEASE_MS`"""

    default_context_tokens: int = 4_000
    """Context limit of a frame pushed without limits. `HOLDFAST_DEFAULT_CONTEXT_TOKENS`"""

    min_pack_tokens: int = 500
    """The smallest budget that `hf.index.assemble_context_pack` accepts. `HOLDFAST_MIN_PACK_TOKENS`"""

    breadcrumb_tokens: int = 50
    """Maximum tokens of one breadcrumb. `HOLDFAST_BREADCRUMB_TOKENS`"""

    conversation_percent: int = 60
    """Share of a pack for the conversation; the rest is for evidence, and either may use what the other leaves.
    `HOLDFAST_CONVERSATION_PERCENT`"""

    included_percent: int = 75
    """Maximum share of a pack for evidence included by name. `HOLDFAST_INCLUDED_PERCENT`"""

    memory_percent: int = 15
    """Maximum share of a pack for memories. `HOLDFAST_MEMORY_PERCENT`"""

    abbreviate_chars: int = 8_000
    """Texts longer than this are abbreviated at level light and above. `HOLDFAST_ABBREVIATE_CHARS`"""

    cached_windows: int = 256
    """Conversation tails cached in memory for packs; 0 reads them from the journal. `HOLDFAST_CACHED_WINDOWS`"""

    group_members: int = 64
    """Maximum number of callers that share one commit. `HOLDFAST_GROUP_MEMBERS`"""

    group_bytes: int = 1_000_000
    """Maximum number of bytes that share one commit. `HOLDFAST_GROUP_BYTES`"""

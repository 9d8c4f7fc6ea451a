"""Context packs: the content shown to a model in one call, the origin of each piece, and its cost in tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar, Final, Literal

import msgspec

from holdfast.records.events.envelope import Draft
from holdfast.records.messages import Message, ToolDef
from holdfast.records.sessions import Summary

SegmentKind = Literal["brief", "breadcrumb", "summary", "conversation", "memory", "evidence"]
Layout = Literal["stable", "classic"]
DecisionOutcome = Literal["included", "shortened", "summarised", "omitted"]

SEGMENT_KINDS: Final[tuple[SegmentKind, ...]] = ("brief", "breadcrumb", "summary", "conversation", "memory", "evidence")
LAYOUTS: Final[tuple[Layout, ...]] = ("stable", "classic")
MAIN_ROLE: Final = "main"


class CompactionLevel(StrEnum):
    """The degree to which a pack was compacted. Each level includes the measures of those before it."""

    NONE = "none"
    LIGHT = "light"
    MODERATE = "moderate"
    AGGRESSIVE = "aggressive"
    CRITICAL_ONLY = "critical"


LEVELS: Final[tuple[CompactionLevel, ...]] = tuple(CompactionLevel)


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of a piece of a pack, exact enough to read it again; never its text.

    An event of a stream by its version, or several messages from `first` to `last`; an artifact by its name. `part`
    names a part of a brief, or a marker for omitted messages. `cut` describes how the piece was shortened.
    """

    kind: SegmentKind
    stream: str | None = None
    first: int | None = None
    last: int | None = None
    part: str | None = None
    handle: str | None = None
    handle_stream: str | None = None
    handle_version: int | None = None
    artifact: str | None = None
    entry: str | None = None
    cut: str | None = None


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One piece of a pack, as shown. A conversation has one segment per round."""

    kind: SegmentKind
    id: str
    """The id that `expand` accepts: m57, s12, a handle's id."""
    priority: str
    trust: str
    """The lowest trust of its sources."""
    estimated_tokens: int
    messages: tuple[Message, ...]
    origins: tuple[Origin, ...] = ()
    shortened: int = 0
    """Number of characters left out."""

    @property
    def tokens(self) -> int:
        """The segment's share of the budget: `estimated_tokens`, under the name that other records use."""
        return self.estimated_tokens

    @property
    def text(self) -> str:
        """The texts of its messages."""
        return "\n".join(message.text for message in self.messages)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome for one candidate of a pack, with the reason."""

    id: str
    kind: SegmentKind
    outcome: DecisionOutcome
    reason: str
    priority: str = "medium"
    tokens: int | None = None
    """Tokens of the whole candidate, if known."""
    shown: int = 0
    """Tokens of the candidate as shown."""
    trust: str | None = None
    count: int = 1
    """Number of messages it stands for."""


class BriefContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The head of every pack: system prompt, invariants, working context and tools."""

    system_prompt: str | None = None
    invariants: tuple[str, ...] = ()
    working_context: Any = None
    available_tools: tuple[ToolDef, ...] = ()


class FrameBreadcrumb(msgspec.Struct, frozen=True, kw_only=True):
    """One frame of the ancestry, root first."""

    frame_id: str
    depth: int
    goal: str
    status: str


class RetrievedEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence as shown, without its fence: the content its handle points to."""

    handle_id: str
    type: str
    content: str
    tokens: int
    priority: str
    truncated: bool
    source: str | None
    trust: str


class ConversationSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a conversation that is shown, oldest first, and the number of messages that are not."""

    messages: tuple[Message, ...]
    message_count: int
    truncated_count: int
    estimated_tokens: int


class TokenBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a pack by kind of segment."""

    brief: int = 0
    breadcrumbs: int = 0
    summaries: int = 0
    conversation: int = 0
    memory: int = 0
    evidence: int = 0
    overhead: int = 0
    """Tokens that a provider adds to a request."""


class TokenSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A pack's token budget, its use, and the breakdown of that use."""

    budget: int
    used: int
    remaining: int
    breakdown: TokenBreakdown
    compaction_level: CompactionLevel


class WindowKey(msgspec.Struct, frozen=True, kw_only=True):
    """The key of a window. Packs with the same key keep the window's start as long as the messages after it fit."""

    role: str
    layout: str
    tokenizer: str
    budget: int


class ContextPackMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """The identity of a pack, its purpose, and its omissions."""

    pack_id: str | None
    """Its id in the journal; None until it is journaled."""
    frame_id: str | None
    scope: str
    """The thread that it shows, or the frame's own scope."""
    role: str
    created_at: int
    log_seq: int
    """The journal's cursor when it was assembled."""
    level: CompactionLevel
    layout: Layout
    omitted: tuple[str, ...] = ()
    missing_handles: tuple[str, ...] = ()
    """Handles included by name that do not exist."""
    refused_exclusions: tuple[str, ...] = ()
    """Critical evidence that was kept although it was excluded."""
    failed: dict[str, str] = {}
    """Evidence that could not be read, with the reason."""
    erased: tuple[str, ...] = ()
    """Pieces whose content was erased after the pack was journaled."""
    reconstructed: bool = False
    """True if it was assembled from the journal as of another time rather than journaled itself."""


class AssembledPack(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The complete content of one request, within its budget."""

    system: str | None
    tools: tuple[ToolDef, ...]
    segments: tuple[Segment, ...]
    """Segments in display order. The brief's comes first; its system prompt and tools are separate fields."""
    summaries: tuple[Summary, ...]
    conversation: ConversationSlice
    brief: BriefContext
    breadcrumbs: tuple[FrameBreadcrumb, ...]
    evidence: tuple[RetrievedEvidence, ...]
    token_summary: TokenSummary
    metadata: ContextPackMetadata
    decisions: tuple[Decision, ...]
    model: str | None
    tokenizer: str
    exact: bool
    """True if tokens were counted by the model's own tokenizer, False for an upper estimate."""
    window: WindowKey
    window_start: tuple[str, int] | None = None
    """The stream and version of the oldest message in the window."""
    shortened: int = 0
    """Number of messages that had to be shortened."""
    limited_by: str | None = None
    """The limit that reduced the requested budget: context_tokens or available."""
    cached_tokens: int = 0
    """Tokens of the prefix shared with the last journaled pack."""
    pins: tuple[tuple[str, bytes], ...] = ()
    """External texts, each with the name of the artifact that stores it once the pack is journaled."""
    fresh: dict[str, tuple[tuple[int, int], ...]] = {}
    """Messages first counted for this pack, by stream: (version, tokens) pairs."""
    made: Draft | None = None
    """The summary that was made for this pack, journaled together with it."""
    follows: dict[tuple[str, int], tuple[str, int]] = {}
    """The successor of each message in the thread, where nothing lies between them; ask it with `get`."""
    kept_as: str = ""
    """The tokenizer name under which those counts are stored."""
    stable: int = 0
    """Number of leading segments before the content fetched for this call only."""

    hints: ClassVar[Any] = None
    """Hints for the next pack of the conversation, if any. No field: they are not content of the pack."""


class PackDiff(msgspec.Struct, frozen=True, kw_only=True):
    """The differences between two packs, by segment id."""

    added: tuple[Segment, ...]
    removed: tuple[Segment, ...]
    changed: tuple[tuple[Segment, Segment], ...]
    same: int
    common_tokens: int
    """Tokens of the common prefix."""
    level: tuple[str, str]
    tokens: tuple[int, int]


class Appearance(msgspec.Struct, frozen=True, kw_only=True):
    """The treatment of a fact in one journaled pack."""

    call: str
    pack: str
    at: int
    role: str
    state: str
    """shown, shortened (the fact itself was cut), summarised, recalled or absent."""
    seen: bool
    """True if a model could read it there: verbatim, in evidence or a memory, or repeated by a summary."""
    by: str | None = None
    """The segment that showed it or stood for it: m57, s12, a handle."""
    reason: str | None = None
    """The reason in one word, as in decisions."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The path of a fact through the packs of a conversation."""

    text: str
    found: tuple[str, ...]
    """The places where it was stated: m57, s12, a handle, an entry."""
    said_at: int | None
    appearances: tuple[Appearance, ...]
    now: str
    """Its treatment in a pack assembled now: shown, shortened, summarised, recalled or absent."""
    left: Appearance | None
    """Its last disappearance: the first pack without it after one that showed it, in the role of the newest pack."""
    covered_by: str | None
    """The summary that covers the place where it was stated."""
    fix: str
    """Advice for making the model see it."""
    note: str | None = None
    """The part of the history that was not searched, if any."""


class PackInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A journaled pack as listed."""

    call: str
    pack: str
    at: int
    role: str
    level: str
    tokens: int
    budget: int
    cached_share: float
    shown: int
    """Number of messages of the conversation that it shows."""
    left_out: int
    """Number of messages that are neither shown nor summarised."""

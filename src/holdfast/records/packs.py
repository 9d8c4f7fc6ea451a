"""Context packs: what a model is shown for one call, where each piece of it came from, and what that took."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Final, Literal

import msgspec

from holdfast.records.messages import Message, ToolDef
from holdfast.records.sessions import Summary

SegmentKind = Literal["brief", "breadcrumb", "summary", "conversation", "memory", "evidence"]
Layout = Literal["stable", "classic"]
Outcome = Literal["included", "shortened", "summarised", "omitted"]

KINDS: Final[tuple[SegmentKind, ...]] = ("brief", "breadcrumb", "summary", "conversation", "memory", "evidence")
LAYOUTS: Final[tuple[Layout, ...]] = ("stable", "classic")
MAIN_ROLE: Final = "main"


class CompactionLevel(StrEnum):
    """How hard a pack was made smaller. Each level does what those before it do, and more."""

    NONE = "none"
    LIGHT = "light"
    MODERATE = "moderate"
    AGGRESSIVE = "aggressive"
    CRITICAL_ONLY = "critical"


LEVELS: Final[tuple[CompactionLevel, ...]] = tuple(CompactionLevel)


class Origin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where a piece of a pack comes from, exactly enough to read it again: never its text.

    An event of a stream by its version, or several messages from `first` to `last`; an artifact by its name. `part`
    says which part of a brief it is, or that it marks what is not shown. `cut` says how it was made shorter.
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
    """One piece of a pack, as it is shown. A conversation has one for each round."""

    kind: SegmentKind
    id: str
    """What `expand` takes: m57, s12, a handle's id."""
    priority: str
    trust: str
    """The lowest trust of what it was made from."""
    estimated_tokens: int
    messages: tuple[Message, ...]
    origins: tuple[Origin, ...] = ()
    shortened: int = 0
    """How many characters were left out."""

    @property
    def tokens(self) -> int:
        """What it takes of the budget: `estimated_tokens`, by the name that everything else has for it."""
        return self.estimated_tokens

    @property
    def text(self) -> str:
        """What it says."""
        return "\n".join(message.text for message in self.messages)


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one candidate, and why."""

    id: str
    kind: SegmentKind
    outcome: Outcome
    reason: str
    priority: str = "medium"
    tokens: int | None = None
    """What it takes whole, if that is known."""
    shown: int = 0
    """What it takes as it is shown."""
    trust: str | None = None
    count: int = 1
    """How many messages it stands for."""


class BriefContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What comes first in every pack: instructions, what must always hold, what is being worked on, and the tools."""

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
    """Evidence as it is shown: what its handle led to."""

    handle_id: str
    type: str
    content: str
    tokens: int
    priority: str
    truncated: bool
    source: str | None
    trust: str


class ConversationSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a conversation that is shown, oldest first, and how much of it is not."""

    messages: tuple[Message, ...]
    message_count: int
    truncated_count: int
    estimated_tokens: int


class TokenBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Where the tokens of a pack went."""

    brief: int = 0
    breadcrumbs: int = 0
    summaries: int = 0
    conversation: int = 0
    memory: int = 0
    evidence: int = 0
    overhead: int = 0
    """What a provider puts around a request."""


class TokenSummary(msgspec.Struct, frozen=True, kw_only=True):
    """How much a pack may take, what it takes, and of what."""

    budget: int
    used: int
    remaining: int
    breakdown: TokenBreakdown
    compaction_level: CompactionLevel


class WindowKey(msgspec.Struct, frozen=True, kw_only=True):
    """Packs with the same key keep their window where it is, as long as what follows fits."""

    role: str
    layout: str
    tokenizer: str
    budget: int


class ContextPackMetadata(msgspec.Struct, frozen=True, kw_only=True):
    """Which pack this is, for whom, and what is not in it."""

    pack_id: str | None
    """Its name in the journal; None as long as it is not journaled."""
    frame_id: str | None
    scope: str
    """The line of conversation that it shows, or the frame's own."""
    role: str
    created_at: int
    log_seq: int
    """The journal's cursor when it was made."""
    level: CompactionLevel
    layout: Layout
    omitted: tuple[str, ...] = ()
    missing_handles: tuple[str, ...] = ()
    """Included by name, and not to be found."""
    refused_exclusions: tuple[str, ...] = ()
    """Critical evidence that stays although it was excluded."""
    failed: dict[str, str] = {}
    """Evidence that could not be read, with the reason."""
    erased: tuple[str, ...] = ()
    """Pieces whose content was erased since it was journaled."""
    reconstructed: bool = False
    """Whether it was made from the journal as it was at another time, rather than journaled itself."""


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that goes into one request, within its budget."""

    system: str | None
    tools: tuple[ToolDef, ...]
    segments: tuple[Segment, ...]
    """In the order in which they are shown. The brief's is first; its system prompt and tools are beside it."""
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
    """Whether tokens were counted by the model's own tokenizer, or by an upper estimate."""
    window: WindowKey
    window_start: tuple[str, int] | None = None
    """The stream and version of the oldest message of the window."""
    shortened: int = 0
    """How many of the messages had to be shortened."""
    limited_by: str | None = None
    """What made the budget smaller than was asked for: context_tokens, or available."""
    cached_tokens: int = 0
    """Tokens at the beginning that are the same as in the last journaled pack."""
    pins: tuple[tuple[str, bytes], ...] = ()
    """Texts from outside by the names of the artifacts that they are kept as once the pack is journaled."""
    fresh: dict[str, tuple[tuple[int, int], ...]] = {}
    """Tokens of messages that were counted for this pack first, by stream: version and tokens."""
    follows: dict[tuple[str, int], tuple[str, int]] = {}
    """Which message comes after which on the line, where nothing lies between them."""
    kept_as: str = ""
    """The name that those counts are kept under."""
    stable: int = 0
    """How many of the segments come before what was fetched for this call only."""


class PackDiff(msgspec.Struct, frozen=True, kw_only=True):
    """How two packs differ, by the ids of their segments."""

    added: tuple[Segment, ...]
    removed: tuple[Segment, ...]
    changed: tuple[tuple[Segment, Segment], ...]
    same: int
    common_tokens: int
    """Tokens at the beginning that both have."""
    level: tuple[str, str]
    tokens: tuple[int, int]


class Appearance(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a fact in one journaled pack."""

    call: str
    pack: str
    at: int
    role: str
    state: str
    """shown, shortened (and cut out of what was left), summarised, recalled or absent."""
    seen: bool
    """Whether a model could read it there: as it was said, in evidence or a memory, or repeated by a summary."""
    by: str | None = None
    """The segment that showed it, or stood for it: m57, s12, a handle."""
    reason: str | None = None
    """Why, in one word, as in decisions."""


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The way of a fact through the packs of a conversation."""

    text: str
    found: tuple[str, ...]
    """Where it was said: m57, s12, a handle, an entry."""
    said_at: int | None
    appearances: tuple[Appearance, ...]
    now: str
    """What a pack made now would do with it: shown, shortened, summarised, recalled or absent."""
    left: Appearance | None
    """Where it left last: the first pack without it after one in which it could be read, in the role of the newest."""
    covered_by: str | None
    """The summary that covers where it was said."""
    fix: str
    """What to do so that the model sees it."""
    note: str | None = None
    """What was not looked at, if anything."""


class PackInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A journaled pack as a list shows it."""

    call: str
    pack: str
    at: int
    role: str
    level: str
    tokens: int
    budget: int
    cached_share: float
    shown: int
    """How many messages of the conversation it shows."""
    left_out: int
    """How many are neither shown nor summarised."""

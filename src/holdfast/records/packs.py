"""Context packs: what a model is shown for one call, and what that took."""

from __future__ import annotations

import msgspec

from holdfast.records.lines import Summary
from holdfast.records.messages import Message, ToolDef


class ConversationSlice(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a conversation that is shown, oldest first, and how much of it is not."""

    messages: tuple[Message, ...]
    message_count: int
    truncated_count: int
    estimated_tokens: int


class Packed(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that goes into one request, within its budget."""

    system: str | None
    tools: tuple[ToolDef, ...]
    summaries: tuple[Summary, ...]
    conversation: ConversationSlice
    tokens: int
    budget: int
    model: str | None
    tokenizer: str
    exact: bool
    """Whether tokens were counted by the model's own tokenizer, or by an upper estimate."""
    shortened: int = 0
    """How many of the messages had to be shortened."""

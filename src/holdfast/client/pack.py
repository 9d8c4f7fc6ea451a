"""ContextPack: what one model call is shown, in the form of the provider that is called, and why it is that."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from holdfast.core.pack import copying
from holdfast.core.pack.diffing import difference
from holdfast.core.pack.picture import html_of
from holdfast.core.pack.pieces import said
from holdfast.core.wire import anthropic, openai, responses
from holdfast.core.wire.requests import AnthropicRequest, OpenAIRequest, ResponsesRequest
from holdfast.errors import InvalidValue
from holdfast.journal_port import Journal
from holdfast.records.lines import Summary
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import (
    BriefContext,
    CompactionLevel,
    ContextPackMetadata,
    ConversationSlice,
    Decision,
    FrameBreadcrumb,
    PackDiff,
    Packed,
    RetrievedEvidence,
    Segment,
    TokenSummary,
)


class ContextPack:
    """A request's worth of context, within its budget. Reading it changes nothing.

    Lists and mappings in what it gives are copies: changing them changes no pack and no request.
    """

    __slots__ = ("_digest", "_journal", "_load", "_name", "_packed", "_tenant")

    def __init__(
        self,
        packed: Packed,
        *,
        journal: Journal,
        tenant: str,
        load: Callable[[Message], Message],
        name: Callable[[Packed], str],
    ) -> None:
        self._packed = packed
        self._journal = journal
        self._tenant = tenant
        self._load = load
        self._name = name
        self._digest: str | None = None

    # what is shown

    @property
    def messages(self) -> list[Message]:
        """All but the system prompt, in the order shown."""
        return list(copying.messages_of(self._said()))

    @property
    def system(self) -> str | None:
        """The system prompt: what those who may instruct have said."""
        return self._packed.system

    @property
    def tools(self) -> tuple[ToolDef, ...]:
        """The tools that the model is told about."""
        return copying.tools_of(self._packed.tools)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The pieces, in the order shown, with where each came from."""
        return copying.segments_of(self._packed.segments)

    @property
    def brief_context(self) -> BriefContext:
        """System prompt, invariants, working context and tools."""
        return copying.brief_of(self._packed.brief)

    @property
    def breadcrumbs(self) -> tuple[FrameBreadcrumb, ...]:
        """The frames that the work is part of, root first."""
        return self._packed.breadcrumbs

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """The summaries that stand for what is not shown."""
        return copying.summaries_of(self._packed.summaries)

    @property
    def conversation(self) -> ConversationSlice:
        """The part of the conversation that is shown as it was said."""
        found = self._packed.conversation
        return replace(found, messages=copying.messages_of(found.messages))

    @property
    def evidence(self) -> tuple[RetrievedEvidence, ...]:
        """The evidence that is shown."""
        return self._packed.evidence

    # what it took

    @property
    def tokens(self) -> int:
        """What the request costs; never more than `budget`."""
        return self._packed.token_summary.used

    @property
    def budget(self) -> int:
        """The most it may cost."""
        return self._packed.token_summary.budget

    @property
    def token_summary(self) -> TokenSummary:
        """Budget, use, what is left, and where it went."""
        return self._packed.token_summary

    @property
    def level(self) -> CompactionLevel:
        """How hard it was made smaller."""
        return self._packed.token_summary.compaction_level

    @property
    def limited_by(self) -> str | None:
        """What made the budget smaller than was asked for: context_tokens, available, or None."""
        return self._packed.limited_by

    @property
    def cached_share(self) -> float:
        """The share of its tokens that the last journaled pack began with as well, so that a provider has them."""
        return self._packed.cached_tokens / self.tokens if self.tokens else 0.0

    @property
    def exact(self) -> bool:
        """Whether it was counted by the model's own tokenizer, or by an upper estimate."""
        return self._packed.exact

    @property
    def tokenizer(self) -> str:
        """What it was counted with."""
        return self._packed.tokenizer

    @property
    def model(self) -> str | None:
        """The model that it is for."""
        return self._packed.model

    @property
    def shortened(self) -> int:
        """How many rounds had to be shortened to fit."""
        return self._packed.shortened

    # why

    @property
    def metadata(self) -> ContextPackMetadata:
        """Which pack this is, and what is not in it."""
        found = self._packed.metadata
        return replace(found, failed=dict(found.failed))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every candidate: what became of it, and why."""
        return self._packed.decisions

    @property
    def digest(self) -> str:
        """A name for exactly what is shown: equal for equal packs of one journal."""
        if self._digest is None:
            self._digest = self._name(self._packed)
        return self._digest

    def diff(self, other: ContextPack) -> PackDiff:
        """How `other` differs from this one."""
        if not isinstance(other, ContextPack):
            raise InvalidValue(f"diff takes another pack, from pack() or pack_at(), not {type(other).__name__}.")
        return copying.difference_of(difference(self._packed, other._packed))

    # for providers

    def to_openai(self) -> OpenAIRequest:
        """Keyword arguments for `client.chat.completions.create`."""
        return openai.render(self._whole(), system=self.system, tools=self._packed.tools)

    def to_responses(self) -> ResponsesRequest:
        """Keyword arguments for `client.responses.create`."""
        return responses.render(self._whole(), system=self.system, tools=self._packed.tools)

    def to_anthropic(self, *, cache: bool = True) -> AnthropicRequest:
        """Keyword arguments for `client.messages.create`; `model` and `max_tokens` are yours.

        Marks for the prompt cache stand where the next call will still be the same; `cache=False` leaves them out.
        """
        stable = sum(len(segment.messages) for segment in self._packed.segments[: self._packed.stable])
        marked = stable if cache else None
        return anthropic.render(self._whole(), system=self.system, tools=self._packed.tools, stable=marked)

    def read_in(self) -> ContextPack:
        """The same pack with its images and files in memory and its digest made: it needs the journal no more."""
        whole = {id(message): self._load(message) for message in self._said()}
        name = self.digest
        return ContextPack(
            self._packed,
            journal=self._journal,
            tenant=self._tenant,
            load=lambda message: whole.get(id(message), message),
            name=lambda _: name,
        )

    def _whole(self) -> list[Message]:
        return [self._load(message) for message in self._said()]

    def _said(self) -> Iterator[Message]:
        return said(self._packed.segments)

    def __repr__(self) -> str:
        talk = self._packed.conversation
        sign = "" if self.exact else "about "
        shown, left = talk.message_count, talk.truncated_count
        return f"ContextPack({shown} messages, {left} left out, {sign}{self.tokens} tokens)"

    def _repr_html_(self) -> str:
        return html_of(self._packed, repr(self))

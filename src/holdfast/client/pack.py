"""ContextPack: the context of one model call, in each provider's format, with the reasons for its content.

Sessions, frames and `hf.index` make packs in one way, now or as of a past moment.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.client.options import PackOptions, refuse_unknown
from holdfast.core.packs import assemble
from holdfast.core.packs.manifest import compute_digest, count_stable, split_messages
from holdfast.core.packs.views import diff_packs, render_html
from holdfast.core.wire import anthropic, openai_chat, openai_responses
from holdfast.core.wire.anthropic import AnthropicRequest
from holdfast.core.wire.growth import ListFormat, copy_items, render_steady
from holdfast.core.wire.openai_chat import OpenAIRequest
from holdfast.core.wire.openai_responses import ResponsesRequest
from holdfast.errors import InvalidValue, NotFound
from holdfast.flow.compaction import rules
from holdfast.flow.packs import manifest as journaled
from holdfast.flow.packs import pack as pack_flow
from holdfast.flow.packs import rebuild, visibility
from holdfast.flow.packs.visibility import PackRequest, Visibility
from holdfast.flow.sessions import read as session_read
from holdfast.ports import Env
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import (
    MAIN_ROLE,
    AssembledPack,
    BriefContext,
    CompactionLevel,
    ContextPackMetadata,
    ConversationSlice,
    Decision,
    FrameBreadcrumb,
    PackDiff,
    RetrievedEvidence,
    Segment,
    TokenSummary,
)
from holdfast.records.sessions import Summary


class ContextPack:
    """The context of one request, within its budget. Reading it changes nothing.

    Lists and mappings that it returns are copies: changing them changes no pack and no request.
    """

    __slots__ = ("_digest", "_env", "_loaded", "_packed")

    def __init__(
        self, env: Env, packed: AssembledPack, digest: str | None = None, loaded: list[Message] | None = None
    ) -> None:
        """Wrap a pack for callers; the digest and the messages with their files are given if they are known."""
        self._env, self._packed, self._digest, self._loaded = env, packed, digest, loaded

    # content

    @property
    def messages(self) -> list[Message]:
        """All messages but the system prompt, in the order shown."""
        return [message for segment in self.segments for message in segment.messages]

    @property
    def system(self) -> str | None:
        """The system prompt: text from sources that may instruct."""
        return self._packed.system

    @property
    def tools(self) -> tuple[ToolDef, ...]:
        """The tools that the model is told about."""
        return assemble.copy_tools(self._packed.tools)

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The pieces in the order shown, each with its origin."""
        return assemble.copy_segments(self._packed.segments)

    @property
    def brief_context(self) -> BriefContext:
        """System prompt, invariants, working context and tools."""
        return assemble.copy_brief(self._packed.brief)

    @property
    def breadcrumbs(self) -> tuple[FrameBreadcrumb, ...]:
        """The frames that the work is part of, root first."""
        return self._packed.breadcrumbs

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """The summaries that replace messages not shown."""
        return assemble.copy_summaries(self._packed.summaries)

    @property
    def conversation(self) -> ConversationSlice:
        """The part of the conversation that is shown verbatim."""
        found = self._packed.conversation
        return replace(found, messages=assemble.copy_messages(found.messages))

    @property
    def evidence(self) -> tuple[RetrievedEvidence, ...]:
        """The evidence that is shown."""
        return self._packed.evidence

    # size

    @property
    def tokens(self) -> int:
        """The tokens of the request; never more than `budget`."""
        return self._packed.token_summary.used

    @property
    def budget(self) -> int:
        """The limit on the pack's tokens."""
        return self._packed.token_summary.budget

    @property
    def token_summary(self) -> TokenSummary:
        """Budget, use, remainder, and the breakdown of the use."""
        return self._packed.token_summary

    @property
    def level(self) -> CompactionLevel:
        """The level of compaction."""
        return self._packed.token_summary.compaction_level

    @property
    def limited_by(self) -> str | None:
        """The limit that made the budget smaller than requested: context_tokens, available, or None."""
        return self._packed.limited_by

    @property
    def cached_share(self) -> float:
        """The share of its tokens that the last journaled pack began with too, so that the provider has them cached."""
        return self._packed.cached_tokens / self.tokens if self.tokens else 0.0

    @property
    def exact(self) -> bool:
        """True if the pack was counted by the model's own tokenizer, False if by an upper estimate."""
        return self._packed.exact

    @property
    def tokenizer(self) -> str:
        """The name of the tokenizer."""
        return self._packed.tokenizer

    @property
    def model(self) -> str | None:
        """The model that the pack is for."""
        return self._packed.model

    @property
    def shortened(self) -> int:
        """The number of rounds that were shortened to fit."""
        return self._packed.shortened

    # reasons

    @property
    def metadata(self) -> ContextPackMetadata:
        """The identity of the pack, and what it left out."""
        found = self._packed.metadata
        return replace(found, failed=dict(found.failed))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Every candidate for the pack, with what was decided and why."""
        return self._packed.decisions

    @property
    def digest(self) -> str:
        """A name for the exact content: equal for equal packs of one journal."""
        if self._digest is None:
            self._digest = compute_digest(self._env.journal.secret, self._env.tenant, self._packed)
        return self._digest

    def diff(self, other: ContextPack) -> PackDiff:
        """Compare this pack with another."""
        if not isinstance(other, ContextPack):
            raise InvalidValue(f"diff takes another pack, from pack() or pack_at(), not {type(other).__name__}.")
        return diff_packs(self._packed, other._packed)

    # provider formats

    def to_openai(self) -> OpenAIRequest:
        """Return keyword arguments for `client.chat.completions.create`."""
        packed, items = self._packed, self._render_items(openai_chat.LIST_FORMAT)
        if items is None:
            return openai_chat.render_request(self._load_messages(), system=packed.system, tools=packed.tools)
        return openai_chat.build_request(items, packed.system, packed.tools)

    def to_responses(self) -> ResponsesRequest:
        """Return keyword arguments for `client.responses.create`."""
        packed, items = self._packed, self._render_items(openai_responses.LIST_FORMAT)
        if items is None:
            return openai_responses.render_request(self._load_messages(), system=packed.system, tools=packed.tools)
        return openai_responses.build_request(items, packed.system, packed.tools)

    def to_anthropic(self, *, cache: bool = True) -> AnthropicRequest:
        """Return keyword arguments for `client.messages.create`; `model` and `max_tokens` are yours.

        Prompt cache marks stand where the next call will still be the same; `cache=False` leaves them out.
        """
        packed = self._packed
        stable = count_stable(packed) if cache else None
        if packed.hints is not None:
            over = anthropic.render_over(packed.hints.rendered.get("anthropic"), split_messages(packed)[0])
            packed.hints.rendered["anthropic"] = over
            rest = None if over is None else self._load_messages(len(over.messages))
            request = over and rest and over.finish(rest, packed.system, packed.tools, stable)
            if request:
                return request
        return anthropic.render_request(self._load_messages(), system=self.system, tools=packed.tools, stable=stable)

    def _render_items(self, format: ListFormat) -> list[Any] | None:
        """Render the messages as items; those that the last request began with are known.

        None means that all must be rendered together.
        """
        hints = self._packed.hints
        if hints is None:
            return None
        steady = render_steady(format, hints.rendered.get(format.name), split_messages(self._packed)[0])
        hints.rendered[format.name] = steady
        whole = None if steady is None else steady.extend(format, self._load_messages(len(steady.messages)))
        return None if whole is None else copy_items(whole.items)

    def load_files(self) -> ContextPack:
        """Return the same pack with its files in memory and its digest computed: it needs the journal no more."""
        return ContextPack(self._env, self._packed, self.digest, self._load_messages())

    def _load_messages(self, first: int = 0) -> list[Message]:
        """Return the messages from one on, with their files in memory."""
        if self._loaded is not None:
            return self._loaded[first:]
        steady, fetched = split_messages(self._packed)
        return [
            session_read.inline_artifacts(self._env, one) if one.tool_results or one.content.__class__ is list else one
            for one in (*steady[first:], *fetched)
        ]

    def __repr__(self) -> str:
        talk = self._packed.conversation
        sign = "" if self.exact else "about "
        shown, left = talk.message_count, talk.truncated_count
        return f"ContextPack({shown} messages, {left} left out, {sign}{self.tokens} tokens)"

    def _repr_html_(self) -> str:
        return render_html(self._packed, repr(self))


STICKINESS = 0.4
"""The share of its size that a window gives up when it has to move."""


def make_pack_request(method: str, budget: int | None, options: PackOptions) -> PackRequest:
    """Make a pack request from a caller's options; refuse invalid ones."""
    refuse_unknown(options, PackOptions, method)
    include, exclude = options.get("include", ()), options.get("exclude", ())
    for name, value in (("include", include), ("exclude", exclude)):
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise InvalidValue(f"{name} must be a list of handles, each by its id.")
    level, max_messages = options.get("min_compaction", "none"), options.get("max_messages")
    if level not in tuple(CompactionLevel):
        raise InvalidValue(f"min_compaction must be one of {', '.join(CompactionLevel)}, not {level!r}.")
    stickiness = options.get("stickiness")
    if stickiness is None and max_messages is not None:
        stickiness = 0.0  # A caller who gives `max_messages` wants that number, not a window that stays put.
    return PackRequest(
        budget=budget,
        role=options.get("role", MAIN_ROLE),
        query=options.get("query"),
        include=tuple(include),
        exclude=tuple(exclude),
        force_exclude=bool(options.get("force_exclude", False)),
        min_compaction=CompactionLevel(level),
        tokenizer=options.get("tokenizer"),
        layout=options.get("layout", "stable"),  # type: ignore[arg-type]  # checked where it is used
        stickiness=STICKINESS if stickiness is None else stickiness,
        max_messages=max_messages,
        recall=options.get("recall"),
    )


def pack_thread(env: Env, thread: str, asked: PackRequest, as_of: int | None) -> ContextPack:
    """Return a pack of a session's thread."""
    return _make_pack(env, lambda then: visibility.thread_visibility(thread), asked, as_of)


def pack_frame(env: Env, frame: str, asked: PackRequest, as_of: int | None) -> ContextPack:
    """Return a pack of what a frame sees."""
    return _make_pack(env, lambda then: visibility.frame_visibility(then, frame), asked, as_of)


def _make_pack(env: Env, seen: Callable[[Env], Visibility], asked: PackRequest, as_of: int | None) -> ContextPack:
    if as_of is None:
        return ContextPack(env, pack_flow.build_pack(env, seen(env), asked))
    if env.past is None:
        raise NotFound("This journal cannot be looked at as it was. Open it with holdfast.open.")
    then = env.past(env, as_of)
    made = pack_flow.build_pack(then, seen(then), asked)
    return ContextPack(then, replace(made, metadata=replace(made.metadata, reconstructed=True)))


def pack_at(env: Env, call: str, session: str | None = None) -> ContextPack:
    """Return the pack that a call was given; of one session only, if its stream is given."""
    return ContextPack(env, rebuild.pack_at(env, call, session))


def begin_packed_call(
    env: Env,
    pack: ContextPack,
    *,
    frame: str | None,
    thread: str | None = None,
    model: str | None = None,
    if_interrupted: str = "retry",
    request: Any = None,
    key: str | None = None,
) -> str:
    """Journal a pack and that a model is about to be called with it; return the call's id."""
    if not isinstance(pack, ContextPack):
        raise InvalidValue(f"pack must be what pack() gave, not {type(pack).__name__}.")
    if pack._env.tenant != env.tenant:
        raise InvalidValue("This pack was made for another tenant. Make one with this view's own pack().")
    if pack._env.journal is not env.journal and pack._env.journal.secret != env.journal.secret:
        raise InvalidValue("This pack was made from another journal. Make one with this client's own pack().")
    made = pack._packed
    if thread is not None and made.metadata.scope != thread:
        raise InvalidValue(f"This pack shows {made.metadata.scope}, not {thread}. Make one with this session's pack().")
    rules.fire_rules(env, made.metadata.scope, packed=made)
    return journaled.begin_call(
        env, made, pack.digest, frame=frame, model=model, if_interrupted=if_interrupted, request=request, key=key
    )

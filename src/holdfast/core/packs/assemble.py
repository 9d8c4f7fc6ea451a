"""Assemble a pack from what fits: segments in the order of the layout, counts, views and reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from holdfast.core.packs.inputs import FitResult, PackSources
from holdfast.core.packs.manifest import (
    count_common_tokens,
    decide_earlier,
    decide_segment,
    list_messages,
    make_evidence,
)
from holdfast.core.packs.rounds import RoundForm, ThreadRounds
from holdfast.core.packs.segments import marker_segment
from holdfast.core.sessions.tokens import CountMessage
from holdfast.core.trust import lowest_trust
from holdfast.records.events.calls import PackedPiece
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import (
    AssembledPack,
    BriefContext,
    CompactionLevel,
    ContextPackMetadata,
    ConversationSlice,
    Decision,
    FrameBreadcrumb,
    Layout,
    Origin,
    Segment,
    TokenBreakdown,
    TokenSummary,
    WindowKey,
)
from holdfast.records.sessions import Summary


class EvidenceReport(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence that was dropped before the choice."""

    missing: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    failed: dict[str, str] = {}
    decisions: tuple[Decision, ...] = ()


class PackMaterial(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a pack besides what fits."""

    system: str | None
    tools: tuple[ToolDef, ...]
    brief: BriefContext
    brief_segment: Segment
    notes: tuple[Segment, ...]
    crumbs: tuple[FrameBreadcrumb, ...]
    standing: tuple[Summary, ...]
    messages: int
    """The number of messages of the thread."""
    follows: Mapping[tuple[str, int], tuple[str, int]]
    overhead: int
    budget: int
    layout: Layout
    model: str | None
    tokenizer: str
    exact: bool
    window: WindowKey
    limited_by: str | None
    metadata: ContextPackMetadata
    report: EvidenceReport
    count: CountMessage
    has_history_tools: bool
    pins: tuple[tuple[str, bytes], ...] = ()
    fresh: dict[str, tuple[tuple[int, int], ...]] = {}
    kept_as: str = ""
    before: Sequence[PackedPiece]
    """The pieces of the last journaled pack of the same kind."""


def assemble_pack(fit: FitResult, sources: PackSources, given: PackMaterial) -> AssembledPack:
    """Assemble the pack."""
    rounds = _round_segments(fit, sources.rounds, given)
    told = {segment.id for segment in fit.summaries}
    standing = zip(sources.summaries, given.standing, strict=True)
    summaries = tuple(summary for segment, summary in standing if segment.id in told)
    said = tuple(list_messages(rounds))
    covered = sum(summary.messages for summary in summaries)
    shown = [message for message in said if message.id and not (summaries and _is_covered(message, summaries))]
    truncated = max(given.messages - covered - len(shown), 0)
    mark = _exact_marker(fit, sources, given, truncated)
    segments, stable = _order_segments(fit, sources, given, rounds, mark)
    decisions = (*_list_decisions(fit, sources, rounds, given.standing, truncated), *given.report.decisions)
    used = sum([segment.estimated_tokens for segment in segments])
    return AssembledPack(
        system=given.system,
        tools=given.tools,
        segments=tuple(segments),
        summaries=summaries,
        conversation=ConversationSlice(
            messages=said,
            message_count=len(said),
            truncated_count=truncated,
            estimated_tokens=sum([segment.estimated_tokens for segment in rounds]),
        ),
        brief=given.brief,
        breadcrumbs=given.crumbs if fit.crumbs is sources.crumbs else given.crumbs[-1:],
        evidence=tuple(
            make_evidence(form.segment, form.item.type, form.item.source)
            for form in fit.items
            if form.item.kind == "evidence"
        ),
        token_summary=TokenSummary(
            budget=given.budget,
            used=used,
            remaining=max(given.budget - used, 0),
            breakdown=token_breakdown(segments, given.overhead),
            compaction_level=fit.level,
        ),
        metadata=_build_metadata(given, fit.level, decisions),
        decisions=decisions,
        model=given.model,
        tokenizer=given.tokenizer,
        exact=given.exact and not any(map(has_estimated_parts, said)),
        window=given.window,
        window_start=_window_start(fit, sources.rounds),
        shortened=sum(1 for segment in rounds if segment.shortened),
        limited_by=given.limited_by,
        cached_tokens=count_common_tokens(given.before, segments, given.follows),
        pins=given.pins,
        follows=dict(given.follows),
        fresh=given.fresh,
        kept_as=given.kept_as,
        stable=stable,
    )


def _build_metadata(given: PackMaterial, level: CompactionLevel, decisions: Sequence[Decision]) -> ContextPackMetadata:
    return replace(
        given.metadata,
        level=level,
        omitted=tuple(one.id for one in decisions if one.outcome == "omitted"),
        missing_handles=given.report.missing,
        refused_exclusions=given.report.refused,
        failed=given.report.failed,
    )


def _is_covered(message: Message, summaries: Sequence[Summary]) -> bool:
    """Return True if a summary also covers the message, as for pinned messages shown beside it."""
    stretches = (one for summary in summaries for one in summary.covers)
    return any(one.stream == message.stream and one.first <= message.version <= one.last for one in stretches)


def _exact_marker(fit: FitResult, sources: PackSources, given: PackMaterial, truncated: int) -> Segment | None:
    """Return the marker with its final number, which is not larger than the one it was measured with."""
    if not fit.marked or sources.marker is None or not truncated:
        return None
    exact = marker_segment(truncated, given.count, tools=given.has_history_tools)
    return exact if exact.estimated_tokens <= sources.marker.estimated_tokens else None


def has_estimated_parts(message: Message) -> bool:
    """Return True if the message holds an image or a file, whose tokens are only estimated."""
    if not message.tool_results and not isinstance(message.content, list):
        return False
    parts = [*(message.content if isinstance(message.content, list) else ())]
    for result in message.tool_results:
        parts += result.result if isinstance(result.result, list) else ()
    return any(isinstance(part, dict) and part.get("type") in ("image", "file") for part in parts)


def _round_segments(fit: FitResult, rounds: ThreadRounds, given: PackMaterial) -> list[Segment]:
    """Return the first instructions and the rounds that are shown."""
    first = rounds.talk.first
    found = [
        _round_segment(RoundForm([message], rounds.talk.count(message)), [message], rounds, given, always=True)
        for message in first
    ]
    newest = rounds.number - 1
    for nth, form in fit.rounds.items():
        sources = rounds.talk.round(nth) if form.recipe else form.messages
        found.append(_round_segment(form, sources, rounds, given, always=nth == newest or rounds.is_preferred(nth)))
    return found


def _round_segment(
    form: RoundForm, sources: Sequence[Message], rounds: ThreadRounds, given: PackMaterial, *, always: bool
) -> Segment:
    recipe = ",".join(form.recipe) if form.recipe else None
    return Segment(
        kind="conversation",
        id=rounds.name(sources[0]) or "",
        priority="critical" if always else "medium",
        trust=sources[0].trust if len(sources) == 1 else lowest_trust(*[message.trust for message in sources]),
        estimated_tokens=form.tokens,
        messages=tuple(form.messages),
        origins=round_origins(sources, recipe, given.follows),
        shortened=form.left_out,
    )


def round_origins(
    messages: Sequence[Message], recipe: str | None, follows: Mapping[tuple[str, int], tuple[str, int]]
) -> tuple[Origin, ...]:
    """Return the stretches of streams that a round consists of. Synthetic results are left out and made again."""
    if len(messages) == 1:
        place = messages[0]
        return (Origin(kind="conversation", stream=place.stream, first=place.version, last=place.version, cut=recipe),)
    found: list[Origin] = []
    places = dict.fromkeys([(message.stream, message.version) for message in messages if message.version])
    for stream, version in places:
        last = found[-1] if found else None
        if last is not None and last.stream == stream and follows.get((stream, last.last or 0)) == (stream, version):
            found[-1] = replace(last, last=version)
        else:
            found.append(Origin(kind="conversation", stream=stream, first=version, last=version, cut=recipe))
    return tuple(found)


def _order_segments(
    fit: FitResult, sources: PackSources, given: PackMaterial, rounds: Sequence[Segment], mark: Segment | None
) -> tuple[list[Segment], int]:
    """Return all segments in the order shown, and how many of them the next call will also begin with."""
    crumbs = [fit.crumbs] if fit.crumbs is not None else []
    marker = [] if mark is None else [mark]
    memories = [form.segment for form in fit.items if form.item.kind == "memory"]
    evidence = [form.segment for form in fit.items if form.item.kind == "evidence"]
    first = len(sources.rounds.talk.first)
    before_window = first + sum(1 for nth in fit.rounds if nth < fit.start)
    head = [given.brief_segment, *rounds[:first], *given.notes, *crumbs]
    early, late = rounds[first:before_window], rounds[before_window:]
    if given.layout == "classic":
        told = [*head, *memories, *fit.summaries, *early, *marker, *late, *evidence]
        return told, len(head)
    stable = [*head, *fit.summaries, *early, *marker, *late[:-1]]
    return [*stable, *memories, *evidence, *late[-1:]], len(stable)


def token_breakdown(segments: Sequence[Segment], overhead: int) -> TokenBreakdown:
    """Return the tokens by kind. The overhead that a provider adds is counted in the brief segment."""
    total: dict[str, int] = {}
    for segment in segments:
        total[segment.kind] = total.get(segment.kind, 0) + segment.estimated_tokens
    return TokenBreakdown(
        brief=total.get("brief", 0) - overhead,
        breadcrumbs=total.get("breadcrumb", 0),
        summaries=total.get("summary", 0),
        conversation=total.get("conversation", 0),
        memory=total.get("memory", 0),
        evidence=total.get("evidence", 0),
        overhead=overhead,
    )


def _window_start(fit: FitResult, rounds: ThreadRounds) -> tuple[str, int] | None:
    """Return the oldest message of the window, leaving out rounds that are shown in any case."""
    window = [nth for nth in fit.rounds if nth >= fit.start]
    if not window:
        return None
    head = rounds.talk.head(window[0])
    return head.stream, head.version


def _list_decisions(
    fit: FitResult, sources: PackSources, shown: Sequence[Segment], standing: Sequence[Summary], truncated: int
) -> list[Decision]:
    rounds = sources.rounds
    first = len(rounds.talk.first)
    reasons = ["first"] * first + [_round_reason(nth, rounds) for nth in fit.rounds]
    whole = [segment.estimated_tokens for segment in shown[:first]] + [
        rounds.whole_form(nth).tokens for nth in fit.rounds
    ]
    found = [
        replace(decide_segment(segment, reason), tokens=tokens)
        for segment, reason, tokens in zip(shown, reasons, whole, strict=True)
    ]
    told = {segment.id for segment in fit.summaries}
    for segment, summary in zip(sources.summaries, standing, strict=True):
        decided = replace(decide_segment(segment, "covered"), outcome="summarised", count=summary.messages)
        found.append(decided if segment.id in told else replace(decided, outcome="omitted", reason="no_room", shown=0))
    return [*found, *decide_earlier(truncated), *fit.decisions]


def _round_reason(nth: int, rounds: ThreadRounds) -> str:
    if nth == rounds.number - 1:
        return "newest"
    if rounds.is_question(nth):
        return "question"
    return "pinned" if rounds.is_pinned(nth) else "window"

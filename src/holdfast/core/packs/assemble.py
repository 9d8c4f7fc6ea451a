"""Assemble a pack from what fits: segments in the order of the layout, counts and reasons; and copy its records.

Copies share texts, which are immutable; changing a copied list or mapping does not change the pack.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from holdfast.core.packs.briefs import Brief
from holdfast.core.packs.manifest import Successors, count_common_tokens, decide_earlier, decide_segment, make_evidence
from holdfast.core.packs.rounds import RoundForm, ThreadRounds
from holdfast.core.packs.runs import PackHints, RoundRun, has_estimates
from holdfast.core.packs.segments import WINDOW_PART, PackItem, is_covered, marker_segment, message_handle
from holdfast.core.packs.window import FitResult, PackSources
from holdfast.core.trust import lowest_trust
from holdfast.core.wire.parts import copy_data
from holdfast.records.events.calls import PackedPiece
from holdfast.records.events.envelope import Draft
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import (
    AssembledPack,
    BriefContext,
    CompactionLevel,
    ContextPackMetadata,
    ConversationSlice,
    Decision,
    FrameBreadcrumb,
    Origin,
    Segment,
    TokenBreakdown,
    TokenSummary,
    WindowKey,
)
from holdfast.records.sessions import Summary

MIN_EVEN = 16
"""The least segments of a run that are compared with a piece of an earlier pack at once."""


class EvidenceItems(msgspec.Struct, frozen=True, kw_only=True):
    """Items to choose from, a report on those that were dropped before, and outside texts by their artifact names."""

    items: tuple[PackItem, ...] = ()
    missing: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    failed: dict[str, str] = {}
    decisions: tuple[Decision, ...] = ()
    pins: tuple[tuple[str, bytes], ...] = ()


class CountedBrief(msgspec.Struct, frozen=True, kw_only=True):
    """A brief with its segments."""

    brief: Brief
    segment: Segment
    notes: tuple[Segment, ...]
    tokens: int
    """The tokens of all segments."""
    has_history_tools: bool


class PackMaterial(msgspec.Struct, frozen=True, kw_only=True):
    """Everything known about a pack besides what fits."""

    counted: CountedBrief
    crumbs: tuple[FrameBreadcrumb, ...]
    standing: tuple[Summary, ...]
    messages: int
    """The number of messages of the thread."""
    follows: dict[tuple[str, int], tuple[str, int]]
    overhead: int
    budget: int
    model: str | None
    exact: bool
    window: WindowKey
    limited_by: str | None
    metadata: ContextPackMetadata
    evidence: EvidenceItems
    fresh: dict[str, tuple[tuple[int, int], ...]] = {}
    kept_as: str = ""
    made: Draft | None = None
    before: Sequence[PackedPiece]
    """The pieces of the last journaled pack of the same kind."""
    hints: PackHints


def assemble_pack(fit: FitResult, sources: PackSources, given: PackMaterial) -> AssembledPack:
    """Assemble the pack."""
    brief, report = given.counted.brief, given.evidence
    run, shown, first = _join_run(fit, sources, given)
    summaries = _list_summaries(fit, sources, given)
    rounds = [segment for segment, _ in shown]
    alone = [message for segment in rounds for message in segment.messages]
    said = (*alone[:first], *run.messages, *alone[first:])
    truncated = _count_truncated(given.messages, run.stored + sum([1 for one in alone if one.id]), said, summaries)
    order = _order_segments(fit, sources, given, rounds, run, truncated)
    beside = [*order.segments[: order.run], *order.segments[order.run + len(run.segments) :]]
    decisions = (
        *[decision for _, decision in shown[:first]],
        *run.decisions,
        *[decision for _, decision in shown[first:]],
        *(others := _list_decisions(fit, sources, given.standing, truncated)),
        *report.decisions,
    )
    tokens = summarise_tokens(
        beside, budget=given.budget, overhead=given.overhead, level=fit.level, conversation=run.tokens
    )
    packed = AssembledPack(
        system=brief.system,
        tools=brief.tools,
        segments=order.segments,
        summaries=summaries,
        conversation=ConversationSlice(
            messages=said,
            message_count=len(said),
            truncated_count=truncated,
            estimated_tokens=run.tokens + sum([segment.estimated_tokens for segment in rounds]),
        ),
        brief=brief.context,
        breadcrumbs=given.crumbs if fit.crumbs is sources.crumbs else given.crumbs[-1:],
        evidence=tuple(
            make_evidence(form.segment, form.item.type, form.item.source)
            for form in fit.items
            if form.item.kind == "evidence"
        ),
        token_summary=tokens,
        metadata=_complete_metadata(fit, given, (*others, *report.decisions)),
        decisions=decisions,
        model=given.model,
        tokenizer=given.window.tokenizer,
        exact=given.exact and not run.estimated and not has_estimates(alone),
        window=given.window,
        window_start=_find_window_start(fit, sources.rounds),
        shortened=run.shortened + sum([1 for segment in rounds if segment.shortened]),
        limited_by=given.limited_by,
        cached_tokens=_count_cached(given, order, run),
        pins=report.pins,
        follows=given.follows,
        fresh=given.fresh,
        kept_as=given.kept_as,
        made=given.made,
        stable=order.stable,
    )
    given.hints.describe(packed, run, order.run)
    return packed


def _list_summaries(fit: FitResult, sources: PackSources, given: PackMaterial) -> tuple[Summary, ...]:
    told = {segment.id for segment in fit.summaries}
    standing = zip(sources.summaries, given.standing, strict=True)
    return tuple(summary for segment, summary in standing if segment.id in told)


def _complete_metadata(fit: FitResult, given: PackMaterial, decisions: Sequence[Decision]) -> ContextPackMetadata:
    report = given.evidence
    return replace(
        given.metadata,
        level=fit.level,
        omitted=tuple(one.id for one in decisions if one.outcome == "omitted"),
        missing_handles=report.missing,
        refused_exclusions=report.refused,
        failed=report.failed,
    )


def _join_run(
    fit: FitResult, sources: PackSources, given: PackMaterial
) -> tuple[RoundRun, list[tuple[Segment, Decision]], int]:
    """Return the run of rounds shown whole, the other rounds, and how many of these come before the run."""
    shown, first = _show_rounds(fit, sources.rounds, given.follows), len(sources.rounds.talk.first)
    if fit.run is None:
        return RoundRun(level=fit.level), shown, first
    # All but the newest join the run; the next pack begins with them.
    run = fit.run.extend(shown[first:-1], sources.rounds.reasons, given.follows)
    return run, [*shown[:first], *shown[max(first, len(shown) - 1) :]], first


def _count_cached(given: PackMaterial, order: _SegmentOrder, run: RoundRun) -> int:
    """Return the tokens that the last journaled pack began with too."""
    if run.even < MIN_EVEN:
        return count_common_tokens(given.before, order.segments, given.follows)
    even = range(order.run, order.run + run.even)
    return count_common_tokens(given.before, order.segments, given.follows, even)


def _find_window_start(fit: FitResult, rounds: ThreadRounds) -> tuple[str, int] | None:
    """Return the oldest message of the window. Rounds before the window are shown in any case."""
    if fit.run is not None and fit.run.segments:
        oldest = rounds.messages[0][0]
    else:
        found = next((nth for nth in fit.rounds if nth >= fit.start), None)
        if found is None:
            return None
        oldest = rounds.messages[found][0]
    return oldest.stream, oldest.version


def _count_truncated(messages: int, stored: int, said: Sequence[Message], summaries: Sequence[Summary]) -> int:
    """Return how many messages of a thread are neither shown nor summarised; `stored` of those shown are its own."""
    if not summaries:
        return max(messages - stored, 0)
    known = sum(summary.messages for summary in summaries) + stored
    ends = {span.stream: span.last for summary in summaries for span in summary.covers}
    older = [message for message in said if message.version <= ends.get(message.stream, 0)]
    # A summary also covers pinned messages that are shown beside it.
    twice = sum(is_covered(message.stream, message.version, summaries) for message in older)
    return max(messages - known + twice, 0)


def _show_rounds(fit: FitResult, rounds: ThreadRounds, follows: Successors) -> list[tuple[Segment, Decision]]:
    """Return the first instructions and the rounds that are shown, each with the reason."""
    found = []
    for message in rounds.talk.first:
        segment = _round_segment(RoundForm([message], rounds.talk.count(message)), [message], rounds, follows, True)
        found.append((segment, decide_segment(segment, "first")))
    for nth, form in fit.rounds.items():
        measured, reason = rounds.measured[nth] or rounds.measure(nth), rounds.reasons.get(nth)
        usual = reason is None and form is measured.light
        shown = measured.shown if usual else None
        if shown is None:
            sources = measured.messages if form.recipe else form.messages
            segment = _round_segment(form, sources, rounds, follows, reason is not None)
            shown = (segment, decide_segment(segment, reason or "window", measured.whole.tokens))
            measured.shown = shown if usual else measured.shown
        found.append(shown)
    return found


def _round_segment(
    form: RoundForm, sources: Sequence[Message], rounds: ThreadRounds, follows: Successors, always: bool
) -> Segment:
    return Segment(
        kind="conversation",
        id=message_handle(sources[0], rounds.thread),
        priority="critical" if always else "medium",
        trust=sources[0].trust if len(sources) == 1 else lowest_trust(*[message.trust for message in sources]),
        estimated_tokens=form.tokens,
        messages=tuple(form.messages),
        origins=round_origins(sources, ",".join(form.recipe) or None, follows),
        shortened=form.left_out,
    )


def round_origins(messages: Sequence[Message], recipe: str | None, follows: Successors) -> tuple[Origin, ...]:
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


class _SegmentOrder(NamedTuple):
    """All segments in the order shown."""

    segments: tuple[Segment, ...]
    stable: int
    """The number of segments that the next call will also begin with."""
    run: int
    """The index at which the run of rounds begins."""


def _order_segments(
    fit: FitResult,
    sources: PackSources,
    given: PackMaterial,
    rounds: Sequence[Segment],
    run: RoundRun,
    truncated: int,
) -> _SegmentOrder:
    crumbs = [fit.crumbs] if fit.crumbs is not None else []
    marker: list[Segment] = []
    if fit.marked and truncated:
        exact = marker_segment(truncated, sources.rounds.count, tools=given.counted.has_history_tools)
        # The final number should not be larger than the one that the marker was measured with.
        marker = [exact] if exact.estimated_tokens <= sources.marker.estimated_tokens else []
    memories = [form.segment for form in fit.items if form.item.kind == "memory"]
    evidence = [form.segment for form in fit.items if form.item.kind == "evidence"]
    first = len(sources.rounds.talk.first)
    before_window = first + sum([1 for nth in fit.rounds if nth < fit.start])
    head = [given.counted.segment, *rounds[:first], *given.counted.notes, *crumbs]
    early, late = rounds[first:before_window], rounds[before_window:]
    # The summary of what just left the window changes with the window, so it comes after what stays when that moves.
    made = [one for one in fit.summaries if one.origins[0].part == WINDOW_PART]
    standing = fit.summaries[: len(fit.summaries) - len(made)]
    early = [*early, *marker, *made]
    if given.window.layout == "classic":
        begin = [*head, *memories, *standing, *early]
        return _SegmentOrder((*begin, *run.segments, *late, *evidence), len(head), len(begin))
    begin = [*head, *standing, *early]
    stable = (*begin, *run.segments, *late[:-1])
    return _SegmentOrder((*stable, *memories, *evidence, *late[-1:]), len(stable), len(begin))


def summarise_tokens(
    segments: Sequence[Segment],
    *,
    budget: int,
    overhead: int,
    level: CompactionLevel,
    conversation: int = 0,
    used: int | None = None,
) -> TokenSummary:
    """Return the budget, its use, and the tokens by kind. A provider's overhead is counted in the brief segment.

    `conversation` is what the messages of a run take beside the segments; `used` is the use as it was journaled.
    """
    total: dict[str, int] = {"conversation": conversation}
    for segment in segments:
        total[segment.kind] = total.get(segment.kind, 0) + segment.estimated_tokens
    breakdown = TokenBreakdown(
        brief=total.get("brief", 0) - overhead,
        breadcrumbs=total.get("breadcrumb", 0),
        summaries=total.get("summary", 0),
        conversation=total.get("conversation", 0),
        memory=total.get("memory", 0),
        evidence=total.get("evidence", 0),
        overhead=overhead,
    )
    used = sum(total.values()) if used is None else used
    remaining = max(budget - used, 0)
    return TokenSummary(budget=budget, used=used, remaining=remaining, breakdown=breakdown, compaction_level=level)


def _list_decisions(
    fit: FitResult, sources: PackSources, standing: Sequence[Summary], truncated: int
) -> list[Decision]:
    """Return the decisions about everything but rounds."""
    found = []
    told = {segment.id for segment in fit.summaries}
    for segment, summary in zip(sources.summaries, standing, strict=True):
        decided = replace(decide_segment(segment, "covered"), outcome="summarised", count=summary.messages)
        found.append(decided if segment.id in told else replace(decided, outcome="omitted", reason="no_room", shown=0))
    return [*found, *decide_earlier(truncated), *fit.decisions]


def copy_messages(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Copy messages with their parts, results and metadata; one that holds only texts is the same object."""
    found = []
    for message in messages:
        if message.content.__class__ is not list and not message.tool_results and not message.metadata:
            found.append(message)
            continue
        values = (message.content, *[one.result for one in message.tool_results])
        if not message.metadata and not any(isinstance(value, list | dict) for value in values):
            found.append(message)
            continue
        results = tuple(replace(one, result=copy_data(one.result)) for one in message.tool_results)
        content, metadata = copy_data(message.content), copy_data(message.metadata)
        found.append(replace(message, content=content, tool_results=results, metadata=metadata))
    return tuple(found)


def copy_segments(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Copy segments with their messages."""
    return tuple(replace(segment, messages=copy_messages(segment.messages)) for segment in segments)


def copy_tools(tools: Iterable[ToolDef]) -> tuple[ToolDef, ...]:
    """Copy tools with their schemas."""
    return tuple(replace(tool, parameters=copy_data(tool.parameters), raw=copy_data(tool.raw)) for tool in tools)


def copy_brief(brief: BriefContext) -> BriefContext:
    """Copy a brief with its data and tools."""
    context, tools = copy_data(brief.working_context), copy_tools(brief.available_tools)
    return replace(brief, working_context=context, available_tools=tools)


def copy_summaries(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    """Copy summaries with their data."""
    return tuple(one if one.state is None else replace(one, state=copy_data(one.state)) for one in summaries)

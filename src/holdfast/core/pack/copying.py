"""What a pack gives away: records whose lists and mappings are copies, so that whoever changes them changes no pack.

Texts cannot be changed and are shared. A record that holds nothing else is given as it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from holdfast.core.wire.parts import copied
from holdfast.records.lines import Summary
from holdfast.records.messages import Message, ToolCallResult, ToolDef
from holdfast.records.packs import BriefContext, PackDiff, Segment


def messages_of(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages with parts, results and metadata of their own."""
    return tuple(map(_message, messages))


def _message(message: Message) -> Message:
    results = message.tool_results
    if not (_is_mutable(message.content) or message.metadata or any(_is_mutable(one.result) for one in results)):
        return message
    return replace(
        message,
        content=copied(message.content),
        tool_results=tuple(map(_result, results)),
        metadata=copied(message.metadata),
    )


def _result(result: ToolCallResult) -> ToolCallResult:
    return replace(result, result=copied(result.result)) if _is_mutable(result.result) else result


def segments_of(segments: Iterable[Segment]) -> tuple[Segment, ...]:
    """Segments with messages of their own."""
    return tuple(map(_segment, segments))


def _segment(segment: Segment) -> Segment:
    messages = messages_of(segment.messages)
    same = all(one is other for one, other in zip(messages, segment.messages, strict=True))
    return segment if same else replace(segment, messages=messages)


def tools_of(tools: Iterable[ToolDef]) -> tuple[ToolDef, ...]:
    """Tools with schemas of their own."""
    return tuple(replace(tool, parameters=copied(tool.parameters), raw=copied(tool.raw)) for tool in tools)


def brief_of(brief: BriefContext) -> BriefContext:
    """A brief with data and tools of its own."""
    context, tools = copied(brief.working_context), tools_of(brief.available_tools)
    return replace(brief, working_context=context, available_tools=tools)


def summaries_of(summaries: Iterable[Summary]) -> tuple[Summary, ...]:
    """Summaries with data of their own."""
    return tuple(one if one.state is None else replace(one, state=copied(one.state)) for one in summaries)


def difference_of(found: PackDiff) -> PackDiff:
    """A difference with segments of its own."""
    changed = tuple((_segment(one), _segment(other)) for one, other in found.changed)
    return replace(found, added=segments_of(found.added), removed=segments_of(found.removed), changed=changed)


def _is_mutable(value: Any) -> bool:
    return isinstance(value, list | dict)

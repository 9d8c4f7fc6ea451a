"""The pieces of a pack that are neither rounds nor evidence: notes, breadcrumbs, summaries, a mark for the rest."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from holdfast.core.fencing import SUMMARY_LABEL, WORK_LABEL, Mark, fenced
from holdfast.core.naming import summary_handle
from holdfast.core.pack.items import shown
from holdfast.records.lines import Summary
from holdfast.records.messages import Message
from holdfast.records.packs import FrameBreadcrumb, Origin, Segment

CountMessage = Callable[[Message], int]
Crumb = tuple[FrameBreadcrumb, Origin]

BREADCRUMBS = "breadcrumbs"
EARLIER = "earlier"
LAST_GOAL = 40
"""Characters of a goal, where nothing but the last breadcrumb is left."""
DOTS = "…"


def note_segments(notes: Sequence[Message], count: CountMessage) -> tuple[Segment, ...]:
    """Parts of a brief that may not instruct, each a segment of its own."""
    return tuple(
        Segment(
            kind="brief",
            id=f"note{number}",
            priority="critical",
            trust=note.trust,
            estimated_tokens=count(note),
            messages=(note,),
            origins=(Origin(kind="brief", part="note", first=number),),
        )
        for number, note in enumerate(notes, 1)
    )


def crumb_segments(
    crumbs: Sequence[Crumb], mark: Mark, count: CountMessage, most: int
) -> tuple[Segment | None, Segment | None]:
    """All breadcrumbs as one message, and the last one alone, as short as it is of use."""
    if not crumbs:
        return None, None
    kept = [replace(origin, cut=f"goal:{_goal_length(crumb.goal, count, most)}") for crumb, origin in crumbs]
    goals = [crumb.goal for crumb, _ in crumbs]
    # Of a goal that is hardly longer, the cut form may take more.
    short = replace(kept[-1], cut=f"goal:{LAST_GOAL}")
    last = [crumb_segment(goals[-1:], [one], mark, count) for one in (short, kept[-1])]
    return crumb_segment(goals, kept, mark, count), min(last, key=lambda segment: segment.estimated_tokens)


def _goal_length(goal: str, count: CountMessage, most: int) -> int:
    """How many characters of a goal one breadcrumb may have."""
    if _line_tokens(goal, count) <= most:
        return len(goal)
    low, high = 0, len(goal)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _line_tokens(goal[:middle] + DOTS, count) <= most else (low, middle)
    return low


def _line_tokens(goal: str, count: CountMessage) -> int:
    return count(Message(role="user", content=f"1. {goal}\n"))


def crumb_segment(goals: Sequence[str], origins: Sequence[Origin], mark: Mark, count: CountMessage) -> Segment:
    """Breadcrumbs, each cut as its origin says. They are data: whoever pushed a frame may have been told its goal."""
    cut = [_cut_goal(goal, origin.cut) for goal, origin in zip(goals, origins, strict=True)]
    lines = [f"{number}. {goal}" for number, goal in enumerate(cut, 1)]
    text = fenced(WORK_LABEL, "\n".join(lines), mark(BREADCRUMBS))
    message = Message(role="user", content=text, synthetic=True, trust="user")
    return Segment(
        kind="breadcrumb",
        id=BREADCRUMBS,
        priority="critical",
        trust="user",
        estimated_tokens=count(message),
        messages=(message,),
        origins=tuple(origins),
        shortened=sum(max(len(whole) - len(goal), 0) for whole, goal in zip(goals, cut, strict=True)),
    )


def _cut_goal(goal: str, cut: str | None) -> str:
    keep = len(goal) if cut is None else int(cut.partition(":")[2])
    line = goal if len(goal) <= keep else goal[:keep] + DOTS
    return " ".join(line.split())


def summary_segment(summary: Summary, line: str, mark: Mark, count: CountMessage) -> Segment:
    """A summary, in the role that the trust of what it was made from allows."""
    id = summary_handle(summary.version) if summary.stream == line else summary.id
    message = shown(f"{SUMMARY_LABEL} [{id}]", summary.text, id, "summary", summary.trust, mark)
    return Segment(
        kind="summary",
        id=id,
        priority="high",
        trust=summary.trust,
        estimated_tokens=count(message),
        messages=(message,),
        origins=(Origin(kind="summary", stream=summary.stream, first=summary.version, last=summary.version),),
    )


def marker_segment(left_out: int, count: CountMessage, *, tools: bool) -> Segment:
    """What stands for earlier messages that are neither shown nor summarised."""
    message = Message(role="user", content=marker_text(left_out, tools=tools), synthetic=True, trust="system")
    return Segment(
        kind="conversation",
        id=EARLIER,
        priority="high",
        trust="system",
        estimated_tokens=count(message),
        messages=(message,),
        origins=(Origin(kind="conversation", part="marker", cut=f"{left_out}:{'tools' if tools else ''}"),),
    )


def marker_text(left_out: int, *, tools: bool) -> str:
    """The mark's words: what to do about it is only said to who can."""
    what = f"[{left_out} earlier messages are not shown"
    return f"{what}; search_history finds them, and expand reads them.]" if tools else f"{what}.]"


def remade_marker(cut: str, count: CountMessage) -> Segment:
    """The same again."""
    number, _, tools = cut.partition(":")
    return marker_segment(int(number), count, tools=tools == "tools")

"""Segments of a pack other than rounds: evidence, memories, notes, breadcrumbs, summaries, and the omission marker.

Evidence and memories are data: they stand between marks, in a message of the user's role. Only trusted summaries and
memories get the system role.

Handles are the short names of what a pack shows or left out, which a model gives back to read more. `m57` is the
message at version 57 of the thread's own stream, `m3-m9` a stretch of them, `s12` the summary at version 12. A message
that the thread shares with another one is named by its id; any other text may be a handle's id.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from holdfast.core.lazy import lazy_pattern
from holdfast.core.packs.fences import WORK_LABEL, Mark, fence_text
from holdfast.core.packs.tidy import LIGHT, lighten_text
from holdfast.core.sessions.rounds import SUMMARY_LABEL
from holdfast.core.sessions.shorten import cut_text, fit_messages
from holdfast.core.sessions.tokens import CountMessage
from holdfast.core.trust import TRUSTED_LEVELS
from holdfast.errors import InvalidValue
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message
from holdfast.records.packs import FrameBreadcrumb, Origin, Segment, SegmentKind
from holdfast.records.sessions import Summary

Crumb = tuple[FrameBreadcrumb, Origin]
"""A frame of the ancestry, and the origin of its goal."""
BREADCRUMBS_ID = "breadcrumbs"
EARLIER_ID = "earlier"
EARLIER_TEXT: Final = "[{} earlier messages are not shown{}.]"
EARLIER_TOOLS: Final = "; search_history finds them, and expand reads them"
OLDER_ID = "older"
WINDOW_PART = "window"
"""The part of a manifest's piece that is a summary of messages older than the window."""
LAST_GOAL_CHARS = 40
"""Characters of a goal, where only the last breadcrumb is left."""
ELLIPSIS = "…"

_WRAPPING_CHARS: Final = " \t\r\n\"'`[]()<>{}.,:;#"
"""Characters that models put around a name when they repeat it."""
_SHORT_HANDLE: Final = lazy_pattern(r"([ms])([1-9][0-9]{0,14})", re.ASCII | re.IGNORECASE)
_STRETCH_HANDLE: Final = lazy_pattern(
    r"m([1-9][0-9]{0,14})\s*(?:-|\u2013|\u2014|\.\.\.?|\u2026|\bto\b)\s*m?([1-9][0-9]{0,14})", re.ASCII | re.IGNORECASE
)
_MAX_HANDLE_CHARS: Final = 256
_RESERVED_WORDS: Final = frozenset({"brief", BREADCRUMBS_ID, EARLIER_ID, OLDER_ID, "memory"})
_NOTE_HANDLE: Final = lazy_pattern(r"note[0-9]+", re.IGNORECASE)


class PackItem(msgspec.Struct, frozen=True, kw_only=True):
    """Evidence or a memory that may be shown beside the conversation. `text` is as it was found."""

    id: str
    kind: SegmentKind
    label: str
    text: str
    priority: str
    trust: str
    origin: Origin
    mandatory: bool = False
    relevance: float = 0.0
    type: str = ""
    source: str | None = None

    @property
    def critical(self) -> bool:
        """True if a pack must show it."""
        return self.priority == "critical"


class ItemForm(msgspec.Struct, frozen=True):
    """An item as it would be shown."""

    item: PackItem
    segment: Segment

    @property
    def tokens(self) -> int:
        """The tokens of this form."""
        return self.segment.estimated_tokens


def rank_item(item: PackItem) -> tuple[bool, int, float]:
    """Return the rank of an item: those asked for by name come first, then by priority and relevance."""
    return not (item.mandatory or item.critical), -PRIORITY_SCORE[item.priority], -item.relevance


class ItemForms(msgspec.Struct):
    """The forms of items, with their tokens, each made once."""

    mark: Mark
    count: CountMessage
    abbreviate: int
    """The most characters of prose at level light."""
    _whole: dict[str, ItemForm] = {}
    _light: dict[str, ItemForm] = {}
    _least: dict[str, ItemForm] = {}

    def whole_form(self, item: PackItem) -> ItemForm:
        """Return an item with all of its text."""
        if item.id not in self._whole:
            self._whole[item.id] = self._make_form(item, item.text, None, 0)
        return self._whole[item.id]

    def light_form(self, item: PackItem) -> ItemForm:
        """Return an item at level light."""
        if item.id not in self._light:
            text, left_out = lighten_text(item.text, self.abbreviate, item.id)
            light = self._make_form(item, text, f"{LIGHT}:{self.abbreviate}", left_out) if text != item.text else None
            self._light[item.id] = light or self.whole_form(item)
        return self._light[item.id]

    def shortest_form(self, item: PackItem) -> ItemForm:
        """Return an item as short as it can get."""
        if item.id not in self._least:
            text, left_out = cut_text(item.text, 0, item.id)
            short = self._make_form(item, text, "text:0", left_out) if left_out else self.whole_form(item)
            self._least[item.id] = min(self.light_form(item), short, key=lambda form: form.tokens)
        return self._least[item.id]

    def shorten_to(self, item: PackItem, room: int) -> ItemForm:
        """Return an item in at most `room` tokens if possible, else as short as it gets."""
        light = self.light_form(item)
        if light.tokens <= room:
            return light
        body = Message(role="user", content=item.text)
        short = fit_messages(
            [body], room, lambda form: self.count(self._make_message(item, form.text)), name=lambda _: item.id
        )
        if not short.cuts or short.tokens > room:
            return self.shortest_form(item)
        return self._make_form(item, short.messages[0].text, short.recipe[-1], short.cuts[-1].left_out)

    def _make_form(self, item: PackItem, text: str, recipe: str | None, left_out: int) -> ItemForm:
        message = self._make_message(item, text)
        origin = item.origin if recipe is None else replace(item.origin, cut=recipe)
        segment = make_segment(item.kind, item.id, item.priority, message, self.count, (origin,), left_out)
        return ItemForm(item, segment)

    def _make_message(self, item: PackItem, text: str) -> Message:
        return make_message(item.label, text, item.id, item.kind, item.trust, self.mark)


def make_message(label: str, text: str, id: str, kind: str, trust: str, mark: Mark) -> Message:
    """Return an item or summary as a message. Only trusted ones get the system role."""
    if kind in ("summary", "memory") and trust in TRUSTED_LEVELS:
        return Message(role="system", content=f"{label}\n{text}", synthetic=True, trust=trust)
    return Message(role="user", content=fence_text(label, text, mark(id)), synthetic=True, trust=trust)


def make_segment(
    kind: SegmentKind,
    id: str,
    priority: str,
    message: Message,
    count: CountMessage,
    origins: Sequence[Origin],
    left_out: int = 0,
) -> Segment:
    """Return the segment of one message; `left_out` characters of its text are not shown."""
    return Segment(
        kind=kind,
        id=id,
        priority=priority,
        trust=message.trust,
        estimated_tokens=count(message),
        messages=(message,),
        origins=tuple(origins),
        shortened=left_out,
    )


def cut_by_recipe(text: str, recipe: str | None, id: str) -> tuple[str, int]:
    """Return a text cut by a recipe, and the number of characters left out."""
    if recipe is None:
        return text, 0
    what, _, amount = recipe.partition(":")
    return lighten_text(text, int(amount), id) if what == LIGHT else cut_text(text, int(amount), id)


def note_segments(notes: Sequence[Message], count: CountMessage) -> tuple[Segment, ...]:
    """Return the parts of a brief that may not give instructions, each as a segment."""
    return tuple(
        make_segment(
            "brief", f"note{number}", "critical", note, count, [Origin(kind="brief", part="note", first=number)]
        )
        for number, note in enumerate(notes, 1)
    )


def crumb_segments(crumbs: Sequence[Crumb], mark: Mark, count: CountMessage, most: int) -> tuple[Segment, Segment]:
    """Return all breadcrumbs as one segment, and the last one alone, as short as is useful."""
    kept = [replace(origin, cut=f"goal:{_goal_length(crumb.goal, count, most)}") for crumb, origin in crumbs]
    goals = [crumb.goal for crumb, _ in crumbs]
    # Cutting a goal that is hardly longer may take more tokens than it saves.
    short = replace(kept[-1], cut=f"goal:{LAST_GOAL_CHARS}")
    last = [crumb_segment(goals[-1:], [one], mark, count) for one in (short, kept[-1])]
    return crumb_segment(goals, kept, mark, count), min(last, key=lambda segment: segment.estimated_tokens)


def _goal_length(goal: str, count: CountMessage, most: int) -> int:
    """Return the number of characters of a goal that take at most `most` tokens."""

    def fits(text: str) -> bool:
        return count(Message(role="user", content=f"1. {text}\n")) <= most

    if fits(goal):
        return len(goal)
    low, high = 0, len(goal)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(goal[:middle] + ELLIPSIS) else (low, middle)
    return low


def crumb_segment(goals: Sequence[str], origins: Sequence[Origin], mark: Mark, count: CountMessage) -> Segment:
    """Return breadcrumbs as a segment, each cut as its origin says. They are data: a goal may come from anywhere."""
    cut = []
    for goal, origin in zip(goals, origins, strict=True):
        keep = len(goal) if origin.cut is None else int(origin.cut.partition(":")[2])
        cut.append(" ".join((goal if len(goal) <= keep else goal[:keep] + ELLIPSIS).split()))
    lines = [f"{number}. {goal}" for number, goal in enumerate(cut, 1)]
    text = fence_text(WORK_LABEL, "\n".join(lines), mark(BREADCRUMBS_ID))
    message = Message(role="user", content=text, synthetic=True, trust="user")
    left_out = sum(max(len(whole) - len(goal), 0) for whole, goal in zip(goals, cut, strict=True))
    return make_segment("breadcrumb", BREADCRUMBS_ID, "critical", message, count, origins, left_out)


def summary_segment(summary: Summary, thread: str, mark: Mark, count: CountMessage) -> Segment:
    """Return a summary as a segment, in the role that the trust of its sources allows."""
    id = summary_handle(summary, thread)
    message = make_message(f"{SUMMARY_LABEL} [{id}]", summary.text, id, "summary", summary.trust, mark)
    part = WINDOW_PART if summary.window else None
    origin = Origin(kind="summary", stream=summary.stream, first=summary.version, last=summary.version, part=part)
    return make_segment("summary", id, "high", message, count, [origin])


def is_covered(stream: str, version: int, known: Sequence[Summary]) -> bool:
    """Return True if one of these summaries covers the message at a version of a stream."""
    return any(
        part.stream == stream and part.first <= version <= part.last for summary in known for part in summary.covers
    )


def marker_segment(left_out: int, count: CountMessage, *, tools: bool) -> Segment:
    """Return the marker for messages neither shown nor summarised; it names the history tools if the model has them."""
    text = EARLIER_TEXT.format(left_out, EARLIER_TOOLS if tools else "")
    message = Message(role="user", content=text, synthetic=True, trust="system")
    origin = Origin(kind="conversation", part="marker", cut=f"{left_out}:{'tools' if tools else ''}")
    return make_segment("conversation", EARLIER_ID, "high", message, count, [origin])


# handles


class HandleRef(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed handle: versions `first` to `last` of the thread's own stream, or an id."""

    kind: Literal["message", "messages", "summary", "id"]
    first: int = 0
    last: int = 0
    id: str = ""

    def __str__(self) -> str:
        if self.kind == "id":
            return self.id
        return f"s{self.first}" if self.kind == "summary" else stretch_handle(self.first, self.last)


def is_reserved_name(text: str) -> bool:
    """Return True if a pack uses this text for one of its own pieces, so that nothing else may have that name."""
    plain = text.strip(_WRAPPING_CHARS)
    return plain.lower() in _RESERVED_WORDS or any(
        one.fullmatch(plain) for one in (_NOTE_HANDLE, _SHORT_HANDLE, _STRETCH_HANDLE)
    )


def message_handle(message: Message, thread: str) -> str:
    """Return the handle of a stored message in a thread: short if it is in the thread's own stream, else its id."""
    return f"m{message.version}" if message.stream == thread and message.version > 0 else message.id


def summary_handle(summary: Summary, thread: str) -> str:
    """Return the handle of a summary in a thread: short if it is in the thread's own stream, else its id.

    A pack's own summary is named by the messages it covers: it is shown before it has an id.
    """
    if summary.window:
        own = [one for one in summary.covers if one.stream == thread]
        return stretch_handle(own[0].first, own[0].last) if len(own) == len(summary.covers) == 1 else OLDER_ID
    return f"s{summary.version}" if summary.stream == thread else summary.id


def stretch_handle(first: int, last: int) -> str:
    """Return the handle of the messages from one version of the thread's own stream to another."""
    return f"m{first}" if first == last else f"m{first}-m{last}"


def parse_handle(text: object) -> HandleRef:
    """Parse a handle as leniently as models write; refuse a text that cannot be one."""
    if not isinstance(text, str):
        raise InvalidValue(f"A handle is text such as m57 or s12, not {type(text).__name__}.")
    plain = text[: _MAX_HANDLE_CHARS + 1].strip(_WRAPPING_CHARS)
    if not plain or len(plain) > _MAX_HANDLE_CHARS:
        raise InvalidValue("A handle is a short text such as m57, m3-m9 or s12.")
    if (short := _SHORT_HANDLE.fullmatch(plain)) is not None:
        version = int(short[2])
        return HandleRef(kind="message" if short[1] in "mM" else "summary", first=version, last=version)
    if (stretch := _STRETCH_HANDLE.fullmatch(plain)) is not None:
        first, last = sorted((int(stretch[1]), int(stretch[2])))
        return HandleRef(kind="messages" if first < last else "message", first=first, last=last)
    return HandleRef(kind="id", id=plain)

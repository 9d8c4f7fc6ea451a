"""Evidence and memories in the forms that a pack may show: whole, or their ends around a marker.

All of it is data: it stands between marks, in a message of the user's role, whatever it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.fencing import TRUSTED, Mark, fenced
from holdfast.core.shortening import cut, fitted
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message
from holdfast.records.packs import Origin, Segment, SegmentKind

CountMessage = Callable[[Message], int]


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Something that may be shown beside the conversation. `text` is as it was found."""

    id: str
    kind: SegmentKind
    label: str
    text: str
    priority: str
    trust: str
    origin: Origin
    mandatory: bool = False
    relevance: float = 0.0
    recency: int = 0
    position: int = 0
    type: str = ""
    source: str | None = None

    @property
    def critical(self) -> bool:
        """Whether a pack without it is none."""
        return self.priority == "critical"


class ItemForm(msgspec.Struct, frozen=True):
    """An item as it would be shown."""

    item: Item
    segment: Segment

    @property
    def tokens(self) -> int:
        """What it takes."""
        return self.segment.estimated_tokens


def in_order(items: Sequence[Item]) -> list[Item]:
    """Those that were asked for first, then by priority, relevance, recency, and the order in which they came."""

    def place(item: Item) -> tuple[bool, int, float, int, int]:
        score = PRIORITY_SCORE[item.priority]
        return not (item.mandatory or item.critical), -score, -item.relevance, -item.recency, item.position

    return sorted(items, key=place)


class Items:
    """Forms of items: how they are shown, and what that costs."""

    def __init__(self, mark: Mark, count: CountMessage) -> None:
        self._mark = mark
        self._count = count
        self._whole: dict[str, ItemForm] = {}
        self._least: dict[str, ItemForm] = {}

    def whole(self, item: Item) -> ItemForm:
        """With all of its text."""
        known = self._whole.get(item.id)
        if known is None:
            known = self._whole[item.id] = self._form(item, item.text, None, 0)
        return known

    def least(self, item: Item) -> ItemForm:
        """As short as it can get."""
        known = self._least.get(item.id)
        if known is None:
            text, left_out = cut(item.text, 0, item.id)
            short = self._form(item, text, "text:0", left_out) if left_out else self.whole(item)
            known = self._least[item.id] = min(self.whole(item), short, key=lambda form: form.tokens)
        return known

    def within(self, item: Item, room: int) -> ItemForm:
        """In at most `room` tokens if that is possible, else as short as it gets."""
        whole = self.whole(item)
        if whole.tokens <= room:
            return whole
        body = Message(role="user", content=item.text)
        short = fitted([body], room, lambda form: self._tokens(item, form.text), name=lambda _: item.id)
        if not short.cuts or short.tokens > room:
            return self.least(item)
        return self._form(item, short.messages[0].text, short.recipe[-1], short.cuts[-1].left_out)

    def _form(self, item: Item, text: str, recipe: str | None, left_out: int) -> ItemForm:
        message = shown(item.label, text, item.id, item.kind, item.trust, self._mark)
        origin = item.origin if recipe is None else msgspec.structs.replace(item.origin, cut=recipe)
        segment = Segment(
            kind=item.kind,
            id=item.id,
            priority=item.priority,
            trust=item.trust,
            estimated_tokens=self._count(message),
            messages=(message,),
            origins=(origin,),
            shortened=left_out,
        )
        return ItemForm(item, segment)

    def _tokens(self, item: Item, text: str) -> int:
        return self._count(shown(item.label, text, item.id, item.kind, item.trust, self._mark))


def shown(label: str, text: str, id: str, kind: str, trust: str, mark: Mark) -> Message:
    """A piece that is not of the conversation, as a message. The system's role is only for who may instruct."""
    if kind in ("summary", "memory") and trust in TRUSTED:
        return Message(role="system", content=f"{label}\n{text}", synthetic=True, trust=trust)
    return Message(role="user", content=fenced(label, text, mark(id)), synthetic=True, trust=trust)


def remade_text(text: str, recipe: str | None, id: str) -> str:
    """A text cut as a recipe says."""
    return text_as_cut(text, recipe, id)[0]


def text_as_cut(text: str, recipe: str | None, id: str) -> tuple[str, int]:
    """A text cut as a recipe says, and how many characters that leaves out."""
    return (text, 0) if recipe is None else cut(text, int(recipe.partition(":")[2]), id)

"""The request of a pack: its options, and the way in which its tokens are counted."""

from __future__ import annotations

import msgspec

from holdfast.core.checks import is_number
from holdfast.core.packs.briefs import RenderedBrief
from holdfast.core.sessions.tokens import Framing, message_tokens, system_tokens, tools_tokens
from holdfast.errors import InvalidValue
from holdfast.ports import Tokenizer
from holdfast.records.ids import check_id
from holdfast.records.messages import Message
from holdfast.records.packs import LAYOUTS, LEVELS, MAIN_ROLE, CompactionLevel, Layout, Origin, Segment

MAX_STICKINESS = 0.9
MAX_COUNT = 2**62


class PackRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a pack."""

    budget: int | None = None
    role: str = MAIN_ROLE
    query: str | None = None
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    force_exclude: bool = False
    min_compaction: CompactionLevel = CompactionLevel.NONE
    tokenizer: str | None = None
    layout: Layout = "stable"
    stickiness: float = 0.4
    max_messages: int | None = None
    recall: int | None = None


def check_request(asked: PackRequest) -> None:
    """Check the options of a pack; refuse an invalid one by name."""
    for name in ("budget", "max_messages"):
        value = getattr(asked, name)
        if value is not None and not is_number(value, least=1, most=MAX_COUNT):
            raise InvalidValue(f"{name} must be a whole number from 1 to {MAX_COUNT}, not {value!r:.40}.")
    if asked.tokenizer is not None and (not isinstance(asked.tokenizer, str) or not asked.tokenizer):
        raise InvalidValue(f"tokenizer must be the name of one, not {asked.tokenizer!r:.40}.")
    if asked.layout not in LAYOUTS:
        raise InvalidValue(f"layout must be one of {', '.join(LAYOUTS)}, not {asked.layout!r}.")
    if asked.min_compaction not in LEVELS:
        raise InvalidValue(f"min_compaction must be one of {', '.join(LEVELS)}, not {asked.min_compaction!r}.")
    if not is_number(asked.stickiness, least=0, most=MAX_STICKINESS, whole=False):
        raise InvalidValue(f"stickiness must be a number from 0 to {MAX_STICKINESS}, not {asked.stickiness!r}.")
    if asked.query is not None and not isinstance(asked.query, str):
        raise InvalidValue(f"query must be text, not {type(asked.query).__name__}.")
    recall = asked.recall
    if recall is not None and not is_number(recall, least=0):
        raise InvalidValue(f"recall must be a number of memories, 0 or more, not {recall!r}.")
    for name in ("include", "exclude"):
        if not all(isinstance(one, str) for one in getattr(asked, name)):
            raise InvalidValue(f"{name} must name handles, each by its id.")
    check_id(asked.role, "role")


class TokenCounter(msgspec.Struct, frozen=True, kw_only=True):
    """The counter of one pack's tokens."""

    tokenizer: Tokenizer
    framing: Framing
    kept_as: str
    """The name under which counts made in this way are stored with messages."""

    def count(self, message: Message) -> int:
        """Return the tokens of one message, from the stored count if it was made in the same way."""
        if message.tokens is not None and message.tokenizer == self.kept_as:
            return message.tokens
        return message_tokens(message, self.tokenizer.count, self.framing)

    def count_tools(self, brief: RenderedBrief) -> int:
        """Return the tokens of a brief's tools."""
        return tools_tokens(brief.tools, self.tokenizer.count, self.framing)

    def brief_segment(self, brief: RenderedBrief, origins: tuple[Origin, ...]) -> Segment:
        """Return the segment of the system prompt and tools, which are sent apart from the messages."""
        tokens = system_tokens(brief.system, self.tokenizer.count, self.framing) + self.count_tools(brief)
        return Segment(
            kind="brief",
            id="brief",
            priority="critical",
            trust="operator",
            estimated_tokens=tokens + self.framing.reply,
            messages=(),
            origins=origins,
        )

"""`frame` inside its block: what is said in it, and what it is shown.

A root frame within a session says it in the session's conversation. Any other frame has messages of its own, which
nobody above or below it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

from holdfast.client import context
from holdfast.client.block import Block
from holdfast.client.files import file_parts
from holdfast.client.pack import ContextPack
from holdfast.client.tools import MAX_TOKENS, HistoryTools
from holdfast.core.wire.reading import read
from holdfast.flow.compaction import ruling
from holdfast.flow.context import seeing
from holdfast.flow.stack import saying
from holdfast.records.messages import Message
from holdfast.records.packs import MAIN_ROLE


class FrameLine(Block):
    """The messages of a frame."""

    @overload
    def append(
        self,
        message: list[Any],
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        key: str | None = None,
    ) -> list[Message]: ...

    @overload
    def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        key: str | None = None,
    ) -> Message: ...

    def append(
        self,
        message: Any,
        *,
        files: Sequence[Any] = (),
        partial: bool = False,
        pinned: bool = False,
        key: str | None = None,
    ) -> Message | list[Message]:
        """Text, a mapping, a Message or a provider's response; a list of them in one commit. See Session.append."""
        self._check_inside()
        given = file_parts(message, files) if files else message
        found = saying.append(
            self._ports, self._acting, self.id, read(given, partial=partial), key=self._own(key), pinned=pinned
        )
        ruling.after_append(self._ports, self._acting, found[-1].stream, found)
        return found if isinstance(message, list) else found[-1]

    def pack(
        self,
        budget: int | None = None,
        *,
        role: str = MAIN_ROLE,
        query: str | None = None,
        include: Sequence[str] = (),
        exclude: Sequence[str] = (),
        force_exclude: bool = False,
        min_compaction: str = "none",
        tokenizer: str | None = None,
        layout: str = "stable",
        stickiness: float | None = None,
        max_messages: int | None = None,
        recall: int | None = None,
        as_of: int | None = None,
    ) -> ContextPack:
        """The best that fits of what this frame sees, within its limits and what it has left. See Session.pack."""
        asked = context.asked_for(
            budget,
            role=role,
            query=query,
            include=include,
            exclude=exclude,
            force_exclude=force_exclude,
            min_compaction=min_compaction,
            tokenizer=tokenizer,
            layout=layout,
            stickiness=stickiness,
            max_messages=max_messages,
            recall=recall,
        )
        return context.pack_frame(self._ports, self._acting, self.id, asked, as_of)

    def history_tools(self, *, max_tokens: int = MAX_TOKENS) -> HistoryTools:
        """Tools with which a model reads what this frame sees and its pack left out. Each use counts as a tool call."""
        line = seeing.line_of_frame(self._ports, self._acting, self.id)
        return HistoryTools(self._ports, self._acting, line, frame=self.id, max_tokens=max_tokens)

    def messages(self, limit: int | None = None) -> list[Message]:
        """As they were said, oldest first: all, or the newest `limit`. Also once the frame has ended."""
        return saying.messages(self._ports, self._acting, self.id, limit)

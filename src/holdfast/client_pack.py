"""ContextPack: what one model call is shown, in the form of the provider that is called."""

from __future__ import annotations

import html
from collections.abc import Callable
from typing import Any

from holdfast.core.conversation import SUMMARY_PREFIX
from holdfast.core.wire import anthropic, openai, responses
from holdfast.records.lines import Summary
from holdfast.records.messages import Message, ToolDef
from holdfast.records.packs import ConversationSlice, Packed


class ContextPack:
    """A request's worth of context, within its budget. Reading it changes nothing."""

    __slots__ = ("_load", "_packed")

    def __init__(self, packed: Packed, load: Callable[[Message], Message]) -> None:
        self._packed = packed
        self._load = load

    @property
    def messages(self) -> list[Message]:
        """All but the system prompt, oldest first; a summary is a user's message: users were heard in it."""
        told = [
            Message(role="user", content=SUMMARY_PREFIX + one.text, synthetic=True) for one in self._packed.summaries
        ]
        return [*told, *self._packed.conversation.messages]

    @property
    def system(self) -> str | None:
        """The system prompt."""
        return self._packed.system

    @property
    def tools(self) -> tuple[ToolDef, ...]:
        """The tools that the model is told about."""
        return self._packed.tools

    @property
    def summaries(self) -> tuple[Summary, ...]:
        """The summaries that stand for what is not shown."""
        return self._packed.summaries

    @property
    def conversation(self) -> ConversationSlice:
        """The part of the conversation that is shown as it was said."""
        return self._packed.conversation

    @property
    def tokens(self) -> int:
        """What the request costs; never more than `budget`."""
        return self._packed.tokens

    @property
    def budget(self) -> int:
        """The most it may cost."""
        return self._packed.budget

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
        """How many messages had to be shortened to fit."""
        return self._packed.shortened

    def to_openai(self) -> dict[str, Any]:
        """Keyword arguments for `client.chat.completions.create`."""
        return openai.render(self._whole(), system=self.system, tools=self.tools)

    def to_responses(self) -> dict[str, Any]:
        """Keyword arguments for `client.responses.create`."""
        return responses.render(self._whole(), system=self.system, tools=self.tools)

    def to_anthropic(self) -> dict[str, Any]:
        """Keyword arguments for `client.messages.create`; `model` and `max_tokens` are yours."""
        return anthropic.render(self._whole(), system=self.system, tools=self.tools)

    def _whole(self) -> list[Message]:
        return [self._load(message) for message in self.messages]

    def __repr__(self) -> str:
        left = self.conversation.truncated_count
        sign = "" if self.exact else "about "
        return f"ContextPack({self.conversation.message_count} messages, {left} left out, {sign}{self.tokens} tokens)"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{html.escape(one.role)}</td><td>{one.tokens or ''}</td>"
            f"<td>{html.escape(one.text[:200])}</td></tr>"
            for one in self.messages
        )
        return f"<p>{html.escape(repr(self))} of {self.budget}</p><table>{rows}</table>"

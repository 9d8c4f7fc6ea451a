"""Models: their metadata, and model calls and replies, independent of the provider."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from holdfast.records.messages import Message
from holdfast.records.usage import Usage

DeltaKind = Literal["text", "reasoning", "tool", "reset"]


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One model, or the assumptions about a model that is not `known`."""

    name: str
    provider: str
    tokenizer: str
    window: int
    reply_reserve: int
    known: bool = True

    @property
    def input_budget(self) -> int:
        """Tokens that a request may have while leaving room for the reply."""
        return self.window - self.reply_reserve


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a streamed reply. `reset` means that the reply starts over: discard the pieces before it.

    A `tool` delta names the tool being called; its arguments come with the whole reply.
    """

    kind: DeltaKind = "text"
    text: str = ""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply. `finish` is the reason if it was cut short, such as `length`, `content_filter` or `refusal`."""

    message: Message
    usage: Usage = Usage()
    finish: str | None = None
    attempts: int = 1


class RenderablePack(Protocol):
    """A pack as a model needs it: the keyword arguments of a request, in each provider's format."""

    def to_openai(self) -> Mapping[str, Any]: ...

    def to_responses(self) -> Mapping[str, Any]: ...

    def to_anthropic(self) -> Mapping[str, Any]: ...


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model. `call` is its id, and the idempotency key for providers that accept one."""

    pack: RenderablePack
    call: str = ""
    output: dict[str, Any] | None = None
    """The JSON schema that the provider is told to follow. The reply is not validated here: the caller checks it."""
    options: Mapping[str, Any] = {}
    """Further options of the request: temperature, max_tokens, reasoning."""

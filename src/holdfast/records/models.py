"""What is known about a model: how its tokens are counted, how much it takes, how much it may answer.

What goes to a model and what comes back, whoever the provider is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from holdfast.records.messages import Message
from holdfast.records.usage import Usage


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One model, or what is assumed of one that is not `known`."""

    name: str
    provider: str
    tokenizer: str
    window: int
    reply_reserve: int
    known: bool = True

    @property
    def input_budget(self) -> int:
        """Tokens that a request may have, so that there is room for the answer."""
        return self.window - self.reply_reserve


DeltaKind = Literal["text", "reasoning", "tool", "reset"]


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a reply while it comes. `reset` says that the reply begins anew: forget the pieces before it.

    A `tool` delta names the tool that is being called; its arguments come with the whole reply.
    """

    kind: DeltaKind = "text"
    text: str = ""


class ModelReply(msgspec.Struct, frozen=True, kw_only=True):
    """A whole reply. `finish` says why it ended if not by itself, as in `length`, `content_filter` or `refusal`."""

    message: Message
    usage: Usage = Usage()
    finish: str | None = None
    attempts: int = 1


class Shown(Protocol):
    """A pack, as far as a model needs it: the keyword arguments of a request, in each form."""

    def to_openai(self) -> Mapping[str, Any]: ...

    def to_responses(self) -> Mapping[str, Any]: ...

    def to_anthropic(self) -> Mapping[str, Any]: ...


class ModelCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call of a model. `call` is its id, and the idempotency key where a provider takes one."""

    pack: Shown
    call: str = ""
    output: dict[str, Any] | None = None
    """The JSON schema that the provider is told to keep to. The reply comes as it is: whoever asked checks it."""
    options: Mapping[str, Any] = {}
    """What else the request says: temperature, max_tokens, reasoning."""

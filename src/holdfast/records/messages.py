"""Messages of a conversation, in one shape for every role and every provider, and calls of the models that reply.

`content` is text or a list of parts. A part is a plain mapping with a `type`:

    text       {"type": "text", "text": …}
    image      {"type": "image", "artifact": …, "media_type": …}, or "url" in place of both
    file       {"type": "file", "artifact": …, "media_type": …, "name": …}, or "url" or "file_id"
    reasoning  {"type": "reasoning", "provider": …, "item": …}: the provider's own item, returned to it unaltered
    refusal    {"type": "refusal", "text": …}
    call       {"type": "call", "call": 0}: the position of a tool call among the parts
    other      {"type": "other", "provider": …, "item": …}: an item that only its provider understands

While a message is being read or rendered, an image or file has its bytes as "data" instead of "artifact".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.usage import Usage

ROLES: frozenset[str] = frozenset({"system", "developer", "user", "assistant", "tool"})

DeltaKind = Literal["text", "reasoning", "tool", "reset"]

Part = dict[str, Any]
Content = str | list[Part]

INTERRUPTED_RESULT = "This call was interrupted before it gave a result. It may or may not have taken effect."


class ToolCallRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call requested by an assistant. `id` is holdfast's own, because providers reuse theirs."""

    name: str
    arguments: str = "{}"
    """The arguments as JSON text, exactly as the model wrote them."""
    id: str = ""
    provider_id: str | None = None

    @property
    def args(self) -> Any:
        """The arguments, parsed."""
        try:
            return msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            raise InvalidValue(f"The arguments of {self.name} are not JSON: {self.arguments[:80]!r}.") from None


class ToolCallResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The result of a tool call. `result` is text, a list of parts, or other plain data."""

    tool_call_id: str = ""
    """The `id` of the request; empty while only the provider's id is known."""
    result: Any = None
    is_error: bool = False
    provider_id: str | None = None
    interrupted: bool = False
    """True if the call was interrupted and this stands in for its missing result."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. Fields after `name` are filled in when it is stored."""

    role: str
    content: Content | None = None
    tool_calls: tuple[ToolCallRequest, ...] = ()
    tool_results: tuple[ToolCallResult, ...] = ()
    name: str | None = None
    partial: bool = False
    """True if the message was cut off: the text a user saw before a stop."""
    synthetic: bool = False
    """True if holdfast created the message to keep the conversation valid."""
    provider: str | None = None
    model: str | None = None
    provider_id: str | None = None
    usage: Usage | None = None
    metadata: dict[str, Any] | None = None
    id: str = ""
    stream: str = ""
    version: int = 0
    timestamp: int = 0
    round: int = 0
    tokens: int | None = None
    tokenizer: str | None = None
    pinned: bool = False
    trust: str = "user"
    erased: bool = False
    policy: str | None = None
    """The compaction policy unless it is pinned: compress_first or discard_when_done; None is normal."""

    @property
    def text(self) -> str:
        """The message's text, without images, files, reasoning and calls."""
        if isinstance(self.content, str):
            return self.content
        texts = (part.get("text") for part in self.content or () if part.get("type") in ("text", "refusal"))
        return "".join(text for text in texts if isinstance(text, str))

    @property
    def finish(self) -> str | None:
        """The provider's reason for a reply that was cut short, as `length` or `refusal`; None if it ended normally."""
        why = (self.metadata or {}).get("finish")
        return why if isinstance(why, str) else None


class ToolDef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool definition as models receive it; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None
    raw: dict[str, Any] | None = None
    """A provider's own tool (web search, code execution), passed to that provider unchanged."""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """One problem found in a list of messages, and the way it was handled."""

    index: int
    """The message's index in the given list, from 0."""
    problem: str
    """orphan_result, duplicate_result, missing_result, misplaced_result, empty_message, invalid_arguments,
    nameless_call, unknown_role or malformed."""
    done: str
    """A description of the repair."""


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

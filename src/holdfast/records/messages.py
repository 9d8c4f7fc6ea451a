"""Messages: what was said in a conversation, in one shape for every role and every provider.

`content` is text or a list of parts. A part is a plain mapping with a `type`:

    text       {"type": "text", "text": …}
    image      {"type": "image", "artifact": …, "media_type": …}, or "url" in place of both
    file       {"type": "file", "artifact": …, "media_type": …, "name": …}, or "url" or "file_id"
    reasoning  {"type": "reasoning", "provider": …, "item": …}: the provider's own item, returned to it unaltered
    refusal    {"type": "refusal", "text": …}
    call       {"type": "call", "call": 0}: where in the order of parts a tool call stood
    other      {"type": "other", "provider": …, "item": …}: what only its provider understands

While a message is on its way in or out, an image or file has its bytes as "data" instead of "artifact".
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from holdfast.errors import InvalidValue
from holdfast.records.usage import Usage

Role = Literal["system", "developer", "user", "assistant", "tool"]
ROLES: frozenset[str] = frozenset({"system", "developer", "user", "assistant", "tool"})

Part = dict[str, Any]
Content = str | list[Part]

INTERRUPTED = "This call was interrupted before it gave a result. It may or may not have taken effect."


class ToolCallRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool call that an assistant asked for. `id` is holdfast's own; providers reuse theirs."""

    name: str
    arguments: str = "{}"
    """The arguments as JSON text, exactly as the model wrote them."""
    id: str = ""
    provider_id: str | None = None

    @property
    def args(self) -> Any:
        """The arguments as data."""
        try:
            return msgspec.json.decode(self.arguments)
        except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
            raise InvalidValue(f"The arguments of {self.name} are not JSON: {self.arguments[:80]!r}.") from None


class ToolCallResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tool call came to. `result` is text, a list of parts, or other plain data."""

    tool_call_id: str = ""
    """The `id` of the request; empty while only the provider's id is known."""
    result: Any = None
    is_error: bool = False
    provider_id: str | None = None
    interrupted: bool = False
    """Whether nothing came: it stands for the result of a call that was torn."""


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One message. Fields after `name` are filled in when it is stored."""

    role: str
    content: Content | None = None
    tool_calls: tuple[ToolCallRequest, ...] = ()
    tool_results: tuple[ToolCallResult, ...] = ()
    name: str | None = None
    partial: bool = False
    """Whether it was cut off: what a person saw before a stop."""
    synthetic: bool = False
    """Whether holdfast made it, to keep the conversation valid."""
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
    """What may become of it when the conversation is made shorter, unless it is pinned: compress_first or
    discard_when_done; without one it is normal."""

    @property
    def text(self) -> str:
        """What it says, without images, files, reasoning and calls."""
        if isinstance(self.content, str):
            return self.content
        texts = (part.get("text") for part in self.content or () if part.get("type") in ("text", "refusal"))
        return "".join(text for text in texts if isinstance(text, str))

    @property
    def finish(self) -> str | None:
        """Why a reply ended, in its provider's word, as `length` or `refusal`; None if it ended by itself."""
        why = (self.metadata or {}).get("finish")
        return why if isinstance(why, str) else None


class ToolDef(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A tool as a model is told about it; `parameters` is a JSON schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] = msgspec.field(default_factory=lambda: {"type": "object", "properties": {}})
    strict: bool | None = None
    raw: dict[str, Any] | None = None
    """A provider's own tool (web search, code execution), passed to it as it is."""


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was wrong in a list of messages, and what was done about it."""

    index: int
    """Which message of the given list, from 0."""
    problem: str
    """orphan_result, duplicate_result, missing_result, misplaced_result, empty_message, invalid_arguments,
    nameless_call, unknown_role or malformed."""
    done: str
    """What was done, in words."""

"""What a rendered request holds, as the keyword arguments that each provider's SDK takes.

Only what a pack says is here: the model, how long the answer may be and the like are the caller's. Messages, items
and tools are plain data in the provider's form. They are not typed more closely, so that the types of any release
of an SDK accept them: `client.chat.completions.create(model=…, **pack.to_openai())` type-checks.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class OpenAIRequest(TypedDict):
    """For `chat.completions.create`. A system prompt is the first of the messages."""

    messages: list[Any]
    tools: NotRequired[list[Any]]


class ResponsesRequest(TypedDict):
    """For `responses.create`."""

    instructions: NotRequired[str]
    input: list[Any]
    tools: NotRequired[list[Any]]


class AnthropicRequest(TypedDict):
    """For `messages.create`. A system prompt that carries a cache mark is a list of one block."""

    system: NotRequired[str | list[Any]]
    messages: list[Any]
    tools: NotRequired[list[Any]]


Request = OpenAIRequest | ResponsesRequest | AnthropicRequest

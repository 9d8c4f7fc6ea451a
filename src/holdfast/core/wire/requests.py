"""Rendered requests, as the keyword arguments that each provider's SDK takes.

They contain only what a pack defines: the model, the answer's length and the like are the caller's. Messages, items
and tools are plain data in the provider's format. They are not typed more closely, so that the types of any SDK
release accept them: `client.chat.completions.create(model=…, **pack.to_openai())` type-checks.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class OpenAIRequest(TypedDict):
    """Keyword arguments for `chat.completions.create`. A system prompt is the first of the messages."""

    messages: list[Any]
    tools: NotRequired[list[Any]]


class ResponsesRequest(TypedDict):
    """Keyword arguments for `responses.create`."""

    instructions: NotRequired[str]
    input: list[Any]
    tools: NotRequired[list[Any]]


class AnthropicRequest(TypedDict):
    """Keyword arguments for `messages.create`. A system prompt with a cache mark is a list of one block."""

    system: NotRequired[str | list[Any]]
    messages: list[Any]
    tools: NotRequired[list[Any]]


Request = OpenAIRequest | ResponsesRequest | AnthropicRequest

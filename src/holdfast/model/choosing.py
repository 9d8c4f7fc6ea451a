"""A model by a text: `openai:gpt-5-mini`, `responses:gpt-5`, `anthropic:claude-sonnet-4-5`, or a name that is known.

Behind an `@` stands the address of another host that speaks the same, as in `openai:qwen3@https://models.example.com/v1`.
"""

from __future__ import annotations

from typing import Unpack

from holdfast.errors import InvalidValue
from holdfast.model.anthropic_messages import AnthropicMessages
from holdfast.model.http_model import How, HttpModel
from holdfast.model.models import model_info
from holdfast.model.openai_chat import OpenAIChat
from holdfast.model.openai_responses import OpenAIResponses

FORMS: dict[str, type[HttpModel]] = {
    "openai": OpenAIChat,
    "responses": OpenAIResponses,
    "anthropic": AnthropicMessages,
}
_WRITE = (
    "Write openai:<name>, responses:<name> or anthropic:<name>, with @<address> behind it for another host, "
    "as in openai:qwen3@https://models.example.com/v1."
)


def model_from(text: str, **how: Unpack[How]) -> HttpModel:
    """The model that a text names; `how` goes to its constructor."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidValue(f"A model is named by text, not by {text!r:.40}. {_WRITE}")
    named, at, address = text.strip().partition("@")
    if at and not address:
        raise InvalidValue(f"{text!r:.80} has no address behind the @. {_WRITE}")
    form, colon, name = named.partition(":")
    if colon and form in FORMS:
        if not name.strip():
            raise InvalidValue(f"{text!r:.80} names no model. {_WRITE}")
        return FORMS[form](name.strip(), **_at(address, how))
    found = model_info(named)
    if found.known and found.provider in ("openai", "anthropic") and not (colon and not named.startswith("ft:")):
        return FORMS[found.provider](named, **_at(address, how))
    raise InvalidValue(f"It is not known who speaks for the model {named!r:.80}. {_WRITE}")


def _at(address: str, how: How) -> How:
    return {**how, "base_url": address} if address else how

"""Chat completions of OpenAI, and of the many hosts that speak the same: `POST <address>/chat/completions`."""

from __future__ import annotations

import re
from typing import Any, ClassVar

from holdfast.core.wire.formats import Format
from holdfast.model.http_model import HttpModel
from holdfast.model.output_schema import NAME, closed, is_strict
from holdfast.records.calling import ModelCall

_NEW_NAMES = re.compile(r"(?:.*/)?(?:gpt-[5-9]|o\d)")
"""Models that take max_completion_tokens only."""


class OpenAIChat(HttpModel):
    """`OpenAIChat("gpt-5-mini")`; the key is `api_key`, or the environment's OPENAI_API_KEY.

    For other hosts give `base_url`, as in `https://models.example.com/v1`; they may need no key. Options have OpenAI's
    names; `max_tokens`, and `reasoning` as in "low", are put as the model wants them.
    """

    form: ClassVar[Format] = "openai"
    path: ClassVar[str] = "/chat/completions"
    address: ClassVar[str] = "https://api.openai.com/v1"
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    address_variable: ClassVar[str] = "OPENAI_BASE_URL"

    def _body(self, asked: ModelCall) -> dict[str, Any]:
        options = self._chosen(asked)
        if isinstance(options.get("reasoning"), str):
            options["reasoning_effort"] = options.pop("reasoning")
        if "max_tokens" in options and _NEW_NAMES.match(self.name):
            options.setdefault("max_completion_tokens", options.pop("max_tokens"))
        if asked.output is not None:
            schema = closed(asked.output)
            told = {"name": NAME, "schema": schema, "strict": is_strict(schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": told}
        if self._stream:
            # Without this a streamed reply says nothing of what it used.
            options["stream_options"] = {"include_usage": True}
        return {**options, **asked.pack.to_openai(), "model": self.name, "stream": self._stream}

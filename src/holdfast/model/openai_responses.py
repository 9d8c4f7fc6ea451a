"""OpenAI's Responses: `POST <address>/responses`.

Of a model that reasons nothing is kept at the provider: its reasoning comes encrypted, is journaled as it is, and
goes back unaltered with the next request.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar

from holdfast.core.wire.formats import Format
from holdfast.model.http_model import HttpModel
from holdfast.model.output_schema import NAME, closed, is_strict
from holdfast.records.calling import ModelCall

_REASONS = re.compile(r"(?:.*/)?(?:gpt-[5-9](?!.*chat)|o\d)")
_ENCRYPTED = "reasoning.encrypted_content"


class OpenAIResponses(HttpModel):
    """`OpenAIResponses("gpt-5")`; the key is `api_key`, or the environment's OPENAI_API_KEY.

    Options have the names of Responses; `max_tokens`, and `reasoning` as in "low", are put in its words. `store=True`
    among the options lets OpenAI keep the replies.
    """

    form: ClassVar[Format] = "responses"
    path: ClassVar[str] = "/responses"
    address: ClassVar[str] = "https://api.openai.com/v1"
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    address_variable: ClassVar[str] = "OPENAI_BASE_URL"

    def _body(self, asked: ModelCall) -> dict[str, Any]:
        alone = {"store": False, "include": [_ENCRYPTED]} if _REASONS.match(self.name) else {}
        options = self._chosen(asked, **alone)
        if isinstance(options.get("reasoning"), str):
            options["reasoning"] = {"effort": options["reasoning"]}
        if "max_tokens" in options:
            options.setdefault("max_output_tokens", options.pop("max_tokens"))
        if asked.output is not None:
            schema = closed(asked.output)
            form = {"type": "json_schema", "name": NAME, "schema": schema, "strict": is_strict(schema)}
            options["text"] = {**(options.get("text") or {}), "format": form}
        return {**options, **asked.pack.to_responses(), "model": self.name, "stream": self._stream}

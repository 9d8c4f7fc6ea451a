"""Anthropic's Messages: `POST <address>/messages`.

An answer that must fit a schema is asked for by an output format, or, of models that know none, by a tool that takes
the answer. What is given to that tool comes back as the text of the message: callers see the same either way.
"""

from __future__ import annotations

import re
from typing import Any, ClassVar, Literal, Unpack

from holdfast.core.wire.formats import Format
from holdfast.core.wire.streaming import Accumulator
from holdfast.core.wire.streaming_anthropic import answered
from holdfast.errors import InvalidValue
from holdfast.model.http_model import How, HttpModel
from holdfast.model.models import model_info
from holdfast.model.output_schema import NAME, closed, without_limits
from holdfast.records.calling import ModelCall

VERSION = "2023-06-01"
MAX_TOKENS = 16_000
"""How long a reply may get unless told otherwise; it must be said in every request."""
_NO_FORMAT = re.compile(r".*claude-(?:[123]|instant|(?:opus|sonnet)-4(?:-0|-2025\d{4})?$)")
"""Models from before output formats."""
_TOLD = "Give your answer with this tool, and with nothing else, once you know it."


class AnthropicMessages(HttpModel):
    """`AnthropicMessages("claude-sonnet-4-5")`; the key is `api_key`, or the environment's ANTHROPIC_API_KEY.

    `structured` says how an answer that must fit a schema is asked for: `format`, `tool`, or what the model knows.
    Options have Anthropic's names; `reasoning` as in "low" is its effort.
    """

    form: ClassVar[Format] = "anthropic"
    path: ClassVar[str] = "/messages"
    address: ClassVar[str] = "https://api.anthropic.com/v1"
    key_variable: ClassVar[str] = "ANTHROPIC_API_KEY"
    address_variable: ClassVar[str] = "ANTHROPIC_BASE_URL"

    def __init__(
        self,
        model: str,
        *,
        max_tokens: int | None = None,
        structured: Literal["format", "tool"] | None = None,
        **how: Unpack[How],
    ) -> None:
        super().__init__(model, **how)
        if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
            raise InvalidValue(f"max_tokens must be a whole number of 1 or more, not {max_tokens!r:.40}.")
        if structured not in (None, "format", "tool"):
            raise InvalidValue(f"structured is format, tool, or left out, not {structured!r:.40}.")
        self._max_tokens = max_tokens or min(MAX_TOKENS, model_info(model).reply_reserve)
        self._by_tool = structured == "tool" or (structured is None and _NO_FORMAT.match(model) is not None)

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def _headers_for(self, call: str) -> dict[str, str]:
        return {"anthropic-version": VERSION, **super()._headers_for(call)}

    def _rooted(self, url: str) -> str:
        # Its SDK takes the address without the version, so both are understood.
        return url if re.search(r"/v\d+$", url) else f"{url}/v1"

    def _body(self, asked: ModelCall) -> dict[str, Any]:
        options = self._chosen(asked, max_tokens=self._max_tokens)
        shown: dict[str, Any] = dict(asked.pack.to_anthropic())
        if isinstance(options.get("reasoning"), str):
            options["output_config"] = {**(options.get("output_config") or {}), "effort": options.pop("reasoning")}
        if asked.output is not None:
            self._ask_for(closed(asked.output), options, shown)
        return {**options, **shown, "model": self.name, "stream": self._stream}

    def _ask_for(self, schema: dict[str, Any], options: dict[str, Any], shown: dict[str, Any]) -> None:
        if not self._by_tool:
            form = {"type": "json_schema", "schema": without_limits(schema)}
            options["output_config"] = {**(options.get("output_config") or {}), "format": form}
            return
        others = list(shown.get("tools") or ())
        name = _answer_tool(others)
        shown["tools"] = [*others, {"name": name, "description": _TOLD, "input_schema": schema}]
        # With other tools it must call one, be it the one that takes the answer.
        options["tool_choice"] = {"type": "any"} if others else {"type": "tool", "name": name}

    def _tool_of(self, asked: ModelCall) -> str | None:
        if asked.output is None or not self._by_tool:
            return None
        return _answer_tool(asked.pack.to_anthropic().get("tools") or ())

    def _pieces(self, asked: ModelCall) -> Accumulator:
        return Accumulator(self.form, answer_tool=self._tool_of(asked))

    def _settled(self, whole: dict[str, Any], asked: ModelCall) -> dict[str, Any]:
        return answered(whole, self._tool_of(asked))


def _answer_tool(others: Any) -> str:
    """A name for the tool that takes the answer which no other tool has."""
    taken = {tool.get("name") for tool in others if isinstance(tool, dict)}
    name = NAME
    while name in taken:
        name += "_"
    return name

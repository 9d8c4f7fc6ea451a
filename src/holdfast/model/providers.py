"""The models of OpenAI, Anthropic and compatible hosts, and the choice of one by a text.

    OpenAIChat          POST <address>/chat/completions, also for the many compatible hosts
    OpenAIResponses     POST <address>/responses; reasoning arrives encrypted, is journaled, and goes back unaltered
    AnthropicMessages   POST <address>/messages

A text is `openai:gpt-5-mini`, `responses:gpt-5`, `anthropic:claude-sonnet-4-5` or a known model name. After an `@`
comes the address of a compatible host, as in `openai:qwen3@https://models.example.com/v1`. A reply that must fit a
schema is requested by an output format or, for Anthropic's models without that, by a tool that takes the answer and
whose input becomes the text of the message: callers see the same either way. Providers want an object at the root of
the schema and no unknown fields; strict mode also wants every field required. Not every host enforces a schema. The
caller checks the reply against the type that the schema was made from.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ClassVar, Literal, Unpack

from holdfast.core.numbers import is_number
from holdfast.core.wire.formats import Format
from holdfast.core.wire.stream import StreamAccumulator, unwrap_answer
from holdfast.errors import InvalidValue
from holdfast.model.http import HttpModel, HttpModelOptions
from holdfast.model.registry import model_info
from holdfast.records.messages import ModelCall

_COMPLETION_TOKENS_MODELS = re.compile(r"(?:.*/)?(?:gpt-[5-9]|o\d)")
"""Models that accept only max_completion_tokens."""
_REASONING_MODELS = re.compile(r"(?:.*/)?(?:gpt-[5-9](?!.*chat)|o\d)")
_ENCRYPTED = "reasoning.encrypted_content"
ANTHROPIC_VERSION = "2023-06-01"
ANTHROPIC_MAX_TOKENS = 16_000
"""The default length limit of a reply; every request must state one."""
_ANSWER_TOOL_MODELS = re.compile(r".*claude-(?:[123]|instant|(?:opus|sonnet)-4(?:-0|-2025\d{4})?$)")
"""Models older than output formats."""
_ANSWER_TOOL_DESCRIPTION = "Give your answer with this tool, and with nothing else, once you know it."
_SYNTAX = (
    "Write openai:<name>, responses:<name> or anthropic:<name>, with @<address> behind it for another host, "
    "as in openai:qwen3@https://models.example.com/v1."
)
ANSWER_NAME = "answer"
"""The schema's name in requests, and that of the tool that takes the answer where no output format exists."""
_DEPTH_LIMIT = 64
_NAME_MAPS = ("properties", "$defs", "definitions")
"""Keywords whose values map the caller's own names to schemas."""
_VALUES = ("default", "const", "enum", "examples")
"""Keywords whose values are data, not schemas."""
_LIMITS = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "uniqueItems", "minProperties", "maxProperties"),
)


class OpenAIChat(HttpModel):
    """A chat completions model: `OpenAIChat("gpt-5-mini")`. The key is `api_key`, or the variable OPENAI_API_KEY.

    For other hosts give `base_url`, as in `https://models.example.com/v1`; a server on this machine needs no key.
    Options have OpenAI's names; `max_tokens`, and `reasoning` such as "low", are translated for the model.
    """

    form: ClassVar[Format] = "openai"
    path: ClassVar[str] = "/chat/completions"
    address: ClassVar[str] = "https://api.openai.com/v1"
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    address_variable: ClassVar[str] = "OPENAI_BASE_URL"

    def _build_body(self, asked: ModelCall) -> dict[str, Any]:
        options = self._merge_options(asked)
        if isinstance(options.get("reasoning"), str):
            options["reasoning_effort"] = options.pop("reasoning")
        if "max_tokens" in options and _COMPLETION_TOKENS_MODELS.match(self.name):
            options.setdefault("max_completion_tokens", options.pop("max_tokens"))
        if asked.output is not None:
            schema = close_schema(asked.output)
            told = {"name": ANSWER_NAME, "schema": schema, "strict": is_strict(schema)}
            options["response_format"] = {"type": "json_schema", "json_schema": told}
        if self._stream:
            # Without this a streamed reply reports no usage.
            options["stream_options"] = {"include_usage": True}
        return {**options, **asked.pack.to_openai(), "model": self.name, "stream": self._stream}


class OpenAIResponses(HttpModel):
    """A Responses model: `OpenAIResponses("gpt-5")`. The key is `api_key`, or the variable OPENAI_API_KEY.

    Options have the names of the Responses API; `max_tokens`, and `reasoning` such as "low", are translated. The option
    `store=True` lets OpenAI keep the replies.
    """

    form: ClassVar[Format] = "responses"
    path: ClassVar[str] = "/responses"
    address: ClassVar[str] = "https://api.openai.com/v1"
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    address_variable: ClassVar[str] = "OPENAI_BASE_URL"

    def _build_body(self, asked: ModelCall) -> dict[str, Any]:
        alone = {"store": False, "include": [_ENCRYPTED]} if _REASONING_MODELS.match(self.name) else {}
        options = self._merge_options(asked, **alone)
        if isinstance(options.get("reasoning"), str):
            options["reasoning"] = {"effort": options["reasoning"]}
        if "max_tokens" in options:
            options.setdefault("max_output_tokens", options.pop("max_tokens"))
        if asked.output is not None:
            schema = close_schema(asked.output)
            form = {"type": "json_schema", "name": ANSWER_NAME, "schema": schema, "strict": is_strict(schema)}
            options["text"] = {**(options.get("text") or {}), "format": form}
        return {**options, **asked.pack.to_responses(), "model": self.name, "stream": self._stream}


class AnthropicMessages(HttpModel):
    """A Messages model: `AnthropicMessages("claude-sonnet-4-5")`. The key is `api_key`, or ANTHROPIC_API_KEY.

    `structured` selects the way to request a reply that must fit a schema: `format`, `tool`, or by default the one that
    the model supports. Options have Anthropic's names; `reasoning` such as "low" is its effort.
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
        **how: Unpack[HttpModelOptions],
    ) -> None:
        super().__init__(model, **how)
        if max_tokens is not None and not is_number(max_tokens, least=1):
            raise InvalidValue(f"max_tokens must be a whole number of 1 or more, not {max_tokens!r:.40}.")
        if structured not in (None, "format", "tool"):
            raise InvalidValue(f"structured is format, tool, or left out, not {structured!r:.40}.")
        self._max_tokens = max_tokens or min(ANTHROPIC_MAX_TOKENS, model_info(model).reply_reserve)
        self._by_tool = structured == "tool" or (structured is None and _ANSWER_TOOL_MODELS.match(model) is not None)

    def _key_headers(self, key: str) -> dict[str, str]:
        return {"x-api-key": key}

    def _build_headers(self, call: str, key: str) -> dict[str, str]:
        return {"anthropic-version": ANTHROPIC_VERSION, **super()._build_headers(call, key)}

    def _complete_url(self, url: str) -> str:
        # Anthropic's SDK takes the address without the version, so both forms are accepted.
        return url if re.search(r"/v\d+$", url) else f"{url}/v1"

    def _build_body(self, asked: ModelCall) -> dict[str, Any]:
        options = self._merge_options(asked, max_tokens=self._max_tokens)
        shown: dict[str, Any] = dict(asked.pack.to_anthropic())
        if isinstance(options.get("reasoning"), str):
            options["output_config"] = {**(options.get("output_config") or {}), "effort": options.pop("reasoning")}
        if asked.output is not None:
            self._request_schema(close_schema(asked.output), options, shown)
        return {**options, **shown, "model": self.name, "stream": self._stream}

    def _request_schema(self, schema: dict[str, Any], options: dict[str, Any], shown: dict[str, Any]) -> None:
        if not self._by_tool:
            form = {"type": "json_schema", "schema": strip_limits(schema)}
            options["output_config"] = {**(options.get("output_config") or {}), "format": form}
            return
        others = list(shown.get("tools") or ())
        name = _free_tool_name(others)
        shown["tools"] = [*others, {"name": name, "description": _ANSWER_TOOL_DESCRIPTION, "input_schema": schema}]
        # With other tools present, the model must call some tool; the answer tool is one of them.
        options["tool_choice"] = {"type": "any"} if others else {"type": "tool", "name": name}

    def _answer_tool_name(self, asked: ModelCall) -> str | None:
        if asked.output is None or not self._by_tool:
            return None
        return _free_tool_name(asked.pack.to_anthropic().get("tools") or ())

    def _make_accumulator(self, asked: ModelCall) -> StreamAccumulator:
        return StreamAccumulator(self.form, answer_tool=self._answer_tool_name(asked))

    def _finish_response(self, whole: dict[str, Any], asked: ModelCall) -> dict[str, Any]:
        return unwrap_answer(whole, self._answer_tool_name(asked))


def _free_tool_name(others: Any) -> str:
    """Return a name for the answer tool that no other tool has."""
    taken = {tool.get("name") for tool in others if isinstance(tool, dict)}
    name = ANSWER_NAME
    while name in taken:
        name += "_"
    return name


ADAPTERS: dict[str, type[HttpModel]] = {
    "openai": OpenAIChat,
    "responses": OpenAIResponses,
    "anthropic": AnthropicMessages,
}


def create_model(text: str, **how: Unpack[HttpModelOptions]) -> HttpModel:
    """Create the model that a text names; `how` goes to its constructor."""
    if not isinstance(text, str) or not text.strip():
        raise InvalidValue(f"A model is named by text, not by {text!r:.40}. {_SYNTAX}")
    named, at, address = text.strip().partition("@")
    if at and not address:
        raise InvalidValue(f"{text!r:.80} has no address behind the @. {_SYNTAX}")
    if address:
        how["base_url"] = address
    form, colon, name = named.partition(":")
    if colon and form in ADAPTERS:
        if not name.strip():
            raise InvalidValue(f"{text!r:.80} names no model. {_SYNTAX}")
        return ADAPTERS[form](name.strip(), **how)
    found = model_info(named)
    if found.known and found.provider in ("openai", "anthropic") and not (colon and not named.startswith("ft:")):
        return ADAPTERS[found.provider](named, **how)
    raise InvalidValue(f"The model {named!r:.80} has an unknown provider. {_SYNTAX}")


def close_schema(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with its root reference inlined and unknown fields forbidden, unless it mentions them."""
    root = dict(schema)
    target = _follow_reference(root, schema, 0)
    if "$ref" in root and target is not root:
        # Providers refuse a root that is only a reference.
        root = {**{key: value for key, value in root.items() if key != "$ref"}, **target}

    def close(node: dict[str, Any]) -> dict[str, Any]:
        if node.get("type") == "object" and "properties" in node:
            node.setdefault("additionalProperties", False)
        return node

    found: dict[str, Any] = _map_nodes(root, close)
    return found


def strip_limits(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema for providers that refuse limits: they move to the description, and the caller checks them."""

    def strip(node: dict[str, Any]) -> dict[str, Any]:
        limits = ", ".join(f"{key}: {node[key]}" for key in _LIMITS if key in node)
        if not limits:
            return node
        said = node.get("description")
        told = f"{said} ({limits})" if isinstance(said, str) and said else limits
        return {**{key: value for key, value in node.items() if key not in _LIMITS}, "description": told}

    found: dict[str, Any] = _map_nodes(schema, strip)
    return found


def is_strict(schema: dict[str, Any]) -> bool:
    """Return True if a schema has only what strict mode accepts: objects with every field required."""
    return schema.get("type") == "object" and _is_node_strict(schema, 0)


def _map_nodes(schema: Any, change: Callable[[dict[str, Any]], dict[str, Any]], depth: int = 0) -> Any:
    """Return a schema with every object in it changed, from the innermost out. The caller's own values stay."""
    if isinstance(schema, list) and depth <= _DEPTH_LIMIT:
        return [_map_nodes(item, change, depth + 1) for item in schema]
    if not isinstance(schema, dict) or depth > _DEPTH_LIMIT:
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _NAME_MAPS and isinstance(value, dict):
            made[key] = {name: _map_nodes(item, change, depth + 1) for name, item in value.items()}
        else:
            made[key] = value if key in _VALUES else _map_nodes(value, change, depth + 1)
    return change(made)


def _is_node_strict(schema: Any, depth: int) -> bool:
    if depth > _DEPTH_LIMIT:
        return False
    if isinstance(schema, list):
        return all(_is_node_strict(item, depth + 1) for item in schema)
    if not isinstance(schema, dict):
        return True
    if "default" in schema or "oneOf" in schema:
        return False
    fields = schema.get("properties")
    if schema.get("type") == "object":
        named = set(fields) if isinstance(fields, dict) else set()
        if schema.get("additionalProperties") is not False or set(schema.get("required") or ()) != named:
            return False
    return all(
        all(_is_node_strict(item, depth + 1) for item in value.values())
        if key in _NAME_MAPS and isinstance(value, dict)
        else key in ("const", "enum") or _is_node_strict(value, depth + 1)
        for key, value in schema.items()
    )


def _follow_reference(schema: Any, root: dict[str, Any], depth: int) -> dict[str, Any]:
    """Return the schema that a reference within the same document leads to."""
    if not isinstance(schema, dict):
        return {}
    address = schema.get("$ref")
    if not isinstance(address, str) or not address.startswith("#/") or depth > _DEPTH_LIMIT:
        return schema
    found: Any = root
    for name in address[2:].split("/"):
        found = found.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(found, dict) else None
    return _follow_reference(found, root, depth + 1)

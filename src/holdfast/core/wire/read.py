"""Anything a caller passes to append, read as messages: all of it, or an error that says what to do.

- `str`: a user's message; with `partial=True` the assistant's text that a user saw before a stop
- `dict`, or an SDK's object: a message in OpenAI's or Anthropic's format, an item of Responses, or a whole response
- `Message`: as it is, checked
- a list of these: read in order; consecutive items of Responses are read together

With `partial=True`, calls that were cut off are left out and noted in `metadata["left_out"]`.

Of a whole response, the message, the finish reason and the usage are read; the response itself is not kept. It is the
assistant's, whatever role it claims, and so are messages and items that only a provider's reply can hold. Of several
choices the first is used; `metadata["choices"]` is their number, and the usage covers all. A reply that was cut short
has the reason in `metadata["finish"]`: `length`, `max_tokens`, `max_output_tokens`, `content_filter`, `refusal`,
`pause_turn`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from holdfast.core.numbers import is_number
from holdfast.core.wire import anthropic, openai_chat, openai_responses, plain_data
from holdfast.core.wire.parts import EMPTY_MESSAGE, check_message
from holdfast.core.wire.plain_data import ReadNotes
from holdfast.errors import InvalidMessage
from holdfast.records.messages import Message
from holdfast.records.usage import Usage

_ANTHROPIC_MARKS = {"image": "source", "document": "source", "text": "citations"}
_ANTHROPIC_BLOCKS = ("tool_use", "tool_result", "thinking", "redacted_thinking", "server_tool_use", "search_result")
_RESPONSES_PARTS = ("input_text", "output_text", "input_image", "input_file")
_RESPONSES_ITEMS = ("reasoning", "item_reference", "compaction", "program", "mcp_list_tools", "mcp_approval_request")
_ACCEPTED_INPUT = "Pass text, a dict with role and content, a Message or a provider's whole response."
CUT_OFF_REASONS = frozenset({"length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"})
"""The finish reasons of a reply that ended at its length limit."""
_NORMAL_FINISHES = ("stop", "tool_calls", "function_call", "end_turn", "tool_use", "stop_sequence", "completed")


def read_input(item: Any, *, partial: bool = False) -> list[Message]:
    """Return the messages in an item; raise InvalidMessage if it is not a message."""
    if isinstance(item, str | Message):
        messages = _read_item(item, ReadNotes(strict=True, partial=partial))
    else:
        given = list(item) if isinstance(item, list | tuple) else [item]
        simple = _read_simple(given)
        messages = _read_list(given, partial=partial) if simple is None else simple
    return _mark_partial(messages) if partial else messages


def _read_simple(items: Sequence[Any]) -> list[Message] | None:
    """Return the messages of dicts that hold a role and text, as most lists do; None if there is anything else."""
    messages = []
    for item in items:
        if not _is_simple(item):
            return None
        text = item["content"]
        if "\0" in text or not (text.isascii() or plain_data.is_unicode(text)):
            return None
        messages.append(Message(role=item["role"], content=text))
    return messages


def _read_list(given: list[Any], *, partial: bool) -> list[Message]:
    messages: list[Message] = []
    for each in given:
        plain_data.check_lengths(each)
    shapes = [_classify_item(each) for each in given]
    # Plain messages look the same in every format: they are items of Responses only beside other such items.
    taken = ("item", "plain") if "item" in shapes else ("item",)
    for together, run in groupby(zip([shape in taken for shape in shapes], given, strict=True), itemgetter(0)):
        notes, items = ReadNotes(strict=True, partial=partial), [each for _, each in run]
        if together:
            messages += openai_responses.read_items(items, notes)
        else:
            messages += [message for each in items for message in _read_item(each, notes)]
    return messages


def _read_item(item: Any, notes: ReadNotes) -> list[Message]:
    if isinstance(item, Message):
        return [check_message(item)]
    if isinstance(item, str):
        if not item:
            raise InvalidMessage(EMPTY_MESSAGE)
        return [Message(role="assistant" if notes.partial else "user", content=plain_data.clean_text(item, notes))]
    if _is_simple(item):
        return [Message(role=item["role"], content=plain_data.clean_text(item["content"], notes))]
    given = plain_data.to_plain_data(_to_mapping(item), notes)
    kind = reply_format(given)
    if kind is not None:
        return [read_reply(given, kind, notes)]
    if plain_data.is_record(item) and hasattr(item, "refusal"):  # The message of a chat completion, taken out of it.
        given["role"] = "assistant"
    if "role" not in given:
        raise InvalidMessage(
            f"This {type(item).__name__} has no role and is no response that is known. {_ACCEPTED_INPUT}"
        )
    if _detect_format(given) == "anthropic":
        return anthropic.read_message(given, notes)
    message = openai_chat.read_message(given, notes)
    return [] if message is None else [message]


def _is_simple(item: Any) -> bool:
    """Return True for a dict of only a role and text, as most messages are: nothing else has to be checked."""
    if type(item) is not dict or len(item) != 2 or type(item.get("content")) is not str or not item["content"]:
        return False
    return item.get("role") in ("user", "assistant", "system", "developer")


def _to_mapping(item: Any) -> Mapping[str, Any]:
    """Return a mapping as it is, or an object converted to one."""
    found = plain_data.dump_record(item) if plain_data.is_record(item) else item
    if isinstance(found, Mapping):
        return found
    if item is None:
        raise InvalidMessage(f"There is nothing to append: None. {_ACCEPTED_INPUT}")
    if isinstance(item, bytes | bytearray | memoryview):
        raise InvalidMessage("Bytes are not a message. Decode them to text, or append them as a file.")
    if isinstance(item, Iterable) or hasattr(item, "__aiter__") or hasattr(item, "__await__"):
        raise InvalidMessage(
            f"{type(item).__name__} is a stream or has not ended yet. Collect or await the whole reply, then append it."
        )
    raise InvalidMessage(f"This {type(item).__name__} is not a message. {_ACCEPTED_INPUT}")


def _classify_item(item: Any) -> str:
    """Classify an item: an item of Responses (`item`), possibly one (`plain`), or something else (`other`)."""
    if isinstance(item, str | Message) or not (isinstance(item, Mapping) or plain_data.is_record(item)):
        return "other"
    if _is_simple(item):
        return "plain"
    given = item if isinstance(item, Mapping) else plain_data.dump_record(item)
    if not isinstance(given, Mapping) or reply_format(dict(given)) is not None:
        return "other"
    kind = given.get("type")
    if "role" in given:
        form = _detect_format(given)
        if kind not in (None, "message") or form == "anthropic" or given.get("tool_calls") or given["role"] == "tool":
            return "other"
        return "item" if form == "responses" or kind == "message" or "phase" in given else "plain"
    if not isinstance(kind, str):
        return "other"
    known = kind in _RESPONSES_ITEMS or kind.endswith(("_call", "_call_output", "_output", "_approval_response"))
    return "item" if known else "other"


def _detect_format(given: Mapping[str, Any]) -> str:
    """Return the format of a message according to its content; plain messages are the same in all formats."""
    content = given.get("content")
    for part in content if isinstance(content, list | tuple) else ():
        kind = plain_data.get_field(part, "type")
        if kind in _ANTHROPIC_BLOCKS or (isinstance(kind, str) and kind.endswith("_tool_result")):
            return "anthropic"
        mark = _ANTHROPIC_MARKS.get(kind) if isinstance(kind, str) else None
        if mark is not None and plain_data.get_field(part, mark) is not None:
            return "anthropic"
        if kind in _RESPONSES_PARTS:
            return "responses"
    return "openai"


def _mark_partial(messages: list[Message]) -> list[Message]:
    """Mark the assistant's messages as partial; only they can be cut off."""
    if not any(message.role == "assistant" for message in messages):
        raise InvalidMessage("partial=True is for an assistant's message that was cut off. Append others without it.")
    return [msgspec.structs.replace(one, partial=True) if one.role == "assistant" else one for one in messages]


def reply_format(given: dict[str, Any]) -> str | None:
    """Return the format of a whole response; None if it is not one."""
    if isinstance(given.get("choices"), list):
        return "openai"
    if given.get("object") == "response" and isinstance(given.get("output"), list):
        return "responses"
    ended = "stop_reason" in given or "usage" in given
    if given.get("type") == "message" and ended and isinstance(given.get("content"), list):
        return "anthropic"
    return None


def read_reply(given: dict[str, Any], kind: str, notes: ReadNotes) -> Message:
    """Return the message in a response."""
    finish = finish_reason(given, kind)
    read = {"openai": _read_chat_completion, "responses": _read_response, "anthropic": _read_anthropic_message}[kind]
    try:
        message = read(given, notes)
        if message is None:
            raise InvalidMessage(EMPTY_MESSAGE)
    except InvalidMessage as error:
        if finish is None:
            raise
        raise InvalidMessage(f"{error} This reply did not end by itself, but by {finish}.") from None
    model, provider_id = (said if isinstance(said := given.get(name), str) else None for name in ("model", "id"))
    more: dict[str, Any] = {} if finish is None else {"finish": finish}
    if kind == "openai" and len(given["choices"]) > 1:
        more["choices"] = len(given["choices"])
    return msgspec.structs.replace(
        message,
        provider="anthropic" if kind == "anthropic" else "openai",
        model=model,
        provider_id=provider_id,
        usage=read_usage(given.get("usage"), model),
        metadata={**(message.metadata or {}), **more} or None,
    )


def read_usage(usage: Any, model: str | None = None) -> Usage | None:
    """Return the usage from any provider's report. Input includes cached tokens."""
    if not isinstance(usage, dict):
        return None
    into = _details(usage, "prompt_tokens_details", "input_tokens_details")
    out = _details(usage, "completion_tokens_details", "output_tokens_details")
    cached = _count(into, "cached_tokens")
    written = _count(into, "cache_write_tokens")
    given = _count(usage, "prompt_tokens", "input_tokens")
    if "cache_read_input_tokens" in usage or "cache_creation_input_tokens" in usage:
        # Anthropic reports cache reads and writes separately from the input.
        cached, written = _count(usage, "cache_read_input_tokens"), _count(usage, "cache_creation_input_tokens")
        given = given + cached + written if "prompt_tokens" not in usage else given
    return Usage(
        input=given,
        cached_input=cached,
        cache_write=written,
        output=_count(usage, "completion_tokens", "output_tokens"),
        reasoning=_count(out, "reasoning_tokens", "thinking_tokens"),
        model=model,
    )


def _read_chat_completion(given: dict[str, Any], notes: ReadNotes) -> Message | None:
    choice = given["choices"][0] if given["choices"] else None
    choice = choice if isinstance(choice, dict) else {}
    item = choice.get("message")
    if not isinstance(item, dict):
        what = "one chunk of a stream" if "delta" in choice else "a response without a message"
        raise InvalidMessage(f"This is {what}. Collect the whole reply, then append it.")
    said = {**item, "role": "assistant"}  # Whatever role it claims: a model must not speak as the system.
    audio = said.pop("audio", None)
    if said.get("content") is None and isinstance(audio, dict):
        # The audio can only be referred to for an hour; keep the transcript.
        said["content"] = audio.get("transcript")
    return openai_chat.read_message(said, notes)


def _read_response(given: dict[str, Any], notes: ReadNotes) -> Message | None:
    messages = openai_responses.read_items(given["output"], notes, reply=True)
    return messages[0] if messages else None


def _read_anthropic_message(given: dict[str, Any], notes: ReadNotes) -> Message | None:
    messages = anthropic.read_message({"role": "assistant", "content": given["content"]}, notes)
    if not messages:
        return None
    (message,) = messages
    parts = message.content
    if isinstance(parts, list) and len(parts) == 1 and set(parts[0]) == {"type", "text"}:
        return msgspec.structs.replace(message, content=parts[0]["text"])
    return message


def finish_reason(given: dict[str, Any], kind: str) -> str | None:
    """Return the provider's reason why a reply ended, unless it was complete; its metadata holds the same word."""
    if kind == "openai":
        choice = given["choices"][0] if given["choices"] else None
        reason = choice.get("finish_reason") if isinstance(choice, dict) else None
    elif kind == "responses":
        details = given.get("incomplete_details")
        reason = (details.get("reason") if isinstance(details, dict) else None) or given.get("status")
    else:
        reason = given.get("stop_reason")
    return reason if isinstance(reason, str) and reason not in _NORMAL_FINISHES else None


def _details(usage: dict[str, Any], *names: str) -> dict[str, Any]:
    return next((usage[name] for name in names if isinstance(usage.get(name), dict)), {})


def _count(usage: dict[str, Any], *names: str) -> int:
    for name in names:
        value = usage.get(name)
        if is_number(value, least=0, most=2**63 - 1):
            return value
    return 0

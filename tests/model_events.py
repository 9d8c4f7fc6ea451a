"""Whole responses as the events that the real providers stream them in, with texts cut as the caller likes."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

Cut = Callable[[str], list[str]]
Events = list[dict[str, Any]]


def in_words(text: str) -> list[str]:
    """Pieces of the size that tokens have."""
    return [text[at : at + 4] for at in range(0, len(text), 4)]


def chat_events(whole: dict[str, Any], cut: Cut = in_words, *, usage: bool = True) -> Events:
    """Chunks of a chat completion; calls come one after another, and usage in a chunk without choices."""
    head = {key: value for key, value in whole.items() if key not in ("choices", "usage")}
    head |= {"object": "chat.completion.chunk"} | ({"usage": None} if usage else {})
    message, end = whole["choices"][0]["message"], whole["choices"][0]["finish_reason"]
    deltas: Events = [{"role": "assistant", "content": "" if message.get("content") is not None else None}]
    for name in ("reasoning_content", "content", "refusal"):
        deltas += [{name: piece} for piece in cut(message.get(name) or "")]
    for index, call in enumerate(message.get("tool_calls") or ()):
        inner = call["function"]
        opened = {"id": call["id"], "type": "function", "function": {"name": inner["name"], "arguments": ""}}
        deltas.append({"tool_calls": [{"index": index, **opened}]})
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": piece}}]} for piece in cut(inner["arguments"])
        ]
    chunks = [{**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks.append({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": end}]})
    if usage and whole.get("usage") is not None:
        chunks.append({**head, "choices": [], "usage": whole["usage"]})
    return chunks


def responses_events(whole: dict[str, Any], cut: Cut = in_words) -> Events:
    """Events of Responses: items are added, filled and done, and the last event holds everything."""
    begun = {**whole, "status": "in_progress", "output": [], "usage": None}
    events: Events = [{"type": f"response.{name}", "response": begun} for name in ("created", "in_progress")]
    for index, item in enumerate(whole["output"]):
        events.append({"type": "response.output_item.added", "output_index": index, "item": _emptied(item)})
        events += [{**event, "output_index": index, "item_id": item.get("id", "")} for event in _item_events(item, cut)]
        events.append({"type": "response.output_item.done", "output_index": index, "item": item})
    events.append({"type": f"response.{whole['status']}", "response": whole})
    return [{**event, "sequence_number": number} for number, event in enumerate(events)]


def anthropic_events(whole: dict[str, Any], cut: Cut = in_words) -> Events:
    """Events of Anthropic's messages, with a ping among them and usage at both ends."""
    usage = whole.get("usage") or {}
    begun = {**whole, "content": [], "stop_reason": None, "stop_sequence": None}
    begun["usage"] = {**usage, "output_tokens": 1}
    events: Events = [{"type": "message_start", "message": begun}, {"type": "ping"}]
    for index, block in enumerate(whole["content"]):
        events.append({"type": "content_block_start", "index": index, "content_block": _emptied_block(block)})
        events += [
            {"type": "content_block_delta", "index": index, "delta": delta} for delta in _block_deltas(block, cut)
        ]
        events.append({"type": "content_block_stop", "index": index})
    ended = {key: whole[key] for key in ("stop_reason", "stop_sequence", "stop_details") if key in whole}
    events.append({"type": "message_delta", "delta": ended, "usage": {"output_tokens": usage.get("output_tokens", 0)}})
    return [*events, {"type": "message_stop"}]


EVENTS: dict[str, Callable[..., Events]] = {
    "openai": chat_events,
    "responses": responses_events,
    "anthropic": anthropic_events,
}


def as_data(event: dict[str, Any]) -> bytes:
    """One server-sent event."""
    named = f"event: {event['type']}\n" if "type" in event else ""
    return f"{named}data: {json.dumps(event)}\n\n".encode()


def _emptied(item: dict[str, Any]) -> dict[str, Any]:
    empty = {"content": [], "summary": [], "arguments": "", "status": "in_progress"}
    kept = copy.deepcopy(item)
    return {key: empty.get(key, value) for key, value in kept.items() if key != "encrypted_content"}


def _item_events(item: dict[str, Any], cut: Cut) -> Iterator[dict[str, Any]]:
    for at, part in enumerate(item.get("summary") or ()):
        opened = {"type": "summary_text", "text": ""}
        yield {"type": "response.reasoning_summary_part.added", "summary_index": at, "part": opened}
        for piece in cut(part["text"]):
            yield {"type": "response.reasoning_summary_text.delta", "summary_index": at, "delta": piece}
    for at, part in enumerate(item.get("content") or ()):
        kind, name = ("refusal", "refusal") if part["type"] == "refusal" else ("output_text", "text")
        yield {"type": "response.content_part.added", "content_index": at, "part": {**part, name: ""}}
        for piece in cut(part[name]):
            more = {"logprobs": []} if kind == "output_text" else {}
            yield {"type": f"response.{kind}.delta", "content_index": at, "delta": piece, **more}
        yield {"type": f"response.{kind}.done", "content_index": at, name: part[name]}
    if item["type"] == "function_call":
        for piece in cut(item["arguments"]):
            yield {"type": "response.function_call_arguments.delta", "delta": piece}
        yield {"type": "response.function_call_arguments.done", "arguments": item["arguments"]}


def _emptied_block(block: dict[str, Any]) -> dict[str, Any]:
    empty = {"text": "", "thinking": "", "signature": "", "input": {}}
    return {key: empty.get(key, value) for key, value in block.items() if key != "citations"}


def _block_deltas(block: dict[str, Any], cut: Cut) -> Iterator[dict[str, Any]]:
    kind = block["type"]
    if kind == "text":
        yield from ({"type": "text_delta", "text": piece} for piece in cut(block["text"]))
        yield from ({"type": "citations_delta", "citation": one} for one in block.get("citations") or ())
    elif kind == "thinking":
        yield from ({"type": "thinking_delta", "thinking": piece} for piece in cut(block["thinking"]))
        yield {"type": "signature_delta", "signature": block["signature"]}
    elif kind == "tool_use":
        yield {"type": "input_json_delta", "partial_json": ""}
        yield from ({"type": "input_json_delta", "partial_json": piece} for piece in cut(json.dumps(block["input"])))

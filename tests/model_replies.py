"""What a scripted model says, as the whole response of each provider."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Reply = str | list[dict[str, Any]] | dict[str, Any]
"""Text, or tool calls as {"name": …, "arguments": {…}}, or all by name: text, calls, thinking, refusal, finish."""


def broken_reply(kind: str) -> Reply | None:
    """Answers that are none, or not what was asked for."""
    return {
        "refusal": {"refusal": "I cannot help with that."},
        "empty": {},
        "length": {"text": "It goes on and", "finish": "length"},
        "nonsense": {"calls": [{"name": "weather", "arguments": '{"city": Ly'}]},
        "huge": {"text": "word " * 4_000},
    }.get(kind)


def told(reply: Reply) -> dict[str, Any]:
    """A reply with all of its parts by name."""
    if isinstance(reply, str):
        return {"text": reply}
    return {"calls": reply} if isinstance(reply, list) else reply


def _arguments(call: dict[str, Any]) -> str:
    return call["arguments"] if isinstance(call["arguments"], str) else json.dumps(call["arguments"])


def chat(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    """A chat completion."""
    given = told(reply)
    message: dict[str, Any] = {"role": "assistant", "content": given.get("text")}
    if given.get("refusal"):
        message["refusal"] = given["refusal"]
    if given.get("calls"):
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call["name"], "arguments": _arguments(call)},
            }
            for index, call in enumerate(given["calls"])
        ]
    ended = given.get("finish") or ("tool_calls" if given.get("calls") else "stop")
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": request.get("model", "gpt"),
        "choices": [{"index": 0, "message": message, "finish_reason": ended}],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
    }


def responses(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    """A response, with the reasoning before it."""
    given = told(reply)
    thought: dict[str, Any] = {"type": "reasoning", "id": f"rs_{number}", "summary": []}
    if given.get("thinking"):
        thought["summary"] = [{"type": "summary_text", "text": given["thinking"]}]
        thought["encrypted_content"] = f"gAAAA-{number}-opaque=="
    output: list[dict[str, Any]] = [thought] if given else []
    parts: list[dict[str, Any]] = []
    if given.get("text") is not None:
        parts.append({"type": "output_text", "text": given["text"], "annotations": []})
    if given.get("refusal"):
        parts.append({"type": "refusal", "refusal": given["refusal"]})
    if parts:
        output.append(
            {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": parts}
        )
    output += [
        {
            "type": "function_call",
            "id": f"fc_{number}_{index}",
            "call_id": f"call_{number}_{index}",
            "name": call["name"],
            "arguments": _arguments(call),
            "status": "completed",
        }
        for index, call in enumerate(given.get("calls") or ())
    ]
    short = given.get("finish") == "length"
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_800_000_000,
        "model": request.get("model", "gpt"),
        "status": "incomplete" if short else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if short else None,
        "error": None,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": request.get("tools", []),
        "usage": {
            "input_tokens": 20,
            "input_tokens_details": {"cached_tokens": 8},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 25,
        },
    }


def anthropic(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    """A message. A refusal is a reason to stop, with its words beside the content."""
    given = told(reply)
    content: list[dict[str, Any]] = []
    if given.get("thinking"):
        content.append({"type": "thinking", "thinking": given["thinking"], "signature": f"sig-{number}=="})
    if given.get("text"):
        content.append({"type": "text", "text": given["text"]})
    content += [
        {"type": "tool_use", "id": f"toolu_{number}_{index}", "name": call["name"], "input": call["arguments"]}
        for index, call in enumerate(given.get("calls") or ())
    ]
    ended = {"length": "max_tokens", None: "tool_use" if given.get("calls") else "end_turn"}[given.get("finish")]
    refused: dict[str, Any] = {}
    if given.get("refusal"):
        ended = "refusal"
        refused = {"stop_details": {"type": "refusal", "category": None, "explanation": given["refusal"]}}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "claude"),
        "content": content,
        "stop_reason": ended,
        "stop_sequence": None,
        **refused,
        "usage": {"input_tokens": 12, "cache_read_input_tokens": 8, "output_tokens": 5},
    }


MAKE: dict[str, Callable[[dict[str, Any], Reply, int], dict[str, Any]]] = {
    "openai": chat,
    "responses": responses,
    "anthropic": anthropic,
}

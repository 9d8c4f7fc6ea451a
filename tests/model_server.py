"""A model on loopback that speaks the real wire formats: OpenAI chat, OpenAI Responses, Anthropic messages.

It answers from a script, remembers every request, and refuses with 400 what the real one would refuse.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.conversations.provider_rules import anthropic_problems, openai_problems, responses_problems

Reply = str | list[dict[str, Any]]
"""Text, or tool calls as {"name": …, "arguments": {…}}."""


class ModelServer:
    """Where it is, what it was asked, and what it will say; after the script it says how many messages it saw."""

    def __init__(self, script: list[Reply] | None = None) -> None:
        self.script: list[Reply] = list(script or [])
        self.requests: list[dict[str, Any]] = []
        self.problems: list[str] = []
        self.url = ""
        self._count = 0
        self._lock = threading.Lock()

    def answer(self, path: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body for one request."""
        with self._lock:
            self.requests.append(request)
            wire = {"/chat/completions": _chat, "/responses": _responses, "/messages": _anthropic}
            kind = next((make for end, make in wire.items() if path.endswith(end)), None)
            if kind is None:
                return 404, {"error": {"message": f"no such path {path}"}}
            problems = _problems(path, request)
            if problems:
                self.problems += problems
                return 400, {"error": {"message": "; ".join(problems), "type": "invalid_request_error"}}
            self._count += 1
            said = request.get("messages", request.get("input", ()))
            reply = self.script.pop(0) if self.script else f"I was shown {len(said)} messages."
            return 200, kind(request, reply, self._count)


def _problems(path: str, request: dict[str, Any]) -> list[str]:
    if path.endswith("/chat/completions"):
        return openai_problems(request.get("messages", []))
    known = ("input", "instructions") if path.endswith("/responses") else ("system", "messages")
    shown = {name: value for name, value in request.items() if name in (*known, "tools")}
    return responses_problems(shown) if path.endswith("/responses") else anthropic_problems(shown)


def _chat(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply if isinstance(reply, str) else None}
    if not isinstance(reply, str):
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": call["name"], "arguments": json.dumps(call["arguments"])},
            }
            for index, call in enumerate(reply)
        ]
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 1_800_000_000,
        "model": request.get("model", "gpt"),
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop" if isinstance(reply, str) else "tool_calls"}
        ],
        "usage": {"prompt_tokens": 20, "completion_tokens": 5, "total_tokens": 25},
    }


def _responses(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    output: list[dict[str, Any]] = [{"type": "reasoning", "id": f"rs_{number}", "summary": []}]
    if isinstance(reply, str):
        text = {"type": "output_text", "text": reply, "annotations": []}
        output.append(
            {"type": "message", "id": f"msg_{number}", "role": "assistant", "status": "completed", "content": [text]}
        )
    else:
        output += [
            {
                "type": "function_call",
                "id": f"fc_{number}_{index}",
                "call_id": f"call_{number}_{index}",
                "name": call["name"],
                "arguments": json.dumps(call["arguments"]),
                "status": "completed",
            }
            for index, call in enumerate(reply)
        ]
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1_800_000_000,
        "model": request.get("model", "gpt"),
        "status": "completed",
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


def _anthropic(request: dict[str, Any], reply: Reply, number: int) -> dict[str, Any]:
    if isinstance(reply, str):
        content: list[dict[str, Any]] = [{"type": "text", "text": reply}]
    else:
        content = [
            {"type": "tool_use", "id": f"toolu_{number}_{index}", "name": call["name"], "input": call["arguments"]}
            for index, call in enumerate(reply)
        ]
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "model": request.get("model", "claude"),
        "content": content,
        "stop_reason": "end_turn" if isinstance(reply, str) else "tool_use",
        "stop_sequence": None,
        "usage": {"input_tokens": 12, "cache_read_input_tokens": 8, "output_tokens": 5},
    }


@contextmanager
def model_server(script: list[Reply] | None = None) -> Iterator[ModelServer]:
    """A model at `url` for as long as the block lasts."""
    model = ModelServer(script)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            status, body = model.answer(self.path, json.loads(self.rfile.read(size)))
            raw = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield model
    finally:
        server.shutdown()
        server.server_close()
        thread.join()

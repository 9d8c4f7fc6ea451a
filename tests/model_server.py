"""A model on loopback that speaks the real wire formats: OpenAI chat, OpenAI Responses, Anthropic messages.

It answers from a script, whole or in a stream, remembers every request, and refuses with 400 what the real one would
refuse. `faults` says what goes wrong: one for each request, None for those that go well.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from tests.model_events import EVENTS, as_data
from tests.model_replies import MAKE, Reply, broken_reply
from tests.sessions.provider_rules import anthropic_problems, openai_problems, responses_problems

__all__ = ["Fault", "ModelServer", "Reply", "model_server"]

FORMS = {"/chat/completions": "openai", "/responses": "responses", "/messages": "anthropic"}
REFUSALS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    500: "api_error",
    529: "overloaded_error",
}


@dataclass(frozen=True)
class Fault:
    """What goes wrong with one request.

    `hang` never answers, `stall` stops in the middle and says no more, `cut` breaks the connection in the middle,
    `short` ends a stream before its end, `truncated` and `invalid` are JSON that is none, `wrong` is JSON of another
    shape, `error` is an error within a stream (whole: in the body), `refusal`, `empty`, `length`, `nonsense` and
    `huge` are answers, `slow` comes piece by piece.
    """

    kind: str = "status"
    status: int = 500
    headers: dict[str, str] = field(default_factory=dict)
    message: str = "Something went wrong."
    code: str | None = None
    after: float = 0.5
    """For `cut`, `short` and `stall`: which share of the events comes."""

    def body(self) -> dict[str, Any]:
        name = REFUSALS.get(self.status, "api_error")
        return {"type": "error", "error": {"type": name, "message": self.message, "code": self.code}}


class ModelServer:
    """Where it is, what it was asked, and what it will say; after the script it says how many messages it saw."""

    def __init__(self, script: list[Reply] | None = None, faults: list[Fault | None] | None = None) -> None:
        self.script: list[Reply] = list(script or [])
        self.faults: list[Fault | None] = list(faults or [])
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.problems: list[str] = []
        self.url = ""
        self.closing = threading.Event()
        self._count = 0
        self._lock = threading.Lock()

    def answer(self, path: str, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body for one request."""
        status, body, _ = self.outcome(path, request)
        return status, body

    def outcome(self, path: str, request: dict[str, Any]) -> tuple[int, dict[str, Any], Fault | None]:
        """Status and whole body for one request, and what goes wrong with it."""
        with self._lock:
            self.requests.append(request)
            form = next((form for end, form in FORMS.items() if path.endswith(end)), None)
            if form is None:
                return 404, {"error": {"message": f"no such path {path}"}}, None
            problems = _problems(form, request)
            if problems:
                self.problems += problems
                return 400, {"error": {"message": "; ".join(problems), "type": "invalid_request_error"}}, None
            self._count += 1
            fault = self.faults.pop(0) if self.faults else None
            if fault is not None and fault.kind == "status":
                return fault.status, fault.body(), fault
            return 200, MAKE[form](request, self._next_reply(request, fault), self._count), fault

    def _next_reply(self, request: dict[str, Any], fault: Fault | None) -> Reply:
        broken = broken_reply(fault.kind) if fault else None
        if broken is not None:
            return broken
        if not self.script:
            return f"I was shown {len(request.get('messages', request.get('input', ())))} messages."
        # An answer that does not arrive is still to be given to whoever asks again.
        return self.script.pop(0) if fault is None or fault.kind == "slow" else self.script[0]


def _problems(form: str, request: dict[str, Any]) -> list[str]:
    if form == "openai":
        return openai_problems(request.get("messages", []), request.get("tools", ()))
    known = ("input", "instructions") if form == "responses" else ("system", "messages")
    shown = {name: value for name, value in request.items() if name in (*known, "tools")}
    return responses_problems(shown) if form == "responses" else anthropic_problems(shown)


class _Wire:
    """One answer on its way through a handler."""

    def __init__(self, handler: BaseHTTPRequestHandler, model: ModelServer, fault: Fault | None) -> None:
        self.handler, self.model, self.fault = handler, model, fault
        self.kind = fault.kind if fault else ""

    def whole(self, status: int, body: dict[str, Any]) -> None:
        raw = json.dumps(body).encode()
        if self.kind == "truncated":
            raw = raw[: len(raw) // 2]
        elif self.kind == "invalid":
            raw = b"<html>Bad gateway</html>"
        elif self.kind == "wrong":
            raw = b'{"hello": "world"}'
        elif self.kind == "error" and self.fault:
            raw = json.dumps(self.fault.body()).encode()
        self._head(status, "application/json", length=len(raw))
        if self.kind in ("cut", "short"):
            raw = raw[: len(raw) // 2]
            self.handler.close_connection = True
        self.handler.wfile.write(raw)

    def streamed(self, form: str, body: dict[str, Any], request: dict[str, Any]) -> None:
        if form == "openai":
            usage = bool((request.get("stream_options") or {}).get("include_usage"))
            events = EVENTS[form](body, usage=usage)
        else:
            events = EVENTS[form](body)
        self._head(200, "text/event-stream")
        for piece in self._pieces(events):
            self.handler.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
            self.handler.wfile.flush()
            if self.kind == "slow":
                self.model.closing.wait(0.002)
        if self.kind in ("cut", "stall"):
            self.model.closing.wait(30 if self.kind == "stall" else 0)
            self.handler.close_connection = True
            return
        done = b"data: [DONE]\n\n" if form == "openai" and self.kind not in ("short", "error") else b""
        self.handler.wfile.write((f"{len(done):x}\r\n".encode() + done + b"\r\n" if done else b"") + b"0\r\n\r\n")

    def _pieces(self, events: list[dict[str, Any]]) -> list[bytes]:
        """The events as bytes, as far as they come."""
        data = [as_data(event) for event in events]
        share = data[: max(1, int(len(data) * (self.fault.after if self.fault else 1)))]
        if self.kind in ("cut", "short", "stall"):
            return share
        if self.kind == "truncated":
            return [*share, data[len(share)][:-12] + b"\n\n"]
        if self.kind == "invalid":
            return [*share, b"data: <html>\n\n"]
        if self.kind == "wrong":
            return [b'data: {"hello": "world"}\n\n']
        if self.kind == "error" and self.fault:
            return [*share, as_data(self.fault.body())]
        return data

    def _head(self, status: int, media: str, length: int | None = None) -> None:
        self.handler.send_response(status)
        self.handler.send_header("Content-Type", media)
        if length is None:
            self.handler.send_header("Transfer-Encoding", "chunked")
        else:
            self.handler.send_header("Content-Length", str(length))
        for name, value in (self.fault.headers if self.fault else {}).items():
            self.handler.send_header(name, value)
        self.handler.end_headers()


@contextmanager
def model_server(script: list[Reply] | None = None, faults: list[Fault | None] | None = None) -> Iterator[ModelServer]:
    """A model at `url` for as long as the block lasts."""
    model = ModelServer(script, faults)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            size = int(self.headers.get("Content-Length", 0))
            request = json.loads(self.rfile.read(size))
            model.headers.append(dict(self.headers.items()))
            status, body, fault = model.outcome(self.path, request)
            if fault is not None and (fault.kind == "hang" or (fault.kind == "stall" and not request.get("stream"))):
                model.closing.wait(30)
                self.close_connection = True
                return
            wire = _Wire(self, model, fault)
            with suppress(OSError):  # Whoever asked has gone.
                if status == 200 and request.get("stream") is True:
                    form = next(form for end, form in FORMS.items() if self.path.endswith(end))
                    wire.streamed(form, body, request)
                else:
                    wire.whole(status, body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.002}, daemon=True)
    thread.start()
    model.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield model
    finally:
        model.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()

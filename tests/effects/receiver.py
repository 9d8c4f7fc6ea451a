"""A real HTTP server on the loopback that notes what is posted to it and answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

Answer = tuple[int, dict[str, str]]


class Receiver:
    """`answer` is asked with the number of the request, from 1."""

    def __init__(self, answer: Callable[[int], Answer | Callable[[Any], None]] | None = None) -> None:
        self.posted: list[tuple[str, dict[str, str], bytes]] = []
        self.answer = answer or (lambda number: (200, {}))
        receiver = self

        class Handles(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver.posted.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                answer = receiver.answer(len(receiver.posted))
                if callable(answer):
                    answer(self)
                    self.close_connection = True
                    return
                status, headers = answer
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                """Nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handles)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}/hook?from=holdfast"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

"""An embeddings endpoint on loopback that answers as it is told, and remembers what it was asked."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = tuple[int, dict[str, str], bytes]
"""Status, headers and body."""


def numbers_of(text: str) -> list[float]:
    return [float(len(text)), float(text.count("a")), 1.0]


def embedded(texts: list[str], **changes: Any) -> Answer:
    """What a good endpoint answers, last text first: only `index` says which is whose."""
    data = [{"object": "embedding", "index": place, "embedding": numbers_of(text)} for place, text in enumerate(texts)]
    return 200, {}, json.dumps({"object": "list", "data": data[::-1], "model": "m"} | changes).encode()


class EmbeddingServer:
    """`script` holds the next answers; when it is empty, every text gets its numbers. None is silence."""

    def __init__(self) -> None:
        self.script: list[Answer | Callable[[list[str]], Answer] | None] = []
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.paths: list[str] = []
        self.over = threading.Event()
        self.url = ""

    def answer(self, texts: list[str]) -> Answer | None:
        scripted = self.script.pop(0) if self.script else embedded
        return scripted(texts) if callable(scripted) else scripted


@contextmanager
def embedding_server() -> Iterator[EmbeddingServer]:
    """An endpoint at `url` for as long as the block lasts."""
    endpoint = EmbeddingServer()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            endpoint.requests.append(request)
            endpoint.headers.append(dict(self.headers))
            endpoint.paths.append(self.path)
            answer = endpoint.answer(request["input"])
            if answer is None:
                endpoint.over.wait(10)
                self.close_connection = True
                return
            status, headers, body = answer
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: socket.socket | tuple[bytes, socket.socket], address: Any) -> None:
            pass  # A client that goes away, or that speaks TLS to it, is part of the tests.

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    endpoint.url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield endpoint
    finally:
        endpoint.over.set()
        server.shutdown()
        server.server_close()
        thread.join()

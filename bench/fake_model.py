"""A model on loopback that costs next to nothing: OpenAI's chat completions, always the same answer, nothing checked.

`python -m bench.fake_model` is a process of its own, so that whoever is measured does not share an interpreter with
it; it says its port and ends with its input. Below `/plain` every request is answered with a text, below `/tools`
what a user asked is answered with two tool calls, and their results with the text. Bodies are not parsed: two searches
from their end tell what was said last.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.turn_words import ARGUMENTS, ASKED, FOUND, FUNCTIONS, MODEL, PLAIN, REPLY, TOOLS

ROOT = Path(__file__).parent.parent
PATHS = {PLAIN: "/plain", TOOLS: "/tools"}
PATIENCE = 10.0
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END = b"\r\n\r\n"


def completion(message: dict[str, Any], finish: str) -> bytes:
    """A response with room for a number, since ids must differ."""
    body = {
        "id": "chatcmpl-NUMBER",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": MODEL,
        "choices": [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}],
        "usage": {"prompt_tokens": 8_000, "completion_tokens": 50, "total_tokens": 8_050},
    }
    return json.dumps(body).encode()


def calls(number: str) -> list[dict[str, Any]]:
    """Both tools at once."""
    return [
        {
            "id": f"call_{at}{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(ARGUMENTS)},
        }
        for at, name in enumerate(FUNCTIONS)
    ]


SAID = completion({"content": REPLY}, "stop")
WANTED = completion({"content": None, "tool_calls": calls("NUMBER")}, "tool_calls")
_ASKED, _FOUND, _TOOLS = ASKED.encode(), FOUND.encode(), PATHS[TOOLS].encode()
_numbers = itertools.count(10_000_000)


def answer(head: bytes, body: bytes | bytearray) -> bytes:
    """A whole response to a request."""
    wants = head.startswith(b"POST " + _TOOLS) and body.rfind(_ASKED) > body.rfind(_FOUND)
    made = (WANTED if wants else SAID).replace(b"NUMBER", b"%d" % next(_numbers))
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (len(made), made)


class Answering(asyncio.Protocol):
    """One connection, which stays open for as long as whoever asks wants it."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._needed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember where to answer."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer as soon as a request is whole."""
        self._held += data
        while len(self._held) >= self._needed:
            end = self._held.find(_END)
            if end < 0:
                return
            found = _LENGTH.search(self._held, 0, end)
            start = end + len(_END)
            self._needed = start + (int(found[1]) if found else 0)
            if len(self._held) < self._needed:
                return
            self._transport.write(answer(bytes(self._held[:end]), self._held[start : self._needed]))
            del self._held[: self._needed]
            self._needed = 0


async def serve() -> None:
    """Answer until the input ends."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Answering, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    server.close()


class FakeModel:
    """Where it is."""

    def __init__(self, port: int) -> None:
        self.port = port

    def url(self, shape: str) -> str:
        """The address for turns of one shape, as a client is given it."""
        return f"http://127.0.0.1:{self.port}{PATHS[shape]}/v1"

    @contextmanager
    def raw(self, body: bytes) -> Iterator[Callable[[], bytes]]:
        """The least that asking can cost: these bytes there and the answer back, over a connection that is open."""
        head = b"POST /plain HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n" % len(body)
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

            def ask() -> bytes:
                connection.sendall(head + body)
                heard = connection.recv(65_536)
                found = _LENGTH.search(heard)
                assert found is not None
                while len(heard) < heard.index(_END) + len(_END) + int(found[1]):
                    heard += connection.recv(65_536)
                return heard

            yield ask


@contextmanager
def fake_model() -> Iterator[FakeModel]:
    """The model in its process, ended and waited for at the end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.fake_model"], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield FakeModel(int(process.stdout.readline()))
    finally:
        process.stdin.close()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()


if __name__ == "__main__":
    asyncio.run(serve())

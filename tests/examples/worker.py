"""The example's web worker at a free port, and a client that reads its events."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import uvicorn
from fastapi import FastAPI


@dataclass(frozen=True)
class Heard:
    """One server-sent event."""

    kind: str
    id: str | None
    data: dict[str, Any]

    @property
    def text(self) -> str:
        return str(self.data["text"])


@contextmanager
def served(app: FastAPI) -> Iterator[httpx2.Client]:
    """The app under uvicorn for as long as the block lasts, then told to end as by SIGTERM."""
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical", lifespan="on"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    wait_for(lambda: server.started or not thread.is_alive())
    (port,) = {sock.getsockname()[1] for one in server.servers for sock in one.sockets}
    try:
        with httpx2.Client(base_url=f"http://127.0.0.1:{port}", timeout=20) as client:
            yield client
    finally:
        server.should_exit = True
        thread.join(timeout=30)
        assert not thread.is_alive(), "it ends when it is told to"


def wait_for(seen: Any, seconds: float = 20.0) -> Any:
    """Look until something is so."""
    until = time.monotonic() + seconds
    while not (found := seen()):
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.01)
    return found


def read(response: httpx2.Response) -> Iterator[Heard]:
    """The events of a response, as they come."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(": ")
            found[name] = value
            continue
        yield Heard(found["event"], found.get("id"), json.loads(found["data"]))
        found = {}


@contextmanager
def saying(client: httpx2.Client, text: str, key: str, session: str = "alice") -> Iterator[Iterator[Heard]]:
    """Say something, and hear what comes of it."""
    sent = {"text": text}
    with client.stream("POST", f"/chats/{session}/messages", json=sent, headers={"Idempotency-Key": key}) as response:
        assert response.status_code == 200, response.read()
        yield read(response)


def heard_after(client: httpx2.Client, last: str | None, session: str = "alice") -> list[Heard]:
    """What a client that reconnects is told, to its end."""
    headers = {} if last is None else {"Last-Event-ID": last}
    with client.stream("GET", f"/chats/{session}/events", headers=headers) as response:
        assert response.status_code == 200, response.read()
        return list(read(response))

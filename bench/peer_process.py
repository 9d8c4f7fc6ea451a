"""The peers' process as seen from here: started, asked, and waited for.

Peers have an environment of their own, `.venv-peers`, because what they need does not go together with what
holdfast is developed with. `make bench` builds it. Without it, tables say so and show holdfast alone.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).parent.parent
PYTHON = ROOT / ".venv-peers" / "bin" / "python"
PATIENCE = 30.0


class PeerFailed(Exception):
    """A peer could not do what it was asked to."""


class PeerProcess:
    """One line out, one line in."""

    def __init__(self, place: Path, process: subprocess.Popen[bytes]) -> None:
        self.place = place
        self._process = process
        greeting = self.ask("hello", place=os.fspath(place))
        self.found: dict[str, str] = greeting["found"]
        self.absent: dict[str, str] = greeting["absent"]

    def ask(self, what: str, **given: Any) -> Any:
        """The answer to one question."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode({"ask": what, **given}) + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise PeerFailed("the peers' process has ended") from None
        line = self._process.stdout.readline()
        if not line:
            raise PeerFailed("the peers' process has ended")
        answer = msgspec.json.decode(line)
        if "error" in answer:
            raise PeerFailed(answer["error"])
        return answer["answer"]


@contextmanager
def peer_process(place: Path, module: str = "bench.chat_peers", python: Path = PYTHON) -> Iterator[PeerProcess | None]:
    """A process with the peers, ended and waited for at the end; None if their environment is not there.

    Whoever else answers as they do is started in the same way, by the interpreter that is named.
    """
    if not python.exists():
        yield None
        return
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [python, "-m", module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
        )
        try:
            yield PeerProcess(place, process)
        except PeerFailed as error:
            errors.seek(0)
            raise PeerFailed(f"{error}\n{errors.read()[-2_000:].decode(errors='replace')}") from None
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Its input is closed; if it does not go by itself, it is made to."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.close()
    except BrokenPipeError:
        pass  # It has gone already.
    try:
        process.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    process.stdout.close()

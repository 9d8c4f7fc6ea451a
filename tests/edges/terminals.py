"""A real terminal for a command: what is typed reaches it as keys, and Ctrl-C as the signal that it is."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

GIVE_UP_SECONDS = 20.0
_STYLE = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
CTRL_C, CTRL_D = "\x03", "\x04"
# The command gets the terminal as its own, and heeds Ctrl-C also where whoever runs the tests ignores it.
_BEGIN = (
    "import fcntl, signal, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGINT, signal.default_int_handler); from holdfast.cli.main import run; run()"
)


class Terminal:
    """A command of holdfast at a terminal of its own."""

    def __init__(self, folder: Path, *arguments: object) -> None:
        self._master, slave = pty.openpty()
        names = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
        kept = {name: value for name, value in os.environ.items() if name not in names and "HOLDFAST" not in name}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _BEGIN, *map(str, arguments)],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            cwd=folder,
            env={**kept, "TERM": "xterm", "COLUMNS": "200", "NO_COLOR": "1"},
        )
        os.close(slave)
        self._raw, self._shown, self._read = b"", "", 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
        os.close(self._master)

    def keys(self, text: str) -> None:
        """Type some keys."""
        os.write(self._master, text.encode())

    def line(self, text: str) -> None:
        """Type a line."""
        self.keys(f"{text}\n")

    def until(self, wanted: str) -> str:
        """Read until something new is on the screen; gives all that is new, up to and with it."""
        late = time.monotonic() + GIVE_UP_SECONDS
        while wanted not in self._shown[self._read :]:
            assert time.monotonic() < late, f"{wanted!r} did not come: {self._shown!r}"
            assert self._more(), f"{wanted!r} did not come before the end: {self._shown!r}"
        begun, self._read = self._read, self._shown.index(wanted, self._read) + len(wanted)
        return self._shown[begun : self._read]

    def _more(self) -> bool:
        ready, _, _ = select.select([self._master], [], [], 1.0)
        if not ready:
            return True
        try:
            piece = os.read(self._master, 65536)
        except OSError:
            return False  # Linux says so when the other side of a terminal is gone.
        self._raw += piece
        self._shown = _STYLE.sub("", self._raw.decode(errors="replace").replace("\r\n", "\n"))
        return bool(piece)

    def ended(self) -> int:
        """Let it come to its end; gives the exit code.

        A Ctrl-C between the prompt and the first look for a key is heard when something else interrupts that look,
        as with every Python at a terminal. A person presses it again; here the window is said to have another size.
        """
        late = time.monotonic() + GIVE_UP_SECONDS
        while self._more():
            assert time.monotonic() < late, f"It did not end: {self._shown!r}"
            self.process.send_signal(signal.SIGWINCH)
        return self.process.wait(timeout=GIVE_UP_SECONDS)

    def kill(self) -> None:
        """SIGKILL, in the middle of whatever it does."""
        self.process.kill()
        self.process.wait()

"""A process that appends until it is killed, and tells of every acknowledgement on a pipe."""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Connection

import holdfast


def tell(path: str, life: str, pipe: Connection) -> None:
    """Write until killed, and tell a pipe of it."""
    main(path, life, pipe.fileno())


def main(path: str, life: str, out: int) -> None:
    """Append under keys to three streams; a line to a file per attempt and per acknowledgement."""
    with holdfast.open(path) as hf:
        number = 0
        while True:
            stream, key = f"s{number % 3}", f"{life}-{number}"
            os.write(out, f"try {stream} {key}\n".encode())
            appended = hf.journal.append(stream, "app.noted", {"n": number}, key=key)
            os.write(out, f"ack {stream} {key} {appended.version}\n".encode())
            number += 1


if __name__ == "__main__":
    main(*sys.argv[1:], sys.stdout.fileno())

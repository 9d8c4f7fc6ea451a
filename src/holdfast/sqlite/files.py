"""The identity of files, asked for before and after every commit.

A `stat` also reads a file's times, and a file system with fine-grained times then writes new ones to disk with the next
sync: a third of a commit. Where the system has `statx`, only the identity is asked for. It is called with the GIL: to
get that back from a busy thread takes longer than the answer.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any

FileId = tuple[int, int, int]
"""The number of a file and its device: as long as it is open, no other file has them."""

_AT_CWD = -100
_STATX_INO = 0x100
_BUFFER = ctypes.c_char * 256
_read_id = struct.Struct("=32xQ96xII").unpack_from
_statx: Any = None
try:
    _statx = ctypes.PyDLL(None).statx
    _statx.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
except (OSError, TypeError, AttributeError):
    pass  # Another system, or an older C library.


def find_file_id(path: bytes) -> FileId | None:
    """Return the identity of the file that has a name, or None if there is none."""
    if _statx is None:
        return find_by_stat(path)
    answer = _BUFFER()
    return None if _statx(_AT_CWD, path, 0, _STATX_INO, answer) else _read_id(answer)


def find_by_stat(path: bytes) -> FileId | None:
    """Return the same by the call that every system has."""
    try:
        status = os.stat(path)  # noqa: PTH116  a Path takes longer, and this is done for every commit
    except OSError:
        return None
    return (status.st_ino, os.major(status.st_dev), os.minor(status.st_dev))


def file_size(path: Path) -> int:
    """Return the size of a file, or 0 if there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0

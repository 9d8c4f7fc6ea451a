"""Text documents as evidence, read from below one folder and never from outside it.

Each folder on the path is opened relative to its parent and no link is followed, so no name, planted link or swap
during the read leads outside. Only a regular file of UTF-8 text within a size limit is read. Errors name the document
as the caller did and never reveal the folder's location.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from holdfast.core.numbers import check_number
from holdfast.errors import HoldfastError, InvalidValue, NotFound, TooLarge, Unavailable, Unsupported

MAX_BYTES: Final = 1_000_000
MAX_PATH_CHARS: Final = 1_024
MAX_PATH_NAMES: Final = 32
_SAFE_FLAGS: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_FOLDER_FLAGS: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
# Non-blocking: opening a pipe that was swapped in would block the caller forever.
_FILE_FLAGS: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
_MISSING_ERRNOS: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG})
_DENIED_ERRNOS: Final = frozenset({errno.EACCES, errno.EPERM})
_LINK_ERRNOS: Final = frozenset({errno.ELOOP, errno.EMLINK})


class DocumentRoot:
    """A folder whose files may be shown to models; `read("notes/a.md")` returns the text of one.

    A file larger than `max_bytes` is refused, not truncated.
    """

    def __init__(self, path: str | os.PathLike[str], *, max_bytes: int = MAX_BYTES) -> None:
        if not isinstance(path, str | os.PathLike) or not os.fspath(path):
            raise InvalidValue("path must be the folder whose files may be read.")
        check_number("max_bytes", max_bytes, least=1)
        if os.open not in os.supports_dir_fd or not getattr(os, "O_NOFOLLOW", 0):
            raise Unsupported("This system cannot open files so that links are never followed. Attach texts instead.")
        self._root = Path(path).absolute()
        self._max_bytes = max_bytes
        if not self._root.is_dir():
            raise NotFound(f"{os.fspath(path)!r} is not a folder. Make it, or name another.")

    def read(self, path: str) -> str:
        """Return the text of a file, named by its path below the folder with `/` between the names."""
        names = _split_path(path)
        with _translate_errors(path), _open_file(self._root, names) as handle:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            with os.fdopen(handle, "rb", closefd=False) as file:
                body = file.read(self._max_bytes + 1)
        if len(body) > self._max_bytes:
            raise TooLarge(
                f"{path!r:.80} has more than {self._max_bytes:,} bytes. Attach a part of it, or raise max_bytes."
            )
        try:
            text = body.decode("utf-8-sig")
        except UnicodeDecodeError:
            text = "\0"
        if "\0" in text:
            raise InvalidValue(f"{path!r:.80} is not UTF-8 text. Attach a text that was made from it.")
        return text

    def __repr__(self) -> str:
        return f"DocumentRoot({self._root.name!r})"


def _split_path(path: object) -> list[str]:
    """Split a path into its names; refuse anything but a plain path below the folder."""
    if not isinstance(path, str) or not path or len(path) > MAX_PATH_CHARS:
        raise InvalidValue(f"A document is named by its path: a text of 1 to {MAX_PATH_CHARS:,} characters.")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"{path!r:.80} is not Unicode. Name the document as it is called.") from None
    names = path.split("/")
    if not path.isprintable() or "\\" in path or ":" in names[0] or len(names) > MAX_PATH_NAMES:
        raise InvalidValue(f"{path!r:.80} is not the path of a document. Write names with / between them.")
    if any(name in ("", ".", "..") for name in names):
        raise InvalidValue(f"{path!r:.80} must lead down from the folder: not from /, and not through . or ..")
    return names


@contextmanager
def _open_file(root: Path, names: list[str]) -> Iterator[int]:
    """Open a file below a folder, each name relative to the folder before it."""
    handle = os.open(root, _FOLDER_FLAGS)
    try:
        for depth, name in enumerate(names, 1):
            below = _open_name(handle, name, _FILE_FLAGS if depth == len(names) else _FOLDER_FLAGS)
            os.close(handle)
            handle = below
        yield handle
    finally:
        os.close(handle)


def _open_name(above: int, name: str, how: int) -> int:
    """Open one name in a folder. Its type is checked first, because merely opening a device may have effects."""
    mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    if stat.S_ISLNK(mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if how == _FILE_FLAGS and not stat.S_ISREG(mode):
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    return os.open(name, how | _SAFE_FLAGS, dir_fd=above)


@contextmanager
def _translate_errors(path: str) -> Iterator[None]:
    """Translate operating system errors so that they do not reveal the folder's location."""
    try:
        yield
    except OSError as error:
        raise _translate_error(error, path) from None


def _translate_error(error: OSError, path: str) -> HoldfastError:
    if error.errno in _LINK_ERRNOS:
        return InvalidValue(f"{path!r:.80} leads through a link, and none is followed. Copy the file into the folder.")
    if error.errno in _MISSING_ERRNOS:
        return NotFound(f"There is no document {path!r:.80}. Check its path below the folder.")
    if error.errno in (errno.EISDIR, errno.ENXIO):
        return InvalidValue(f"{path!r:.80} is not a plain file. Name a file below the folder.")
    if error.errno in _DENIED_ERRNOS:
        return NotFound(f"{path!r:.80} may not be read here. Check the permissions of the file.")
    return Unavailable(f"{path!r:.80} cannot be read now ({error.strerror}). Try again later.")

"""Files attached to a message: paths, bytes, or (name, bytes) pairs, as image and file parts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from holdfast.core.lazy import lazy_module
from holdfast.errors import InvalidMessage, NotFound
from holdfast.records.messages import Message, Part

if TYPE_CHECKING:
    import mimetypes
else:
    mimetypes = lazy_module(__name__, "mimetypes")


def add_files(message: Any, files: Sequence[Any]) -> Message:
    """Add files to a user's text or message, as parts."""
    if not isinstance(files, list | tuple):
        raise InvalidMessage("files must be a list of paths, bytes, or (name, bytes) pairs.")
    if isinstance(message, str):
        message = Message(role="user", content=message or None)
    if not isinstance(message, Message):
        raise InvalidMessage("files go with a text or a Message. Put other parts into the message itself.")
    content = message.content
    parts: list[Part] = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    return replace(message, content=[*parts, *map(_make_part, files)])


def _make_part(file: Any) -> Part:
    name, data = _read_file(file)
    media_type = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if media_type.startswith("image/"):
        return {"type": "image", "data": data, "media_type": media_type}
    return {"type": "file", "data": data, "media_type": media_type, "name": name}


def _read_file(file: Any) -> tuple[str, bytes]:
    if isinstance(file, bytes | bytearray | memoryview):
        return "file", bytes(file)
    if isinstance(file, tuple) and len(file) == 2 and isinstance(file[0], str) and isinstance(file[1], bytes):
        return file
    if isinstance(file, str | os.PathLike):
        path = Path(file)
        try:
            return path.name, path.read_bytes()
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise NotFound(f"The file {str(path)!r} cannot be read: {why}. Check the path.") from None
    raise InvalidMessage(f"A file is a path, bytes, or a (name, bytes) pair, not {type(file).__name__}.")

"""Recorded: a real model's replies in a file, so that tests call it once and then need no network and no key.

Each line holds a reply, the digest of its request, and the beginning of the user's message for human readers. The
digest covers the request as it would be sent, with the model's name, the schema of the reply and the options, in
canonical JSON. Values that holdfast generates in each run (ULIDs, the marks around data) are replaced by the order of
their first appearance, in the request and in the reply, so that the same program finds its recording in another
journal. Nothing else of the request is kept, and no header or key: the file can be committed with the tests.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.core.lazy import lazy_pattern
from holdfast.core.values import to_plain
from holdfast.errors import InvalidValue, ModelFailed
from holdfast.model.scripted import read_pack, stream_message
from holdfast.ports import Model
from holdfast.records.messages import Delta, ModelCall, ModelReply

MODES: Final = ("auto", "record", "replay")
CONNECTION_OPTIONS: Final = frozenset({"api_key", "extra_headers", "headers", "timeout"})
"""Options that concern the connection: they are left out of the digest."""
_ABOUT_LENGTH: Final = 60
_GENERATED: Final = lazy_pattern(
    r"(?<![0-9A-Za-z])[0-7][0-9A-HJKMNP-TV-Z]{25}(?![0-9A-Za-z])|(?<=<data )[0-9]{9}(?=>)|(?<=</data )[0-9]{9}(?=>)",
    re.IGNORECASE,
)
_PLACEHOLDER: Final = lazy_pattern(r"\{\{made (\d+)\}\}")
_CANONICAL: Final = msgspec.json.Encoder(order="sorted")


class _RecordedReply(msgspec.Struct, frozen=True, kw_only=True):
    """A reply in the file."""

    request: str
    model: str
    about: str
    reply: dict[str, Any]


class Recorded:
    """A model whose replies are kept in a file and replayed.

    | mode | a request that is in the file | one that is not |
    |---|---|---|
    | `auto` | answered from it | asked and kept |
    | `record` | asked, and kept in place of the old reply | asked and kept |
    | `replay` | answered from it | `ModelFailed`, kind `rejected` |

    To replay without the model itself, give its name in its place. Failures of the model are not kept.
    """

    def __init__(self, model: Model | str, path: str | os.PathLike[str], *, mode: str = "auto") -> None:
        if mode not in MODES:
            raise InvalidValue(f"mode must be one of {', '.join(MODES)}, not {mode!r}.")
        if mode == "record" and isinstance(model, str):
            raise InvalidValue("To record, give the model itself, not its name.")
        self._model, self._path, self._mode = model, Path(path), mode
        self._known = _read_file(self._path)

    @property
    def name(self) -> str:
        """The model's own name."""
        return self._model if isinstance(self._model, str) else self._model.name

    async def reply(self, asked: ModelCall, say: Callable[[Delta], None] | None = None) -> ModelReply:
        """Return the recorded reply, or the model's own, which is then recorded."""
        digest, made = digest_request(self.name, asked)
        known = self._known.get(digest) if self._mode != "record" else None
        if known is not None:
            found = _decode_reply(known, made)
            await stream_message(found.message, say)
            return found
        if self._mode == "replay" or isinstance(self._model, str):
            raise ModelFailed(
                f"{self._path} has no reply of {self.name} to {_describe_request(asked)!r} (request {digest}). "
                "Run once with the model itself and mode='auto', or mode='record', to record it.",
                kind="rejected",
            )
        found = await self._model.reply(asked, say)
        about, reply = _describe_request(asked), _encode_reply(found, made)
        self._append_reply(_RecordedReply(request=digest, model=self.name, about=about, reply=reply))
        return found

    async def close(self) -> None:
        """Close the model; the file is never left open."""
        if not isinstance(self._model, str):
            await self._model.close()

    def _append_reply(self, line: _RecordedReply) -> None:
        """Append one line in a single write, so that several processes can record at the same time."""
        self._known[line.request] = line.reply
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a+b", buffering=0) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 1))
            # A partial line, left by a process that was killed, stays a line of its own.
            begin = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(begin + _CANONICAL.encode(line) + b"\n")


def digest_request(name: str, asked: ModelCall) -> tuple[str, list[str]]:
    """Return the digest of a request, the same in every run, and the values in it that this run generated."""
    options = {key: value for key, value in asked.options.items() if key not in CONNECTION_OPTIONS}
    request: Mapping[str, Any] = asked.pack.to_openai()
    whole = {"model": name, "output": asked.output, "options": to_plain(options), "request": request}
    made: dict[str, str] = {}

    def numbered(found: re.Match[str]) -> str:
        return made.setdefault(found[0], f"{{{{made {len(made)}}}}}")

    text = _GENERATED.sub(numbered, _CANONICAL.encode(whole).decode())
    return hashlib.sha256(text.encode()).hexdigest()[:32], list(made)


def _encode_reply(reply: ModelReply, made: list[str]) -> dict[str, Any]:
    """Encode a reply as data, with generated values replaced by their numbers in the request."""
    numbers = {each: number for number, each in enumerate(made)}

    def numbered(found: re.Match[str]) -> str:
        return f"{{{{made {numbers[found[0]]}}}}}" if found[0] in numbers else found[0]

    kept: dict[str, Any] = msgspec.json.decode(_GENERATED.sub(numbered, _CANONICAL.encode(reply).decode()))
    return kept


def _decode_reply(kept: dict[str, Any], made: list[str]) -> ModelReply:
    def named(found: re.Match[str]) -> str:
        number = int(found[1])
        return made[number] if number < len(made) else found[0]

    return msgspec.json.decode(_PLACEHOLDER.sub(named, _CANONICAL.encode(kept).decode()), type=ModelReply)


def _read_file(path: Path) -> dict[str, dict[str, Any]]:
    """Read the replies of a file, the newest for each request. A line that was cut off is skipped."""
    known: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(path.read_bytes().splitlines() if path.exists() else (), 1):
        try:
            line = msgspec.json.decode(text, type=_RecordedReply)
            msgspec.convert(line.reply, ModelReply)
        except msgspec.ValidationError:
            raise InvalidValue(
                f"Line {number} of {path} is not a recorded reply. Remove it, or the whole file."
            ) from None
        except msgspec.DecodeError:
            continue
        known[line.request] = line.reply
    return known


def _describe_request(asked: ModelCall) -> str:
    return read_pack(asked.pack).user[:_ABOUT_LENGTH]

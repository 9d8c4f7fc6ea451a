"""A pack by its pieces: where each came from, in the order shown. So it can be made again, and compared.

Rounds that follow each other and are shown as they were said are one piece, however many they are.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.codec import encode
from holdfast.records.events.calls import PackedPiece
from holdfast.records.messages import Message
from holdfast.records.packs import Origin, Packed, Segment

Follows = Mapping[tuple[str, int], tuple[str, int]]

RENDERER = 1
"""Which way of making text out of pieces; a later release keeps this one and adds another."""


def pieces(segments: Sequence[Segment], follows: Follows) -> tuple[PackedPiece, ...]:
    """What segments were made from; `follows` says which message comes after which on the line."""
    found: list[PackedPiece] = []
    for segment in segments:
        for index, origin in enumerate(segment.origins):
            piece = PackedPiece(
                kind=segment.kind,
                id=segment.id,
                tokens=segment.estimated_tokens if index == 0 else 0,
                stream=origin.stream,
                first=origin.first,
                last=origin.last,
                part=origin.part,
                handle=origin.handle,
                handle_stream=origin.handle_stream,
                handle_version=origin.handle_version,
                artifact=origin.artifact,
                entry=origin.entry,
                cut=origin.cut,
                trust=segment.trust,
                priority=segment.priority,
            )
            joined = _joined(found[-1], piece, follows) if found else None
            if joined is None:
                found.append(piece)
            else:
                found[-1] = joined
    return tuple(found)


def _joined(one: PackedPiece, other: PackedPiece, follows: Follows) -> PackedPiece | None:
    """Two neighbours as one piece, if nothing lies between them and neither was cut."""
    plain = one.kind == other.kind == "conversation" and one.cut is None and other.cut is None
    if not plain or one.part or other.part or one.stream is None or other.stream is None:
        return None
    if one.last is None or other.first is None or follows.get((one.stream, one.last)) != (other.stream, other.first):
        return None
    if one.stream != other.stream or one.priority != other.priority:
        return None
    return msgspec.structs.replace(one, last=other.last, tokens=one.tokens + other.tokens)


def common_tokens(before: Sequence[PackedPiece], segments: Sequence[Segment], follows: Follows) -> int:
    """How many tokens at the beginning of these segments are the same as in an earlier pack; 0 if there was none."""
    earlier = list(before)
    total = doubtful = at = 0
    reached: int | None = None
    for segment in segments:
        for origin in segment.origins:
            if at == len(earlier) or not _same(earlier[at], origin, reached, follows):
                return total
            reached = origin.last if _is_run(earlier[at]) and origin.last != earlier[at].last else None
            at += reached is None
        if not earlier or (reached is None and at < len(earlier) and _is_of(earlier[at], segment)):
            return total  # The earlier pack had more of this one.
        doubtful += segment.estimated_tokens
        if reached is None or 0 not in [message.version for message in segment.messages]:
            total, doubtful = total + doubtful, 0
        # Else a result was made up here. It was then, too, if the same came next.
    return total


def _is_run(piece: Any) -> bool:
    return piece.kind == "conversation" and piece.part is None


def _is_of(piece: PackedPiece, segment: Segment) -> bool:
    return (piece.kind, piece.id) == (segment.kind, segment.id)


def _same(piece: PackedPiece, origin: Origin, reached: int | None, follows: Follows) -> bool:
    """Whether a piece goes on with this; of a run that has begun, `reached` was the last message."""
    if not _is_run(piece) or not _is_run(origin):
        return reached is None and _identity(piece) == _identity(origin)
    if piece.stream is None or piece.stream != origin.stream or piece.cut != origin.cut or piece.last is None:
        return False
    if origin.first is None or origin.last is None or origin.last > piece.last:
        return False
    if reached is None:
        return origin.first == piece.first
    return origin.first == reached + 1 or follows.get((piece.stream, reached)) == (origin.stream, origin.first)


def _identity(piece: Any) -> tuple[Any, ...]:
    names = ("kind", "stream", "first", "last", "part", "handle", "handle_version", "artifact", "entry", "cut")
    return tuple(getattr(piece, name) for name in names)


def digest(secret: bytes, tenant: str, packed: Packed) -> str:
    """A name for exactly what is shown, which says nothing to who does not have the journal."""
    shown = {
        "system": packed.system,
        "tools": msgspec.to_builtins(packed.tools),
        "messages": [_plain(message) for message in said(packed.segments)],
    }
    key = hmac.new(secret, f"pack\0{tenant}".encode(), hashlib.sha256).digest()
    return hmac.new(key, encode(shown), hashlib.sha256).hexdigest()


def said(segments: Sequence[Segment]) -> Iterator[Message]:
    """The messages of segments, in order."""
    for segment in segments:
        yield from segment.messages


def _plain(message: Message) -> dict[str, Any]:
    """What a provider is shown of a message, whatever is known about it besides."""
    shown = Message(
        role=message.role,
        content=message.content,
        tool_calls=message.tool_calls,
        tool_results=message.tool_results,
        name=message.name,
        metadata=message.metadata,
    )
    plain: dict[str, Any] = msgspec.to_builtins(shown)
    return plain

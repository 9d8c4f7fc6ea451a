"""Copies of files and pages that journaled packs hold: what a model was shown of them, when others have changed since.

A pack says which handle each copy came from. A handle that was inherited stands for the one that was first attached,
so a child is shown what its ancestors were shown. Packs are read newest first, each once, and only as far as needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from holdfast.core.telling import FILE
from holdfast.flow.context.packed import journaled
from holdfast.flow.context.resolving import Resolved, reload
from holdfast.flow.context.seeing import Seen, ancestors
from holdfast.flow.stack.showing import event_at
from holdfast.ports import Acting, Ports
from holdfast.records.events.calls import PackedPiece
from holdfast.records.packs import Origin
from holdfast.records.resume import HandleInfo

LOOK_BACK: Final = 1_000
"""Packs of one line that are looked at for a copy."""

Pieces = tuple[int, tuple[PackedPiece, ...]]
"""When a pack was journaled, and the copies in it."""


class Copies:
    """The copies that are within sight of one line and of the frames above it."""

    def __init__(self, ports: Ports, acting: Acting, seen: Seen) -> None:
        self._ports, self._acting, self._seen = ports, acting, seen
        self._above: list[str] | None = None
        self._lines: dict[str, tuple[list[Pieces], Iterator[Pieces]]] = {}

    def shown(self, handle: HandleInfo, stream: str) -> Resolved | None:
        """A page as it was shown before, so that later calls are shown the same, or a file that is out of reach."""
        target = handle.target
        if handle.body is not None or not isinstance(target, str):
            return None
        of_file = handle.kind == "document" and target.startswith(FILE)
        if handle.kind != "url" and (not of_file or self._ports.documents is not None):
            return None
        artifact = self.of(handle, stream)
        if artifact is None:
            return None
        origin = Origin(kind="evidence", handle=handle.id, handle_version=handle.version, artifact=artifact)
        text = reload(self._ports, self._acting, origin)
        if not isinstance(text, str):
            return None  # It was erased.
        return Resolved(text=text, trust="external", artifact=artifact, source="as it was shown before")

    def of(self, handle: HandleInfo, stream: str) -> str | None:
        """The artifact that holds what a handle in a stream led to when it was journaled last; None if it never was."""
        began = (handle.source_stream or stream, handle.source_version or handle.version)
        attached = event_at(self._ports, self._acting, *began)
        since = 0 if attached is None else attached.seq
        for line in self._within_sight(handle, stream):
            for at, pieces in self._packs(line):
                if at < since:
                    break  # It was not there yet.
                for piece in pieces:
                    if piece.handle == handle.id and self._began(piece) == began:
                        return piece.artifact
        return None

    def _within_sight(self, handle: HandleInfo, stream: str) -> list[str]:
        """Its own line, and for a handle from above those of its ancestors."""
        frame = self._seen.frame
        own = frame is None or (stream == self._seen.actor and any(_is(one, handle) for one in frame.handles))
        if frame is None or (own and handle.source_stream is None):
            return [self._seen.line]
        if self._above is None:
            lines = (place.line for place in ancestors(self._ports, self._acting, frame.id))
            self._above = [*dict.fromkeys((self._seen.line, *lines))]
        return self._above

    def _packs(self, line: str) -> Iterator[Pieces]:
        """The packs of a line, newest first: those that were read already, then more."""
        if line not in self._lines:
            self._lines[line] = ([], self._read(line))
        known, more = self._lines[line]
        yield from known
        for pack in more:
            known.append(pack)
            yield pack

    def _read(self, line: str) -> Iterator[Pieces]:
        for event in islice(journaled(self._ports, self._acting, line), LOOK_BACK):
            yield event.seq, tuple(piece for piece in event.facts.manifest if _is_copy(piece))

    def _began(self, piece: PackedPiece) -> tuple[str, int] | None:
        """Where the handle that a piece was shown for was first attached."""
        if piece.handle_stream is None or piece.handle_version is None:
            return None
        event = event_at(self._ports, self._acting, piece.handle_stream, piece.handle_version)
        source = getattr(None if event is None else event.facts, "source_stream", None)
        if event is None or source is None:
            return piece.handle_stream, piece.handle_version
        return source, event.facts.source_version


def _is(one: object, handle: HandleInfo) -> bool:
    return (getattr(one, "id", None), getattr(one, "version", None)) == (handle.id, handle.version)


def _is_copy(piece: PackedPiece) -> bool:
    """An artifact that was attached as such is no copy: it is itself."""
    return piece.kind == "evidence" and piece.artifact is not None and piece.part != "artifact"

"""Read what a pack may show besides the conversation: a frame's evidence, in order of importance, and memories.

Evidence that cannot be read is omitted and reported; only critical evidence must be readable. Excluded evidence is
not read. Files and web pages that a journaled pack has shown are shown again from the copy that the pack holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.packs.assemble import Report
from holdfast.core.packs.event_text import FILE
from holdfast.core.packs.fences import MEMORY_LABEL, TRUSTED, evidence_label
from holdfast.core.packs.segments import Item
from holdfast.core.search.words import folded, terms
from holdfast.errors import EvidenceFailed, HoldfastError
from holdfast.flow.compaction import recall, rules
from holdfast.flow.frames.read import current, event_at, handle_info
from holdfast.flow.journal.artifacts import artifact_name
from holdfast.flow.packs import handles, visibility
from holdfast.flow.packs.handles import Resolved, reload
from holdfast.flow.packs.manifest import journaled
from holdfast.flow.packs.request import Asked
from holdfast.flow.packs.visibility import Seen, ancestors
from holdfast.ports import Acting, Ports
from holdfast.records.compaction import Recalled
from holdfast.records.events.calls import PackedPiece
from holdfast.records.events.envelope import Erased
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.packs import Decision, Origin
from holdfast.records.recovery import HandleInfo

MOST_READ = 256
"""The most handles that are read for one pack."""
LEAST_READ = 400_000
"""Characters of evidence always read before the rest is skipped: a large item must not hide small ones."""
CHARACTERS_PER_TOKEN = 4
_PRIORITIES = {score: name for name, score in PRIORITY_SCORE.items()}
MEMORY_PRIORITY = "low"
MOST_OF_OTHERS = "high"
"""The highest priority of evidence not written by the system or an operator, whatever it was attached with."""
_WORD = re.compile(r"[^\W_]+")


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """Items to choose from, a report on the others, and outside texts by their artifact names."""

    items: tuple[Item, ...] = ()
    report: Report = Report()
    pins: tuple[tuple[str, bytes], ...] = ()


def gathered(ports: Ports, acting: Acting, seen: Seen, asked: Asked, room: int) -> Gathered:
    """Read the frame's evidence as far as it may be shown. Hold no snapshot here: a source may be slow."""
    found = _Reading(ports, acting, seen, asked, room)
    if seen.frame is not None:
        found.read()
    else:
        found.missing = list(asked.include)
    return found.gathered()


def with_memories(ports: Ports, acting: Acting, seen: Seen, asked: Asked, known: Gathered) -> Gathered:
    """Add memories that match the query, or else the user's last question; a failed search adds none.

    Hold no snapshot here: embedding the query may be slow.
    """
    limit, scopes = rules.recall_of(ports, acting, seen.line)
    limit = limit if asked.recall is None else asked.recall
    query = (asked.query or _last_question(ports, acting, seen.line)) if limit else ""
    if not query:
        return known
    try:
        found = recall.memories(ports, acting, scopes, query, limit)
    except HoldfastError as error:
        failed = {**known.report.failed, "memory": str(error)}
        return replace(known, report=replace(known.report, failed=failed))
    return replace(known, items=(*known.items, *(_memory(one, nth) for nth, one in enumerate(found))))


def _memory(memory: Recalled, position: int) -> Item:
    origin = Origin(kind="memory", stream=memory.scope, first=memory.version, last=memory.version, entry=memory.key)
    return Item(
        id=memory.id,
        kind="memory",
        label=MEMORY_LABEL,
        text=memory.text,
        priority=MEMORY_PRIORITY,
        trust=memory.trust,
        origin=origin,
        relevance=memory.score,
        position=position,
    )


class _Reading:
    """The reader of one pack's evidence."""

    def __init__(self, ports: Ports, acting: Acting, seen: Seen, asked: Asked, room: int) -> None:
        self._ports, self._acting, self._seen, self._asked = ports, acting, seen, asked
        self._words = frozenset(terms(asked.query)) if asked.query else frozenset()
        self._copies = Copies(ports, acting, seen)
        self._left = max(2 * room * CHARACTERS_PER_TOKEN, LEAST_READ)
        self.items: list[Item] = []
        self.missing: list[str] = []
        self.refused: list[str] = []
        self.failed: dict[str, str] = {}
        self.decisions: list[Decision] = []
        self.pins: dict[str, bytes] = {}

    def read(self) -> None:
        """Read handles in order of importance, until there is more text than could be shown."""
        for number, (handle, stream) in enumerate(self._wanted()):
            priority = _PRIORITIES.get(handle.priority, "medium")
            if handle.id in self._asked.exclude and (priority != "critical" or self._asked.force_exclude):
                self._omit(handle, priority, "excluded")
                continue
            important = priority == "critical" or handle.id in self._asked.include
            if not important and (number >= MOST_READ or self._left < 0):
                self._omit(handle, priority, "not_read")
                continue
            self._take(handle, stream, priority)

    def _wanted(self) -> Iterator[tuple[HandleInfo, str]]:
        """Iterate over the frame's handles, most important and newest first, then over ancestors' included ones."""
        frame, stream = self._seen.frame, self._seen.actor
        assert frame is not None, "only frames have evidence"
        assert stream is not None, "a frame lives somewhere"
        own = [handle for handle in frame.handles if handle.removed is None]
        names, included = {handle.id for handle in own}, set(self._asked.include)
        own.sort(key=lambda one: (one.id not in included, -one.priority, -one.version))
        for handle in own:
            yield handle_info(self._ports, self._acting, stream, handle), stream
        for name in dict.fromkeys(self._asked.include):
            if name not in names:
                found = visibility.find_handle(self._ports, self._acting, frame.id, name)
                if found is None:
                    self.missing.append(name)
                else:
                    yield found

    def _take(self, handle: HandleInfo, stream: str, priority: str) -> None:
        try:
            found = self._copies.shown(handle, stream) or handles.resolve(self._ports, self._acting, stream, handle)
        except EvidenceFailed as error:
            if priority == "critical":
                could = handles.most_trusted(self._ports, self._acting, stream, handle)
                priority = _counting_as(priority, could)
            if priority == "critical":
                raise
            self.failed[handle.id] = error.reason
            self._omit(handle, priority, "erased" if error.erased else "failed")
            return
        priority = _counting_as(priority, found.trust)
        if handle.id in self._asked.exclude:
            if priority != "critical":
                self._omit(handle, priority, "excluded")
                return
            self.refused.append(handle.id)
        self._add(handle, stream, priority, found)

    def _add(self, handle: HandleInfo, stream: str, priority: str, found: handles.Resolved) -> None:
        origin = replace(handles.origin_of(stream, handle, found), part=handle.kind)
        if found.outside:
            body = found.text.encode("utf-8", "replace")
            name = artifact_name(self._ports.journal.secret, self._acting.tenant, body).hex()
            origin = replace(origin, artifact=name)
            self.pins[name] = body
        text = described(handle.description, found.text)
        self._left -= len(text)
        self.items.append(
            Item(
                id=handle.id,
                kind="evidence",
                label=evidence_label(handle.id, handle.kind, found.trust),
                text=text,
                priority=priority,
                trust=found.trust,
                origin=origin,
                mandatory=handle.id in self._asked.include,
                relevance=self._relevance(text),
                recency=handle.at,
                position=handle.position,
                type=handle.kind,
                source=found.source,
            )
        )

    def _relevance(self, text: str) -> float:
        """Return the share of the query's words that occur in a text."""
        if not self._words:
            return 0.0
        lowered = folded(text).lower()
        said = set(_WORD.findall(lowered))
        # In languages without spaces the query's terms are pairs of letters.
        found = (word in said or (not word.isascii() and word in lowered) for word in self._words)
        return sum(found) / len(self._words)

    def _omit(self, handle: HandleInfo, priority: str, reason: str) -> None:
        self.decisions.append(
            Decision(
                id=handle.id,
                kind="evidence",
                outcome="omitted",
                reason=reason,
                priority=priority,
                tokens=handle.tokens,
                trust=handle.trust,
            )
        )

    def gathered(self) -> Gathered:
        """Return the items, the report and the texts to pin."""
        return Gathered(
            items=tuple(self.items),
            report=Report(
                missing=tuple(self.missing),
                refused=tuple(self.refused),
                failed=self.failed,
                decisions=tuple(self.decisions),
            ),
            pins=tuple(self.pins.items()),
        )


def _counting_as(priority: str, trust: str) -> str:
    """Lower "critical" for evidence that may not instruct a model: packs need not show it."""
    return priority if priority != "critical" or trust in TRUSTED else MOST_OF_OTHERS


def described(description: str | Erased | None, text: str) -> str:
    """Return the evidence preceded by its handle's description."""
    return f"{description}\n\n{text}" if isinstance(description, str) and description else text


def _last_question(ports: Ports, acting: Acting, line: str) -> str:
    """Return the user's last message; empty if the thread has none, as in a new frame."""
    return "" if current(ports, acting, line).line is None else recall.query_of(ports, acting, line)


LOOK_BACK: Final = 1_000
"""The most packs of one thread that are searched for a copy."""

Pieces = tuple[int, tuple[PackedPiece, ...]]
"""A pack's sequence number, and the copies in it."""


class Copies:
    """The copies visible to one thread and to the frames above it."""

    def __init__(self, ports: Ports, acting: Acting, seen: Seen) -> None:
        self._ports, self._acting, self._seen = ports, acting, seen
        self._above: list[str] | None = None
        self._lines: dict[str, tuple[list[Pieces], Iterator[Pieces]]] = {}

    def shown(self, handle: HandleInfo, stream: str) -> Resolved | None:
        """Return a page as it was shown before, so that later calls see the same, or a file out of reach; else None."""
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
        """Return the artifact last journaled for a handle in a stream; None if there is none."""
        began = (handle.source_stream or stream, handle.source_version or handle.version)
        attached = event_at(self._ports, self._acting, *began)
        since = 0 if attached is None else attached.seq
        for line in self._within_sight(handle, stream):
            for at, pieces in self._packs(line):
                if at < since:
                    break  # The handle was not attached yet.
                for piece in pieces:
                    if piece.handle == handle.id and self._began(piece) == began:
                        return piece.artifact
        return None

    def _within_sight(self, handle: HandleInfo, stream: str) -> list[str]:
        """Return the handle's own thread, and for an inherited handle those of its ancestors."""
        frame = self._seen.frame
        own = frame is None or (stream == self._seen.actor and any(_is(one, handle) for one in frame.handles))
        if frame is None or (own and handle.source_stream is None):
            return [self._seen.line]
        if self._above is None:
            lines = (place.line for place in ancestors(self._ports, self._acting, frame.id))
            self._above = [*dict.fromkeys((self._seen.line, *lines))]
        return self._above

    def _packs(self, line: str) -> Iterator[Pieces]:
        """Iterate over a thread's packs, newest first: those already read, then more."""
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
        """Return the stream and version where the handle of a piece was first attached."""
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
    """Return True if a piece is a copy. An artifact attached as such is not one."""
    return piece.kind == "evidence" and piece.artifact is not None and piece.part != "artifact"

"""What a pack may show beside the conversation: evidence of a frame and memories, read and in order.

Whatever cannot be read is left out and said so; only what is critical must be there. What was excluded is not read.

Copies of files and pages that journaled packs hold: what a model was shown of them, when others have changed since.

A pack says which handle each copy came from. A handle that was inherited stands for the one that was first attached,
so a child is shown what its ancestors were shown. Packs are read newest first, each once, and only as far as needed.
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
"""Handles that are read for one pack, at most."""
LEAST_READ = 400_000
"""Characters of evidence that are read before the rest is not looked at: what is large must not hide what is small."""
CHARACTERS_PER_TOKEN = 4
_PRIORITIES = {score: name for name, score in PRIORITY_SCORE.items()}
MEMORY_PRIORITY = "low"
MOST_OF_OTHERS = "high"
"""What evidence counts for at most that neither the system nor an operator wrote, whatever it was attached as."""
_WORD = re.compile(r"[^\W_]+")


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """Items to choose from, what became of the others, and texts from outside by the names of their artifacts."""

    items: tuple[Item, ...] = ()
    report: Report = Report()
    pins: tuple[tuple[str, bytes], ...] = ()


def gathered(ports: Ports, acting: Acting, seen: Seen, asked: Asked, room: int) -> Gathered:
    """Evidence of the frame, as far as it may be shown. It may be far away: nothing is held while it is fetched."""
    found = _Reading(ports, acting, seen, asked, room)
    if seen.frame is not None:
        found.read()
    else:
        found.missing = list(asked.include)
    return found.gathered()


def with_memories(ports: Ports, acting: Acting, seen: Seen, asked: Asked, known: Gathered) -> Gathered:
    """The same with memories that go with what was asked last; a search that fails leaves them out.

    What makes vectors of a question may be far away as well: nothing is held while it is asked.
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
    """One pack's reading of evidence."""

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
        """Handles in order of importance, until there is more than could be shown."""
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
        """The frame's own handles, most important and newest first, then those of ancestors that were asked for."""
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
        """The share of the question's words that a text has."""
        if not self._words:
            return 0.0
        lowered = folded(text).lower()
        said = set(_WORD.findall(lowered))
        # Of a language without spaces the question's words are pairs of letters.
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
        """What came of it."""
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
    """Only what may instruct a model is something that every pack must show."""
    return priority if priority != "critical" or trust in TRUSTED else MOST_OF_OTHERS


def described(description: str | Erased | None, text: str) -> str:
    """What a handle says about its evidence, and the evidence."""
    return f"{description}\n\n{text}" if isinstance(description, str) and description else text


def _last_question(ports: Ports, acting: Acting, line: str) -> str:
    """What a user said last; nothing where nothing was said at all, as in a frame that begins."""
    return "" if current(ports, acting, line).line is None else recall.query_of(ports, acting, line)


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

"""Read what a pack may show besides the conversation: a frame's evidence, in order of importance, and memories.

Evidence that cannot be read is omitted and reported; only critical evidence must be readable. Excluded evidence is
not read. Files and web pages that a journaled pack has shown are shown again from the copy that the pack holds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice, tee

from msgspec.structs import replace

from holdfast.core.packs.assemble import EvidenceItems
from holdfast.core.packs.fences import MEMORY_LABEL, evidence_label
from holdfast.core.packs.segments import PackItem
from holdfast.core.search.words import fold_text, query_terms
from holdfast.core.trust import FILE_PREFIX, TRUSTED_LEVELS
from holdfast.errors import EvidenceFailed, HoldfastError
from holdfast.flow.compaction import recall, rules
from holdfast.flow.frames.read import iter_ancestors, load_current_state, read_event, read_handle
from holdfast.flow.journal.artifacts import artifact_name
from holdfast.flow.packs import handles, visibility
from holdfast.flow.packs.handles import HandleText, reload_evidence
from holdfast.flow.packs.manifest import is_copy, iter_packs
from holdfast.flow.packs.visibility import PackRequest, Visibility
from holdfast.ports import Env
from holdfast.records.events.calls import PackedPiece
from holdfast.records.events.envelope import Erased
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.packs import Decision, Origin
from holdfast.records.recovery import HandleInfo

MAX_HANDLES_READ = 256
"""The most handles that are read for one pack."""
MIN_CHARS_READ = 400_000
"""Characters of evidence always read before the rest is skipped: a large item must not hide small ones."""
CHARACTERS_PER_TOKEN = 4
_PRIORITIES = {score: name for name, score in PRIORITY_SCORE.items()}
MEMORY_PRIORITY = "low"
UNTRUSTED_PRIORITY = "high"
"""The highest priority of evidence not written by the system or an operator, whatever it was attached with."""
MAX_COPY_PACKS = 1_000
"""The most packs of one thread that are searched for a copy."""
_WORD = re.compile(r"[^\W_]+")

CopyPieces = tuple[int, tuple[PackedPiece, ...]]
"""A pack's sequence number, and the copies in it."""


def gather_evidence(env: Env, seen: Visibility, asked: PackRequest, room: int) -> EvidenceItems:
    """Read the frame's evidence, and memories that match the query, or else the user's last question."""
    known = EvidenceItems(missing=asked.include)
    if seen.frame is not None and (seen.frame.handles or asked.include):
        known = _EvidenceReader(env, seen, asked, room).read()
    limit, scopes = rules.recall_settings(env, seen.thread)
    limit = limit if asked.recall is None else asked.recall
    query = asked.query if limit else None
    if limit and not query and load_current_state(env, seen.thread).thread is not None:
        query = recall.default_query(env, seen.thread)
    if not query:
        return known
    try:
        found = recall.search_memories(env, scopes, query, limit)
    except HoldfastError as error:
        return replace(known, failed={**known.failed, "memory": str(error)})
    items = (
        PackItem(
            id=one.id,
            kind="memory",
            label=MEMORY_LABEL,
            text=one.text,
            priority=MEMORY_PRIORITY,
            trust=one.trust,
            origin=Origin(kind="memory", stream=one.scope, first=one.version, last=one.version, entry=one.key),
            relevance=one.score,
        )
        for one in found
    )
    return replace(known, items=(*known.items, *items))


class _EvidenceReader:
    """The reader of one pack's evidence."""

    def __init__(self, env: Env, seen: Visibility, asked: PackRequest, room: int) -> None:
        self._env, self._seen, self._asked = env, seen, asked
        self._words = frozenset(query_terms(asked.query)) if asked.query else frozenset()
        self._copies = _EvidenceCopies(env, seen)
        self._left = max(2 * room * CHARACTERS_PER_TOKEN, MIN_CHARS_READ)
        self._items: list[PackItem] = []
        self._missing: list[str] = []
        self._refused: list[str] = []
        self._failed: dict[str, str] = {}
        self._decisions: list[Decision] = []
        self._pins: dict[str, bytes] = {}

    def read(self) -> EvidenceItems:
        """Read handles in order of importance, until there is more text than could be shown."""
        for number, (handle, stream) in enumerate(self._iter_handles()):
            priority = _PRIORITIES.get(handle.priority, "medium")
            if handle.id in self._asked.exclude and (priority != "critical" or self._asked.force_exclude):
                self._omit(handle, priority, "excluded")
                continue
            important = priority == "critical" or handle.id in self._asked.include
            if not important and (number >= MAX_HANDLES_READ or self._left < 0):
                self._omit(handle, priority, "not_read")
                continue
            self._read_handle(handle, stream, priority)
        return EvidenceItems(
            items=tuple(self._items),
            missing=tuple(self._missing),
            refused=tuple(self._refused),
            failed=self._failed,
            decisions=tuple(self._decisions),
            pins=tuple(self._pins.items()),
        )

    def _iter_handles(self) -> Iterator[tuple[HandleInfo, str]]:
        """Iterate over the frame's handles, most important and newest first, then over ancestors' included ones."""
        frame, stream = self._seen.frame, self._seen.actor
        assert frame is not None, "only frames have evidence"
        assert stream is not None, "a frame lives somewhere"
        own = [handle for handle in frame.handles if handle.removed is None]
        names, included = {handle.id for handle in own}, set(self._asked.include)
        own.sort(key=lambda one: (one.id not in included, -one.priority, -one.version))
        for handle in own:
            yield read_handle(self._env, stream, handle), stream
        for name in dict.fromkeys(self._asked.include):
            if name not in names:
                found = visibility.find_handle(self._env, frame.id, name)
                if found is None:
                    self._missing.append(name)
                else:
                    yield found

    def _read_handle(self, handle: HandleInfo, stream: str, priority: str) -> None:
        try:
            found = self._copies.find_shown(handle, stream) or handles.resolve_handle(self._env, stream, handle)
        except EvidenceFailed as error:
            if priority == "critical":
                priority = _cap_priority(priority, handles.max_trust(self._env, stream, handle))
            if priority == "critical":
                raise
            self._failed[handle.id] = error.reason
            self._omit(handle, priority, "erased" if error.erased else "failed")
            return
        priority = _cap_priority(priority, found.trust)
        if handle.id in self._asked.exclude:
            if priority != "critical":
                self._omit(handle, priority, "excluded")
                return
            self._refused.append(handle.id)
        self._add_item(handle, stream, priority, found)

    def _add_item(self, handle: HandleInfo, stream: str, priority: str, found: handles.HandleText) -> None:
        origin = replace(handles.evidence_origin(stream, handle, found), part=handle.kind)
        if found.outside:
            body = found.text.encode("utf-8", "replace")
            name = artifact_name(self._env.journal.secret, self._env.tenant, body).hex()
            origin = replace(origin, artifact=name)
            self._pins[name] = body
        text = prepend_description(handle.description, found.text)
        self._left -= len(text)
        self._items.append(
            PackItem(
                id=handle.id,
                kind="evidence",
                label=evidence_label(handle.id, handle.kind, found.trust),
                text=text,
                priority=priority,
                trust=found.trust,
                origin=origin,
                mandatory=handle.id in self._asked.include,
                relevance=self._relevance(text),
                type=handle.kind,
                source=found.source,
            )
        )

    def _relevance(self, text: str) -> float:
        """Return the share of the query's words that occur in a text."""
        if not self._words:
            return 0.0
        lowered = fold_text(text).lower()
        said = set(_WORD.findall(lowered))
        # In languages without spaces the query's terms are pairs of letters.
        found = (word in said or (not word.isascii() and word in lowered) for word in self._words)
        return sum(found) / len(self._words)

    def _omit(self, handle: HandleInfo, priority: str, reason: str) -> None:
        self._decisions.append(
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


def _cap_priority(priority: str, trust: str) -> str:
    """Lower "critical" for evidence that may not instruct a model: packs need not show it."""
    return priority if priority != "critical" or trust in TRUSTED_LEVELS else UNTRUSTED_PRIORITY


def prepend_description(description: str | Erased | None, text: str) -> str:
    """Return the evidence preceded by its handle's description."""
    return f"{description}\n\n{text}" if isinstance(description, str) and description else text


class _EvidenceCopies:
    """The copies visible to one thread and to the frames above it."""

    def __init__(self, env: Env, seen: Visibility) -> None:
        self._env, self._seen = env, seen
        self._above: list[str] | None = None
        self._threads: dict[str, Iterator[CopyPieces]] = {}

    def find_shown(self, handle: HandleInfo, stream: str) -> HandleText | None:
        """Return a page as it was shown before, so that later calls see the same, or a file out of reach; else None."""
        target = handle.target
        if handle.body is not None or not isinstance(target, str):
            return None
        of_file = handle.kind == "document" and target.startswith(FILE_PREFIX)
        if handle.kind != "url" and (not of_file or self._env.documents is not None):
            return None
        artifact = self.find_artifact(handle, stream)
        if artifact is None:
            return None
        origin = Origin(kind="evidence", handle=handle.id, handle_version=handle.version, artifact=artifact)
        text = reload_evidence(self._env, origin)
        if not isinstance(text, str):
            return None  # It was erased.
        return HandleText(text=text, trust="external", artifact=artifact, source="as it was shown before")

    def find_artifact(self, handle: HandleInfo, stream: str) -> str | None:
        """Return the artifact last journaled for a handle in a stream; None if there is none."""
        began = (handle.source_stream or stream, handle.source_version or handle.version)
        attached = read_event(self._env, *began)
        since = 0 if attached is None else attached.seq
        for thread in self._visible_threads(handle, stream):
            for at, pieces in self._iter_packs(thread):
                if at < since:
                    break  # The handle was not attached yet.
                for piece in pieces:
                    if piece.handle == handle.id and self._first_attachment(piece) == began:
                        return piece.artifact
        return None

    def _visible_threads(self, handle: HandleInfo, stream: str) -> list[str]:
        """Return the handle's own thread, and for an inherited handle those of its ancestors."""
        frame = self._seen.frame
        own = frame is None or (
            stream == self._seen.actor
            and any((one.id, one.version) == (handle.id, handle.version) for one in frame.handles)
        )
        if frame is None or (own and handle.source_stream is None):
            return [self._seen.thread]
        if self._above is None:
            threads = (place.thread for place in iter_ancestors(self._env, frame.id))
            self._above = [*dict.fromkeys((self._seen.thread, *threads))]
        return self._above

    def _iter_packs(self, thread: str) -> Iterator[CopyPieces]:
        """Iterate over a thread's packs, newest first: those already read, then more."""
        if thread not in self._threads:
            packs = islice(iter_packs(self._env, thread), MAX_COPY_PACKS)
            self._threads[thread] = ((event.seq, tuple(filter(is_copy, event.facts.manifest))) for event in packs)
        self._threads[thread], found = tee(self._threads[thread])
        return found

    def _first_attachment(self, piece: PackedPiece) -> tuple[str, int] | None:
        """Return the stream and version where the handle of a piece was first attached."""
        if piece.handle_stream is None or piece.handle_version is None:
            return None
        event = read_event(self._env, piece.handle_stream, piece.handle_version)
        source = getattr(None if event is None else event.facts, "source_stream", None)
        if event is None or source is None:
            return piece.handle_stream, piece.handle_version
        return source, event.facts.source_version

"""Find where a fact was said: messages, summaries, the brief, evidence of live frames, and compacted memories.

The end of a thread is read message by message, retracted ones included; the text index covers the rest. Every hit
is checked against the words of the fact, so a missing or stale index finds less, never something wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Final

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.codec import decode_event
from holdfast.core.packs.handles import handle_of, summary_handle
from holdfast.core.packs.trace import Fact, Sighting, tool_words, words
from holdfast.errors import EvidenceFailed, SessionNotFound
from holdfast.flow.compaction import recall, rules
from holdfast.flow.compaction import summaries as compaction_summaries
from holdfast.flow.frames.read import current, handle_info, streams_with_work
from holdfast.flow.packs import briefs, handles, visibility
from holdfast.flow.packs.evidence import described
from holdfast.flow.sessions.read import APPENDED, NOW, decoded, line_of, messages, places, session_of, shared_at, stands
from holdfast.flow.sessions.sessions import session_state
from holdfast.flow.state.search import MOST_RESULTS, search_line
from holdfast.ports import Acting, Ports
from holdfast.records.batches import Row, Span
from holdfast.records.events.sessions import Segment
from holdfast.records.frames import Handle
from holdfast.records.messages import Message
from holdfast.records.reports import Query
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.sessions import Line

SCANNED: Final = 5_000
"""Messages at the end of a thread that are read one by one."""
PAGE: Final = 256
MOST_HANDLES: Final = 256
MOST_ENTRIES: Final = 20
MOST_THREADS: Final = 32
_MOST_QUERY: Final = 2_000


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """All places that state a fact, oldest message first, and a note on what was not searched."""

    found: tuple[Sighting, ...] = ()
    erased: int = 0
    """The number of messages read whose content was erased."""
    note: str | None = None

    @property
    def messages(self) -> tuple[Sighting, ...]:
        """The messages of this thread that state the fact, including retracted ones."""
        return tuple(one for one in self.found if one.kind == "message" and one.status != "elsewhere")

    @property
    def standing(self) -> tuple[Sighting, ...]:
        """The sightings that a pack of this thread may still show."""
        return tuple(one for one in self.found if one.status == "standing")


def said(ports: Ports, acting: Acting, line: str, fact: Fact) -> Said:
    """Find where a fact was said, as far as this thread sees it; else look in the session's other threads."""
    quiet = replace(ports, embedder=None)  # The search is for exact words, not for meaning.
    reading = _Reading(quiet, acting, line, fact)
    found = [*reading.messages(), *reading.summaries(), *reading.brief(), *reading.evidence(), *reading.memories()]
    return Said(
        found=tuple(found or reading.elsewhere()),
        erased=reading.erased,
        note=reading.note,
    )


class _Reading:
    """A search for one fact."""

    def __init__(self, ports: Ports, acting: Acting, line: str, fact: Fact) -> None:
        self._ports, self._acting, self._name, self._fact = ports, acting, line, fact
        self._line: Line = line_of(ports, acting, line)
        # Use the segments as of the first version: a fork may have been rewound into its shared part, or reset without
        # it, but earlier packs showed it. `at=0` on the own stream includes every message retracted since.
        self._segments = (Segment(line, 0, NOW, 0), *shared_at(ports, acting, line, 1))
        self.erased = 0
        self.note: str | None = None

    def messages(self) -> list[Sighting]:
        """Find messages that state the fact, oldest first, including those no longer part of the thread."""
        newest = islice(places(self._ports, self._acting, self._name), SCANNED)
        standing = {(one.stream, one.version): one for one in newest}
        found: dict[tuple[str, int], Sighting] = {}
        for message, segment in islice(self._backwards(), SCANNED):
            at = (message.stream, message.version)
            self.erased += message.erased and at in standing
            if self._fact.within(words(message)):
                row = standing[at].row if at in standing else self._row(message)
                if at in standing or stands(row, segment):
                    found[at] = self._sighting(message, row, stands=at in standing)
        if self._line.messages > SCANNED:
            self._look_further(found)
        nearness = {segment.stream: at for at, segment in enumerate(self._segments)}
        return sorted(found.values(), key=lambda one: (-nearness.get(one.stream, 0), one.version))

    def _look_further(self, found: dict[tuple[str, int], Sighting]) -> None:
        """Search the text index for messages that were not read one by one."""
        results = search_line(self._ports, self._acting, self._name, self._fact.text, MOST_RESULTS)
        for result in results:
            message: Message = result.value
            if (message.stream, message.version) not in found and self._fact.within(words(message)):
                found[message.stream, message.version] = self._sighting(message, self._row(message), stands=True)
        self.note = (
            f"The newest {SCANNED:,} messages were read, and of the {self._line.messages:,} of this line those that "
            "the text index knows these words of."
        )

    def _backwards(self) -> Iterator[tuple[Message, Segment]]:
        """Iterate over the messages of all streams the thread ever included, newest first, with their segments."""
        for segment in self._segments:
            until = segment.until
            while True:
                query = Query(
                    tenant=self._acting.tenant,
                    stream=segment.stream,
                    after=segment.after,
                    until=until,
                    types=APPENDED,
                    limit=PAGE,
                    backwards=True,
                )
                page = [decode_event(event) for event in self._ports.journal.read(query)]
                yield from ((message, segment) for message in decoded(self._ports, self._acting, page))
                if len(page) < PAGE:
                    break
                until = page[-1].version - 1

    def _row(self, message: Message) -> Row:
        span = Span(table="messages", after=message.version - 1, until=message.version, limit=1)
        (row,) = self._ports.journal.span(self._acting.tenant, message.stream, span)
        return row

    def _sighting(self, message: Message, row: Row, *, stands: bool) -> Sighting:
        gone_at = 0 if stands else self._gone_at(message, row)
        return Sighting(
            name=handle_of(message, self._name),
            kind="message",
            status="standing" if stands else "reset" if gone_at == self._line.floor else "retracted",
            stream=message.stream,
            version=message.version,
            at=message.timestamp,
            id=message.id,
            pinned=bool(row["pinned"]),
            gone_at=gone_at,
        )

    def _gone_at(self, message: Message, row: Row) -> int:
        """Return the thread version at which a message was retracted, or at which the thread was reset."""
        if message.stream == self._name:
            return self._line.floor if row["retracted"] is None else int(row["retracted"])
        query = Query(tenant=self._acting.tenant, stream=self._name, types=("message.retracted",), limit=PAGE)
        for event in map(decode_event, self._ports.journal.read(query)):
            shared: Sequence[Segment] | None = event.facts.shared
            if shared is not None and not any(one.after < message.version <= one.until for one in shared):
                return event.version
        return self._line.floor

    def summaries(self) -> Iterator[Sighting]:
        """Find standing summaries that repeat the fact."""
        for one in compaction_summaries.summaries(self._ports, self._acting, self._name):
            if self._fact.within(one.text):
                name = summary_handle(one.version) if one.stream == self._name else one.id
                yield Sighting(name=name, kind="summary", stream=one.stream, version=one.version, id=one.id)

    # beside the conversation

    def brief(self) -> Iterator[Sighting]:
        """Find the fact in the brief."""
        session = session_of(self._name)
        told = briefs.brief(self._ports, self._acting, session=session, scopes=visibility.scopes_of(self._name))
        if self._fact.within(told.system, tool_words(told.tools), *(note.text for note in told.notes)):
            yield Sighting(name="brief", kind="brief")

    def evidence(self) -> Iterator[Sighting]:
        """Find the fact in evidence of the session's live frames. Nothing is fetched from the web for this."""
        for stream, frame_id, handle in islice(self._handles(), MOST_HANDLES):
            info = handle_info(self._ports, self._acting, stream, handle)
            text = info.body if isinstance(info.body, str) else None
            if text is None and info.kind != "url":
                try:
                    text = handles.resolve(self._ports, self._acting, stream, info).text
                except EvidenceFailed:
                    continue
            if text is not None and self._fact.within(described(info.description, text)):
                yield Sighting(name=info.id, kind="evidence", stream=stream, version=info.version, id=frame_id)

    def _handles(self) -> Iterator[tuple[str, str, Handle]]:
        session = parse_scope(self._name).get("session")
        for stream in streams_with_work(self._ports, self._acting):
            if parse_scope(stream).get("session") == session:
                for frame in current(self._ports, self._acting, stream).frames.values():
                    yield from ((stream, frame.id, one) for one in frame.handles.values() if one.removed is None)

    def memories(self) -> Iterator[Sighting]:
        """Find the fact in passages that compaction wrote to the state."""
        _, scopes = rules.recall_of(self._ports, self._acting, self._name)
        query = self._fact.text[:_MOST_QUERY]
        for one in recall.memories(self._ports, self._acting, scopes, query, MOST_ENTRIES):
            if self._fact.within(one.text):
                yield Sighting(name=one.key, kind="memory", stream=one.scope, version=one.version, id=one.id)

    # other threads

    def elsewhere(self) -> Iterator[Sighting]:
        """Find the fact in other threads of the session."""
        id = str(parse_scope(self._name).get("session"))
        threads = session_state(self._ports, self._acting, id).threads
        for thread in threads[:MOST_THREADS]:
            stream = Scope.thread(id, thread).text
            for message in [] if stream == self._name else self._searched(stream):
                yield Sighting(
                    name=message.id,
                    kind="message",
                    status="elsewhere",
                    stream=stream,
                    version=message.version,
                    at=message.timestamp,
                    id=message.id,
                )

    def _searched(self, stream: str) -> list[Message]:
        """Return matching messages of another thread, from the text index and from its end."""
        try:
            results = search_line(self._ports, self._acting, stream, self._fact.text, MOST_ENTRIES)
            newest = messages(self._ports, self._acting, stream, limit=PAGE)
        except SessionNotFound:
            return []
        found = {one.id: one for one in (*(result.value for result in results), *newest)}
        return [one for one in found.values() if self._fact.within(words(one))]

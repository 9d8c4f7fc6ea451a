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
from holdfast.core.packs.segments import message_handle, summary_handle
from holdfast.core.packs.trace import Fact, Sighting, readable_text, tools_text
from holdfast.errors import EvidenceFailed, SessionNotFound
from holdfast.flow.compaction import recall, rules
from holdfast.flow.frames.read import list_streams_with_work, load_current_state, read_handle
from holdfast.flow.packs import briefs, handles, visibility
from holdfast.flow.packs.evidence import prepend_description
from holdfast.flow.sessions import read, summaries
from holdfast.flow.sessions.read import is_standing
from holdfast.flow.sessions.sessions import session_state
from holdfast.flow.state.search import MAX_RESULTS, search_journal
from holdfast.ports import Env
from holdfast.records.batches import Row, RowQuery
from holdfast.records.events.sessions import SharedSegment
from holdfast.records.frames import Handle
from holdfast.records.messages import Message
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Scope, parse_scope
from holdfast.records.sessions import ThreadState

MAX_SCANNED: Final = 5_000
"""Messages at the end of a thread that are read one by one."""
PAGE: Final = 256
MAX_HANDLES: Final = 256
MAX_ENTRIES: Final = 20
MAX_THREADS: Final = 32
_MAX_QUERY_CHARS: Final = 2_000


class FactSightings(msgspec.Struct, frozen=True, kw_only=True):
    """All places that state a fact, oldest message first, and a note on what was not searched."""

    found: tuple[Sighting, ...] = ()
    erased: int = 0
    """The number of messages read whose content was erased."""
    note: str | None = None

    @property
    def messages(self) -> tuple[Sighting, ...]:
        """The messages of this thread that state the fact, including retracted ones."""
        return tuple(one for one in self.found if one.kind == "message" and one.status != "elsewhere")


def find_fact(env: Env, thread: str, fact: Fact) -> FactSightings:
    """Find where a fact was said, as far as this thread sees it; else look in the session's other threads."""
    quiet = replace(env, embedder=None)  # The search is for exact words, not for meaning.
    reading = _FactSearch(quiet, thread, fact)
    found = [
        *reading.find_messages(),
        *reading.find_summaries(),
        *reading.find_brief(),
        *reading.find_evidence(),
        *reading.find_memories(),
    ]
    return FactSightings(found=tuple(found or reading.find_elsewhere()), erased=reading.erased, note=reading.note)


class _FactSearch:
    """A search for one fact."""

    def __init__(self, env: Env, thread: str, fact: Fact) -> None:
        self._env, self._name, self._fact = env, thread, fact
        self._thread: ThreadState = read.thread_state(env, thread)
        # Use the segments as of the first version: a fork may have been rewound into its shared part, or reset without
        # it, but earlier packs showed it. `at=0` on the own stream includes every message retracted since.
        self._segments = (SharedSegment(thread, 0, read.LATEST, 0), *read.load_shared_at(env, thread, 1))
        self.erased = 0
        self.note: str | None = None

    def find_messages(self) -> list[Sighting]:
        """Find messages that state the fact, oldest first, including those no longer part of the thread."""
        newest = islice(read.iter_places(self._env, self._name), MAX_SCANNED)
        standing = {one.key: one for one in newest}
        found: dict[tuple[str, int], Sighting] = {}
        for message, segment in islice(self._iter_backwards(), MAX_SCANNED):
            at = (message.stream, message.version)
            self.erased += message.erased and at in standing
            if self._fact.is_in(readable_text(message)):
                row = standing[at].row if at in standing else self._message_row(message)
                if at in standing or is_standing(row, segment):
                    found[at] = self._make_sighting(message, row, stands=at in standing)
        if self._thread.messages > MAX_SCANNED:
            self._search_index(found)
        nearness = {segment.stream: at for at, segment in enumerate(self._segments)}
        return sorted(found.values(), key=lambda one: (-nearness.get(one.stream, 0), one.version))

    def _search_index(self, found: dict[tuple[str, int], Sighting]) -> None:
        """Search the text index for messages that were not read one by one."""
        for result in search_journal(self._env, self._name, self._fact.text, MAX_RESULTS):
            message: Message = result.value
            if (message.stream, message.version) not in found and self._fact.is_in(readable_text(message)):
                row = self._message_row(message)
                found[message.stream, message.version] = self._make_sighting(message, row, stands=True)
        self.note = (
            f"The newest {MAX_SCANNED:,} messages of {self._thread.messages:,} in this thread were read; the rest "
            "were searched by the text index."
        )

    def _iter_backwards(self) -> Iterator[tuple[Message, SharedSegment]]:
        """Iterate over the messages of all streams the thread ever included, newest first, with their segments."""
        for segment in self._segments:
            until = segment.until
            while True:
                query = EventQuery(
                    tenant=self._env.tenant,
                    stream=segment.stream,
                    after=segment.after,
                    until=until,
                    types=read.MESSAGE_TYPES,
                    limit=PAGE,
                    backwards=True,
                )
                page = [decode_event(event) for event in self._env.journal.read(query)]
                yield from ((message, segment) for message in read.decode_messages(self._env, page))
                if len(page) < PAGE:
                    break
                until = page[-1].version - 1

    def _message_row(self, message: Message) -> Row:
        query = RowQuery(
            table="messages", stream=message.stream, after=message.version - 1, until=message.version, limit=1
        )
        ((_, row),) = self._env.journal.select(self._env.tenant, query)
        return row

    def _make_sighting(self, message: Message, row: Row, *, stands: bool) -> Sighting:
        gone_at = 0 if stands else self._removal_version(message, row)
        return Sighting(
            name=message_handle(message, self._name),
            kind="message",
            status="standing" if stands else "reset" if gone_at == self._thread.floor else "retracted",
            stream=message.stream,
            version=message.version,
            at=message.timestamp,
            id=message.id,
            pinned=bool(row["pinned"]),
            gone_at=gone_at,
        )

    def _removal_version(self, message: Message, row: Row) -> int:
        """Return the thread version at which a message was retracted, or at which the thread was reset."""
        if message.stream == self._name:
            return self._thread.floor if row["retracted"] is None else int(row["retracted"])
        query = EventQuery(tenant=self._env.tenant, stream=self._name, types=("message.retracted",), limit=PAGE)
        for event in map(decode_event, self._env.journal.read(query)):
            shared: Sequence[SharedSegment] | None = event.facts.shared
            if shared is not None and not any(one.after < message.version <= one.until for one in shared):
                return event.version
        return self._thread.floor

    def find_summaries(self) -> Iterator[Sighting]:
        """Find standing summaries that repeat the fact."""
        for one in summaries.list_summaries(self._env, self._name):
            if self._fact.is_in(one.text):
                name = summary_handle(one, self._name)
                yield Sighting(name=name, kind="summary", stream=one.stream, version=one.version, id=one.id)

    # beside the conversation

    def find_brief(self) -> Iterator[Sighting]:
        """Find the fact in the brief."""
        session = read.session_stream(self._name)
        told = briefs.load_brief(self._env, session=session, scopes=visibility.brief_scopes(self._name))
        if self._fact.is_in(told.system, tools_text(told.tools), *(note.text for note in told.notes)):
            yield Sighting(name="brief", kind="brief")

    def find_evidence(self) -> Iterator[Sighting]:
        """Find the fact in evidence of the session's live frames. Nothing is fetched from the web for this."""
        for stream, frame_id, handle in islice(self._iter_handles(), MAX_HANDLES):
            info = read_handle(self._env, stream, handle)
            text = info.body if isinstance(info.body, str) else None
            if text is None and info.kind != "url":
                try:
                    text = handles.resolve_handle(self._env, stream, info).text
                except EvidenceFailed:
                    continue
            if text is not None and self._fact.is_in(prepend_description(info.description, text)):
                yield Sighting(name=info.id, kind="evidence", stream=stream, version=info.version, id=frame_id)

    def _iter_handles(self) -> Iterator[tuple[str, str, Handle]]:
        session = parse_scope(self._name).get("session")
        for stream in list_streams_with_work(self._env):
            if parse_scope(stream).get("session") == session:
                for frame in load_current_state(self._env, stream).frames.values():
                    yield from ((stream, frame.id, one) for one in frame.handles.values() if one.removed is None)

    def find_memories(self) -> Iterator[Sighting]:
        """Find the fact in passages that compaction wrote to the state."""
        _, scopes = rules.recall_settings(self._env, self._name)
        query = self._fact.text[:_MAX_QUERY_CHARS]
        for one in recall.search_memories(self._env, scopes, query, MAX_ENTRIES):
            if self._fact.is_in(one.text):
                yield Sighting(name=one.key, kind="memory", stream=one.scope, version=one.version, id=one.id)

    # other threads

    def find_elsewhere(self) -> Iterator[Sighting]:
        """Find the fact in other threads of the session."""
        id = str(parse_scope(self._name).get("session"))
        threads = session_state(self._env, id).threads
        for thread in threads[:MAX_THREADS]:
            stream = Scope.thread(id, thread).text
            for message in [] if stream == self._name else self._search_other_thread(stream):
                yield Sighting(
                    name=message.id,
                    kind="message",
                    status="elsewhere",
                    stream=stream,
                    version=message.version,
                    at=message.timestamp,
                    id=message.id,
                )

    def _search_other_thread(self, stream: str) -> list[Message]:
        """Return matching messages of another thread, from the text index and from its end."""
        try:
            results = search_journal(self._env, stream, self._fact.text, MAX_ENTRIES)
            newest = read.read_messages(self._env, stream, limit=PAGE)
        except SessionNotFound:
            return []
        found = {one.id: one for one in (*(result.value for result in results), *newest)}
        return [one for one in found.values() if self._fact.is_in(readable_text(one))]

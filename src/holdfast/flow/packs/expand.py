"""Expand a handle from a pack: the full text it names, as far as the thread or the frame may see it.

A thread sees its own and its shared messages that still stand. A frame sees its own thread, its attached evidence,
and the evidence of ancestors that its last packs showed. Any other id, also one a model made up, is not found.
Messages are read a page at a time, on demand.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import Any, Final

from msgspec.structs import replace

from holdfast.core.journal.codec import decode_facts
from holdfast.core.packs.event_text import cap_text, message_text
from holdfast.core.packs.history_tools import HistoryPiece
from holdfast.core.packs.segments import HandleRef, message_handle, parse_handle, stretch_handle
from holdfast.core.search.words import full_message_text, make_snippet, query_terms
from holdfast.core.sessions.message_events import decode_message_content
from holdfast.core.wire.parts import ERASED_TEXT
from holdfast.errors import MessageNotFound, NotFound, SessionNotFound
from holdfast.flow.frames.read import read_event, read_frame, read_handle
from holdfast.flow.packs.handles import reload_evidence, resolve_handle
from holdfast.flow.packs.manifest import LOOK_BACK, iter_packs
from holdfast.flow.packs.rebuild import piece_origin
from holdfast.flow.packs.visibility import find_handle
from holdfast.flow.sessions import read
from holdfast.flow.sessions.read import find_place
from holdfast.flow.sessions.summaries import iter_summaries
from holdfast.flow.state.search import search_journal
from holdfast.ports import Env
from holdfast.records.entries import SearchResult
from holdfast.records.events.envelope import StoredEvent
from holdfast.records.events.sessions import MessageAppended, MessageContent, MessageSpan, SharedSegment
from holdfast.records.ids import ULID_CHARS
from holdfast.records.messages import Message, Part

NO_WORDS: Final = "(no words)"


def read_pieces(env: Env, thread: str, handle: str, *, frame: str | None = None) -> tuple[str, Iterator[HistoryPiece]]:
    """Return a handle's name and its pieces, at least one. Messages of the thread take precedence over evidence."""
    name = parse_handle(handle)
    pieces: Iterator[HistoryPiece] = iter(())
    first = None
    try:
        pieces = _thread_pieces(env, thread, name)
        first = next(pieces, None)
    except SessionNotFound:
        if frame is None:
            raise  # In a frame this means that nothing was said there yet.
    if first is None and frame is not None:
        names = (handle.strip(), name.id or str(name))
        first = _evidence_piece(env, frame, names) or _ancestor_piece(env, thread, frame, names)
    if first is None:
        where = "conversation" if frame is None else "work"
        raise NotFound(f"Nothing in this {where} is called {str(name)!r:.80}.")
    return str(name), chain([first], pieces)


def _thread_pieces(env: Env, thread: str, name: HandleRef) -> Iterator[HistoryPiece]:
    if name.kind == "id":
        return _pieces_by_id(env, thread, name.id)
    if name.kind == "summary":
        event = read_event(env, thread, name.first)
        own = read.thread_segments(thread, read.thread_state(env, thread))[0]
        if event is None or event.type != "summary.made" or event.version <= own.after:
            return iter(())
        return _stretch_pieces(env, thread, event.facts.spans(thread))
    return _stretch_pieces(env, thread, (MessageSpan(thread, name.first, name.last),))


def _stretch_pieces(env: Env, thread: str, wanted: tuple[MessageSpan, ...]) -> Iterator[HistoryPiece]:
    """Iterate over the messages of some stretches that still stand in a thread, oldest first."""
    known = read.thread_segments(thread, read.thread_state(env, thread))
    for stretch in wanted:
        for part in reversed(known):
            if part.stream == stretch.stream:
                first, last = max(part.after, stretch.first - 1), min(part.until, stretch.last)
                for message in read.iter_segment_messages(env, SharedSegment(part.stream, first, last, part.at)):
                    own = part.stream == thread and stretch is wanted[-1]
                    onwards = stretch_handle(message.version, last) if own else None
                    yield _message_piece(message, thread, _message_words(message), onwards)


def _pieces_by_id(env: Env, thread: str, id: str) -> Iterator[HistoryPiece]:
    """Return a message by its id, or the messages that a summary covers."""
    if len(id) != ULID_CHARS:
        return iter(())
    try:
        found = find_place(env, thread, id.upper())
    except MessageNotFound:
        summary = next((one for one in iter_summaries(env, thread) if one.id == id.upper()), None)
        return iter(()) if summary is None else _stretch_pieces(env, thread, summary.covers)
    (message,) = read.load_messages(env, [found])
    return iter([_message_piece(message, thread, _message_words(message))])


def _message_piece(message: Message, thread: str, text: str, onwards: str | None = None) -> HistoryPiece:
    day = time.strftime("%Y-%m-%d", time.gmtime(message.timestamp / 1000))
    speaker = f"{'tool result' if message.role == 'tool' else message.role}, {day}"
    name = message_handle(message, thread)
    return HistoryPiece(name=name, speaker=speaker, text=text, trust=message.trust, next_name=onwards)


def _message_words(message: Message) -> str:
    """Return the full text of a message: text, calls and results; images and files by their kind."""
    said = [message_text(message)]
    if message.text or message.tool_results:
        said += [f"{call.name}({call.arguments})" for call in message.tool_calls]
    for part in message.content if isinstance(message.content, list) else ():
        if part.get("type") in ("image", "file"):
            said.append(f"[{' '.join(str(word) for word in (part['type'], part.get('name')) if word)}]")
    text = cap_text("\n".join(piece for piece in said if piece)) or NO_WORDS
    return text if message.name is None else f"{message.name}: {text}"


def _evidence_piece(env: Env, frame: str, names: tuple[str, ...]) -> HistoryPiece | None:
    """Return the evidence of a handle that is attached to a frame, or inherited by it."""
    info = read_frame(env, frame)
    handle = next((one for one in info.handles if one.id in names and one.removed is None), None)
    if handle is None:
        return None
    found = resolve_handle(env, info.scope, read_handle(env, info.scope, handle))
    who = f"evidence, {handle.kind}"
    return HistoryPiece(name=handle.id, speaker=who, text=found.text or NO_WORDS, trust=found.trust)


def _ancestor_piece(env: Env, thread: str, frame: str, names: tuple[str, ...]) -> HistoryPiece | None:
    """Return an ancestor's evidence, uncut, if the frame's last packs showed it; None once detached or replaced."""
    for event in islice(iter_packs(env, thread), LOOK_BACK):
        for piece in event.facts.manifest if event.facts.frame == frame else ():
            if piece.kind != "evidence" or piece.handle not in names:
                continue
            held = find_handle(env, frame, piece.handle)
            if held is None or (held[1], held[0].version) != (piece.handle_stream, piece.handle_version):
                return None
            text = reload_evidence(env, piece_origin(piece))
            shown = (text or NO_WORDS) if isinstance(text, str) else ERASED_TEXT
            return HistoryPiece(
                name=piece.handle, speaker=f"evidence, {piece.part}", text=shown, trust=piece.trust or "external"
            )
    return None


def search_mentions(
    env: Env, thread: str, query: str, limit: int, *, own: frozenset[str] = frozenset()
) -> list[HistoryPiece]:
    """Search a thread, best first. Calls of the tools in `own` are left out: what they found is said elsewhere."""
    looking = LookupFilter(env, own)
    found = search_journal(env, thread, query, limit, counts=lambda event: not looking.is_only_lookup(event))
    return [_message_piece(result.value, thread, _make_excerpt(result, query, own)) for result in found]


def _make_excerpt(result: SearchResult, query: str, own: frozenset[str]) -> str:
    """Return the best matching words of a message; without text, its calls other than those in `own`."""
    message: Message = result.value
    excerpt = result.snippet
    if not full_message_text(message).strip():
        others = tuple(call for call in message.tool_calls if call.name not in own)
        excerpt = make_snippet(_message_words(replace(message, tool_calls=others)), query_terms(query))
    return " ".join(excerpt.split()) or NO_WORDS


_NON_WORD_PARTS = frozenset({"call", "reasoning"})
"""Parts that are not words: the position of a call, and reasoning that a provider wants back."""


class LookupFilter:
    """A filter for calls and results of some tools. Each round of a thread is read once."""

    def __init__(self, env: Env, names: frozenset[str]) -> None:
        self._env, self._names = env, names
        self._rounds: dict[tuple[str, int], frozenset[str]] = {}

    def is_only_lookup(self, event: StoredEvent) -> bool:
        """Return True if a message holds nothing but calls or results of these tools."""
        if not self._names or event.type not in read.MESSAGE_TYPES:
            return False
        facts: MessageAppended = decode_facts(event.type, event.schema, event.facts)
        if facts.answers:
            theirs = self._round_calls(event.stream, event.version if facts.round is None else facts.round)
            return theirs.issuperset(facts.answers)
        return bool(facts.calls) and self._has_only_calls(decode_message_content(event))

    def _has_only_calls(self, content: Any) -> bool:
        if not isinstance(content, MessageContent) or (content.text or "").strip():
            return False
        parts = [part for part in content.parts or () if part.get("type") not in _NON_WORD_PARTS]
        if any(not isinstance(part.get("text"), str) or part["text"].strip() for part in parts):
            return False
        return all(call.get("name") in self._names for call in content.tool_calls or ())

    def _round_calls(self, stream: str, version: int) -> frozenset[str]:
        """Return the ids of these tools' calls in the first message of a round."""
        place = (stream, version)
        if place not in self._rounds:
            event = read_event(self._env, stream, version)
            pairs: Iterable[tuple[Any, Part]] = ()
            if event is not None and event.type in read.MESSAGE_TYPES and isinstance(event.content, MessageContent):
                pairs = zip(event.facts.calls, event.content.tool_calls or (), strict=False)
            self._rounds[place] = frozenset(id for (id, _), call in pairs if call.get("name") in self._names)
        return self._rounds[place]

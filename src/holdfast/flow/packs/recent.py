"""Read the tail of a thread as far back as a budget reaches; after the first read, only what is new.

The cached tail is a hint. It is used only if nothing but messages was appended since, the summaries are the same
and nothing was erased; otherwise the tail is read again. A turn's first and newest questions always stay in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Any

import msgspec
from msgspec.structs import replace

from holdfast.core.compaction.summary import ShortLine
from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.project import message_row
from holdfast.core.packs.briefs import Brief
from holdfast.core.packs.rounds import MeasuredRound
from holdfast.core.packs.segments import is_covered
from holdfast.core.sessions.tokens import Framing, message_tokens, system_tokens, tools_tokens
from holdfast.flow.compaction.summaries import count_summary_tokens
from holdfast.flow.frames.read import read_event
from holdfast.flow.packs.manifest import PACKED, SUMMED, find_window_piece
from holdfast.flow.sessions import read
from holdfast.flow.sessions.read import PAGE, MessageLocation, iter_places
from holdfast.flow.sessions.summaries import iter_summaries
from holdfast.ports import Env, Tokenizer
from holdfast.records.batches import RowQuery
from holdfast.records.events.envelope import Event
from holdfast.records.events.sessions import SharedSegment
from holdfast.records.frames import StreamState
from holdfast.records.messages import Message
from holdfast.records.packs import Segment
from holdfast.records.reports import EventQuery
from holdfast.records.scope import Scope
from holdfast.records.sessions import Summary, ThreadState

EXTRA_MESSAGES = 16
"""Messages read beyond a full budget, so that the round at its edge is complete."""
TYPICAL_TOKENS = 200
"""Typical tokens of a message: a page asks for as many rows as would fill the room, within bounds."""
MIN_PAGE = 16
MAX_LEFT = 4
"""Rounds that may be remembered although they have left a tail: they keep their messages in memory."""
MAX_SEARCHES = 16
"""The most messages whose successors are searched for one by one."""
MAX_NEW_EVENTS = 256
"""The most new events that a cached tail is extended by."""
GROWTH_TYPES = frozenset({"message.appended", "tokens.counted", PACKED})
"""Events that leave everything in a cached tail valid."""

MAX_QUESTIONS = 32
"""The most questions kept for a turn: the first, and the newest of the others."""
USER_PAGE = 1_000
USER_ROLE = "user"

_HISTORY = attrgetter("edited", "floor", "shared", "generation")
"""The fields of a thread that stay the same if messages are only appended: no edit, rewind, fork or reset."""
_SOURCES = attrgetter("erased", "source_versions", "request")
"""The fields of a tail that must be the same if it is used again."""

Counts = dict[str, tuple[tuple[int, int], ...]]
"""Token counts by stream: pairs of version and tokens."""


class TokenCounter(msgspec.Struct, frozen=True, kw_only=True):
    """The counter of one pack's tokens."""

    tokenizer: Tokenizer
    framing: Framing
    kept_as: str
    """The name under which counts made in this way are stored with messages."""

    def count(self, message: Message) -> int:
        """Return the tokens of one message, from the stored count if it was made in the same way."""
        if message.tokens is not None and message.tokenizer == self.kept_as:
            return message.tokens
        return message_tokens(message, self.tokenizer.count, self.framing)

    def count_tools(self, brief: Brief) -> int:
        """Return the tokens of a brief's tools."""
        return tools_tokens(brief.tools, self.tokenizer.count, self.framing)

    def brief_segment(self, brief: Brief) -> Segment:
        """Return the segment of the system prompt and tools, which are sent apart from the messages."""
        tokens = system_tokens(brief.system, self.tokenizer.count, self.framing) + self.count_tools(brief)
        return Segment(
            kind="brief",
            id="brief",
            priority="critical",
            trust="operator",
            estimated_tokens=tokens + self.framing.reply,
            messages=(),
            origins=brief.origins,
        )


class TailRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a thread to read, and the way it is counted."""

    room: int
    max_messages: int | None
    kept_as: str
    max_message_tokens: int
    """The most tokens one message counts for while reading: a longer one may be shown abbreviated."""


class ThreadTail(msgspec.Struct, frozen=True, kw_only=True):
    """The tail of a thread with pinned messages and leading instructions, oldest first, and summaries of the rest."""

    version: int
    thread: ThreadState | None
    erased: int
    request: TailRequest
    source_versions: tuple[int, ...] = ()
    """The versions of the streams it shares segments with: pinning a shared message changes those streams."""
    places: tuple[MessageLocation, ...] = ()
    messages: tuple[Message, ...] = ()
    since: tuple[str, int] | None = None
    """The message from which on nothing of the thread is missing."""
    leading: int = 0
    """The number of leading instructions among the messages."""
    kept: frozenset[tuple[str, int]] = frozenset()
    """The leading instructions and the messages of pinned rounds: they stay when the tail moves on."""
    turn: int = 0
    """The version of the message that began the turn this was read for; 0 without a turn."""
    question_places: frozenset[tuple[str, int]] = frozenset()
    """The questions of that turn, which stay as well."""
    complete: bool = True
    """True if no uncovered message is missing."""
    summaries: tuple[Summary, ...] = ()
    """Standing summaries, oldest first, as far as there may be room for them."""
    packed: Event | None = None
    """The thread's newest journaled pack."""
    made: Event | None = None
    """The summary that was made for a pack and is shown by the newest one."""
    fresh: Counts = {}
    """Counts made just now."""
    weight: int = 0
    """The tokens of the messages from `since` on, as reading counts them; 0 if it stopped before the first."""
    origin: object = msgspec.field(default_factory=object)
    """The reading from the journal that this tail began with."""
    measured: dict[int, MeasuredRound] = {}
    """Rounds as earlier packs measured them, by the identity of their first message."""
    lines: dict[int, ShortLine] = {}
    """The lines of messages in such summaries, by the identity of the message."""
    summed: dict[tuple[Any, ...], Any] = {}
    """The summary that was made last of messages before a window, by everything that it depends on."""

    def measured_rounds(self) -> dict[int, MeasuredRound]:
        """Return the measured rounds; forget those that left the tail, and their lines, once they are a few."""
        for known in (self.measured, self.lines):
            if len(known) > len(self.messages) + MAX_LEFT:
                there = {id(message) for message in self.messages}
                for key in [key for key in list(known) if key not in there]:
                    known.pop(key, None)
        return self.measured

    def start(self) -> int:
        """Return the index of the message from which on nothing is missing; past the end if there is none."""
        if self.since is None:
            return len(self.places)
        for index, place in enumerate(self.places):
            if place.version == self.since[1] and place.stream == self.since[0]:
                return index
        return len(self.places)

    def contiguous_start(self) -> tuple[str, int] | None:
        """Return the first loaded message after which none is missing: kept ones may directly precede `since`."""
        if self.since is None:
            return None
        at = self.start()
        while at and self.places[at - 1].row["position"] == int(self.places[at].row["position"] or 0) - 1:
            at -= 1
        return self.places[at].key

    def map_successors(self, known: int = 0) -> TailSuccessors:
        """Return the message after each loaded one; the first `known` are asked for rarely."""
        return TailSuccessors(self.places, self.start(), known)


class TailSuccessors(dict[tuple[str, int], tuple[str, int]]):
    """The message directly after each one of a tail, where nothing lies between them; found when it is asked for."""

    def __init__(self, places: Sequence[MessageLocation], start: int, known: int) -> None:
        """From `start` on nothing is missing. Of the first `known` messages hardly any is asked for."""
        super().__init__()
        self._places, self._start, self._known = places, start, max(known - 1, start)
        self._searched = 0
        self._listed = False

    def get(self, place: tuple[str, int], default: Any = None, /) -> Any:
        if not self._listed:
            new = self._places[self._known :]
            self.update(_map_neighbours(new))
            self._listed = True
        found = super().get(place, default)
        if found is not None or self._known == self._start:
            return found
        self._searched += 1
        if self._searched > MAX_SEARCHES:
            self._known, self._listed = self._start, False
            return self.get(place, default)
        return self._search(place)

    def _search(self, place: tuple[str, int]) -> tuple[str, int] | None:
        """Search the older messages: those of one stream are sorted by version, and shared streams come first."""
        own = self._places[self._known].stream
        first = bisect_left(self._places, True, self._start, self._known, key=lambda one: one.stream == own)
        if place[0] != own:
            return _map_neighbours(self._places[self._start : first]).get(place)
        at = bisect_left(self._places, place[1], first, self._known, key=attrgetter("version"))
        if at >= self._known or self._places[at].key != place or not _is_after(*self._places[at : at + 2]):
            return None
        return self._places[at + 1].key


def _map_neighbours(places: Sequence[MessageLocation]) -> dict[tuple[str, int], tuple[str, int]]:
    """Return the message after each of these, where nothing lies between them."""
    found, before = {}, None
    for place in places:
        stream, key = place.stream, place.key
        if before is not None and before[0] == stream and place.row["before"] is None:
            found[before] = key
        before = key
    return found


def _is_after(one: MessageLocation, other: MessageLocation) -> bool:
    return other.row["before"] is None and one.stream == other.stream


def read_tail(
    env: Env, stream: str, state: StreamState, wanted: TailRequest, counter: TokenCounter, turn: int = 0
) -> ThreadTail:
    """Return the tail of a thread, from the cache where valid, with the questions of the turn that began at `turn`."""
    thread = state.thread
    streams = (Scope.GLOBAL.text, *(one.stream for one in (() if thread is None else thread.shared)))
    heads = [env.journal.head(env.tenant, one) for one in streams]
    # Erasures are journaled in the global stream.
    erased, *sources = [0 if head is None else head.version for head in heads]
    now = ThreadTail(
        version=state.version, thread=thread, erased=erased, request=wanted, turn=turn, source_versions=tuple(sources)
    )
    if thread is None:
        return now
    place = (env.tenant, stream, wanted.kept_as)
    known: ThreadTail | None = None if env.recent is None else env.recent.get(place)
    found, plain = None, False
    if known is not None and _HISTORY(known.thread) == _HISTORY(thread):
        usable = _adapt_to_turn(known, stream, turn) if _SOURCES(known) == _SOURCES(now) else None
        if usable is not None:
            found = usable if usable.version == state.version else _extend_tail(env, stream, now, usable, counter)
        # A thread without leading instructions does not get any, whatever size of tail was read.
        plain = bool(known.places) and not known.leading
    if found is None:
        found = _read_tail(env, stream, now, counter, plain=plain)
        if known is not None and known.erased == erased:
            found = replace(found, packed=known.packed, made=known.made)
    at = thread.packed
    if at and (found.packed is None or found.packed.version != at):
        found = replace(found, packed=read_event(env, stream, at))
    summed = None if found.packed is None else find_window_piece(found.packed.facts)
    if summed is not None and (found.made is None or found.made.version != summed.first):
        found = replace(found, made=read_event(env, stream, summed.first or 0))
    if env.recent is not None and found is not known:
        env.recent.put(place, found)
    return found


# the cached tail


def _adapt_to_turn(known: ThreadTail, stream: str, turn: int) -> ThreadTail | None:
    """Return the cached tail with this turn's questions instead of another's; None if some are not loaded."""
    if known.turn == turn:
        return known
    since = known.since
    reaches = since is not None and (since[0] != stream or since[1] <= turn)
    if turn and turn <= known.version and not reaches:
        return None
    start = known.start()
    kept = [at for at in range(start) if known.places[at].key in known.kept]
    found = (*[known.places[at] for at in kept], *known.places[start:])
    messages = (*[known.messages[at] for at in kept], *known.messages[start:])
    asked = _find_questions(found, messages, stream, turn)
    return replace(known, places=found, messages=messages, turn=turn, question_places=asked)


def _extend_tail(env: Env, stream: str, now: ThreadTail, known: ThreadTail, counter: TokenCounter) -> ThreadTail | None:
    """Extend the cached tail by the new events, cut to the size a fresh read would have; None if that is impossible."""
    query = EventQuery(tenant=env.tenant, stream=stream, after=known.version, until=now.version, limit=MAX_NEW_EVENTS)
    stored = env.journal.read(query)
    events = [decode_event(event) for event in stored]
    others = [one for one in events if one.type not in GROWTH_TYPES and not (one.type == SUMMED and one.facts.window)]
    if others or len(stored) != now.version - known.version:
        return None
    said = [event for event in events if event.type == "message.appended"]
    new = [MessageLocation(stream, message_row(event.facts, event.version)) for event in said]
    if new and _affects_kept(known, new):
        return None
    costed, fresh = _count_messages(env, new, read.decode_messages(env, said), counter)
    found, messages, start = (*known.places, *new), (*known.messages, *costed), known.start()
    weight = _weigh_together(known, new, len(found) - start)
    if weight:
        cut, left_out = start, False
    else:
        end, whole = _take_until_full([*reversed(found[start:])], known.request)
        cut, left_out = len(found) - len(end), whole is not None
        weight = 0 if left_out else _weigh(end, known.request)
    if new and not left_out and not known.complete:
        return None
    asked = _add_questions(known, new, costed, stream)
    stay = known.kept | asked
    kept = [at for at in range(cut) if found[at].key in stay] if stay else []
    # Counts that were made here are journaled all together.
    journaled = any(event.type == "tokens.counted" and event.facts.tokenizer == counter.kept_as for event in events)
    older = {} if journaled else known.fresh
    return replace(
        known,
        version=now.version,
        thread=now.thread,
        places=(*[found[at] for at in kept], *found[cut:]),
        messages=(*[messages[at] for at in kept], *messages[cut:]),
        since=found[cut].key if cut < len(found) else None,
        question_places=asked,
        complete=not left_out if new else known.complete,
        weight=weight,
        packed=next((event for event in reversed(events) if event.type == PACKED), known.packed),
        made=next((event for event in reversed(events) if event.type == SUMMED), known.made),
        fresh={one: older.get(one, ()) + fresh.get(one, ()) for one in {**older, **fresh}},
    )


def _weigh_together(known: ThreadTail, new: Sequence[MessageLocation], number: int) -> int:
    """Return the weight of a tail with new messages if none has to leave it; 0 if that is not certain."""
    room, most = known.request.room, known.request.max_messages
    weight = known.weight + _weigh(new, known.request)
    full = weight > room or (most is not None and number > most)
    return 0 if full or not known.weight else weight


def _add_questions(
    known: ThreadTail, new: Sequence[MessageLocation], messages: Sequence[Message], stream: str
) -> frozenset[tuple[str, int]]:
    """Return the questions of a turn with those among new messages."""
    more = _find_questions(new, messages, stream, known.turn)
    if not more:
        return known.question_places
    return _limit_questions(sorted({*known.question_places, *more}))


def _affects_kept(known: ThreadTail, new: Sequence[MessageLocation]) -> bool:
    """Return True if new messages may be leading instructions, are pinned, or answer a pinned call."""
    answers = any(place.row["pinned"] or (place.stream, place.round) in known.kept for place in new)
    return answers or len(known.places) == known.leading


# a fresh read


def _read_tail(env: Env, stream: str, now: ThreadTail, counter: TokenCounter, *, plain: bool) -> ThreadTail:
    """Read the tail from the newest message backwards until the room is full; `plain` skips leading instructions."""
    wanted = now.request
    standing = _load_summaries(env, stream, wanted, counter)
    newest_first: Iterable[MessageLocation] = iter_places(
        env, stream, page=min(max(wanted.room // TYPICAL_TOKENS, MIN_PAGE), PAGE)
    )
    if standing:
        # Summaries cover a thread from its beginning, so everything older than a covered message is covered too.
        newest_first = takewhile(lambda place: not is_covered(*place.key, standing), newest_first)
    end, whole = _take_until_full(newest_first, wanted)
    instructions = [] if plain else list(read.leading_instructions(env, stream))
    stays = read.add_pinned(env, stream, instructions)
    kept = frozenset(place.key for place in stays)
    ends = {place.key for place in end} if stays else ()
    before = [place for place in stays if place.key not in ends]
    if users := user_messages_before(env, stream, now.turn, end):
        both = {place.key: place for place in (*before, *users)}
        # Shared messages come before a fork's own, and are in order already.
        before = sorted(both.values(), key=lambda place: place.version if place.stream == stream else 0)
    found = [*before, *reversed(end)]
    loaded = read.load_messages(env, found)
    asked = _find_questions(found, loaded, stream, now.turn)
    stay = [at for at, place in enumerate(found) if at >= len(before) or place.key in kept or place.key in asked]
    found = [found[at] for at in stay]
    messages, fresh = _count_messages(env, found, [loaded[at] for at in stay], counter)
    return replace(
        now,
        places=tuple(found),
        messages=tuple(messages),
        since=end[-1].key if end else None,
        leading=len(instructions),
        kept=kept,
        question_places=asked,
        complete=whole is None,
        weight=_weigh(end, wanted) if whole is None else 0,
        summaries=tuple(standing),
        fresh=fresh,
    )


def _load_summaries(env: Env, stream: str, wanted: TailRequest, counter: TokenCounter) -> list[Summary]:
    """Return the newest summaries that there may be room for, oldest first."""
    found: list[Summary] = []
    left = wanted.room
    for summary in iter_summaries(env, stream):
        if left < 0 and found:
            break
        left -= count_summary_tokens(summary.text, counter.tokenizer, counter.framing)
        found.append(summary)
    return found[::-1]


def _take_until_full(
    newest_first: Iterable[MessageLocation], wanted: TailRequest
) -> tuple[list[MessageLocation], MessageLocation | None]:
    """Return places until the room is full, and the first place left out; None if all fit."""
    found: list[MessageLocation] = []
    torn: set[tuple[str, int]] = set()
    tokens = beyond = 0
    begun = False
    room, most, longest = wanted.room, wanted.max_messages, wanted.max_message_tokens
    for place in newest_first:
        full = begun and (tokens > room or (most is not None and len(found) > most))
        if full and (not torn or beyond == EXTRA_MESSAGES):
            return found, place
        beyond += full
        found.append(place)
        row = place.row
        if row["role"] == "tool":
            torn.add((place.stream, place.round))  # In a fork its call may be in another stream, but close by.
        else:
            if torn:
                torn.discard(place.key)
            begun = True  # Late results alone do not make a round.
        # Another tokenizer may count up to three times as much: read too far rather than stop too early.
        counted = int(row["tokens"] or 0)
        tokens += min(counted if row["tokenizer"] == wanted.kept_as else counted // 3, longest)
    return found, None


def _weigh(places: Sequence[MessageLocation], wanted: TailRequest) -> int:
    """Return the tokens for which all of these count while they are read."""
    rows, own, longest = [place.row for place in places], wanted.kept_as, wanted.max_message_tokens
    counts = [(int(row["tokens"] or 0), row["tokenizer"] == own) for row in rows]
    return sum([min(tokens if same else tokens // 3, longest) for tokens, same in counts])


def _find_questions(
    found: Sequence[MessageLocation], messages: Sequence[Message], stream: str, turn: int
) -> frozenset[tuple[str, int]]:
    """Return the places of the messages that the turn answers. Those that the library added are not questions."""
    if not turn:
        return frozenset()
    # A thread's own messages come last, sorted by version.
    first = bisect_left(found, True, key=lambda place: place.stream == stream and place.version >= turn)
    new = zip(found[first:], messages[first:], strict=True)
    said = [place.key for place, message in new if place.row["role"] == USER_ROLE and not message.synthetic]
    return _limit_questions(said)


def _limit_questions(said: Sequence[tuple[str, int]]) -> frozenset[tuple[str, int]]:
    """Return the first question, and the newest of the others."""
    return frozenset((*said[:1], *said[max(len(said) - MAX_QUESTIONS + 1, 1) :]))


def user_messages_before(env: Env, stream: str, turn: int, end: Sequence[MessageLocation]) -> list[MessageLocation]:
    """Return the turn's user messages before the part of the thread already read. The cost follows the turn."""
    if not turn or (end and (end[-1].stream != stream or end[-1].version <= turn)):
        return []
    segment = SharedSegment(stream, turn - 1, end[-1].version - 1 if end else read.LATEST, read.LATEST)
    places = read.iter_segment(env, segment, backwards=False, page=USER_PAGE)
    return [place for place in places if place.row["role"] == USER_ROLE]


def _count_messages(
    env: Env, found: Sequence[MessageLocation], messages: Sequence[Message], counter: TokenCounter
) -> tuple[list[Message], Counts]:
    """Return the messages with their token counts, and the counts made just now."""
    kept_as = counter.kept_as
    strange = [one for one in found if one.row["tokenizer"] != kept_as or one.row["tokens"] is None]
    known = _load_counts(env, strange, kept_as) if strange else {}
    fresh: dict[str, list[tuple[int, int]]] = {}
    those = []
    for place, message in zip(found, messages, strict=True):
        tokens = message.tokens if message.tokenizer == kept_as else known.get(place.key)
        if message.erased or tokens is None:
            counted = message_tokens(message, counter.tokenizer.count, counter.framing)
            if not message.erased:  # The stored count of an erased message is that of its original content.
                fresh.setdefault(place.stream, []).append((place.version, counted))
            tokens = counted
        same = message.tokens == tokens and message.tokenizer == kept_as
        those.append(message if same else replace(message, tokens=tokens, tokenizer=kept_as))
    return those, {stream: tuple(pairs) for stream, pairs in fresh.items()}


def _load_counts(env: Env, strange: Sequence[MessageLocation], kept_as: str) -> dict[tuple[str, int], int]:
    known: dict[tuple[str, int], int] = {}
    for stream in dict.fromkeys(place.stream for place in strange):
        for run in read.group_versions(sorted({place.version for place in strange if place.stream == stream})):
            first, last = run[0], run[-1]
            query = RowQuery(
                table="message_counts",
                stream=stream,
                column="tokenizer",
                value=kept_as,
                after=first - 1,
                until=last,
                limit=last - first + 1,
            )
            for _, row in env.journal.select(env.tenant, query):
                known[stream, int(row["version"] or 0)] = int(row["tokens"] or 0)
    return known

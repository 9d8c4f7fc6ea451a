"""The end of a conversation, as far back as a budget reaches: read once, then only what was said since.

What is kept in memory is a hint. It is used only if the stream says that nothing but messages came since, that the
summaries are the same, and that nothing was erased anywhere; else it is read anew.

What a live turn answers: the message that began it, and those that joined it.

However long a turn gets, a model that is shown a tool's result and no question does not know what it is for. So no pack
of the turn is without the first and the newest of them; the others are at hand for as long as there is room.

What messages cost with a tokenizer: as their rows say, as somebody counted them before, else counted now.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.core.journal.codec import decode_event
from holdfast.core.journal.project_sessions import message_row
from holdfast.core.sessions.tokens import Framing, message_tokens
from holdfast.flow.compaction import summaries as compaction_summaries
from holdfast.flow.frames.read import event_at
from holdfast.flow.packs.manifest import PACKED
from holdfast.flow.packs.pins import leading, with_pinned
from holdfast.flow.sessions.read import PAGE, Place, bodies, decoded, places, runs, stands
from holdfast.ports import Acting, Ports, Tokenizer
from holdfast.records.batches import Span
from holdfast.records.events.envelope import Event, StoredEvent
from holdfast.records.events.sessions import Segment
from holdfast.records.frames import StreamState
from holdfast.records.messages import Message
from holdfast.records.reports import Query
from holdfast.records.scope import Scope
from holdfast.records.sessions import Line, Summary

MORE = 16
"""Messages that are read beyond a full budget, so that the round at its edge is seen whole."""
USUAL = 200
"""Tokens of a message, about: so many rows are asked for at a time as will fill the room, or the fewest."""
FEWEST = 16
SINCE = 256
"""Events that are looked at to go on from what is known."""
GROWTH = frozenset({"message.appended", "tokens.counted", PACKED})
"""Events after which everything that was known before still holds."""

T = TypeVar("T")


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a line is wanted, and how it is counted."""

    room: int
    max_messages: int | None
    kept_as: str
    longest: int
    """What one message is counted for at most while reading: a longer one may be shown abbreviated."""


class Ending(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a line with what is pinned and the first instructions, oldest first, and summaries of the rest."""

    version: int
    line: Line | None
    erased: int
    wanted: Wanted
    sources: tuple[int, ...] = ()
    """Where the lines stood that it shares something with: what is pinned there is noted there."""
    places: tuple[Place, ...] = ()
    messages: tuple[Message, ...] = ()
    since: tuple[str, int] | None = None
    """From this message on nothing of the line is missing."""
    leading: int = 0
    """How many of them are the first instructions."""
    kept: frozenset[tuple[str, int]] = frozenset()
    """Those, and the messages of pinned rounds: they stay when the end moves on."""
    turn: int = 0
    """The message that began the turn that it was read for; 0 if it was read for none."""
    asked: frozenset[tuple[str, int]] = frozenset()
    """What that turn answers, which stays as well."""
    complete: bool = True
    """Whether no uncovered message is missing."""
    summaries: tuple[Summary, ...] = ()
    """Standing ones, oldest first, as far as there may be room for them."""
    packed: Event | None = None
    """The newest pack of the line that was journaled."""
    fresh: dict[str, tuple[tuple[int, int], ...]] = {}
    """Counts that were made just now, by stream: version and tokens."""


def ending(
    ports: Ports,
    acting: Acting,
    stream: str,
    state: StreamState,
    wanted: Wanted,
    tokenizer: Tokenizer,
    framing: Framing,
    turn: int = 0,
) -> Ending:
    """The end of a line, from memory as far as that holds; with what the turn answers that a message began."""
    erased = _version(ports, acting, Scope.GLOBAL.text)  # Erasures are noted there.
    now = Ending(version=state.version, line=state.line, erased=erased, wanted=wanted, turn=turn)
    if state.line is None:
        return now
    now = replace(now, sources=tuple(_version(ports, acting, one.stream) for one in state.line.shared))
    place = (acting.tenant, stream, wanted.kept_as)
    known: Ending | None = None if ports.recent is None else ports.recent.get(place)
    found = None
    usable = _for_turn(known, stream, turn) if known is not None and _holds(known, now) else None
    if usable is not None:
        same = usable.version == state.version
        found = usable if same else _grown(ports, acting, stream, now, usable, tokenizer, framing)
    if found is None:
        plain = known is not None and _begins_plainly(known, now)
        found = _read(ports, acting, stream, now, tokenizer, framing, plain=plain)
    at = state.line.packed
    if at and (found.packed is None or found.packed.version != at):
        found = replace(found, packed=event_at(ports, acting, stream, at))
    if ports.recent is not None and found is not known:
        ports.recent.put(place, found)
    return found


def _version(ports: Ports, acting: Acting, stream: str) -> int:
    head = ports.journal.head(acting.tenant, stream)
    return 0 if head is None else head.version


def _holds(known: Ending, now: Ending) -> bool:
    told = (known.erased, known.sources, known.wanted) == (now.erased, now.sources, now.wanted)
    return told and _only_longer(known, now)


def _only_longer(known: Ending, now: Ending) -> bool:
    """Whether nothing that was said became something else: there may be more of it."""
    before, line = known.line, now.line
    if before is None or line is None:
        return False
    return (before.edited, before.floor, before.shared, before.generation) == (
        line.edited,
        line.floor,
        line.shared,
        line.generation,
    )


def _begins_plainly(known: Ending, now: Ending) -> bool:
    """Whether the line is known to begin with no instructions, however much of its end is wanted."""
    return bool(known.places) and not known.leading and _only_longer(known, now)


def _for_turn(known: Ending, stream: str, turn: int) -> Ending | None:
    """What is known, with what this turn answers and not another one; None if not all of that is known."""
    if known.turn == turn:
        return known
    since = known.since
    reaches = since is not None and (since[0] != stream or since[1] <= turn)
    if turn and turn <= known.version and not reaches:
        return None
    begin = len(known.places) if since is None else _index(known.places, since)
    gone = {at for at in range(begin) if _at(known.places[at]) not in known.kept}
    found, messages = _without(known.places, gone), _without(known.messages, gone)
    return replace(
        known,
        places=tuple(found),
        messages=tuple(messages),
        turn=turn,
        asked=turn_questions(found, messages, stream, turn),
    )


def unbroken(found: Ending) -> tuple[str, int] | None:
    """From this message on nothing of the line is missing between those at hand: what stays may stand just before."""
    if found.since is None:
        return None
    at = _index(found.places, found.since)
    while at and found.places[at - 1].row["position"] == int(found.places[at].row["position"] or 0) - 1:
        at -= 1
    return _at(found.places[at])


def _without(these: Sequence[T], gone: Container[int]) -> list[T]:
    return [one for at, one in enumerate(these) if at not in gone]


def _grown(
    ports: Ports,
    acting: Acting,
    stream: str,
    now: Ending,
    known: Ending,
    tokenizer: Tokenizer,
    framing: Framing,
) -> Ending | None:
    """What was known and what came since, as far back as it would be read now; None if that is not enough."""
    query = Query(tenant=acting.tenant, stream=stream, after=known.version, until=now.version, limit=SINCE)
    stored = ports.journal.read(query)
    if len(stored) != now.version - known.version or any(event.type not in GROWTH for event in stored):
        return None
    events = [decode_event(event) for event in stored if event.type == "message.appended"]
    new = [Place(stream, message_row(event.facts, event.version)) for event in events]
    if new and _changes_what_stays(known, new):
        return None
    costed, fresh = counted(
        ports, acting, new, decoded(ports, acting, events), known.wanted.kept_as, tokenizer, framing
    )
    found, messages = (*known.places, *new), (*known.messages, *costed)
    begin = len(known.places) if known.since is None else _index(known.places, known.since)
    end, whole = _end([*reversed(found[begin:])], known.wanted)
    if whole is None and not known.complete:
        return None
    cut = len(found) - len(end)
    asked = turn_questions(found, messages, stream, known.turn)
    stay = known.kept | asked
    kept = [at for at in range(cut) if _at(found[at]) in stay] if stay else []
    packs = [event for event in stored if event.type == PACKED]
    return replace(
        known,
        version=now.version,
        line=now.line,
        places=(*(found[at] for at in kept), *found[cut:]),
        messages=(*(messages[at] for at in kept), *messages[cut:]),
        since=_at(end[-1]) if end else None,
        asked=asked,
        complete=whole is None,
        packed=decode_event(packs[-1]) if packs else known.packed,
        fresh=_merged({} if _noted(stored, known) else known.fresh, fresh),
    )


def _changes_what_stays(known: Ending, new: Sequence[Place]) -> bool:
    """Whether there may be more first instructions now, something else is pinned, or a pinned call has its result."""
    if len(known.places) == known.leading:
        return True
    return any(place.row["pinned"] or (place.stream, place.round) in known.kept for place in new)


def _index(found: Sequence[Place], at: tuple[str, int]) -> int:
    return next(index for index, place in enumerate(found) if _at(place) == at)


def _at(place: Place) -> tuple[str, int]:
    return place.stream, place.version


def _noted(stored: Sequence[StoredEvent], known: Ending) -> bool:
    """Whether somebody journaled the counts that were made here: all of them, as they are kept together."""
    events = (decode_event(event) for event in stored if event.type == "tokens.counted")
    return any(event.facts.tokenizer == known.wanted.kept_as for event in events)


def _merged(
    one: dict[str, tuple[tuple[int, int], ...]], other: dict[str, tuple[tuple[int, int], ...]]
) -> dict[str, tuple[tuple[int, int], ...]]:
    return {stream: one.get(stream, ()) + other.get(stream, ()) for stream in {**one, **other}}


def _read(
    ports: Ports, acting: Acting, stream: str, now: Ending, tokenizer: Tokenizer, framing: Framing, *, plain: bool
) -> Ending:
    """All of it, from the newest message backwards until the room is full; `plain`, it begins with no instructions."""
    wanted = now.wanted
    standing = _standing(ports, acting, stream, wanted, tokenizer, framing)
    newest_first: Iterable[Place] = places(ports, acting, stream, page=min(max(wanted.room // USUAL, FEWEST), PAGE))
    if standing:
        # They cover a line from its beginning: what is older than something covered is covered as well.
        newest_first = takewhile(lambda place: not compaction_summaries.is_covered(place, standing), newest_first)
    end, whole = _end(newest_first, wanted)
    instructions = [] if plain else list(leading(ports, acting, stream))
    stays = with_pinned(ports, acting, stream, (), instructions)
    kept = frozenset(map(_at, stays))
    ends = set(map(_at, end)) if stays else ()
    before = [place for place in stays if _at(place) not in ends]
    before = merged(before, users_before(ports, acting, stream, now.turn, end), stream)
    found = [*before, *reversed(end)]
    read = bodies(ports, acting, found)
    asked = turn_questions(found, read, stream, now.turn)
    # What the library itself said in a user's place is no question.
    gone = {at for at, place in enumerate(before) if _at(place) not in kept and _at(place) not in asked}
    found, read = _without(found, gone), _without(read, gone)
    messages, fresh = counted(ports, acting, found, read, wanted.kept_as, tokenizer, framing)
    return replace(
        now,
        places=tuple(found),
        messages=tuple(messages),
        since=_at(end[-1]) if end else None,
        leading=len(instructions),
        kept=kept,
        asked=asked,
        complete=whole is None,
        summaries=tuple(standing),
        fresh=fresh,
    )


def _standing(
    ports: Ports, acting: Acting, stream: str, wanted: Wanted, tokenizer: Tokenizer, framing: Framing
) -> list[Summary]:
    """The newest summaries as far as there may be room for them, oldest first."""
    found: list[Summary] = []
    left = wanted.room
    for summary in compaction_summaries.standing(ports, acting, stream):
        if left < 0 and found:
            break
        left -= compaction_summaries.summary_tokens(summary.text, tokenizer, framing)
        found.append(summary)
    return found[::-1]


def _end(newest_first: Iterable[Place], wanted: Wanted) -> tuple[list[Place], Place | None]:
    """Places until the room is full, and the first that is left out; None if there is no such."""
    found: list[Place] = []
    torn: set[tuple[str, int]] = set()
    tokens = beyond = 0
    begun = False
    room, most, longest = wanted.room, wanted.max_messages, wanted.longest
    for place in newest_first:
        full = begun and (tokens > room or (most is not None and len(found) > most))
        if full and (not torn or beyond == MORE):
            return found, place
        beyond += full
        found.append(place)
        row = place.row
        if row["role"] == "tool":
            torn.add((place.stream, place.round))  # In a branch its call may be in another stream, near it.
        else:
            if torn:
                torn.discard(_at(place))
            begun = True  # Late results alone are no round.
        # By another tokenizer it may be up to three times as much: read too far rather than stop too early.
        counted = int(row["tokens"] or 0)
        tokens += min(counted if row["tokenizer"] == wanted.kept_as else counted // 3, longest)
    return found, None


MOST = 32
"""Messages that a turn is held to answer: what began it, and the newest of those that joined it."""
QUESTION_PAGE = 1_000
ASKING = "user"


def turn_questions(
    found: Sequence[Place], messages: Sequence[Message], stream: str, turn: int
) -> frozenset[tuple[str, int]]:
    """Which of these messages the turn answers that began with one; none if there is no turn.

    What the library said in a user's place is about what is near it, and no question.
    """
    if not turn:
        return frozenset()
    said = [
        (place.stream, place.version)
        for place, message in zip(found, messages, strict=True)
        if place.version >= turn and place.stream == stream and place.row["role"] == ASKING and not message.synthetic
    ]
    return frozenset((*said[:1], *said[max(len(said) - MOST + 1, 1) :]))


def users_before(ports: Ports, acting: Acting, stream: str, turn: int, end: Sequence[Place]) -> list[Place]:
    """What users said in a turn before the end of its line that was read, newest first; the cost follows the turn."""
    if not turn or (end and (end[-1].stream != stream or end[-1].version <= turn)):
        return []
    until = end[-1].version - 1 if end else 2**62
    return list(_users(ports, acting, Segment(stream, turn - 1, until, 2**62)))


def _users(ports: Ports, acting: Acting, segment: Segment) -> Iterator[Place]:
    after = segment.after
    while after < segment.until:
        span = Span(table="messages", after=after, until=segment.until, limit=QUESTION_PAGE)
        rows = ports.journal.span(acting.tenant, segment.stream, span)
        for row in rows:
            if row["role"] == ASKING and stands(row, segment):
                yield Place(segment.stream, row)
        if len(rows) < QUESTION_PAGE:
            return
        after = int(rows[-1]["version"] or 0)


def merged(stays: Sequence[Place], users: Sequence[Place], stream: str) -> list[Place]:
    """What stays in a pack and what users said in the turn, in the order of the line; each once."""
    if not users:
        return list(stays)
    both = {(place.stream, place.version): place for place in (*stays, *users)}
    # What a branch shares comes before what is its own, and is in order already.
    return sorted(both.values(), key=lambda place: place.version if place.stream == stream else 0)


def counted(
    ports: Ports,
    acting: Acting,
    found: Sequence[Place],
    messages: Sequence[Message],
    kept_as: str,
    tokenizer: Tokenizer,
    framing: Framing,
) -> tuple[list[Message], dict[str, tuple[tuple[int, int], ...]]]:
    """The messages with what each costs with this tokenizer, and the counts that nobody had made before."""
    strange = [one for one in found if one.row["tokenizer"] != kept_as or one.row["tokens"] is None]
    known = _known_counts(ports, acting, strange, kept_as)
    fresh: dict[str, list[tuple[int, int]]] = {}
    those = []
    for place, message in zip(found, messages, strict=True):
        tokens = message.tokens if message.tokenizer == kept_as else known.get((place.stream, place.version))
        if message.erased:
            tokens = message_tokens(message, tokenizer.count, framing)  # What is kept counts what it was.
        elif tokens is None:
            tokens = message_tokens(message, tokenizer.count, framing)
            fresh.setdefault(place.stream, []).append((place.version, tokens))
        same = message.tokens == tokens and message.tokenizer == kept_as
        those.append(message if same else replace(message, tokens=tokens, tokenizer=kept_as))
    return those, {stream: tuple(pairs) for stream, pairs in fresh.items()}


def _known_counts(ports: Ports, acting: Acting, strange: Sequence[Place], kept_as: str) -> dict[tuple[str, int], int]:
    known: dict[tuple[str, int], int] = {}
    for stream in dict.fromkeys(place.stream for place in strange):
        for run in runs(sorted({place.version for place in strange if place.stream == stream})):
            first, last = min(run), max(run)
            span = Span(table="message_counts", after=first - 1, until=last, limit=last - first + 1, prefix=(kept_as,))
            for row in ports.journal.span(acting.tenant, stream, span):
                known[stream, int(row["version"] or 0)] = int(row["tokens"] or 0)
    return known

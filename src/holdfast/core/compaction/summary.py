"""Put a summary, a reduced transcript or passages in the place of older messages.

A summary is one system message behind the first instructions. It need not be made here: `plan_summary` returns what it
is to cover and how long it may be, and `insert_summary` inserts it. An empty or failed summary loses nothing: the
window slides instead. Pinned messages are not repeated in transcripts: they stay in every pack as they are. The trust
that a passage states counts only as far as it does not exceed that of its writer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from holdfast.core.compaction.sentences import clean_text, cut_pieces, fit_text
from holdfast.core.compaction.strategies import omission_note
from holdfast.core.journal.codec import decode_facts
from holdfast.core.numbers import is_number
from holdfast.core.sessions.rounds import SUMMARY_PREFIX, ConversationRounds, is_plain_text, subtract_size
from holdfast.core.sessions.shorten import ShortenedMessages, cut_text, fit_messages, omission_marker
from holdfast.core.sessions.tokens import CountText
from holdfast.core.sessions.windows import Window, build_window, fit_window
from holdfast.core.trust import lowest_trust
from holdfast.core.wire.calls import match_results
from holdfast.errors import InvalidValue
from holdfast.records.compaction import priority_of
from holdfast.records.events.envelope import TRUST_LEVELS, StoredEvent
from holdfast.records.events.frames import FrameCompacted
from holdfast.records.events.sessions import SummaryMade
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.ids import RESERVED_PREFIX
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel

NO_ROOM = "There is no room for a summary beside the newest round."

MAX_RESULT_CHARS = 4_000
"""Characters of a tool's result or arguments that are included."""
_LABELS = {"user": "User", "assistant": "Assistant", "tool": "Tool"}
CONTINUATION: Final = "    "
"""The beginning of a line that continues the one before it."""
GAP: Final = "…"
SHORT_CHARS: Final = 160
"""Characters of a shortened message."""
CHARS_PER_TOKEN: Final = 4
"""Characters of a token, to estimate how long the lines of a summary may be."""
MIN_LINE_CHARS: Final = 60
_FORMS: Final = ("whole", "short", "gone")
PASSAGE_PREFIX: Final = f"{RESERVED_PREFIX}context/"
"""Reserved, so that callers cannot write what would be shown as remembered."""
PASSAGE_CHARS: Final = 1_000
"""Characters of a passage, about two hundred tokens."""


class WindowSummaryPlan(msgspec.Struct, frozen=True):
    """The messages to summarise, and the room for the summary."""

    talk: ConversationRounds
    chosen: list[int]
    """Rounds that stay besides the newest."""
    covered: list[Message]
    room: int
    """Tokens that are left for the text of the summary."""


def plan_summary(talk: ConversationRounds, keep: int) -> WindowSummaryPlan | Window:
    """Return what to summarise; or the window, if everything fits or there is no room for a summary."""
    if not is_number(keep, least=1):
        raise InvalidValue(f"keep is {keep!r}. Give how many of the newest rounds to keep, at least 1.")
    if talk.fits():
        return fit_window(talk)
    newest = talk.round(-1) if talk.rounds else []
    room = subtract_size(talk.limits.size, talk.size([*talk.first, *newest]))
    if not newest or room[0] < 1 or room[1] < talk.count(_summary_message(omission_marker(99_999))):
        return fit_window(talk, NO_ROOM)
    # A quarter of what the newest round leaves is kept for the summary, whose length is not known yet.
    chosen = talk.choose_rounds((room[0] - 1, room[1] - room[1] // 4), most=keep - 1, keep_summaries=False)
    older = sorted({*range(talk.rounds - 1)}.difference(chosen))
    for nth in chosen:
        room = subtract_size(room, talk.size(talk.round(nth)))
    covered = [message for nth in older for message in talk.round(nth)]
    return WindowSummaryPlan(talk, chosen, covered, room[1] - talk.count(_summary_message("")))


def insert_summary(plan: WindowSummaryPlan, text: object) -> Window:
    """Return the window with this summary, cut if it is too long; the sliding window if it is empty."""
    talk = plan.talk
    if not isinstance(text, str):
        return fit_window(talk, f"The summary is a {type(text).__name__}, not text.")
    if not text.strip():
        return fit_window(talk, "The summary is empty.")
    room = plan.room + talk.count(_summary_message(""))
    body = Message(role="system", content=text.strip())
    short = fit_messages([body], room, lambda form: talk.count(_summary_message(form.text)))
    if short.tokens > room:
        return fit_window(talk, NO_ROOM)
    made = build_window(
        talk, plan.chosen, ShortenedMessages(talk.round(-1), (), 0), summary=_summary_message(short.messages[0].text)
    )
    cuts = tuple(msgspec.structs.replace(cut, index=len(talk.first)) for cut in short.cuts)
    return msgspec.structs.replace(made, shortened=cuts)


def _summary_message(text: str) -> Message:
    return Message(role="system", content=SUMMARY_PREFIX + text, synthetic=True)


def render_transcript(messages: Sequence[Message], most: int = MAX_RESULT_CHARS) -> str:
    """Return a transcript of messages, without erased ones."""
    return "\n".join(thread for message in messages if not message.erased for thread in _render_message(message, most))


def text_with_files(message: Message) -> str:
    """Return the text of a message, with the names of its files and without tool results."""
    if message.role == "tool":
        return ""
    text = message.text
    for part in message.content if isinstance(message.content, list) else ():
        if part.get("type") in ("image", "file"):
            name = part.get("name")
            text += f"\n[{part['type']}: {name}]" if isinstance(name, str) and name else f"\n[{part['type']}]"
    return text


def speaker_label(message: Message) -> str:
    """Return the speaker's label."""
    label = _LABELS.get(message.role, "System")
    return f"{label} ({clean_text(message.name)[:40]})" if message.name and message.role != "tool" else label


def _render_message(message: Message, most: int) -> Iterator[str]:
    if said := text_with_files(message):
        yield render_line(speaker_label(message), said)
    for call in message.tool_calls:
        yield render_line(f"Call of {clean_text(call.name)}", call.arguments[:most])
    for result in message.tool_results:
        body = result.result if isinstance(result.result, str) else _to_json(result.result)
        kind = "No result" if result.interrupted else "Failure" if result.is_error else "Result"
        yield render_line(kind, body[:most])
    if message.role == "tool" and not message.tool_results:
        yield render_line("Result", message.text[:most])


def render_line(label: str, text: str) -> str:
    """Return a text with its label, as one entry of a transcript."""
    # Later lines are indented, so that no text can pass for another speaker's line.
    return f"{label}: " + f"\n{CONTINUATION}".join(text.splitlines())


def _to_json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode() if value is not None else ""
    except (TypeError, ValueError, RecursionError):
        return "[data that cannot be shown]"


class ReducedTranscript(NamedTuple):
    """Older messages as text: all of them (level light), or without some (aggressive)."""

    text: str
    level: CompactionLevel


class TranscriptPiece(msgspec.Struct, frozen=True, kw_only=True):
    """One message as text."""

    index: int
    score: int
    policy: str
    done: bool
    whole: str
    short: str


def reduce_by_policy(messages: Sequence[Message], most: int, count: CountText) -> ReducedTranscript:
    """Drop finished messages to discard; shorten, then drop those to compress first; then shorten and drop the rest."""
    given = _make_pieces(messages)
    compressed = [one for one in given if one.policy == "compress_first"]
    discarded = [one for one in given if one.policy == "discard_when_done" and one.done]
    steps = [(discarded, "gone"), (compressed, "short"), (compressed, "gone"), (given, "short"), (given, "gone")]
    return _reduce(messages, given, steps, most, count)


def reduce_by_priority(messages: Sequence[Message], most: int, count: CountText) -> ReducedTranscript:
    """Drop the lowest priority first, of equals the oldest; nothing is shortened."""
    given = _make_pieces(messages)
    lowest_first = sorted(given, key=lambda one: (one.score, one.index))
    return _reduce(messages, given, [(lowest_first, "gone")], most, count)


def reduce_to(messages: Sequence[Message], kept: Collection[int]) -> ReducedTranscript:
    """Keep only the messages at these indexes, whole."""
    given = _make_pieces(messages)
    return _render_forms(messages, given, {one.index: "whole" if one.index in kept else "gone" for one in given})


def _make_pieces(messages: Sequence[Message]) -> list[TranscriptPiece]:
    """Return the text of each message, without pinned, empty and erased ones."""
    ended = _find_ended(messages)
    found = []
    for index, message in enumerate(messages):
        whole = "" if message.pinned else render_transcript([message])
        if whole:
            policy = message.policy or "normal"
            score, done = PRIORITY_SCORE[priority_of(policy)], index in ended
            short = min(cut_text(" ".join(whole.split()), SHORT_CHARS)[0], whole, key=len)
            found.append(TranscriptPiece(index=index, score=score, policy=policy, done=done, whole=whole, short=short))
    return found


def _find_ended(messages: Sequence[Message]) -> set[int]:
    """Return the messages of finished work: a call that has its result, a turn that another one followed."""
    answers = match_results(messages).answers
    newest = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    found = set()
    for at, message in enumerate(messages):
        calls = range(len(message.tool_calls))
        over = message.role == "tool" or at < newest
        if all((at, nth) in answers for nth in calls) if calls else over:
            found.add(at)
    return found


def _reduce(
    messages: Sequence[Message],
    given: Sequence[TranscriptPiece],
    steps: Sequence[tuple[list[TranscriptPiece], str]],
    most: int,
    count: CountText,
) -> ReducedTranscript:
    """Choose the form of each message so that all of them are within the limit."""
    gap, note = count(GAP) + 1, count(omission_note(99_999)) + 1
    if any(message.erased for message in messages):
        most -= note  # The note about missing messages is certain.
    form = dict.fromkeys((one.index for one in given), "whole")
    places = list(form)
    nearby = {index: (*places[max(at - 1, 0) : at], *places[at + 1 : at + 2]) for at, index in enumerate(places)}
    # One more for the line break: the parts count a little less than the whole.
    sizes = {(one.index, name): count(getattr(one, name)) + 1 for one in given for name in ("whole", "short")}
    total = sum(sizes[index, "whole"] for index in places)
    for chosen, wanted in steps:
        for one in chosen:
            before = form[one.index]
            if total <= most or _FORMS.index(wanted) <= _FORMS.index(before):
                continue
            if wanted == "gone":
                # Dropped neighbours share a gap: one is added, or two become one.
                total += gap * (1 - sum(form[beside] == "gone" for beside in nearby[one.index])) + note
                note = 0
            else:
                total += sizes[one.index, wanted]
            total -= sizes[one.index, before]
            form[one.index] = wanted
    return _render_forms(messages, given, form)


def _render_forms(
    messages: Sequence[Message], given: Sequence[TranscriptPiece], form: dict[int, str]
) -> ReducedTranscript:
    """Return the text in order, with the number of messages left out first, and gaps in their places."""
    lines: list[str] = []
    left_out = sum(1 for message in messages if message.erased and not message.pinned)
    for one in given:
        if form[one.index] != "gone":
            lines.append(getattr(one, form[one.index]))
            continue
        left_out += 1
        lines += [GAP] if lines and lines[-1] != GAP else []
    head = [omission_note(left_out or len(messages))] if left_out or not lines else []
    level = CompactionLevel.AGGRESSIVE if left_out else CompactionLevel.LIGHT
    return ReducedTranscript("\n".join([*head, *lines]), level)


ShortLine = tuple[Message, int, str, int]
"""A message, a number of characters, the line of that length for it, and the tokens of the line."""


def list_newest(
    messages: Sequence[Message], most: int, count: CountText, known: dict[int, ShortLine]
) -> tuple[str, int]:
    """Return a short line for each of the newest messages, as many as fit, and how many messages they stand for.

    The more messages there are, the shorter their lines. The work follows the limit, not the messages. Those that are
    shown anyway or to be discarded have no line. `known` has the lines of earlier packs by the identity of the message.
    """
    length = min(max(CHARS_PER_TOKEN * most // max(len(messages), 1), MIN_LINE_CHARS), SHORT_CHARS)
    lines: list[str] = []
    covered = 0
    for number, message in enumerate(reversed(messages), 1):
        if message.pinned or message.policy == "discard_when_done":
            continue
        made = known.get(id(message))
        if made is None or made[0] is not message or made[1] != length:
            made = known[id(message)] = _shorten_line(message, length, count)
        _, _, line, tokens = made
        if not lines and tokens >= most:
            line = fit_text(line, most - 1, count)
            tokens = count(line)
        most -= tokens + 1
        if most < 0:
            break
        if line:
            lines.append(line)
            covered = number
    return "\n".join(reversed(lines)), covered


def _shorten_line(message: Message, length: int, count: CountText) -> ShortLine:
    if is_plain_text(message) and not message.name and not message.erased:  # As most are, rendered without detours.
        text = render_line(_LABELS.get(message.role, "System"), message.text)
    else:
        text = render_transcript([message], length)
    end = length // 4
    # Most of a long text is shown from its beginning, the rest from its end.
    line = " ".join((text if len(text) <= length else f"{text[: length - end]} {GAP} {text[-end:]}").split())
    return message, length, line, count(line)


class CompactedPassage(msgspec.Struct, frozen=True):
    """A text that was compacted, and the lowest trust of its speakers."""

    text: str
    trust: str


def split_messages(messages: Sequence[Message]) -> list[CompactedPassage]:
    """Split messages into passages; neighbours share one as far as they fit, and a long one is cut."""
    return split_texts([(render_transcript([message]), message.trust) for message in messages])


def split_texts(texts: Iterable[tuple[str, str]]) -> list[CompactedPassage]:
    """Split texts, each with its trust, into passages of about one size. Nothing is lost."""
    found: list[CompactedPassage] = []
    for whole, trust in texts:
        for text in cut_pieces(whole, PASSAGE_CHARS, "\n "):
            last = found[-1] if found else None
            if last is not None and len(last.text) + len(text) < PASSAGE_CHARS:
                found[-1] = CompactedPassage(f"{last.text}\n{text}", lowest_trust(last.trust, trust))
            else:
                found.append(CompactedPassage(text, lowest_trust(trust)))
    return found


def passage_key(id: str, number: int) -> str:
    """Return the key of a passage, by the id of its summary or compaction and its number from 0."""
    return f"{PASSAGE_PREFIX}{id}" if number == 0 else f"{PASSAGE_PREFIX}{id}/{number + 1}"


def passage_owner(key: str) -> str | None:
    """Return the id of the summary or compaction whose passage a key holds; None if it holds none."""
    return key.removeprefix(PASSAGE_PREFIX).partition("/")[0] if key.startswith(PASSAGE_PREFIX) else None


def read_passage(value: Any, vouched: str) -> CompactedPassage | None:
    """Return the passage that an entry holds; None if it is not one."""
    text = value.get("text") if isinstance(value, dict) else None
    if not isinstance(text, str) or not text.strip():
        return None
    own = value.get("trust")
    return CompactedPassage(text, lowest_trust(own if own in TRUST_LEVELS else None, vouched))


def fit_tokens(text: str, most: int, count: Callable[[str], int]) -> str:
    """Cut a text to at most `most` tokens: its beginning and its end, around a marker of the omitted length."""
    if count(text) <= most:
        return text
    low, high = 0, len(text)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if count(cut_text(text, middle)[0]) <= most else (low, middle)
    short = cut_text(text, low)[0]
    # Without room for a marker, keep only the beginning.
    return short if low and count(short) <= most else fit_text(text, most, count)


def split_transcript(told: str, most: int, count: Callable[[str], int]) -> Iterator[str]:
    """Yield a transcript in parts of at most `most` tokens, cut between lines where possible. Nothing is lost."""
    part: list[str] = []
    size = 0
    for line in (piece for whole in told.split("\n") for piece in _split_line(whole, most, count)):
        cost = count(line) + 1
        if part and size + cost > most:
            yield "\n".join(part)
            part, size = [], 0
        part.append(line)
        size += cost
    yield "\n".join(part)


def _split_line(line: str, most: int, count: Callable[[str], int]) -> Iterator[str]:
    if len(line) <= SHORT_CHARS or count(line) + 1 <= most:
        yield line
        return
    first, *rest = cut_pieces(line, len(line) // 2 + 1)
    yield from _split_line(first, most, count)
    for piece in rest:  # Indented, so that no text can pass for another speaker's line.
        yield from _split_line(CONTINUATION + piece, most, count)


def find_subject_events(events: Sequence[StoredEvent], subject: int) -> list[StoredEvent]:
    """Return the events of a subject among a tenant's, and those that repeat their words, whoever had them written.

    These are summaries of the subject's messages, and passages of a compaction that covered one of its messages or
    handles. A summary cannot be told apart into its speakers, so it falls as a whole.
    """
    found = {event.seq: event for event in events if event.subject == subject}
    places = {(one.stream, one.version) for one in found.values()}
    said = [(one.stream, one.version) for one in found.values() if one.type == "message.appended"]
    flushed: set[tuple[str | None, str]] = set()
    written: list[tuple[StoredEvent, str]] = []
    for event in events:
        if event.type == "summary.made":
            made: SummaryMade = decode_facts(event.type, event.schema, event.facts)
            spans = made.spans(event.stream)
            if any(one.stream == stream and one.first <= at <= one.last for one in spans for stream, at in said):
                found[event.seq] = event
                flushed.add((made.flushed, made.summary))
        elif event.type == "frame.compacted":
            compacted: FrameCompacted = decode_facts(event.type, event.schema, event.facts)
            if not places.isdisjoint(compacted.sources):
                flushed.add((compacted.flushed, compacted.compaction))
        elif event.type == "state.written":
            written.append((event, decode_facts(event.type, event.schema, event.facts).key))
    found.update({one.seq: one for one, key in written if (one.stream, passage_owner(key)) in flushed})
    return list(found.values())

"""Random but valid histories of sessions, as drafts over several streams, and a check of the journal against them.

The generator writes only the drafts that a client could write. It keeps each thread as a plain list of messages, so
that the expected messages, open calls and summaries can be compared with those that a journal reads back through
rows, retractions and forks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from random import Random
from typing import Any

import msgspec

from holdfast.flow.journal.append import StreamWrite
from holdfast.flow.sessions import read, summaries
from holdfast.ports import Env, Ids
from holdfast.records.batches import RowQuery
from holdfast.records.events import sessions as event_sessions
from holdfast.records.events.calls import ContextPacked, OmittedPiece, PackedPiece
from holdfast.records.events.envelope import Content, Draft, Facts
from holdfast.records.events.journal import LeaseReleased, LeaseTaken, ReasonContent
from holdfast.records.events.sessions import CallRef, MessageRetracted, MessageSpan, SharedSegment, ThreadForked
from holdfast.records.ids import ulid_text
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.records.sessions import ThreadState
from holdfast.records.usage import Usage
from holdfast.testing.generate_frames import WORDS

OPEN_END = 2**62


class ExpectedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a thread, and the message that its round begins with."""

    stream: str
    version: int
    round: tuple[str, int]
    calls: tuple[tuple[str, str | None], ...] = ()
    answers: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, int]:
        """The stream and version of the message."""
        return self.stream, self.version


class ExpectedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary and the messages it stands for: from `first` up to but without `last`, counted from 0."""

    stream: str
    version: int
    first: int
    last: int


class ExpectedThread(msgspec.Struct, kw_only=True):
    """A thread. `inherited` are summaries of the threads it was forked from, nearest and newest first."""

    stream: str
    messages: list[ExpectedMessage] = []
    calls: dict[str, CallRef] = {}
    """Calls that wait for a result."""
    shared: tuple[SharedSegment, ...] = ()
    floor: int = 0
    packed: int = 0
    """The version of the newest pack."""
    ended: bool = False
    fresh: bool = False
    own_summaries: list[ExpectedSummary] = []
    inherited: tuple[ExpectedSummary, ...] = ()

    @property
    def own_messages(self) -> list[ExpectedMessage]:
        """The messages in the thread's own stream."""
        return [one for one in self.messages if one.stream == self.stream]

    @property
    def newest(self) -> int:
        """The version of the newest message if it is in the thread's own stream, else 0."""
        return self.messages[-1].version if self.messages and self.messages[-1].stream == self.stream else 0

    def append(self, one: ExpectedMessage) -> None:
        """Append a message."""
        self.messages.append(one)
        self.calls = {id: call for id, call in self.calls.items() if id not in one.answers}
        self.calls.update({id: CallRef(id, one.version, provider) for id, provider in one.calls})

    def round_start(self, call: str) -> tuple[str, int]:
        """Return the place where a call's round begins."""
        return next(one.round for one in self.messages if any(call == id for id, _ in one.calls))

    def open_calls(self, keep: int, stream: str) -> dict[str, CallRef]:
        """Return the calls without a result among the first `keep` messages, as a thread in `stream` continues them.

        Messages of other streams have no version in that one: they are numbered backwards from -1.
        """
        found: dict[str, tuple[tuple[str, int], str | None]] = {}
        for one in self.messages[:keep]:
            found.update({id: (one.place, provider) for id, provider in one.calls})
            for id in one.answers:
                found.pop(id, None)
        shared = list(dict.fromkeys(place for place, _ in found.values() if place[0] != stream))
        numbers = {place: index - len(shared) for index, place in enumerate(shared)}
        return {id: CallRef(id, numbers.get(place, place[1]), provider) for id, (place, provider) in found.items()}

    # forks

    def cut_segments(self, found: Sequence[SharedSegment], keep: int) -> tuple[SharedSegment, ...]:
        """Cut the segments, nearest first, to the first `keep` messages."""
        if not keep:
            return ()
        place = self.messages[keep - 1]
        index = next(number for number, segment in enumerate(found) if segment.stream == place.stream)
        last = found[index]
        return (SharedSegment(last.stream, last.after, place.version, last.at), *found[index + 1 :])

    def fork(self, stream: str, keep: int, version: int, generation: int) -> tuple[ExpectedThread, ThreadForked]:
        """Fork a thread after the first `keep` messages of this one, which is at `version`."""
        shared = self.cut_segments((SharedSegment(self.stream, self.floor, OPEN_END, version), *self.shared), keep)
        streams = {segment.stream for segment in shared}
        kept = (
            one for one in (*self.own_summaries[::-1], *self.inherited) if one.last <= keep and one.stream in streams
        )
        calls = self.open_calls(keep, stream)
        thread = ExpectedThread(
            stream=stream, messages=self.messages[:keep], calls=calls, shared=shared, inherited=tuple(kept)
        )
        forked = ThreadForked(
            parent=self.stream,
            version=self.messages[keep - 1].version if keep else 0,
            shared=shared,
            position=keep,
            generation=generation,
            opened=tuple(calls.values()),
        )
        return thread, forked

    # retraction

    def rewind(self, keep: int, version: int) -> MessageRetracted:
        """Keep only the first `keep` messages; the thread was at `version` until now."""
        gone = [one.version for one in self.messages[keep:] if one.stream == self.stream]
        here = keep > 0 and self.messages[keep - 1].stream == self.stream
        newest = self.messages[keep - 1].version if here else 0
        shared = self.shared if here else self.cut_segments(self.shared, keep)
        left = self.open_calls(keep, self.stream)
        facts = MessageRetracted(
            first=gone[0] if gone else version,
            last=version,
            spans=tuple(_group_versions(gone)),
            position=keep,
            shared=None if shared == self.shared else shared,
            newest=newest,
            voided=tuple(self._void_summaries(keep, {segment.stream for segment in shared})),
            dropped=tuple(id for id in self.calls if id not in left),
            opened=tuple(left.values()),
        )
        self.messages, self.shared, self.calls = self.messages[:keep], shared, left
        return facts

    def _void_summaries(self, keep: int, streams: set[str]) -> list[int]:
        """Drop summaries of retracted messages and those behind a gap; return the versions of the own ones dropped."""
        self.inherited = tuple(one for one in self.inherited if one.last <= keep and one.stream in streams)
        before, self.own_summaries = self.own_summaries, [one for one in self.own_summaries if one.last <= keep]
        reach = 0
        for one in self.summaries_in_force():
            if one.first > reach:
                self.own_summaries = [known for known in self.own_summaries if known != one]
            else:
                reach = one.last
        return [one.version for one in before if one not in self.own_summaries]

    def end(self, version: int, *, reset: bool) -> None:
        """End the thread; after a reset, nothing before its end stands."""
        self.ended, self.fresh, self.calls = True, reset, {}
        if reset:
            self.messages, self.shared, self.floor = [], (), version
            self.own_summaries, self.inherited = [], ()

    # summaries

    def summaries_in_force(self) -> list[ExpectedSummary]:
        """Return the summaries in force, oldest first; none overlaps with a newer one."""
        found: list[ExpectedSummary] = []
        for one in (*self.own_summaries[::-1], *self.inherited):
            if not any(one.first < known.last and known.first < one.last for known in found):
                found.append(one)
        return found[::-1]

    def count_covered(self) -> int:
        """Return the number of messages, from the beginning, that have summaries."""
        return max((one.last for one in self.summaries_in_force()), default=0)

    def round_ends(self) -> list[int]:
        """Return the message counts that a summary may cover: whole rounds, none of which waits for a result."""
        last = {one.round: index for index, one in enumerate(self.messages)}
        waiting = {self.round_start(id) for id in self.calls}
        found, reach = [], 0
        for index, one in enumerate(self.messages):
            if one.round in waiting:
                break
            reach = max(reach, last[one.round])
            if reach == index:
                found.append(index + 1)
        return found

    def to_stretches(self, first: int, last: int) -> list[MessageSpan]:
        """Return some messages as stretches of streams, oldest first."""
        groups = [(name, list(group)) for name, group in groupby(self.messages[first:last], key=lambda one: one.stream)]
        return [MessageSpan(name, group[0].version, group[-1].version) for name, group in groups]


def _group_versions(versions: Sequence[int]) -> Iterator[tuple[int, int]]:
    for _, run in groupby(enumerate(versions), key=lambda pair: pair[1] - pair[0]):
        found = [version for _, version in run]
        yield found[0], found[-1]


MAX_THREADS = 6
MAX_ATTEMPTS = 4
"""The number of failed handovers to memory after which it gives up."""

_ThreadMove = Callable[[ExpectedThread], None]


class _PendingHandover(msgspec.Struct):
    """A handover of an ended conversation that memory has not accepted yet."""

    attempts: int = 0


class SessionGenerator:
    """A generator of one session. Content belongs to a random one of `subjects`.

    Nothing else may write to its streams: it counts their versions itself. With a larger `endings`, the session is
    closed and reopened more often.
    """

    def __init__(
        self, random: Random, ids: Ids, session: str = "s1", subjects: tuple[str, ...] = (), *, endings: float = 0.1
    ) -> None:
        self._random = random
        self._telling = DraftRecorder(random, ids, subjects)
        self._session = session
        self._endings = endings
        self.stream = Scope.session(session).text
        self.status = "new"
        self.threads: dict[str, ExpectedThread] = {}
        self.generation = 0
        self._epoch = 0
        self._resets = False
        self.handovers: dict[str, _PendingHandover] = {}

    @property
    def streams(self) -> list[str]:
        """Every stream that the generator writes to."""
        return [self.stream, *(thread.stream for thread in self.threads.values())]

    @property
    def pinned(self) -> set[tuple[str, int]]:
        """Stream and version of every pinned message, including retracted ones."""
        return self._telling.pinned

    def step(self, times: int = 1) -> list[StreamWrite]:
        """Return the next one or more changes, as the parts of one commit."""
        self._telling.written = {}
        epoch = self._epoch
        for _ in range(times):
            if self.status == "new":
                self._open_session()
            else:
                thread = self._random.choice(list(self.threads.values()))
                self._random.choice(self._possible_moves(thread))(thread)
        return [
            StreamWrite(stream=stream, events=tuple(drafts), epoch=epoch if stream == self.stream else 0)
            for stream, drafts in self._telling.written.items()
        ]

    def _possible_moves(self, thread: ExpectedThread) -> list[_ThreadMove]:
        offers: list[_ThreadMove] = [self._offer_handover] * 3 if self.handovers else []
        if thread.ended and not thread.fresh:
            # A session closed for good reopens only after a reset.
            return offers or [self._reset_session]
        found: list[_ThreadMove] = [self._reopen_then(append_text)] * 6 + [self._reopen_then(append_calls)] * 4
        if thread.ended:
            return found + [self._add_thread] * (len(self.threads) < MAX_THREADS) + offers * 3
        if thread.calls:
            found += [self._reopen_then(append_results)] * 8
        if thread.own_messages:
            found += [
                self._reopen_then(pin_message),
                self._reopen_then(record_counts),
                self._reopen_then(record_counts),
                self._reopen_then(record_pack),
            ]
        if thread.messages:
            found += [self._reopen_then(rewind_thread), self._reopen_then(append_summary)] * 2
        if len(self.threads) < MAX_THREADS:
            found += [self._fork_thread] * 2 if len(thread.messages) > 3 else [self._add_thread]
        if self._telling.roll(self._endings):
            found += [self._change_settings, self._reset_session, self._close_session] * 2
        return found + offers

    def _reopen_then(self, move: Callable[[DraftRecorder, ExpectedThread], None]) -> _ThreadMove:
        def made(thread: ExpectedThread) -> None:
            if thread.ended:
                self._reopen_thread(thread)
            move(self._telling, thread)

        return made

    # begin

    def _open_session(self) -> None:
        self.status = "open"
        self._write_settings("session.opened")
        self._open_thread(MAIN_THREAD)

    def _write_settings(self, type: str) -> None:
        texts: dict[str, Any] = {
            name: {"n": 1} if name == "metadata" else self._telling.random_text()
            for name in event_sessions.SESSION_TEXTS
            if self._telling.roll(0.5)
        }
        facts = event_sessions.SessionOpened(
            model=self._random.choice((None, "gpt-5-mini")),
            tokenizer=self._random.choice((None, *TOKENIZERS)),
            idle_timeout_ms=self._random.choice((None, 60_000)),
            memory=self._random.choice((None, "recall")),
            texts=tuple(texts),
        )
        self._telling.write(self.stream, type, facts, event_sessions.SessionContent(**texts) if texts else None)

    def _change_settings(self, thread: ExpectedThread) -> None:
        self._write_settings("session.changed")

    def _add_thread(self, thread: ExpectedThread) -> None:
        self._open_thread(f"t{len(self.threads)}")

    def _open_thread(self, name: str) -> None:
        thread = self.threads[name] = ExpectedThread(stream=Scope.thread(self._session, name).text)
        self._telling.write(self.stream, "thread.added", event_sessions.ThreadAdded(thread=name))
        self._telling.write(thread.stream, "thread.opened", event_sessions.ThreadOpened())
        self._begin_thread(thread)

    def _fork_thread(self, parent: ExpectedThread) -> None:
        name, newest = f"t{len(self.threads)}", len(parent.messages)
        keep = self._random.choice((newest, self._random.randint(0, newest)))
        stream = Scope.thread(self._session, name).text
        thread, facts = parent.fork(stream, keep, self._telling.versions[parent.stream], self.generation)
        self.threads[name] = thread
        self._telling.write(self.stream, "thread.added", event_sessions.ThreadAdded(thread=name))
        self._telling.write(stream, "thread.forked", facts)
        self._begin_thread(thread)

    def _begin_thread(self, thread: ExpectedThread) -> None:
        """Open a thread in the session's generation, and end it if that generation has ended."""
        if self.generation:
            self._telling.write(thread.stream, "thread.opened", event_sessions.ThreadOpened(generation=self.generation))
        if self.status != "open":
            ended = event_sessions.ThreadEnded(reset=True, dropped=tuple(thread.calls))
            thread.end(self._telling.write(thread.stream, "thread.ended", ended), reset=True)

    def _reopen_thread(self, thread: ExpectedThread) -> None:
        if self.status != "open":
            self.status = "open"
            self.generation += 1
            self._telling.write(self.stream, "session.opened", event_sessions.SessionOpened(generation=self.generation))
        self._telling.write(thread.stream, "thread.opened", event_sessions.ThreadOpened(generation=self.generation))
        thread.ended = thread.fresh = False

    # end

    def _close_session(self, thread: ExpectedThread) -> None:
        self._end_session("close", reset=False)

    def _reset_session(self, thread: ExpectedThread) -> None:
        self._end_session("reset", reset=True)

    def _end_session(self, cause: str, *, reset: bool) -> None:
        again = self.status != "open"
        spans = {
            name: (thread.floor, thread.newest) for name, thread in self.threads.items() if thread.newest and not again
        }
        handover = self._telling.new_ulid() if spans and self._telling.roll(0.7) else None
        facts = event_sessions.SessionClosing(
            cause=cause, generation=self.generation, reset=reset, handover=handover, spans=spans
        )
        self._telling.write(self.stream, "session.closing", facts)
        self.status, self._resets = "closing", reset
        if handover is not None:
            self.handovers[handover] = _PendingHandover()
        elif not self.handovers:
            self._finish_closing()
        for thread in self.threads.values():
            ended = event_sessions.ThreadEnded(reset=reset, dropped=tuple(thread.calls))
            thread.end(self._telling.write(thread.stream, "thread.ended", ended), reset=reset)

    def _finish_closing(self) -> None:
        self.status = "ended" if self._resets else "closed"
        facts = event_sessions.SessionClosedFacts(reset=self._resets, generation=self.generation)
        self._telling.write(self.stream, "session.closed", facts)

    def _offer_handover(self, thread: ExpectedThread) -> None:
        id = self._random.choice(list(self.handovers))
        one = self.handovers[id]
        one.attempts += 1
        taken = self._telling.roll(0.35)
        given_up = not taken and one.attempts == MAX_ATTEMPTS
        self._epoch += 1
        self._telling.write(self.stream, "lease.taken", LeaseTaken(epoch=self._epoch, owner="w1"))
        facts = event_sessions.SessionOffered(handover=id, taken=taken, attempts=one.attempts, given_up=given_up)
        reason = None if taken else ReasonContent(reason=self._telling.random_text())
        self._telling.write(self.stream, "session.offered", facts, reason)
        if taken or given_up:
            del self.handovers[id]
            if not self.handovers and self.status == "closing":
                self._finish_closing()
        if self._telling.roll(0.8):
            self._telling.write(self.stream, "lease.released", LeaseReleased(epoch=self._epoch, owner="w1"))


TOKENIZERS = ("o200k_base", "cl100k_base")


class DraftRecorder:
    """A recorder of drafts by stream, with the versions that they will have."""

    def __init__(self, random: Random, ids: Ids, subjects: tuple[str, ...]) -> None:
        self.random = random
        self._ids = ids
        self._subjects = subjects
        self.versions: dict[str, int] = {}
        self.written: dict[str, list[Draft]] = {}
        self.pinned: set[tuple[str, int]] = set()

    def write(self, stream: str, type: str, facts: Facts, content: Content | None = None, id: str | None = None) -> int:
        """Add an event to the current commit; return its version."""
        subject = self.random.choice(self._subjects) if self._subjects and content is not None else None
        draft = Draft(type=type, facts=facts, content=content, subject=subject, id=id)
        self.written.setdefault(stream, []).append(draft)
        self.versions[stream] = self.versions.get(stream, 0) + 1
        return self.versions[stream]

    def new_ulid(self) -> str:
        """Return a new id."""
        return ulid_text(self._ids.ulid())

    def random_text(self) -> str:
        """Return a few random words."""
        return " ".join(self.random.choice(WORDS) for _ in range(self.random.randint(1, 6)))

    def roll(self, share: float) -> bool:
        """Return True with this probability."""
        return self.random.random() < share


def append_text(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Append a message without calls."""
    role = telling.random.choice(("user", "user", "assistant", "system", "developer"))
    content = event_sessions.MessageContent(text=telling.random_text())
    if role == "user" and telling.roll(0.2):
        content = event_sessions.MessageContent(parts=[{"type": "text", "text": telling.random_text()}], name="ann")
    _append_message(telling, thread, role, content, partial=role == "assistant" and telling.roll(0.2))


def append_calls(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Append a message with one to three calls. Like providers, it reuses provider ids."""
    count = telling.random.randint(1, 3)
    calls = tuple((telling.new_ulid(), telling.random.choice((None, "call_1", "call_2"))) for _ in range(count))
    entries = [{"name": "search", "arguments": '{"q":"x"}'} for _ in calls]
    _append_message(
        telling,
        thread,
        "assistant",
        event_sessions.MessageContent(text=telling.random_text(), tool_calls=entries),
        calls=calls,
    )


def append_results(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Append results of one or more calls of one message, at once or late, in any order."""
    waiting = list(thread.calls.values())
    chosen = [telling.random.choice(waiting)]
    beside = [
        one for one in waiting if thread.round_start(one.id) == thread.round_start(chosen[0].id) and one != chosen[0]
    ]
    chosen += telling.random.sample(beside, telling.random.randint(0, len(beside)))
    entries = [{"result": telling.random_text()} for _ in chosen]
    answers = tuple(one.id for one in chosen)
    failed = tuple(id for id in answers if telling.roll(0.2))
    _append_message(
        telling, thread, "tool", event_sessions.MessageContent(tool_results=entries), answers=answers, failed=failed
    )


def _append_message(
    telling: DraftRecorder,
    thread: ExpectedThread,
    role: str,
    content: event_sessions.MessageContent,
    *,
    calls: tuple[tuple[str, str | None], ...] = (),
    answers: tuple[str, ...] = (),
    failed: tuple[str, ...] = (),
    partial: bool = False,
) -> None:
    known, pinned = telling.roll(0.9), telling.roll(0.1)
    # A call made in another stream has no version in this one: its result begins a round.
    first = thread.calls[answers[0]].version if answers else 0
    facts = event_sessions.MessageAppended(
        role=role,
        position=len(thread.messages) + 1,
        round=first if first > 0 else None,
        before=thread.newest,
        tokens=telling.random.randint(3, 60) if known else None,
        tokenizer=TOKENIZERS[0] if known else None,
        calls=calls,
        answers=answers,
        failed=failed,
        partial=partial,
        synthetic=bool(failed) and telling.roll(0.5),
        policy="pinned" if pinned else None,
        usage=_random_usage(telling) if role == "assistant" else None,
    )
    version = telling.write(thread.stream, "message.appended", facts, content)
    if pinned:
        telling.pinned.add((thread.stream, version))
    round = (thread.stream, first if first > 0 else version)
    thread.append(ExpectedMessage(stream=thread.stream, version=version, round=round, calls=calls, answers=answers))


def _random_usage(telling: DraftRecorder) -> Usage:
    return Usage(
        input=telling.random.randint(1, 900),
        cached_input=telling.random.choice((0, 100)),
        cache_write=telling.random.choice((0, 20)),
        output=telling.random.randint(0, 300),
        reasoning=telling.random.choice((0, 7)),
        cost=telling.random.choice((None, 12_345)),
        model="gpt-5-mini",
    )


def rewind_thread(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Retract the newest messages, or all."""
    keep = max(
        0, len(thread.messages) - telling.random.choice((1, 2, 3, telling.random.randint(1, len(thread.messages))))
    )
    facts = thread.rewind(keep, telling.versions[thread.stream])
    telling.write(thread.stream, "message.retracted", facts, ReasonContent(reason=telling.random_text()))


def pin_message(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Pin or unpin a message."""
    place, pinned = telling.random.choice(thread.own_messages).place, telling.roll(0.7)
    telling.write(thread.stream, "message.pinned", event_sessions.MessagePinned(version=place[1], pinned=pinned))
    (telling.pinned.add if pinned else telling.pinned.discard)(place)


def record_counts(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Record token counts of some messages, perhaps again."""
    versions = tuple(
        one.version for one in telling.random.sample(thread.own_messages, min(3, len(thread.own_messages)))
    )
    counts = tuple(telling.random.randint(3, 60) for _ in versions)
    facts = event_sessions.TokensCounted(tokenizer=telling.random.choice(TOKENIZERS), versions=versions, counts=counts)
    telling.write(thread.stream, "tokens.counted", facts)


def append_summary(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Summarise what has no summary yet, or everything in place of earlier summaries; else append a message."""
    covered = thread.count_covered()
    ends = [end for end in thread.round_ends() if end > covered]
    if not ends:
        append_text(telling, thread)
        return
    whole, last = telling.roll(0.4), telling.random.choice(ends)
    first = 0 if whole else covered
    stretches = thread.to_stretches(first, last)
    own = stretches.pop() if stretches[-1].stream == thread.stream else event_sessions.MessageSpan(thread.stream, 0, 0)
    facts = event_sessions.SummaryMade(
        summary=telling.new_ulid(),
        first=own.first,
        last=own.last,
        at_version=telling.versions[thread.stream],
        messages=last - first,
        tokens=telling.random.randint(3, 60),
        tokenizer=TOKENIZERS[0],
        shared=tuple(stretches),
        replaces=tuple(one.version for one in thread.own_summaries) if whole else (),
    )
    version = telling.write(
        thread.stream, "summary.made", facts, event_sessions.SummaryContent(text=telling.random_text())
    )
    made = ExpectedSummary(stream=thread.stream, version=version, first=first, last=last)
    thread.own_summaries = [made] if whole else [*thread.own_summaries, made]


def record_pack(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Record a pack of the newest messages; it names the pack before it."""
    shown, id = thread.own_messages[-telling.random.randint(1, 5) :], telling.new_ulid()
    pieces = [
        PackedPiece(kind="conversation", id=f"m{one.version}", stream=one.stream, first=one.version, last=one.version)
        for one in shown
    ]
    facts = ContextPacked(
        pack=id,
        call=id,
        digest=telling.random.randbytes(32).hex(),
        level="moderate",
        layout="stable",
        tokenizer=TOKENIZERS[0],
        exact=True,
        renderer=1,
        settings="00" * 8,
        budget=1_000,
        asked=telling.random.choice((1_000, 2_000)),
        used=telling.random.randint(1, 1_000),
        window_stream=thread.stream,
        window_start=shown[0].version,
        manifest=tuple(pieces),
        left_out=(OmittedPiece(id="h1", kind="evidence", why="no_room"),) if telling.roll(0.3) else (),
        truncated=len(thread.messages) - len(shown),
        before=thread.packed,
    )
    thread.packed = telling.write(thread.stream, "context.packed", facts, id=id)


def check_session(env: Env, story: SessionGenerator) -> None:
    """Assert that a generated session and all its threads read back as they were written."""
    session = env.journal.load(env.tenant, story.stream).session
    assert session is not None
    assert (session.status, session.generation) == (story.status, story.generation)
    assert session.threads == tuple(sorted(story.threads))
    assert {id: one.attempts for id, one in session.handovers.items()} == {
        id: one.attempts for id, one in story.handovers.items()
    }
    for told in story.threads.values():
        _check_thread(env, told)
        _check_messages(env, told, story.pinned)


def _check_thread(env: Env, told: ExpectedThread) -> None:
    thread = env.journal.load(env.tenant, told.stream).thread
    assert isinstance(thread, ThreadState)
    assert (thread.messages, thread.newest, thread.floor) == (len(told.messages), told.newest, told.floor), told.stream
    assert (thread.ended, thread.fresh, thread.shared) == (told.ended, told.fresh, told.shared), told.stream
    assert (thread.calls, thread.packed) == (told.calls, told.packed), told.stream
    query = RowQuery(table="summaries", stream=told.stream, after=told.floor, limit=10_000)
    made = env.journal.select(env.tenant, query)
    assert [row["version"] for _, row in made if row["retired"] is None] == [
        one.version for one in told.own_summaries
    ], told.stream
    standing = [(one.stream, one.version) for one in summaries.list_summaries(env, told.stream)]
    assert standing == [(one.stream, one.version) for one in told.summaries_in_force()], told.stream


def _check_messages(env: Env, told: ExpectedThread, pinned: set[tuple[str, int]]) -> None:
    places = [one.place for one in told.messages]
    backwards = [(one.stream, one.version) for one in read.iter_places(env, told.stream)]
    forwards = [(one.stream, one.version) for one in read.iter_places_after(env, told.stream)]
    assert (forwards, backwards) == (places, places[::-1]), told.stream
    found = read.read_messages(env, told.stream)
    assert [(one.stream, one.version) for one in found] == places
    assert [one.pinned for one in found] == [place in pinned for place in places], told.stream
    for one, message in zip(told.messages, found, strict=True):
        assert tuple(call.id for call in message.tool_calls) == tuple(id for id, _ in one.calls)
        assert tuple(result.tool_call_id for result in message.tool_results) == one.answers
    query = RowQuery(table="messages", stream=told.stream, column="pinned", value=1, limit=10_000)
    rows = env.journal.select(env.tenant, query)
    assert [row["version"] for _, row in rows] == sorted(version for stream, version in pinned if stream == told.stream)

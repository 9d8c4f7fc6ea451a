"""Random but valid histories of sessions, as drafts over several streams, and a check of the journal against them.

The generator writes only the drafts that a client could write, and keeps the expected state of each thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from holdfast.flow.journal.append import StreamWrite
from holdfast.flow.sessions import read, summaries
from holdfast.ports import Env, Ids
from holdfast.records.batches import RowQuery
from holdfast.records.events import sessions as events
from holdfast.records.events.calls import ContextPacked, OmittedPiece, PackedPiece
from holdfast.records.events.envelope import Content, Draft, Facts
from holdfast.records.events.journal import LeaseReleased, LeaseTaken, ReasonContent
from holdfast.records.ids import ulid_text
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.records.sessions import ThreadState
from holdfast.records.usage import Usage
from holdfast.testing.generate_frames import WORDS
from holdfast.testing.thread_model import ExpectedMessage, ExpectedSummary, ExpectedThread

MAX_THREADS = 6
MAX_ATTEMPTS = 4
"""The number of failed handovers to memory after which it gives up."""
TOKENIZERS = ("o200k_base", "cl100k_base")


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
        self.handovers: dict[str, int] = {}
        """The failed attempts of each handover that memory has not accepted yet."""

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
                self.status = "open"
                self._write_settings("session.opened")
                self._open_thread(MAIN_THREAD)
            else:
                thread = self._random.choice(list(self.threads.values()))
                self._random.choice(self._possible_moves(thread))()
        return [
            StreamWrite(stream=stream, events=tuple(drafts), epoch=epoch if stream == self.stream else 0)
            for stream, drafts in self._telling.written.items()
        ]

    def _possible_moves(self, thread: ExpectedThread) -> list[Callable[[], None]]:
        def act(move: Callable[[DraftRecorder, ExpectedThread], None]) -> Callable[[], None]:
            return partial(self._reopen_and_act, move, thread)

        offers: list[Callable[[], None]] = [self._offer_handover] * 3 if self.handovers else []
        if thread.ended and not thread.fresh:
            # A session closed for good reopens only after a reset.
            return offers or [partial(self._end_session, "reset")]
        found = [act(append_text)] * 6 + [act(append_calls)] * 4
        add = partial(self._open_thread, f"t{len(self.threads)}")
        if thread.ended:
            return found + [add] * (len(self.threads) < MAX_THREADS) + offers * 3
        if thread.calls:
            found += [act(append_results)] * 8
        if thread.own_messages:
            found += [act(pin_message), act(record_counts), act(record_counts), act(record_pack)]
        if thread.messages:
            found += [act(rewind_thread), act(append_summary)] * 2
        if len(self.threads) < MAX_THREADS:
            found += [partial(self._fork_thread, thread)] * 2 if len(thread.messages) > 3 else [add]
        if self._telling.roll(self._endings):
            ends = [partial(self._end_session, cause) for cause in ("reset", "close")]
            found += [partial(self._write_settings, "session.changed"), *ends] * 2
        return found + offers

    def _reopen_and_act(self, move: Callable[[DraftRecorder, ExpectedThread], None], thread: ExpectedThread) -> None:
        if thread.ended and self.status != "open":
            self.status = "open"
            self.generation += 1
            self._telling.write(self.stream, "session.opened", events.SessionOpened(generation=self.generation))
        if thread.ended:
            self._telling.write(thread.stream, "thread.opened", events.ThreadOpened(generation=self.generation))
            thread.ended = thread.fresh = False
        move(self._telling, thread)

    # begin

    def _write_settings(self, type: str) -> None:
        texts: dict[str, Any] = {
            name: {"n": 1} if name == "metadata" else self._telling.random_text()
            for name in events.SESSION_TEXTS
            if self._telling.roll(0.5)
        }
        facts = events.SessionOpened(
            model=self._random.choice((None, "gpt-5-mini")),
            tokenizer=self._random.choice((None, *TOKENIZERS)),
            idle_timeout_ms=self._random.choice((None, 60_000)),
            memory=self._random.choice((None, "recall")),
            texts=tuple(texts),
        )
        self._telling.write(self.stream, type, facts, events.SessionContent(**texts) if texts else None)

    def _open_thread(self, name: str) -> None:
        thread = ExpectedThread(stream=Scope.thread(self._session, name).text)
        self._add_thread(name, thread, "thread.opened", events.ThreadOpened())

    def _fork_thread(self, parent: ExpectedThread) -> None:
        name, newest = f"t{len(self.threads)}", len(parent.messages)
        keep = self._random.choice((newest, self._random.randint(0, newest)))
        stream = Scope.thread(self._session, name).text
        thread, facts = parent.fork(stream, keep, self._telling.versions[parent.stream], self.generation)
        self._add_thread(name, thread, "thread.forked", facts)

    def _add_thread(self, name: str, thread: ExpectedThread, type: str, facts: Facts) -> None:
        """Begin a thread in the session's generation, and end it if that generation has ended."""
        self.threads[name] = thread
        self._telling.write(self.stream, "thread.added", events.ThreadAdded(thread=name))
        self._telling.write(thread.stream, type, facts)
        if self.generation:
            self._telling.write(thread.stream, "thread.opened", events.ThreadOpened(generation=self.generation))
        if self.status != "open":
            self._end_thread(thread, reset=True)

    def _end_thread(self, thread: ExpectedThread, *, reset: bool) -> None:
        ended = events.ThreadEnded(reset=reset, dropped=tuple(thread.calls))
        thread.end(self._telling.write(thread.stream, "thread.ended", ended), reset=reset)

    # end

    def _end_session(self, cause: str) -> None:
        reset = cause == "reset"
        threads = self.threads if self.status == "open" else {}
        spans = {name: (thread.floor, thread.newest) for name, thread in threads.items() if thread.newest}
        handover = self._telling.new_ulid() if spans and self._telling.roll(0.7) else None
        facts = events.SessionClosing(
            cause=cause, generation=self.generation, reset=reset, handover=handover, spans=spans
        )
        self._telling.write(self.stream, "session.closing", facts)
        self.status, self._resets = "closing", reset
        if handover is not None:
            self.handovers[handover] = 0
        elif not self.handovers:
            self._finish_closing()
        for thread in self.threads.values():
            self._end_thread(thread, reset=reset)

    def _finish_closing(self) -> None:
        self.status = "ended" if self._resets else "closed"
        facts = events.SessionClosedFacts(reset=self._resets, generation=self.generation)
        self._telling.write(self.stream, "session.closed", facts)

    def _offer_handover(self) -> None:
        id = self._random.choice(list(self.handovers))
        attempts = self.handovers[id] = self.handovers[id] + 1
        taken = self._telling.roll(0.35)
        given_up = not taken and attempts == MAX_ATTEMPTS
        self._epoch += 1
        self._telling.write(self.stream, "lease.taken", LeaseTaken(epoch=self._epoch, owner="w1"))
        facts = events.SessionOffered(handover=id, taken=taken, attempts=attempts, given_up=given_up)
        reason = None if taken else ReasonContent(reason=self._telling.random_text())
        self._telling.write(self.stream, "session.offered", facts, reason)
        if taken or given_up:
            del self.handovers[id]
            if not self.handovers and self.status == "closing":
                self._finish_closing()
        if self._telling.roll(0.8):
            self._telling.write(self.stream, "lease.released", LeaseReleased(epoch=self._epoch, owner="w1"))


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
    content = events.MessageContent(text=telling.random_text())
    if role == "user" and telling.roll(0.2):
        content = events.MessageContent(parts=[{"type": "text", "text": telling.random_text()}], name="ann")
    _append_message(telling, thread, role, content, partial=role == "assistant" and telling.roll(0.2))


def append_calls(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Append a message with one to three calls. Like providers, it reuses provider ids."""
    count = telling.random.randint(1, 3)
    calls = tuple((telling.new_ulid(), telling.random.choice((None, "call_1", "call_2"))) for _ in range(count))
    entries = [{"name": "search", "arguments": '{"q":"x"}'} for _ in calls]
    content = events.MessageContent(text=telling.random_text(), tool_calls=entries)
    _append_message(telling, thread, "assistant", content, calls=calls)


def append_results(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Append results of one or more calls of one message, at once or late, in any order."""
    waiting = list(thread.calls.values())
    chosen = [telling.random.choice(waiting)]
    round = thread.round_start(chosen[0].id)
    beside = [one for one in waiting if thread.round_start(one.id) == round and one != chosen[0]]
    chosen += telling.random.sample(beside, telling.random.randint(0, len(beside)))
    entries = [{"result": telling.random_text()} for _ in chosen]
    answers = tuple(one.id for one in chosen)
    failed = tuple(id for id in answers if telling.roll(0.2))
    content = events.MessageContent(tool_results=entries)
    _append_message(telling, thread, "tool", content, answers=answers, failed=failed)


def _append_message(
    telling: DraftRecorder,
    thread: ExpectedThread,
    role: str,
    content: events.MessageContent,
    *,
    calls: tuple[tuple[str, str | None], ...] = (),
    answers: tuple[str, ...] = (),
    failed: tuple[str, ...] = (),
    partial: bool = False,
) -> None:
    known, pinned = telling.roll(0.9), telling.roll(0.1)
    # A call made in another stream has no version in this one: its result begins a round.
    first = thread.calls[answers[0]].version if answers else 0
    facts = events.MessageAppended(
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
        usage=_random_usage(telling.random) if role == "assistant" else None,
    )
    version = telling.write(thread.stream, "message.appended", facts, content)
    if pinned:
        telling.pinned.add((thread.stream, version))
    round = (thread.stream, first if first > 0 else version)
    thread.append(ExpectedMessage(stream=thread.stream, version=version, round=round, calls=calls, answers=answers))


def _random_usage(random: Random) -> Usage:
    return Usage(
        input=random.randint(1, 900),
        cached_input=random.choice((0, 100)),
        cache_write=random.choice((0, 20)),
        output=random.randint(0, 300),
        reasoning=random.choice((0, 7)),
        cost=random.choice((None, 12_345)),
        model="gpt-5-mini",
    )


def rewind_thread(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Retract the newest messages, or all."""
    count = len(thread.messages)
    keep = max(0, count - telling.random.choice((1, 2, 3, telling.random.randint(1, count))))
    facts = thread.rewind(keep, telling.versions[thread.stream])
    telling.write(thread.stream, "message.retracted", facts, ReasonContent(reason=telling.random_text()))


def pin_message(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Pin or unpin a message."""
    place, pinned = telling.random.choice(thread.own_messages).place, telling.roll(0.7)
    telling.write(thread.stream, "message.pinned", events.MessagePinned(version=place[1], pinned=pinned))
    (telling.pinned.add if pinned else telling.pinned.discard)(place)


def record_counts(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Record token counts of some messages, perhaps again."""
    own = thread.own_messages
    versions = tuple(one.version for one in telling.random.sample(own, min(3, len(own))))
    counts = tuple(telling.random.randint(3, 60) for _ in versions)
    facts = events.TokensCounted(tokenizer=telling.random.choice(TOKENIZERS), versions=versions, counts=counts)
    telling.write(thread.stream, "tokens.counted", facts)


def append_summary(telling: DraftRecorder, thread: ExpectedThread) -> None:
    """Summarise what has no summary yet, or everything in place of earlier summaries; else append a message."""
    covered = max((one.last for one in thread.summaries_in_force()), default=0)
    ends = [end for end in thread.round_ends() if end > covered]
    if not ends:
        append_text(telling, thread)
        return
    whole, last = telling.roll(0.4), telling.random.choice(ends)
    first = 0 if whole else covered
    stretches = thread.to_stretches(first, last)
    own = stretches.pop() if stretches[-1].stream == thread.stream else events.MessageSpan(thread.stream, 0, 0)
    facts = events.SummaryMade(
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
    version = telling.write(thread.stream, "summary.made", facts, events.SummaryContent(text=telling.random_text()))
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
    assert {id: one.attempts for id, one in session.handovers.items()} == story.handovers
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

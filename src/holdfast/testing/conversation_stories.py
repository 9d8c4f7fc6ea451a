"""Stories of sessions: random but valid lives of conversations, as drafts over several streams.

A story writes only what the rules allow, and knows what it said: whatever reads the journal must find the
same messages standing, the same calls waiting and the same summaries.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from holdfast.flow.change import Decided
from holdfast.ports import Ids
from holdfast.records.events import conversations as said
from holdfast.records.events.journal import LeaseReleased, LeaseTaken, ReasonContent
from holdfast.records.scope import MAIN_THREAD, Scope
from holdfast.testing import conversation_moves as moves
from holdfast.testing.conversation_lines import ToldLine
from holdfast.testing.conversation_moves import TOKENIZERS, Telling

MAX_LINES = 6
ATTEMPTS = 4
"""How often memory may fail before it is asked no more."""

_Move = Callable[[ToldLine], None]


class _Handover(msgspec.Struct):
    """A conversation that ended and that memory has not taken yet."""

    attempts: int = 0


class ConversationStory:
    """One session's worth of conversation. `subjects` are whose content it is, at random.

    Nobody else may write to its streams: it counts their versions itself. With more `endings` it is closed and
    begun anew more often.
    """

    def __init__(
        self, random: Random, ids: Ids, session: str = "s1", subjects: tuple[str, ...] = (), *, endings: float = 0.1
    ) -> None:
        self._random = random
        self._telling = Telling(random, ids, subjects)
        self._session = session
        self._endings = endings
        self.stream = Scope.session(session).text
        self.status = "new"
        self.lines: dict[str, ToldLine] = {}
        self.generation = 0
        self._epoch = 0
        self._resets = False
        self.handovers: dict[str, _Handover] = {}

    @property
    def streams(self) -> list[str]:
        """Every stream that it writes to."""
        return [self.stream, *(line.stream for line in self.lines.values())]

    @property
    def pinned(self) -> set[tuple[str, int]]:
        """Stream and version of every message that is pinned, also of those that were taken back."""
        return self._telling.pinned

    def step(self, times: int = 1) -> list[Decided]:
        """The next thing, or things, that happen, as the parts of one commit."""
        self._telling.written = {}
        epoch = self._epoch
        for _ in range(times):
            if self.status == "new":
                self._open()
            else:
                line = self._random.choice(list(self.lines.values()))
                self._random.choice(self._moves(line))(line)
        return [
            Decided(stream=stream, events=tuple(drafts), epoch=epoch if stream == self.stream else 0)
            for stream, drafts in self._telling.written.items()
        ]

    def _moves(self, line: ToldLine) -> list[_Move]:
        offers: list[_Move] = [self._offer] * 3 if self.handovers else []
        if line.ended and not line.fresh:
            # What was closed for good only begins anew after a reset.
            return offers or [self._reset]
        found: list[_Move] = [self._then(moves.say)] * 6 + [self._then(moves.call)] * 4
        if line.ended:
            return found + [self._add] * (len(self.lines) < MAX_LINES) + offers * 3
        if line.calls:
            found += [self._then(moves.answer)] * 8
        if line.mine:
            found += [self._then(moves.pin), self._then(moves.count), self._then(moves.count), self._then(moves.pack)]
        if line.said:
            found += [self._then(moves.rewind), self._then(moves.summarise)] * 2
        if len(self.lines) < MAX_LINES:
            found += [self._fork] * 2 if len(line.said) > 3 else [self._add]
        if self._telling.happens(self._endings):
            found += [self._change, self._reset, self._close] * 2
        return found + offers

    def _then(self, move: Callable[[Telling, ToldLine], None]) -> _Move:
        def made(line: ToldLine) -> None:
            if line.ended:
                self._begin_anew(line)
            move(self._telling, line)

        return made

    # beginning

    def _open(self) -> None:
        self.status = "open"
        self._settings("session.opened")
        self._thread(MAIN_THREAD)

    def _settings(self, type: str) -> None:
        texts: dict[str, Any] = {
            name: {"n": 1} if name == "metadata" else self._telling.text()
            for name in said.SESSION_TEXTS
            if self._telling.happens(0.5)
        }
        facts = said.SessionOpened(
            model=self._random.choice((None, "gpt-5-mini")),
            tokenizer=self._random.choice((None, *TOKENIZERS)),
            idle_timeout_ms=self._random.choice((None, 60_000)),
            memory=self._random.choice((None, "recall")),
            texts=tuple(texts),
        )
        self._telling.write(self.stream, type, facts, said.SessionContent(**texts) if texts else None)

    def _change(self, line: ToldLine) -> None:
        self._settings("session.changed")

    def _add(self, line: ToldLine) -> None:
        self._thread(f"t{len(self.lines)}")

    def _thread(self, name: str) -> None:
        line = self.lines[name] = ToldLine(stream=Scope.thread(self._session, name).text)
        self._telling.write(self.stream, "thread.added", said.ThreadAdded(thread=name))
        self._telling.write(line.stream, "thread.opened", said.ThreadOpened())
        self._begin(line)

    def _fork(self, parent: ToldLine) -> None:
        name, newest = f"t{len(self.lines)}", len(parent.said)
        keep = self._random.choice((newest, self._random.randint(0, newest)))
        stream = Scope.thread(self._session, name).text
        line, facts = parent.fork(stream, keep, self._telling.versions[parent.stream], self.generation)
        self.lines[name] = line
        self._telling.write(self.stream, "thread.added", said.ThreadAdded(thread=name))
        self._telling.write(stream, "thread.forked", facts)
        self._begin(line)

    def _begin(self, line: ToldLine) -> None:
        """A line begins in the generation that its session is in, and waits if that has ended."""
        if self.generation:
            self._telling.write(line.stream, "thread.opened", said.ThreadOpened(generation=self.generation))
        if self.status != "open":
            ended = said.ThreadEnded(reset=True, dropped=tuple(line.calls))
            line.end(self._telling.write(line.stream, "thread.ended", ended), reset=True)

    def _begin_anew(self, line: ToldLine) -> None:
        if self.status != "open":
            self.status = "open"
            self.generation += 1
            self._telling.write(self.stream, "session.opened", said.SessionOpened(generation=self.generation))
        self._telling.write(line.stream, "thread.opened", said.ThreadOpened(generation=self.generation))
        line.ended = line.fresh = False

    # ending

    def _close(self, line: ToldLine) -> None:
        self._end("close", reset=False)

    def _reset(self, line: ToldLine) -> None:
        self._end("reset", reset=True)

    def _end(self, cause: str, *, reset: bool) -> None:
        again = self.status != "open"
        spans = {name: (line.floor, line.newest) for name, line in self.lines.items() if line.newest and not again}
        handover = self._telling.ulid() if spans and self._telling.happens(0.7) else None
        facts = said.SessionClosing(
            cause=cause, generation=self.generation, reset=reset, handover=handover, spans=spans
        )
        self._telling.write(self.stream, "session.closing", facts)
        self.status, self._resets = "closing", reset
        if handover is not None:
            self.handovers[handover] = _Handover()
        elif not self.handovers:
            self._closed()
        for line in self.lines.values():
            ended = said.ThreadEnded(reset=reset, dropped=tuple(line.calls))
            line.end(self._telling.write(line.stream, "thread.ended", ended), reset=reset)

    def _closed(self) -> None:
        self.status = "ended" if self._resets else "closed"
        facts = said.SessionClosed(reset=self._resets, generation=self.generation)
        self._telling.write(self.stream, "session.closed", facts)

    def _offer(self, line: ToldLine) -> None:
        id = self._random.choice(list(self.handovers))
        one = self.handovers[id]
        one.attempts += 1
        taken = self._telling.happens(0.35)
        given_up = not taken and one.attempts == ATTEMPTS
        self._epoch += 1
        self._telling.write(self.stream, "lease.taken", LeaseTaken(epoch=self._epoch, owner="w1"))
        facts = said.SessionOffered(handover=id, taken=taken, attempts=one.attempts, given_up=given_up)
        reason = None if taken else ReasonContent(reason=self._telling.text())
        self._telling.write(self.stream, "session.offered", facts, reason)
        if taken or given_up:
            del self.handovers[id]
            if not self.handovers and self.status == "closing":
                self._closed()
        if self._telling.happens(0.8):
            self._telling.write(self.stream, "lease.released", LeaseReleased(epoch=self._epoch, owner="w1"))

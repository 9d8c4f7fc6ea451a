"""The expected state of a thread, kept as a plain list of messages.

Its messages, open calls and summaries are compared with those that a journal reads back through rows, retractions
and forks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from holdfast.records.events.sessions import CallRef, MessageRetracted, MessageSpan, SharedSegment, ThreadForked

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
        known = (*self.own_summaries[::-1], *self.inherited)
        kept = (one for one in known if one.last <= keep and one.stream in streams)
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

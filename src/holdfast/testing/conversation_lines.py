"""What a story remembers of one line: which messages stand, which calls wait, which summaries hold.

Kept as a plain list of what was said, so that it can be compared with what a journal reads back through
rows, retractions and branches.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

import msgspec

from holdfast.records.events.conversations import CallRef, MessageRetracted, Segment, Stretch, ThreadForked

NOW = 2**62


class Said(msgspec.Struct, frozen=True, kw_only=True):
    """A message of a line, and the message that its round begins with."""

    stream: str
    version: int
    round: tuple[str, int]
    calls: tuple[tuple[str, str | None], ...] = ()
    answers: tuple[str, ...] = ()

    @property
    def place(self) -> tuple[str, int]:
        """Where it is."""
        return self.stream, self.version


class Covering(msgspec.Struct, frozen=True, kw_only=True):
    """A summary and what it stands for: the messages `first` up to `last`, counted from 0, without `last`."""

    stream: str
    version: int
    first: int
    last: int


class ToldLine(msgspec.Struct, kw_only=True):
    """One line. `inherited` are summaries of the lines that it was forked from, nearest and newest first."""

    stream: str
    said: list[Said] = []
    calls: dict[str, CallRef] = {}
    """Those that wait for a result."""
    shared: tuple[Segment, ...] = ()
    floor: int = 0
    packed: int = 0
    """The newest pack."""
    ended: bool = False
    fresh: bool = False
    own: list[Covering] = []
    inherited: tuple[Covering, ...] = ()

    @property
    def mine(self) -> list[Said]:
        """The messages that live in its own stream."""
        return [one for one in self.said if one.stream == self.stream]

    @property
    def newest(self) -> int:
        """The version of the newest message if that is its own, else 0."""
        return self.said[-1].version if self.said and self.said[-1].stream == self.stream else 0

    def say(self, one: Said) -> None:
        """One more message."""
        self.said.append(one)
        self.calls = {id: call for id, call in self.calls.items() if id not in one.answers}
        self.calls.update({id: CallRef(id, one.version, provider) for id, provider in one.calls})

    def round_of(self, call: str) -> tuple[str, int]:
        """Where the round of a call begins."""
        return next(one.round for one in self.said if any(call == id for id, _ in one.calls))

    def open_at(self, keep: int, stream: str) -> dict[str, CallRef]:
        """Calls without a result among the first `keep` messages, as a line in `stream` that goes on there has them.

        What was said in other streams has no place in that one: those messages are counted back from -1.
        """
        found: dict[str, tuple[tuple[str, int], str | None]] = {}
        for one in self.said[:keep]:
            found.update({id: (one.place, provider) for id, provider in one.calls})
            for id in one.answers:
                found.pop(id, None)
        shared = list(dict.fromkeys(place for place, _ in found.values() if place[0] != stream))
        numbers = {place: index - len(shared) for index, place in enumerate(shared)}
        return {id: CallRef(id, numbers.get(place, place[1]), provider) for id, (place, provider) in found.items()}

    # branches

    def cut(self, found: Sequence[Segment], keep: int) -> tuple[Segment, ...]:
        """What is left of some stretches, nearest first, after the first `keep` messages."""
        if not keep:
            return ()
        place = self.said[keep - 1]
        index = next(number for number, segment in enumerate(found) if segment.stream == place.stream)
        last = found[index]
        return (Segment(last.stream, last.after, place.version, last.at), *found[index + 1 :])

    def fork(self, stream: str, keep: int, version: int, generation: int) -> tuple[ToldLine, ThreadForked]:
        """A line that goes on after the first `keep` messages of this one, which is at `version`."""
        shared = self.cut((Segment(self.stream, self.floor, NOW, version), *self.shared), keep)
        streams = {segment.stream for segment in shared}
        kept = (one for one in (*self.own[::-1], *self.inherited) if one.last <= keep and one.stream in streams)
        calls = self.open_at(keep, stream)
        line = ToldLine(stream=stream, said=self.said[:keep], calls=calls, shared=shared, inherited=tuple(kept))
        forked = ThreadForked(
            parent=self.stream,
            version=self.said[keep - 1].version if keep else 0,
            shared=shared,
            position=keep,
            generation=generation,
            opened=tuple(calls.values()),
        )
        return line, forked

    # taking back

    def rewind(self, keep: int, version: int) -> MessageRetracted:
        """Only the first `keep` messages stand from now on; the line was at `version` until now."""
        gone = [one.version for one in self.said[keep:] if one.stream == self.stream]
        here = keep > 0 and self.said[keep - 1].stream == self.stream
        newest = self.said[keep - 1].version if here else 0
        shared = self.shared if here else self.cut(self.shared, keep)
        left = self.open_at(keep, self.stream)
        facts = MessageRetracted(
            first=gone[0] if gone else version,
            last=version,
            spans=tuple(_spans(gone)),
            position=keep,
            shared=None if shared == self.shared else shared,
            newest=newest,
            voided=tuple(self._void(keep, {segment.stream for segment in shared})),
            dropped=tuple(id for id in self.calls if id not in left),
            opened=tuple(left.values()),
        )
        self.said, self.shared, self.calls = self.said[:keep], shared, left
        return facts

    def _void(self, keep: int, streams: set[str]) -> list[int]:
        """Summaries of its own that go: they stand for what goes, or behind one that does."""
        self.inherited = tuple(one for one in self.inherited if one.last <= keep and one.stream in streams)
        before, self.own = self.own, [one for one in self.own if one.last <= keep]
        reach = 0
        for one in self.standing():
            if one.first > reach:
                self.own = [known for known in self.own if known != one]
            else:
                reach = one.last
        return [one.version for one in before if one not in self.own]

    def end(self, version: int, *, reset: bool) -> None:
        """It takes no more messages; after a reset the next one has nothing before it."""
        self.ended, self.fresh, self.calls = True, reset, {}
        if reset:
            self.said, self.shared, self.floor = [], (), version
            self.own, self.inherited = [], ()

    # summaries

    def standing(self) -> list[Covering]:
        """The summaries that stand for parts of it, oldest first; none for what another stands for."""
        found: list[Covering] = []
        for one in (*self.own[::-1], *self.inherited):
            if not any(one.first < known.last and known.first < one.last for known in found):
                found.append(one)
        return found[::-1]

    def covered(self) -> int:
        """How many messages from its beginning have summaries."""
        return max((one.last for one in self.standing()), default=0)

    def ends_of_rounds(self) -> list[int]:
        """How many messages a summary may cover: whole rounds, none of which waits for a result."""
        last = {one.round: index for index, one in enumerate(self.said)}
        waiting = {self.round_of(id) for id in self.calls}
        found, reach = [], 0
        for index, one in enumerate(self.said):
            if one.round in waiting:
                break
            reach = max(reach, last[one.round])
            if reach == index:
                found.append(index + 1)
        return found

    def stretches(self, first: int, last: int) -> list[Stretch]:
        """Some of its messages as stretches of streams, oldest first."""
        groups = [(name, list(group)) for name, group in groupby(self.said[first:last], key=lambda one: one.stream)]
        return [Stretch(name, group[0].version, group[-1].version) for name, group in groups]


def _spans(versions: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Versions as stretches, each from its first to its last."""
    for _, run in groupby(enumerate(versions), key=lambda pair: pair[1] - pair[0]):
        found = [version for _, version in run]
        yield found[0], found[-1]

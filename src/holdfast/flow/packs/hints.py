"""Find what earlier packs of a conversation left for this one, and leave it for the next.

Hints hold for the tail that they were made from and for those that continue it: the same reading of the journal, the
same messages, and more behind them. A rewind, an edit, a pin, a compaction, a reset or an erasure makes packs read the
tail again, and what they left before is dropped. All hints of a client together hold a limited number of messages, and
a short conversation leaves none: it is laid out as quickly as hints are checked.
"""

from __future__ import annotations

from holdfast.core.packs.rounds import ThreadRounds
from holdfast.core.packs.runs import PackHints, ThreadHint
from holdfast.core.sessions.rounds import ConversationRounds, WindowBounds
from holdfast.flow.packs.recent import ThreadTail
from holdfast.ports import Env

MIN_ROUNDS = 64
"""The least rounds of a conversation that leaves hints."""


class TailHints:
    """The hints that hold for one tail, and what its pack leaves."""

    def __init__(self, tail: ThreadTail, place: tuple[str, str, str], known: PackHints | None) -> None:
        """Check what earlier packs left."""
        self._tail, self._place = tail, place
        earlier = None if known is None else known.thread
        self._earlier = earlier if earlier is not None and continues(tail, earlier) else None
        same = known if self._earlier is not None else None
        self.kept = PackHints(same)
        self.runs = {} if same is None else same.runs
        self.follows = tail.map_successors(0 if self._earlier is None else self._earlier.settled)

    def lay_out(self, bounds: WindowBounds, thread: str, abbreviate: int) -> ThreadRounds:
        """Return the rounds of the tail: those that an earlier pack found, and the new ones."""
        tail, settled, talk = self._tail, self._earlier, None
        if settled is not None:
            talk = settled.rounds.talk.replace_newest(tail.messages[settled.settled :], bounds)
        if talk is None:
            settled, self.runs = None, {}
            talk = ConversationRounds(tail.messages, bounds, tail.leading)
        return ThreadRounds(
            talk,
            thread,
            abbreviate,
            tail.question_places,
            tail.contiguous_start(),
            tail.measured_rounds(),
            None if settled is None else settled.rounds,
        )

    def keep(self, env: Env, rounds: ThreadRounds) -> None:
        """Leave the rounds and their run for the next pack."""
        if env.hints is None or rounds.number < MIN_ROUNDS:
            return
        if env.recent is None or env.recent.get(self._place) is not self._tail:
            return  # The next pack reads the tail again.
        messages = self._tail.messages
        settled = len(messages) - 1
        while settled and messages[settled].role == "tool":
            settled -= 1
        newest = rounds.messages[-1][0]
        if (messages[settled].stream, messages[settled].version) != (newest.stream, newest.version):
            return  # The newest round was repaired, and does not begin where its messages do.
        self.kept.thread = ThreadHint(self._tail.origin, self._tail.places, messages, settled, rounds)
        run = self.kept.run
        self.kept.runs = {**self.runs, run.level: run} if run is not None and run.segments else self.runs
        env.hints.put(self._place, self.kept)


def find_hints(env: Env, thread: str, kept_as: str, tail: ThreadTail) -> TailHints:
    """Find the hints that hold for a tail."""
    place = (env.tenant, thread, kept_as)
    known = None if env.recent is None or env.hints is None else env.hints.get(place)
    return TailHints(tail, place, known)


def continues(tail: ThreadTail, earlier: ThreadHint) -> bool:
    """Return True if a tail has all messages before the newest round of an earlier one, and then its own."""
    settled = earlier.settled
    return (
        tail.origin is earlier.origin
        and tail.places[:settled] == earlier.places[:settled]
        and tail.messages[:settled] == earlier.messages[:settled]
    )

"""Sessions in plain Python: lists of what was said, one for each thread, written from the rules and not from the code.

Nothing of `holdfast.core` is used. There are no versions, rows or places here: a fork is a copy of a list, a
rewind a shorter list, a reset an empty one, a summary the messages that it stands for. `No` names the errors with
which something may be refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

NEAR = 64
"""How far back from where a line goes on calls are looked for that wait again."""
FIRST = 4
"""How many messages at the beginning may be instructions that stay."""
INSTRUCTIONS = ("system", "developer")


class No(Exception):
    """Refused, with one of these errors."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.names = frozenset(names)


@dataclass(eq=False)
class Said:
    """A message. The same object is part of every line that shares it; `home` is the thread it was said in."""

    role: str
    text: str
    home: str
    calls: list[tuple[str, str | None]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    pinned: bool = False
    id: str = ""


@dataclass(eq=False)
class Note:
    """A summary, the thread it was made in, and the messages that it stands for."""

    id: str
    home: str
    text: str
    said: tuple[Said, ...]


class Spec:
    """A message that is about to be said: `calls` by providers' ids, `answers` by whatever names a call."""

    def __init__(
        self,
        role: str,
        text: str,
        *,
        calls: Sequence[str | None] = (),
        answers: Sequence[str] = (),
        pinned: bool = False,
    ) -> None:
        self.role, self.text, self.pinned = role, text, pinned
        self.calls, self.answers = tuple(calls), tuple(answers)


class Line:
    """A thread: what it shows, which calls wait, and the summaries that could stand for parts of it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.ended = self.fresh = False
        self.clear()

    def clear(self) -> None:
        self.said: list[Said] = []
        self.waiting: set[str] = set()
        self.chain = [self.name]
        """Its own thread, then those that it has messages of, nearest first."""
        self.notes: list[Note] = []

    def index(self, id: str) -> int:
        """Where a message stands; refuses strangers."""
        for index, said in enumerate(self.said):
            if said.id == id:
                return index
        raise No("MessageNotFound")

    # saying

    def heard(self, specs: Iterable[Spec]) -> list[Said]:
        """What these would be, with whom they answer. Calls have no ids yet and go by their place."""
        said, waiting, new = list(self.said), set(self.waiting), list[Said]()
        for number, spec in enumerate(specs):
            one = Said(spec.role, spec.text, self.name, pinned=spec.pinned)
            for target in spec.answers:
                call = target if target in waiting else _nearest(said, waiting, target)
                if call is None:
                    raise No("ToolPairingError")
                waiting.discard(call)
                one.answers.append(call)
            one.calls = [(f"{number}.{position}", provider) for position, provider in enumerate(spec.calls)]
            waiting.update(id for id, _ in one.calls)
            said.append(one)
            new.append(one)
        return new

    def say(self, new: Sequence[Said]) -> None:
        """They were said, and have their ids."""
        for one in new:
            self.waiting -= set(one.answers)
            self.waiting |= {id for id, _ in one.calls}
        self.said += new

    # going back, and going on elsewhere

    def open_at(self, count: int) -> set[str]:
        """Calls among the first messages that had no result by then; of those far back, only if none came since."""
        kept = self.said[:count]
        open_then = {id for one in kept for id, _ in one.calls} - {id for one in kept for id in one.answers}
        near = {id for one in kept[-NEAR:] for id, _ in one.calls}
        return open_then & (near | self.waiting)

    def cut(self, count: int) -> list[str]:
        """The threads that the first messages are of, without this one."""
        if not count:
            return []
        home = self.said[count - 1].home
        return self.chain[max(self.chain.index(home), 1) :]

    def rewind(self, count: int) -> None:
        """Only the first messages are left. Summaries stand no longer behind the first one that went."""
        self.waiting = self.open_at(count)
        kept = set(self.said[:count])
        chain = [self.name, *self.cut(count)]
        gone = False
        for note in self.standing():
            gone = gone or note.home not in chain or not kept.issuperset(note.said)
            if gone and note.home == self.name:
                self.notes.remove(note)
        self.said, self.chain = self.said[:count], chain
        self.notes = [note for note in self.notes if note.home in chain and kept.issuperset(note.said)]

    def fork(self, name: str, count: int) -> Line:
        """Another line that has the first messages in common."""
        line = Line(name)
        home = self.said[count - 1].home if count else None
        line.chain = [name, *(self.chain[self.chain.index(home) :] if home else [])]
        line.said = self.said[:count]
        line.waiting = self.open_at(count)
        kept = set(line.said)
        line.notes = [note for note in self.notes if note.home in line.chain and kept.issuperset(note.said)]
        return line

    # summaries

    def standing(self) -> list[Note]:
        """Those that are shown, oldest first: the nearest and newest, and none that another one covers."""
        found: list[Note] = []
        order = sorted(enumerate(self.notes), key=lambda pair: (self.chain.index(pair[1].home), -pair[0]))
        for _, note in order:
            if not any(set(note.said) & set(known.said) for known in found):
                found.append(note)
        return found[::-1]

    def covered(self) -> set[Said]:
        return {one for note in self.standing() for one in note.said}

    def first(self) -> list[Said]:
        """Instructions at the very beginning: they are always shown, and never summarised."""
        return list(takewhile(lambda one: one.role in INSTRUCTIONS, self.said[:FIRST]))

    def old(self, keep: int, whole: bool) -> list[Said]:
        """What a summary would stand for: whole rounds, answered, older than the newest `keep`; from the beginning.

        What is covered stays covered: with `whole` all of it, else what summaries cover that are to be made one.
        """
        standing = self.standing()
        fresh = self._older(keep, [] if whole else standing)
        replaced = standing if whole else self._alike(len(fresh), standing)
        told = {one for note in replaced for one in note.said}
        old = [one for one in self.said if one in told or one in set(fresh)]
        nothing = set(old) <= told and len(replaced) < 2
        # What is pinned is shown all the same: a summary of nothing else would only add to it.
        return [] if nothing or all(one.pinned for one in old) else old

    def _alike(self, new: int, standing: Sequence[Note]) -> list[Note]:
        """The newest ones that become one with what is new: seven at a time, of at most twice its length."""
        left, found = list(standing), list[Note]()
        while new and len(left) >= 7 and all(len(note.said) <= 2 * new for note in left[-7:]):
            found += left[-7:]
            new += sum(len(note.said) for note in left[-7:])
            del left[-7:]
        return found

    def _older(self, keep: int, standing: Sequence[Note]) -> list[Said]:
        covered, first = {one for note in standing for one in note.said}, self.first()
        rest = [one for one in self.said if one not in first and one not in covered]
        kept = self.rounds(rest)[-keep:] if keep else []
        for end in range(len(rest), 0, -1):
            old = set(rest[:end])
            calls = {id for one in rest[:end] for id, _ in one.calls}
            answered = {id for one in rest[:end] for id in one.answers}
            if calls <= answered and not any(old & set(round) for round in kept):
                return rest[:end]
        return []

    def rounds(self, said: Sequence[Said]) -> list[list[Said]]:
        """A message, or calls with the messages that first answer one of them, in the order in which they began."""
        found: list[list[Said]] = []
        for one in said:
            made = next((r for r in found if one.answers and one.answers[0] in [id for id, _ in r[0].calls]), None)
            if made is None:
                found.append([one])
            else:
                made.append(one)
        return found


def _nearest(said: Sequence[Said], waiting: set[str], provider: str) -> str | None:
    """The newest message that has such a call open, and there the first."""
    for one in reversed(said):
        for id, given in one.calls:
            if id in waiting and given == provider:
                return id
    return None

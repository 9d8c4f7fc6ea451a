"""The rules of one session in this process, and what is known about the size of its lines.

An append adds what it added. Only when something that was said has changed, or others have written as well, is a
line looked at again: from its end, and no further than to know that it is over.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from holdfast.ambient import renew_in_child
from holdfast.flow.change import state_of
from holdfast.flow.compaction.folding import last_covered, uncovered
from holdfast.ports import Acting, Ports, Summarizer
from holdfast.records.compaction import Rule
from holdfast.records.lines import Line
from holdfast.records.messages import Message

PATIENCE = 8
"""After nothing could be done, a line must grow by a fraction of its size before it is tried again."""

Choose = Callable[[Any], Summarizer]
"""What makes a summarizer of whatever a configuration names, or of nothing."""
Wait = Callable[[Awaitable[Any]], Any]
"""What gives, to a thread that waits, what something that is to be awaited gives."""


class Tally(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a line no summary covers, as of its version."""

    messages: int
    tokens: int | None
    """Not known unless somebody asked; once over what was asked for, at least so many."""
    covered: int
    said: int
    """How many messages the line has in all."""
    edited: int
    floor: int


class Standing:
    """Rules by name in the order in which they came, and the sizes of the lines that they were looked at for."""

    def __init__(self, choose: Choose) -> None:
        self.rules: tuple[Rule, ...] = ()
        self.choose = choose
        self.wait: Wait | None = None
        self._tallies: dict[str, Tally] = {}
        self._quiet: dict[tuple[str, str], Line] = {}
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self.busy = threading.Lock()

    def put(self, rule: Rule) -> None:
        """A rule, in place of one with the same name."""
        self.rules = (*(known for known in self.rules if known.name != rule.name), rule)

    def drop(self, rule: Rule) -> None:
        """Take a rule away."""
        self.rules = tuple(known for known in self.rules if known is not rule)

    def tally(
        self, ports: Ports, acting: Acting, stream: str, new: Sequence[Message] = (), tokens: int | None = None
    ) -> Tally:
        """What a line comes to after some new messages; with its tokens if they are asked for, up to a number."""
        line = state_of(ports, acting, stream).line or Line()
        found = _after(self._tallies.get(stream), line, new)
        if found is None:
            found = Tally(
                messages=0,
                tokens=None,
                covered=last_covered(ports, acting, stream),
                said=line.messages,
                edited=line.edited,
                floor=line.floor,
            )
        if tokens is not None and found.tokens is None:
            counted = uncovered(ports, acting, stream, enough=tokens)[1]
            found = msgspec.structs.replace(found, tokens=counted)
        found = msgspec.structs.replace(found, messages=max(0, line.messages - found.covered))
        self._tallies[stream] = found
        return found

    # what could not be done

    def hush(self, stream: str, rule: str, line: Line) -> None:
        """There was nothing to do for a line as it is."""
        self._quiet[stream, rule] = line

    def is_quiet(self, stream: str, rule: str, line: Line) -> bool:
        """Whether trying again would come to nothing: not before it has grown, was edited, or a call was answered."""
        before = self._quiet.get((stream, rule))
        if before is None or before.edited != line.edited or len(line.calls) < len(before.calls):
            return False
        return line.messages < before.messages + max(PATIENCE // 2, before.messages // PATIENCE)


def _after(known: Tally | None, line: Line, new: Sequence[Message]) -> Tally | None:
    """What was known, with what is new; None if something that was said has changed since."""
    if known is None or (known.edited, known.floor) != (line.edited, line.floor):
        return None
    tokens = known.tokens
    if known.said + len(new) != line.messages:
        tokens = None if known.said != line.messages else tokens  # Others have written as well.
    elif tokens is not None:
        tokens += sum(message.tokens or 0 for message in new)
    return msgspec.structs.replace(known, tokens=tokens, said=line.messages)

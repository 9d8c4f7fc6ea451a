"""Older messages in words, as many as fit: by policy or by priority they are shortened, and then left out.

What is pinned is not told again: it stays in every pack as it was said. How much is left out is said first.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from holdfast.core.compaction.strategies import marker, priority_of
from holdfast.core.compaction.transcript import transcript
from holdfast.core.matching import matched
from holdfast.core.shortening import cut
from holdfast.records.frames import PRIORITY_SCORE
from holdfast.records.messages import Message
from holdfast.records.packs import CompactionLevel

GAP: Final = "…"
SHORT: Final = 160
"""Characters of a message that was shortened."""
_FORMS: Final = ("whole", "short", "gone")

Count = Callable[[str], int]


class Worded(msgspec.Struct, frozen=True, kw_only=True):
    """What older messages came to: all of them in words (light), or without some (aggressive)."""

    text: str
    level: CompactionLevel


class Piece(msgspec.Struct, frozen=True, kw_only=True):
    """One message in words."""

    index: int
    score: int
    policy: str
    done: bool
    whole: str
    short: str


def by_policy(messages: Sequence[Message], most: int, count: Count) -> Worded:
    """Done and to be discarded goes first; what is to be compressed is shortened, then goes; then the rest."""
    given = _pieces(messages)
    compressed = [one for one in given if one.policy == "compress_first"]
    discarded = [one for one in given if one.policy == "discard_when_done" and one.done]
    steps = [(discarded, "gone"), (compressed, "short"), (compressed, "gone"), (given, "short"), (given, "gone")]
    return _written(messages, given, _forms(given, steps, most - _unsaid(messages, count), count))


def by_priority(messages: Sequence[Message], most: int, count: Count) -> Worded:
    """Lowest priority first, of equals the oldest; nothing is shortened."""
    given = _pieces(messages)
    lowest_first = sorted(given, key=lambda one: (one.score, one.index))
    steps = [(lowest_first, "gone")]
    return _written(messages, given, _forms(given, steps, most - _unsaid(messages, count), count))


def of_kept(messages: Sequence[Message], kept: Collection[int]) -> Worded:
    """Those that somebody chose to keep, whole."""
    given = _pieces(messages)
    return _written(messages, given, {one.index: "whole" if one.index in kept else "gone" for one in given})


def _pieces(messages: Sequence[Message]) -> list[Piece]:
    """What each message says, without what is pinned, and without what says nothing or was erased."""
    ended = _ended(messages)
    found = []
    for index, message in enumerate(messages):
        whole = "" if message.pinned else transcript([message])
        if whole:
            policy = message.policy or "normal"
            short = cut(" ".join(whole.split()), SHORT)[0]
            found.append(
                Piece(
                    index=index,
                    score=PRIORITY_SCORE[priority_of(policy)],
                    policy=policy,
                    done=index in ended,
                    whole=whole,
                    short=min(short, whole, key=len),
                )
            )
    return found


def _unsaid(messages: Sequence[Message], count: Count) -> int:
    """What it takes to say that something is missing, where that is known beforehand."""
    return count(marker(99_999)) + 1 if any(message.erased for message in messages) else 0


def _ended(messages: Sequence[Message]) -> set[int]:
    """Messages that came from something that is over: a call that has its result, a turn that another one followed."""
    answers = matched(messages).answers
    newest = max((at for at, message in enumerate(messages) if message.role == "user"), default=-1)
    found = set()
    for at, message in enumerate(messages):
        calls = range(len(message.tool_calls))
        over = message.role == "tool" or at < newest
        if all((at, nth) in answers for nth in calls) if calls else over:
            found.add(at)
    return found


def _forms(given: Sequence[Piece], steps: Sequence[tuple[list[Piece], str]], most: int, count: Count) -> dict[int, str]:
    """In which form each is told, so that all of it is within the limit."""
    form = dict.fromkeys((one.index for one in given), "whole")
    places = list(form)
    nearby = {index: (*places[max(at - 1, 0) : at], *places[at + 1 : at + 2]) for at, index in enumerate(places)}
    # One more for the line break: counts of parts are a little less than the count of the whole.
    sizes = {(one.index, name): count(getattr(one, name)) + 1 for one in given for name in ("whole", "short")}
    gap, note = count(GAP) + 1, count(marker(99_999)) + 1
    total = sum(sizes[index, "whole"] for index in places)
    for chosen, wanted in steps:
        for one in chosen:
            before = form[one.index]
            if total <= most or _FORMS.index(wanted) <= _FORMS.index(before):
                continue
            if wanted == "gone":
                # Neighbours that went share a gap: one is added, or two become one.
                total += gap * (1 - sum(form[beside] == "gone" for beside in nearby[one.index])) + note
                note = 0
            else:
                total += sizes[one.index, wanted]
            total -= sizes[one.index, before]
            form[one.index] = wanted
    return form


def _written(messages: Sequence[Message], given: Sequence[Piece], form: dict[int, str]) -> Worded:
    """What is told, in order; before it how much is not, and gaps where that was."""
    lines: list[str] = []
    left_out = sum(1 for message in messages if message.erased and not message.pinned)
    for one in given:
        if form[one.index] != "gone":
            lines.append(getattr(one, form[one.index]))
            continue
        left_out += 1
        lines += [GAP] if lines and lines[-1] != GAP else []
    head = [marker(left_out or len(messages))] if left_out or not lines else []
    level = CompactionLevel.AGGRESSIVE if left_out else CompactionLevel.LIGHT
    return Worded(text="\n".join([*head, *lines]), level=level)

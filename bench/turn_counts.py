"""One turn in a conversation of 100 messages and of 10 000: the same work, in counts, and how often it commits.

A turn without tools commits three times: what the user said with its frame, the pack with the call of the model, the
reply with the end. Two tools beside each other add five: both intents at once, each outcome, and pack and reply of the
second call. A loop that takes them one after the other commits each intent on its own: six.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path

from bench.counting import Counts, counting
from bench.counts import difference
from bench.report import Line, at_most
from bench.turn_ways import AGENT, OWN, PLAINLY, WAYS, Stage, Way
from bench.turn_words import PLAIN, REPLY, SHAPES, TOOLS, asked

SMALL, LARGE = 100, 10_000
APART = 10
COUNTED = ("statements", "vm_steps", "pages_read")
WARM_UP = 5
TAKEN = {PLAIN: 60, TOOLS: 30}
"""Turns that are counted: enough for page splits, and for windows that move, to average out."""
COMMITS = {(OWN, PLAIN): 3, (AGENT, PLAIN): 3, (OWN, TOOLS): 9, (AGENT, TOOLS): 8}


def counted(way: Way, turns: int) -> Counts:
    """What one turn of a way asks of SQLite, averaged over many."""
    numbers = itertools.count(1)
    for _ in range(WARM_UP):
        way.turn(asked(next(numbers)))
    with counting(way.hf.env.journal) as counts:
        for _ in range(turns):
            assert way.turn(asked(next(numbers))) == REPLY
    return counts.per(turns)


def lines(place: Path, quick: bool) -> list[Line]:
    """Both ways and both shapes at both lengths, against the scripted model."""
    found: list[Line] = []
    for kind in WAYS:
        for shape in SHAPES:
            turns = TAKEN[shape] // 2 if quick else TAKEN[shape]
            # Both in journals that hold both: what is compared is the length of a conversation, not of a journal.
            few, many = (_one(place, kind, shape, turns, *both) for both in ((SMALL, LARGE), (LARGE, SMALL)))
            found += _lines(f"{kind}, {shape}", COMMITS[kind, shape], few, many)
            if shape == PLAIN:
                found.append(_alone(kind, few, _one(place, kind, shape, turns, SMALL)))
    return found


def _one(place: Path, kind: str, shape: str, turns: int, messages: int, beside: int = 0) -> Counts:
    with ExitStack() as stack:
        way = Stage(place, stack).way(kind, shape, messages, beside=beside, settings=PLAINLY)
        return counted(way, turns)


def _alone(kind: str, few: Counts, alone: Counts) -> Line:
    note = f"{alone.pages_read:,.0f} and {few.pages_read:,.0f}: its trees have fewer levels"
    what = f"{kind}, {PLAIN}: pages read, {SMALL} messages in a journal with nothing else"
    return Line(what=what, value=difference(few.pages_read, alone.pages_read), unit="% apart", note=note)


def _lines(what: str, commits: int, few: Counts, many: Counts) -> list[Line]:
    note = f"{few.commits:.2f} at {SMALL} messages; {many.pages:,.0f} pages written"
    found = [
        Line(what=f"{what}: commits", value=many.commits, bar=at_most(commits), note=note),
    ]
    for name in COUNTED:
        small, large = getattr(few, name), getattr(many, name)
        shown = name.replace("vm_", "VM ").replace("_", " ")
        found.append(
            Line(
                what=f"{what}: {shown}, {SMALL} against {LARGE:,} messages",
                value=difference(small, large),
                unit="% apart",
                bar=at_most(APART),
                note=f"{small:,.0f} and {large:,.0f}",
            )
        )
    return found

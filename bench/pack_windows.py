"""A window that shows 2,000 short messages, and one of 8,000: what a new round costs where everything else is known.

The conversation goes on, as in a loop: a round is said, a pack is made, rendered for a provider and journaled with the
call. Python calls are counted apart, with `sys.setprofile`.
"""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import holdfast
from bench.calls import PythonCalls, calls_of
from bench.harness import Samples, ratios, rounds, spread, timed
from bench.report import Line, at_most, ratio_line
from bench.session_packs import forget
from bench.session_size import MODEL, SYSTEM
from bench.session_texts import BAG, role

SHOWN, MORE = 2_000, 8_000
TOGETHER = 1_000
WORDS = 12
BUDGET = 400_000
"""More than all of it: every message is shown, before and after."""
FIRST, SECOND, AGAIN = "first pack", "pack after one new round", "pack again"
CALL, APPEND = "packs.begin_model_call", "an append of one message"
RENDER, DUMP = "to_openai() after one new round", "json.dumps of the result"
PACK_BAR, CALLS_BAR, JOURNAL_BAR, RENDER_BAR = 0.08, 4_000, 2, 1


def short(number: int) -> dict[str, Any]:
    """A message of a dozen words, another one for each number."""
    words = [BAG[(number * 7_919 + at * 104_729 + at * number) % len(BAG)] for at in range(WORDS)]
    return {"role": role(number), "content": f"{' '.join(words)} {number}"}


class Window:
    """A conversation that is shown whole, and what is measured of it."""

    def __init__(self, hf: holdfast.Holdfast, messages: int) -> None:
        self._hf = hf
        self._session: Any = hf.session("alice", system=SYSTEM, model=MODEL)
        self._numbers = itertools.count()
        for _ in range(0, messages, TOGETHER):
            self._session.append([short(next(self._numbers)) for _ in range(min(TOGETHER, messages))])

    def _round(self) -> None:
        self._session.append([short(next(self._numbers)) for _ in range(2)])

    def pack(self, given: object = None) -> Any:
        """A pack of everything."""
        return self._session.pack(BUDGET)

    def first(self) -> float:
        """As that of a process that has its client."""
        forget(self._hf.env)
        return timed(self.pack)

    def second(self) -> float:
        """What was shown before is known, in every form it was asked for; the round is not."""
        self.render(self.pack())
        self._round()
        return timed(self.pack)

    def again(self) -> float:
        """Nothing is new."""
        self.pack()
        return timed(self.pack)

    def call(self) -> float:
        """The pack with the call, one commit; the call before it is known."""
        self._session.packs.begin_model_call(self.pack())
        self._round()
        pack = self.pack()
        return timed(lambda: self._session.packs.begin_model_call(pack))

    def append(self) -> float:
        """One message, one commit."""
        self.pack()
        message = short(next(self._numbers))
        took = timed(lambda: self._session.append(message))
        self._session.append(short(next(self._numbers)))  # Rounds stay whole.
        return took

    def render(self, pack: Any) -> Any:
        """What a provider is sent."""
        return pack.to_openai()

    def rendered(self) -> float:
        """What was rendered before is known; the round is not."""
        self.render(self.pack())
        self._round()
        pack = self.pack()
        return timed(lambda: self.render(pack))

    def dumped(self) -> float:
        """The same as JSON, which nobody spares who sends it."""
        made = self.render(self.pack())
        return timed(lambda: json.dumps(made))

    def calls(self) -> float:
        """Python calls of a pack after a new round."""
        calls = PythonCalls()
        self.render(self.pack())
        return calls_of(calls, self.pack, self._round)


def lines(place: Path, quick: bool) -> list[Line]:
    """With bars at 2,000 messages; beside them, what 8,000 cost."""
    found = _lines(place, SHOWN, 5 if quick else 21, bars=True)
    return found if quick else [*found, *_lines(place, MORE, 7, bars=False)]


def _lines(place: Path, messages: int, count: int, *, bars: bool) -> list[Line]:
    start = time.perf_counter()
    with holdfast.open(place / f"window-{messages}.db") as hf:
        window = Window(hf, messages)
        contenders = {
            FIRST: window.first,
            SECOND: window.second,
            AGAIN: window.again,
            CALL: window.call,
            APPEND: window.append,
            RENDER: window.rendered,
            DUMP: window.dumped,
        }
        samples = rounds(contenders, count)
        shown = window.pack().conversation.message_count
        calls = window.calls()
    took = f"{shown:,} messages shown; {time.perf_counter() - start:.0f} s for all of it"

    def compared(name: str, base: str, bar: float, note: str = "") -> Line:
        both = " and ".join(f"{_millitimed(samples, one):.2f} ms" for one in (name, base))
        what = f"at {messages:,} shown messages: {name}, against {base if base != FIRST else 'the first'}"
        return ratio_line(what, ratios(samples, name, base), at_most(bar) if bars else None, f"{both}{note}")

    return [
        compared(SECOND, FIRST, PACK_BAR, f"; again, nothing new: {_millitimed(samples, AGAIN):.2f} ms; {took}"),
        Line(
            what=f"at {messages:,} shown messages: {SECOND}, Python calls",
            value=calls,
            unit="calls",
            bar=at_most(CALLS_BAR) if bars else None,
        ),
        compared(CALL, APPEND, JOURNAL_BAR),
        compared(RENDER, DUMP, RENDER_BAR),
    ]


def _millitimed(samples: Samples, name: str) -> float:
    return 1_000 * spread(samples[name]).median

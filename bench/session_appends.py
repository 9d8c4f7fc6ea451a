"""Four messages of about 1 KB at the end of a conversation of 1 000, in one call and one FULL commit.

Against raw apsw, which inserts the same four bodies with one statement and one FULL commit. What is to be said is
made beforehand, as the bytes of the raw insert are; reading it, counting its tokens, checking, encoding, chain, rows
and the commit are what is measured. Counting is also measured apart, on texts just like them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import apsw

import holdfast
from bench.harness import Contender, Samples, ratios, rounds, spread, timed
from bench.peer_kinds import ADK, ADK_DATABASE, DELTA, INVOKED, LANGGRAPH, OPENAI
from bench.peer_process import PeerProcess
from bench.report import Line, at_most, ratio_line
from bench.session_size import MODEL, SYSTEM
from bench.session_texts import role, text, texts
from holdfast.connect import connect

MESSAGES = 4
LONG = 1_000
LONGER = 10_000
BAR, INDEXED_BAR = 3.8, 4.5
"""Without the text index, and with it."""
RAW = "raw apsw, four bodies in one statement and commit"
MANY = "raw apsw, begin, executemany, commit"
INDEXED = "session.append of four messages"
OURS = "the same, index off"
TOOLS = "one tool round: asked, called, result, reply"
COUNTING = "of which counting tokens"
APART = 1_000_000
"""Texts of different contenders: what was counted once is counted faster the second time."""

WRAPPED = 450
"""Commits after which each write-ahead log was folded in and is written over: growing a file costs more."""


@contextmanager
def raw(place: Path) -> Iterator[dict[str, Callable[[list[bytes]], object]]]:
    """The least that four bodies can cost, and the same as most people write it."""
    with ExitStack() as stack:
        one, many = (stack.enter_context(_opened(place / f"raw-{name}.db")) for name in ("one", "many"))

        def each(bodies: list[bytes]) -> None:
            many.execute("BEGIN IMMEDIATE")
            many.executemany("INSERT INTO raw (body) VALUES (?)", [(body,) for body in bodies])
            many.execute("COMMIT")

        statement = "INSERT INTO raw (body) VALUES " + ", ".join(["(?)"] * MESSAGES)
        yield {RAW: lambda bodies: one.execute(statement, bodies), MANY: each}


@contextmanager
def _opened(path: Path) -> Iterator[apsw.Connection]:
    connection = apsw.Connection(os.fspath(path))
    try:
        assert connection.pragma("journal_mode", "wal") == "wal"
        connection.pragma("synchronous", 2)
        connection.execute("CREATE TABLE raw (id INTEGER PRIMARY KEY, body BLOB NOT NULL) STRICT")
        yield connection
    finally:
        connection.close(True)


def said(start: int, count: int = MESSAGES) -> list[Any]:
    """Messages as a caller has them."""
    return [{"role": role(number), "content": text(start + number)} for number in range(count)]


def tool_round(start: int) -> list[Any]:
    """The four messages of a turn with one tool call."""
    asked, called, result, reply = said(start)
    call = {"id": f"call_{start}", "type": "function", "function": {"name": "search", "arguments": '{"day": "monday"}'}}
    return [
        asked,
        {**called, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "content": result["content"]},
        reply,
    ]


def each(make: Callable[[int], Any], work: Callable[[Any], object], times: int, first: int = 0) -> Contender:
    """Seconds of one, many in a row, made before the clock starts; nobody is given a text twice."""
    numbers = itertools.count(first, step=MESSAGES)

    def run() -> float:
        inputs = [make(next(numbers)) for _ in range(times)]
        return timed(lambda: [work(one) for one in inputs]) / times

    return run


def contenders(place: Path, stack: ExitStack, times: int) -> dict[str, Contender]:
    """Raw, holdfast, and counting alone."""
    # As it comes, with the text index; beside it without, as raw and the peers: none of them can find a message.
    hf = stack.enter_context(holdfast.open(place / "append.db", settings=holdfast.Settings(index_text=0)))
    session, tools = (hf.session(name, system=SYSTEM, model=MODEL) for name in ("plain", "tools"))
    indexing = stack.enter_context(holdfast.open(place / "append-indexed.db"))
    indexed = indexing.session("plain", system=SYSTEM, model=MODEL)
    for one in (session, tools, indexed):
        one.append(said(0, LONG))
    models = connect("memory:").models
    assert models is not None
    count = models.tokenizer(models.info(MODEL).tokenizer).count
    bodies = {
        name: each(lambda start: [one.encode() for one in texts(start, MESSAGES)], insert, times)
        for name, insert in stack.enter_context(raw(place)).items()
    }
    return {
        **bodies,
        OURS: each(said, session.append, times, APART),
        INDEXED: _caught_up(indexed, each(said, indexed.append, times, 4 * APART)),
        TOOLS: each(tool_round, tools.append, times, 2 * APART),
        COUNTING: each(lambda at: texts(at, MESSAGES), lambda all: [count(one) for one in all], times, 3 * APART),
    }


def _caught_up(session: Any, appends: Contender) -> Contender:
    """An index that follows behind catches up before the others' turn: nobody is measured beside its work.

    What that costs, and whether it is less than was saved, is told by bench.session_search.
    """

    def run() -> float:
        took = appends()
        session.search("anything")
        return took

    return run


def peer_contenders(place: Path, peers: PeerProcess, quick: bool) -> tuple[dict[str, Contender], dict[str, str]]:
    """Each peer at 1 000 messages, LangGraph also at 10 000, and what is to be known about them."""
    # Messages at first, times in a row, and how long a new conversation is before each round; None: the same goes on.
    plan: dict[str, tuple[str, int, int, int | None]] = {
        OPENAI: (OPENAI, LONG, 50, None),
        f"{LANGGRAPH} at {LONG:,}": (LANGGRAPH, LONG, 2, LONG),
        f"{INVOKED} at {LONG:,}": (INVOKED, LONG, 2, LONG),
        f"{DELTA} at {LONG:,}": (DELTA, LONG, 2, LONG),
        f"{LANGGRAPH} at {LONGER:,}": (LANGGRAPH, LONGER, 1, None),
        ADK: (ADK, MESSAGES, 4, None),
        ADK_DATABASE: (ADK_DATABASE, MESSAGES, 4, None),
    }
    found: dict[str, Contender] = {}
    notes: dict[str, str] = {}
    for label, (name, messages, times, anew) in plan.items():
        if name not in peers.found or (quick and (messages == LONGER or name == INVOKED)):
            continue
        first = MESSAGES if anew is not None else messages
        notes[label] = peers.ask("open", name=name, label=label, place=os.fspath(place), messages=first)
        found[label] = _asking(peers, label, times, anew)
    return found, notes


def _asking(peers: PeerProcess, label: str, times: int, anew: int | None) -> Contender:
    return lambda: float(peers.ask("append", label=label, times=times, count=MESSAGES, anew=anew))


def lines(place: Path, peers: PeerProcess | None, quick: bool) -> list[Line]:
    """All of them in the same rounds."""
    times, count = (50, 3) if quick else (150, 15)
    notes: dict[str, str] = {}
    with ExitStack() as stack:
        ours = contenders(place, stack, times)
        for name in (RAW, MANY, OURS, INDEXED, TOOLS):
            for _ in range(WRAPPED // times):
                ours[name]()
        theirs: dict[str, Contender] = {}
        if peers is not None:
            theirs, notes = peer_contenders(place, peers, quick)
        samples = rounds({**ours, **theirs}, count)
        for name in theirs:
            assert peers is not None
            notes[name] += f"; {peers.ask('read_back', label=name):,} messages read back"
    ahead = [_ahead(samples, name) for name in theirs if name == OPENAI]
    return [*_ours(samples), *(_theirs(samples, name, notes[name]) for name in theirs), *ahead]


def _ours(samples: Samples) -> list[Line]:
    def took(name: str) -> str:
        return f"{_microseconds(samples, name):.0f} us"

    counting = [one / whole for one, whole in zip(samples[COUNTING], samples[OURS], strict=True)]
    rest = {
        "rest": [whole - one for whole, one in zip(samples[OURS], samples[COUNTING], strict=True)],
        RAW: samples[RAW],
    }
    return [
        Line(what=RAW, value=_microseconds(samples, RAW), unit="us", note=f"synchronous=FULL; {MANY}: {took(MANY)}"),
        ratio_line(f"{INDEXED}, against raw", ratios(samples, INDEXED, RAW), at_most(INDEXED_BAR), took(INDEXED)),
        ratio_line(f"{OURS}, against raw", ratios(samples, OURS, RAW), at_most(BAR), took(OURS)),
        ratio_line(f"{OURS}, against executemany", ratios(samples, OURS, MANY)),
        ratio_line(f"{OURS}, without counting tokens", ratios(rest, "rest", RAW)),
        ratio_line(f"{TOOLS}, index off, against raw", ratios(samples, TOOLS, RAW), None, took(TOOLS)),
        Line(
            what=COUNTING,
            value=_microseconds(samples, COUNTING),
            unit="us",
            note=f"{100 * spread(counting).median:.0f} % of the append; four texts of about 1 KB",
        ),
    ]


def _theirs(samples: Samples, name: str, durable: str) -> Line:
    how = "; four calls and commits" if name in {ADK, ADK_DATABASE} else ""
    note = f"{_microseconds(samples, name):,.0f} us; {durable}{how}"
    return ratio_line(f"{name}, against raw", ratios(samples, name, RAW), None, note)


def _ahead(samples: Samples, name: str) -> Line:
    """The one that is near: both as they come."""
    note = f"{_microseconds(samples, INDEXED):,.0f} us and {_microseconds(samples, name):,.0f} us"
    times = ratios(samples, name, INDEXED)
    return ratio_line(f"{INDEXED}, times the speed of {name}", times, None, note, peer=name)


def _microseconds(samples: Samples, name: str) -> float:
    return 1e6 * spread(samples[name]).median

"""What 500 turns of two messages of about 1 KB take on disk, once the log is folded in."""

from __future__ import annotations

import os
from pathlib import Path

import holdfast
from bench.harness import plain
from bench.journals import checkpointed_bytes
from bench.peer_kinds import ADK, ADK_DATABASE, DELTA, LANGGRAPH, OPENAI
from bench.peer_process import PeerProcess
from bench.report import Line, at_most
from bench.session_texts import text

TURNS = 500
BAR = 1_750_000
INDEXED_BAR = 2_300_000
MODEL = "gpt-5-mini"
SYSTEM = "You are a careful travel agent. Answer in a few sentences and ask when something is unclear."


def written(place: Path, turns: int, *, indexed: bool = False) -> int:
    """Bytes of a session that was held in turns, each message appended when it was said."""
    path = place / ("indexed.db" if indexed else "size.db")
    with holdfast.open(path, durability="fast", settings=holdfast.Settings(index_text=int(indexed))) as hf:
        session = hf.session("alice", system=SYSTEM, model=MODEL)
        for number in range(turns):
            session.append({"role": "user", "content": text(2 * number)})
            session.append({"role": "assistant", "content": text(2 * number + 1)})
    return checkpointed_bytes(path)


def lines(place: Path, peers: PeerProcess | None, quick: bool) -> list[Line]:
    """holdfast at full length, peers at full length unless it must be quick."""
    payload = sum(len(text(number).encode()) for number in range(2 * TURNS))
    size = written(place, TURNS)
    beyond = (size - payload) / (2 * TURNS)
    note = f"{payload / 1e6:.2f} MB of text, {beyond:.0f} bytes a message beyond it; no text index"
    found = [
        _line("holdfast", TURNS, size, note, bar=BAR),
        _line("holdfast with its text index", TURNS, written(place, TURNS, indexed=True), "", bar=INDEXED_BAR),
    ]
    if peers is None:
        return found
    turns = 40 if quick else TURNS
    if turns != TURNS:
        found.append(_line("holdfast", turns, written_anew(place, turns), ""))
    for name in (OPENAI, LANGGRAPH, DELTA, ADK, ADK_DATABASE):
        if name in peers.found:
            answer = peers.ask("size", name=name, place=os.fspath(place), turns=turns)
            found.append(_line(name, turns, answer["bytes"], f"{plain(answer['seconds'])} s"))
    return found


def written_anew(place: Path, turns: int) -> int:
    """The same in a folder of its own."""
    own = place / f"turns-{turns}"
    own.mkdir()
    return written(own, turns)


def _line(name: str, turns: int, size: int, note: str, *, bar: int | None = None) -> Line:
    what = f"size of {turns} turns: {name}"
    return Line(what=what, value=size / 1e6, unit="MB", bar=at_most(bar / 1e6) if bar else None, note=note)

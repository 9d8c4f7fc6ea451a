"""What 500 turns of two messages of about 1 KB take on disk, once the log is folded in."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec.structs import replace

import holdfast
from bench.harness import plain
from bench.journals import checkpointed_bytes
from bench.peer_kinds import ADK, ADK_DATABASE, DELTA, LANGGRAPH, OPENAI
from bench.peer_process import PeerProcess
from bench.report import Line, at_most
from bench.session_texts import text

TURNS = 500
BAR = 1_750_000
INDEXED_BAR = 2_000_000
MODEL = "gpt-5-mini"
SYSTEM = "You are a careful travel agent. Answer in a few sentences and ask when something is unclear."


def written(place: Path, turns: int, *, indexed: bool = True) -> int:
    """Bytes of a session that was held in turns, each message appended when it was said, its index caught up."""
    path = place / ("indexed.db" if indexed else "size.db")
    with holdfast.open(path, durability="fast", settings=holdfast.Settings(index_text=int(indexed))) as hf:
        session = hf.session("alice", system=SYSTEM, model=MODEL)
        for number in range(turns):
            session.append({"role": "user", "content": text(2 * number)})
            session.append({"role": "assistant", "content": text(2 * number + 1)})
        if indexed:
            assert session.search(text(0))
    return checkpointed_bytes(path)


def lines(place: Path, peers: PeerProcess | None, quick: bool) -> list[Line]:
    """holdfast at full length, peers at full length unless it must be quick."""
    payload = sum(len(text(number).encode()) for number in range(2 * TURNS))
    sizes = {TURNS: written(place, TURNS)}
    off = written(place, TURNS, indexed=False)
    found = [
        _line("holdfast", TURNS, sizes[TURNS], f"index caught up; {_beyond(sizes[TURNS], payload)}", bar=INDEXED_BAR),
        _line("holdfast, index off", TURNS, off, _beyond(off, payload), bar=BAR),
    ]
    if peers is None:
        return found
    turns = 40 if quick else TURNS
    if turns != TURNS:
        sizes[turns] = written_anew(place, turns)
        found.append(_line("holdfast", turns, sizes[turns], ""))
    for name in (OPENAI, LANGGRAPH, DELTA, ADK, ADK_DATABASE):
        if name in peers.found:
            answer = peers.ask("size", name=name, place=os.fspath(place), turns=turns)
            note = f"{plain(answer['seconds'])} s; read back"
            found.append(_line(name, turns, answer["bytes"], note, ours=sizes[turns]))
    return found


def _beyond(size: int, payload: int) -> str:
    return f"{payload / 1e6:.2f} MB of text, {(size - payload) / (2 * TURNS):.0f} bytes a message beyond it"


def written_anew(place: Path, turns: int) -> int:
    """The same in a folder of its own."""
    own = place / f"turns-{turns}"
    own.mkdir()
    return written(own, turns)


def _line(name: str, turns: int, size: int, note: str, *, bar: int | None = None, ours: int | None = None) -> Line:
    """A size; with `ours`, it is that of a peer."""
    found = Line(
        what=f"size of {turns} turns: {name}",
        value=size / 1e6,
        unit="MB",
        bar=at_most(bar / 1e6) if bar else None,
        note=note,
    )
    return found if ours is None else replace(found, peer=name, lead=size / ours)

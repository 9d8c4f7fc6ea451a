"""Conversations: what they take on disk, an append of four messages, eight threads, an open session.

Peers are measured in the same run and the same rounds, in a process with an environment of their own, each as it
comes: openai-agents' SQLiteSession, LangGraph's SqliteSaver, Google ADK's session services.
"""

from __future__ import annotations

import os
from pathlib import Path

from bench import session_appends, session_search, session_size, session_threads
from bench.journals import folder
from bench.peer_kinds import KINDS, OPENAI
from bench.peer_process import PeerProcess, peer_process
from bench.report import Line, at_most
from bench.session_memory import MESSAGES, in_a_process

TITLE = "Conversations: sessions beside their peers"
MEMORY_BAR = 5_000
ALL = 1_000_000


def present(peers: PeerProcess | None) -> Line:
    """Which peers are here, and why others are not."""
    if peers is None:
        note = "none: `make bench` installs them into .venv-peers"
        return Line(what="peers measured", value=0, unit=f"of {len(KINDS)}", note=note)
    missing = [f"without {name} ({why})" for name, why in peers.absent.items()]
    note = ", ".join([*dict.fromkeys(peers.found.values()), *missing])
    return Line(what="peers measured", value=len(peers.found), unit=f"of {len(KINDS)}", note=note)


def memory(place: Path, quick: bool) -> list[Line]:
    """An open session of many."""
    sessions = 150 if quick else 2_000
    taken = {how: in_a_process(place, sessions, how) for how in ("allocated", "resident")}
    bar = at_most(MEMORY_BAR)
    note = f"{sessions:,} open sessions of {MESSAGES} messages"
    files = taken["resident"]["descriptors"]
    found = [
        Line(what="open session, Python's memory", value=taken["allocated"]["bytes"], unit="bytes", bar=bar, note=note),
        Line(what="open session, resident", value=taken["resident"]["bytes"], unit="bytes", bar=bar, note=note),
        Line(what="open session, file descriptors", value=files, note="one client holds them for all"),
    ]
    if not quick:
        every = in_a_process(place, sessions, "allocated", ALL)["bytes"]
        note = "HOLDFAST_CACHED_STREAMS so large that every session's state stays in memory"
        found.append(Line(what="open session, all states cached", value=every, unit="bytes", bar=bar, note=note))
    return found


def their_memory(place: Path, peers: PeerProcess | None, quick: bool) -> list[Line]:
    """An open SQLiteSession, in a process that has done nothing else yet."""
    if peers is None or OPENAI not in peers.found:
        return []
    sessions = 40 if quick else 200
    answer = peers.ask("memory", place=os.fspath(place), warm_up=16, sessions=sessions, messages=MESSAGES)
    note = f"{sessions:,} open sessions of {MESSAGES} messages, eight at a time in one event loop"
    return [
        Line(what=f"{OPENAI}, resident", value=answer["resident"], unit="bytes", note=note),
        Line(what=f"{OPENAI}, file descriptors", value=answer["descriptors"]),
    ]


def run(quick: bool) -> list[Line]:
    """One part after the other, the peers in their process beside them."""
    with folder() as place:
        with peer_process(place) as peers:
            held = their_memory(place, peers, quick)
            appended = session_appends.lines(place, peers, quick)
            searched = session_search.lines(place, quick)
            shared = session_threads.lines(place, peers, quick)
            # After everything that is timed: one peer writes a gigabyte.
            size = session_size.lines(place, peers, quick)
        return [present(peers), *size, *appended, *searched, *shared, *memory(place, quick), *held]

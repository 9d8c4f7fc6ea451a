"""A pack of 8 000 tokens out of 10 000 messages of about 1 KB, beside what peers give a model of as much.

Everybody has the same conversation on disk, in one database each, and reads the end of it in the same rounds, peers
in their own process. What of it is not alike:

    holdfast       within 8 000 tokens by the model's own tokenizer, whole rounds, valid for every provider
    openai-agents  as many items as holdfast shows: it bounds items, not tokens, and may begin within a tool round
    LangGraph      8 000 tokens by its own approximate counter, after loading all messages
    ADK            the whole session, as get_session gives it; beside it, only as many events as holdfast shows
"""

from __future__ import annotations

import os
from pathlib import Path

from bench import pack_rounds, pack_windows, session_packs
from bench.harness import Contender, Samples, ratios, rounds, spread, timed
from bench.journals import folder, journal
from bench.pack_peers import ADK, ADK_OTHER, ADK_RECENT, KINDS, LANGGRAPH, LANGGRAPH_STATE, OPENAI, READS
from bench.peer_process import PeerProcess, peer_process
from bench.report import Bar, Line, at_least, at_most, ratio_line
from bench.session_packs import BUDGET, forget, name_of, packing
from holdfast.ports import Env

TITLE = "Context packs beside their peers"
MESSAGES = 10_000
OURS = f"session.pack({BUDGET:,})"
AGAIN = f"{OURS} again, nothing new"
TIMES = {OPENAI: 50, ADK_RECENT: 5}
"""Of each in a row; of those that load everything, one."""
SAMPLE = 30
SLOWER: dict[str, Bar] = {OPENAI: at_most(5)}
"""How many times the peer's time a pack may take."""
QUICKER: dict[str, Bar | None] = {
    LANGGRAPH: at_least(50),
    LANGGRAPH_STATE: None,
    ADK: at_least(3),
    ADK_OTHER: at_least(3),
    ADK_RECENT: None,
}
"""How many times as quick as the peer a pack must be."""


def ours(env: Env) -> tuple[dict[str, Contender], int]:
    """A pack that has nothing to build on, one that has, and how many messages are shown."""
    pack = packing(env)
    shown = pack()

    def first() -> float:
        seconds = 0.0
        for _ in range(SAMPLE):
            forget(env)
            seconds += timed(pack)
        return seconds / SAMPLE

    def again() -> float:
        pack()
        return timed(lambda: [pack() for _ in range(SAMPLE)]) / SAMPLE

    return {OURS: first, AGAIN: again}, shown


def theirs(place: Path, peers: PeerProcess, items: int) -> tuple[dict[str, Contender], dict[str, int]]:
    """Each way in which a peer gives the end of its conversation, and how many messages it gives."""
    given: dict[str, int] = {}
    for name in KINDS:
        if name in peers.found:
            given |= peers.ask("open", name=name, place=os.fspath(place), messages=MESSAGES, items=items, tokens=BUDGET)
    return {what: _asking(peers, what) for what in READS if what in given}, given


def _asking(peers: PeerProcess, what: str) -> Contender:
    return lambda: float(peers.ask("read", way=what, times=TIMES.get(what, 1)))


def run(quick: bool) -> list[Line]:
    """Beside peers, after a new round, and at other lengths."""
    with folder() as place:
        session_packs.build(place, MESSAGES)
        with journal(place, name_of(MESSAGES)) as env, peer_process(place, "bench.pack_peers") as peers:
            contenders, shown = ours(env)
            given: dict[str, int] = {}
            if peers is not None:
                beside, given = theirs(place, peers, shown)
                contenders |= beside
            samples = rounds(contenders, 5 if quick else 15)
            near: Samples = {}
            if OPENAI in contenders:
                # The two that are near each other and take next to no time: in many rounds, or the median wanders.
                near = rounds({name: contenders[name] for name in (OURS, OPENAI)}, 5 if quick else 75)
        found = [_present(peers), *_ours(samples, shown), *_beside(samples, given, near)]
        found += [*pack_rounds.lines(place, MESSAGES, quick), *pack_windows.lines(place, quick)]
        return [*found, *session_packs.lines(place, quick)]


def _present(peers: PeerProcess | None) -> Line:
    if peers is None:
        note = "none: `make bench` installs them into .venv-peers"
        return Line(what="peers measured", value=0, unit=f"of {len(KINDS)}", note=note)
    missing = [f"without {name} ({why})" for name, why in peers.absent.items()]
    note = ", ".join([f"{MESSAGES:,} messages", *dict.fromkeys(peers.found.values()), *missing])
    return Line(what="peers measured", value=len(peers.found), unit=f"of {len(KINDS)}", note=note)


def _ours(samples: Samples, shown: int) -> list[Line]:
    first = Line(what=OURS, value=_milliseconds(samples, OURS), unit="ms", note=f"{shown} messages; nothing remembered")
    return [first, ratio_line(f"{AGAIN}, against the first", ratios(samples, AGAIN, OURS))]


def _beside(samples: Samples, given: dict[str, int], near: Samples) -> list[Line]:
    found = []
    for what in READS:
        if what not in samples:
            continue
        note = f"{_milliseconds(samples, what):,.2f} ms for {given[what]:,} messages"
        if what in SLOWER:
            note += f"; {len(near[what])} rounds"
            against = ratios(near, OURS, what)
            found.append(ratio_line(f"{OURS}, against {what}", against, SLOWER[what], note, peer=what, smaller=True))
        else:
            times = ratios(samples, what, OURS)
            found.append(ratio_line(f"{OURS}, times the speed of {what}", times, QUICKER[what], note, peer=what))
    return found


def _milliseconds(samples: Samples, name: str) -> float:
    return 1_000 * spread(samples[name]).median

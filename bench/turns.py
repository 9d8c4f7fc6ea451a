"""One turn, from a user's message to the reply: in a loop of one's own, by an agent, and by the agents of peers.

Everybody has the same conversation of messages of about 1 KB on disk, in one database each, takes turns in the same
rounds and asks the same model on loopback, which answers at once; peers in their own process. What is told:

    scripted       holdfast alone: no request is made, so this is all that a turn costs beyond its model and tools
    on loopback    the whole turn, with the request; the own loop asks with OpenAI's SDK, as peers do
    8 000 tokens   holdfast shows the end of the conversation; openai-agents is limited to as many items, LangGraph to
                   as many tokens by its approximate counter. LangGraph loads and stores all messages all the same.
    all            what peers show unless told otherwise; at 10 000 messages a request of 10 MB, which no provider takes
"""

from __future__ import annotations

import itertools
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from bench import turn_counts, turn_crowd
from bench.fake_model import FakeModel, fake_model
from bench.harness import Contender, Samples, ratios, repeated, rounds, spread
from bench.journals import folder, raw_insert
from bench.peer_process import PeerProcess, peer_process
from bench.report import Line, ratio_line
from bench.session_packs import BUDGET
from bench.turn_counts import COMMITS
from bench.turn_peers import KINDS
from bench.turn_ways import AGENT, WAYS, Stage, Way, timing
from bench.turn_words import CALLS, MODEL, PLAIN, SHAPES, TOOLS

TITLE = "Turns beside their peers"
LENGTHS = (100, 10_000)
TIMES = {PLAIN: 10, TOOLS: 5}
RAW, SDK, COMMIT = "one raw request", "the same by OpenAI's SDK", "one raw commit"
COMMITTED = 2_000
"""Bytes of a raw commit."""
SHOWN, ALL = f"{BUDGET:,} tokens", "all"


def run(quick: bool) -> list[Line]:
    """At both lengths, then what does not depend on the machine, then many at once."""
    with folder() as place:
        with fake_model() as model, peer_process(place, "bench.turn_peers") as peers:
            found = [_present(peers)]
            for messages in LENGTHS:
                found += _Length(place, model, peers, messages, quick).lines()
        return [*found, *turn_counts.lines(place, quick), *turn_crowd.lines(place, quick)]


def _present(peers: PeerProcess | None) -> Line:
    if peers is None:
        note = "none: `make bench` installs them into .venv-peers"
        return Line(what="peers measured", value=0, unit=f"of {len(KINDS)}", note=note)
    missing = [f"without {name} ({why})" for name, why in peers.absent.items()]
    note = ", ".join([*peers.found.values(), *missing])
    return Line(what="peers measured", value=len(peers.found), unit=f"of {len(KINDS)}", note=note)


class _Length:
    """Everything at one length of conversation."""

    def __init__(self, place: Path, model: FakeModel, peers: PeerProcess | None, messages: int, quick: bool) -> None:
        self._place, self._model, self._peers, self._messages = place, model, peers, messages
        self._rounds = 3 if quick else 11
        self._most = 0 if quick else 3
        # A short conversation is begun anew for each round, since turns make it longer.
        self._anew = messages if messages == LENGTHS[0] else None
        self._durable: dict[str, str] = {}
        self._shown = 0
        self._request = 0

    def lines(self) -> list[Line]:
        """Ours and theirs in the same rounds; those that show all, which takes seconds, in a few rounds more."""
        with ExitStack() as stack:
            stage = Stage(self._place, stack, self._model)
            ours, way = self._ours(stage)
            raws = self._raw(stack, way)
            theirs = {name: one for shape in SHAPES for name, one in self._theirs(shape, SHOWN).items()}
            samples = rounds({**raws, **ours, **theirs}, self._rounds)
            # With all that was said, a turn with tools tells nothing more and takes twice as long.
            whole = {name: one for shape in self._whole() for name, one in self._theirs(shape, ALL).items()}
            base = {_wire(AGENT, shape): ours[_wire(AGENT, shape)] for shape in self._whole()}
            every = rounds({**base, **whole}, self._rounds if self._anew else self._most) if whole else {}
        return [*self._limits(samples), *self._own(samples), *self._beside(samples), *self._beside(every)]

    def _whole(self) -> tuple[str, ...]:
        return SHAPES if self._anew else (PLAIN,) if self._most else ()

    # who is measured

    def _ours(self, stage: Stage) -> tuple[dict[str, Contender], Way]:
        found: dict[str, Contender] = {}
        for kind in WAYS:
            for shape in SHAPES:
                for wire, name in ((False, _scripted), (True, _wire)):
                    way = stage.way(kind, shape, self._messages, wire=wire)
                    found[name(kind, shape)] = timing(way, TIMES[shape], self._anew)
        return found, way

    def _raw(self, stack: ExitStack, way: Way) -> dict[str, Contender]:
        """A request as holdfast makes it, without anything around it; and commits of what it is about."""
        import openai

        pack = way.hf.session(f"long-{self._messages}", create=False).pack(BUDGET)
        self._shown = pack.conversation.message_count
        asked: dict[str, Any] = {"model": MODEL, **pack.to_openai()}
        body = msgspec.json.encode(asked)
        self._request = len(body)
        ask = stack.enter_context(self._model.raw(body))
        insert = stack.enter_context(raw_insert(self._place, body[:COMMITTED], f"raw-{self._messages}.db"))
        client = stack.enter_context(openai.OpenAI(base_url=self._model.url(PLAIN), api_key="none"))
        return {
            RAW: repeated(ask, 100),
            SDK: repeated(lambda: client.chat.completions.create(**asked), 20),
            COMMIT: repeated(insert, 60),
        }

    def _theirs(self, shape: str, how: str) -> dict[str, Contender]:
        if self._peers is None:
            return {}
        found: dict[str, Contender] = {}
        bounds = {"items": self._shown, "tokens": BUDGET} if how == SHOWN else {}
        for name in self._peers.found:
            label = f"{name}, {how}, {shape}, {self._messages}"
            self._durable[_peer(name, how, shape)] = self._peers.ask(
                "open",
                name=name,
                label=label,
                place=os.fspath(self._place),
                url=self._model.url(shape),
                shape=shape,
                messages=self._messages,
                **bounds,
            )
            times = TIMES[shape] // 2 if self._anew else 1
            found[_peer(name, how, shape)] = _asking(self._peers, label, times, self._anew)
        return found

    # what is told

    def _limits(self, samples: Samples) -> list[Line]:
        size = f"{self._request / 1000:.0f} KB, {self._shown} messages"
        return [
            Line(what=self._what(RAW), value=_ms(samples, RAW), unit="ms", note=size),
            Line(what=self._what(SDK), value=_ms(samples, SDK), unit="ms", note="it walks every message by its types"),
            Line(what=self._what(COMMIT), value=_ms(samples, COMMIT), unit="ms", note=f"{COMMITTED:,} bytes, FULL"),
        ]

    def _own(self, samples: Samples) -> list[Line]:
        found = []
        for kind, shape in itertools.product(WAYS, SHAPES):
            name, commits = _scripted(kind, shape), COMMITS[kind, shape]
            note = f"{_ms(samples, name):.2f} ms"
            raw = {name: samples[name], RAW: [commits * one for one in samples[COMMIT]]}
            what = f"{name}, against {commits} raw commits"
            found.append(ratio_line(self._what(what), ratios(raw, name, RAW), None, note))
        for kind, shape in itertools.product(WAYS, SHAPES):
            name, calls = _wire(kind, shape), CALLS[shape]
            note = f"{_ms(samples, name):.2f} ms, {calls} {'requests' if calls > 1 else 'request'}"
            found.append(ratio_line(self._what(f"{name}, against {RAW}"), ratios(samples, name, RAW), None, note))
        return found

    def _beside(self, samples: Samples) -> list[Line]:
        """Peers in times of ours."""
        found = []
        for name, shape in ((name, shape) for name in samples for shape in SHAPES if name.endswith(f", peer {shape}")):
            ours = [kind for kind in WAYS if _wire(kind, shape) in samples]
            for kind in ours:
                note = f"{_ms(samples, name):,.1f} ms; {self._durable[name]}"
                what = f"{_wire(kind, shape)}, times the speed of {name.removesuffix(f', peer {shape}')}"
                found.append(
                    ratio_line(
                        self._what(what),
                        ratios(samples, name, _wire(kind, shape)),
                        None,
                        note,
                        peer=name.removesuffix(f", peer {shape}"),
                    )
                )
        return found

    def _what(self, what: str) -> str:
        return f"at {self._messages:,} messages: {what}"


def _asking(peers: PeerProcess, label: str, times: int, anew: int | None) -> Contender:
    return lambda: float(peers.ask("turn", label=label, times=times, anew=anew))


def _scripted(kind: str, shape: str) -> str:
    return f"{kind}, {shape}, scripted"


def _wire(kind: str, shape: str) -> str:
    return f"{kind}, {shape}"


def _peer(name: str, how: str, shape: str) -> str:
    return f"{name}, {how}, peer {shape}"


def _ms(samples: Samples, name: str) -> float:
    return 1_000 * spread(samples[name]).median

"""What packs ask of SQLite, at most. It is counted once, also within a snapshot, which lends one connection again."""

from __future__ import annotations

from pathlib import Path

import pytest

import holdfast
from bench.counting import Counts, counting
from bench.journals import journal
from holdfast import Holdfast
from holdfast.ports import Env
from holdfast.records.batches import HeadQuery


def _asked(env: Env, times: int, *, within: bool) -> Counts:
    with counting(env.journal) as counts:
        if within:
            with env.journal.snapshot():
                for _ in range(times):
                    env.journal.heads("t", HeadQuery(limit=1))
        else:
            for _ in range(times):
                env.journal.heads("t", HeadQuery(limit=1))
    return counts


def test_a_statement_costs_the_same_within_a_snapshot_as_outside(tmp_path: Path) -> None:
    with journal(tmp_path) as env:
        outside = _asked(env, 2, within=False)
        one, three = _asked(env, 1, within=True), _asked(env, 3, within=True)
    assert outside.statements == three.statements - one.statements == 2
    assert outside.vm_steps == three.vm_steps - one.vm_steps > 0
    assert outside.calls == three.calls - one.calls > 0


def test_what_was_counted_stops_with_the_counting(tmp_path: Path) -> None:
    with journal(tmp_path) as env:
        counted = _asked(env, 1, within=True)
        before = counted.statements
        with env.journal.snapshot():
            env.journal.heads("t", HeadQuery(limit=1))
    assert counted.statements == before


WORDS = "the parcel went to Hull by way of Reykjavík; " * 4
ACTOR = "actor/main/session/s/thread/main"
MOST = {"a session, again": 5, "a session, one message later": 6, "a frame, again": 11, "a call": 17}
"""Statements, at most. A call is journaled with its pack, which takes nine of them."""


def _packed(hf: Holdfast, what: str, frame: str) -> None:
    chat = hf.session("s", create=False)
    if what == "a call":
        chat.packs.begin_model_call(chat.pack(600))
    elif what == "a frame, again":
        hf.index.assemble_context_pack(frame=frame)
    else:
        chat.pack(600)


@pytest.mark.parametrize("what", MOST)
def test_a_pack_asks_no_more_than_it_needs(tmp_path: Path, what: str) -> None:
    settings = holdfast.Settings(index_text=0)
    with holdfast.open(str(tmp_path / "a.db"), durability="fast", settings=settings) as hf:
        chat = hf.session("s", system="Be terse.")
        chat.append([WORDS] * 40)
        frame = hf.index.push_frame("work", scope=ACTOR)
        _packed(hf, what, frame)
        if "later" in what:
            chat.append(WORDS)
        with counting(hf.env.journal) as counts:
            _packed(hf, what, frame)
    assert counts.statements <= MOST[what], counts

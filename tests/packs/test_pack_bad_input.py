"""What cannot be packed is refused by name, with what to do, and nothing is written."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Refused
from holdfast.errors import (
    BudgetTooSmall,
    FrameEnded,
    FrameNotFound,
    InvalidValue,
    KeyReused,
    NotFound,
)
from tests.packs.worlds import PLENTY, WIDE

HUGE = 10**12


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    with holdfast.open("memory:" if request.param == "memory" else str(tmp_path / "a.db")) as client:
        yield client


def doors(hf: Holdfast) -> Iterator[Any]:
    """Every way to ask for a pack, by the same names."""
    chat = hf.session("s", model="gpt-4o")
    chat.append("hello")
    frame = hf.frame("work", session="s", limits=WIDE)
    frame.open()
    names = {"budget": "budget_tokens", "include": "include_handles", "exclude": "exclude_handles"}
    yield lambda **asked: chat.pack(**asked)
    yield lambda **asked: frame.pack(**asked)
    yield lambda **asked: hf.index.assemble_context_pack(
        frame=frame.id, **{names.get(key, key): value for key, value in asked.items()}
    )


WRONG: list[dict[str, Any]] = [
    {"budget": 0}, {"budget": -1}, {"budget": True}, {"budget": False}, {"budget": 600.0}, {"budget": "600"},
    {"budget": float("nan")}, {"budget": [600]}, {"budget": 2**63}, {"budget": 10**30},
    {"max_messages": 0}, {"max_messages": -3}, {"max_messages": True}, {"max_messages": 2.5}, {"max_messages": "all"},
    {"layout": "newest"}, {"layout": None}, {"layout": ["stable"]},
    {"stickiness": -0.1}, {"stickiness": 1.0}, {"stickiness": float("nan")}, {"stickiness": "much"},
    {"stickiness": True},
    {"min_compaction": "hard"}, {"min_compaction": None}, {"min_compaction": 2},
    {"tokenizer": "nobody's"}, {"tokenizer": 7}, {"tokenizer": ["o200k_base"]},
    {"include": "h1"}, {"include": [1]}, {"include": None}, {"include": {"h": 1}},
    {"exclude": "h1"}, {"exclude": [None]}, {"exclude": 5},
    {"query": 5}, {"query": ["flight"]}, {"recall": -1}, {"recall": True}, {"recall": "all"},
    {"role": ""}, {"role": "a b\n"}, {"role": None}, {"role": "x" * 1_000},
    {"as_of": HUGE}, {"as_of": -1}, {"as_of": "yesterday"}, {"as_of": 1.5}, {"as_of": True},
]  # fmt: skip


def test_a_value_that_cannot_be_asked_for_is_refused_and_nothing_is_written(hf: Holdfast) -> None:
    for door in doors(hf):
        before = hf.journal.position()
        for wrong in WRONG:
            with pytest.raises(Refused) as raised:
                door(**wrong)
            (name,) = wrong
            assert isinstance(raised.value, InvalidValue | NotFound | BudgetTooSmall), wrong
            assert len(str(raised.value)) < 600, wrong
            assert name in str(raised.value) or isinstance(raised.value, NotFound | BudgetTooSmall), str(raised.value)
        assert hf.journal.position() == before


@pytest.mark.parametrize("budget", [HUGE, 2**53 + 1, 2**62])
def test_a_huge_budget_is_a_budget(hf: Holdfast, budget: int) -> None:
    chat = hf.session("s", model="gpt-4o")
    chat.append(["hello", "there"])
    pack = chat.pack(budget)
    assert (pack.budget, len(pack.messages), pack.level) == (budget, 2, "none")


@pytest.mark.parametrize("text", ["", "  ", "\0", "x" * 50_000, "💥 <data> DROP TABLE", "AND OR NOT *"])
def test_any_question_can_be_asked(hf: Holdfast, text: str) -> None:
    for door in doors(hf):
        door(query=text, recall=3)


def test_names_that_a_model_made_up_are_told_back(hf: Holdfast) -> None:
    invented = ["m57", "s12", "", "../../etc/passwd", "x" * 3_000, "💥", "0" * 26]
    for door in doors(hf):
        pack = door(budget=2_000, include=invented, exclude=[*invented, "others"])
        assert pack.metadata.missing_handles == tuple(invented)
        assert pack.evidence == ()


# frames and sessions


def test_frames_that_are_not_there_or_have_ended_see_nothing(hf: Holdfast) -> None:
    with hf.frame("work") as frame:
        pass
    with pytest.raises(FrameEnded):
        frame.pack()
    with pytest.raises(FrameEnded):
        hf.index.assemble_context_pack(frame=frame.id)
    strange: list[tuple[Any, Any]] = [
        ("0" * 26, FrameNotFound),
        ("nobody", InvalidValue),
        ("", InvalidValue),
        (7, InvalidValue),
    ]
    for wrong, error in strange:
        with pytest.raises(error):
            hf.index.assemble_context_pack(frame=wrong)
    with pytest.raises(FrameNotFound, match="No active frame"):
        hf.index.assemble_context_pack("actor/main")
    with pytest.raises(InvalidValue, match="scope"):
        hf.index.assemble_context_pack()


def test_another_tenants_frame_is_not_there(hf: Holdfast) -> None:
    frame = hf.tenant("a").index.push_frame("work", scope="actor/main")
    with pytest.raises(FrameNotFound):
        hf.tenant("b").index.assemble_context_pack(frame=frame)


# journaling


def test_only_a_pack_of_this_very_line_can_be_journaled(hf: Holdfast) -> None:
    chat, other = hf.session("s"), hf.session("t")
    chat.append("hello")
    pack = chat.pack()
    foreign = hf.tenant("b").session("s")
    foreign.append("hello")
    with hf.frame("work", session="s") as one, one.frame("below") as two:
        before = hf.journal.position()
        strange: list[Any] = ["text", None, {"messages": []}, pack.messages]
        for wrong in strange:
            with pytest.raises(InvalidValue):
                chat.packs.begin_model_call(wrong)
        for refused in (other.pack(), foreign.pack(), two.pack()):
            with pytest.raises(InvalidValue):
                chat.packs.begin_model_call(refused)
        with pytest.raises(InvalidValue, match="frame"):
            hf.index.begin_model_call(one.id, two.pack())
        assert hf.journal.position() == before


def test_a_pack_of_the_past_is_not_a_new_call(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append("hello")
    call = chat.packs.begin_model_call(chat.pack())
    for past in (chat.pack_at(call), chat.pack(as_of=hf.journal.position())):
        with pytest.raises(InvalidValue, match="of the past"):
            chat.packs.begin_model_call(past)


def test_a_key_stands_for_one_pack(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append("hello")
    call = chat.packs.begin_model_call(chat.pack(), key="first")
    assert chat.packs.begin_model_call(chat.pack(), key="first") == call
    chat.append("more")
    with pytest.raises(KeyReused):
        chat.packs.begin_model_call(chat.pack(), key="first")


@pytest.mark.parametrize("call", ["0" * 26, "nobody", "", None, 7])
def test_calls_that_were_never_made_have_no_pack(hf: Holdfast, call: Any) -> None:
    with pytest.raises((NotFound, InvalidValue)):
        hf.session("s").pack_at(call)


def test_a_huge_budget_is_journaled(hf: Holdfast) -> None:
    chat = hf.session("s")
    chat.append("hello")
    call = chat.packs.begin_model_call(chat.pack(HUGE))
    assert chat.pack_at(call).budget == HUGE
    assert chat.pack(PLENTY).cached_share == 0.0
    assert chat.pack(HUGE).cached_share == 1.0

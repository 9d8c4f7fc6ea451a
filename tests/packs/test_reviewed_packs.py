"""What a reviewer found in packs, each as the behaviour that holds now."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Settings
from holdfast.core.packs.handles import is_reserved_name
from holdfast.errors import BudgetTooSmall, FrameNotFound, InvalidValue, SessionClosed
from tests.sessions.provider_rules import anthropic_problems

MODEL = "gpt-4o"


@pytest.fixture
def hf() -> Any:
    with holdfast.open("memory:") as opened:
        yield opened


@pytest.mark.parametrize("name", ["conversation_percent", "included_percent", "memory_percent"])
def test_a_share_is_not_more_than_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidValue, match=name):
        holdfast.open("memory:", settings=Settings(**{name: 101}))
    monkeypatch.setenv(f"HOLDFAST_{name.upper()}", "150")
    with pytest.raises(InvalidValue, match=name):
        holdfast.open("memory:")


def test_a_pack_of_another_journal_is_not_journaled_here(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as one, holdfast.open(tmp_path / "b.db") as other:
        for client in (one, other):
            client.session("x", model=MODEL).append("hello")
        before = other.journal.position()
        with pytest.raises(InvalidValue, match="another journal"):
            other.session("x").packs.begin_model_call(one.session("x").pack(500))
        assert other.journal.position() == before


def test_a_second_client_of_the_same_file_may_journal_a_pack(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as one, holdfast.open(tmp_path / "a.db") as other:
        one.session("x", model=MODEL).append("hello")
        pack = one.session("x").pack(500)
        call = other.session("x").packs.begin_model_call(pack)
        assert one.session("x").pack_at(call).to_openai() == pack.to_openai()


def test_a_pack_is_journaled_for_a_frame_that_sees_it(hf: Holdfast) -> None:
    for name in "ab":
        hf.session(name, model=MODEL).append(f"in {name}")
    inside = hf.index.push_frame("w", scope="actor/main/session/a/thread/main")
    alone = hf.index.push_frame("w", scope="actor/other")
    before = hf.journal.position()
    with pytest.raises(InvalidValue, match="not what frame"):
        hf.index.begin_model_call(inside, hf.session("b").pack(500))
    with pytest.raises(InvalidValue, match=inside):
        hf.session("a").packs.begin_model_call(hf.index.assemble_context_pack(frame=inside))
    with pytest.raises(InvalidValue, match="not what frame"):
        hf.index.begin_model_call(alone, hf.index.assemble_context_pack(frame=inside))
    assert hf.journal.position() == before
    assert hf.index.begin_model_call(inside, hf.session("a").pack(500))
    assert hf.index.begin_model_call(alone, hf.session("b").pack(500)), "a frame of no session may work for one"


def test_what_no_shown_summary_stands_for_is_marked_and_decided(hf: Holdfast) -> None:
    chat = hf.session("s", model=MODEL)
    for number in range(30):
        chat.append(f"how many apples does person number {number} have in the basket? " * 4)
        chat.append({"role": "assistant", "content": f"exactly {number * 7}"})
    for keep in (40, 20, 2):
        chat.compact(keep=keep, max_tokens=400)
    for budget in (250, 600, 4_000):
        pack = chat.pack(budget)
        marked = any("not shown" in message.text for message in pack.messages)
        assert marked == (pack.conversation.truncated_count > 0)
        told = {one.id for one in pack.segments if one.kind == "summary"}
        decided = {one.id: one.outcome for one in pack.decisions if one.kind == "summary"}
        assert len(decided) == len(chat.compaction.summaries()) or pack.conversation.truncated_count
        assert {id for id, outcome in decided.items() if outcome == "summarised"} == told


def test_memories_keep_to_their_share_also_where_everything_would_fit(hf: Holdfast) -> None:
    chat = hf.session("s", model=MODEL)
    chat.append([f"the garage code number {number} is written down here " * 25 for number in range(8)])
    chat.compact(keep=1, store=True)
    for budget in (1_000, 2_000, 8_000):
        pack = chat.pack(budget, recall=5, query="garage code")
        assert pack.token_summary.breakdown.memory <= budget * 15 // 100


@pytest.mark.parametrize("system", [None, "Be terse."])
def test_a_request_of_an_empty_session_is_one_that_is_taken(hf: Holdfast, system: str | None) -> None:
    pack = hf.session("e", model=MODEL, system=system).pack(500)
    assert pack.to_openai()["messages"]
    assert pack.to_responses()["input"]
    assert anthropic_problems(dict(pack.to_anthropic())) == []
    assert pack.to_anthropic()["messages"]


@pytest.mark.parametrize("tokenizer", ["", [], {}, 5])
def test_a_tokenizer_is_named(hf: Holdfast, tokenizer: Any) -> None:
    chat = hf.session("s", model=MODEL)
    with pytest.raises(InvalidValue, match="tokenizer"):
        chat.pack(500, tokenizer=tokenizer)


def test_what_can_be_packed_can_be_journaled(hf: Holdfast) -> None:
    chat = hf.session("s", model=MODEL)
    chat.append("hello")
    assert chat.packs.begin_model_call(chat.pack(2**62))
    with pytest.raises(InvalidValue, match="budget"):
        chat.pack(2**63)


def test_a_frame_and_a_scope_must_agree(hf: Holdfast) -> None:
    frame = hf.index.push_frame("w", scope="actor/a")
    assert hf.index.assemble_context_pack("actor/a", frame).metadata.frame_id == frame
    with pytest.raises(FrameNotFound, match="actor/none"):
        hf.index.assemble_context_pack("actor/none", frame)
    for wrong in (True, 0, -5):
        with pytest.raises(InvalidValue, match="budget"):
            hf.index.assemble_context_pack(frame=frame, budget_tokens=wrong)
    with pytest.raises(BudgetTooSmall):
        hf.index.assemble_context_pack(frame=frame, budget_tokens=499)


def test_no_call_is_begun_for_a_conversation_that_has_ended(hf: Holdfast) -> None:
    chat = hf.session("s", model=MODEL)
    chat.append("hello")
    pack = chat.pack(500)
    chat.close()
    with pytest.raises(SessionClosed):
        chat.packs.begin_model_call(pack)
    assert chat.pack(500).messages, "looking is always possible"


@pytest.mark.parametrize("name", ["m2", "s3", "M7", "m3-m9", "[m2]", "earlier", "Brief", "breadcrumbs", "note1"])
def test_evidence_is_not_called_what_a_pack_calls_its_own_pieces(hf: Holdfast, name: str) -> None:
    frame = hf.index.push_frame("w", scope="actor/a")
    with pytest.raises(InvalidValue, match="Choose another id"):
        hf.index.add_handle(frame, "document", handle=name, body="x")
    assert is_reserved_name(name)
    for free in ("m", "s-3", "mm2", "notes", "h1", "..."):
        assert not is_reserved_name(free)

"""Shares, tokenizers, frames and names that a pack cannot be made with are refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Settings
from holdfast.core.packs.segments import is_reserved_name
from holdfast.errors import BudgetTooSmall, FrameNotFound, InvalidValue

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


@pytest.mark.parametrize("tokenizer", ["", [], {}, 5])
def test_a_tokenizer_is_named(hf: Holdfast, tokenizer: Any) -> None:
    chat = hf.session("s", model=MODEL)
    with pytest.raises(InvalidValue, match="tokenizer"):
        chat.pack(500, tokenizer=tokenizer)


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


@pytest.mark.parametrize("name", ["m2", "s3", "M7", "m3-m9", "[m2]", "earlier", "Brief", "breadcrumbs", "note1"])
def test_evidence_is_not_called_what_a_pack_calls_its_own_pieces(hf: Holdfast, name: str) -> None:
    frame = hf.index.push_frame("w", scope="actor/a")
    with pytest.raises(InvalidValue, match="Choose another id"):
        hf.index.add_handle(frame, "document", handle=name, body="x")
    assert is_reserved_name(name)
    for free in ("m", "s-3", "mm2", "notes", "h1", "..."):
        assert not is_reserved_name(free)

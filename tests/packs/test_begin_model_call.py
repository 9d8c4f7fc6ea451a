"""Journaling a call: the pack and the request in one commit, and once for its key."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.packs.manifest import compute_digest
from holdfast.errors import KeyReused
from holdfast.flow.packs import manifest
from tests.packs.calling_kit import LINE, SCOPE, At
from tests.packs.journaled import sent

MODEL = "gpt-4o"


@pytest.fixture(params=["memory", "sqlite"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[At]:
    made = At(tmp_path, "memory:" if request.param == "memory" else str(tmp_path / "a.db"))
    yield made
    made.hf.close()


# what is written


def test_the_pack_and_the_request_are_one_append_over_two_streams(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    journal: Any = at.hf.env.journal
    original, batches = journal.append, list[Any]()
    monkeypatch.setattr(journal, "append", lambda batch: batches.append(batch) or original(batch))
    pack, before = at.pack(), at.hf.journal.position()
    call = at.hf.index.begin_model_call(at.frame, pack, model="gpt-4o-mini", request={"temperature": 0})
    assert [part.stream for batch in batches for part in batch.parts] == [SCOPE, LINE]
    asked, shown = at.new(before)
    assert (asked.type, asked.stream, shown.type, shown.stream) == ("model.requested", SCOPE, "context.packed", LINE)
    assert (asked.id, asked.facts.call, shown.facts.call) == (call, call, call)
    assert asked.facts.pack == shown.facts.pack == shown.id != call
    assert asked.facts.context_hash == shown.facts.digest == pack.digest
    assert (asked.facts.model, asked.facts.frame, shown.facts.frame) == ("gpt-4o-mini", at.frame, at.frame)
    assert asked.content.arguments == {"temperature": 0}
    assert (shown.facts.budget, shown.facts.used, shown.facts.role) == (pack.budget, pack.tokens, "main")
    assert shown.content is None
    assert at.hf.index.pack_at(shown.id).digest == at.hf.index.pack_at(call).digest == pack.digest


def test_a_manifest_holds_no_text(at: At) -> None:
    at.chat.append("a canary that was said")
    at.chat.compact(keep=1, summarizer=lambda messages, *, max_tokens: "a canary that was summed up")
    at.hf.index.add_handle(at.frame, "event_ref", body="a canary that was attached", description="a canary beside it")
    at.hf.index.set_brief("session/s", working_context="a canary that is worked on", invariants=["a canary"])
    pack = at.pack()
    assert str(sent(pack)).count("canary") > 4
    before = at.hf.journal.position()
    at.hf.index.begin_model_call(at.frame, pack)
    assert "canary" not in repr([(event.facts, event.content) for event in at.new(before)])


def test_the_frame_knows_what_it_was_shown_last(at: At) -> None:
    assert at.hf.index.get_frame(at.frame).context_hash is None
    for text in ("four", "five"):
        at.chat.append(text)
        pack = at.pack()
        call = at.hf.index.begin_model_call(at.frame, pack)
        assert at.hf.index.get_frame(at.frame).context_hash == pack.digest
        at.hf.index.end_model_call(at.frame, call)
        assert at.hf.index.get_frame(at.frame).context_hash == pack.digest
    at.hf.index.begin_model_call(at.frame)
    assert at.hf.index.get_frame(at.frame).context_hash == pack.digest


def test_each_pack_of_a_line_names_the_one_before_it(at: At) -> None:
    calls = []
    for _ in range(3):
        calls.append(at.chat.packs.begin_model_call(at.chat.pack()))
        at.chat.append("and on")
        calls.append(at.hf.index.begin_model_call(at.frame, at.pack()))
        at.hf.index.end_model_call(at.frame, calls[-1])
    found = list(manifest.iter_packs(at.hf.env, LINE))
    assert [event.facts.call for event in found] == calls[::-1]
    assert found[-1].facts.before == 0


def test_a_session_s_own_call_has_the_id_of_its_pack(at: At) -> None:
    before = at.hf.journal.position()
    call = at.chat.packs.begin_model_call(at.chat.pack())
    (shown,) = at.new(before)
    assert (shown.id, shown.facts.call, shown.facts.frame, shown.stream) == (call, call, None, LINE)


def test_a_frame_that_has_said_nothing_has_a_line_from_its_first_call_on(at: At) -> None:
    child = at.hf.index.push_frame("a part of it", parent=at.frame, inputs={"n": 1})
    for _ in range(2):
        before = at.hf.journal.position()
        call = at.hf.index.begin_model_call(child, at.pack(child))
        at.hf.index.end_model_call(child, call)
    assert [event.type for event in at.hf.journal.events(f"frame/{child}")] == [
        "thread.opened",
        *["context.packed"] * 2,
    ]
    assert [event.stream for event in at.new(before)][:2] == [SCOPE, f"frame/{child}"]
    assert at.hf.index.pack_at(call).metadata.scope == f"frame/{child}"
    assert at.hf.journal.verify().findings == ()


def test_counts_that_a_pack_was_first_to_need_are_journaled_with_it_once(at: At) -> None:
    for number in range(2):
        before = at.hf.journal.position()
        call = at.hf.index.begin_model_call(at.frame, at.pack(tokenizer="cl100k_base"))
        at.hf.index.end_model_call(at.frame, call)
        counted = [event for event in at.new(before) if event.type == "tokens.counted"]
        assert [one.facts.tokenizer for one in counted] == ["cl100k_base"] * (number == 0)
    assert at.hf.journal.verify().findings == ()


# once for its key


def test_a_key_stands_for_one_call_whatever_happened_since(at: At) -> None:
    call = at.hf.index.begin_model_call(at.frame, at.pack(), key="k")
    shown = sent(at.hf.index.pack_at(call))
    before = at.hf.journal.position()
    assert at.hf.index.begin_model_call(at.frame, at.pack(), key="k") == call
    at.chat.append("meanwhile")
    (at.folder / "docs" / "a.md").write_text("another text, also kept beside the journal " * 10)
    assert at.hf.index.begin_model_call(at.frame, at.pack(), key="k") == call
    at.hf.index.end_model_call(at.frame, call)
    assert at.hf.index.begin_model_call(at.frame, at.pack(), key="k") == call
    assert [event.type for event in at.new(before)] == ["message.appended", "model.responded"]
    assert sent(at.hf.index.pack_at(call)) == shown
    assert len(at.files()) <= 1, "the copy that was not needed is withdrawn"
    for other in ({"model": "gpt-4o-mini"}, {"request": 1}, {"if_interrupted": "ask"}):
        with pytest.raises(KeyReused):
            at.hf.index.begin_model_call(at.frame, at.pack(), key="k", **other)
    with pytest.raises(KeyReused):
        at.hf.index.begin_tool_call(at.frame, "look", key="k")


def test_a_session_s_key_stands_for_what_was_shown(at: At) -> None:
    call = at.chat.packs.begin_model_call(at.chat.pack(), key="k")
    before = at.hf.journal.position()
    assert at.chat.packs.begin_model_call(at.chat.pack(), key="k") == call
    assert at.hf.journal.position() == before
    at.chat.append("meanwhile")
    with pytest.raises(KeyReused):
        at.chat.packs.begin_model_call(at.chat.pack(), key="k")


def test_journaling_a_pack_does_not_change_the_next_one(at: At) -> None:
    """So a retry after a crash shows the same: the window stays where the dead process put it."""
    for number in range(60):
        at.chat.append(f"message {number} " * 20)
        for how in ({}, {"stickiness": 0}, {"layout": "classic"}, {"min_compaction": "aggressive"}):
            pack = at.chat.pack(600, **how)  # type: ignore[arg-type]
            if number % 3 == 0:
                at.chat.packs.begin_model_call(pack)
                assert at.chat.pack(600, **how).digest == pack.digest  # type: ignore[arg-type]


def test_a_digest_says_nothing_to_who_does_not_have_the_journal(at: At) -> None:
    made = at.pack()._packed
    secret = at.hf.env.journal.secret
    names = {
        compute_digest(secret, "default", made),
        compute_digest(secret, "other", made),
        compute_digest(b"x" * 32, "default", made),
    }
    assert len(names) == 3
    assert at.pack().digest == compute_digest(secret, "default", made)


def test_a_second_client_of_the_same_file_may_journal_a_pack(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as one, holdfast.open(tmp_path / "a.db") as other:
        one.session("x", model=MODEL).append("hello")
        pack = one.session("x").pack(500)
        call = other.session("x").packs.begin_model_call(pack)
        assert one.session("x").pack_at(call).to_openai() == pack.to_openai()

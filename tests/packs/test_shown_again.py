"""Packs that are shown again: what was compacted comes back, what is not right is found, and what it all costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from bench.counting import Counts, counting
from holdfast import Holdfast, Settings
from holdfast.errors import CallNotFound, InvalidValue, NewerSchema, NotFound
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.flow.packs import manifest
from holdfast.records.events.calls import PackedPiece
from holdfast.records.events.envelope import Draft
from holdfast.records.ids import ulid_text
from holdfast.testing.clock import FrozenClock
from tests.packs.everything import Once
from tests.packs.journaled import check, noted, opened, sent
from tests.scale import volume

# what was compacted comes back as it was


@pytest.mark.parametrize("strategy", ["priority", "policy_trim", "mine"])
def test_evidence_that_was_compacted_away_comes_back_byte_for_byte(tmp_path: Path, strategy: str) -> None:
    def mine(segments: Any, budget: int) -> Any:
        return [one for one in segments if one.priority == "critical"]

    with opened(tmp_path, strategies={"mine": mine}) as hf:
        once = Once(hf)
        once.all()
        (frame,) = [one.id for _, frames in hf.index.stacks() for one in frames if one.goal == "everything"][:1]
        index = hf.index
        pack = index.assemble_context_pack(frame=frame)
        calls = [noted(index.begin_model_call(frame, pack), pack, lambda cursor: pack), *once.calls]
        before, bodies = sent(pack), index.handles(frame)
        for target in (0, 500, 2_000):
            made = index.compact_context(frame, target, strategy)
            assert made.id is not None
            assert made.items_removed > 0
            assert sent(index.assemble_context_pack(frame=frame)) != before
            check(hf, calls if target == 0 else calls[:1])  # Nothing is left then that could be shown by chance.
            restored = index.restore_handles(frame, made.id)
            assert len(restored) == made.items_removed
            assert index.handles(frame) == bodies
            assert sent(index.assemble_context_pack(frame=frame)) == before
        check(hf, calls)


# what is looked at when a journal is checked


@pytest.mark.parametrize(
    "wrong",
    [
        {"digest": "00" * 32},
        {"manifest": ()},
        {"manifest": (PackedPiece(kind="summary", id="s1", stream="session/s/thread/main", first=1),)},
        {"manifest": (PackedPiece(kind="evidence", id="h", part="url", artifact="00" * 32),)},
        {"manifest": (PackedPiece(kind="evidence", id="h", part="event_ref", stream="actor/nobody", first=7),)},
        {"manifest": (PackedPiece(kind="brief", id="brief", part="of a later release"),)},
        {"manifest": (PackedPiece(kind="conversation", id="m9", stream="session/s/thread/main", first=9, last=9),)},
        {"renderer": 99},
    ],
)
def test_a_check_of_packs_finds_one_that_cannot_be_shown_as_it_was(tmp_path: Path, wrong: dict[str, Any]) -> None:
    with opened(tmp_path) as hf:
        chat = hf.session("s")
        chat.append("hello")
        chat.packs.begin_model_call(chat.pack())
        event = next(iter(hf.journal.events("session/s/thread/main", types=["context.packed"])))
        id = ulid_text(hf.env.ids.ulid())
        facts = msgspec.structs.replace(event.facts, pack=id, call=id, before=event.version, **wrong)
        draft = Draft(type="context.packed", facts=facts, id=id)
        append_events(hf.env, [StreamWrite(stream="session/s/thread/main", events=(draft,))])
        assert hf.journal.verify().findings == ()
        (found,) = hf.journal.verify(packs=True).findings
        assert (found.kind, found.where) == ("packs", f"default session/s/thread/main version {event.version + 1}")


def test_only_calls_that_were_given_a_pack_have_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(tmp_path) as hf:
        chat = hf.session("s")
        said = chat.append("hello")
        call = chat.packs.begin_model_call(chat.pack())
        frame = hf.index.push_frame("work", scope="actor/main")
        bare = hf.index.begin_model_call(frame)
        with pytest.raises(NotFound, match="begun without a pack"):
            hf.index.pack_at(bare)
        for other in (said.id, "0" * 26):
            with pytest.raises(CallNotFound):
                chat.pack_at(other)
        for bad in ("", "m1", "no id", None, 7):
            with pytest.raises(InvalidValue):
                chat.pack_at(bad)  # type: ignore[arg-type]
        with pytest.raises(CallNotFound):
            hf.tenant("other").index.pack_at(call)
        monkeypatch.setattr(manifest, "RENDERER_VERSION", 2)
        later = chat.packs.begin_model_call(chat.pack())
        with pytest.raises(NewerSchema):
            chat.pack_at(later)
        assert chat.pack_at(call).messages[0].text == "hello"


# cost


def statements(hf: Holdfast, call: str) -> Counts:
    with counting(hf.env.journal) as counts:
        hf.index.pack_at(call)
    return counts


def test_rebuilding_costs_what_the_pack_is_and_not_what_the_history_is(tmp_path: Path) -> None:
    with opened(tmp_path) as hf:
        found = []
        chat = hf.session("s", model="gpt-4o", system="You are terse.", tokenizer="o200k_base")
        frame = hf.index.push_frame("work", scope="actor/a/session/s/thread/main")
        for number in range(5):
            hf.index.add_handle(frame, "event_ref", body=f"evidence {number}")
        for size in (volume(500, 1_000), volume(4_000, 20_000)):
            said = [{"role": ("user", "assistant")[n % 2], "content": f"message {n}"} for n in range(len(chat), size)]
            chat.import_messages([*said[:-1], {"role": "user", "content": "the newest"}])
            pack = hf.index.assemble_context_pack(frame=frame, budget_tokens=1_000, max_messages=20)
            early = hf.index.begin_model_call(frame, pack)
            found.append(statements(hf, early))
            hf.index.end_model_call(frame, early)
        few, many = found
        again = statements(hf, early)
        print(f"rebuilt with {few} of few and {many} of many messages")
        assert few.statements == many.statements == again.statements
        assert abs(many.vm_steps - few.vm_steps) <= 0.1 * few.vm_steps
        assert many.calls == few.calls


def test_messages_that_follow_each_other_are_one_piece_and_one_read(tmp_path: Path) -> None:
    with opened(tmp_path) as hf:
        chat = hf.session("s", tokenizer="o200k_base")
        counted = []
        for number in range(80):
            chat.append(f"message {number}")
            if number in (39, 79):
                counted.append(statements(hf, chat.packs.begin_model_call(chat.pack())))
        assert counted[0].statements == counted[1].statements


def test_what_is_kept_for_a_pack_is_not_cleared_away(tmp_path: Path) -> None:
    """Also a page that a later pack shows from the copy of an earlier one, whose handle is gone since."""
    clock = FrozenClock()
    settings = Settings(inline_artifact_bytes=10)
    with opened(tmp_path, clock=clock, settings=settings) as hf:
        (tmp_path / "docs" / "a.md").write_text("a text that is kept in a file beside the journal")
        frame = hf.index.push_frame("work", scope="actor/main")
        hf.index.add_handle(frame, "document", handle="file", target="file:a.md")
        hf.index.add_handle(frame, "url", handle="page", target="https://example.com/")
        calls = []
        for _ in range(3):
            pack = hf.index.assemble_context_pack(frame=frame)
            calls.append(noted(hf.index.begin_model_call(frame, pack), pack, lambda cursor, made=pack: made))
            hf.index.end_model_call(frame, calls[-1].call)
        hf.index.remove_handle(frame, ["file", "page"])
        clock.advance(3 * 86_400_000)
        assert hf.journal.collect() == 0
        check(hf, calls)
        assert len({one.digest for one in calls}) == 1, "later calls are shown the page that the first was shown"


def test_tenants_have_packs_of_their_own(tmp_path: Path) -> None:
    with opened(tmp_path) as hf:
        made = []
        for client in (hf.tenant("acme"), hf.tenant("other")):
            frame = client.index.push_frame("work", scope="actor/main")
            client.index.add_handle(frame, "event_ref", handle="h", body="the same")
            pack = client.index.assemble_context_pack(frame=frame)
            call = client.index.begin_model_call(frame, pack)
            assert sent(client.index.pack_at(call)) == sent(pack)
            made.append((call, pack))
        (first, one), (_, other) = made
        # The same words have another name and other marks: nobody learns of a tenant what another has.
        assert one.digest != other.digest
        assert sent(one) != sent(other)
        with pytest.raises(CallNotFound):
            hf.tenant("other").index.pack_at(first)

"""Every pack that a model was given is given again, byte for byte: after changes, after moving, and at its own cost."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import Corrupt, Holdfast
from holdfast.core.packs import fences, segments
from holdfast.core.sessions import shorten
from holdfast.errors import CallNotFound
from holdfast.flow.packs import rebuild
from tests.packs.everything import EVERYTHING, Once
from tests.packs.journaled import Shown, check, opened, sent
from tests.packs.working_kit import AtWork
from tests.scale import seeded, volume

CALLS = volume(200, 1_000)


class Worked:
    """A run of calls, and the folder that its journal is in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hf = opened(folder)
        self.work = AtWork(self.hf, folder, seeded("journaled packs"))
        self.work.work(CALLS)
        self.work.calls += Once(self.hf).all()
        (folder / "docs" / "a.md").write_text("something else since")
        self.hf.state("custom/notes/id/1").write("p", "something else since")

    @property
    def missing(self) -> set[str]:
        return EVERYTHING.difference(*(one.kinds for one in self.calls))

    @property
    def calls(self) -> list[Shown]:
        return self.work.calls


@pytest.fixture(scope="module")
def worked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    made = Worked(tmp_path_factory.mktemp("packs"))
    yield made
    made.hf.close()


def test_a_run_had_everything_that_a_pack_can_have(worked: Worked) -> None:
    seen = Counter(kind for one in worked.calls for kind in one.kinds)
    print(f"{len(worked.calls)} calls, {worked.work.refused} refusals, {dict(sorted(seen.items()))}")
    assert len(worked.calls) == len({one.call for one in worked.calls}) >= CALLS
    assert worked.missing == set()


def test_every_journaled_pack_is_rebuilt_as_it_was_shown(worked: Worked) -> None:
    check(worked.hf, worked.calls)
    assert worked.hf.journal.verify().findings == ()


def test_also_after_everything_was_compacted_rewound_unpinned_and_set_anew(worked: Worked) -> None:
    for chat in worked.work.lines:
        chat.compact(keep=1, whole=True, store=True)
        chat.append("and on it goes")
        chat.rewind(to=chat.append("no further"))
        chat.packs.set_brief("main", system_prompt="another one")
    for frame in worked.work.frames:
        own = [one.id for one in worked.hf.index.handles(frame) if one.removed is None]
        worked.hf.index.remove_handle(frame, own)
    worked.hf.session("s0", system="Another one.", tools=[])
    check(worked.hf, worked.calls)


def test_also_after_a_rebuild_a_restart_and_under_other_settings(worked: Worked) -> None:
    worked.hf.journal.rebuild()
    check(worked.hf, worked.calls)
    settings = holdfast.Settings(abbreviate_chars=50, conversation_percent=20, breadcrumb_tokens=20, cached_streams=0)
    with opened(worked.folder, settings=settings, fetcher=None, tokenizer=len, redact=str.upper) as again:
        check(again, worked.calls)


def test_also_in_a_journal_that_everything_was_moved_to(worked: Worked, tmp_path: Path) -> None:
    worked.hf.journal.export(tmp_path / "all.jsonl")
    for url in (str(tmp_path / "b.db"), "memory:"):
        with holdfast.open(url, durability="fast") as moved:
            moved.journal.import_(tmp_path / "all.jsonl")
            check(moved, worked.calls)


def test_as_of_the_cursor_that_it_was_made_at_the_same_pack_is_made(worked: Worked) -> None:
    """From what the journal said then; what files and pages said then, it only knows of calls."""
    outside = {"document", "url"}
    sample = [one for one in worked.calls if not one.kinds & outside][:: CALLS // 16]
    assert len(sample) > 10
    for one in sample:
        pack = one.again(one.cursor)
        assert (pack.digest, pack.metadata.reconstructed) == (one.digest, True)
        assert sent(pack) == one.requests
    hf = worked.hf
    assert hf.env.past is not None
    then = Holdfast(hf.env.past(hf.env, worked.calls[CALLS // 2].cursor), owner=False)
    check(then, worked.calls[: CALLS // 2 : volume(4, 1)])
    with pytest.raises(CallNotFound):
        then.index.pack_at(worked.calls[-1].call)


def test_messages_that_a_summary_stands_for_are_what_was_said(worked: Worked) -> None:
    chat = worked.hf.session("said")
    for number in range(6):
        chat.append([f"  message {number}\n\n\n\twith blanks  ", {"role": "assistant", "content": "x" * 3_000}])
    before = chat.messages()
    made = chat.compact(keep=2)
    assert made is not None
    assert chat.compaction.expand(made) == before[: made.messages]
    assert chat.messages() == before


def test_a_check_of_packs_finds_nothing_wrong_in_a_sound_journal(worked: Worked) -> None:
    assert worked.hf.journal.verify(packs=True).findings == ()


# a pack that is not what it was is never given out


@pytest.mark.parametrize(
    ("where", "name", "planted"),
    [
        (segments, "EARLIER_TEXT", "[{} messages before]"),
        (segments, "fence_text", lambda label, text, mark: f"{label}\n<text {mark}>\n{text}\n</text {mark}>"),
        (segments, "WORK_LABEL", "This is part of:"),
        (segments, "SUMMARY_LABEL", "Summary:"),
        (shorten, "omission_marker", lambda left_out, name=None: f"[{left_out} left out]"),
        (rebuild, "evidence_label", lambda id, kind, trust: f"Evidence {id}:"),
        (rebuild, "prepend_description", lambda description, text: text),
        (fences, "_FENCE_LIKE", re.compile("(nothing)")),
    ],
)
def test_another_rendering_is_noticed(
    worked: Worked, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, planted: Any
) -> None:
    monkeypatch.setattr(where, name, planted)
    with pytest.raises(Corrupt, match="is not what it was"):
        check(worked.hf, worked.calls)


def test_a_forgotten_cut_a_lost_piece_and_another_order_are_noticed(
    worked: Worked, monkeypatch: pytest.MonkeyPatch
) -> None:
    def all_whole(messages: Any, recipe: Any, line: str) -> tuple[list[Any], int]:
        return list(messages), 0

    def one_less(run: Any) -> Any:
        return grouped(run)[:-1]

    def turned(run: Any) -> Any:
        return [grouped(run)[0], *grouped(run)[:0:-1]]

    grouped = rebuild._PackRebuilder._group_pieces
    for where, name, planted in (
        (rebuild, "remake_round", all_whole),
        (rebuild._PackRebuilder, "_group_pieces", one_less),
        (rebuild._PackRebuilder, "_group_pieces", turned),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, planted)
            with pytest.raises(Corrupt, match="is not what it was"):
                check(worked.hf, worked.calls)


def test_marks_for_the_cache_are_where_they_were(worked: Worked, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not part of what is said, so the digest does not know them: requests are compared as well."""
    made = rebuild._PackRebuilder._assemble_pack

    def forgotten(run: Any, *given: Any) -> Any:
        return msgspec.structs.replace(made(run, *given), stable=0)

    monkeypatch.setattr(rebuild._PackRebuilder, "_assemble_pack", forgotten)
    with pytest.raises(AssertionError):
        check(worked.hf, worked.calls)

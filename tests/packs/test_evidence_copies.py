"""What a model was shown of pages and files is what it is shown later, also of the past."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import ContextPack, Frame, Holdfast
from holdfast.extras.documents import DocumentRoot
from holdfast.flow.packs import evidence
from holdfast.flow.packs.manifest import iter_packs
from holdfast.records.frames import Limits

WIDE = Limits(context_tokens=50_000)
PAGE = "https://example.com/"


class Web:
    """A page that is another one each time."""

    def __init__(self) -> None:
        self.fetched = 0

    def fetch(self, url: str) -> str:
        self.fetched += 1
        return f"page {self.fetched}"


@pytest.fixture
def web() -> Web:
    return Web()


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, web: Web) -> Iterator[Holdfast]:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("the file at first")
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url, documents=DocumentRoot(tmp_path / "docs"), fetcher=web, durability="fast") as client:
        yield client


def call(hf: Holdfast, frame: Frame, **how: Any) -> str:
    """A journaled model call of a frame; gives what it showed as evidence."""
    pack = frame.pack(20_000, **how)
    made = hf.index.begin_model_call(frame.id, pack=pack)
    hf.index.end_model_call(frame.id, made, response="ok")
    return told(pack)


def told(pack: ContextPack) -> str:
    return " ".join(one.content.splitlines()[-1] for one in pack.evidence)


# pages


def test_a_page_stays_as_it_was_first_shown_however_long_it_was_not_shown(
    hf: Holdfast, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hf.frame("Work", limits=WIDE) as frame:
        frame.attach("url", handle="web", target=PAGE)
        assert call(hf, frame) == "page 1"
        for _ in range(40):
            assert call(hf, frame, exclude=["web"]) == ""
        assert (call(hf, frame), web.fetched) == ("page 1", 1)
        for _ in range(20):
            call(hf, frame, exclude=["web"])
        monkeypatch.setattr(evidence, "MAX_COPY_PACKS", 16)
        assert (call(hf, frame), web.fetched) == ("page 2", 2)


def test_a_child_is_shown_what_its_ancestors_were_shown(hf: Holdfast, web: Web) -> None:
    hf.session("s").append("Look at the page.")
    with hf.frame("Work", session="s", limits=WIDE) as root:
        root.attach("url", handle="web", target=PAGE)
        assert call(hf, root) == "page 1"
        with root.frame("Below", inherit=["web"], limits=WIDE) as child:
            assert call(hf, child) == "page 1"
            with child.frame("Deeper", inherit=["web"], limits=WIDE) as leaf:
                assert call(hf, leaf) == "page 1"
        with root.frame("Asks for it", limits=WIDE) as asking:
            assert call(hf, asking, include=["web"]) == "page 1"
    assert web.fetched == 1


def test_a_grandchild_is_shown_what_only_its_parent_was_shown(hf: Holdfast, web: Web) -> None:
    with hf.frame("Work", limits=WIDE) as root:
        root.attach("url", handle="web", target=PAGE)
        with root.frame("Below", inherit=["web"], limits=WIDE) as child:
            assert call(hf, child) == "page 1"
            with child.frame("Deeper", inherit=["web"], limits=WIDE) as leaf:
                assert call(hf, leaf) == "page 1"
    assert web.fetched == 1


def test_handles_of_one_name_are_not_taken_for_each_other(hf: Holdfast, web: Web) -> None:
    """Two actors of one session share its line, and their streams have the same versions."""
    hf.session("s").append("Look.")
    for actor in ("ann", "bob"):
        with hf.frame("Work", actor=actor, session="s", limits=WIDE) as frame:
            frame.attach("url", handle="web", target=f"{PAGE}{actor}")
            call(hf, frame)
            assert call(hf, frame) == f"page {web.fetched}"
    assert web.fetched == 2
    with hf.frame("Work", actor="ann", session="s", limits=WIDE) as frame:
        frame.attach("url", handle="web", target=PAGE)
        frame.pack(20_000)
        frame.attach("url", handle="web", target=f"{PAGE}other")
        assert call(hf, frame) == f"page {web.fetched}"
        assert web.fetched == 4


def test_packs_are_read_only_back_to_where_a_page_was_attached(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[Any] = []
    with hf.frame("Work", limits=WIDE) as frame:
        for _ in range(30):
            call(hf, frame)
        for number in range(5):
            frame.attach("url", handle=f"web{number}", target=PAGE)

        def noted(*how: Any) -> Iterator[Any]:
            for one in iter_packs(*how):
                read.append(one)
                yield one

        monkeypatch.setattr(evidence, "iter_packs", noted)
        call(hf, frame)
        call(hf, frame)
    assert len(read) == 1 + 1


# the past


def test_the_past_reads_no_file_and_no_page_as_they_are_now(hf: Holdfast, web: Web, tmp_path: Path) -> None:
    with hf.frame("Work", limits=WIDE) as frame:
        frame.attach("document", handle="file", target="file:a.md", priority="high")
        frame.attach("url", handle="web", target=PAGE)
        before = hf.journal.position()
        assert call(hf, frame) == "the file at first page 1"
        then = hf.journal.position()
        (tmp_path / "docs" / "a.md").write_text("the file now")
        assert call(hf, frame) == "the file now page 1"
        past = frame.pack(20_000, as_of=then)
        assert (told(past), past.metadata.failed, past.metadata.reconstructed) == ("the file at first page 1", {}, True)
        assert told(frame.pack(20_000, as_of=hf.journal.position())) == "the file now page 1"
        earlier = frame.pack(20_000, as_of=before)
        assert (told(earlier), set(earlier.metadata.failed)) == ("", {"file", "web"})
    assert web.fetched == 1

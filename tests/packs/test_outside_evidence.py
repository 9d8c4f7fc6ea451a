"""Evidence from files and the web: only with leave, never trusted, redacted first. And what following costs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import holdfast
from holdfast import Unavailable
from holdfast.errors import EvidenceFailed
from holdfast.extras.documents import DocumentRoot
from holdfast.flow.packs import handles
from tests.packs.evidence_kit import Evidence, handle_to


@pytest.fixture(params=["memory", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[holdfast.Holdfast]:
    url = "memory:" if request.param == "memory" else str(tmp_path / "a.db")
    with holdfast.open(url) as client:
        yield client


class Web:
    """Gives what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer, self.asked = answer, list[str]()

    def fetch(self, url: str) -> Any:
        self.asked.append(url)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def test_nothing_outside_is_read_unless_the_client_was_given_leave(hf: holdfast.Holdfast) -> None:
    at = Evidence(hf)
    with pytest.raises(EvidenceFailed, match=r"fetcher=HttpsFetcher"):
        at.follow("url", "https://example.com/")
    with pytest.raises(EvidenceFailed, match=r"documents=DocumentRoot"):
        at.follow("document", "file:a.md")


def test_files_and_pages_are_marked_as_from_outside_and_never_trusted(hf: holdfast.Holdfast, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("of a file")
    web = Web("of a page")
    at = Evidence(hf, documents=DocumentRoot(tmp_path / "docs"), fetcher=web)
    file = at.follow("document", "file:a.md", trust="system")
    page = at.follow("url", "https://example.com/a?b#c", trust="system")
    assert (file.text, file.trust, file.outside, file.source) == ("of a file", "external", True, "file a.md")
    assert (page.text, page.trust, page.outside) == ("of a page", "external", True)
    assert (page.stream, page.artifact, web.asked) == (None, None, ["https://example.com/a?b#c"])
    with pytest.raises(EvidenceFailed, match="must lead down"):
        at.follow("document", "file:../a.md")
    pinned = replace(page, outside=False, artifact=at.keep(page.text.encode()))
    assert at.again(pinned) == page.text


@pytest.mark.parametrize(
    "answer", [ValueError("boom"), Unavailable("later"), RuntimeError(), None, b"bytes", "a\0b", "\ud800", 7]
)
def test_whatever_a_fetcher_does_is_a_reason(hf: holdfast.Holdfast, answer: Any) -> None:
    with pytest.raises(EvidenceFailed) as raised:
        Evidence(hf, fetcher=Web(answer)).follow("url", "https://example.com/")
    assert raised.value.reason


def test_what_comes_from_outside_is_redacted_before_anybody_sees_it(hf: holdfast.Holdfast) -> None:
    redact = lambda text: text.replace("4111", "[card]")  # noqa: E731
    at = Evidence(hf, fetcher=Web("pay with 4111"), redact=redact)
    assert at.follow("url", "https://example.com/").text == "pay with [card]"

    def broken(text: str) -> str:
        raise KeyError

    with pytest.raises(EvidenceFailed, match="redaction"):
        Evidence(hf, "actor/two", fetcher=Web("x"), redact=broken).follow("url", "https://example.com/")


# cost


class Counting:
    """A journal that counts what is asked of it."""

    def __init__(self, journal: Any) -> None:
        self._journal, self.asked = journal, list[str]()

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._journal, name)


def test_following_a_handle_takes_a_few_reads_however_long_the_history_is(hf: holdfast.Holdfast) -> None:
    costs = []
    for length in (10, 200):
        at = Evidence(hf, f"actor/a{length}")
        said = hf.session(f"s{length}").append([f"message {number}" for number in range(length)])
        for number in range(length):
            hf.state(f"user/{length}").write("key", number)
        call = hf.index.begin_tool_call(at.frame, "t")
        hf.index.end_tool_call(at.frame, call, value="x")
        journal = Counting(at.env.journal)
        env = replace(at.env, journal=journal)
        targets = [("event_ref", said[0].id), ("event_ref", f"{said[0].stream}@{said[-1].version}"),
                   ("tool_output", call), ("document", f"state:user/{length}#key")]  # fmt: skip
        for kind, target in targets:
            found = handles.resolve_handle(env, at.scope, handle_to(kind, target))
            handles.reload_evidence(env, handles.evidence_origin(at.scope, handle_to(kind, target), found))
        costs.append(journal.asked)
    assert costs[0] == costs[1]
    assert set(costs[0]) <= {"capabilities", "event", "read", "events_by_key", "entry"}
    assert len(costs[0]) <= 10

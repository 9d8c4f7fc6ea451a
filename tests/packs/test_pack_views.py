"""A pack that is shown again says about itself what it said then, and shows no more than who asks may see."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast import ContextPack, Frame, Holdfast, Session, Settings
from holdfast.cli.main import main
from holdfast.core.packs import manifest
from holdfast.errors import CallNotFound, InvalidValue
from holdfast.extras.documents import DocumentRoot
from holdfast.flow.packs import expand, rebuild

PROSE = "We talked about the usual things over lunch. "
TOOL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
WIDE = holdfast.Limits(context_tokens=100_000)


class Page:
    """A page of the web."""

    def fetch(self, url: str) -> str:
        return f"the page {url}"


def begun(frame: Frame) -> Frame:
    """Work whose calls nobody ends."""
    frame.open()
    return frame


@pytest.fixture
def hf(tmp_path: Path) -> Iterator[Holdfast]:
    (tmp_path / "a.md").write_text("of a file")
    beside: dict[str, Any] = {"documents": DocumentRoot(tmp_path), "fetcher": Page()}
    with holdfast.open(tmp_path / "a.db", durability="fast", settings=Settings(abbreviate_chars=300), **beside) as made:
        yield made


@pytest.fixture
def chat(hf: Holdfast) -> Session:
    """A line with instructions, prose to be tidied and to be cut, a long result, and something pinned."""
    chat = hf.session("s", model="gpt-4o", system="Be kind.")
    chat.append({"role": "system", "content": "Speak of amber."})
    chat.append(f"{PROSE}\n\n\n\n{PROSE}")
    chat.append(PROSE * 20, policy="pinned")
    said = chat.append({"role": "assistant", "content": None, "tool_calls": [TOOL]})
    chat.append_result(said.tool_calls[0], "amber birch " * 300)
    for turn in range(4):
        chat.append([f"And then? {turn}", {"role": "assistant", "content": f"Nothing. {turn}"}])
    chat.append(f"The last one. {'cobalt ' * 200}")
    return chat


@pytest.fixture
def frame(hf: Holdfast, chat: Session) -> Frame:
    """Work of the session, with evidence of every kind and work below it."""
    frame = begun(hf.frame("Plan the trip", session="s", limits=WIDE))
    hf.state("custom/notes/id/1").write("k", "of the state")
    hf.journal.append("custom/notes/id/2", "app.kept", {"text": "of an event"}, files=[b"of an artifact"])
    event = next(iter(hf.journal.events("custom/notes/id/2", types=["app.kept"])))
    frame.attach("event_ref", target=event.id, handle="event")
    frame.attach("artifact", target=event.facts.artifacts[0], handle="artifact")
    frame.attach("document", target="state:custom/notes/id/1#k", handle="state")
    frame.attach("document", target="file:a.md", handle="file")
    frame.attach("url", target="https://example.com/", handle="page", priority="high")
    frame.attach("document", handle="body", body="words " * 400, priority="critical")
    frame.attach("document", handle="unwanted", body="no", priority="background")
    return frame


def shown_again(hf: Holdfast, frame: Frame, **how: Any) -> tuple[ContextPack, ContextPack]:
    pack = frame.pack(**how)
    return pack, hf.index.pack_at(hf.index.begin_model_call(frame.id, pack))


def plain(pack: ContextPack) -> dict[str, Any]:
    """All that a pack is documented to say again."""
    found: dict[str, Any] = msgspec.to_builtins(pack._packed)
    for name in ("fresh", "follows", "kept_as", "pins", "made", "metadata", "decisions"):
        del found[name]
    for summary in found["summaries"]:
        del summary["id"], summary["version"]  # A summary that is made for a pack has none until it is journaled.
    for segment in found["segments"]:
        for origin in segment["origins"] if segment["kind"] == "summary" else ():
            del origin["first"], origin["last"]
    for crumb in found["breadcrumbs"]:
        del crumb["status"]
    for message in [*found["conversation"]["messages"], *(one for s in found["segments"] for one in s["messages"])]:
        for name in ("pinned", "tokens", "tokenizer"):
            message.pop(name, None)
    found["omitted"] = pack.metadata.omitted
    found["decided"] = [
        (one.id, one.kind, one.outcome, one.reason, one.priority, one.shown, one.trust, one.count)
        for one in pack.decisions
        if one.outcome != "omitted"
    ]
    found["left out"] = [(one.id, one.kind, one.reason) for one in pack.decisions if one.outcome == "omitted"]
    return found


HOW: dict[str, dict[str, Any]] = {
    "all of it": {},
    "tidied": {"min_compaction": "light"},
    "a window": {"budget": 1_500, "min_compaction": "moderate"},
    "shortened": {"budget": 700},
    "critical": {"budget": 700, "min_compaction": "critical"},
    "classic": {"budget": 1_500, "layout": "classic", "exclude": ["unwanted"]},
}


@pytest.mark.parametrize("how", HOW)
def test_a_pack_that_is_shown_again_says_the_same_about_itself(hf: Holdfast, frame: Frame, how: str) -> None:
    pack, again = shown_again(hf, frame, **HOW[how])
    assert plain(again) == plain(pack)
    whole = {one.id: one.tokens for one in pack.decisions}
    assert all(one.tokens in (None, whole[one.id]) for one in again.decisions)


def test_what_is_not_journaled_is_as_it_is_documented(hf: Holdfast, frame: Frame) -> None:
    pack, again = shown_again(hf, frame, include=["file", "nowhere"], exclude=["body"])
    assert (pack.metadata.missing_handles, pack.metadata.refused_exclusions) == (("nowhere",), ("body",))
    assert (again.metadata.missing_handles, again.metadata.refused_exclusions, again.metadata.failed) == ((), (), {})
    reasons = [next(one.reason for one in each.decisions if one.id == "file") for each in (pack, again)]
    assert reasons == ["asked_for", "fits"]
    assert [any(one.pinned for one in each.messages) for each in (pack, again)] == [True, False]
    assert {one.status for one in again.breadcrumbs} == {"unknown"}


def test_breadcrumbs_name_their_frames_also_after_a_goal_was_changed(hf: Holdfast, frame: Frame) -> None:
    inner = begun(frame.frame("Find a train", limits=WIDE))
    innermost = begun(inner.frame("Ask for the price", limits=WIDE))
    hf.index.update_frame(inner.id, goal="Find a ferry")
    expected = [
        (frame.id, 0, "Plan the trip"),
        (inner.id, 1, "Find a ferry"),
        (innermost.id, 2, "Ask for the price"),
    ]
    _, again = shown_again(hf, innermost)
    assert [(one.frame_id, one.depth, one.goal) for one in again.breadcrumbs] == expected
    _, again = shown_again(hf, innermost, min_compaction="critical")
    assert [(one.frame_id, one.depth, one.goal) for one in again.breadcrumbs] == expected[-1:]


def test_a_round_that_only_lost_blanks_is_not_called_shortened(chat: Session) -> None:
    chat.append("And now something else.")
    pack = chat.pack(min_compaction="light")
    again = chat.pack_at(chat.packs.begin_model_call(pack))
    tidied = next(one for one in again.segments if one.text == f"{PROSE.strip()}\n\n{PROSE.strip()}")
    assert (tidied.shortened, tidied.origins[0].cut) == (0, "light:300")
    assert again.shortened == pack.shortened == 1


def test_a_page_is_named_also_where_a_copy_of_it_is_shown(hf: Holdfast, frame: Frame) -> None:
    for _ in range(2):
        _, again = shown_again(hf, frame)
        assert {one.handle_id: one.source for one in again.evidence}["page"] == "https://example.com/"


def check(hf: Holdfast, calls: Sequence[str], packs: Sequence[ContextPack]) -> None:
    for call, pack in zip(calls, packs, strict=True):
        assert plain(hf.index.pack_at(call)) == plain(pack)


@pytest.mark.parametrize(
    ("where", "name", "planted"),
    [
        (rebuild, "remake_round", lambda messages, recipe, line: (list(messages), 0)),
        (rebuild, "evidence_source", lambda env, origin: origin.stream),
        (manifest, "decide_earlier", lambda truncated: []),
        (manifest, "_guess_reasons", lambda facts, segments, told: ["window" for _ in told]),
        (rebuild, "find_frame_row", lambda env, frame: ("", {"depth": 0})),
    ],
)
def test_a_planted_mistake_is_noticed(
    hf: Holdfast, frame: Frame, monkeypatch: pytest.MonkeyPatch, where: Any, name: str, planted: Any
) -> None:
    inner = begun(frame.frame("Find a train", limits=WIDE))
    hf.index.update_frame(inner.id, goal="Find a ferry")
    inner.append(["about trains", "about ferries"])
    packs = [shown_again(hf, frame, budget=700)[0], inner.pack()]
    calls = [hf.index.begin_model_call(one.id, pack) for one, pack in zip((frame, inner), packs, strict=True)]
    check(hf, calls, packs)
    monkeypatch.setattr(where, name, planted)
    with pytest.raises((AssertionError, holdfast.Corrupt)):
        check(hf, calls, packs)


# whose packs


def test_a_session_shows_the_packs_of_its_own_calls_only(hf: Holdfast, frame: Frame, chat: Session) -> None:
    other = hf.session("other")
    other.append("a secret")
    strange = other.packs.begin_model_call(other.pack())
    branch = chat.fork(chat.messages(1)[0])
    child = begun(frame.frame("below", limits=WIDE))
    child.append("hello")
    own = [
        chat.packs.begin_model_call(chat.pack()),
        branch.packs.begin_model_call(branch.pack()),
        hf.index.begin_model_call(frame.id, frame.pack()),
        hf.index.begin_model_call(child.id, child.pack()),
    ]
    alone = begun(hf.frame("of nobody", limits=WIDE))
    nobodys = hf.index.begin_model_call(alone.id, alone.pack())
    for call in own:
        assert chat.pack_at(call).digest == branch.pack_at(call).digest == hf.index.pack_at(call).digest
        with pytest.raises(CallNotFound, match=r"not one of this session.*hf\.index\.pack_at"):
            other.pack_at(call)
    for call in (strange, nobodys):
        with pytest.raises(CallNotFound):
            chat.pack_at(call)
        assert hf.index.pack_at(call).messages is not None
    assert "a secret" in str(other.pack_at(strange).messages)


def test_the_command_line_shows_no_pack_of_another_session(
    hf: Holdfast, chat: Session, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = hf.session("other")
    other.append("a secret")
    call = other.packs.begin_model_call(other.pack())
    own = chat.packs.begin_model_call(chat.pack())
    path = str(tmp_path / "a.db")
    assert main(["pack", path, "s", "--call", own]) == 0
    capsys.readouterr()
    for given in (["--call", call], ["--call", own, "--diff", call]):
        assert main(["pack", path, "s", *given]) != 0
        told = capsys.readouterr()
        assert "a secret" not in told.out + told.err
        assert "not one of this session" in told.err


# bad input


@pytest.mark.parametrize("limit", [2**63, 10**40, -1, True, "3", 1.5])
def test_a_number_of_packs_that_is_none_is_refused(chat: Session, limit: Any) -> None:
    with pytest.raises(InvalidValue, match="number of packs"):
        chat.packs.list(limit)
    assert chat.packs.list(2**63 - 1) == []


@pytest.mark.parametrize("other", [None, {}, "pack", 3])
def test_a_pack_is_compared_with_packs_only(chat: Session, other: Any) -> None:
    with pytest.raises(InvalidValue, match=r"pack\(\) or pack_at\(\)"):
        chat.pack().diff(other)


# reading on


def read(frame: Frame, handle: str) -> str:
    return frame.history_tools().run("expand", {"handle": handle})


def test_evidence_from_above_that_a_pack_showed_can_be_read_on(hf: Holdfast, frame: Frame) -> None:
    child = begun(frame.frame("below", limits=WIDE))
    child.append("hello")
    pack = child.pack(include=["body"])
    assert "called 'body'" in read(child, "body")  # It was shown to nobody yet.
    hf.index.begin_model_call(child.id, pack)
    assert "words words" in read(child, "body")
    assert "called 'file'" in read(child, "file")
    sibling = begun(frame.frame("beside", limits=WIDE))
    sibling.append("hello")
    assert "called 'body'" in read(sibling, "body")


def test_it_is_read_as_it_was_shown_and_not_once_it_is_gone(hf: Holdfast, frame: Frame, tmp_path: Path) -> None:
    child = begun(frame.frame("below", limits=WIDE))
    child.append("hello")
    hf.index.begin_model_call(child.id, child.pack(include=["file", "page", "state"]))
    (tmp_path / "a.md").write_text("something else since")
    hf.state("custom/notes/id/1").write("k", "something else since")
    assert "of a file" in read(child, "file")
    assert "the page https" in read(child, "page")
    assert "of the state" in read(child, "state")
    hf.index.remove_handle(frame.id, ["file"])
    assert "called 'file'" in read(child, "file")
    frame.attach("document", handle="file", body="another one")
    assert "called 'file'" in read(child, "file")


def test_without_the_rule_a_child_would_read_everything_above_it(
    hf: Holdfast, frame: Frame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unruly(env: Any, line: str, frame_id: str, names: tuple[str, ...]) -> Any:
        found = expand.find_handle(env, frame_id, names[0])
        assert found is not None
        return expand.HistoryPiece(name=names[0], speaker="evidence", text=str(found[0].body), trust="external")

    monkeypatch.setattr(expand, "_ancestor_piece", unruly)
    with pytest.raises(AssertionError):
        test_evidence_from_above_that_a_pack_showed_can_be_read_on(hf, frame)

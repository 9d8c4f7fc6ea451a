"""Packs explain themselves: lists, differences, pictures and reasons. Looking changes nothing that comes later."""

from __future__ import annotations

import html
import re
from collections.abc import Callable, Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import holdfast
from holdfast import ContextPack, Holdfast, Session
from holdfast.cli.main import main
from holdfast.core.packs import views
from holdfast.core.packs.manifest import REASONS, describe_reason
from holdfast.core.packs.views import COLOURS, FREE, render_html, token_shares
from holdfast.errors import InvalidValue
from holdfast.flow.packs import manifest, visibility
from holdfast.flow.packs import pack as pack_flow
from holdfast.flow.packs import trace as pack_trace
from holdfast.flow.packs.visibility import PackRequest
from holdfast.records.packs import AssembledPack
from holdfast.types import PackInfo
from tests.packs.traced import by_fours, talk

HOSTILE = '<script>alert("x")</script> & <b>bold</b>'
NUTS = "allergic to nuts"


@pytest.fixture
def hf() -> Iterator[Holdfast]:
    with holdfast.open("memory:", tokenizer=by_fours) as client:
        yield client


@pytest.fixture
def chat(hf: Holdfast) -> Session:
    session = hf.session("alice", system="You are terse.", model="gpt-5-mini")
    session.append("My daughter is allergic to nuts.")
    return session


# lists of packs


def test_packs_are_listed_newest_first_with_what_they_took(chat: Session) -> None:
    packs: list[ContextPack] = []
    calls: list[str] = []
    for turn in range(10):
        packs.append(chat.pack(300))
        calls.append(chat.packs.begin_model_call(packs[-1]))
        chat.append(f"Question {turn} {'hm ' * 20}")
    infos = chat.packs.list()
    assert [one.call for one in infos] == calls[::-1]
    for info, pack in zip(infos, packs[::-1], strict=True):
        assert info == PackInfo(
            call=info.call,
            pack=info.pack,
            at=info.at,
            role="main",
            level=pack.level.value,
            tokens=pack.tokens,
            budget=300,
            cached_share=pack.cached_share,
            shown=pack.conversation.message_count,
            left_out=pack.conversation.truncated_count,
        )
        assert chat.pack_at(info.pack).digest == pack.digest
    assert chat.packs.list(3) == infos[:3]
    assert chat.packs.list(0) == []
    assert chat.packs.list(99) == infos


def test_packs_of_another_line_are_not_listed(chat: Session) -> None:
    talk(chat, 2)
    branch = chat.fork(thread="b")
    assert branch.packs.list() == []
    (call,) = talk(branch, 1)
    assert [one.call for one in branch.packs.list()] == [call]
    assert len(chat.packs.list()) == 2


@pytest.mark.parametrize("limit", [-1, 1.5, "3", True])
def test_a_limit_that_is_none_is_refused(chat: Session, limit: Any) -> None:
    with pytest.raises(InvalidValue):
        chat.packs.list(limit)


# looking changes nothing


def looks(hf: Holdfast, chat: Session) -> dict[str, Callable[[], object]]:
    """Every way to look."""
    first = chat.packs.list()[-1].call
    return {
        "pack": lambda: chat.pack(300),
        "larger pack": lambda: chat.pack(5_000),
        "densest pack": lambda: chat.pack(400, stickiness=0),
        "classic pack": lambda: chat.pack(400, layout="classic", role="planner"),
        "rendered": lambda: [chat.pack(400).to_anthropic(), chat.pack(400).to_responses(), repr(chat.pack(400))],
        "picture": lambda: chat.pack(400)._repr_html_(),
        "decisions": lambda: chat.pack(400).decisions,
        "difference": lambda: chat.pack(400).diff(chat.pack(600)),
        "pack_at": lambda: chat.pack_at(first),
        "packs": lambda: chat.packs.list(),
        "as_of": lambda: chat.pack(400, as_of=hf.journal.position() - 3),
        "why": lambda: [chat.why(text) for text in (NUTS, "Question 3", "You are terse", "never said")],
    }


def prepared(client: Holdfast) -> Session:
    chat = client.session("alice", system="You are terse.", model="gpt-5-mini")
    chat.append("My daughter is allergic to nuts.")
    talk(chat, 11)
    return chat


def assert_nothing_changes(hf: Holdfast, chat: Session, look: Callable[[], object]) -> None:
    before = (chat.pack(400).digest, hf.journal.position(), len(chat.packs.list()))
    look()
    assert (chat.pack(400).digest, hf.journal.position(), len(chat.packs.list())) == before


def test_looking_changes_no_later_pack_and_writes_nothing(hf: Holdfast) -> None:
    chat = prepared(hf)
    for look in looks(hf, chat).values():
        assert_nothing_changes(hf, chat, look)


def test_a_run_with_somebody_looking_all_the_time_sends_the_same(hf: Holdfast) -> None:
    """Two runs, one of them watched: every call is shown the same, and the windows move at the same calls."""
    runs = []
    for name, watched in (("quiet", False), ("watched", True)):
        chat = hf.session(name, system="You are terse.", model="gpt-5-mini")
        chat.append("My daughter is allergic to nuts.")
        sent = []
        for turn in range(14):
            if watched:
                for look in looks(hf, chat).values() if chat.packs.list(1) else ():
                    look()
            pack = chat.pack(400)
            sent.append((pack.to_openai(), pack.level, pack.cached_share))
            chat.packs.begin_model_call(pack)
            chat.append({"role": "assistant", "content": f"Reply {turn} {'bla ' * 20}"})
            chat.append(f"Question {turn} {'hm ' * 20}")
        runs.append(sent)
    assert runs[0] == runs[1]


def test_the_command_line_only_looks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "agent.db"
    with holdfast.open(path) as client:
        chat = prepared(client)
        before = (chat.pack(400).digest, client.journal.position())
    for arguments in (["pack"], ["pack", "--call", "2", "--why", "--diff", "-1"], ["pack", "--budget", "300"]):
        assert main([arguments[0], str(path), "alice", *arguments[1:]]) == 0
    assert main(["why", str(path), "alice", NUTS]) == 0
    assert capsys.readouterr().out
    with holdfast.open(path) as client:
        chat = client.session("alice")
        position = client.journal.position()
        assert (chat.pack(400).digest, position) == before


def a_look_is_journaled(patch: pytest.MonkeyPatch) -> None:
    """Whoever asks why leaves a pack in the journal, and with it a window."""
    original = pack_flow.build_pack

    def pack(env: Any, seen: Any, asked: Any) -> Any:
        made = original(env, seen, asked)
        manifest.begin_call(env, made, "0" * 64, frame=None)
        return made

    patch.setattr(pack_trace, "pack", type("P", (), {"build_pack": staticmethod(pack)}))


def a_list_is_journaled(patch: pytest.MonkeyPatch) -> None:
    """Whoever lists packs leaves one."""
    original = pack_trace.list_packs

    def packs(env: Any, line: str, limit: int | None = None) -> Any:
        made = pack_flow.build_pack(env, visibility.thread_visibility(line), PackRequest())
        manifest.begin_call(env, made, "0" * 64, frame=None)
        return original(env, line, limit)

    patch.setattr(pack_trace, "list_packs", packs)


@pytest.mark.parametrize("plant", [a_look_is_journaled, a_list_is_journaled])
def test_a_look_that_leaves_a_trace_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = prepared(hf)
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        assert_nothing_changes(hf, chat, lambda: [chat.why(NUTS), chat.packs.list()])


def test_a_trace_leaves_what_the_next_pack_goes_on_from(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = prepared(hf)
    chat.pack(400)
    kept = hf.env.recent
    assert kept is not None
    put: list[Any] = []
    monkeypatch.setattr(kept, "put", lambda *args: put.append(args))
    chat.why(NUTS)
    assert put == [], "the end of the line that is kept is the one of the last real pack"


# differences


def test_a_difference_names_what_came_and_went(chat: Session) -> None:
    calls = talk(chat, 12)
    trace = chat.why(NUTS)
    assert trace.left is not None
    at = calls.index(trace.left.call)
    before, after = chat.pack_at(calls[at - 1]), chat.pack_at(calls[at])
    found = before.diff(after)
    assert "m2" in {one.id for one in found.removed}
    assert "earlier" in {one.id for one in found.added}
    assert found.tokens == (before.tokens, after.tokens)
    assert found.level == ("none", "moderate")
    shown = {one.id for one in after.segments}
    assert {one.id for one in found.added} <= shown
    assert not {one.id for one in found.removed} & shown
    assert found.same + len(found.changed) + len(found.added) == len(after.segments)
    back = after.diff(before)
    assert {one.id for one in back.added} == {one.id for one in found.removed}


def test_equal_packs_do_not_differ(chat: Session) -> None:
    calls = talk(chat, 3)
    pack = chat.pack_at(calls[-1])
    found = pack.diff(chat.pack_at(calls[-1]))
    assert (found.added, found.removed, found.changed) == ((), (), ())
    assert (found.same, found.common_tokens) == (len(pack.segments), pack.tokens)


def test_another_brief_and_a_cut_are_changes(chat: Session) -> None:
    chat.append("x" * 4_000)
    one, other = chat.pack(2_000), chat.pack(300)
    assert "m3" in {after.id for _, after in one.diff(other).changed}
    chat.packs.set_brief(system_prompt="You are kind.")
    changed = one.diff(chat.pack(2_000))
    assert [after.id for _, after in changed.changed] == ["brief"]
    assert changed.common_tokens == 0


# pictures


class Elements(HTMLParser):
    """What a browser makes of it."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(shown: str) -> Elements:
    found = Elements()
    found.feed(shown)
    found.close()
    assert found.open == []
    return found


HARMLESS = {"div", "p", "span", "table", "tr", "th", "td"}


def test_a_picture_escapes_what_others_wrote_and_has_a_bar(hf: Holdfast) -> None:
    chat = hf.session("x", system=HOSTILE)
    chat.append(HOSTILE)
    pack = chat.pack(1_000)
    shown = pack._repr_html_()
    found = parsed(shown)
    assert set(found.tags) <= HARMLESS
    assert found.text.count(HOSTILE) == 2
    assert html.escape(HOSTILE) in shown
    widths = [float(width) for width in re.findall(r"flex:0 0 ([\d.]+)%", shown)]
    assert sum(widths) == pytest.approx(100 * pack.tokens / 1_000, abs=0.1)
    assert f"{FREE} {1_000 - pack.tokens:,}" in found.text


@cache
def small() -> AssembledPack:
    with holdfast.open("memory:", tokenizer=by_fours) as client:
        chat = client.session("x", system="Be terse.")
        chat.append("hello")
        return chat.pack(1_000)._packed


@given(text=st.text(max_size=400), system=st.text(max_size=40))
def test_no_text_breaks_out_of_a_picture(text: str, system: str) -> None:
    *others, said = small().segments
    hostile = replace(said, id=text, messages=(replace(said.messages[0], content=text),))
    shown = render_html(replace(small(), system=system, segments=(*others, hostile)), text)
    assert set(parsed(shown).tags) <= HARMLESS


def test_an_unescaped_picture_would_be_noticed(hf: Holdfast, monkeypatch: pytest.MonkeyPatch) -> None:
    chat = hf.session("x")
    chat.append(HOSTILE)
    monkeypatch.setattr(views.html, "escape", lambda text: text)
    assert not set(parsed(chat.pack(1_000)._repr_html_()).tags) <= HARMLESS


def test_a_picture_of_a_large_pack_stays_small(hf: Holdfast) -> None:
    chat = hf.session("x")
    chat.append([f"message {number}" for number in range(600)])
    shown = chat.pack(90_000)._repr_html_()
    assert len(shown) < 100_000
    assert "more pieces" in shown


def test_shares_are_all_of_the_budget(chat: Session) -> None:
    talk(chat, 12)
    pack = chat.pack(400)
    found = token_shares(pack._packed)
    assert sum(found.values()) == 400
    assert list(found)[-1] == FREE
    assert set(found) - {FREE} <= set(COLOURS)
    assert render_html(pack._packed, "x")


# reasons


def test_every_decision_has_a_reason_in_words(hf: Holdfast, chat: Session) -> None:
    talk(chat, 12)
    chat.compact(keep=4, summarizer=lambda messages: "They spoke.")
    chat.pin(chat.messages()[0])
    with hf.frame("Plan", session="alice") as frame:
        for priority in ("critical", "high", "low", "background"):
            frame.attach("document", body="word " * 60, priority=priority)
        frame.attach("artifact", target="0" * 64)
        for pack in (frame.pack(500), frame.pack(5_000), chat.pack(250)):
            assert pack.decisions
            for one in pack.decisions:
                assert one.reason in REASONS
                assert describe_reason(one.reason) != one.reason

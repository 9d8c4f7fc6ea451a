"""Erased content leaves every journaled pack: rebuilt, it says so, and nothing of it is kept anywhere for its sake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from holdfast import ContextPack, Holdfast, ToolDef
from holdfast.flow.packs import manifest
from holdfast.records.messages import Message
from holdfast.testing.journal_contract import dump_projections
from tests.packs.journaled import opened, sent
from tests.packs.reserved import remember
from tests.packs.working_kit import AtWork

ACTOR = "actor/a/session/s/thread/main"


class Talk:
    """Two people and the system in one session. Each text has a word that says whose it is and what it is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hf = opened(folder, fetcher=None)
        self.made: dict[str, list[str]] = {"ann": [], "bob": [], "system": []}
        self.packs: dict[str, ContextPack] = {}

    def as_(self, who: str) -> Holdfast:
        return self.hf if who == "system" else self.hf.as_user(who)

    def word(self, who: str, what: str) -> str:
        """A word that stands nowhere else."""
        found = f"{who}canary{what}{len(self.made[who]):03d}"
        self.made[who].append(found)
        return found

    def fill(self) -> None:
        self.hf.session("s", model="gpt-4o")
        for who in ("system", "ann", "bob"):
            self.sum_up(who)
        for who in ("system", "ann", "bob"):
            self.tell(who)
        self.frame = self.as_("ann").index.push_frame(
            self.word("ann", "goal"), scope=ACTOR, inputs={"n": self.word("ann", "input")}
        )
        for who in ("system", "ann", "bob"):
            self.attach(who)
        self.hf.session("s").append("What now?")
        for who in ("system", "ann", "bob"):
            self.call(who)

    def sum_up(self, who: str) -> None:
        client = self.as_(who)
        chat = client.session("s")
        chat.append("to be covered")
        # A summary belongs to who has it made, so each has one made that says only what is theirs.
        summed = self.word(who, "summary")
        chat.compact(keep=0, summarizer=lambda messages, *, max_tokens: summed)
        remember(client, "session/s", who, {"text": f"{self.word(who, 'memory')} nuts", "trust": "user"})

    def tell(self, who: str) -> None:
        client = self.as_(who)
        tools = [ToolDef(name=f"t_{who}", description=self.word(who, "tool"))]
        chat = client.session("s", system=self.word(who, "system"), tools=tools)
        chat.append(f"{self.word(who, 'large')} " * 400)
        chat.append(self.word(who, "seen"), files=[("a.png", b"\x89PNG\r\n\x1a\n" + self.word(who, "image").encode())])
        asked = {"id": "c", "type": "function", "function": {"name": self.word(who, "call"), "arguments": "{}"}}
        asked["function"]["arguments"] = json.dumps({"q": self.word(who, "argument")})  # type: ignore[index]
        said = chat.append({"role": "assistant", "content": None, "tool_calls": [asked]})
        chat.append_result(said.tool_calls[0], self.word(who, "result"))
        client.index.set_brief("session/s", who, working_context=self.word(who, "brief"))

    def attach(self, who: str) -> None:
        client = self.as_(who)
        add = client.index.add_handle
        add(self.frame, "event_ref", body=self.word(who, "body"), description=self.word(who, "description"))
        scope = f"custom/notes/id/{who}"
        client.state(scope).write("k", {"text": self.word(who, "entry")})
        self.hf.index.add_handle(self.frame, "document", target=f"state:{scope}#k")
        client.journal.append(
            scope, "app.kept", {"text": self.word(who, "event")}, files=[self.word(who, "kept").encode()]
        )
        event = next(iter(self.hf.journal.events(scope, backwards=True)))
        self.hf.index.add_handle(self.frame, "event_ref", target=event.id)
        self.hf.index.add_handle(self.frame, "artifact", target=event.facts.artifacts[0])
        (self.folder / "docs" / f"{who}.md").write_text(f"a file for {who}")
        self.hf.index.add_handle(self.frame, "document", target=f"file:{who}.md")

    def call(self, who: str) -> None:
        """Packs of the line and of the frame in every role, each journaled by one of them."""
        client = self.as_(who)
        for role in ("ann", "bob", "system"):
            pack = client.session("s").pack(role=role, recall=9, query="nuts")
            self.packs[client.session("s").packs.begin_model_call(pack)] = pack
        pack = client.index.assemble_context_pack(frame=self.frame, role="ann", recall=9, query="nuts")
        self.packs[client.index.begin_model_call(self.frame, pack, request=self.word(who, "request"))] = pack


def everything(pack: ContextPack) -> str:
    """All that can be got from a pack."""
    parts = (pack.segments, pack.brief_context, pack.summaries, pack.breadcrumbs, pack.evidence, pack.conversation)
    return repr((sent(pack), pack.messages, pack.system, pack.tools, pack.decisions, pack.metadata, parts))


def on_disk(folder: Path, words: list[str]) -> list[str]:
    data = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    # Texts in the index share beginnings: what is looked for is what no other word has.
    return [word for word in words if word.encode() in data]


@pytest.fixture
def talk(tmp_path: Path) -> Iterator[Talk]:
    made = Talk(tmp_path)
    made.fill()
    yield made
    made.hf.close()


def test_erased_pieces_say_so_in_every_pack_and_the_others_stay(talk: Talk) -> None:
    before = {call: everything(talk.hf.index.pack_at(call)) for call in talk.packs}
    whole = "".join(before.values())
    for who in ("ann", "bob"):
        unseen = {word for word in talk.made[who] if word not in whole}
        # Bytes of images are encoded, a request is no part of a pack, and only the newest system prompt counts.
        assert all(any(kind in word for kind in ("image", "request", "system", "tool")) for word in unseen), unseen
    talk.hf.journal.erase("ann")
    for call, pack in talk.packs.items():
        again = talk.hf.index.pack_at(call)
        shown = everything(again)
        assert [word for word in talk.made["ann"] if word in shown] == []
        # A summary cannot be told apart into its speakers, so it falls as a whole.
        summed = "".join(one.text for one in pack.summaries if one.window)
        assert [
            one
            for who in ("bob", "system")
            for one in talk.made[who]
            if one in before[call] and one not in shown and one not in summed
        ] == []
        assert again.metadata.erased
        assert again.digest != pack.digest
        assert [(one.kind, one.id) for one in again.segments] == [(one.kind, one.id) for one in pack.segments]
        gone = {one.id for one in again.segments if "[erased]" in one.text}
        assert {id for id in gone if id != "note1"} <= set(again.metadata.erased), (gone, again.metadata.erased)


def test_every_piece_that_was_erased_is_named(talk: Talk) -> None:
    calls = {call: pack for call, pack in talk.packs.items() if pack.metadata.frame_id}
    talk.hf.journal.erase("ann")
    for call, pack in calls.items():
        erased = talk.hf.index.pack_at(call).metadata.erased
        named = {one.id for one in pack.segments if "anncanary" in one.text and one.kind != "brief"}
        assert named <= set(erased)
        assert {"inputs", "working_context", "breadcrumbs"} <= set(erased)


def test_nothing_is_left_on_disk_and_the_journal_is_sound(talk: Talk) -> None:
    words = talk.made["ann"]
    found = on_disk(talk.folder, words)
    assert len(found) > len(words) / 2
    live = dump_projections(talk.hf.env.journal)
    talk.hf.journal.erase("ann")
    assert on_disk(talk.folder, words) == []
    assert talk.hf.journal.verify().findings == ()
    known = {call: (talk.hf.index.pack_at(call).digest, sent(talk.hf.index.pack_at(call))) for call in talk.packs}
    talk.hf.journal.rebuild()
    # The marker of the erasure is one more event, in a stream without rows.
    assert dump_projections(talk.hf.env.journal) == live
    talk.hf.journal.export(talk.folder / "all.jsonl")
    with opened(talk.folder, "b.db", fetcher=None) as moved:
        moved.journal.import_(talk.folder / "all.jsonl")
        for client in (talk.hf, moved):
            for call, (digest, requests) in known.items():
                pack = client.index.pack_at(call)
                assert (pack.digest, sent(pack)) == (digest, requests)
    assert on_disk(talk.folder, words) == []


def test_a_pack_without_anything_of_hers_is_not_touched(talk: Talk) -> None:
    chat = talk.hf.session("other", system="You are terse.")
    chat.append("hello")
    call = chat.packs.begin_model_call(chat.pack())
    before = sent(chat.pack_at(call))
    talk.hf.journal.erase("ann")
    assert sent(chat.pack_at(call)) == before
    assert chat.pack_at(call).metadata.erased == ()


def test_a_pack_does_not_hold_what_is_somebody_s_own(talk: Talk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only copies of what lies outside are kept for a pack: an artifact of hers goes although others were shown it."""
    monkeypatch.setattr(manifest, "is_copy", lambda piece: True)
    talk.call("system")
    talk.hf.journal.erase("ann")
    assert on_disk(talk.folder, [word for word in talk.made["ann"] if "kept" in word]) != []


def test_copies_of_files_go_with_the_one_whose_call_they_were_kept_for(tmp_path: Path) -> None:
    calls = []
    with opened(tmp_path) as hf:
        for who in ("ann", "bob"):
            (tmp_path / "docs" / f"{who}.md").write_text(f"canary of {who}")
            client = hf.as_user(who)
            frame = client.index.push_frame("work", scope=f"actor/{who}")
            hf.index.add_handle(frame, "document", handle="h", target=f"file:{who}.md")
            pack = client.index.assemble_context_pack(frame=frame)
            call = client.index.begin_model_call(frame, pack)
            (tmp_path / "docs" / f"{who}.md").unlink()
            assert f"canary of {who}" in hf.index.pack_at(call).evidence[0].content
            calls.append(call)
        hf.journal.erase("ann")
        hers, his = map(hf.index.pack_at, calls)
        assert ("h" in hers.metadata.erased, on_disk(tmp_path, ["canary of ann"])) == (True, [])
        assert (his.metadata.erased, "canary of bob" in his.evidence[0].content) == ((), True)


def test_a_page_is_not_shown_again_to_new_calls_once_its_handle_is_erased(tmp_path: Path) -> None:
    with opened(tmp_path) as hf:
        frame = hf.index.push_frame("work", scope="actor/main")
        hf.as_user("ann").index.add_handle(frame, "url", handle="h", target="https://example.com/ann")
        pack = hf.index.assemble_context_pack(frame=frame)
        assert [one.handle_id for one in pack.evidence] == ["h"]
        hf.index.begin_model_call(frame, pack)
        hf.journal.erase("ann")
        later = hf.index.assemble_context_pack(frame=frame)
        assert (later.evidence, [(one.id, one.reason) for one in later.decisions]) == ((), [("h", "erased")])


def test_new_packs_after_an_erasure_are_rebuilt_with_equal_digests(tmp_path: Path) -> None:
    """What was erased before a call was shown as erased to it, and that is what it is shown again."""
    with opened(tmp_path) as hf:
        work = AtWork(hf, tmp_path, Random(7))
        hf.as_user("ann").session("s0").append("hers")
        for chat in work.lines:
            chat._env = hf.as_user("ann").env
        work.hf = hf.as_user("ann")
        work.work(20)
        early = len(work.calls)
        hf.journal.erase("ann")
        work.work(40)
        assert [hf.index.pack_at(one.call).digest for one in work.calls[early:]] == [
            one.digest for one in work.calls[early:]
        ]
        assert any(hf.index.pack_at(one.call).metadata.erased for one in work.calls[:early])
        assert hf.journal.verify().findings == ()
        assert all(isinstance(one, Message) for one in hf.index.pack_at(work.calls[0].call).messages)

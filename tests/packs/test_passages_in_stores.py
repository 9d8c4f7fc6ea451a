"""Compacted passages in another store: recall searches it, retraction reaches it, and nothing retracted is shown."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast, Session
from holdfast.client.state import StateStore
from holdfast.compaction import CompactionConfig
from holdfast.core.compaction.summary import PASSAGE_PREFIX
from holdfast.errors import InvalidValue, Unavailable
from holdfast.flow.compaction import recall
from holdfast.flow.compaction.recall import PassageMirror
from holdfast.flow.journal import observers
from holdfast.models import Scripted
from holdfast.store.sqlite import SqliteStore
from holdfast.testing.clock import FrozenClock
from tests.redis_server import running

PREFIXES = itertools.count()
SECRET = "My password is HUNTER2."


def count(text: str) -> int:
    return len(text) // 4 + 1


def short(messages: Any) -> str:
    return f"{len(messages)} messages"


@pytest.fixture(params=["memory", "fs", "sqlite"])
def kb(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    """A store that can be searched."""
    options: dict[str, Any] = {} if request.param == "sqlite" else {"search": True}
    urls = {"memory": "memory:", "fs": f"fs:///{tmp_path}/kb", "sqlite": f"sqlite:///{tmp_path}/kb.db"}
    with holdfast.open_store(urls[request.param], **options) as store:
        yield store


def open_redis() -> StateStore:
    return holdfast.open_store(running().url, prefix=f"passages-{next(PREFIXES)}")


@pytest.fixture(params=["memory:", "a.db"])
def hf(request: pytest.FixtureRequest, tmp_path: Path, clock: FrozenClock) -> Iterator[Holdfast]:
    url = request.param if request.param == "memory:" else tmp_path / request.param
    with holdfast.open(url, clock=clock, summarizer=short, tokenizer=count) as client:
        yield client


@pytest.fixture
def clock() -> FrozenClock:
    return FrozenClock()


def talk(hf: Holdfast, store: Any, id: str = "a") -> Session:
    chat = hf.session(id)
    chat.append(["The garage code is 4471.", "It rains today."])
    chat.compact(1, store=store)
    chat.append([SECRET, "Please remember it."])
    chat.compact(0, store=store)
    return chat


def check_same(hf: Holdfast, kb: StateStore, scope: str) -> None:
    """Compare the passages of a scope in the journal and in the store."""
    ours, theirs = hf.state(scope).entries(PASSAGE_PREFIX), kb(scope).entries(PASSAGE_PREFIX)
    assert [(one.key, one.value) for one in theirs] == [(one.key, one.value) for one in ours]


def test_passages_are_copied_and_recall_searches_the_store(hf: Holdfast, kb: StateStore) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(CompactionConfig(threshold=3, keep=1, store=kb("user/ann"), recall=2))
    chat.append(["The garage code is 4471.", "It rains.", "It still rains.", "Now it stops."])
    check_same(hf, kb, "user/ann")
    assert "4471" in repr(kb("user/ann").search("garage code"))
    hf.state("user/ann").write("own", "The garage is green.")
    assert "own" not in kb("user/ann").list(), "only passages are copied"
    (found,) = [one.text for one in chat.pack(4_000, query="garage code").segments if one.kind == "memory"]
    assert "4471" in found
    for key in kb("user/ann").list():
        kb.storage.store.drop("user/ann", key)
    assert not [one for one in chat.pack(4_000, query="garage code").segments if one.kind == "memory"]


def test_a_store_without_a_scope_gets_the_passages_of_the_session(hf: Holdfast, kb: StateStore) -> None:
    talk(hf, kb)
    assert "HUNTER2" in repr(kb("session/a").entries())
    check_same(hf, kb, "session/a")


@pytest.mark.parametrize("end", ["rewind", "reset", "timeout", "erase", "delete"])
def test_retraction_reaches_the_store(hf: Holdfast, kb: StateStore, clock: FrozenClock, end: str) -> None:
    ann = hf.as_user("ann")
    chat = talk(ann, kb("custom/notes/id/shared"))
    other = talk(hf.as_user("bob"), kb("custom/notes/id/shared"), "b")
    assert repr(kb("custom/notes/id/shared").entries()).count("HUNTER2") == 2
    if end == "rewind":
        chat.rewind(to=chat.messages()[0])
    elif end == "reset":
        chat.reset()
    elif end == "timeout":
        hf.session("a", idle_timeout=60)
        clock.advance(61_000)
        assert hf.sweep_sessions().ended == 1
    elif end == "erase":
        hf.journal.erase("ann")
    else:
        state = hf.state("custom/notes/id/shared")
        for entry in state.entries(PASSAGE_PREFIX)[:2]:
            state.delete(entry.key)
    assert repr(kb("custom/notes/id/shared").entries()).count("HUNTER2") == 1
    assert len(other.compaction.summaries()) == 2
    if end != "erase":
        check_same(hf, kb, "custom/notes/id/shared")


def test_evidence_of_a_frame_is_copied_and_goes_with_its_session(hf: Holdfast, kb: StateStore) -> None:
    chat = hf.session("a")
    frame = hf.index.push_frame("look", scope="actor/a/session/a/thread/main")
    hf.index.add_handle(frame, "document", body=SECRET, tokens=50, priority="low")
    hf.index.compact_context(frame, 0, store=kb)
    assert "HUNTER2" in repr(kb("session/a").entries())
    chat.append("Go on.")
    chat.reset()
    assert kb("session/a").list() == []


def fail(*given: Any, **options: Any) -> Any:
    """A method of a store that cannot be reached."""
    raise Unavailable("The store is down.")


def test_a_store_that_is_down_gets_its_copies_later_and_recall_goes_on(
    hf: Holdfast, kb: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat = hf.session("a")
    chat.compaction.add_rule(CompactionConfig(threshold=3, keep=1, store=kb, recall=2))
    with monkeypatch.context() as broken:
        for method in ("put", "search"):
            broken.setattr(type(kb.storage.store), method, fail)
        with pytest.warns(RuntimeWarning, match="The store is down"):
            chat.append(["The garage code is 4471.", "It rains.", "It still rains.", "Now it stops."])
        assert len(chat.compaction.summaries()) == 1
        assert kb("session/a").list() == []
        assert "4471" in repr(chat.pack(4_000, query="garage code").segments)
    chat.append(["Again.", "And again.", "And again."])
    check_same(hf, kb, "session/a")
    with monkeypatch.context() as broken:
        broken.setattr(type(kb.storage.store), "get", fail)
        version = hf.journal.position()
        with pytest.raises(Unavailable):
            chat.compact(0, store=kb("user/ann"))
        assert hf.journal.position() == version, "a store that cannot be used is refused before anything is written"


def test_what_another_process_retracted_is_not_shown_and_goes_when_the_store_is_used_again(
    kb: StateStore, tmp_path: Path
) -> None:
    with holdfast.open(tmp_path / "a.db", summarizer=short, tokenizer=count) as hf:
        chat = talk(hf, kb)
        with holdfast.open(tmp_path / "a.db") as other:
            other.session("a").rewind(to=other.session("a").messages()[0])
        assert "HUNTER2" in repr(kb("session/a").entries()), "nobody here was told"
        assert "HUNTER2" not in repr(chat.pack(4_000, query="What is my password?", recall=5).segments)
    with holdfast.open(tmp_path / "a.db", summarizer=short, tokenizer=count) as hf:
        hf.session("a").compaction.add_rule(CompactionConfig(threshold=99, store=kb))
        assert "HUNTER2" not in repr(kb("session/a").entries())
        check_same(hf, kb, "session/a")


def test_copies_that_a_crash_left_out_are_made_by_the_next_process(
    kb: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as crash, holdfast.open(tmp_path / "a.db", summarizer=short, tokenizer=count) as hf:
        crash.setattr(PassageMirror, "catch_up", lambda self: None)
        talk(hf, kb)
        assert kb("session/a").list() == []
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.session("a").compaction.add_rule(CompactionConfig(threshold=99, store=kb))
        check_same(hf, kb, "session/a")
        assert "HUNTER2" in repr(kb("session/a").entries())


@pytest.mark.parametrize("grows", [False, True])
def test_a_restored_journal_takes_back_what_it_does_not_have(kb: StateStore, tmp_path: Path, grows: bool) -> None:
    with holdfast.open(tmp_path / "a.db", summarizer=short, tokenizer=count) as hf:
        chat = hf.session("a")
        chat.append(["The garage code is 4471.", "It rains today."])
        chat.compact(1, store=kb)
        hf.journal.backup(tmp_path / "backup.db")
        talk(hf, kb)
    holdfast.restore(tmp_path / "backup.db", tmp_path / "b.db")
    with holdfast.open(tmp_path / "b.db", summarizer=short, tokenizer=count) as hf:
        for number in range(5 if grows else 0):  # Past the version that the store has seen.
            hf.session("a").append([f"It rains, {number}.", "It still rains."])
            hf.session("a").compact(1, store=True)
        hf.session("a").compaction.add_rule(CompactionConfig(threshold=99, store=kb))
        check_same(hf, kb, "session/a")
        assert "HUNTER2" not in repr(kb("session/a").entries())


def test_a_store_serves_one_journal_and_tenant_in_a_scope(hf: Holdfast, kb: StateStore) -> None:
    talk(hf, kb)
    before = kb("session/a").list()
    with pytest.raises(InvalidValue, match="another journal or tenant"):
        talk(hf.tenant("acme"), kb)
    with holdfast.open("memory:") as other, pytest.raises(InvalidValue, match="another journal or tenant"):
        other.session("a").compaction.add_rule(CompactionConfig(threshold=9, store=kb))
    assert kb("session/a").list() == before


def test_the_clients_own_state_needs_no_copy_and_that_of_another_is_refused(hf: Holdfast) -> None:
    talk(hf, hf.state("user/ann"))
    assert "HUNTER2" in repr(hf.state("user/ann").entries())
    assert hf.env.mirrors == {}
    with pytest.raises(InvalidValue, match="this client's own state"):
        hf.session("b").compaction.add_rule(CompactionConfig(threshold=9, store=hf.tenant("acme").state))
    with pytest.raises(InvalidValue):
        hf.session("b").compaction.add_rule(CompactionConfig(threshold=9, store=17))


@pytest.mark.parametrize("open_kb", [lambda: holdfast.open_store("memory:"), open_redis])
def test_a_store_that_cannot_search_is_searched_in_the_journal(hf: Holdfast, open_kb: Callable[[], StateStore]) -> None:
    with open_kb() as kb:
        chat = talk(hf, kb)
        check_same(hf, kb, "session/a")
        chat.rewind(to=chat.messages()[1])
        check_same(hf, kb, "session/a")
        assert "4471" in repr(chat.pack(4_000, query="garage code", recall=3).segments)
        talk(hf.as_user("ann"), kb, "b")
        hf.journal.erase("ann")
        assert kb("session/b").list() == []
        check_same(hf, kb, "session/a")


def test_a_closed_store_breaks_no_pack_and_no_turn(hf: Holdfast, tmp_path: Path) -> None:
    with holdfast.open_store(f"sqlite:///{tmp_path}/kb.db") as kb:
        chat = talk(hf, kb)
        chat.compaction.add_rule(CompactionConfig(threshold=3, keep=1, store=kb, recall=3))
        chat.pack(4_000)
    assert "4471" in repr(chat.pack(4_000, query="garage code").segments)
    with pytest.warns(RuntimeWarning, match="The store for compacted passages is closed"):
        chat.append(["It rains.", "It still rains.", "And still.", "Now it stops."])
    assert "4471" in repr(chat.pack(4_000, query="garage code").segments)
    with pytest.warns(RuntimeWarning, match="The store for compacted passages is closed"):
        assert hf.agent("bot", model=Scripted(["Hello."])).send("a", "Hi.").status == "done"


def test_a_retraction_that_a_closed_store_misses_is_warned_about_once(hf: Holdfast, tmp_path: Path) -> None:
    with holdfast.open_store(f"sqlite:///{tmp_path}/kb.db") as kb:
        chat, other = talk(hf, kb), talk(hf, True, "b")
    other.rewind(to=other.messages()[0])
    chat = talk(hf, kb := holdfast.open_store(f"sqlite:///{tmp_path}/kb.db"))
    kb.close()
    with pytest.warns(RuntimeWarning, match="It is closed"):
        chat.rewind(to=chat.messages()[1])
    chat.reset()
    with holdfast.open_store(f"sqlite:///{tmp_path}/kb.db") as kb:
        assert "HUNTER2" in repr(kb("session/a").entries())
        hf.session("b").compaction.add_rule(CompactionConfig(threshold=99, store=kb))
        check_same(hf, kb, "session/a")


@pytest.mark.parametrize("dead", ["closed", "broken"])
def test_a_store_that_cannot_be_used_is_refused_before_anything_is_written(
    hf: Holdfast, tmp_path: Path, dead: str
) -> None:
    kb = holdfast.open_store(f"sqlite:///{tmp_path}/kb.db" if dead == "closed" else f"fs:///{tmp_path}/kb")
    chat = talk(hf, kb)
    if dead == "closed":
        kb.close()
    else:
        shutil.rmtree(tmp_path / "kb")
        (tmp_path / "kb").write_text("no folder")
    chat.append(["It rains.", "It still rains."])
    version = hf.journal.position()
    with pytest.raises(Unavailable):
        chat.compact(0, store=kb, summarizer=lambda messages: pytest.fail("a model was paid in vain"))
    with pytest.raises(Unavailable):
        chat.compaction.add_rule(CompactionConfig(threshold=3, store=kb))
    assert hf.journal.position() == version
    assert chat.compact(0, store=True) is not None
    kb.close()


def test_keys_of_holdfast_in_a_store_are_refused_to_callers(hf: Holdfast, kb: StateStore) -> None:
    talk(hf, kb)
    (key, *_) = kb("session/a").list()
    with pytest.raises(InvalidValue, match="written by holdfast alone"):
        kb("session/a").delete(key)
    with pytest.raises(InvalidValue, match="written by holdfast alone"):
        kb("session/a").write(key, "other")
    with pytest.raises(InvalidValue, match="written by holdfast alone"):
        kb(recall.OWNER_SCOPE).delete(kb(recall.OWNER_SCOPE).list()[0])
    assert hf.state("session/a").delete(key), "its owner may, in the journal"
    check_same(hf, kb, "session/a")


def plant_no_comparison(monkeypatch: pytest.MonkeyPatch, planted: bool) -> None:
    if planted:  # Only what events name is copied.
        monkeypatch.setattr(PassageMirror, "_compare", lambda self, scope: None)


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("erased", ["before", "after"])
def test_an_erasure_reaches_scopes_that_this_process_does_not_name(
    kb: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool, erased: str
) -> None:
    options: dict[str, Any] = {"summarizer": short, "tokenizer": count}
    with holdfast.open(tmp_path / "a.db", **options) as hf:
        talk(hf.as_user("ann"), kb)
        if erased == "before":  # By a process that does not use the store.
            with holdfast.open(tmp_path / "a.db") as other:
                other.journal.erase("ann")
        assert "HUNTER2" in repr(kb("session/a").entries())
    plant_no_comparison(monkeypatch, planted)
    with holdfast.open(tmp_path / "a.db", **options) as hf:
        chat = hf.session("b")
        chat.append(["It rains.", "It still rains."])
        chat.compact(1, store=kb)
        if erased == "after":
            hf.journal.erase("ann")
        assert ("HUNTER2" in repr(kb("session/a").entries())) == planted
        assert bool(kb("session/a").search("password")) == planted


def test_a_reset_reaches_scopes_that_another_process_added_to_the_store(kb: StateStore, tmp_path: Path) -> None:
    options: dict[str, Any] = {"summarizer": short, "tokenizer": count}
    with holdfast.open(tmp_path / "a.db", **options) as hf, holdfast.open(tmp_path / "a.db", **options) as other:
        talk(hf, kb, "b")
        talk(other, kb, "a")
        hf.session("a").reset()
        assert kb("session/a").list() == []
        check_same(hf, kb, "session/b")


def test_a_scope_that_cannot_be_copied_keeps_no_other_from_being_erased(
    hf: Holdfast, kb: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(storage: Any, scope: str, *given: Any) -> int:
        if scope != "session/a":
            raise InvalidValue("Not this one.")
        return write(storage, scope, *given)

    write = recall.write_entry
    talk(hf.as_user("ann"), kb)
    chats = [talk(hf, kb, name) for name in "bcdefgh"]
    with monkeypatch.context() as broken:
        broken.setattr(recall, "write_entry", refuse)
        for chat in chats:
            chat.append(["It rains.", "It still rains."])
            with pytest.warns(RuntimeWarning, match="Not this one"):
                chat.compact(1, store=True)
        with pytest.warns(RuntimeWarning, match="Not this one"):
            hf.journal.erase("ann")
        assert kb("session/a").list() == []
    hf.session("b").compaction.add_rule(CompactionConfig(threshold=99, store=kb))
    check_same(hf, kb, "session/b")


class Killed(BaseException):
    """The end of a process."""


@pytest.mark.parametrize("planted", [False, True])
@pytest.mark.parametrize("used", ["retraction", "restart"])
def test_a_late_copy_of_a_killed_process_goes_when_the_store_is_used_again(
    kb: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool, used: str
) -> None:
    write, retract = recall.write_entry, list[Any]()

    def write_late(*given: Any) -> int:
        if not retract or "HUNTER2" not in repr(given[-1]):
            return write(*given)
        retract.pop()()
        write(*given)
        raise Killed

    monkeypatch.setattr(recall, "write_entry", write_late)
    options: dict[str, Any] = {"summarizer": short, "tokenizer": count}
    with holdfast.open(tmp_path / "a.db", **options) as hf, holdfast.open(tmp_path / "a.db", **options) as other:
        chat = hf.session("a")
        chat.append(["It rains today.", SECRET, "Please remember it."])
        same = other.session("a")
        same.compaction.add_rule(CompactionConfig(threshold=99, store=kb))
        retract.append(same.reset)
        with pytest.raises(Killed):
            chat.compact(0, store=kb)
        assert "HUNTER2" in repr(kb("session/a").entries())
        plant_no_comparison(monkeypatch, planted)
        if used == "retraction":
            same.append(["It rains.", "It still rains."])
            same.compact(0, store=kb)
            same.reset()
        else:
            with holdfast.open(tmp_path / "a.db", **options) as third:
                third.session("b").compaction.add_rule(CompactionConfig(threshold=99, store=kb))
        assert ("HUNTER2" in repr(kb("session/a").entries())) == planted


def test_an_erasure_leaves_nothing_in_the_files_of_a_sqlite_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find() -> list[str]:
        return [one.name for one in tmp_path.glob("kb.db*") if b"hunter2" in one.read_bytes().lower()]

    with (
        holdfast.open(tmp_path / "a.db", summarizer=short, tokenizer=count) as hf,
        holdfast.open_store(f"sqlite:///{tmp_path}/kb.db") as kb,
    ):
        talk(hf.as_user("ann"), kb)
        assert find() == ["kb.db-wal"]
        with monkeypatch.context() as planted:
            planted.setattr(SqliteStore, "truncate_log", lambda self: None)
            hf.journal.erase("ann")
            assert kb("session/a").list() == []
            assert find() == ["kb.db-wal"]
        talk(hf.as_user("bob"), kb, "b")
        hf.journal.erase("bob")
        assert find() == []


def test_a_compaction_looks_at_its_own_passages_alone(
    hf: Holdfast, kb: StateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    chat, looked = talk(hf, kb), list[str]()
    copy = PassageMirror._copy
    monkeypatch.setattr(PassageMirror, "_copy", lambda self, *at: (looked.append(at[1]), copy(self, *at)))
    monkeypatch.setattr(PassageMirror, "_compare", None)
    for number in range(3):
        chat.append([f"It rains, {number}.", "It still rains."])
        hf.state("global").write("counter", number)
        hf.state("session/a").write("own", number)
        before = set(hf.state("session/a").list(PASSAGE_PREFIX))
        chat.compact(0, store=kb)
        assert {*looked} == set(hf.state("session/a").list(PASSAGE_PREFIX)) - before
        assert len(looked) == 1
        looked.clear()


def test_the_async_client_copies_and_retracts(tmp_path: Path) -> None:
    embedded: list[str] = []

    async def embed(texts: Any) -> Any:
        embedded.extend(texts)
        return [[float(len(text)), 1.0] for text in texts]

    async def run() -> None:
        async with (
            holdfast.open_async(tmp_path / "a.db", summarizer=short, tokenizer=count) as hf,
            holdfast.open_store_async(f"sqlite:///{tmp_path}/kb.db", embedder=embed) as kb,
        ):
            chat = await hf.session("a")
            await chat.compaction.add_rule(CompactionConfig(threshold=3, keep=1, store=kb("user/ann"), recall=3))
            await chat.append([SECRET, "It rains.", "It still rains.", "Now it stops."])
            assert "HUNTER2" in repr(await kb("user/ann").entries())
            await chat.append(["The garage code is 4471.", "It rains."])
            await chat.compact(0, store=kb("user/ann"))
            await chat.compact(0, strategy="sliding_window", store=kb("user/ann"))
            assert "4471" in repr(await kb("user/ann").entries())
            assert "4471" in repr((await chat.pack(4_000, query="garage code")).segments)
            await chat.reset()
            assert await kb("user/ann").list() == []
            other = await hf.session("b")
            await other.append(["The cellar is dry.", "It rains.", "It still rains."])
            await other.compact(1, store=True)
            await other.compact(0, store=kb)
            assert any("cellar" in text for text in embedded), "what was compacted before is copied with its vector"

    asyncio.run(run())


@pytest.mark.parametrize(
    ("module", "name", "bug"),
    [
        (PassageMirror, "catch_up", lambda self: None),
        (PassageMirror, "_update", lambda self, scope: None),
        (recall, "delete_entry", lambda storage, scope, key: None),
        (observers.EventCallbacks, "list_callbacks", lambda self, tenant, type_name: []),
    ],
)
@pytest.mark.parametrize("end", ["rewind", "erase"])
def test_a_store_that_keeps_what_was_retracted_is_found(
    monkeypatch: pytest.MonkeyPatch, module: Any, name: str, bug: Any, end: str
) -> None:
    with (
        holdfast.open_store("memory:", search=True) as kb,
        holdfast.open("memory:", summarizer=short, tokenizer=count) as hf,
    ):
        chat = talk(hf.as_user("ann"), kb)
        monkeypatch.setattr(module, name, bug)
        if end == "rewind":
            chat.rewind(to=chat.messages()[0])
        else:
            hf.journal.erase("ann")
        assert "HUNTER2" in repr(kb("session/a").entries())
        assert "HUNTER2" not in repr(chat.pack(4_000, query="What is my password?", recall=5).segments)


@pytest.mark.parametrize("planted", [False, True])
def test_a_late_copy_of_what_another_process_retracted_meanwhile_is_taken_back(
    kb: StateStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, planted: bool
) -> None:
    retract: list[Any] = []
    write = recall.write_entry

    def write_late(*given: Any) -> int:
        if retract and "HUNTER2" in repr(given[-1]):
            retract.pop()()
        return write(*given)

    monkeypatch.setattr(recall, "write_entry", write_late)
    if planted:  # One look at the journal, and none after the copy.
        looks: dict[tuple[int, str], Any] = {}
        look = PassageMirror._read_source
        monkeypatch.setattr(
            PassageMirror, "_read_source", lambda self, *at: looks.setdefault((id(self), at[1]), look(self, *at))
        )
    with (
        holdfast.open(tmp_path / "a.db", summarizer=short, tokenizer=count) as hf,
        holdfast.open(tmp_path / "a.db", summarizer=short, tokenizer=count) as other,
    ):
        chat = hf.session("a")
        chat.append(["It rains today.", SECRET, "Please remember it."])
        chat.compact(0, store="session/a")
        same = other.session("a")
        same.compaction.add_rule(CompactionConfig(threshold=99, store="session/a"))

        def rewind_and_follow() -> None:
            same.rewind(to=same.messages()[0])
            same.compaction.add_rule(CompactionConfig(threshold=99, store=kb))

        retract.append(rewind_and_follow)
        chat.compaction.add_rule(CompactionConfig(threshold=99, store=kb))
        assert ("HUNTER2" in repr(kb("session/a").entries())) == planted
        assert "HUNTER2" not in repr(hf.state("session/a").entries())


def test_callbacks_hear_of_an_erasure(hf: Holdfast) -> None:
    heard: list[Any] = []
    hf.on("subject.erased", heard.append)
    hf.as_user("ann").session("a").append(SECRET)
    hf.journal.erase("ann")
    assert [(event.type, event.facts.events > 0) for event in heard] == [("subject.erased", True)]

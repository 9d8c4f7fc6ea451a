"""A call that may not be begun is refused with nothing written; one that meets others is decided again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.errors import (
    BudgetExhausted,
    DeadlineExceeded,
    FrameEnded,
    FrameSuspended,
    InvalidValue,
    SessionClosed,
    VersionConflict,
)
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.flow.packs import manifest
from holdfast.records.events.envelope import Draft
from holdfast.records.events.sessions import MessageAppended, MessageContent
from holdfast.records.frames import Limits
from tests.packs.calling_kit import LINE, SETTINGS, At
from tests.packs.journaled import sent
from tests.scale import volume

MODEL = "gpt-4o"


@pytest.fixture(params=["memory", "sqlite"])
def at(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[At]:
    made = At(tmp_path, "memory:" if request.param == "memory" else str(tmp_path / "a.db"))
    yield made
    made.hf.close()


@pytest.fixture
def hf() -> Any:
    with holdfast.open("memory:") as opened:
        yield opened


# refused, with nothing written


def refused(at: At, kind: type[Exception], call: Callable[[], object]) -> None:
    before, files = at.hf.journal.position(), at.files()
    with pytest.raises(kind):
        call()
    assert (at.hf.journal.position(), at.files()) == (before, files)


def test_a_pack_of_somebody_else_or_of_another_time_is_refused(at: At) -> None:
    begin, pack = at.hf.index.begin_model_call, at.pack()
    other = at.push("actor/other")
    call = begin(at.frame, pack)
    theirs = at.hf.tenant("them")
    theirs.session("s").append("hello")
    foreign = theirs.session("s").pack()
    fork = at.chat.fork()
    for wrong in (
        lambda: begin(other, pack),
        lambda: begin(at.frame, at.pack(other)),
        lambda: begin(at.frame, at.hf.index.pack_at(call)),
        lambda: begin(at.frame, at.hf.index.pack_at(call), key="new"),
        lambda: begin(at.frame, at.pack(as_of=at.hf.journal.position())),
        lambda: begin(at.frame, foreign),
        lambda: theirs.index.begin_model_call(at.frame, pack),
        lambda: begin(at.frame, {"messages": []}),  # type: ignore[arg-type]
        lambda: begin(at.frame, pack._packed),  # type: ignore[arg-type]
        lambda: begin("no id", pack),
        lambda: begin(at.frame, pack, if_interrupted="maybe"),
        lambda: at.chat.packs.begin_model_call(foreign),
        lambda: at.chat.packs.begin_model_call(fork.pack()),
        lambda: at.chat.packs.begin_model_call(at.chat.pack_at(call)),
        lambda: at.chat.packs.begin_model_call(at.chat.pack(as_of=at.hf.journal.position())),
        lambda: at.chat.packs.begin_model_call(None),  # type: ignore[arg-type]
        lambda: at.hf.session("t").packs.begin_model_call(at.chat.pack()),
    ):
        at.hf.session("t")
        refused(at, InvalidValue, wrong)


def test_a_frame_in_which_no_work_may_begin_is_refused(at: At) -> None:
    begin = at.hf.index.begin_model_call
    spent, ended, late, waiting = (
        at.push("actor/x", tokens=5_000),
        at.push("actor/x"),
        at.push("actor/x", limits=Limits(timeout_ms=1_000)),
        at.push("actor/x"),
    )
    packs = {frame: at.pack(frame) for frame in (spent, ended, late, waiting)}
    at.hf.index.record_usage(spent, 5_000)
    at.hf.index.pop_frame(ended)
    at.hf.index.suspend_frame(waiting, "Well?")
    at.clock.advance(2_000)
    for frame, kind in (
        (spent, BudgetExhausted),
        (ended, FrameEnded),
        (late, DeadlineExceeded),
        (waiting, FrameSuspended),
    ):
        refused(at, kind, lambda frame=frame: begin(frame, packs[frame]))  # type: ignore[misc]
        refused(at, kind, lambda frame=frame: begin(frame, packs[frame], key=f"k{frame}"))  # type: ignore[misc]
    # The same with nothing left to make a pack for.
    refused(at, BudgetExhausted, lambda: at.pack(spent))
    refused(at, FrameEnded, lambda: at.pack(ended))


def test_a_copy_that_was_placed_for_a_refused_call_is_withdrawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = At(tmp_path, str(tmp_path / "a.db"))
    pack = at.pack()
    at.hf.index.suspend_frame(at.frame, "Well?")
    placed = list[int]()
    original = manifest.artifacts.prepare_artifact

    def prepare(*given: Any) -> Any:
        made = original(*given)
        placed.append(len(at.files()))
        return made

    monkeypatch.setattr(manifest.artifacts, "prepare_artifact", prepare)
    refused(at, FrameSuspended, lambda: at.hf.index.begin_model_call(at.frame, pack))
    assert placed == [1]
    monkeypatch.setattr(manifest.artifacts, "withdraw_artifacts", lambda *given: None)
    with pytest.raises(AssertionError):
        refused(at, FrameSuspended, lambda: at.hf.index.begin_model_call(at.frame, pack))
    at.hf.close()


# beside others


def test_a_conflict_with_somebody_else_is_decided_again(at: At, monkeypatch: pytest.MonkeyPatch) -> None:
    journal: Any = at.hf.env.journal
    original, meanwhile = journal.append, iter(["four", "five"])
    other = Holdfast(at.hf.env, owner=False)
    first = at.chat.packs.begin_model_call(at.chat.pack())

    def append(batch: Any) -> Any:
        if any(event.type == "context.packed" for part in batch.parts for event in part.events):
            text = next(meanwhile, None)
            if text is not None:
                monkeypatch.setattr(journal, "append", original)
                at.hf.env.states.clear()
                _elsewhere(other, text)
                monkeypatch.setattr(journal, "append", append)
                raise VersionConflict(LINE, 0, 1)
        return original(batch)

    monkeypatch.setattr(journal, "append", append)
    pack = at.pack()
    call = at.hf.index.begin_model_call(at.frame, pack)
    assert [message.text for message in at.chat.messages()][-2:] == ["four", "five"]
    found = list(manifest.iter_packs(at.hf.env, LINE))
    assert [event.facts.call for event in found] == [call, first]
    assert sent(at.hf.index.pack_at(call)) == sent(pack)


def _elsewhere(other: Holdfast, text: str) -> None:
    """As another process would: this one holds the stream's lock."""
    draft = Draft(type="message.appended", facts=MessageAppended(role="user"), content=MessageContent(text=text))
    append_events(other.env, [StreamWrite(stream=LINE, events=(draft,))])


def test_many_at_once_are_all_journaled_and_linked(tmp_path: Path) -> None:
    at = At(tmp_path, str(tmp_path / "a.db"))
    clients = [at.hf, holdfast.open(tmp_path / "a.db", durability="fast", settings=SETTINGS)]
    calls: list[tuple[str, Any]] = []
    errors: list[BaseException] = []

    def work(hf: Holdfast, name: str) -> None:
        try:
            chat = hf.session("s")
            for number in range(volume(5, 40)):
                chat.append(f"{name} {number}")
                pack = chat.pack()
                calls.append((chat.packs.begin_model_call(pack), sent(pack)))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(clients[n % 2], f"t{n}")) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    found = [event.facts.call for event in manifest.iter_packs(clients[1].env, LINE)]
    assert sorted(found) == sorted(call for call, _ in calls)
    assert len(found) == 4 * volume(5, 40)
    for call, shown in calls:
        assert sent(at.hf.index.pack_at(call)) == shown
    assert at.hf.journal.verify().findings == ()
    for client in clients:
        client.close()


def test_a_pack_of_another_journal_is_not_journaled_here(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as one, holdfast.open(tmp_path / "b.db") as other:
        for client in (one, other):
            client.session("x", model=MODEL).append("hello")
        before = other.journal.position()
        with pytest.raises(InvalidValue, match="another journal"):
            other.session("x").packs.begin_model_call(one.session("x").pack(500))
        assert other.journal.position() == before


def test_a_pack_is_journaled_for_a_frame_that_sees_it(hf: Holdfast) -> None:
    for name in "ab":
        hf.session(name, model=MODEL).append(f"in {name}")
    inside = hf.index.push_frame("w", scope="actor/main/session/a/thread/main")
    alone = hf.index.push_frame("w", scope="actor/other")
    before = hf.journal.position()
    with pytest.raises(InvalidValue, match="not what frame"):
        hf.index.begin_model_call(inside, hf.session("b").pack(500))
    with pytest.raises(InvalidValue, match=inside):
        hf.session("a").packs.begin_model_call(hf.index.assemble_context_pack(frame=inside))
    with pytest.raises(InvalidValue, match="not what frame"):
        hf.index.begin_model_call(alone, hf.index.assemble_context_pack(frame=inside))
    assert hf.journal.position() == before
    assert hf.index.begin_model_call(inside, hf.session("a").pack(500))
    assert hf.index.begin_model_call(alone, hf.session("b").pack(500)), "a frame of no session may work for one"


def test_what_can_be_packed_can_be_journaled(hf: Holdfast) -> None:
    chat = hf.session("s", model=MODEL)
    chat.append("hello")
    assert chat.packs.begin_model_call(chat.pack(2**62))
    with pytest.raises(InvalidValue, match="budget"):
        chat.pack(2**63)


def test_no_call_is_begun_for_a_conversation_that_has_ended(hf: Holdfast) -> None:
    chat = hf.session("s", model=MODEL)
    chat.append("hello")
    pack = chat.pack(500)
    chat.close()
    with pytest.raises(SessionClosed):
        chat.packs.begin_model_call(pack)
    assert chat.pack(500).messages, "looking is always possible"

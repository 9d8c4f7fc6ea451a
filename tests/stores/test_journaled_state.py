"""What only journaled state can do: history, keys, erasure, rebuilding, going back, and ending with a session."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import holdfast
from holdfast import Holdfast
from holdfast.errors import KeyReused
from holdfast.flow.sessions import sessions as sessions_flow
from holdfast.testing.clock import FrozenClock
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.store_contract.fixtures import SCOPE, run_in_threads
from holdfast.types import ERASED


@pytest.fixture(params=["memory:", "sqlite"])
def hf(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Holdfast]:
    url = tmp_path / "a.db" if request.param == "sqlite" else request.param
    with holdfast.open(url, clock=FrozenClock()) as opened:
        yield opened


def test_the_history_of_a_key_tells_every_value_and_who_wrote_it(hf: Holdfast) -> None:
    state = hf.state("custom/app/id/1")
    first = state.write("theme", "dark")
    hf.as_user("bob").state("custom/app/id/1").write("theme", "light")
    state.delete("theme")
    state.write("theme", None)
    told = state.history("theme")
    assert [(one.value, one.deleted) for one in told] == [
        (None, False),
        (None, True),
        ("light", False),
        ("dark", False),
    ]
    assert [one.user is not None for one in told] == [False, False, True, False]
    assert told[-1].version == first
    assert [one.version for one in told] == sorted((one.version for one in told), reverse=True)
    assert state.history("theme", limit=1) == told[:1]
    assert state.history("nothing") == []


def test_a_retry_with_the_same_key_changes_nothing(hf: Holdfast) -> None:
    state = hf.state("user/1")
    first = state.write("n", 1, key="a")
    state.write("n", 5)
    assert state.write("n", 1, key="a") == first
    assert state.read("n") == 5
    added = state.write("n", 2, reducer="sum", key="b")
    assert state.write("n", 2, reducer="sum", key="b") == added
    assert state.read("n") == 7
    kept = state.write("m", "x", expected_version=0, key="c")
    assert state.write("m", "x", expected_version=0, key="c") == kept
    assert state.delete("m", key="d") is True
    assert state.delete("m", key="d") is True
    assert state.read("m") is None


@pytest.mark.parametrize(
    "other",
    [
        lambda state: state.write("n", 2, key="a"),
        lambda state: state.write("m", 1, key="a"),
        lambda state: state.write("n", 1, reducer="sum", key="a"),
        lambda state: state.delete("n", key="a"),
    ],
)
def test_a_key_that_stands_for_something_else_is_refused(hf: Holdfast, other: object) -> None:
    state = hf.state("user/1")
    state.write("n", 1, key="a")
    before = dump_projections(hf.env.journal)
    with pytest.raises(holdfast.errors.KeyReused):
        other(state)  # type: ignore[operator]
    assert dump_projections(hf.env.journal) == before


def test_what_is_kept_about_a_user_is_erased_with_the_user(hf: Holdfast) -> None:
    theirs, others = hf.state("user/alice"), hf.state("user/bob")
    hf.as_user("support").state("user/alice").write("phone", "555 0100")
    others.write("phone", "555 0199")
    theirs.link("phone", "belongs to", "alice", data={"since": "2019"})
    hf.journal.erase("alice")
    assert theirs.read("phone") is None
    assert theirs.list() == []
    assert theirs.search("555") == []
    assert [one.value for one in theirs.history("phone")] == [ERASED]
    assert theirs.neighbours("phone")[0].data is ERASED
    assert others.read("phone") == "555 0199"
    assert hf.journal.verify().findings == ()
    assert theirs.write("phone", "new") > 1
    assert theirs.read("phone") == "new"


def test_a_rebuild_and_a_copy_hold_the_same_state(hf: Holdfast, tmp_path: Path) -> None:
    state = hf.state("user/1")
    for number in range(30):
        state.write(f"k{number % 7}", {"n": number, "words": "green tea"})
    state.delete("k3")
    state.link("k1", "next", "k2")
    before = (
        dump_projections(hf.env.journal),
        state.entries(),
        [one.key for one in state.search("green", limit=50)],
    )
    hf.journal.rebuild()
    assert (
        dump_projections(hf.env.journal),
        state.entries(),
        [one.key for one in state.search("green", limit=50)],
    ) == before
    hf.journal.export(tmp_path / "lines.jsonl")
    with holdfast.open(tmp_path / "copy.db") as copy:
        copy.journal.import_(tmp_path / "lines.jsonl")
        assert dump_projections(copy.env.journal) == before[0]
        assert [one.key for one in copy.state("user/1").search("green", limit=50)] == before[2]


def test_going_back_to_a_cursor_goes_back_for_state_too(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        state = hf.state("user/1")
        state.write("n", 1)
        cursor = hf.journal.position()
        state.write("n", 2)
        state.write("later", True)
        hf.journal.backup(tmp_path / "whole.db")
    holdfast.restore(tmp_path / "whole.db", tmp_path / "back.db", seq=cursor)
    with holdfast.open(tmp_path / "back.db") as back:
        assert back.state("user/1").entries()[0].value == 1
        assert back.state("user/1").list() == ["n"]


def test_entries_of_a_session_end_with_it(hf: Holdfast) -> None:
    chat = hf.session("s1")
    chat.append("hello")
    state, line = hf.state("s1"), hf.state("session/s1/thread/main")
    state.write("draft", "x", lifetime="session")
    line.write("cursor", 3, lifetime="session")
    state.write("profile", "y")
    state.write("shadow", "z", lifetime="transient")
    chat.close()
    assert state.list() == ["profile"]
    assert line.list() == []
    assert state.history("draft")[0].cause == "session"
    other = hf.session("s2")
    other.append("hi")
    hf.state("s2").write("draft", "x", lifetime="session")
    other.reset()
    assert hf.state("s2").list() == []


def test_a_session_that_ends_again_takes_what_was_kept_meanwhile(hf: Holdfast) -> None:
    chat = hf.session("s1")
    chat.append("hello")
    chat.reset()
    hf.state("s1").write("draft", 1, lifetime="session")
    hf.state("session/s1/thread/never").write("draft", 2, lifetime="session")
    hf.state("session/s1/thread/never").write("over", 3, lifetime="transient")
    hf.state("session/s11").write("draft", 4, lifetime="session")
    chat.reset()
    assert hf.state("s1").list() == []
    assert hf.state("session/s1/thread/never").list() == []
    assert hf.state("session/s11").read("draft") == 4


def test_state_and_session_of_one_name_live_together(hf: Holdfast) -> None:
    hf.state("s1").write("before", 1)
    chat = hf.session("s1", title="First")
    chat.append("hello")
    hf.state("s1").write("after", 2)
    assert chat.title == "First"
    assert [message.text for message in chat] == ["hello"]
    assert hf.state("s1").list() == ["after", "before"]
    assert hf.journal.verify().findings == ()


def test_what_is_redacted_is_neither_stored_nor_found(tmp_path: Path) -> None:
    def without_numbers(text: str) -> str:
        return "".join("#" if letter.isdigit() else letter for letter in text)

    with holdfast.open(tmp_path / "a.db", redact=without_numbers) as hf:
        state = hf.state("user/1")
        first = state.write("card", {"number": "4111 1111"}, key="a")
        assert state.write("card", {"number": "4111 1111"}, key="a") == first
        assert state.read("card") == {"number": "#### ####"}
        assert state.search("4111") == []


def test_sums_of_several_clients_of_one_file_lose_none(tmp_path: Path) -> None:
    clients = [holdfast.open(tmp_path / "a.db") for _ in range(3)]

    def add(hf: Holdfast) -> None:
        for _ in range(20):
            hf.state("user/1").write("n", 1, reducer="sum")

    threads = [threading.Thread(target=add, args=(hf,)) for hf in clients]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clients[0].state("user/1").read("n") == 60
    for hf in clients:
        hf.close()


def test_a_write_that_compares_nothing_reads_nothing(tmp_path: Path) -> None:
    from bench.counting import counting

    with holdfast.open(tmp_path / "a.db", settings=holdfast.Settings(index_text=0)) as hf:
        state = hf.state("user/1")
        state.write("a", 1)
        counts = []
        for _ in range(2):
            with counting(hf.env.journal) as one:
                state.write("a", 2)
            counts.append((one.calls, one.statements))
            for number in range(200):
                state.write(f"k{number}", number)
        assert counts[0] == counts[1]


def test_an_effect_with_a_reducer_keeps_what_it_does_not_say() -> None:
    with holdfast.open("memory:") as hf:
        hf.state(SCOPE).write("n", 1, tier="hot", salience=0.5)
        effect = holdfast.effects.WriteState(SCOPE, "n", 1, reducer="sum")
        hf.effects.operate(lambda given, view: holdfast.effects.OperatorOutput(effects=[effect]), name="o")
        entry = hf.state(SCOPE).entry("n")
        assert entry is not None
        assert (entry.value, entry.tier, entry.salience) == (2, "hot", 0.5)


def test_one_key_is_one_deletion_whoever_is_first() -> None:
    with holdfast.open("memory:") as hf:
        state = hf.state(SCOPE)
        answers: list[bool] = []
        run_in_threads(4, lambda number: answers.append(state.delete("k", key="once")))
        assert answers == [False] * 4
        assert hf.journal.version(SCOPE) == 1
        with pytest.raises(KeyReused):
            state.delete("other", key="once")
        assert hf.journal.verify().ok
        hf.journal.rebuild()
        assert state.history("k") == []


def test_a_deletion_without_a_key_that_finds_nothing_writes_nothing() -> None:
    with holdfast.open("memory:") as hf:
        assert not hf.state(SCOPE).delete("k")
        assert not hf.state(SCOPE).delete("k", expected_version=0)
        assert hf.journal.version(SCOPE) == 0


def test_a_session_ends_with_more_entries_than_a_page_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions_flow, "MAX_PAGE", 7)
    with holdfast.open("memory:") as hf:
        session = hf.session("s")
        for number in range(23):
            hf.state("session/s").write(f"k{number}", number, lifetime="session")
        hf.state("session/s").write("kept", 1)
        session.close()
        assert hf.state("session/s").list() == ["kept"]

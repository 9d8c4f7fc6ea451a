"""The text index follows the events: appending does not write to it, and a search misses nothing for that."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

import holdfast
from bench.counting import counting
from holdfast import Holdfast, Settings
from holdfast.core.search import segments
from holdfast.core.search.segments import decode_block
from holdfast.journal.sqlite import SqliteJournal, statements, transaction
from holdfast.journal.sqlite import search as sqlite_search
from holdfast.journal.sqlite.segments import TextSegments
from tests.scale import seeded, volume

MANY = 2 * sqlite_search.SEARCHED_IN_MEMORY
Patch = pytest.MonkeyPatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.db"


@pytest.fixture
def hf(path: Path) -> Iterator[Holdfast]:
    with holdfast.open(path, durability="fast") as opened:
        yield opened


def journal_of(hf: Holdfast) -> SqliteJournal:
    journal = hf.env.journal
    assert isinstance(journal, SqliteJournal)
    return journal


def stored(hf: Holdfast, tenant: int = 1) -> int:
    """The number of texts that the index holds."""
    with journal_of(hf).connections.reader() as connection:
        return len(TextSegments(connection, tenant).seqs(hidden=False))


def words(hf: Holdfast, tenant: int = 1) -> set[str]:
    with journal_of(hf).connections.reader() as connection:
        index = TextSegments(connection, tenant)
        blocks = [body for one in index.segments() for _, body in index.load(one).blocks]
        return {word for body in blocks for word in decode_block(body).words.split(" ")}


def found(hf: Holdfast, query: str) -> list[str]:
    return [one.value.text for one in hf.search(query, limit=1_000)]


def test_an_append_writes_nothing_to_the_index_and_a_search_finds_what_it_appended(hf: Holdfast) -> None:
    chat = hf.session("s")
    for number in range(3):
        chat.append(f"amber {number}")
        assert chat.search(f"amber {number}")[0].value.text == f"amber {number}"
    hf.state("user/1").write("note", "amber as well")
    assert len(hf.search("amber")) == 4
    assert stored(hf) == 0


def test_a_search_stores_what_is_pending_once_it_is_much(hf: Holdfast) -> None:
    hf.session("s").append([f"amber {number}" for number in range(MANY)])
    assert len(found(hf, "amber")) == MANY
    assert stored(hf) == MANY
    hf.session("s").append("amber again")
    assert len(found(hf, "amber")) == MANY + 1
    assert stored(hf) == MANY


def test_appends_have_many_texts_indexed_without_a_search(hf: Holdfast) -> None:
    chat = hf.session("s")
    for number in range(transaction.PENDING_TEXTS - 1):
        chat.append(f"amber {number}")
    assert stored(hf) == 0
    chat.append("amber at last")
    assert stored(hf) == transaction.PENDING_TEXTS


def test_another_client_finds_what_this_one_appended(hf: Holdfast, path: Path) -> None:
    with holdfast.open(path, durability="fast") as other:
        for number in range(3 * MANY):
            hf.session("s").append(f"amber {number}")
            if number % 16 == 0:
                assert len(found(other, "amber")) == number + 1
        assert found(other, "amber") == found(hf, "amber")


KILLED = """
import os, signal, sys, holdfast
hf = holdfast.open(sys.argv[1])
for number in range(int(sys.argv[2])):
    hf.session("s").append(f"amber {number}")
    if number == int(sys.argv[3]):
        hf.search("amber")
print("done", flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def check_killed(path: Path, count: int, searched: int) -> None:
    """Every text of a process that was killed is found, whatever it had indexed."""
    command = [sys.executable, "-c", KILLED, str(path), str(count), str(searched)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (-signal.SIGKILL, "done\n"), ended.stderr
    with holdfast.open(path) as hf:
        assert len(found(hf, "amber")) == count
        assert hf.journal.verify().findings == ()


def test_texts_of_a_process_that_was_killed_are_found(path: Path) -> None:
    check_killed(path, 2 * MANY, MANY)


def test_a_cursor_that_runs_ahead_of_the_texts_would_be_seen(hf: Holdfast, monkeypatch: Patch) -> None:
    known = TextSegments.advance
    monkeypatch.setattr(TextSegments, "advance", lambda self, seq: known(self, seq + 5))
    with pytest.raises(AssertionError):
        check_two_batches(hf)


def check_two_batches(hf: Holdfast) -> None:
    hf.session("s").append([f"amber {number}" for number in range(MANY)])
    assert len(found(hf, "amber")) == MANY
    hf.session("later").append("amber later")
    assert len(found(hf, "amber")) == MANY + 1


def test_a_second_batch_is_found_as_well(hf: Holdfast) -> None:
    check_two_batches(hf)


def test_who_cannot_write_finds_what_is_pending(path: Path) -> None:
    with holdfast.open(path, settings=Settings(busy_ms=30)) as hf:
        hf.session("s").append([f"amber {number}" for number in range(MANY)])
        hog = apsw.Connection(str(path))
        hog.execute("BEGIN IMMEDIATE")
        try:
            assert len(found(hf, "amber")) == MANY
        finally:
            hog.execute("ROLLBACK")
            hog.close()
        assert stored(hf) == 0


@pytest.mark.parametrize("error", [holdfast.errors.Busy("no"), ImportError("numpy"), MemoryError()])
def test_an_append_is_acknowledged_whatever_comes_of_the_index(
    hf: Holdfast, monkeypatch: Patch, error: Exception
) -> None:
    def refuse(*given: object) -> None:
        raise error

    monkeypatch.setattr(sqlite_search, "follow_events", refuse)
    texts = [f"amber {number}" for number in range(transaction.PENDING_TEXTS)]
    assert len(hf.session("s").append(texts)) == len(texts)
    assert len(hf.session("s")) == len(texts)


def test_a_search_within_a_snapshot_sees_that_moment_and_writes_nothing(hf: Holdfast) -> None:
    hf.session("s").append([f"amber {number}" for number in range(MANY)])
    with hf.env.journal.snapshot():
        assert len(found(hf, "amber")) == MANY
        assert stored(hf) == 0


LARGE = "lorem ipsum dolor " * (sqlite_search.FOLLOWED_BYTES // 400)


def check_large(hf: Holdfast) -> None:
    """Few texts of many bytes are found as well, at once and later."""
    state = hf.state("user/1")
    for number in range(30):
        state.write(f"k{number}", f"marker{number}x {LARGE}")
    for number in range(30):
        assert [one.key for one in state.search(f"marker{number}x")] == [f"k{number}"]


def test_few_texts_of_many_bytes_are_found(hf: Holdfast) -> None:
    check_large(hf)


def test_a_batch_that_ends_by_its_bytes_and_passes_for_the_last_would_be_seen(hf: Holdfast, monkeypatch: Patch) -> None:
    known = sqlite_search.read_pending
    monkeypatch.setattr(
        sqlite_search, "read_pending", lambda *given, **how: replace(known(*given, **how), is_last=True)
    )
    with pytest.raises(AssertionError):
        check_large(hf)


def test_events_without_words_hide_no_text_behind_them(hf: Holdfast) -> None:
    chat = hf.session("s")
    arguments = json.dumps({"a": "y" * 400_000})
    for number in range(25):
        call = {"id": f"c{number}", "type": "function", "function": {"name": "f", "arguments": arguments}}
        chat.append({"role": "assistant", "content": None, "tool_calls": [call]})
        chat.append_result(call["id"], "")
    chat.append("needle at the end")
    assert "needle at the end" in [one.value.text for one in chat.search("needle")]


def test_more_pending_texts_than_a_segment_holds_are_searched_in_memory(path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(sqlite_search, "FOLLOWED_AT_ONCE", 10)
    monkeypatch.setattr(sqlite_search.read_pending, "__kwdefaults__", {"after": None, "limit": 10, "size": 10**9})
    with holdfast.open(path, settings=Settings(busy_ms=30)) as hf:
        hf.session("s").append([f"amber {number}" for number in range(5 * MANY)])
        hog = apsw.Connection(str(path))
        hog.execute("BEGIN IMMEDIATE")
        try:
            assert len(found(hf, "amber")) == 5 * MANY
        finally:
            hog.execute("ROLLBACK")
            hog.close()


def test_a_client_without_the_index_finds_nothing_by_words(hf: Holdfast, path: Path) -> None:
    hf.session("s").append([f"amber {number}" for number in range(MANY)])
    assert len(found(hf, "amber")) == MANY
    with holdfast.open(path, settings=Settings(index_text=0)) as other:
        assert found(other, "amber") == []


def check_replaced(hf: Holdfast) -> None:
    """An entry that was replaced is not in the index, and its rarity does not count."""
    state = hf.state("user/1")
    for number in range(3 * MANY):
        state.write("note", f"amber {number}")
        if number % MANY == 0:
            state.search("amber")
    state.write("other", "birch")
    state.delete("other")
    assert [one.key for one in state.search("amber")] == ["note"]
    sqlite_search.follow_events(journal_of(hf), 1)
    assert stored(hf) == 1


def test_entries_that_were_replaced_leave_the_index(hf: Holdfast) -> None:
    check_replaced(hf)


def test_replaced_entries_that_stay_would_be_seen(hf: Holdfast, monkeypatch: Patch) -> None:
    monkeypatch.setattr(TextSegments, "remove", lambda self, seqs: None)
    with pytest.raises(AssertionError):
        check_replaced(hf)


def check_rewound(hf: Holdfast) -> None:
    """A short message is found by the one before it, which is not what was retracted in between."""
    chat = hf.session("s")
    chat.append("The plumber comes at noon.")
    wrong = chat.append("My password is hunter2.")
    chat.rewind(before=wrong)
    chat.append("Fine.")
    assert found(hf, "hunter2") == []
    assert "Fine." in found(hf, "plumber")


def test_a_retracted_message_is_not_the_context_of_the_next(hf: Holdfast) -> None:
    check_rewound(hf)


def test_a_context_that_was_retracted_would_be_seen(hf: Holdfast, monkeypatch: Patch) -> None:
    known = statements.queries()
    sql = known["message_before"].replace("AND (m.retracted IS NULL OR m.retracted > ?3)", "")
    monkeypatch.setattr(sqlite_search, "queries", lambda: {**known, "message_before": sql})
    with pytest.raises(AssertionError):
        check_rewound(hf)


# erasure


def prepare_batch(hf: Holdfast) -> Callable[[], object]:
    """Read pending texts as a search does, and return the step that stores them."""
    journal = journal_of(hf)
    with journal.connections.reader() as connection:
        pending = sqlite_search.read_pending(connection, journal.files, 1)
    built = sqlite_search.build_segment(pending.rows, sqlite_search.STEMS)
    return lambda: journal.connections.transact(
        lambda connection: sqlite_search.store_pending(connection, 1, pending, built)
    )


def check_erased_meanwhile(hf: Holdfast) -> None:
    """Texts that were read before an erasure are not stored after it."""
    hf.as_user("ann").session("s").append("My word is zyzzyva.")
    store = prepare_batch(hf)
    hf.journal.erase("ann")
    store()
    assert "zyzzyva" not in words(hf)
    hf.session("s").append([f"amber {number}" for number in range(MANY)])
    assert found(hf, "zyzzyva") == []
    assert "zyzzyva" not in words(hf)


def test_pending_texts_that_are_erased_never_enter_the_index(hf: Holdfast) -> None:
    check_erased_meanwhile(hf)


def test_a_batch_that_outlives_an_erasure_would_be_seen(hf: Holdfast, monkeypatch: Patch) -> None:
    monkeypatch.setattr(TextSegments, "begin_generation", lambda self: None)
    with pytest.raises(AssertionError):
        check_erased_meanwhile(hf)


def check_erased_while_merging(hf: Holdfast) -> None:
    """A merge that was prepared before an erasure is not stored after it."""
    journal = journal_of(hf)
    for number in range(segments.MERGED_AT_ONCE):
        theirs = hf.as_user("ann") if number == 2 else hf
        theirs.session("s").append([f"{'zyzzyva' if number == 2 else 'amber'} {one}" for one in range(20)])
        with journal.connections.reader() as connection:
            pending = sqlite_search.read_pending(connection, journal.files, 1)
        built = sqlite_search.build_segment(pending.rows, sqlite_search.STEMS)
        journal.connections.transact(lambda connection: sqlite_search.store_pending(connection, 1, pending, built))  # noqa: B023
    with journal.connections.reader() as connection:
        merge = TextSegments(connection, 1).prepare_merge()
    assert merge is not None
    assert "zyzzyva" in words(hf)
    hf.journal.erase("ann")
    journal.connections.transact(lambda connection: TextSegments(connection, 1).store_merge(merge))
    assert "zyzzyva" not in words(hf)
    assert len(found(hf, "amber")) == 7 * 20
    assert hf.journal.verify().findings == ()


def test_a_merge_that_outlives_an_erasure_is_not_stored(hf: Holdfast) -> None:
    check_erased_while_merging(hf)


def test_a_merge_stored_over_an_erasure_would_be_seen(hf: Holdfast, monkeypatch: Patch) -> None:
    def store(self: Any, merge: Any) -> bool:
        self.drop([one.id for one in merge.replaced])
        self.insert(merge.merged)
        return True

    monkeypatch.setattr(TextSegments, "store_merge", store)
    with pytest.raises(AssertionError):
        check_erased_while_merging(hf)


def test_hidden_texts_leave_the_index_when_they_are_erased(hf: Holdfast) -> None:
    for number in range(MANY):
        hf.state("user/1").write(f"k{number}", f"zyzzyva {number}")
    assert hf.state("user/1").search("zyzzyva")
    hf.state("user/1").write("k1", "amber")
    sqlite_search.follow_events(journal_of(hf), 1)
    assert "zyzzyva" in words(hf)
    hf.journal.erase("1")
    assert stored(hf) == 0
    assert words(hf) == set()


# damage


def test_a_damaged_segment_is_reported_refused_and_made_again(hf: Holdfast) -> None:
    hf.session("s").append([f"amber {number}" for number in range(MANY)])
    assert len(found(hf, "amber")) == MANY
    chance = seeded("damaged segments")
    for _ in range(volume(4, 100)):
        blocks = "SELECT id, body FROM text_blocks"
        connections = journal_of(hf).connections
        with connections.reader() as connection:
            id, body = chance.choice(list(connection.execute(blocks)))
        at = chance.randrange(len(body))
        changed = body[:at] + bytes([body[at] ^ 1 << chance.randrange(8)]) + body[at + 1 :]
        values = (changed, id)
        connections.transact(lambda one: one.execute("UPDATE text_blocks SET body = ? WHERE id = ?", values))  # noqa: B023
        assert [finding.kind for finding in hf.journal.verify().findings] == ["texts"]
        with pytest.raises(holdfast.errors.Corrupt, match="rebuild"):
            found(hf, "amber")
        hf.journal.rebuild()
        assert hf.journal.verify().findings == ()
        assert len(found(hf, "amber")) == MANY


def test_a_damaged_index_does_not_stand_in_the_way_of_an_erasure(hf: Holdfast) -> None:
    hf.as_user("ann").session("s").append([f"zyzzyva {number}" for number in range(MANY)])
    hf.session("s").append("amber")
    assert len(found(hf, "zyzzyva")) >= MANY
    connections = journal_of(hf).connections
    connections.transact(lambda one: one.execute("UPDATE text_blocks SET body = x'00' WHERE id & 1048575 = 1"))
    hf.journal.erase("ann")
    assert words(hf) == set()
    assert found(hf, "zyzzyva") == []
    assert found(hf, "amber") == ["amber"]
    assert hf.journal.verify().findings == ()


# tenants


def test_opening_and_appending_cost_the_same_however_many_tenants_have_texts(hf: Holdfast, path: Path) -> None:
    found = []
    count = 0
    for many in (volume(5, 10), volume(200, 10_000)):
        for count in range(count, many):  # noqa: B020
            tenant = hf.tenant(f"t{count}")
            tenant.session("s").append([f"amber {number}" for number in range(MANY if count % 20 == 0 else 2)])
            tenant.search("amber")
        with counting(hf.env.journal) as fresh:
            hf.tenant(f"new{many}").session("s").append("hello")
        with counting(hf.env.journal) as known:
            hf.tenant("t0").session("s").append("hello")
        with journal_of(hf).connections.reader() as connection:
            ((objects,),) = connection.execute("SELECT count(*) FROM sqlite_schema")
        found.append((fresh.statements, fresh.calls, known.statements, known.calls, objects))
    assert found[0] == found[1]


def test_segments_of_another_tenant_change_no_score(hf: Holdfast) -> None:
    mine, other = hf.tenant("mine"), hf.tenant("other")
    mine.session("s").append([f"amber birch {number}" for number in range(MANY)])
    mine.session("s").append("birch")
    before = [(one.key, one.score) for one in mine.search("amber birch")]
    for number in range(4):
        other.session("s").append([f"birch {number} {one}" for one in range(MANY)])
        other.search("birch")
    assert [(one.key, one.score) for one in mine.search("amber birch")] == before

"""Erased means gone: no canary is left in any byte of the database, its log or its artifacts."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import holdfast
from holdfast.flow.journal.artifacts import prepare_artifact
from holdfast.journal.sqlite import SqliteJournal
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.writer import Writer
from tests.scale import seeded

CANARIES = 100


def _on_disk(folder: Path, canaries: list[bytes]) -> list[bytes]:
    data = b"".join(path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file())
    return [canary for canary in canaries if canary in data]


def test_a_hundred_canaries_leave_every_byte(tmp_path: Path) -> None:
    random = seeded("canaries")
    canaries = [b"canary-%016x" % random.getrandbits(64) for _ in range(CANARIES)]
    hf = holdfast.open(tmp_path / "a.db")
    writer = Writer(hf.env.journal)
    story = FrameGenerator(random, writer.env.ids, subjects=("bob",))
    person = "alice.the.person@example.org"
    for number, canary in enumerate(canaries):
        writer.append("actor/main", *story.step())
        size = (0, 200, 300_000)[number % 3]
        files = [canary + random.randbytes(size)] if size else []
        hf.journal.append("s", "app.noted", {"text": canary.decode() * (1 + number % 40)}, subject=person, files=files)
    everything = [*canaries, person.encode()]
    assert _on_disk(tmp_path, everything) == everything
    live = dump_projections(hf.env.journal)
    erasure = hf.journal.erase(person)
    assert erasure.events == CANARIES
    # With the client still open, in the database, its log, its index and the files.
    assert _on_disk(tmp_path, everything) == []
    assert hf.journal.verify().findings == ()
    hf.journal.rebuild()
    assert dump_projections(hf.env.journal) == live
    assert hf.journal.verify().findings == ()
    hf.close()
    assert _on_disk(tmp_path, everything) == []


def test_the_words_of_entries_and_messages_leave_the_index_and_what_was_made_of_them(tmp_path: Path) -> None:
    random = seeded("words")
    canaries = ["canary" + "".join(random.choices("bcdfghjklm", k=12)) for _ in range(CANARIES)]

    def lengths(texts: list[str]) -> list[list[float]]:
        return [[float(len(text)), 1.0] for text in texts]

    hf = holdfast.open(tmp_path / "a.db", embedder=lengths)
    alice = hf.as_user("alice")
    chat, state = alice.session("s"), hf.state("user/alice")
    hf.session("other").append("nothing of hers")
    for number, canary in enumerate(canaries):
        if number % 2:
            chat.append(f"about {canary}")
            hf.session("s").append("Go on.")  # Somebody else's, and so short that it is indexed with what came before.
        else:
            state.write(f"k{number % 10}", {"about": canary})
    assert [hit.snippet for hit in chat.search(canaries[1])][:1] == [f"about {canaries[1]}"]
    assert state.search(canaries[98])
    # In the index, words are kept in part behind those that begin alike: what is looked for is the rest of them.
    words = [canary[6:].encode() for canary in canaries]
    assert len(_on_disk(tmp_path, words)) > CANARIES / 2
    hf.journal.erase("alice")
    assert _on_disk(tmp_path, [*words, *(canary.encode() for canary in canaries)]) == []
    assert {hit.snippet for hit in chat.search(canaries[1])} == {"Go on."}
    assert state.search(canaries[98]) == []
    assert state.list() == []
    assert hf.session("other").search("nothing")
    assert hf.journal.verify().findings == ()
    hf.close()


def test_a_file_left_by_a_crash_during_erasure_goes_when_the_journal_is_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with holdfast.open(path) as hf:
        hf.journal.append("s", "app.noted", subject="alice", files=[b"secret" * 100_000])
        journal = hf.env.journal
        assert isinstance(journal, SqliteJournal)
        journal.files.remove = lambda tenant, name: (_ for _ in ()).throw(holdfast.Unavailable)  # type: ignore[method-assign]
        try:
            hf.journal.erase("alice")
        except holdfast.Unavailable:
            pass
    assert len(list((tmp_path / "a.db-artifacts").glob("*/*"))) == 1
    with holdfast.open(path) as hf:
        assert list((tmp_path / "a.db-artifacts").glob("*/*")) == []
        assert hf.journal.verify().ok


def _orphan(hf: holdfast.Holdfast, folder: Path, body: bytes, age: float = 2 * 86_400) -> Path:
    """Leave a body as a process does that dies before the append that refers to it."""
    prepare_artifact(hf.env, body)
    (path,) = (one for one in (folder / "a.db-artifacts").glob("*/*") if one.read_bytes() == body)
    then = path.stat().st_mtime - age
    os.utime(path, (then, then))
    return path


def test_erasing_takes_the_bodies_that_a_dead_process_left_without_an_event(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        hf.as_user("alice").journal.append("s", "app.noted", {"text": "known"})
        hf.journal.append("s", "app.noted", subject="bob", files=[b"kept" * 100_000])
        _orphan(hf, tmp_path, b"canary" * 100_000)
        placed = _orphan(hf, tmp_path, b"young" * 100_000, age=3_600)  # Its append may still be on its way.
        hf.journal.erase("alice")
        assert _on_disk(tmp_path, [b"canary", b"kept", b"young"]) == [b"kept", b"young"]
        os.utime(placed, (1, 1))
        assert hf.journal.collect() == 1
        assert hf.journal.verify().ok


def test_recovery_takes_the_bodies_that_a_dead_process_left_without_an_event(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as dead:
        orphan = _orphan(dead, tmp_path, b"canary" * 100_000)

    async def recover() -> None:
        async with (
            asyncio.timeout(30),
            holdfast.open_async(tmp_path / "a.db") as hf,
            hf.agent("a", model=holdfast.Scripted([])).recovering(),
        ):
            while orphan.exists():
                await asyncio.sleep(0.001)

    asyncio.run(recover())


def test_a_reader_that_keeps_the_log_is_named_and_erasing_again_finishes(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    settings = holdfast.Settings(busy_ms=50)
    with holdfast.open(path, settings=settings) as hf:
        hf.journal.append("s", "app.noted", {"text": "canary"}, subject="alice")
        hf.journal.append("s", "app.noted", {"text": "other"}, subject="bob")
        reader = holdfast.open(path)
        with reader.env.journal.connections.reader() as connection:  # type: ignore[attr-defined]
            connection.execute("SELECT count(*) FROM events").fetchall()
            hf.journal.append("s", "app.noted")
            with pytest.raises(holdfast.errors.Busy, match="erasure is committed"):
                hf.journal.erase("alice")
        reader.close()
        hf.journal.erase("bob")
        assert _on_disk(tmp_path, [b"canary", b"alice"]) == []

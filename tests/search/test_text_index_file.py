"""The text index in a file: what was removed leaves it, damage is noticed, and it stays small."""

from __future__ import annotations

import random
from pathlib import Path

import apsw
import pytest

from bench.session_texts import text as of_1_kb
from holdfast.core.search import words
from holdfast.core.search.documents import TextRow
from holdfast.sqlite.fts import TextIndex
from tests.scale import seeded, volume


def check_erased(path: Path, chance: random.Random) -> None:
    """Words of removed rows are in no byte of the file, whatever was merged before."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("secure_delete", 1)
    index = TextIndex(connection, "said")
    index.create()
    secrets = ["".join(chance.choices("bcdfghjklmnpqrtvwxz", k=16)) for _ in range(chance.choice([1, 3, 60]))]
    for number, secret in enumerate(secrets):
        index.add([TextRow(number, f"My word is {secret}.", place="s1")])
    gone = chance.sample(range(len(secrets)), 1 + len(secrets) // 3)
    index.remove(gone)
    index.scrub()
    assert {rowid for rowid, _ in index.match(secrets, None, 100)} == set(range(len(secrets))) - set(gone)
    assert index.is_sound()
    connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
    connection.close(True)
    # The beginning may be shared with the word before it, and is not written then.
    assert not [secrets[number] for number in gone if secrets[number][4:].encode() in path.read_bytes()]


def test_what_was_removed_leaves_the_file_when_it_is_scrubbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = seeded("erased")
    for number in range(volume(12, 500)):
        check_erased(tmp_path / f"{number}.db", chance)
    monkeypatch.setattr(TextIndex, "scrub", lambda self: None)
    with pytest.raises(AssertionError):
        check_erased(tmp_path / "unscrubbed.db", random.Random(3))


def test_a_damaged_index_says_so() -> None:
    connection = apsw.Connection(":memory:")
    index = TextIndex(connection, "said")
    index.create()
    index.add(TextRow(number, of_1_kb(number)) for number in range(20))
    assert index.is_sound()
    connection.execute("DELETE FROM said_data WHERE id = (SELECT max(id) FROM said_data)")
    assert not index.is_sound()
    connection.close(True)


def kilobytes(path: Path, count: int) -> float:
    """What an index of messages of 1 KB takes of a file for each, when every message is a commit."""
    connection = apsw.Connection(str(path))
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", 0)
    index = TextIndex(connection, "said")
    index.create()
    for number in range(count):
        index.add([TextRow(1 + 3 * number, of_1_kb(number), date="8 May 2023", place="s17")])
    used = connection.pragma("page_count") - connection.pragma("freelist_count")
    connection.close(True)
    return float(used * 4.096 / count)


def test_an_index_takes_less_than_half_of_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = volume(600, 5_000)
    assert kilobytes(tmp_path / "index.db", count) < 0.48
    monkeypatch.setattr(words, "_FUNCTION_WORDS", frozenset())
    assert kilobytes(tmp_path / "with function words.db", count) > 0.48

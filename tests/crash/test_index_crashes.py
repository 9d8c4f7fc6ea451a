"""The power fails while texts are indexed: every acknowledged text is found, and the index is whole."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from holdfast.client.holdfast import Holdfast
from holdfast.journal.sqlite import search as sqlite_search
from holdfast.journal.sqlite.segments import TextSegments
from tests.crash.machine import Machine, reopened, switched_on
from tests.crash.test_power_cuts import until_the_power_fails
from tests.scale import seeded, volume

EACH = sqlite_search.SEARCHED_IN_MEMORY + 3
CALLS = 420
"""I/O calls of what goes on while the power may fail, at most."""


class Talk:
    """Texts that are appended and searched for."""

    def __init__(self) -> None:
        self.acknowledged = self.sent = 0

    def go_on(self, machine: Machine) -> None:
        client = Holdfast(machine.ledger.env(machine.journal))
        for _ in range(8):
            self.sent += EACH
            client.session("s").append([f"amber {number}" for number in range(EACH)])
            self.acknowledged += EACH
            client.search("amber")


def find_texts(client: Holdfast) -> int:
    return len(client.search("amber", limit=1_000))


def one_cut(folder: Path, random: Random) -> bool:
    """Cut the power once while texts are indexed; return True if it failed in time."""
    talk = Talk()
    with switched_on(folder, random) as machine:
        machine.open()
        during = until_the_power_fails(machine, talk.go_on, random.randint(1, CALLS))
        with reopened(machine.after_a_power_cut()) as journal:
            client = Holdfast(machine.ledger.env(journal))
            assert client.journal.verify().findings == ()
            assert talk.acknowledged <= find_texts(client) <= talk.sent, "texts are lost to the search"
            with journal.connections.reader() as connection:
                for (tenant,) in connection.execute("SELECT id FROM tenants").fetchall():
                    index = TextSegments(connection, tenant)
                    held = sum(one.count for one in index.segments())
                    assert held == len(index.seqs(hidden=True)), "texts are indexed twice"
    return during


def cut_often(folder: Path, random: Random, cuts: int) -> int:
    return sum(one_cut(folder / str(number), random) for number in range(cuts))


def test_a_power_cut_while_texts_are_indexed_loses_none(quick_path: Path) -> None:
    cuts = volume(30, 1_500)
    during = cut_often(quick_path, seeded("power cuts while indexing"), cuts)
    print(f"{during} of {cuts} power cuts while texts were indexed")
    assert during > cuts / 4, "too many cuts came too late"


def test_a_cursor_that_is_committed_before_the_texts_would_be_seen(
    quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = TextSegments.insert

    def late(self: TextSegments, segment: object) -> None:
        self.advance(10**6)
        self._connection.execute("COMMIT")
        self._connection.execute("BEGIN IMMEDIATE")
        insert(self, segment)

    monkeypatch.setattr(TextSegments, "insert", late)
    with pytest.raises(AssertionError):
        cut_often(quick_path, Random(5), 60)


@pytest.mark.parametrize("kind", ["full", "write", "sync"])
def test_a_search_on_a_disk_that_takes_nothing_finds_what_is_pending(quick_path: Path, kind: str) -> None:
    with switched_on(quick_path / "machine", Random(0)) as machine:
        client = Holdfast(machine.ledger.env(machine.open()))
        client.session("s").append([f"amber {number}" for number in range(EACH)])
        machine.disk.fail(kind, sticky=True)
        assert find_texts(client) == EACH
        machine.disk.heal()
        client.session("s").append("amber at last")
        assert find_texts(client) == EACH + 1
        assert client.journal.verify().findings == ()

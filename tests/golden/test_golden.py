"""Old journals are fixtures for ever: every release reads them, and gives the same rows."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

import holdfast
from tests.golden.make import FOLDER, digest, tell

RELEASES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def test_there_are_golden_journals() -> None:
    assert holdfast.__version__ in RELEASES


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("url", ["memory:", "a.db"])
def test_an_export_of_every_release_gives_the_rows_it_gave(
    release: str, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with holdfast.open(url) as hf:
        hf.journal.import_(FOLDER / f"{release}.jsonl")
        assert digest(hf.env.journal) == (FOLDER / f"{release}.digest").read_text().strip()
        assert hf.journal.verify().findings == ()


@pytest.mark.parametrize("release", RELEASES)
def test_a_database_of_every_release_opens_verifies_and_takes_more(release: str, tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_bytes(gzip.decompress((FOLDER / f"{release}.db.gz").read_bytes()))
    with holdfast.open(path) as hf:
        assert digest(hf.env.journal) == (FOLDER / f"{release}.digest").read_text().strip()
        assert hf.journal.verify().findings == ()
        hf.journal.rebuild()
        assert digest(hf.env.journal) == (FOLDER / f"{release}.digest").read_text().strip()
        hf.journal.append("s1", "app.noted", {"n": 1})


def test_today_s_bytes_are_those_of_the_golden_journal() -> None:
    golden = (FOLDER / f"{holdfast.__version__}.jsonl").read_bytes().splitlines()
    assert list(tell()) == golden

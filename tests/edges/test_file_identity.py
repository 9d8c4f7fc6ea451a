"""The identity of a file, by the quick call and by the one that every system has."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.sqlite import files


def test_both_ways_give_the_same_identity(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("a", "b", "ä " * 40)]
    for name in names:
        name.touch()
    found = [files.find_file_id(os.fsencode(name)) for name in names]
    assert found == [files.find_by_stat(os.fsencode(name)) for name in names]
    assert len({*found, None}) == 4


def test_a_name_without_a_file_has_no_identity(tmp_path: Path) -> None:
    gone = os.fsencode(tmp_path / "gone")
    assert files.find_file_id(gone) is files.find_by_stat(gone) is None


def test_a_file_that_takes_a_name_is_another_file(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    second.touch()
    before = files.find_file_id(os.fsencode(first))
    second.rename(first)
    assert files.find_file_id(os.fsencode(first)) != before


def test_systems_without_the_quick_call_are_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = files.find_file_id(os.fsencode(tmp_path))
    monkeypatch.setattr(files, "_statx", None)
    assert files.find_file_id(os.fsencode(tmp_path)) == quick

"""The measured page says where a peer is ahead, whatever was measured."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from bench.harness import Spread
from bench.report import Line, Report, ratio_line
from tests.docs.test_complete import generator

WON = ratio_line("put, times the speed of Peer", Spread(2.0, 1.9, 2.1), peer="Peer")
LOST = ratio_line("get, times the speed of Peer", Spread(0.5, 0.4, 0.6), peer="Peer")
SLOWER = ratio_line("pack, against Peer", Spread(4.0, 3.9, 4.1), peer="Peer", smaller=True)
ALONE = ratio_line("append, against raw", Spread(0.5, 0.4, 0.6))


def page_of(lines: list[Line], path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page of a run with these lines."""
    report = Report(Console(file=StringIO()))
    report.add("topic", "A topic", lines, 1.0, None)
    report.write(path / "results.json")
    generate: Any = generator()
    monkeypatch.setattr(generate, "RESULTS", path / "results.json")
    return str(generate.measured())


def test_every_comparison_that_a_peer_wins_is_listed_widest_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section, _, rest = page_of([WON, LOST, SLOWER, ALONE], tmp_path, monkeypatch).partition("## A topic")
    assert "Of 3 comparisons with a peer, 2 are won by the peer." in section
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| ")][2:]
    assert [(row[0], row[2]) for row in rows] == [
        ("| pack, against Peer", "4.00 x"),
        ("| get, times the speed of Peer", "2.00 x"),
    ]
    assert "put, times the speed of Peer" in rest


def test_a_run_without_peers_claims_nothing_about_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "peer is ahead" not in page_of([ALONE], tmp_path, monkeypatch)

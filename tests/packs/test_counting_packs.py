"""What is counted of packs is counted once, also within a snapshot, where one connection is lent again and again."""

from __future__ import annotations

from pathlib import Path

from bench.counting import Counts, counting
from bench.journals import journal
from holdfast.ports import Ports


def _asked(ports: Ports, times: int, *, within: bool) -> Counts:
    with counting(ports.journal) as counts:
        if within:
            with ports.journal.snapshot():
                for _ in range(times):
                    ports.journal.heads("t", "", 1)
        else:
            for _ in range(times):
                ports.journal.heads("t", "", 1)
    return counts


def test_a_statement_costs_the_same_within_a_snapshot_as_outside(tmp_path: Path) -> None:
    with journal(tmp_path) as ports:
        outside = _asked(ports, 2, within=False)
        one, three = _asked(ports, 1, within=True), _asked(ports, 3, within=True)
    assert outside.statements == three.statements - one.statements == 2
    assert outside.vm_steps == three.vm_steps - one.vm_steps > 0
    assert outside.calls == three.calls - one.calls > 0


def test_what_was_counted_stops_with_the_counting(tmp_path: Path) -> None:
    with journal(tmp_path) as ports:
        counted = _asked(ports, 1, within=True)
        before = counted.statements
        with ports.journal.snapshot():
            ports.journal.heads("t", "", 1)
    assert counted.statements == before

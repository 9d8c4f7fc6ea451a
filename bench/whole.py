"""The whole journal at once: rebuild and verify, against reading and decoding every event."""

from __future__ import annotations

import os
from pathlib import Path

import apsw

from bench.harness import ratios, rounds, spread, timed
from bench.journals import folder, journal
from bench.report import Line, at_least, ratio_line
from bench.workload import fill
from holdfast.client.holdfast import Holdfast
from holdfast.core.journal.codec import decode_facts

TITLE = "The whole journal: rebuild and verify"
READ = "read and decode raw"


def read_and_decode(path: Path) -> int:
    """Every row of the events table, its facts decoded, and nothing else."""
    connection = apsw.Connection(os.fspath(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        count = 0
        for row in connection.execute("SELECT * FROM events ORDER BY seq"):
            decode_facts(row[6], row[7], row[18])
            count += 1
        return count
    finally:
        connection.close(True)


def run(quick: bool) -> list[Line]:
    """Rates over one journal of frame events, in the same rounds."""
    size, count = (9_000, 2) if quick else (54_000, 5)
    with folder() as place, journal(place) as env:
        fill(env, size)
        events = env.journal.position()
        view = Holdfast(env, owner=False).journal
        assert read_and_decode(place / "journal.db") == events
        contenders = {
            READ: lambda: events / timed(lambda: read_and_decode(place / "journal.db")),
            "rebuild": lambda: events / timed(view.rebuild),
            "verify": lambda: events / timed(view.verify),
        }
        samples = rounds(contenders, count)
        findings = view.verify().findings
    bars = {"rebuild": at_least(0.1)}
    lines = [Line(what=READ, value=spread(samples[READ]).median, unit="events/s", note=f"{events:,} frame events")]
    for name in ("rebuild", "verify"):
        note = f"{spread(samples[name]).median:,.0f} events/s"
        lines.append(ratio_line(f"{name}, against {READ}", ratios(samples, name, READ), bars.get(name), note))
    lines.append(Line(what="findings of verify afterwards", value=len(findings)))
    return lines

"""What was measured, against its bar: a table for people and `results.json` for comparison."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import apsw
import msgspec
from rich.console import Console
from rich.table import Table

from bench.harness import Spread, plain
from bench.neighbours import QUIET
from holdfast.version import __version__

RESULTS = Path(__file__).with_name("results.json")


class Bar(msgspec.Struct, frozen=True):
    """What must be reached."""

    limit: float
    at_most: bool

    def met_by(self, value: float) -> bool:
        """Whether a value reaches it."""
        return value <= self.limit if self.at_most else value >= self.limit

    def room(self, value: float) -> float:
        """By how many percent of the bar a value is better (or, below zero, worse)."""
        share = value / self.limit
        return 100 * ((1 - share) if self.at_most else (share - 1))

    def __str__(self) -> str:
        return f"{'at most' if self.at_most else 'at least'} {plain(self.limit)}"


def at_most(limit: float) -> Bar:
    """A bar that a smaller value meets."""
    return Bar(limit, at_most=True)


def at_least(limit: float) -> Bar:
    """A bar that a larger value meets."""
    return Bar(limit, at_most=False)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement. Without a bar it is there to be read."""

    what: str
    value: float
    unit: str = ""
    bar: Bar | None = None
    note: str = ""
    peer: str = ""
    """The peer that holdfast is compared with by this line."""
    lead: float | None = None
    """How many times as good as that peer holdfast is; below 1, the peer is ahead."""

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        return None if self.bar is None else self.bar.met_by(self.value)

    @property
    def verdict(self) -> str:
        """Met or missed, and by how much."""
        if self.bar is None:
            return ""
        room = self.bar.room(self.value)
        return f"met, {room:.0f} % to spare" if self.met else f"MISSED by {-room:.0f} %"


def ratio_line(
    what: str, value: Spread, bar: Bar | None = None, note: str = "", *, peer: str = "", smaller: bool = False
) -> Line:
    """A ratio with the middle half of its rounds; to a peer if one is named, where more is better unless `smaller`."""
    around = f"half of the rounds {value}"
    lead = None if not peer else 1 / value.median if smaller else value.median
    note = f"{around}; {note}" if note else around
    return Line(what=what, value=value.median, unit="x", bar=bar, note=note, peer=peer, lead=lead)


class Report:
    """Lines by topic, shown as they come in."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._topics: dict[str, list[Line]] = {}
        self._titles: dict[str, str] = {}
        self._others: dict[str, float | None] = {}

    def add(self, topic: str, title: str, lines: list[Line], seconds: float, others: float | None) -> None:
        """Show one topic's lines and keep them. `others` is how many cores other processes used meanwhile."""
        self._topics[topic], self._titles[topic] = lines, title
        self._others[topic] = others
        table = Table(title=f"{title} ({topic}, {seconds:.0f} s)", title_justify="left", title_style="bold")
        for column in ("what", "measured", "bar", "", "note"):
            table.add_column(column, justify="right" if column == "measured" else "left", overflow="fold")
        for line in lines:
            style = "" if line.met is None else ("green" if line.met else "red")
            if style and topic in self.disturbed:
                style = "dim"
            value = f"{plain(line.value)} {line.unit}".strip()
            table.add_row(
                line.what, value, str(line.bar or ""), f"[{style}]{line.verdict}[/]" if style else "", line.note
            )
        self._console.print(table)
        if others is not None and others > QUIET:
            self._console.print(
                f"Disturbed: other processes used {others:.1f} cores. Believe no ratio.", style="yellow"
            )

    @property
    def disturbed(self) -> list[str]:
        """Topics during which other processes used the machine: their times and ratios are worth nothing."""
        return [name for name, others in self._others.items() if others is not None and others > QUIET]

    def close(self) -> None:
        """Say how many bars were met, counting only what was measured undisturbed."""
        quiet = [line for name, lines in self._topics.items() if name not in self.disturbed for line in lines]
        barred = [line for line in quiet if line.bar is not None]
        missed = [line for line in barred if not line.met]
        self._console.print(f"{len(barred) - len(missed)} of {len(barred)} bars met.", style="bold")
        for line in missed:
            self._console.print(
                f"  {line.what}: {plain(line.value)} {line.unit}, bar {line.bar}: {line.verdict}", style="red"
            )
        if self.disturbed:
            self._console.print(
                f"Not counted, because other processes used the machine: {', '.join(self.disturbed)}. Measure again.",
                style="yellow",
            )

    def write(self, path: Path = RESULTS) -> None:
        """The same as JSON."""
        topics = {
            name: {
                "title": self._titles[name],
                "cores_used_by_others": None if (others := self._others[name]) is None else round(others, 2),
                "lines": [_plain_line(line) for line in lines],
            }
            for name, lines in self._topics.items()
        }
        body = msgspec.json.encode({"measured_with": _surroundings(), "topics": topics})
        path.write_bytes(msgspec.json.format(body, indent=2) + b"\n")


def _plain_line(line: Line) -> dict[str, object]:
    found: dict[str, object] = {"what": line.what, "value": round(line.value, 4), "unit": line.unit, "note": line.note}
    if line.bar is not None:
        found |= {"bar": str(line.bar), "met": line.met, "room_percent": round(line.bar.room(line.value), 1)}
    if line.lead is not None:
        found |= {"peer": line.peer, "lead": round(line.lead, 4)}
    return found


def _surroundings() -> dict[str, object]:
    return {
        "holdfast": __version__,
        "python": platform.python_version(),
        "apsw": apsw.apsw_version(),
        "sqlite": apsw.sqlite_lib_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
    }

"""Bytes on disk: what an event costs beyond its payload, once the log is folded in."""

from __future__ import annotations

from pathlib import Path

from bench.journals import checkpointed_bytes, folder, journal
from bench.report import Line, at_most
from bench.single import payload
from bench.workload import pushed
from holdfast.flow.journal.append import StreamWrite, append_events
from holdfast.ports import Env

TITLE = "Bytes on disk per event, after a checkpoint"
BATCH = 50


def written(place: Path, events: int, streams: int, *, keyed: bool = False) -> tuple[float, int]:
    """Bytes per event of a journal of pushes, taking turns among streams, and the payload of one."""
    name = f"size-{streams}-{keyed}.db"
    with journal(place, name, durability="fast") as env:
        size = len(payload(env))
        for start in range(0, events, BATCH):
            _append(env, range(start, start + BATCH), streams, keyed)
    return checkpointed_bytes(place / name) / events, size


def _append(env: Env, numbers: range, streams: int, keyed: bool) -> None:
    parts: dict[int, list[int]] = {}
    for number in numbers:
        parts.setdefault(number % streams, []).append(number)
    decided = [
        StreamWrite(
            stream=f"actor/sized-{stream}",
            events=tuple(pushed(env.ids) for _ in mine),
            key=f"request-{mine[0]}" if keyed else None,
        )
        for stream, mine in parts.items()
    ]
    append_events(env, decided)


def run(quick: bool) -> list[Line]:
    """Long streams, and a stream for every event."""
    events = 2_000 if quick else 20_000
    lines: list[Line] = []
    with folder() as place:
        for what, streams, keyed, bar in (
            ("frame.pushed on 50 streams", BATCH, False, at_most(700)),
            ("the same, each with a key", BATCH, True, at_most(700)),
            ("frame.pushed, each on a stream of its own", events, False, None),
        ):
            total, size = written(place, events, streams, keyed=keyed)
            note = f"{total:.0f} bytes in all, {size} of them facts and content"
            lines.append(Line(what=f"{what}, beyond payload", value=total - size, unit="bytes", bar=bar, note=note))
    return lines

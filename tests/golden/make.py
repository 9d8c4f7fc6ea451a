"""Makes the golden journal: the same story, told the same way, gives the same bytes in every release.

Run `python -m tests.golden.make` once per release that changes a format, under a new name; files made
by earlier releases are never made again.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from random import Random

from holdfast.core.journal.codec import encode
from holdfast.flow.journal import artifacts, transfer
from holdfast.journal.memory.journal import MemoryJournal
from holdfast.ports.journal import Journal
from holdfast.records.events.envelope import Draft
from holdfast.records.events.journal import LeaseTaken
from holdfast.records.scope import Scope
from holdfast.testing.clock import FrozenClock, SeededIds
from holdfast.testing.generate_frames import FrameGenerator
from holdfast.testing.generate_sessions import SessionGenerator
from holdfast.testing.generate_state import StateGenerator
from holdfast.testing.journal_contract import dump_projections
from holdfast.testing.writer import Writer, make_note
from tests.golden import packs

FOLDER = Path(__file__).parent
SECRET = bytes(range(32))


def tell() -> Iterator[bytes]:
    """A life with frames, conversations, state, leases, keys, artifacts, two tenants and an erasure, as JSON lines."""
    clock = FrozenClock()
    ids = SeededIds(clock, seed=41)
    journal = MemoryJournal()
    journal.secret = SECRET
    writer, other = (Writer(journal, tenant=name, clock=clock, ids=ids) for name in ("default", "acme"))
    counter = itertools.count()
    for number in range(3):
        stream = f"actor/a{number}/session/s1/thread/main"
        story = FrameGenerator(Random(number), ids, subjects=("alice", "bob"))
        writer.append(stream, Draft(type="lease.taken", facts=LeaseTaken(epoch=1, owner="w1")))
        for _ in range(50):
            clock.advance(7)
            writer.append(stream, *story.step(), epoch=1, key=f"k{next(counter)}")
    for number in (70, 71):
        session = SessionGenerator(Random(number), ids, f"c{number}", ("alice", "bob"), endings=0.2)
        for _ in range(30):
            clock.advance(7)
            writer.write(*session.step(2))
    for number in (80, 81):
        kept = StateGenerator(Random(number), ids, f"user/u{number}", ("alice", "bob"))
        for _ in range(60):
            clock.advance(7)
            writer.append(kept.scope, *kept.step())
    body = artifacts.prepare_artifact(writer.env, b"artifact" * 100)
    other.append(Scope.session("née").text, make_note("grüße", subject="carol"))
    writer.append(
        "session/s1", make_note(subject="alice", artifacts=[body.name.hex()]), make_note("b"), artifacts=[body]
    )
    artifacts.erase_subject(writer.env, "bob")
    return transfer.export_lines(writer.env)


def digest(journal: Journal) -> str:
    """What all rows of all projections come to."""
    rows = [
        [name, tenant, stream, _plain(row)]
        for name, found in dump_projections(journal)
        for tenant, stream, row in found
    ]
    return hashlib.sha256(encode(rows)).hexdigest()


def _plain(row: dict[str, object]) -> dict[str, object]:
    return {name: value.hex() if isinstance(value, bytes) else value for name, value in row.items()}


if __name__ == "__main__":
    from holdfast.journal.sqlite import SqliteJournal
    from holdfast.version import __version__

    lines = list(tell())
    target = FOLDER / f"{__version__}.jsonl"
    target.write_bytes(b"\n".join(lines) + b"\n")
    database = FOLDER / f"{__version__}.db"
    journal = SqliteJournal(database)
    journal.restore(*transfer.parse_lines(lines))
    (FOLDER / f"{__version__}.digest").write_text(digest(journal) + "\n")
    journal.close()
    (FOLDER / f"{__version__}.db.gz").write_bytes(gzip.compress(database.read_bytes(), mtime=0))
    database.unlink()
    packs.make(FOLDER, __version__)

"""Reading, rebuilding, verifying and restoring send nothing; what was pending stays so until a dispatch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.effects import Custom, OperatorOutput, PushFrame, WriteState
from holdfast.errors import EffectRefused
from tests.effects.sinks import Noting


def filled(path: Path) -> dict[str, Any]:
    """A journal with effects in every status; what waits in it."""
    with holdfast.open(path) as hf:
        hf.effects.add_sink("crm", Noting())
        hf.effects.add_sink("mail", Noting(lambda effect: ConnectionError("away")))
        hf.effects.add_sink("fax", Noting(lambda effect: EffectRefused("never")))
        effects = [
            WriteState("user/1", "n", 1, reducer="sum"),
            Custom("note", 1, "crm"),
            Custom("note", 2, "mail"),
            Custom("note", 3, "fax"),
            Custom("note", 4, "pigeon"),
            Custom("note", 5, "crm", needs_approval=True),
            Custom("note", 6, "crm"),
        ]
        hf.effects.operate(lambda given, view: OperatorOutput(None, effects), key="k", scope="operator/x", name="x")
        hf.effects.dispatch()
        hf.effects.operate(
            lambda given, view: OperatorOutput(None, [PushFrame("main", "later")]), scope="operator/y", name="x"
        )
        return waiting(hf)


def waiting(hf: holdfast.Holdfast) -> dict[str, Any]:
    """What waits, by id."""
    return {info.id: info for info in (*hf.effects.pending(), *hf.effects.dead())}


def with_sinks(hf: holdfast.Holdfast) -> list[Noting]:
    """Every sink there is, ready to take."""
    sinks = [Noting() for _ in range(4)]
    for name, sink in zip(("crm", "mail", "fax", "pigeon"), sinks, strict=True):
        hf.effects.add_sink(name, sink)
    return sinks


def replay(hf: holdfast.Holdfast, folder: Path) -> None:
    """Everything that reads the whole journal."""
    hf.journal.rebuild()
    assert hf.journal.verify().findings == ()
    list(hf.journal.events())
    hf.effects.operate(
        lambda given, view: OperatorOutput(None, [Custom("n", 1, "crm")]), key="k", scope="operator/x", name="x"
    )
    waiting(hf)


def restored_by_backup(path: Path, folder: Path) -> Path:
    with holdfast.open(path) as hf:
        hf.journal.backup(folder / "backup.db")
    holdfast.restore(folder / "backup.db", folder / "new.db")
    return folder / "new.db"


def restored_by_events(path: Path, folder: Path) -> Path:
    with holdfast.open(path) as hf:
        hf.journal.backup(folder / "backup.db")
        last = hf.journal.position()
    holdfast.restore(folder / "backup.db", folder / "new.db", seq=last)
    return folder / "new.db"


@pytest.mark.parametrize("restored", [restored_by_backup, restored_by_events])
def test_nothing_is_sent_until_a_dispatch(tmp_path: Path, restored: Callable[[Path, Path], Path]) -> None:
    before = filled(tmp_path / "a.db")
    assert sorted(info.status for info in before.values()) == [
        "approval",
        "dead",
        "deferred",
        "failed",
        "pending",
        "pending",
    ]
    with holdfast.open(tmp_path / "a.db") as hf:
        sinks = with_sinks(hf)
        replay(hf, tmp_path)
        assert [sink.asked for sink in sinks] == [[], [], [], []]
        assert hf.index.stack("actor/main") == []
    with holdfast.open(restored(tmp_path / "a.db", tmp_path)) as hf:
        sinks = with_sinks(hf)
        replay(hf, tmp_path)
        assert [sink.asked for sink in sinks] == [[], [], [], []]
        assert waiting(hf) == before
        assert hf.state("user/1").read("n") == 1
        done = hf.effects.dispatch()
        assert (sinks[3].payloads, done.applied) == ([4], 2)
        assert len(hf.index.stack("actor/main")) == 1

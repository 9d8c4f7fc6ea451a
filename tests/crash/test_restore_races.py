"""Restore, backup and export against an application that starts at the same path: nothing of it is harmed."""

from __future__ import annotations

import itertools
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import system
from holdfast.cli import transfer as cli_transfer
from holdfast.journal.sqlite import maintenance
from tests.scale import seeded, volume

BIG = b"x" * 300_000
STEPS = ("refuse_leftovers", "publish_file", "sync_folder", "_copy_files", "_publish_journal", "restore_items")
COPIES: dict[str, Callable[[Path, Path], object]] = {
    "restore": lambda backup, target: holdfast.restore(backup, target),
    "restore until": lambda backup, target: holdfast.restore(backup, target, seq=3),
    "backup": lambda backup, target: _back_up(backup, target),
}


def _back_up(source: Path, target: Path) -> None:
    with holdfast.open(source) as hf:
        hf.journal.backup(target)


@pytest.fixture(scope="module")
def backup(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A backup with artifacts of two tenants beside it."""
    folder = tmp_path_factory.mktemp("backup")
    with holdfast.open(folder / "a.db") as hf:
        for client in (hf, hf.tenant("acme")):
            client.journal.append("old", "app.noted", files=[BIG])
        for number in range(3):
            hf.journal.append("old", "app.noted", {"n": number})
        hf.journal.backup(folder / "b.db")
    return folder / "b.db"


class Application:
    """A program that starts at a path during one step of a copy, works there, and goes on, ends or dies."""

    def __init__(self, path: Path, at: int, end: str) -> None:
        self.path, self.end = path, end
        self._steps_left = at
        self.client: holdfast.Holdfast | None = None
        self.started = False

    def watch(self, patch: pytest.MonkeyPatch) -> None:
        """Start before the n-th of the steps that a copy is made of."""
        for name in STEPS:
            patch.setattr(maintenance, name, self._wrap(getattr(maintenance, name)))

    def _wrap(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            self._steps_left -= 1
            if self._steps_left == 0:
                self.start()
            return step(*arguments)

        return run

    def start(self) -> None:
        self.started = True
        self.client = holdfast.open(self.path)
        self.client.journal.append("new", "app.noted", key="first", files=[BIG])
        if self.end == "closes":
            self.client.close()

    def check(self) -> None:
        """Whatever became of the copy: all that was acknowledged is there, and nothing else is."""
        if self.end == "goes on" and self.client is not None:
            self.client.journal.append("new", "app.noted", key="second")
            self.client.close()
        with holdfast.open(self.path) as hf:
            assert hf.journal.verify().findings == ()
            keys = [event.key for event in hf.journal.events("new")]
            assert keys == (["first", "second"] if self.end == "goes on" else ["first"])


def run_race(copy: str, backup: Path, folder: Path, at: int, end: str) -> bool:
    """Make a copy while an application starts; return False if it has no such step."""
    target = folder / "agent.db"
    application = Application(target, at, end)
    with pytest.MonkeyPatch.context() as patch:
        application.watch(patch)
        refusal = ""
        try:
            COPIES[copy](backup, target)
        except holdfast.Refused as error:
            refusal = str(error)
    assert not refusal or (application.started and "exists already" in refusal), refusal
    left = [path.name for path in folder.iterdir() if ".part" in path.name]
    assert left == []
    if application.started:
        application.check()
    return application.started


def test_a_copy_harms_no_application_that_starts_during_any_step_of_it(backup: Path, quick_path: Path) -> None:
    ends = ("goes on", "closes")
    for copy in COPIES:
        for step in itertools.count(1):
            chosen = volume(1, 2)  # Each end at every second step, or at every one.
            started = False
            for end in (ends * 2)[step % 2 :][:chosen]:
                folder = quick_path / f"{copy} {end} {step}"
                folder.mkdir()
                started = run_race(copy, backup, folder, step, end)
            if not started:
                break
        assert step > 8, copy


def test_a_copy_is_published_beside_no_log_that_appeared_meanwhile(backup: Path, tmp_path: Path) -> None:
    for number, copy in enumerate(COPIES):
        for end in ("-wal", "-shm", "-journal"):
            target = tmp_path / f"{number}{end}.db"
            stray = target.with_name(target.name + end)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(maintenance, "refuse_leftovers", _place_before_second_look(stray))
                with pytest.raises(holdfast.Refused, match="Move it away"):
                    COPIES[copy](backup, target)
            assert not target.exists()
            assert stray.read_bytes() == b"of a journal that was moved away"


def _place_before_second_look(stray: Path) -> Callable[[Path], None]:
    refuse, looks = maintenance.refuse_leftovers, itertools.count(1)

    def look(path: Path) -> None:
        if next(looks) == 2:
            stray.write_bytes(b"of a journal that was moved away")
        refuse(path)

    return look


def test_a_failed_restore_leaves_nothing_and_can_be_repeated(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "c.db"
    for copy in COPIES.values():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(maintenance, "publish_file", _fail_for(target))
            with pytest.raises(holdfast.errors.Unavailable):
                copy(backup, target)
        assert list(tmp_path.iterdir()) == []
    assert holdfast.restore(backup, target) == 5


def _fail_for(target: Path) -> Callable[[Path, Path], None]:
    def publish(partial: Path, name: Path) -> None:
        if name == target:
            raise OSError(5, "Input/output error")
        system.publish_file(partial, name)

    return publish


def test_two_restores_to_one_path_make_one_journal(backup: Path, tmp_path: Path) -> None:
    target = tmp_path / "c.db"
    inner: list[object] = []

    def publish(*arguments: Any) -> None:
        patch.undo()
        inner.append(holdfast.restore(backup, target))
        original(*arguments)

    original = maintenance._publish_journal
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maintenance, "_publish_journal", publish)
        with pytest.raises(holdfast.Refused, match="exists already"):
            holdfast.restore(backup, target)
    with holdfast.open(target) as hf:
        assert hf.journal.verify().findings == ()
    assert inner == [5]


def test_an_export_replaces_no_file_that_appeared_meanwhile(backup: Path, tmp_path: Path) -> None:
    target, publish_file = tmp_path / "all.jsonl", system.publish_file

    def publish(partial: Path, name: Path) -> None:
        name.write_bytes(b"somebody else's")
        publish_file(partial, name)

    with pytest.MonkeyPatch.context() as patch, holdfast.open(backup) as hf:
        patch.setattr(system, "publish_file", publish)
        for export in (hf.journal.export, lambda path: cli_transfer.write_new_file(path, [b"line"])):
            with pytest.raises(holdfast.Refused, match="exists already"):
                export(target)
            assert target.read_bytes() == b"somebody else's"
            assert [path.name for path in tmp_path.iterdir()] == ["all.jsonl"]
            target.unlink()


def test_a_file_appears_whole_where_there_are_no_hard_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(system.os, "link", refuse)
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    system.publish_file(tmp_path / "one", tmp_path / "target")
    with pytest.raises(holdfast.Refused):
        system.publish_file(tmp_path / "other", tmp_path / "target")
    assert (tmp_path / "target").read_text() == "one"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "target"]


def test_real_applications_that_restart_lose_nothing_to_restores(backup: Path, tmp_path: Path) -> None:
    random = seeded("restarting")
    outcomes: list[bool] = []
    for number in range(volume(1, 60)):
        target = tmp_path / f"{number}.db"
        acknowledged: list[str] = []
        for life in range(2):
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.writer_process", str(target), str(life)], stdout=subprocess.PIPE
            )
            assert process.stdout is not None
            try:
                select.select([process.stdout], [], [], random.uniform(0, 0.5))
                outcomes.append(_restored(backup, target, random.choice((None, 3))))
                assert select.select([process.stdout], [], [], 60)[0], "the writer did not start"
            finally:
                process.kill()
                process.wait()
            acknowledged += [line for line in process.stdout.read().decode().split("\n")[:-1] if line[:3] == "ack"]
            process.stdout.close()
        with holdfast.open(target) as hf:
            assert hf.journal.verify().findings == ()
            for line in acknowledged:
                _, stream, key, version = line.split()
                (event,) = hf.journal.events_by_key(stream, key)
                assert event.version == int(version)
    print(f"{sum(outcomes)} of {len(outcomes)} restores came first")


def _restored(backup: Path, target: Path, seq: int | None) -> bool:
    try:
        holdfast.restore(backup, target, seq=seq)
    except holdfast.Refused:
        return False
    return True


def replaces_what_is_there(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(maintenance, "publish_file", lambda partial, target: partial.replace(target))


def looks_once(patch: pytest.MonkeyPatch) -> None:
    original, seen = maintenance.refuse_leftovers, set[Path]()

    def look(path: Path) -> None:
        if path not in seen:
            seen.add(path)
            original(path)

    patch.setattr(maintenance, "refuse_leftovers", look)


def takes_back_what_others_made(patch: pytest.MonkeyPatch) -> None:
    original = maintenance._publish_journal

    def publish(partial: Path, bodies: Path, target: Path) -> None:
        try:
            original(partial, bodies, target)
        except holdfast.Refused:
            target.unlink(missing_ok=True)
            raise

    patch.setattr(maintenance, "_publish_journal", publish)


@pytest.mark.parametrize("plant", [replaces_what_is_there, takes_back_what_others_made])
def test_a_copy_that_harms_an_application_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], backup: Path, quick_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises((AssertionError, holdfast.HoldfastError, OSError)):
        test_a_copy_harms_no_application_that_starts_during_any_step_of_it(backup, quick_path)


def test_a_copy_beside_an_old_log_is_caught(backup: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks_once(monkeypatch)
    with pytest.raises(pytest.fail.Exception):
        test_a_copy_is_published_beside_no_log_that_appeared_meanwhile(backup, tmp_path)

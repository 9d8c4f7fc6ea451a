"""Looks that remember find what one finds that remembers nothing, whatever happens in between."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.flow.frames.read import load_current_state
from holdfast.flow.turns import runnable, sweep
from holdfast.flow.turns.runnable import StreamReadiness
from holdfast.journal.sqlite import SqliteJournal
from holdfast.ports import Env
from tests.scale import seeded, volume
from tests.turns.loops import asks
from tests.turns.recovering_lives import LEASE, SECOND, Life, live, lived


def test_a_look_that_remembers_finds_what_one_finds_that_remembers_nothing(tmp_path: Path) -> None:
    lives = volume(10, 600)
    assert live(tmp_path, seeded("looks that remember"), lives) > lives, "there was something to find"


# planted


def _hold(patch: pytest.MonkeyPatch, holds: Callable[[StreamReadiness, Any, int, bool], bool]) -> None:
    patch.setattr(StreamReadiness, "is_current", holds)


def only_its_own_stream_counts(patch: pytest.MonkeyPatch) -> None:
    sound = StreamReadiness.is_current
    _hold(patch, lambda self, versions, now, held: sound(_without_lines(self), versions, now, held))


def _without_lines(one: StreamReadiness) -> StreamReadiness:
    return replace(one, versions={name: at for name, at in one.versions.items() if name.startswith("actor/")})


def answers_are_not_seen(patch: pytest.MonkeyPatch) -> None:
    sound = StreamReadiness.is_current
    _hold(patch, lambda self, versions, now, held: sound(replace(self, versions={}), versions, now, held))


def no_clock_is_looked_at(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(runnable, "next_due_time", lambda frames, now: float("inf"))


def deadlines_are_forgotten(patch: pytest.MonkeyPatch) -> None:
    sound = runnable.next_due_time
    patch.setattr(
        runnable,
        "next_due_time",
        lambda frames, now: sound({name: replace(one, deadline=None) for name, one in frames.items()}, now),
    )


def a_clock_is_never_set_back(patch: pytest.MonkeyPatch) -> None:
    sound = StreamReadiness.is_current
    _hold(patch, lambda self, versions, now, held: sound(replace(self, since=0), versions, now, held))


def who_held_it_is_remembered(patch: pytest.MonkeyPatch) -> None:
    sound = StreamReadiness.is_current
    _hold(patch, lambda self, versions, now, held: sound(self, versions, now, self.held))


def an_owner_never_dies(patch: pytest.MonkeyPatch) -> None:
    sound = runnable.read_readiness

    def standing(env: Env, stream: str, *how: Any) -> StreamReadiness:
        found = sound(env, stream, *how)
        return found if env.leases.seems_free(env.tenant, stream) else replace(found, turn=None)

    patch.setattr(runnable, "read_readiness", standing)


def what_is_due_and_not_ours_is_let_be(patch: pytest.MonkeyPatch) -> None:
    sound = sweep.sweep_stream

    def settle(env: Env, stream: str, **how: Any) -> sweep.StreamSweep:
        return replace(sound(env, stream, **how), calm_at=load_current_state(env, stream).version)

    patch.setattr(sweep, "sweep_stream", settle)


def nothing_is_written_by_others(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(SqliteJournal, "position", lambda self: 1)


@pytest.mark.parametrize(
    ("plant", "seed"),
    [
        (answers_are_not_seen, 2),
        (no_clock_is_looked_at, 4),
        (deadlines_are_forgotten, 4),
        (nothing_is_written_by_others, 1),
    ],
)
def test_a_planted_bug_is_caught(
    plant: Callable[[pytest.MonkeyPatch], None], seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        live(tmp_path, random.Random(seed), 200)


# what is rare


def timer_that_rings_twice(path: Path, patch: pytest.MonkeyPatch) -> None:
    """A timer has rung, and then the clock is set to before that."""
    with lived(path, random.Random(0)) as life:
        with life.clients[0].session("s").turn("Hello") as turn:
            turn.steps()[0].done(asks(("look", {})))
            until = life.clock.now_ms() + 5 * SECOND
            life.clients[0].index.suspend_frame(turn.steps()[0].key, "Then", kind="timer", until=until)
        assert counted(life, 0) == 0
        assert counted(life, 6 * SECOND) == 1
        life.clock.jump(-3 * SECOND)
        assert counted(life, 0) == 0
        assert counted(life, 3 * SECOND) == 1


def counted(life: Life, passes: int) -> int:
    """How many turns can go on once some time has passed, whichever way one looks."""
    life.clock.advance(passes)
    before = life.found
    life.compare()
    return life.found - before


def result_that_somebody_else_gave(path: Path, patch: pytest.MonkeyPatch) -> None:
    """A tool waits for a person, and its result is said in the conversation by somebody else."""
    with lived(path, random.Random(0)) as life:
        with life.clients[0].session("s").turn("Hello") as turn:
            turn.steps()[0].done(asks(("look", {})))
            step = turn.steps()[0]
            life.clients[0].index.suspend_frame(step.key, "Sure?")
        assert counted(life, 0) == 0
        life.clients[0].session("s").append_result(step.key, "found by hand")
        assert counted(life, 0) == 1


def owner_that_falls_silent(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Somebody stops in the middle of a turn and gives no sign of life: nothing is written when that one dies."""
    with lived(path, random.Random(0)) as life, life.clients[0].session("s").turn("Hello") as turn:
        turn.steps()
        assert [counted(life, passes) for passes in (0, SECOND, LEASE // 2)] == [0, 0, 0]
        assert counted(life, LEASE) == 1


def timer_of_an_owner_that_falls_silent(path: Path, patch: pytest.MonkeyPatch) -> None:
    """What is due in a stream that somebody holds is not done before that one is gone, and is done then."""
    with lived(path, random.Random(0)) as life:
        index = life.clients[0].index
        frame = index.push_frame("work", scope="actor/own")
        index.resume_actor("actor/own", incarnation="one")
        index.suspend_frame(frame, "Then", kind="timer", until=life.clock.now_ms() + 5 * SECOND)
        for passes in (0, 6 * SECOND, SECOND, LEASE // 2):
            counted(life, passes)
            assert index.get_frame(frame).status == "suspended"
        counted(life, LEASE // 2)
        assert index.get_frame(frame).status == "active"


def lease_that_is_given_back_meanwhile(path: Path, patch: pytest.MonkeyPatch) -> None:
    """Somebody looks after the lease was given back in the journal and before this process knows."""
    with lived(path, random.Random(0)) as life:
        leases = life.env.leases
        sound = leases.remove_user

        def left(*which: Any) -> None:
            assert life.watching.find_runnable_turns() == [], "it is still ours"
            sound(*which)

        with life.clients[1].session("s").turn("Hello") as turn:
            turn.steps()
            life.compare()
            patch.setattr(leases, "remove_user", left)
        life.compare()
        assert life.found == 1


RARE = [
    (timer_that_rings_twice, a_clock_is_never_set_back),
    (result_that_somebody_else_gave, only_its_own_stream_counts),
    (owner_that_falls_silent, an_owner_never_dies),
    (timer_of_an_owner_that_falls_silent, what_is_due_and_not_ours_is_let_be),
    (lease_that_is_given_back_meanwhile, who_held_it_is_remembered),
]


@pytest.mark.parametrize("happens", [happens for happens, _ in RARE])
def test_what_is_rare_is_seen_as_well(
    happens: Callable[[Path, pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    happens(tmp_path / "a.db", monkeypatch)


@pytest.mark.parametrize(("happens", "plant"), RARE)
def test_a_bug_that_is_planted_in_what_is_rare_is_caught(
    happens: Callable[[Path, pytest.MonkeyPatch], None],
    plant: Callable[[pytest.MonkeyPatch], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        happens(tmp_path / "a.db", monkeypatch)

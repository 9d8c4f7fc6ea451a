"""Several dispatchers: one at a time for a sink; whoever was thought to be gone changes nothing and stops."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.core.effects import is_retry_due
from holdfast.flow.effects import outbox
from holdfast.flow.effects import settle as settling
from holdfast.flow.effects.outbox import sink_lease_stream
from holdfast.testing.clock import FrozenClock
from tests.effects.sinks import Noting, notes


@pytest.fixture
def two(tmp_path: Path, clock: FrozenClock) -> Iterator[tuple[holdfast.Holdfast, holdfast.Holdfast]]:
    """Two clients of one journal, which are two owners."""
    path = tmp_path / "a.db"
    with holdfast.open(path, clock=clock) as one, holdfast.open(path, clock=clock) as other:
        yield one, other
        assert one.journal.verify().findings == ()


def order_kept(one: holdfast.Holdfast, other: holdfast.Holdfast, clock: FrozenClock) -> list[Any]:
    """While one client sends, the other tries to. What begins and ends, in order."""
    seen: list[Any] = []
    busy: list[bool] = []

    def slow(effect: holdfast.effects.DeclaredEffect) -> None:
        seen.append(("begins", effect.payload))
        if not busy:
            busy.append(True)
            # It shows signs of life, which the other one sees.
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(clock, "sleep", lambda seconds: _sign(one))
                other.effects.dispatch()
        seen.append(("ends", effect.payload))

    for client in (one, other):
        client.effects.add_sink("crm", slow)
    notes(one, 1, 2, 3)
    one.effects.dispatch()
    return seen


def _sign(client: holdfast.Holdfast) -> None:
    journal, place = client.env.journal, sink_lease_stream("crm")
    head = journal.head("default", place)
    assert head is not None
    journal.renew_lease("default", place, head.epoch)


EXPECTED = [(word, number) for number in (1, 2, 3) for word in ("begins", "ends")]


def test_one_process_at_a_time_sends_to_a_sink(
    two: tuple[holdfast.Holdfast, holdfast.Holdfast], clock: FrozenClock
) -> None:
    assert order_kept(*two, clock) == EXPECTED


def test_planted_dispatching_without_a_lease_is_noticed(
    two: tuple[holdfast.Holdfast, holdfast.Holdfast], clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "take_free_stream", lambda *given: 0)
    monkeypatch.setattr(outbox, "release_stream", lambda *given: None)
    monkeypatch.setattr(outbox, "_check_owner", lambda *given: None)
    assert order_kept(*two, clock) != EXPECTED


def test_a_sink_that_others_send_to_delays_no_other_sink(
    two: tuple[holdfast.Holdfast, holdfast.Holdfast], clock: FrozenClock
) -> None:
    one, other = two
    began, mailed = clock.now_ms(), []

    def slow(effect: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            # Watching a sink that is busy takes time, and then it is seen to be alive.
            patch.setattr(clock, "sleep", lambda seconds: (_sign(one), clock.advance(500)))
            other.effects.dispatch()

    one.effects.add_sink("crm", slow)
    other.effects.add_sink("crm", Noting())
    other.effects.add_sink("mail", lambda effect: mailed.append((effect.payload, clock.now_ms() - began)))
    notes(one, 1)
    notes(one, 2, sink="mail")
    one.effects.dispatch(sink="crm")
    assert clock.now_ms() > began
    assert mailed == [(2, 0)]


def test_a_silent_owner_is_taken_over_and_what_it_says_later_counts_for_nothing(
    two: tuple[holdfast.Holdfast, holdfast.Holdfast], clock: FrozenClock
) -> None:
    zombie, heir = two
    sink, sent = Noting(), []

    def sleeps(effect: holdfast.effects.DeclaredEffect) -> str:
        sent.append(effect.payload)
        assert heir.effects.dispatch().applied == 3
        return "too late"

    zombie.effects.add_sink("crm", sleeps)
    heir.effects.add_sink("crm", sink)
    ids = notes(zombie, 1, 2, 3)
    done = zombie.effects.dispatch()
    assert done.attempts == 0
    assert sent == [1]
    assert sink.payloads == [1, 2, 3]
    settled = [event for event in heir.journal.events("operator/test") if event.type == "effect.settled"]
    # The heir cannot know whether its predecessor died, and so counts each attempt before it delivers.
    assert [event.facts.outcome for event in settled] == ["failed", "applied"] * 3
    assert [(event.facts.effect, event.content.answer) for event in settled[1::2]] == [
        (id, {"taken": number}) for number, id in enumerate(ids, 1)
    ]


def test_what_somebody_decides_while_a_sink_works_stands(
    two: tuple[holdfast.Holdfast, holdfast.Holdfast],
) -> None:
    one, other = two

    def discarded(effect: holdfast.effects.DeclaredEffect) -> None:
        if effect.payload == 1:
            other.effects.discard(effect.id, reason="never mind")

    one.effects.add_sink("crm", discarded)
    notes(one, 1, 2)
    assert one.effects.dispatch() == holdfast.effects.DispatchReport(applied=1)
    settled = [event for event in one.journal.events("operator/test") if event.type == "effect.settled"]
    assert [event.facts.outcome for event in settled] == ["skipped", "applied"]


def test_an_outcome_is_noted_only_for_what_was_seen(hf: holdfast.Holdfast) -> None:
    hf.effects.add_sink("crm", Noting(lambda effect: ConnectionError("first")))
    (id,) = notes(hf, 1)
    found = settling.find_effect_row(hf.env, id)
    assert found is not None
    stream, seen = found
    hf.effects.dispatch()
    before = hf.journal.position()
    assert settling.settle_effect(hf.env, stream, seen, "applied", attempts=1) is None
    assert hf.journal.position() == before
    assert hf.effects.get(id).status == "failed"
    assert is_retry_due(seen, 0)


def test_threads_of_one_client_do_not_send_the_same_effect_twice(tmp_path: Path) -> None:
    with holdfast.open(tmp_path / "a.db") as hf:
        sink = Noting()
        hf.effects.add_sink("crm", sink)
        for number in range(20):
            notes(hf, number, scope=f"operator/{number % 4}")
        threads = [threading.Thread(target=hf.effects.dispatch) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        hf.effects.dispatch()
        assert len(sink.asked) == len(sink.taken) == 20


# effects that kill their process


class Killed(BaseException):
    """The process ends here."""


def die_of(hf: holdfast.Holdfast) -> None:
    """Dispatch and die of it: whatever this process holds stays as it is, and the next one has it to take over."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "release_stream", lambda *given: None)
        with pytest.raises(Killed):
            hf.effects.dispatch()
    hf.env.leases.after_fork()


def poison(effect: holdfast.effects.DeclaredEffect) -> None:
    if effect.payload == "poison":
        raise Killed


def test_an_effect_that_kills_its_process_is_dead_at_last(hf: holdfast.Holdfast) -> None:
    hf.effects.add_sink("crm", poison)
    (id,) = notes(hf, "poison")
    for lives in range(hf.env.settings.effect_attempts + 1):
        die_of(hf)
        found = hf.effects.get(id)
        assert found.attempts == lives, "each death but the first counts, of which nothing says what it died of"
        assert found.reason == (outbox.UNKNOWN_REASON if lives else None)
    assert hf.effects.dispatch().dead == 1
    found = hf.effects.get(id)
    assert (found.status, found.attempts, "10 times" in str(found.reason)) == ("dead", 10, True)
    hf.effects.revive(id)
    die_of(hf)
    assert hf.effects.get(id).attempts == 0


def test_planted_deaths_that_are_not_counted_are_noticed(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(hf.env.leases), "was_abandoned", lambda *given: False)
    with pytest.raises(AssertionError, match="each death but the first counts"):
        test_an_effect_that_kills_its_process_is_dead_at_last(hf)


def test_after_a_death_each_attempt_counts_once_whatever_comes_of_it(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    seen: list[tuple[Any, int]] = []

    def deliver(effect: holdfast.effects.DeclaredEffect) -> str:
        seen.append((effect.payload, effect.attempt))
        if len(seen) < 3:
            raise Killed
        if effect.payload == "late":
            raise ConnectionError("down")
        return "thanks"

    hf.effects.add_sink("crm", deliver)
    taken, late = notes(hf, "taken", "late")
    die_of(hf)
    die_of(hf)
    assert [one.attempts for one in hf.effects.pending()] == [1, 0]
    report = hf.effects.dispatch()
    assert (report.applied, report.failed, report.attempts) == (1, 1, 2)
    assert (hf.effects.get(taken).attempts, hf.effects.get(taken).answer) == (2, "thanks")
    assert (hf.effects.get(late).attempts, "down" in str(hf.effects.get(late).reason)) == (1, True)
    clock.advance(400_000)
    before = hf.journal.position()
    hf.effects.dispatch()
    types = [event.type for event in hf.journal.events() if event.seq > before]
    assert types.count("effect.settled") == 1, "nobody died, and it is counted as before"
    assert seen == [("taken", 1), ("taken", 1), ("taken", 2), ("late", 1), ("late", 2)]


def test_the_last_attempt_after_a_death_may_still_succeed(hf: holdfast.Holdfast) -> None:
    lives = hf.env.settings.effect_attempts
    asked: list[int] = []

    def deliver(effect: holdfast.effects.DeclaredEffect) -> None:
        asked.append(effect.attempt)
        if len(asked) <= lives:
            raise Killed

    hf.effects.add_sink("crm", deliver)
    (id,) = notes(hf, 1)
    for _ in range(lives):
        die_of(hf)
    assert hf.effects.dispatch().applied == 1
    assert (hf.effects.get(id).status, hf.effects.get(id).attempts, asked[-1]) == ("applied", lives, lives)

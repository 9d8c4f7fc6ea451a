"""The outbox: in order, at least once, once per id, and a lane that stops stops alone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import holdfast
from holdfast import Refused
from holdfast.core.effects import MAX_REQUESTED_DELAY_MS, compute_retry_delay
from holdfast.effects import Custom, OperatorOutput, WriteState
from holdfast.errors import EffectNotFound, EffectRefused, InvalidValue, RetryLater
from holdfast.flow.effects import outbox
from holdfast.testing.clock import FrozenClock
from tests.effects.sinks import Noting, declare, notes


def broken(effect: holdfast.effects.DeclaredEffect) -> Exception:
    """Why a sink that is out of order takes nothing."""
    return ConnectionError("out of order")


def test_effects_of_one_stream_come_to_a_sink_in_order(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    hf.effects.add_sink("crm", sink)
    ids = notes(hf, 1, 2) + notes(hf, 3)
    assert [info.id for info in hf.effects.pending()] == ids
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=3)
    assert sink.payloads == [1, 2, 3]
    assert list(hf.effects.pending()) == []
    assert hf.effects.dispatch().attempts == 0


def test_a_sink_is_told_everything_about_an_effect(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    given: list[holdfast.effects.DeclaredEffect] = []
    hf.effects.add_sink("crm", given.append)
    (id,) = notes(hf, {"n": 1}, scope="operator/x")
    hf.effects.dispatch()
    assert given == [
        holdfast.effects.DeclaredEffect(
            id=id,
            kind="note",
            sink="crm",
            payload={"n": 1},
            scope="operator/x",
            tenant="default",
            operator="test",
            attempt=1,
            declared_at=clock.now_ms(),
        )
    ]


def test_a_failing_effect_stops_its_lane_alone_and_is_tried_again(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    crm, mail = Noting(lambda effect: broken(effect) if effect.payload == "bad" else None), Noting()
    hf.effects.add_sink("crm", crm)
    hf.effects.add_sink("mail", mail)
    (bad, _) = notes(hf, "bad", "behind it")
    notes(hf, "beside it", scope="operator/other")
    notes(hf, "elsewhere", sink="mail")
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=2, failed=1)
    assert (crm.payloads, mail.payloads) == (["beside it"], ["elsewhere"])
    info = hf.effects.get(bad)
    assert (info.status, info.attempts, info.reason) == ("failed", 1, "ConnectionError: out of order")
    assert info.retry_at is not None
    assert hf.effects.dispatch().attempts == 0
    crm.failing = None
    clock.advance(info.retry_at - clock.now_ms())
    assert hf.effects.dispatch().applied == 2
    assert crm.payloads == ["beside it", "bad", "behind it"]
    assert [effect.attempt for effect in crm.asked if effect.id == bad] == [1, 2]


def test_waiting_grows_up_to_a_limit_and_is_a_little_random(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    hf.effects.add_sink("crm", Noting(broken))
    (id,) = notes(hf, 1)
    waits = []
    for _ in range(hf.env.settings.effect_attempts - 1):
        assert hf.effects.dispatch().failed == 1
        at = hf.effects.get(id).retry_at
        assert at is not None
        waits.append((at - clock.now_ms()) / 1000)
        clock.advance(at - clock.now_ms())
    for number, wait in enumerate(waits):
        steady = min(2**number, 300)
        assert 0.8 * steady <= wait <= 1.2 * steady
    assert any(wait != 2**number for number, wait in enumerate(waits))
    assert hf.effects.dispatch().dead == 1
    assert compute_retry_delay(60, 0.5) == 300_000


def test_a_sink_that_says_when_to_come_back_is_heard(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    asked: list[Any] = [90, 10**9, float("nan"), "soon", -5, True]
    hf.effects.add_sink("crm", Noting(lambda effect: RetryLater("later", retry_after=asked[effect.attempt - 1])))
    (id,) = notes(hf, 1)
    waits = []
    for _ in asked:
        hf.effects.dispatch()
        at = hf.effects.get(id).retry_at
        assert at is not None
        waits.append(at - clock.now_ms())
        clock.advance(at - clock.now_ms())
    assert waits[0] == 90_000
    assert waits[1] == MAX_REQUESTED_DELAY_MS
    assert all(wait < 60_000 for wait in waits[2:])


def test_a_clock_that_was_set_back_does_not_stop_a_lane_for_ever(hf: holdfast.Holdfast, clock: FrozenClock) -> None:
    sink = Noting(broken)
    hf.effects.add_sink("crm", sink)
    notes(hf, 1)
    hf.effects.dispatch()
    clock.jump(-30 * 24 * 3_600_000)
    sink.failing = None
    assert hf.effects.dispatch().applied == 1


@pytest.mark.parametrize("error", [EffectRefused("never"), Refused("never"), holdfast.Unsupported("never")])
def test_what_a_sink_refuses_for_good_is_dead_at_once(hf: holdfast.Holdfast, error: Exception) -> None:
    sink = Noting(lambda effect: error if effect.payload == "bad" else None)
    hf.effects.add_sink("crm", sink)
    bad, behind = notes(hf, "bad", "behind it")
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(dead=1)
    assert hf.effects.dispatch().attempts == 0
    assert [(info.id, info.attempts) for info in hf.effects.dead()] == [(bad, 1)]
    assert "never" in next(hf.effects.dead()).reason
    assert [info.id for info in hf.effects.pending()] == [behind]
    sink.failing = None
    hf.effects.revive(bad)
    assert hf.effects.dispatch().applied == 2
    assert sink.payloads == ["bad", "behind it"]


def test_after_so_many_attempts_an_effect_is_dead(clock: FrozenClock) -> None:
    with holdfast.open("memory:", clock=clock, settings=holdfast.Settings(effect_attempts=3)) as hf:
        sink = Noting(broken)
        hf.effects.add_sink("crm", sink)
        (id,) = notes(hf, 1)
        outcomes = []
        for _ in range(5):
            done = hf.effects.dispatch()
            outcomes.append("dead" if done.dead else "failed" if done.failed else None)
            clock.advance(400_000)
        assert outcomes == ["failed", "failed", "dead", None, None]
        hf.effects.revive(id)
        assert (hf.effects.get(id).status, hf.effects.get(id).attempts) == ("pending", 0)
        hf.effects.dispatch()
        assert [effect.attempt for effect in sink.asked] == [1, 2, 3, 1]


def test_a_sink_may_go_on_past_its_dead(hf: holdfast.Holdfast) -> None:
    sink = Noting(lambda effect: EffectRefused("odd") if effect.payload % 2 else None)
    hf.effects.add_sink("crm", sink, when_dead="go_on")
    notes(hf, *range(40))
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=20, dead=20)
    assert sink.payloads == list(range(0, 40, 2))
    notes(hf, 100)
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=1)
    assert [info.payload for info in hf.effects.dead()] == list(range(1, 40, 2))


def test_an_effect_without_a_sink_waits_for_one(hf: holdfast.Holdfast) -> None:
    mail = Noting()
    hf.effects.add_sink("mail", mail)
    first, _ = notes(hf, 1, 2)
    notes(hf, 3, sink="mail")
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=1, deferred=1)
    assert hf.effects.dispatch().attempts == 0
    info = hf.effects.get(first)
    assert (info.status, info.attempts) == ("deferred", 0)
    assert "No sink" in info.reason
    crm = Noting()
    hf.effects.add_sink("crm", crm)
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=2)
    assert crm.payloads == [1, 2]


def test_a_sink_that_is_taken_away_takes_nothing(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    undo = hf.effects.add_sink("crm", sink)
    with pytest.raises(InvalidValue, match="already"):
        hf.effects.add_sink("crm", sink)
    undo()
    undo()
    notes(hf, 1)
    assert hf.effects.dispatch().deferred == 1
    hf.effects.add_sink("crm", sink)
    hf.effects.revive(next(hf.effects.pending()).id)
    assert hf.effects.dispatch().applied == 1


def test_what_needs_approval_waits_for_it_and_stops_its_lane(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    hf.effects.add_sink("crm", sink)
    risky = holdfast.effects.Custom("note", "risky", "crm", needs_approval=True)
    one, two, _ = declare(hf, risky, risky, holdfast.effects.Custom("note", "harmless", "crm"))
    assert hf.effects.dispatch().attempts == 0
    assert hf.effects.get(one).status == "approval"
    with pytest.raises(Refused, match="approve or reject"):
        hf.effects.revive(one)
    hf.effects.approve(one)
    hf.effects.approve(one)
    assert hf.effects.dispatch().applied == 1
    hf.effects.reject(two, reason="too risky")
    assert hf.effects.dispatch().applied == 1
    assert sink.payloads == ["risky", "harmless"]
    with pytest.raises(EffectNotFound):
        hf.effects.reject(two)


def test_only_what_waits_for_approval_can_be_approved_or_rejected(hf: holdfast.Holdfast) -> None:
    hf.effects.add_sink("crm", Noting(lambda effect: EffectRefused("never")))
    (id,) = notes(hf, 1)
    hf.effects.approve(id)
    with pytest.raises(Refused, match="does not wait for approval"):
        hf.effects.reject(id)
    hf.effects.dispatch()
    with pytest.raises(Refused, match="dead"):
        hf.effects.approve(id)


def test_a_discarded_effect_is_out_of_the_way(hf: holdfast.Holdfast) -> None:
    sink = Noting(lambda effect: EffectRefused("never") if effect.payload == 1 else None)
    hf.effects.add_sink("crm", sink)
    done = hf.effects.operate(
        lambda given, view: holdfast.effects.OperatorOutput(
            1, [holdfast.effects.Custom("n", n, "crm") for n in (1, 2)]
        ),
        key="k",
        name="x",
    )
    hf.effects.dispatch()
    hf.effects.discard(done.outcomes[0].effect, reason="nobody needs it")
    assert hf.effects.dispatch().applied == 1
    again = hf.effects.operate(lambda given, view: None, key="k", name="x")
    assert [(one.outcome, one.reason) for one in again.outcomes] == [("skipped", "nobody needs it"), ("applied", None)]


def test_unknown_effects_are_not_found(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    hf.effects.add_sink("crm", sink)
    (settled,) = notes(hf, 1)
    hf.effects.dispatch()
    (foreign,) = notes(hf.tenant("other"), 1)
    for id in (settled, foreign, "01JZZZZZZZZZZZZZZZZZZZZZZZ"):
        for act in (hf.effects.revive, hf.effects.discard, hf.effects.approve, hf.effects.reject):
            with pytest.raises(EffectNotFound):
                act(id)
        if id != settled:
            with pytest.raises(EffectNotFound, match="outcomes"):
                hf.effects.get(id)
    with pytest.raises(InvalidValue, match="the id of an effect"):
        hf.effects.revive("nonsense")


def test_a_dispatch_may_be_limited(hf: holdfast.Holdfast) -> None:
    crm, mail = Noting(), Noting()
    hf.effects.add_sink("crm", crm)
    hf.effects.add_sink("mail", mail)
    notes(hf, 1, 2, 3)
    notes(hf, 4, 5, sink="mail")
    assert hf.effects.dispatch(limit=2).attempts == 2
    assert hf.effects.dispatch(sink="mail").applied == 2
    assert hf.effects.dispatch().applied == 1
    wrong: Any
    for wrong in (0, -1, 1.5, True, "all"):
        with pytest.raises(InvalidValue):
            hf.effects.dispatch(limit=wrong)


def test_lanes_take_turns(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    hf.effects.add_sink("crm", sink)
    notes(hf, "a1", "a2", "a3", scope="operator/a")
    notes(hf, "b1", "b2", "b3", scope="operator/b")
    hf.effects.dispatch(limit=4)
    assert sorted(sink.payloads) == ["a1", "a2", "b1", "b2"]


def test_what_a_sink_declares_is_sent_by_the_next_dispatch(hf: holdfast.Holdfast) -> None:
    given = []

    def echo(effect: holdfast.effects.DeclaredEffect) -> None:
        given.append(effect.payload)
        notes(hf, effect.payload + 1)

    hf.effects.add_sink("crm", echo)
    notes(hf, 0)
    for number in range(3):
        assert hf.effects.dispatch().applied == 1
        assert given == list(range(number + 1))


def test_what_a_sink_answers_is_kept_if_it_can_be(hf: holdfast.Holdfast) -> None:
    answers: list[Any] = [{"id": 7}, None, object(), "x" * 600_000, float("inf")]
    hf.effects.add_sink("crm", lambda effect: answers[effect.payload])
    effects = [holdfast.effects.Custom("n", n, "crm") for n in range(len(answers))]
    for _ in range(2):
        done = hf.effects.operate(lambda given, view: holdfast.effects.OperatorOutput(1, effects), key="k", name="x")
        hf.effects.dispatch()
    assert [one.outcome for one in done.outcomes] == ["applied"] * 5
    assert [one.answer for one in done.outcomes] == [{"id": 7}, None, None, None, None]
    assert [bool(one.reason) for one in done.outcomes] == [False, False, True, True, True]


def test_a_redaction_hook_that_fails_does_not_make_a_sink_be_asked_again(clock: FrozenClock) -> None:
    angry: list[bool] = []

    def redact(text: str) -> str:
        if angry:
            raise ValueError("no text at all")
        return text

    with holdfast.open("memory:", clock=clock, redact=redact) as hf:
        sink = Noting()
        hf.effects.add_sink("crm", sink)
        notes(hf, 1)
        angry.append(True)
        assert hf.effects.dispatch().applied == 1
        assert hf.effects.dispatch().attempts == 0
        assert len(sink.asked) == 1


def test_sinks_that_must_be_awaited_are_refused(hf: holdfast.Holdfast) -> None:
    async def later(effect: Any) -> None: ...

    class Later:
        async def deliver(self, effect: Any) -> None: ...

    class Called:
        async def __call__(self, effect: Any) -> None: ...

    wrong: Any
    for wrong in (later, Later(), Called(), "crm", None, Noting):
        with pytest.raises(InvalidValue):
            hf.effects.add_sink("crm", wrong)
    wrong = "perhaps"
    with pytest.raises(InvalidValue, match="when_dead"):
        hf.effects.add_sink("crm", Noting(), when_dead=wrong)
    hf.effects.add_sink("crm", lambda effect: later(effect))
    notes(hf, 1)
    assert hf.effects.dispatch().dead == 1
    assert "awaitable" in next(hf.effects.dead()).reason


def test_an_interrupt_in_a_sink_is_no_failure(hf: holdfast.Holdfast) -> None:
    def stop(effect: Any) -> None:
        raise KeyboardInterrupt

    undo = hf.effects.add_sink("crm", stop)
    (id,) = notes(hf, 1)
    with pytest.raises(KeyboardInterrupt):
        hf.effects.dispatch()
    assert (hf.effects.get(id).status, hf.effects.get(id).attempts) == ("pending", 0)
    undo()
    hf.effects.add_sink("crm", Noting())
    assert hf.effects.dispatch().applied == 1


def test_a_client_that_drains_sends_nothing_new(hf: holdfast.Holdfast) -> None:
    sink = Noting()
    hf.effects.add_sink("crm", sink)
    notes(hf, 1)
    hf.drain(0)
    assert hf.effects.dispatch().attempts == 0
    assert sink.asked == []


class Evil:
    """Nothing of it can be looked at."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("evil")


class EvilModel:
    """It looks like a model, and is none."""

    @property
    def model_dump(self) -> Any:
        raise RuntimeError("evil")


@pytest.mark.parametrize("kind", [Evil, EvilModel])
def test_an_answer_that_cannot_be_looked_at_was_an_answer(hf: holdfast.Holdfast, kind: Any) -> None:
    asked = []

    def sink(effect: holdfast.effects.DeclaredEffect) -> Any:
        asked.append(effect.payload)
        return kind()

    hf.effects.add_sink("crm", sink)
    ids = notes(hf, 1, 2)
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=2)
    assert asked == [1, 2]
    info = hf.effects.get(ids[0])
    assert (info.status, info.answer) == ("applied", None)
    assert "not kept" in info.reason
    with pytest.raises(InvalidValue, match="cannot be stored"):
        hf.state("user/1").write("a", EvilModel())


def test_the_asyncio_client_keeps_to_that_too() -> None:
    async def test() -> None:
        async with holdfast.open_async("memory:") as hf:
            hf.effects.add_sink("crm", lambda effect: Evil())
            await hf.effects.operate(lambda given, view: OperatorOutput(None, [Custom("n", 1, "crm")]), name="x")
            assert await hf.effects.dispatch() == holdfast.effects.DispatchReport(applied=1)

    asyncio.run(test())


def test_a_settled_effect_is_shown_with_what_came_of_it(hf: holdfast.Holdfast) -> None:
    hf.effects.add_sink("crm", Noting())
    first, second = notes(hf, {"n": 1}, {"n": 2})
    hf.effects.discard(second, reason="too late")
    before = hf.effects.get(first)
    assert (before.status, before.attempts) == ("pending", 0)
    hf.effects.dispatch()
    info = hf.effects.get(first)
    assert (info.status, info.attempts, info.answer) == ("applied", 1, {"taken": 1})
    assert (info.payload, info.sink, info.kind, info.operator) == ({"n": 1}, "crm", "note", "test")
    assert (info.scope, info.declared_at) == (before.scope, before.declared_at)
    info = hf.effects.get(second)
    assert (info.status, info.reason, info.answer) == ("skipped", "too late", None)
    hf.journal.rebuild()
    assert hf.effects.get(first).answer == {"taken": 1}
    with pytest.raises(EffectNotFound):
        hf.tenant("other").effects.get(first)


def test_an_id_of_something_else_is_no_effect(hf: holdfast.Holdfast) -> None:
    (at_once,) = declare(hf, WriteState("user/1", "a", 1))
    ran = next(iter(hf.journal.events("operator/test")))
    for id in (at_once, ran.id):
        with pytest.raises(EffectNotFound, match=r"outcomes.*holdfast log"):
            hf.effects.get(id)


def test_a_sink_that_is_taken_away_during_a_dispatch_defers_what_is_left(
    hf: holdfast.Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    undo = hf.effects.add_sink("crm", Noting())
    ids = notes(hf, 1)
    real = outbox._check_owner

    def checked(*given: Any) -> None:
        undo()
        real(*given)

    monkeypatch.setattr(outbox, "_check_owner", checked)
    assert hf.effects.dispatch() == holdfast.effects.DispatchReport(deferred=1)
    assert hf.effects.get(ids[0]).status == "deferred"

"""Streams in loops of one's own: what was shown is kept when somebody stops the turn, and nothing goes on unread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast.testing.clock import FrozenClock
from tests.turns.agent_world import SESSION, facts
from tests.turns.loops import place
from tests.turns.stream_kit import AsyncSource, Broken, Source, raising
from tests.turns.test_turn_stops import chunks

Holdfast = holdfast.Holdfast


def shown(hf: Holdfast) -> list[tuple[str, bool]]:
    return [(one.text, one.partial) for one in hf.session(SESSION).messages() if one.role == "assistant"]


@pytest.mark.parametrize("end", ["raises", "ends"])
def test_a_stop_that_is_seen_when_the_stream_breaks_keeps_what_was_shown(hf: Holdfast, end: str) -> None:
    def stop() -> object:
        return hf.session(SESSION).stop("enough")

    source = Source("One ", "two ", then=raising(stop) if end == "raises" else stop)
    with hf.session(SESSION).turn("Tell me.", key="k") as turn:
        (step,) = turn.steps()
        assert list(step.stream(source)) == ["One ", "two "]
        (done,) = turn.steps()
    assert (done.status, done.reason, done.text) == ("stopped", "enough", "One two ")
    assert shown(hf) == [("One two ", True)]
    (failed,) = facts(hf, "model.failed")
    assert (failed.error, failed.usage.input) == ("stopped", step.pack.tokens), "it was shown its pack"


def test_a_stop_before_the_first_word_is_seen_as_well(hf: Holdfast) -> None:
    def stop() -> object:
        return hf.session(SESSION).stop("enough")

    for then in (stop, raising(stop)):
        with hf.session(SESSION).turn("Tell me.") as turn:
            (step,) = turn.steps()
            assert list(step.stream(Source(then=then))) == []
            (done,) = turn.steps()
        assert (done.status, done.text) == ("stopped", "")


def test_a_whole_reply_is_no_partial_one_whoever_wanted_it_stopped(hf: Holdfast) -> None:
    source = Source("One ", "two.", then=lambda: hf.session(SESSION).stop("enough"), end=True)
    with hf.session(SESSION).turn("Tell me.") as turn:
        (step,) = turn.steps()
        assert list(step.stream(source)) == ["One ", "two."]
        assert turn.steps()[0].text == "One two."
    assert shown(hf) == [("One two.", False)]


def test_a_stream_that_breaks_by_itself_leaves_the_turn_live_and_can_be_stopped(hf: Holdfast) -> None:
    with hf.session(SESSION).turn("Tell me.", key="k") as turn:
        (step,) = turn.steps()
        with pytest.raises(Broken):
            list(step.stream(Source("One ", then=raising())))
    assert shown(hf) == []
    assert hf.index.stack(place())[0].status == "active"
    with hf.session(SESSION).turn("Tell me.", key="k") as turn:
        (again,) = turn.steps()
        assert (again.call, again.repeated) == (step.call, True), "the same call, whose reply takes the place"
        with pytest.raises(Broken):
            list(again.stream(Source("One ", then=raising())))
        assert turn.stop("gave up").text == "One "
    assert shown(hf) == [("One ", True)]


@pytest.mark.parametrize("kind", [Source, AsyncSource])
def test_a_stream_that_is_not_read_to_its_end_is_closed(hf: Holdfast, clock: FrozenClock, kind: type[Source]) -> None:
    closed = 0 if kind is AsyncSource else 1  # Nobody can await it here.

    def stopped(step: Any, source: Source) -> None:
        for _ in step.stream(source):
            clock.advance(600)
            hf.session(SESSION).stop()

    def left(step: Any, source: Source) -> None:
        words = step.stream(source)
        next(words)
        words.close()

    def broken(step: Any, source: Source) -> None:
        source._then = raising()
        with pytest.raises(Broken):
            list(step.stream(source))

    for work in (stopped, left, broken):
        source = kind("One ", "two ", "three ")
        with hf.session(SESSION).turn("Tell me.") as turn:
            work(turn.steps()[0], source)
            turn.stop()
        assert source.closed == closed, work.__name__
    whole = kind("One.", end=True)
    with hf.session(SESSION).turn("Tell me.") as turn:
        assert list(turn.steps()[0].stream(whole)) == ["One."]
    assert whole.closed == 0, "it has ended, and is its owner's"


def test_a_generator_is_closed_though_somebody_holds_it(hf: Holdfast) -> None:
    ended: list[str] = []

    def words() -> Iterator[Any]:
        try:
            yield from chunks("One ", "two ")
        finally:
            ended.append("ended")

    source = words()
    with hf.session(SESSION).turn("Tell me.") as turn:
        (step,) = turn.steps()
        for _ in step.stream(source):
            turn.stop()
        assert ended == ["ended"]


def test_a_stream_that_cannot_be_closed_hides_nothing(hf: Holdfast) -> None:
    class Stubborn(Source):
        def close(self) -> None:
            raise OSError("It is gone.")

    with pytest.raises(Broken), hf.session(SESSION).turn("Tell me.") as turn:
        list(turn.steps()[0].stream(Stubborn(then=raising())))


def test_one_can_wait_for_a_stop(hf: Holdfast, clock: FrozenClock) -> None:
    chat = hf.session(SESSION)
    with chat.turn("Tell me.", key="k") as turn:
        turn.steps()
        assert turn.is_stopping() is False
        before = clock.monotonic()
        assert turn.wait_for_stop(timeout=1.2) is None
        assert clock.monotonic() - before == pytest.approx(1.2)
        assert chat.stop("enough")
        assert turn.is_stopping() is True
        assert turn.wait_for_stop() == "enough"
        turn.stop(turn.wait_for_stop() or "")
        assert (turn.is_stopping(), turn.wait_for_stop()) == (True, "enough")
    with chat.turn("Tell me.", key="k") as turn:
        assert turn.wait_for_stop() == "enough"
    with chat.turn("And now?", key="l") as turn:
        turn.steps()[0].done("This.")
        assert (turn.is_stopping(), turn.wait_for_stop()) == (False, None), "nobody can ask for it any more"
    with chat.turn("And now?", key="l") as turn:
        assert turn.wait_for_stop() is None


def test_a_stop_is_found_from_another_process(tmp_path: Path) -> None:
    url = str(tmp_path / "a.db")
    with holdfast.open(url) as hf, holdfast.open(url) as other, hf.session(SESSION).turn("Tell me.") as turn:
        turn.steps()
        assert other.session(SESSION).stop("enough")
        assert turn.wait_for_stop(timeout=5) == "enough"

"""A turn looks at the journal once for what comes next and what its model is shown: what that may not miss or hold."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import holdfast
from holdfast import CallModel, Done, Holdfast, Usage
from holdfast.errors import ActorBusy
from holdfast.flow.packs import handles
from holdfast.flow.turns import limits, turns
from holdfast.flow.turns.model_calls import TurnModelCalls
from holdfast.flow.turns.turns import TurnView
from holdfast.model.scripted import Scripted
from tests.turns.loops import SESSION, asks, loop, replies, take


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Holdfast, Holdfast]]:
    """Two clients of one journal, as two processes are."""
    path = str(tmp_path / "a.db")
    with holdfast.open(path, durability="fast") as one, holdfast.open(path, durability="fast") as two:
        yield one, two


# what others do is seen


def test_a_stop_that_another_client_asked_for_is_seen_at_every_look(pair: tuple[Holdfast, Holdfast]) -> None:
    one, two = pair
    for calls in range(3):
        with one.session(SESSION).turn("Go.") as turn:
            for _ in range(calls):
                (step,) = turn.steps()
                step.done(asks(("look", {})) if isinstance(step, CallModel) else "seen")
            two.session(SESSION).stop("Enough.")
            (step,) = turn.steps()
            assert isinstance(step, Done)
            assert (step.status, step.reason) == ("stopped", "Enough.")


def test_a_stop_that_nobody_looks_for_is_found(
    pair: tuple[Holdfast, Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "find_stop_request", lambda *given: None)
    with pytest.raises(AssertionError):
        test_a_stop_that_another_client_asked_for_is_seen_at_every_look(pair)


def test_another_model_that_was_chosen_elsewhere_is_called_next(pair: tuple[Holdfast, Holdfast]) -> None:
    one, two = pair
    one.session(SESSION, model="gpt-4o")
    with one.session(SESSION).turn("Go.") as turn:
        (first,) = turn.steps()
        first.done(asks(("look", {})))
        (tool,) = turn.steps()
        two.session(SESSION, model="gpt-4o-mini")
        two.session(SESSION).append("By the way.")
        tool.done("seen")
        (second,) = turn.steps()
        second.done("Done.")
    assert (first.model, second.model, second.pack.model) == ("gpt-4o", "gpt-4o-mini", "gpt-4o-mini")
    assert "By the way." in str(second.pack.messages)


def test_an_agent_that_remembers_no_session_leaves_anothers_instructions_alone(pair: tuple[Holdfast, Holdfast]) -> None:
    one, two = pair
    stream = "session/s"
    one.env.states.put("default", stream, one.env.journal.load("default", stream))
    two.session(SESSION, system="Theirs.")
    agent: Any = one.agent("a", model=Scripted(["Hi."]), system="Ours.")
    with two.session(SESSION).turn("Go.") as turn:
        with pytest.raises(ActorBusy):
            agent.send(SESSION, "And me?", if_busy="reject")
        assert two.session(SESSION).details.system == "Theirs."
        loop(turn, replies("Gone."))
    assert agent.send(SESSION, "And me?").text == "Hi."
    assert two.session(SESSION).details.system == "Ours."


# nothing is held meanwhile


def is_held(hf: Holdfast) -> bool:
    """Whether this thread holds a moment of the journal."""
    return getattr(hf.env.journal, "connections").pinned.connection is not None  # noqa: B009  # Only a file has connections.


def test_evidence_is_fetched_while_nothing_is_held(
    pair: tuple[Holdfast, Holdfast], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, held = pair[0], list[bool]()
    resolve = handles.resolve_handle

    def fetched(*given: Any) -> Any:
        held.append(is_held(one))
        return resolve(*given)

    monkeypatch.setattr(handles, "resolve_handle", fetched)
    with one.session(SESSION).turn("Go.") as turn:
        one.index.add_handle(turn.id, "event_ref", handle="e", body="what was found")
        (step,) = turn.steps()
        assert "what was found" in str(step.pack.messages)
        step.done("Done.")
    assert held == [False]


class Spans:
    """Telemetry that notes whether anything is held while it is told something."""

    def __init__(self) -> None:
        self.held: list[bool] = []
        self.hf: Holdfast | None = None

    def note(self) -> None:
        assert self.hf is not None
        self.held.append(is_held(self.hf))

    @contextmanager
    def span(self, name: str, attributes: Mapping[str, Any]) -> Iterator[Any]:
        self.note()
        yield lambda name, value: None
        self.note()

    def begin_call(self, call: str, attributes: Mapping[str, Any]) -> None:
        self.note()

    def end_call(self, call: str, attributes: Mapping[str, Any], error: str | None = None) -> None:
        self.note()


def test_telemetry_is_told_while_nothing_is_held(tmp_path: Path) -> None:
    tmp_path.mkdir(exist_ok=True)
    spans = Spans()
    with holdfast.open(str(tmp_path / "a.db"), telemetry=spans) as hf:
        spans.hf = hf
        take(hf, "Go.", replies(asks(("look", {})), "Done."))
    assert spans.held
    assert not any(spans.held)


def whatever_is_shown_is_at_hand(self: TurnModelCalls, view: TurnView) -> bool:
    return view.step.next == "model" and view.step.call is None


def test_a_moment_that_is_held_for_too_long_is_found(
    pair: tuple[Holdfast, Holdfast], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TurnModelCalls, "can_build_now", whatever_is_shown_is_at_hand)
    with pytest.raises(AssertionError):
        test_evidence_is_fetched_while_nothing_is_held(pair, monkeypatch)
    with pytest.raises(AssertionError):
        test_telemetry_is_told_while_nothing_is_held(tmp_path / "told")


# what is known at the end is what the journal says


def test_what_a_turn_used_is_known_however_it_ends(hf: Holdfast) -> None:
    once = Usage(input=11, output=3)
    for given in ([asks(("look", {})), "Done."], ["Hi."]):
        left = list(given)
        with hf.session(SESSION).turn("Go.") as turn:
            loop(turn, lambda step, left=left: step.done(left.pop(0), usage=once))
            assert turn.usage == turn.frame.info().usage
            assert turn.usage.input == 11 * len(given)
    with hf.session(SESSION).turn("Go.") as turn:
        (step,) = turn.steps()
        step.done(asks(("look", {})), usage=once)
        assert turn.usage == turn.frame.info().usage
        turn.stop()
        assert turn.usage == turn.frame.info().usage
        assert turn.usage.input == 11


# nothing waits for the disk on a loop


def test_a_request_is_rendered_without_reading_anything() -> None:
    async def work() -> None:
        async with holdfast.open_async("memory:") as hf:
            chat = await hf.session(SESSION)
            await chat.append("Look at this.", files=[("cat.png", b"\x89PNG\r\n")])
            async with chat.turn("What is it?") as turn:
                (step,) = await turn.steps()
                assert isinstance(step, CallModel)
                hf._sync.env.journal.artifact = None  # type: ignore[method-assign,assignment]
                assert "iVBOR" in str(step.pack.to_openai()), "the picture is there"
                del hf._sync.env.journal.artifact
                await step.done("A cat.")  # type: ignore[misc]  # awaited here

    asyncio.run(work())


# a turn that another process ends while it is looked at


def test_a_turn_that_ends_while_it_is_looked_at_is_followed_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, look = tmp_path / "a.db", turns.read_turn
    with holdfast.open(path, durability="fast") as one, holdfast.open(path, durability="fast") as two:
        with one.session("s").turn("First.", key="k") as turn:
            assert turn.steps()

        def looked(*given: Any) -> TurnView | None:
            view = look(*given)
            monkeypatch.setattr(turns, "read_turn", look)
            with two.session("s").turn(key="k") as other:
                other.stop("Enough.")
            return view

        monkeypatch.setattr(turns, "read_turn", looked)
        assert take(one, "Second.", replies("Yes.")).text == "Yes."
        assert [message.text for message in one.session("s").messages()] == ["First.", "Second.", "Yes."]


def test_a_turn_that_is_looked_at_twice_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without one moment for all that is looked at.
    monkeypatch.setattr(limits, "find_exhausted_limit", limits._check_next_step)
    with pytest.raises(holdfast.HoldfastError):
        test_a_turn_that_ends_while_it_is_looked_at_is_followed_by_another(tmp_path, monkeypatch)

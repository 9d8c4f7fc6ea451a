"""Bad input to frames: a typed refusal that says what to do, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError, Limits, Usage
from holdfast.connect import assemble_env
from holdfast.errors import InvalidValue
from tests.backends import IN_MEMORY
from tests.frames.conftest import ACTOR

UNKNOWN = "01" + "A" * 24
Act = Callable[[holdfast.Holdfast, str], object]

BAD: dict[str, tuple[type[HoldfastError], Act]] = {
    "negative reservation": (InvalidValue, lambda hf, f: hf.index.reserve(f, "p", -1)),
    "reservation by fraction": (InvalidValue, lambda hf, f: hf.index.reserve(f, "p", 0.5)),  # type: ignore[arg-type]
    "negative usage": (InvalidValue, lambda hf, f: hf.index.record_usage(f, -1)),
    "negative usage record": (InvalidValue, lambda hf, f: hf.index.record_usage(f, Usage(input=-5))),
    "usage of true": (InvalidValue, lambda hf, f: hf.index.record_usage(f, True)),
    "negative tokens": (InvalidValue, lambda hf, f: hf.index.push_frame("x", parent=f, tokens=-1)),
    "fraction of two": (InvalidValue, lambda hf, f: hf.index.push_frame("x", parent=f, tokens=2.0)),
    "fraction of nan": (InvalidValue, lambda hf, f: hf.index.push_frame("x", parent=f, tokens=float("nan"))),
    "no goal": (InvalidValue, lambda hf, f: hf.index.push_frame("  ", parent=f)),
    "goal of a number": (InvalidValue, lambda hf, f: hf.index.push_frame(5, parent=f)),  # type: ignore[arg-type]
    "nowhere to live": (InvalidValue, lambda hf, f: hf.index.push_frame("x")),
    "limits of a dict": (InvalidValue, lambda hf, f: hf.index.push_frame("x", parent=f, limits={"depth": 1})),  # type: ignore[arg-type]
    "negative limit": (InvalidValue, lambda hf, f: hf.index.push_frame("x", parent=f, limits=Limits(depth=-1))),
    "no time at all": (InvalidValue, lambda hf, f: hf.index.push_frame("x", parent=f, limits=Limits(timeout_ms=0))),
    "metadata of a list": (InvalidValue, lambda hf, f: hf.index.push_frame("x", parent=f, metadata=[1])),  # type: ignore[arg-type]
    "inputs of a set": (InvalidValue, lambda hf, f: hf.index.push_frame("x", parent=f, inputs={1, 2})),
    "an id that is none": (InvalidValue, lambda hf, f: hf.index.get_frame("frame-1")),
    "an id of a number": (InvalidValue, lambda hf, f: hf.index.get_frame(7)),  # type: ignore[arg-type]
    "a new id that is none": (InvalidValue, lambda hf, f: hf.index.push_frame("x", scope=ACTOR, frame_id="mine")),
    "unknown frame": (holdfast.errors.FrameNotFound, lambda hf, f: hf.index.get_frame(UNKNOWN)),
    "pop of an unknown frame": (holdfast.errors.FrameNotFound, lambda hf, f: hf.index.pop_frame(UNKNOWN)),
    "unknown parent": (holdfast.errors.ParentNotFound, lambda hf, f: hf.index.push_frame("x", parent=UNKNOWN)),
    "unknown question": (holdfast.errors.QuestionNotFound, lambda hf, f: hf.answer(UNKNOWN, approve=True)),
    "question and token": (InvalidValue, lambda hf, f: hf.answer(UNKNOWN, token="t", approve=True)),
    "neither": (InvalidValue, lambda hf, f: hf.answer(approve=True)),
    "approval by word": (InvalidValue, lambda hf, f: hf.answer(UNKNOWN, approve="yes")),  # type: ignore[arg-type]
    "resume of an active frame": (holdfast.errors.QuestionNotFound, lambda hf, f: hf.index.resume_frame(UNKNOWN)),
    "unknown call": (holdfast.errors.CallNotFound, lambda hf, f: hf.index.end_tool_call(f, UNKNOWN)),
    "unknown policy": (InvalidValue, lambda hf, f: hf.index.begin_tool_call(f, "t", if_interrupted="pray")),
    "tool without a name": (InvalidValue, lambda hf, f: hf.index.begin_tool_call(f, "")),
    "a pack that cannot be": (InvalidValue, lambda hf, f: hf.index.begin_model_call(f, object())),
    "a scope that is none": (InvalidValue, lambda hf, f: hf.index.stack("actor/")),
    "a key that is none": (InvalidValue, lambda hf, f: hf.index.reserve(f, "p", 1, key="")),
    "a purpose that is none": (InvalidValue, lambda hf, f: hf.index.reserve(f, "", 1)),
    "unknown reservation": (holdfast.errors.NotFound, lambda hf, f: hf.index.release_reservation(f, "p")),
    "on_error of a word": (InvalidValue, lambda hf, f: hf.frame("x", on_error="explode")),
    "incarnation of nothing": (InvalidValue, lambda hf, f: hf.index.resume_actor(ACTOR, incarnation="")),
}


@pytest.mark.parametrize("name", sorted(BAD))
def test_bad_input_is_refused_with_words_and_writes_nothing(hf: holdfast.Holdfast, name: str) -> None:
    error, act = BAD[name]
    frame = hf.index.push_frame("f", scope=ACTOR, tokens=100)
    before = hf.journal.position(), hf.index.get_frame(frame)
    with pytest.raises(error) as refused:
        act(hf, frame)
    assert (hf.journal.position(), hf.index.get_frame(frame)) == before
    words = str(refused.value)
    assert len(words) > 15
    assert words.endswith((".", "…"))
    assert "Traceback" not in words


def test_a_stale_owner_is_told_to_stop(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    hf.index.resume_actor(ACTOR, incarnation="a")
    usurper = _second_client(hf)
    usurper.index.resume_actor(ACTOR, incarnation="b")
    before = hf.journal.position()
    for _ in range(2):
        with pytest.raises(holdfast.errors.StaleEpoch, match="Stop"):
            hf.index.record_usage(frame, 1)
    assert hf.journal.position() == before
    hf.journal.append(ACTOR, "app.noted", {"inbox": "still arrives"})
    usurper.index.record_usage(frame, 1)
    usurper.index.release_actor(ACTOR)


def test_without_a_lease_another_owner_is_respected(hf: holdfast.Holdfast) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    owner = _second_client(hf)
    owner.index.resume_actor(ACTOR, incarnation="b")
    with pytest.raises(holdfast.errors.NotOwner, match="resume_actor"):
        hf.index.record_usage(frame, 1)
    question = owner.index.suspend_frame(frame, "?").question
    hf.answer(question, approve=True)
    owner.index.resume_frame(question)
    owner.index.release_actor(ACTOR)
    hf.index.record_usage(frame, 1)


def _second_client(hf: holdfast.Holdfast) -> holdfast.Holdfast:
    """Another owner on the same journal, as a second process would be."""
    env: Any = hf.env
    return holdfast.Holdfast(assemble_env(env.journal, env.settings, env.clock), owner=False)


NOT_TEXT: dict[str, Act] = {
    "summary": lambda hf, f: hf.index.pop_frame(f, "failed", summary=5),  # type: ignore[arg-type]
    "pop error": lambda hf, f: hf.index.pop_frame(f, "failed", error=5),  # type: ignore[arg-type]
    "recommended": lambda hf, f: hf.index.suspend_frame(f, "?", recommended=7),  # type: ignore[arg-type]
    "options of numbers": lambda hf, f: hf.index.suspend_frame(f, "?", options=[1, 2]),  # type: ignore[list-item]
    "options of a text": lambda hf, f: hf.index.suspend_frame(f, "?", options="yes"),
    "options of a number": lambda hf, f: hf.index.suspend_frame(f, "?", options=5),  # type: ignore[arg-type]
    "recommended elsewhere": lambda hf, f: hf.index.suspend_frame(f, "?", options=["a"], recommended="b"),
    "description": lambda hf, f: hf.index.add_handle(f, "document", description=5),  # type: ignore[arg-type]
    "target": lambda hf, f: hf.index.add_handle(f, "document", target=5),  # type: ignore[arg-type]
    "handle metadata": lambda hf, f: hf.index.add_handle(f, "document", metadata=[1]),  # type: ignore[arg-type]
    "tool error": lambda hf, f: hf.index.end_tool_call(f, hf.index.get_frame(f).calls[0].id, error=5),  # type: ignore[arg-type]
    "tool tokens": lambda hf, f: hf.index.end_tool_call(f, hf.index.get_frame(f).calls[0].id, tokens="x"),  # type: ignore[arg-type]
    "model": lambda hf, f: hf.index.begin_model_call(f, model=5),  # type: ignore[arg-type]
    "provider id": lambda hf, f: hf.index.begin_tool_call(f, "t", provider_id=5),  # type: ignore[arg-type]
    "reason": lambda hf, f: hf.index.remove_handle(f, "h", reason=5),  # type: ignore[arg-type]
    "no handle": lambda hf, f: hf.index.remove_handle(f, None),  # type: ignore[arg-type]
    "result summary": lambda hf, f: hf.index.add_result(f, "k", "r", summary=5),  # type: ignore[arg-type]
    "note": lambda hf, f: hf.answer(f, approve=True, note=5),  # type: ignore[arg-type]
    "no goal": lambda hf, f: hf.frame(None).open(),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("name", sorted(NOT_TEXT))
@IN_MEMORY
def test_what_is_not_a_text_is_refused_before_it_is_written(hf: holdfast.Holdfast, name: str) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    hf.index.add_handle(frame, "document", handle="h")
    hf.index.begin_tool_call(frame, "t")
    before = hf.journal.position()
    with pytest.raises(InvalidValue):
        NOT_TEXT[name](hf, frame)
    assert hf.journal.position() == before


def test_a_block_refuses_what_is_not_a_text(hf: holdfast.Holdfast) -> None:
    with hf.frame("x", on_error="leave") as frame:
        with pytest.raises(InvalidValue):
            frame.suspend("pick", options=[1, 2])  # type: ignore[list-item]
        with pytest.raises(InvalidValue):
            frame.ask(5, key="q")  # type: ignore[arg-type]
        frame.result(1, summary="fine")


@pytest.mark.parametrize(
    "act",
    [
        lambda hf, f: hf.index.add_handle(f, "document", priority=["low"]),
        lambda hf, f: hf.index.release_reservation(f, ["p"]),
        lambda hf, f: hf.index.spend_reserved(f, 5, 1),
        lambda hf, f: hf.index.pop_frame(f, ["completed"]),
        lambda hf, f: hf.index.end_model_call(f, ["c"]),
        lambda hf, f: hf.index.restore_handles(f, 5),
        lambda hf, f: hf.index.update_frame(f, goal="g", expected_version="5"),
    ],
)
@IN_MEMORY
def test_arguments_of_the_wrong_kind_are_named(hf: holdfast.Holdfast, act: Act) -> None:
    frame = hf.index.push_frame("f", scope=ACTOR)
    with pytest.raises(InvalidValue):
        act(hf, frame)

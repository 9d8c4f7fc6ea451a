"""Bad input to frames: a typed refusal that says what to do, and nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import HoldfastError, Limits, Usage
from holdfast.connect import assemble_env
from holdfast.errors import InvalidValue
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

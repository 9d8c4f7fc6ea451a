"""Operations of a walk with one value of a wrong type: refused as such, with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.client.holdfast import Holdfast
from holdfast.client.index import IndexView
from tests.model.frames_model import Plan
from tests.model.frames_pick import scope_of, some_frame
from tests.model.frames_walk import Op, Walk

Case = tuple[str, Callable[[], Plan], Callable[[IndexView], Any]]


def mistyped(walk: Walk) -> Op:
    """An operation that would be fine as a rule, but for a number where a text belongs, or the like."""
    frame = some_frame(walk, lambda unit: unit.question is None)
    unit = walk.model.units.get(frame)
    name, plan, act = walk.random.choice([*on_frame(walk, frame), *on_question(walk), *on_call(walk, frame)])
    return Op(
        f"mistyped {name}",
        {"frame": frame},
        scope_of(walk, frame),
        plan,
        lambda index, key: act(index),
        frame=None if unit is None else frame,
        wrong=True,
    )


def on_frame(walk: Walk, frame: str) -> list[Case]:
    model = walk.model

    def suspended() -> Plan:
        terms: dict[str, Any] = {"expires_ms": None, "on_expiry": None, "until": None}
        return model.suspend(frame, "approval", subtree=False, release=True, **terms)

    def handled() -> Plan:
        return model.add_handle(frame, "url", "h1")

    pushed = "goal of the wrong"
    wrong: Any
    cases: list[Case] = [
        ("push goal", lambda: model.push(pushed, parent=frame), lambda index: index.push_frame(5, parent=frame)),  # type: ignore[arg-type]
        ("update goal", lambda: model.update(frame), lambda index: index.update_frame(frame, goal=5)),  # type: ignore[arg-type]
        ("begin_tool name", lambda: model.begin_tool(frame, "search"), lambda index: index.begin_tool_call(frame, 5)),  # type: ignore[arg-type]
    ]
    for wrong in ({"summary": 5}, {"error": 5}, {"summary": ["a"]}):
        cases.append(("pop", lambda: model.pop(frame, "failed", "never"), _call("pop_frame", frame, "failed", **wrong)))
    for wrong in ({"description": 5}, {"target": 5}, {"body": 5}, {"metadata": 5}, {"tokens": "7"}, {"trust": 5}):
        cases.append(("add_handle", handled, _call("add_handle", frame, "url", handle="h1", **wrong)))
    for wrong in ({"reason": 5}, {"options": [1, 2]}, {"options": ["a"], "recommended": 5}, {"options": "ab"}):
        cases.append(("suspend", suspended, _call("suspend_frame", frame, **wrong)))
    for wrong in ({"kind": 5}, {"expires_ms": "5"}, {"expires_ms": 5, "on_expiry": 5}, {"call": 5}, {"recommended": 5}):
        cases.append(("suspend", suspended, _call("suspend_frame", frame, **wrong)))
    for wrong in ({"model": 5}, {"if_interrupted": 5}):
        cases.append(("begin_model", lambda: model.begin_model(frame, "m"), _call("begin_model_call", frame, **wrong)))
    for wrong in ({"provider_id": 5}, {"if_interrupted": 5}):
        begun = _call("begin_tool_call", frame, "search", **wrong)
        cases.append(("begin_tool", lambda: model.begin_tool(frame, "search"), begun))
    cases.append(("result", lambda: model.add_result(frame, "k", "r"), _call("add_result", frame, "k", "r", summary=5)))
    cases.append(("result", lambda: model.add_result(frame, "k", "r"), _call("add_result", frame, "k", 5)))
    cases.append(("reserve", lambda: model.reserve(frame, "reply", 1), _call("reserve", frame, "reply", "1")))
    cases.append(("reserve", lambda: model.reserve(frame, "reply", 1), _call("reserve", frame, 5, 1)))
    return cases


def on_question(walk: Walk) -> list[Case]:
    open_ones = [unit.question.id for unit in walk.model.live() if unit.question is not None]
    if not open_ones:
        return []
    question, cases = walk.random.choice(open_ones), []
    wrong: dict[str, Any]
    for wrong in ({"approve": "yes"}, {"approve": True, "note": 5}):
        answered = _answer(question, **wrong)
        cases.append(("answer", lambda: walk.model.answer(question, None, ("else", None, None)), answered))
        resumed = _call("resume_frame", question, **wrong)
        cases.append(("resume", lambda: walk.model.resume(question, None, ("else", None, None)), resumed))
    return cases


def on_call(walk: Walk, frame: str) -> list[Case]:
    unit, cases = walk.model.units.get(frame), []
    if unit is None or not unit.calls:
        return []
    call, (kind, _) = walk.random.choice(list(unit.calls.items()))
    model: tuple[dict[str, Any], ...] = ({"error": 5}, {"finish": 5}, {"provider_id": 5}, {"usage": "5"})
    tool: tuple[dict[str, Any], ...] = ({"error": 5}, {"tokens": "5"}, {"interrupted": 5})
    for wrong in model if kind == "model" else tool:
        act = _call(f"end_{kind}_call", frame, call, **wrong)
        cases.append((f"end_{kind}", lambda: walk.model.end_call(frame, call, kind, 0, None), act))
    return cases


def _answer(question: str, **how: Any) -> Callable[[IndexView], Any]:
    return lambda index: Holdfast(index.env, owner=False).answer(question, **how)


def _call(method: str, *args: Any, **how: Any) -> Callable[[IndexView], Any]:
    return lambda index: getattr(index, method)(*args, **how)

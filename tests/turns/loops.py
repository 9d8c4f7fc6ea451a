"""Loops of one's own, with scripted replies: what a test needs to take a turn, and what must hold after it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

from holdfast import CallModel, CallTool, Holdfast
from holdfast.client.turn import Step, Turn
from tests.backends import check_rebuilt
from tests.sessions.provider_rules import anthropic_problems, openai_problems, responses_problems

SESSION = "s"
Tool = Callable[[CallTool], object]
Model = Callable[[CallModel], object]


def asks(*calls: tuple[str, Any], text: str | None = None, usage: dict[str, int] | None = None) -> dict[str, Any]:
    """A model's reply that calls tools, each by name and arguments."""
    made = [
        {
            "id": f"c{at}",
            "type": "function",
            "function": {"name": name, "arguments": args if isinstance(args, str) else json.dumps(args)},
        }
        for at, (name, args) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text, "tool_calls": made, **({"usage": usage} if usage else {})}


def replies(*given: Any) -> Model:
    """A model that says these one after the other."""
    left = list(given)
    return lambda step: step.done(left.pop(0))


def echo(step: CallTool) -> object:
    """A tool that gives its arguments back."""
    return step.done({"got": step.args})


def loop(turn: Turn, model: Model, tool: Tool = echo) -> list[Step]:
    """The loop that everybody writes; gives the steps that it saw."""
    seen: list[Step] = []
    for step in turn:
        seen.append(step)
        if isinstance(step, CallModel):
            model(step)
        elif isinstance(step, CallTool):
            tool(step)
    return seen


def take(hf: Holdfast, message: Any, model: Model, tool: Tool = echo, *, session: str = SESSION, **how: Any) -> Any:
    """A whole turn, or as far as it comes; gives its last step."""
    with hf.session(session).turn(message, **how) as turn:
        return loop(turn, model, tool)[-1]


def leave_at(hf: Holdfast, message: Any, kind: type[Step], model: Model, tool: Tool = echo, **how: Any) -> Any:
    """Leave a turn at the first step of a kind, without an outcome, as a crash or a deploy would; gives that step."""
    with hf.session(SESSION).turn(message, **how) as turn:
        for step in turn:
            if isinstance(step, kind):
                return step
            if isinstance(step, CallModel):
                model(step)
            elif isinstance(step, CallTool):
                tool(step)
    raise AssertionError(f"no {kind.__name__} came")


def kinds(steps: Iterable[Step]) -> list[str]:
    """What came, by name."""
    return [type(step).__name__ for step in steps]


def spoken(hf: Holdfast, session: str = SESSION, thread: str = "main") -> list[tuple[str, Any]]:
    """A conversation without what holdfast itself said in it: who said what, calls by name, results as they are."""
    found = []
    for one in hf.session(session, thread=thread).messages():
        if one.role == "user" and one.synthetic:
            continue
        results = [result.result for result in one.tool_results]
        found.append((one.role, one.text or results or [call.name for call in one.tool_calls]))
    return found


def types(hf: Holdfast, session: str = SESSION, thread: str = "main") -> list[str]:
    """The events of a conversation's turns."""
    return [event.type for event in hf.journal.events(place(session, thread))]


def place(session: str = SESSION, thread: str = "main") -> str:
    """Where the turns of a conversation live."""
    return f"actor/main/session/{session}/thread/{thread}"


def only_question(hf: Holdfast) -> Any:
    """The one question that is open."""
    (found,) = hf.questions()
    return found


def check_whole(hf: Holdfast) -> None:
    """The journal verifies, rebuilt equals live, and every provider takes every conversation."""
    check_rebuilt(hf)
    for info in hf.sessions():
        for thread in hf.session(info.id).details.threads:
            check_valid(hf, info.id, thread)


def check_valid(hf: Holdfast, session: str = SESSION, thread: str = "main") -> None:
    """What the model would be shown next is valid for every provider."""
    shown = hf.session(session, thread=thread).pack(100_000)
    assert openai_problems(shown.to_openai()["messages"]) == []
    assert responses_problems(shown.to_responses()) == []
    assert anthropic_problems(shown.to_anthropic()) == []

"""What a person approves is what runs, whatever a release changes and whoever takes the turn up, or they are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import holdfast
from holdfast import Scripted, tool
from holdfast.errors import ActorBusy
from holdfast.flow.turns import tool_calls
from holdfast.flow.turns.open import TurnOpener
from holdfast.model.scripted import call
from tests.backends import IN_MEMORY
from tests.turns.agent_world import Counted
from tests.turns.loops import SESSION, asks, leave_at, replies, spoken, take

Holdfast = holdfast.Holdfast
Send = Callable[..., Any]


@tool(needs_approval=True)
def buy(item: str, count: int = 3, gift: bool = False) -> str:
    """Buy."""
    return f"bought {item} {count} {gift}"


@tool(name="buy", needs_approval=True)
def dearer(item: str, count: int = 300, gift: bool = False) -> str:
    """Buy."""
    return f"bought {item} {count} {gift}"


@tool(name="buy", needs_approval=True)
def without_gift(item: str, count: int = 3) -> str:
    """Buy."""
    return f"bought {item} {count}"


@tool(name="buy", needs_approval=True)
def with_express(item: str, count: int = 3, gift: bool = False, express: bool = True, note: str | None = None) -> str:
    """Buy."""
    return f"bought {item} {count} {gift} {express} {note}"


@tool(name="buy", needs_approval=True)
def with_note(item: str, count: int = 3, gift: bool = False, note: str | None = None) -> str:
    """Buy."""
    return f"bought {item} {count} {gift} {note}"


@pytest.fixture
def send(hf: Holdfast) -> Send:
    model = Scripted([call("buy", item="x"), "Done."])

    def sending(*tools: Any) -> Any:
        return hf.agent("a", model=model, tools=tools, history=False).send(SESSION, "Buy.", key="k")

    return sending


def result(hf: Holdfast) -> Any:
    (found,) = [one for message in hf.session(SESSION).messages() for one in message.tool_results]
    return found.result


def approve(hf: Holdfast, reply: Any) -> Any:
    (question,) = reply.questions
    hf.answer(question.id, approve=True)
    return question


# a default that changes


def test_a_default_that_changes_after_the_yes_is_not_used(hf: Holdfast, send: Send) -> None:
    asked = approve(hf, send(buy))
    assert asked.reason == "buy(x, count=3, gift=false): may it run?"
    assert send(dearer).text == "Done."
    assert result(hf).endswith("bought x 3 False")
    assert "with the arguments that a person approved" in result(hf)
    assert "changed" not in result(hf)


def test_what_was_approved_is_journaled_with_the_call(hf: Holdfast) -> None:
    """Torn after the yes: what runs again is what was shown, and not what a still newer release uses."""
    hf.session(SESSION, tools=[buy])
    how: dict[str, Any] = {"key": "k", "needs_approval": ["buy"], "if_interrupted": "retry"}
    ask = take(hf, "Buy.", replies(asks(("buy", {"item": "x"}))), **how)
    hf.answer(ask.id, approve=True)
    hf.session(SESSION, tools=[dearer])
    leave_at(hf, "Buy.", holdfast.CallTool, replies(), **how)
    given: list[Any] = []

    def runs(step: holdfast.CallTool) -> object:
        given.append((step.args, step.attempt))
        return step.done("bought")

    assert take(hf, "Buy.", replies("Done."), runs, **how).text == "Done."
    ((args, attempt),) = given
    assert (args, attempt) == ({"item": "x", "count": 3, "gift": False}, 2)


def test_an_unchanged_tool_runs_with_what_the_model_wrote_and_no_note(hf: Holdfast, send: Send) -> None:
    approve(hf, send(buy))
    send(buy)
    assert result(hf) == "bought x 3 False"


def test_what_the_tool_takes_no_more_is_asked_again_with_what_it_uses_now(hf: Holdfast, send: Send) -> None:
    approve(hf, send(buy))
    again = approve(hf, send(without_gift))
    assert again.reason.startswith("It cannot run as it was approved: the arguments do not fit buy")
    assert again.reason.endswith("buy(x, count=3): may it run?")
    assert (again.arguments, again.call) == ({"item": "x", "count": 3}, None)
    assert send(without_gift).text == "Done."
    assert result(hf) == "bought x 3"


def test_a_new_default_that_nobody_was_shown_is_asked_about(hf: Holdfast, send: Send) -> None:
    approve(hf, send(buy))
    again = approve(hf, send(with_express))
    assert "the question did not show" in again.reason
    assert again.arguments["express"] is True
    send(with_express)
    assert result(hf) == "bought x 3 False True None"


def test_a_new_argument_that_stands_for_nothing_is_not_worth_a_question(hf: Holdfast, send: Send) -> None:
    approve(hf, send(buy))
    assert send(with_note).text == "Done."
    assert result(hf) == "bought x 3 False None"


def test_a_redacted_question_does_not_change_what_runs() -> None:
    @tool(needs_approval=True)
    def write(text: str, to: str = "secret place") -> str:
        """Write."""
        return "written" if to == "secret place" else f"written to {to[:3]}"

    with holdfast.open("memory:", redact=lambda text: text.replace("secret", "***")) as hf:
        agent: Any = hf.agent("a", model=Scripted([call("write", text="x"), "Done."]), tools=[write], history=False)
        assert approve(hf, agent.send(SESSION, "Write.", key="k")).arguments["to"] == "*** place"
        agent.send(SESSION, "Write.", key="k")
        assert result(hf) == "written"


@IN_MEMORY
def test_without_it_the_new_default_would_run(hf: Holdfast, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool_calls, "keep_shown_arguments", lambda *given: None)
    monkeypatch.setattr(tool_calls, "has_unseen_values", lambda *given: False)
    approve(hf, send(buy))
    send(dearer)
    assert result(hf) == "bought x 300 False"


# a tool that is not there


def test_an_approved_call_whose_tool_is_gone_is_asked_about_and_runs_once_it_is_back(hf: Holdfast, send: Send) -> None:
    approve(hf, send(buy))
    again = approve(hf, send())
    assert "there is no tool buy any more" in again.reason
    assert again.reason.endswith("may it run?")
    assert again.arguments == {"item": "x", "count": 3, "gift": False}, "what was approved is still what is asked about"
    assert send(dearer).text == "Done."
    assert result(hf).endswith("bought x 3 False")


# another agent


def left(hf: Holdfast) -> tuple[Any, Any, Counted]:
    """A turn of one agent that waits for a yes, and another agent without its tool."""
    one: Any = hf.agent("one", model=Scripted([call("buy", item="x"), "Done."]), tools=[buy], history=False)
    model = Counted(["Hi."])
    assert one.send(SESSION, "Buy.", key="k").status == "waiting"
    return one, hf.agent("two", model=model, history=False), model


@pytest.mark.parametrize("words", ["Hello", None])
@pytest.mark.parametrize("answered", [False, True])
def test_an_agent_does_not_take_up_the_turn_of_another(hf: Holdfast, words: str | None, answered: bool) -> None:
    one, two, model = left(hf)
    (question,) = hf.questions()
    if answered:
        hf.answer(question.id, approve=True)
    before = spoken(hf)
    with pytest.raises(ActorBusy, match=r"'one' has a turn .* Nothing was written: .* if_busy='interrupt'"):
        two.send(SESSION, words, **({} if words is None else {"key": "w"}))
    assert (spoken(hf), model.asked) == (before, 0)
    if not answered:
        hf.answer(question.id, approve=True)
    assert one.send(SESSION, "Buy.", key="k").text == "Done."
    assert result(hf) == "bought x 3 False"
    assert two.send(SESSION, "Hello", key="w").text == "Hi."


def test_an_agent_that_interrupts_stops_the_turn_of_another_and_begins_its_own(hf: Holdfast) -> None:
    one, two, _ = left(hf)
    assert two.send(SESSION, "Hello", if_busy="interrupt").text == "Hi."
    assert list(hf.questions()) == []
    assert one.send(SESSION, "Buy.", key="k").status == "stopped"


def test_a_key_of_another_agents_turn_is_no_way_into_it(hf: Holdfast) -> None:
    one, two, model = left(hf)
    with pytest.raises(ActorBusy, match="'one' has a turn"):
        two.send(SESSION, "Buy.", key="k")
    approve(hf, one.send(SESSION, "Buy.", key="k"))
    assert one.send(SESSION, "Buy.", key="k").text == two.send(SESSION, "Buy.", key="k").text == "Done."
    assert model.asked == 0


def test_a_loop_of_ones_own_takes_up_any_turn_and_an_agent_that_of_a_loop(hf: Holdfast) -> None:
    left(hf)
    (question,) = hf.questions()
    hf.answer(question.id, approve=True)
    assert take(hf, None, replies("Done."), lambda step: step.done(step.args["item"])).text == "Done."
    leave_at(hf, "Buy.", holdfast.CallModel, replies(), key="own")
    assert hf.agent("two", model=Scripted(["Hi."])).send(SESSION, "Buy.", key="own").text == "Hi."


@IN_MEMORY
def test_if_another_agent_takes_it_up_all_the_same_the_call_is_asked_about(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two, _ = left(hf)
    (question,) = hf.questions()
    hf.answer(question.id, approve=True)
    with monkeypatch.context() as patch:
        patch.setattr(TurnOpener, "_find_other_agent", lambda self, turn: None)
        again = approve(hf, two.send(SESSION, "Hello", key="w"))
    assert "there is no tool buy any more" in again.reason
    one.send(SESSION, "Buy.", key="k")
    assert result(hf) == "bought x 3 False", "neither lost nor told to the model as what cannot be done"

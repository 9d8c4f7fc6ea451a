"""Replies of a type: fitting ones are given as values, others are corrected, and what is never right stops the turn."""

from __future__ import annotations

import asyncio
import dataclasses
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

import holdfast
from holdfast.flow.turns.engine import CORRECTIONS
from holdfast.model.scripted import Scripted, call
from holdfast.runtime.tools.tool import tool
from tests.turns.agent_world import SESSION, Counted
from tests.turns.loops import spoken

Holdfast = holdfast.Holdfast


@dataclasses.dataclass
class Order:
    id: int
    items: list[str]
    note: str | None = None


class Invoice(msgspec.Struct):
    total: float
    order: Order


class Place(pydantic.BaseModel):
    city: str
    people: Annotated[int, pydantic.Field(ge=0)]


class Mood(Enum):
    GOOD = "good"
    BAD = "bad"


FITTING: list[tuple[Any, str, Any]] = [
    (Order, '{"id": 7, "items": ["a"]}', Order(7, ["a"])),
    (Order, '{"id": 7, "items": [], "note": null}', Order(7, [])),
    (Invoice, '{"total": 2.5, "order": {"id": 1, "items": []}}', Invoice(2.5, Order(1, []))),
    (Place, '{"city": "Lyon", "people": 3}', Place(city="Lyon", people=3)),
    (int, '{"value": 4}', 4),
    (list[int], '{"value": [1, 2]}', [1, 2]),
    (Literal["yes", "no"], '{"value": "no"}', "no"),
    (Mood, '{"value": "bad"}', Mood.BAD),
    (int | None, '{"value": null}', None),
    (dict[str, int], '{"a": 1}', {"a": 1}),
]


@pytest.mark.parametrize(("kind", "text", "value"), FITTING)
def test_a_reply_that_fits_is_given_as_a_value(kind: Any, text: str, value: Any) -> None:
    with holdfast.open("memory:") as hf:
        model = Counted([text])
        reply = hf.agent("a", model=model, output=kind).send(SESSION, "Go")
        assert (reply.status, reply.data, reply.text) == ("done", value, text)
        assert model.requests[0].output is not None
        assert model.requests[0].output["type"] == "object", "what every provider can be held to"


@pytest.mark.parametrize("around", ["```json\n{}\n```", "```\n{}\n```", "  {}\n", "```json{}```", "```JSON\n{}\n```"])
def test_a_fence_around_it_does_no_harm(hf: Holdfast, around: str) -> None:
    text = around.replace("{}", '{"id": 7, "items": ["`"]}')
    assert hf.agent("a", model=Scripted([text]), output=Order).send(SESSION, "Go").data == Order(7, ["`"])


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        (Order, "Here you are!"),
        (Order, '{"id": "seven", "items": []}'),
        (Order, '{"id": 7}'),
        (Order, '{"id": 7, "items": []'),
        (Order, "[]"),
        (Order, '{"id": 7, "items": []}, "value": 8'),
        (Place, '{"city": "Lyon", "people": -1}'),
        (int, "four"),
        (int, '{"value": 4.5}'),
        (int, '{"value": true}'),
        (list[int], '{"value": "12"}'),
        (Mood, '{"value": "so so"}'),
    ],
)
def test_one_that_does_not_fit_is_corrected(kind: Any, wrong: str) -> None:
    right = next(text for known, text, _ in FITTING if known == kind)
    with holdfast.open("memory:") as hf:
        model = Counted([wrong, right])
        reply = hf.agent("a", model=model, output=kind).send(SESSION, "Go", key="k")
        assert (reply.status, reply.text, model.asked) == ("done", right, 2)
        told = [one for one in hf.session(SESSION).messages() if one.synthetic]
        assert [one.role for one in told] == ["user"]
        assert "form" in told[0].text
        assert hf.agent("a", model=model, output=kind).send(SESSION, "Go", key="k") == reply
        assert model.asked == 2
        assert hf.journal.verify().findings == ()


def test_one_that_never_fits_stops_the_turn(hf: Holdfast) -> None:
    model = Counted(lambda pack: "Here you are!")
    agent = hf.agent("a", model=model, output=Order)
    reply = agent.send(SESSION, "Go", key="k")
    assert (reply.status, reply.text, reply.data) == ("stopped", "Here you are!", None)
    assert str(reply.reason).startswith("output:")
    assert reply.code == "output"
    assert model.asked == CORRECTIONS + 1
    assert agent.send(SESSION, "Go", key="k") == reply
    assert agent.send(SESSION, "Again").status == "stopped", "the next turn is counted on its own"
    assert model.asked == 2 * (CORRECTIONS + 1)


def test_corrections_are_counted_over_processes(hf: Holdfast) -> None:
    asked = []

    def away(pack: Any) -> Any:
        asked.append(1)
        return (
            "Nonsense." if len(asked) % 2 else holdfast.errors.ModelFailed("Away.", kind="unavailable", retryable=True)
        )

    agent, tries = hf.agent("a", model=Scripted(away), output=Order), 0
    while True:
        tries += 1
        try:
            reply = agent.send(SESSION, "Go", key="k")
            break
        except holdfast.errors.ModelFailed:
            agent = hf.agent("a", model=Scripted(away), output=Order)
    assert str(reply.reason).startswith("output:")
    assert (tries, len(asked)) == (CORRECTIONS + 1, 2 * CORRECTIONS + 1)


def test_a_planted_turn_without_the_bound_goes_on_to_its_last_loop(
    hf: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.flow.turns.turns.read_turn_messages", lambda *where: [])
    model = Counted(lambda pack: "Here you are!")
    hf.agent("a", model=model, output=Order, loops=9).send(SESSION, "Go")
    assert model.asked == 9


def test_what_is_said_with_a_tool_call_need_not_fit(hf: Holdfast) -> None:
    @tool
    def look() -> str:
        """Look."""
        return "7"

    model = Counted([["Let me look.", call("look")], '{"id": 7, "items": []}'])
    reply = hf.agent("a", model=model, output=Order, tools=[look]).send(SESSION, "Go")
    assert (reply.data, model.asked) == (Order(7, []), 2)


def test_words_that_come_before_a_correction_are_answered_as_well(hf: Holdfast) -> None:
    chat = []

    async def reply(pack: Any) -> Any:
        chat.append(1)
        if len(chat) == 1:
            await asyncio.to_thread(lambda: hf.session(SESSION).append("And quickly!"))
            return "Nonsense."
        return '{"id": 7, "items": []}'

    assert hf.agent("a", model=Scripted(reply), output=Order).send(SESSION, "Go").data == Order(7, [])
    assert spoken(hf)[1] == ("user", "And quickly!")
    assert len(chat) == 2, "what was said meanwhile is answered; nothing else is to be corrected"


def test_without_a_type_everything_fits(hf: Holdfast) -> None:
    model = Counted(["Here you are!"])
    assert hf.agent("a", model=model).send(SESSION, "Go").data is None
    assert model.requests[0].output is None


# replies that are read again


class Point(msgspec.Struct):
    """A place."""

    x: int


def test_a_stored_reply_that_does_not_fit_another_output_is_given_without_data() -> None:
    with holdfast.open("memory:") as hf:
        hf.agent("a", model=Scripted(["Hello."])).send("s", "Hi", key="k")
        reply = hf.agent("a", model=Scripted([]), output=Point).send("s", "Hi", key="k")
    assert (reply.status, reply.text, reply.data) == ("done", "Hello.", None)
    assert "does not fit" in str(reply.reason)

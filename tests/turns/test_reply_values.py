"""Replies of types that are no objects, wrapped or bare, and what a model is told about one that does not fit."""

from __future__ import annotations

import dataclasses
import datetime
import enum
from typing import Any, Literal

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as some

import holdfast
from holdfast.core.wire.calls import json_text
from holdfast.model.scripted import Scripted
from holdfast.records.messages import Message
from holdfast.runtime import reply as runtime_reply
from holdfast.runtime.reply import ReplyOutput
from tests.turns.agent_world import SESSION, Counted

Holdfast = holdfast.Holdfast


@dataclasses.dataclass
class Point:
    x: int


@dataclasses.dataclass
class Priced:
    value: int


class Mood(enum.Enum):
    GOOD = "good"


class Numbers(pydantic.RootModel[list[int]]):
    pass


def said(text: str) -> Message:
    return Message(role="assistant", content=text)


READ: list[tuple[Any, str, Any]] = [
    (int, "5", 5),
    (int, '"5"', 5),
    (list[int], "[1, 2]", [1, 2]),
    (str, "hello", "hello"),
    (str, '"hello"', "hello"),
    (str, '{"value": "hello"}', "hello"),
    (str, "2024", "2024"),
    (str, "true", "true"),
    (str, "```python\nx = 1\n```", "```python\nx = 1\n```"),
    (str, '"Yes," she said.', '"Yes," she said.'),
    (bool, "true", True),
    (bool, "True", True),
    (Point | None, "null", None),
    (Point | None, '{"value": null}', None),
    (Point | None, '{"x": 1}', Point(1)),
    (Point | None, '{"value": {"x": 1}}', Point(1)),
    (Priced | None, '{"value": 3}', Priced(3)),
    (Priced | None, '{"value": {"value": 3}}', Priced(3)),
    (dict[str, int] | None, '{"value": {"value": 3}}', {"value": 3}),
    (Literal["yes", "no"], "no", "no"),
    (Literal["yes", "no"], "```\nno\n```", "no"),
    (Mood, "good", Mood.GOOD),
    (Numbers, "[1, 2]", Numbers([1, 2])),
    (datetime.date, "2024-01-02", datetime.date(2024, 1, 2)),
    (int | str, "5", 5),
    (int, "9" * 30, int("9" * 30)),
    (Any, '{"a": 1}', {"a": 1}),
]


@pytest.mark.parametrize(("kind", "text", "value"), READ, ids=lambda one: str(one)[:40])
def test_the_value_alone_is_read_like_the_object_around_it(kind: Any, text: str, value: Any) -> None:
    asked = ReplyOutput(kind)
    assert asked.find_problem(said(text)) is None
    assert asked.parse(said(text)) == value
    assert asked.schema is not None
    assert list(asked.schema["properties"]) == ["value"], "providers want an object"


UNFIT: list[tuple[Any, str, str]] = [
    (int, "five", "The reply is not JSON"),
    (int, "4.5", "value: expected a whole number, got a number, in 4.5"),
    (int, "true", "value: expected a whole number, got true or false"),
    (int, '{"answer": 5}', "It must be {value: integer}"),
    (int, '{"value": 5, "why": "so"}', "It must be {value: integer}"),
    (int, '1, "value": 2', "The reply is not JSON"),
    (list[int], "[1,", "The reply is not JSON"),
    (str, '{"value": "hel', "The reply is not JSON"),
    (str, "null", "value: expected text, got null"),
    (str, '{"a": 1}', "expected text, got an object"),
    (str | Point, '{"x": 1', "The reply is not JSON"),
    (Mood, "bad", "The reply is not JSON"),
    (Point | None, '{"x": "a"}', "x: expected a whole number, got text"),
    (Point, '{"x": 1}, "value": {"x": 2}', "The reply is not JSON"),
    (Point, '{"x": 1, "y": 2}', "'y' is not known"),
    (Point, "[]", "expected an object, got a list"),
]


@pytest.mark.parametrize(("kind", "text", "words"), UNFIT, ids=lambda one: str(one)[:40])
def test_what_does_not_fit_is_told_in_words_about_the_reply(kind: Any, text: str, words: str) -> None:
    told = ReplyOutput(kind).find_problem(said(text))
    assert told is not None
    assert told.startswith("This reply does not have the form that was asked for. The reply ")
    assert words in told
    assert "arguments" not in told
    assert told.endswith(" Reply again, with fitting JSON alone.")


@given(some.recursive(some.none() | some.booleans() | some.integers() | some.text(), some.lists, max_leaves=5))
def test_any_value_that_is_no_object_is_the_same_wrapped_and_bare(value: Any) -> None:
    asked = ReplyOutput(Any)
    assert asked.parse(said(json_text(value))) == asked.parse(said(json_text({"value": value}))) == value


@given(some.text())
def test_any_text_is_read_or_complained_about(text: str) -> None:
    for kind in (int, str, Point, Point | None, bool, list[str]):
        asked = ReplyOutput(kind)
        assert asked.find_problem(said(text)) is not None or isinstance(asked.parse(said(text)), object)


FENCED = ["```true```", "```json true```", "```\ntrue\n```", "```json\ntrue\n```", "```JSON\r\ntrue```", "``` true ```"]


@pytest.mark.parametrize("text", FENCED)
def test_a_fence_hides_nothing(hf: Holdfast, text: str) -> None:
    assert hf.agent("a", model=Scripted([text]), output=bool).send(SESSION, "Go").data is True


def test_a_planted_fence_that_takes_letters_for_a_language_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime_reply, "_strip_fence", lambda text: text.strip("`").lstrip("aeflnrstu").strip())
    assert ReplyOutput(bool).find_problem(said("```true```")) is not None


def test_a_bare_value_ends_the_turn(hf: Holdfast) -> None:
    model = Counted(["5"])
    agent = hf.agent("a", model=model, output=int)
    reply = agent.send(SESSION, "How many?", key="k")
    assert (reply.status, reply.data, reply.text, model.asked) == ("done", 5, "5", 1)
    assert agent.send(SESSION, "How many?", key="k") == reply

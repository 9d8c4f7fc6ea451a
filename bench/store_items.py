"""What is kept and asked for when stores are compared: the same items, questions and vectors for everybody.

Standard library only: the peers' process reads this file as well. Vectors are made once and handed on in a file.
"""

from __future__ import annotations

import random
from array import array
from functools import cache
from pathlib import Path
from typing import Any

from bench.session_texts import BAG, SYLLABLE

DIMENSIONS = 256
PAGE = 100
"""Items of one group, which are listed together."""
TOPICS = 997
QUESTIONS = 60
LIMIT = 10
"""Results of a search: what LangGraph gives unless it is told otherwise."""
_WORDS = 20
_ASKED = 4


@cache
def text(number: int) -> str:
    """A sentence or two, as memories are, with a name of its own."""
    chance = random.Random(number)
    words = chance.choices(BAG, k=_WORDS)
    words[int(chance.random() * _WORDS)] = name(number)
    return " ".join(words) + "."


def name(number: int) -> str:
    """Whom an item is about."""
    return "".join(random.Random(-1 - number).choices(SYLLABLE, k=3)).capitalize()


def value(number: int) -> dict[str, Any]:
    """What is kept: a text, and a field that can be filtered by."""
    return {"text": text(number), "topic": topic(number), "number": number}


def topic(number: int) -> str:
    """A field that about ten of ten thousand items share."""
    return f"topic-{number % TOPICS}"


def group(number: int, items: int) -> str:
    """Where an item belongs; every group has a page of them."""
    return f"group-{number % max(1, items // PAGE):03d}"


def key(number: int) -> str:
    """The name of an item."""
    return f"item-{number:07d}"


def asked_for(question: int, items: int) -> int:
    """The item that a question is about."""
    return question * 7_919 % items


@cache
def question(number: int, items: int) -> str:
    """Some words of an item and its name, put as a question."""
    about = asked_for(number, items)
    words = [word for word in text(about).rstrip(".").split() if len(word) > 3 and word != name(about)]
    return f"What about {' '.join(words[:_ASKED])} and {name(about)}?"


class Vectors:
    """Vectors of items, and behind them those of the questions, as they lie in a file of floats."""

    def __init__(self, path: Path, items: int) -> None:
        self._numbers = array("f")
        self._numbers.frombytes(path.read_bytes())
        self._items = items
        self._questions = {question(number, items): items + number for number in range(QUESTIONS)}

    def of_item(self, number: int) -> array[float]:
        """The vector of an item; of items that come later, one of those."""
        return self._row(number % self._items)

    def of_question(self, asked: str) -> array[float]:
        """The vector of a question."""
        return self._row(self._questions[asked])

    def _row(self, at: int) -> array[float]:
        return self._numbers[at * DIMENSIONS : (at + 1) * DIMENSIONS]

"""Whether a search finds what was said: questions about earlier conversations, each with the message that answers it.

The data are BFCL's memory conversations, if they lie beside this repository: five people, each with several
sessions of user messages, and questions with a quotation of their source. A source is the one message that contains
every piece of its quotation, where pieces are what stands between dots of omission, ends of sentences and
labels (`Monday: ...`), compared by letters and digits. Quotations that were reworded have no source and are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

import holdfast
from bench.report import Line, at_least

TITLE = "Finding what was said"
DATA = Path(os.environ.get("HOLDFAST_SHARED", Path(__file__).parents[2] / "shared")) / "data" / "bfcl-memory"
FIRST = (1, 3, 5, 10)
BAR_AT = 5
TEXT_BAR, VECTOR_BAR = 0.94, 0.95
_WORD = re.compile(r"[^\W_]+")
_PIECES = re.compile(r"\.\.\.|…|(?<=[.!?:])\s")

Finder = Callable[[str, int], list[int]]
"""The numbers of the messages that are found for a question, best first, at most so many."""


class Question(msgspec.Struct, frozen=True):
    """What is asked of one person's conversations, and the number of the message that answers it."""

    person: str
    text: str
    source: int


class Said(msgspec.Struct, frozen=True):
    """A message of one person: which session it is of, where it stands in it, what it says."""

    session: int
    position: int
    text: str


def conversations(folder: Path = DATA) -> dict[str, list[Said]]:
    """Every user message, by person, in order."""
    found: dict[str, list[Said]] = {}
    for path in sorted((folder / "conversations").glob("*.json")):
        for number, session in enumerate(_lines(path)):
            texts = [message["content"] for turn in session["question"] for message in turn]
            mine = found.setdefault(session["scenario"], [])
            mine.extend(Said(number, position, text) for position, text in enumerate(texts))
    return found


def questions(people: dict[str, list[Said]], folder: Path = DATA) -> tuple[list[Question], int]:
    """Questions whose source was found, and how many there are in all."""
    quoted = {answer["id"]: answer["source"] for answer in _lines(folder / "answers.json")}
    asked = _lines(folder / "questions.json")
    found = []
    for one in asked:
        sources = located(quoted[one["id"]], people[one["scenario"]])
        if len(sources) == 1:
            found.append(Question(one["scenario"], one["question"][0][0]["content"], sources[0]))
    return found, len(asked)


def located(quotation: str, messages: list[Said]) -> list[int]:
    """The messages that contain every piece of a quotation."""
    pieces = [piece for part in _PIECES.split(quotation) if (piece := _plain(part)).strip()]
    return [number for number, said in enumerate(messages) if all(piece in _plain(said.text) for piece in pieces)]


def finder(messages: list[Said], model: str | None) -> Finder:
    """A search over one person's messages, said one after the other in one session."""
    hf = holdfast.open("memory:", embedder=model)
    session = hf.session("everything")
    numbers = {message.id: number for number, message in enumerate(session.append([said.text for said in messages]))}
    return lambda question, limit: [numbers[found.key] for found in session.search(question, limit=limit)]


def shares(people: dict[str, list[Said]], asked: list[Question], model: str | None) -> dict[int, float]:
    """In how many of the questions the source is among the first 1, 3, 5 and 10."""
    finders = {person: finder(messages, model) for person, messages in people.items()}
    answers = [(one.source, finders[one.person](one.text, max(FIRST))) for one in asked]
    return {first: sum(source in found[:first] for source, found in answers) / len(asked) for first in FIRST}


def run(quick: bool) -> list[Line]:
    """By words, and by words and vectors. It is the same at every volume: it takes a second."""
    if not DATA.exists():
        return [Line(what="questions", value=0, note="data/bfcl-memory is not beside this repository")]
    people = conversations()
    asked, total = questions(people)
    lines = [Line(what="questions", value=len(asked), note=f"of {total}; the others quote no message word by word")]
    for name, model, bar in (("words", None, TEXT_BAR), ("words and vectors", "wordllama", VECTOR_BAR)):
        for first, share in shares(people, asked, model).items():
            wanted = at_least(bar) if first == BAR_AT else None
            lines.append(Line(what=f"source in the first {first}, by {name}", value=share, bar=wanted))
    return lines


def _lines(path: Path) -> list[dict[str, Any]]:
    return [msgspec.json.decode(line) for line in path.read_bytes().splitlines() if line.strip()]


def _plain(text: str) -> str:
    return f" {' '.join(_WORD.findall(text.lower()))} "

"""What is said in the turns that are measured, and the two tools: the same for everybody.

Standard library only: the peers' process and that of the model read this file as well.
"""

from __future__ import annotations

from typing import Any

from bench.session_texts import POOL, text

ASKED = "Which seats are left on the night train to Hamburg on Friday?"
FOUND = "Timetable of the night train"
"""What begins a question and what begins a result, so that a model tells which of them was said last."""
REPLY = f"Twelve seats are left on the night train to Hamburg on Friday. {text(POOL)}"
ARGUMENTS = {"train": "NJ 490", "day": "friday"}
MODEL = "gpt-5-mini"
SYSTEM = "You are a careful travel agent. Answer in a few sentences and ask when something is unclear."
PLAIN, TOOLS = "without tools", "two tools"
SHAPES = (PLAIN, TOOLS)
TURN_BY_TURN = "two rounds of one tool"
"""The same two tools, but the second is asked for when the first has answered."""
CALLS = {PLAIN: 1, TOOLS: 2}
"""How often the model is called in a turn."""


def asked(number: int) -> str:
    """What a user asks: about 1 KB, as everything that is said, so that a conversation stays what it is."""
    return f"{ASKED} {text(POOL + 1 + number)}"


def seats_left(train: str, day: str) -> str:
    """Seats that nobody has booked yet.

    Args:
        train: Number of the train.
        day: Day of the week.
    """
    return f"{FOUND} {train}, {day}: 12 seats left. {text(POOL - 1)}"


def fare(train: str, day: str) -> str:
    """What one seat costs.

    Args:
        train: Number of the train.
        day: Day of the week.
    """
    return f"{FOUND} {train}, {day}: 84 euro. {text(POOL - 2)}"


FUNCTIONS = {"seats_left": seats_left, "fare": fare}


def definitions() -> list[dict[str, Any]]:
    """The two tools as a request defines them."""
    texts = {"type": "string"}
    schema = {
        "type": "object",
        "properties": {"train": texts, "day": texts},
        "required": ["train", "day"],
        "additionalProperties": False,
    }
    return [
        {"type": "function", "function": {"name": name, "description": str(one.__doc__), "parameters": schema}}
        for name, one in FUNCTIONS.items()
    ]

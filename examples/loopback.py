"""The examples that use a provider's SDK, without a key: a model on this machine speaks the provider's format.

    python examples/loopback.py own_loop_openai.py
    python examples/loopback.py own_loop_anthropic.py "Book a table for four, for Carol."

It needs the checkout, as the model is the one of the tests. What it says follows from what it is shown, so a program
that is killed and started again hears the same.
"""

from __future__ import annotations

import os
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
if str(HERE.parent) not in sys.path:
    sys.path.insert(0, str(HERE.parent))

from tests.model_server import ModelServer, Reply, model_server  # noqa: E402  # The checkout must be found first.

SCRIPTS: dict[str, list[Any]] = {
    "refund": [
        ("find_order", {"order": "{number}"}),
        ("refund", {"order": "{number}", "amount": 240}),
        "Done: {last}.",
    ],
    "book": [("find_table", {"seats": 2}), ("book_table", {"table": 4, "name": "{name}"}), "Done: {last}."],
    "weather": [("weather", {"city": "{name}"}), "It is {last}."],
}


def reply_to(request: dict[str, Any]) -> Reply:
    """What the model says to a request: the next line of the script for the user's newest words."""
    user, said, last = _read(request["messages"])
    script = next((lines for word, lines in SCRIPTS.items() if word in user.lower()), ["You said: {user}"])
    line = script[min(said, len(script) - 1)]
    number = re.search(r"\d+", user)
    known = {
        "number": int(number[0]) if number else 0,
        "name": (re.findall(r"\b[A-Z]\w+", user[1:]) or ["somebody"])[-1],
        "last": last,
        "user": user,
    }
    if isinstance(line, str):
        return line.format(**known)
    name, arguments = line
    given = {key: known[value[1:-1]] if isinstance(value, str) else value for key, value in arguments.items()}
    return [{"name": name, "arguments": given}]


def _read(messages: list[dict[str, Any]]) -> tuple[str, int, str]:
    """The user's newest words, how often the assistant spoke since, and what the newest tool gave."""
    user, said, last = "", 0, ""
    for message in messages:
        blocks = message["content"] if isinstance(message.get("content"), list) else [message]
        results = [block for block in blocks if block.get("type") == "tool_result" or block.get("role") == "tool"]
        if message["role"] == "assistant":
            said += 1
        elif results:
            last = _words(results[-1]["content"])
        elif message["role"] == "user":
            user, said = _words(message["content"]), 0
    return user, said, last


def _words(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


@contextmanager
def scripted_server() -> Iterator[ModelServer]:
    """The model, for as long as the block lasts."""
    with model_server() as model:
        model._next_reply = lambda request, fault: reply_to(request)  # type: ignore[method-assign]
        yield model


def main() -> None:
    """Run an example where its SDK finds this model by its own environment variables."""
    example, *arguments = sys.argv[1:] or ["own_loop_openai.py"]
    with scripted_server() as model:
        os.environ |= {
            "OPENAI_BASE_URL": model.url,
            "ANTHROPIC_BASE_URL": model.url.removesuffix("/v1"),
            "OPENAI_API_KEY": "none",
            "ANTHROPIC_API_KEY": "none",
        }
        sys.argv = [example, *arguments]
        runpy.run_path(str(HERE / Path(example).name), run_name="__main__")


if __name__ == "__main__":
    main()

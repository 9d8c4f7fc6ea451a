"""A loop of your own with Anthropic's SDK, streaming, that can be killed anywhere and started again.

    ANTHROPIC_API_KEY=… python examples/own_loop_anthropic.py
    python examples/loopback.py own_loop_anthropic.py       without a key

`step.stream` gives the words as they come and journals the whole reply at the end of the stream. If the process dies in
the middle, the same call is made again with the same pack; if somebody stops the turn, what was shown is kept.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import anthropic

import holdfast
from holdfast import Ask, CallModel, CallTool, Done, Holdfast, ToolDef

MODEL = "claude-opus-4-8"
TOOLS = [
    ToolDef(
        name="find_table",
        description="Whether there is a free table.",
        parameters={"type": "object", "properties": {"seats": {"type": "integer"}}, "required": ["seats"]},
    ),
    ToolDef(
        name="book_table",
        description="Book a table. It cannot be undone.",
        parameters={
            "type": "object",
            "properties": {"table": {"type": "integer"}, "name": {"type": "string"}},
            "required": ["table", "name"],
        },
    ),
]


class Restaurant:
    """Your systems. What is done here stays done, whatever becomes of this process."""

    def __init__(self) -> None:
        self.booked: list[tuple[int, str]] = []

    def find_table(self, seats: int) -> dict[str, int]:
        """Only reads: it may run again."""
        return {"table": 4, "seats": seats}

    def book_table(self, table: int, name: str) -> str:
        """Books: it must not run twice."""
        self.booked.append((table, name))
        return f"table {table} is booked for {name}"


def work(
    hf: Holdfast, client: anthropic.Anthropic, place: Restaurant, text: str, key: str, say: Callable[[str], None]
) -> str | None:
    """Answer one request, and say it word by word. None: it waits for a person; call it again after the answer."""
    tools: dict[str, Callable[..., object]] = {"find_table": place.find_table, "book_table": place.book_table}
    chat = hf.session("bob", system="You take bookings. Be brief.", model=MODEL, tools=TOOLS)
    with chat.turn(text, key=key, if_interrupted={"find_table": "retry"}) as turn:
        for step in turn:
            match step:
                case CallModel():
                    sent = step.pack.to_anthropic()
                    with client.messages.create(model=step.model, max_tokens=1024, stream=True, **sent) as events:
                        for words in step.stream(events):
                            say(words)
                case CallTool() if step.name not in tools:
                    step.fail(f"There is no tool {step.name}. The tools are {', '.join(tools)}.")
                case CallTool():
                    try:
                        result = tools[step.name](**step.args)
                    except Exception as error:  # The model is told, and goes on.
                        step.fail(error)
                    else:
                        step.done(result)
                case Ask():
                    return None
                case Done():
                    return step.text
    return None


def main() -> None:
    """One request. Its key is the same whenever it is sent again; another request has another one."""
    text, key = " ".join(sys.argv[1:]) or "Book a table for two, for Bob.", os.environ.get("KEY", "req-9")
    place = Restaurant()
    with holdfast.open("agent.db") as hf, anthropic.Anthropic() as client:
        while work(hf, client, place, text, key, lambda words: print(words, end="", flush=True)) is None:
            for question in hf.questions():
                yes = input(f"\n{question.reason} [y/N] ").strip().lower() in ("y", "yes")
                hf.answer(question.id, approve=yes, by="terminal")
        print()


if __name__ == "__main__":
    main()

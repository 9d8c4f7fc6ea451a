"""From a list of messages to turns: the loop that many agents begin with, and the same one that survives.

    OPENAI_API_KEY=… python examples/from_message_list.py
    python examples/loopback.py from_message_list.py        without a key

`before` is the old loop: its list grows until the window is full, and a crash leaves it torn. `after` takes such a list
in once, repaired where it is broken, and goes on in turns. If both must work side by side for a while, see
`holdfast.DualWrite`.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import openai

import holdfast
from holdfast import Ask, CallModel, CallTool, Done, Holdfast

MODEL = "gpt-5-mini"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a city.",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
Weather = Callable[[str], str]


def weather(city: str) -> str:
    """Only reads: it may run again."""
    return f"sunny in {city}"


def before(client: openai.OpenAI, messages: list[Any], text: str, ask: Weather = weather) -> str:
    """The old loop. Whoever kills it in the middle leaves a call without a result, which providers refuse."""
    messages.append({"role": "user", "content": text})
    while True:
        answer = client.chat.completions.create(model=MODEL, messages=messages, tools=TOOLS).choices[0].message
        messages.append(answer.model_dump(exclude_none=True))
        if not answer.tool_calls:
            return answer.content or ""
        for one in answer.tool_calls:
            city = json.loads(one.function.arguments)["city"]  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": one.id, "content": ask(city)})


def after(
    hf: Holdfast, client: openai.OpenAI, messages: list[Any], text: str, key: str, ask: Weather = weather
) -> str | None:
    """The new loop. The list comes in with the first turn, once, however often this runs. None: a person is asked."""
    chat = hf.session("alice", model=MODEL, tools=TOOLS)
    chat.import_messages(messages, key="the-old-list")
    with chat.turn(text, key=key, if_interrupted="retry") as turn:
        for step in turn:
            match step:
                case CallModel():
                    step.done(client.chat.completions.create(model=step.model, **step.pack.to_openai()))
                case CallTool(name="weather"):
                    try:
                        result = ask(step.args["city"])
                    except Exception as error:  # The model is told, and goes on.
                        step.fail(error)
                    else:
                        step.done(result)
                case CallTool():
                    step.fail(f"There is no tool {step.name}.")
                case Ask():
                    return None
                case Done():
                    return step.text
    return None


work = after


def main() -> None:
    """A list as an old process left it, then a turn on top of it."""
    kept = Path("messages.json")
    text, key = " ".join(sys.argv[1:]) or "And the weather in Oslo?", os.environ.get("KEY", "req-2")
    with openai.OpenAI() as client, holdfast.open("agent.db") as hf:
        if not kept.exists():
            messages: list[Any] = [{"role": "system", "content": "Be brief."}]
            print(before(client, messages, "How is the weather in Rome?"))
            kept.write_text(json.dumps(messages))
        print(after(hf, client, json.loads(kept.read_text()), text, key))
        print(f"{len(hf.session('alice'))} messages")


if __name__ == "__main__":
    main()

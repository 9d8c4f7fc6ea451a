"""A loop of your own with OpenAI's SDK that can be killed anywhere and started again.

    OPENAI_API_KEY=… python examples/own_loop_openai.py
    python examples/loopback.py own_loop_openai.py          without a key

Each step is in the journal before the loop gets it, and its outcome right after. So there is no code for resuming: the
same request with the same key goes on where the last process stopped, and answers at once if it had ended.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import openai

import holdfast
from holdfast import Ask, CallModel, CallTool, Done, Holdfast

MODEL = "gpt-5-mini"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "find_order",
            "description": "What is known about an order.",
            "parameters": {"type": "object", "properties": {"order": {"type": "integer"}}, "required": ["order"]},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "refund",
            "description": "Pay money back to the customer of an order.",
            "parameters": {
                "type": "object",
                "properties": {"order": {"type": "integer"}, "amount": {"type": "number"}},
                "required": ["order", "amount"],
            },
        },
    },
]


class Shop:
    """Your systems. What is done here stays done, whatever becomes of this process."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, float]] = []

    def find_order(self, order: int) -> dict[str, object]:
        """Only reads: it may run again."""
        return {"order": order, "total": 240, "paid": True}

    def refund(self, order: int, amount: float) -> str:
        """Pays: it must not run twice."""
        self.paid.append((order, amount))
        return f"{amount} paid back for order {order}"


def work(hf: Holdfast, client: openai.OpenAI, shop: Shop, text: str, key: str) -> str | None:
    """Answer one request. None: it waits for a person; call it again after the answer."""
    tools: dict[str, Callable[..., object]] = {"find_order": shop.find_order, "refund": shop.refund}
    chat = hf.session("alice", system="You help the customers of a shop. Be brief.", model=MODEL, tools=TOOLS)
    with chat.turn(
        text,
        key=key,
        if_interrupted={"find_order": "retry"},  # Of all others a person is asked: "… may have run. Run again?"
        needs_approval=lambda name, args: name == "refund" and args["amount"] > 100,
    ) as turn:
        for step in turn:
            match step:
                case CallModel():
                    step.done(client.chat.completions.create(model=step.model, **step.pack.to_openai()))
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


def ask_here(hf: Holdfast) -> None:
    """Answer what is open at this terminal. `holdfast answer agent.db` does the same from anywhere else."""
    for question in hf.questions():
        if not question.answered:
            yes = input(f"{question.reason} [y/N] ").strip().lower() in ("y", "yes")
            hf.answer(question.id, approve=yes, by="terminal")


def main() -> None:
    """One request. Its key is the same whenever it is sent again; another request has another one."""
    text, key = " ".join(sys.argv[1:]) or "Please refund order 17.", os.environ.get("KEY", "req-81")
    shop = Shop()
    with holdfast.open("agent.db") as hf, openai.OpenAI() as client:
        while (reply := work(hf, client, shop, text, key)) is None:
            ask_here(hf)
        print(reply)


if __name__ == "__main__":
    main()

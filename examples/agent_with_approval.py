"""An agent with tools, one of which needs a person's yes. The person may change what it does.

    MODEL=openai:gpt-5-mini OPENAI_API_KEY=… python examples/agent_with_approval.py
    python examples/agent_with_approval.py                  without a key: a script plays the model

Kill it at any time, also in the middle of `refund`, and start it again: it goes on, and asks before it pays again.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import holdfast
from holdfast import Agent, Holdfast, Reply, Scripted, ToolCall, tool
from holdfast.errors import KeyReused
from holdfast.testing import call


class Shop:
    """Your systems. What is done here stays done, whatever becomes of this process."""

    def __init__(self) -> None:
        self.paid: list[tuple[int, float]] = []

    def pay_back(self, order: int, amount: float) -> None:
        """Pays: it must not run twice."""
        self.paid.append((order, amount))


def tools_of(shop: Shop) -> list[Any]:
    """What the model may do. Its schema comes from the hints and the docstring."""

    @tool(if_interrupted="retry")
    def find_order(order: int) -> dict[str, object]:
        """What is known about an order."""
        return {"order": order, "total": 240, "paid": True}

    @tool(if_interrupted="retry")
    def find_policy() -> str:
        """The rules for refunds."""
        return "Half of the price after two weeks."

    @tool(needs_approval=lambda amount: amount > 100)
    def refund(order: int, amount: float, call: ToolCall) -> str:
        """Pay money back.

        Args:
            order: The number of the order.
            amount: How much, in dollars.
        """
        call.progress(f"paying {amount:g}")  # A bank that takes idempotency keys would get call.key.
        shop.pay_back(order, amount)
        return f"{amount:g} paid back for order {order}"

    return [find_order, find_policy, refund]


SCRIPT = Scripted(
    [
        [call("find_order", order=17), call("find_policy")],  # both at the same time
        call("refund", order=17, amount=240),
        "I have asked for your refund, and it is done.",
    ]
)


def support(hf: Holdfast, shop: Shop) -> Agent[Any]:
    """The agent. It holds no messages, so any process can make it."""
    model = os.environ.get("MODEL") or SCRIPT
    return hf.agent("support", model=model, system="You help the customers of a shop.", tools=tools_of(shop))


def work(hf: Holdfast, shop: Shop, text: str, key: str) -> Reply[Any]:
    """Answer one request. With status waiting there are questions; call it again after the answers."""
    return support(hf, shop).send("alice", text, key=key)


def main() -> None:
    """One request, and a person at the terminal: y, n, or an amount that is paid instead."""
    text, key = " ".join(sys.argv[1:]) or "Please refund order 17.", os.environ.get("KEY", "req-81")
    shop = Shop()
    with holdfast.open("agent.db") as hf:
        try:
            reply = work(hf, shop, text, key)
        except KeyReused:
            sys.exit(
                f"{key} stands for another request. Give this one a key of its own: KEY=req-82 python {sys.argv[0]} …"
            )
        while reply.status == "waiting":
            for question in reply.questions:
                said = input(f"{question.reason} [y/N/amount] ").strip().lower()
                if said.replace(".", "", 1).isdigit():
                    # What the model had asked for stays in the journal, beside what the person made of it.
                    hf.answer(question.id, approve=True, args={**question.arguments, "amount": float(said)}, by="me")
                else:
                    hf.answer(question.id, approve=said in ("y", "yes"), by="me")
            reply = work(hf, shop, text, key)
        print(reply.text, f"({reply.status}; paid: {shop.paid})")


if __name__ == "__main__":
    main()

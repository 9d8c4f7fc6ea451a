"""A model and two tools to try a chat with, for who has no key. Nothing leaves the machine, and no money is moved."""

from __future__ import annotations

import re
import time
from typing import Any

from holdfast.client.holdfast import Holdfast
from holdfast.model.scripted import Scripted, call, echo, look
from holdfast.records.calling import Shown
from holdfast.runtime.tools.call import ToolCall
from holdfast.runtime.tools.tool import AnyTool, tool

NO_KEY = "A scripted model answers. It needs no key and knows two things: "
TRY = 'try "refund order 17, 240" (then kill this terminal and start again) or "remember that I like tea".'
PAUSE = 0.02
SECONDS = 10
_REFUND = re.compile(r"\brefund\b\D*([0-9]{1,9})\D+([0-9]{1,9})", re.IGNORECASE)
_REMEMBER = re.compile(r"\s*remember(?:\s+that)?\s+(.+)", re.IGNORECASE | re.DOTALL)


def practice_model(*, slow: bool) -> Scripted:
    """Answers by a few rules; what it says follows from what it is shown."""
    return Scripted(_answered, pause=PAUSE if slow else 0.0)


def _answered(pack: Shown) -> Any:
    seen = look(pack)
    refund, remember = _REFUND.search(seen.user), _REMEMBER.fullmatch(seen.user)
    if seen.messages[-1].tool_results or seen.user.lower().startswith("call "):
        return echo(pack)
    if refund is not None:
        return call("refund", order=int(refund[1]), amount=int(refund[2]))
    if remember is not None:
        return call("remember", text=remember[1])
    return f"You said: {seen.user}\n(Shown to this script: messages {len(seen.messages)}, tokens {seen.tokens}.)"


def practice_tools(hf: Holdfast, session: str, *, slow: bool) -> list[AnyTool]:
    """One that takes a while and must not run twice by accident, and one that wants a yes."""

    @tool
    def refund(order: int, amount: int, call: ToolCall) -> str:
        """Pretend to pay an order back. No money is moved."""
        for second in range(SECONDS if slow else 0):
            call.progress(f"waiting for the bank, {SECONDS - second} s to go")
            time.sleep(1)
        return f"{amount} were paid back for order {order}. (Only pretended.)"

    @tool(needs_approval=True, if_interrupted="retry")
    def remember(text: str, call: ToolCall) -> str:
        """Keep a note in the state of this conversation."""
        hf.state(session).write(f"note/{call.key}", text, key=call.key)
        return f"Kept: {text}"

    return [refund, remember]

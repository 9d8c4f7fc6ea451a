"""Random conversations as they really come: parallel calls, ids used again, notes in between, and everything torn.

Each call carries a number in its arguments and each real result repeats it, so a test knows what belongs
together without asking the code under test. Where ids are used again nothing is late or doubled, because
then nobody could say which is which.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import Any

from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult

_SOME = "the flight to Seattle leaves at nine and costs 312 dollars; ünïcode 日本 🙂 is fine too"
WORDS = _SOME.split()
CUT_AWAY = -1
TOOLS = ("find", "book", "pay")
INVENTED = ("functions.find", "a.b/c", "has space", "🙂", "日本.調べる", "<|call|>", "find\n", "x" * 200, "a" * 65)
"""What models call tools that there are not. No provider takes these names back."""


def text(rng: random.Random, most: int = 30) -> str:
    """Some words; at least one."""
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def tool_name(rng: random.Random) -> str:
    """A tool's name as a model writes it: nearly always one that there is."""
    return rng.choice(INVENTED if rng.random() < 0.08 else TOOLS)


class Talk:
    """One conversation while it is made."""

    def __init__(self, rng: random.Random, *, broken: bool, own_ids: bool, huge: bool, pinned: bool) -> None:
        self.rng, self.broken, self.own_ids, self.huge, self.pinned = rng, broken, own_ids, huge, pinned
        self.messages: list[Message] = []
        self.late: list[ToolCallResult] = []
        self.number = 0

    def odd(self, share: float) -> bool:
        """Whether something goes wrong here."""
        return self.broken and self.rng.random() < share

    def say(self, role: str, **fields: Any) -> None:
        pinned = self.pinned and self.rng.random() < 0.1
        self.messages.append(Message(role=role, pinned=pinned, **fields))

    def note(self) -> None:
        self.say(self.rng.choice(["user", "system", "developer"]), content=f"note: {text(self.rng, 5)}")

    def content(self) -> Any:
        said = text(self.rng)
        if self.rng.random() < 0.2:
            return [{"type": "text", "text": said}, {"type": "text", "text": text(self.rng, 5)}]
        return said

    def call(self, provider_id: str) -> ToolCallRequest:
        self.number += 1
        return ToolCallRequest(
            name=tool_name(self.rng),
            arguments=f'{{"n": {self.number}}}',
            id=f"own-{self.number}" if self.own_ids else "",
            provider_id=provider_id,
        )

    def result(self, call: ToolCallRequest) -> ToolCallResult:
        size = self.rng.choice([3_000, 20_000]) if self.huge and self.rng.random() < 0.15 else 20
        body: Any = f"result {call.args['n']}: {text(self.rng, size)}"
        if self.rng.random() < 0.1:
            body = [{"type": "text", "text": body}]
        elif self.rng.random() < 0.1:
            body = {"n": f"result {call.args['n']}: ", "rows": [text(self.rng, 5), 3, None]}
        own = call.id if self.own_ids and self.rng.random() < 0.5 else ""
        return ToolCallResult(
            tool_call_id=own, provider_id=call.provider_id, result=body, is_error=self.rng.random() < 0.1
        )

    def ask(self) -> None:
        """An assistant message with calls, and what comes of them."""
        rng = self.rng
        ids = [rng.choice(["call_0", "call_1", "call_2"]) for _ in range(rng.choice([1, 1, 2, 3, 5]))]
        torn = {nth for nth in range(len(ids)) if self.odd(0.25)}
        calls = [self.call(f"once_{self.number}" if nth in torn else name) for nth, name in enumerate(ids)]
        said = self.content() if rng.random() < 0.4 else None
        self.say("assistant", content=said, tool_calls=tuple(calls), partial=self.odd(0.1))
        # Of two calls with one id the first is answered first; else there would be no telling.
        order = sorted(range(len(calls)), key=lambda nth: rng.random())
        same = {name: iter(sorted(nth for nth in order if ids[nth] == name)) for name in ids}
        self.answer([calls[next(same[ids[nth]])] for nth in order], {calls[nth].arguments for nth in torn})

    def answer(self, calls: list[ToolCallRequest], torn: set[str]) -> None:
        rng = self.rng
        ready: list[ToolCallResult] = []
        for call in calls:
            fate = rng.choice(["missing", "late", "twice", "ready"]) if call.arguments in torn else "ready"
            if fate == "late":
                self.late.append(self.result(call))
            elif fate != "missing":
                ready += [self.result(call) for _ in range(2 if fate == "twice" else 1)]
        together = rng.random() < 0.4
        if together and ready:
            self.say("tool", tool_results=tuple(ready))
            return
        for result in ready:
            if self.odd(0.15):
                self.note()
            self.say("tool", tool_results=(result,))

    def turn(self) -> None:
        rng = self.rng
        self.say("user", content="" if self.odd(0.05) else self.content())
        for _ in range(rng.choice([0, 1, 1, 2, 4])):
            self.ask()
            if self.late and rng.random() < 0.4:
                self.say("tool", tool_results=tuple(self.late))
                self.late = []
        if self.odd(0.1):
            orphan = ToolCallResult(provider_id="nobody", result="result 0: orphan")
            self.say("tool", tool_results=(orphan,))
        if rng.random() < 0.8:
            self.say("assistant", content=self.content(), partial=self.odd(0.2))


def conversation(
    rng: random.Random,
    *,
    turns: int | None = None,
    broken: bool = True,
    own_ids: bool = False,
    huge: bool = False,
    pinned: bool = False,
    system: bool | None = None,
) -> list[Message]:
    """A conversation of some turns; valid in the eyes of every provider unless `broken`."""
    talk = Talk(rng, broken=broken, own_ids=own_ids, huge=huge, pinned=pinned)
    if rng.random() < 0.8 if system is None else system:
        talk.say("system", content=text(rng, 12))
        if rng.random() < 0.3:
            talk.say("developer", content=text(rng, 5))
    for _ in range(rng.randint(0, 8) if turns is None else turns):
        talk.turn()
    if rng.random() < 0.5:
        talk.say("user", content=talk.content())
    return talk.messages


def as_dicts(messages: list[Message]) -> list[dict[str, Any]]:
    """The same as an OpenAI client would hold it, with everything that is wrong still in it."""
    return [each for message in messages for each in _dicts(message)]


def _dicts(message: Message) -> Iterator[dict[str, Any]]:
    if message.role == "tool":
        for result in message.tool_results:
            body = result.result if isinstance(result.result, str | list) else str(result.result)
            yield {"role": "tool", "tool_call_id": result.provider_id, "content": body}
        return
    shown: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        shown["tool_calls"] = [
            {"id": call.provider_id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    yield shown


def number_of(result: ToolCallResult) -> int | None:
    """The number of the call that a result was made for; None for a stand-in, CUT_AWAY if it is no longer said."""
    if result.interrupted:
        return None
    named = re.search(r"result (\d+):", str(result.result))
    return int(named[1]) if named else CUT_AWAY


def airline(rng: random.Random, *, turns: int) -> list[dict[str, Any]]:
    """A conversation of the shape of the airline data: a long policy, one call at a time, ids used again."""
    policy = " ".join(text(rng, 30) for _ in range(60))
    shown: list[dict[str, Any]] = [{"role": "system", "content": policy}]
    for _ in range(turns):
        shown.append({"role": "user", "content": text(rng)})
        for _ in range(rng.choice([0, 0, 1, 2, 3])):
            name = rng.choice(["get_user_details", "search_direct_flight", "book_reservation"])
            call_id = f"call_{rng.randint(0, 9)}"
            function = {"name": name, "arguments": f'{{"user_id": "{rng.choice(WORDS)}"}}'}
            call = {"id": call_id, "type": "function", "function": function}
            shown.append({"role": "assistant", "content": None, "tool_calls": [call]})
            found = text(rng, rng.choice([10, 300]))
            shown.append({"role": "tool", "tool_call_id": call_id, "name": name, "content": found})
        shown.append({"role": "assistant", "content": text(rng)})
    return shown


def torn(messages: list[Message]) -> list[str]:
    """What is not as it must be: each call answered once, by its own result, directly behind its message."""
    wrong: list[str] = []
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if message.role == "tool":
            wrong.append(f"{at - 1}: results behind nothing that called")
            continue
        results: list[ToolCallResult] = []
        while message.tool_calls and at < len(messages) and messages[at].role == "tool":
            results += messages[at].tool_results
            at += 1
        wrong += [f"{at}: {each}" for each in _unanswered(list(message.tool_calls), results)]
        if not (message.tool_calls or message.text.strip()):
            wrong.append(f"{at}: says nothing")
    return wrong


def _unanswered(calls: list[ToolCallRequest], results: list[ToolCallResult]) -> list[str]:
    wrong = [f"{len(calls)} calls, {len(results)} results"] if len(calls) != len(results) else []
    open_ = {call.args["n"]: call for call in calls}
    for result in results:
        number = number_of(result)
        if number not in (None, CUT_AWAY) and open_.pop(number, None) is None:
            wrong.append(f"result {number} is not of these calls")
    left = sorted(call.provider_id or "" for call in open_.values())
    stand_ins = sorted(result.provider_id or "" for result in results if number_of(result) in (None, CUT_AWAY))
    return wrong if left == stand_ins else [*wrong, f"open {left}, stand-ins {stand_ins}"]


def calls(*cities: str) -> dict[str, Any]:
    made = [
        {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": f'{{"city": "{city}"}}'}}
        for city in cities
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}

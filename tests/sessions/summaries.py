"""Conversations to summarise with what must be kept of them, and summaries without judgement to compare with."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from holdfast.core.compaction.sentences import split_sentences
from holdfast.model.summarizers import ExtractiveSummarizer, estimate_tokens
from holdfast.records.messages import Message, ToolCallRequest, ToolCallResult
from tests.scale import seeded, volume

SHARED = Path(os.environ.get("HOLDFAST_SHARED", Path(__file__).parents[3] / "shared"))
REAL = SHARED / "data" / "tau-bench" / "airline-even-tasks.json"
LIMIT = 300

FILLER = (
    "That sounds good to me so far",
    "The weather has been pleasant around here lately",
    "We talked about the usual things over lunch",
    "It would be nice to have a little more time for this",
    "People seem quite happy with how the work is going",
    "There is a lot of interesting material to look through",
    "Some parts of it are easier than others",
    "The general idea seems clear enough at this point",
    "Everybody has a slightly different view of the matter",
    "A short walk helps to think about such questions",
)
ENDINGS = (
    "as far as I can tell",
    "at least for the moment",
    "in a manner of speaking",
    "when you look at it calmly",
    "and that is fine",
    "if you see what I mean",
)


def user(text: str) -> Message:
    return Message(role="user", content=text)


def assistant(text: str) -> Message:
    return Message(role="assistant", content=text)


def called(name: str, arguments: str, result: Any, *, failed: bool = False) -> list[Message]:
    return [
        Message(role="assistant", tool_calls=(ToolCallRequest(name=name, arguments=arguments, provider_id="call_1"),)),
        Message(role="tool", tool_results=(ToolCallResult(result=result, is_error=failed, provider_id="call_1"),)),
    ]


def summary(messages: Sequence[Message], max_tokens: int = LIMIT) -> str:
    return ExtractiveSummarizer().summarise(messages, max_tokens=max_tokens)


def filler(random: Random) -> str:
    return f"{random.choice(FILLER)}, {random.choice(ENDINGS)}."


def facts(random: Random) -> list[tuple[str, str, str]]:
    """Who says it, what is said, and what of it must be found again."""
    number = random.randrange(10_000, 99_999)
    amount = f"${random.randrange(1, 9)},{random.randrange(100, 999)}.50"
    name = random.choice(["Renata Okafor", "Piotr Zielinski", "Amaia Etxeberria", "Tomas Lindqvist"])
    date = f"2026-0{random.randrange(1, 9)}-1{random.randrange(9)}"
    found = [
        ("user", f"The order is ORD-{number}.", f"ORD-{number}"),
        ("assistant", f"The total comes to {amount} with shipping.", amount),
        ("user", f"My contact there is {name}.", name),
        ("assistant", f"The delivery is set for {date}.", date),
        ("user", "By the way, my daughter is allergic to peanuts.", "allergic to peanuts"),
        ("user", "We decided to go with the blue variant.", "blue variant"),
        ("assistant", "I have cancelled the second subscription.", "cancelled the second subscription"),
        ("user", "Never call before nine in the morning.", "Never call before nine"),
        (
            "user",
            f"Look into src/billing/invoice_{number % 100}.py for the cause.",
            f"src/billing/invoice_{number % 100}.py",
        ),
    ]
    random.shuffle(found)
    return found


def conversation(random: Random) -> tuple[list[Message], list[str]]:
    """Facts, one here and there, in much talk about nothing, with calls in between; and what must be kept of it."""
    messages: list[Message] = []
    needles: list[str] = []
    for role, text, needle in facts(random):
        for _ in range(random.randrange(1, 4)):
            messages.append(user(" ".join(filler(random) for _ in range(random.randrange(1, 4)))))
            messages.append(assistant(" ".join(filler(random) for _ in range(random.randrange(1, 4)))))
        around = [filler(random) for _ in range(random.randrange(3))]
        around.insert(random.randrange(len(around) + 1), text)
        messages.append(Message(role=role, content=" ".join(around)))
        needles.append(needle)
    refund, ticket = random.randrange(10**6, 10**7), random.randrange(10**6, 10**7)
    tools = [
        called("get_weather", '{"city": "here"}', "mild"),
        called("issue_refund", f'{{"amount": {refund}}}', f'{{"status": "done", "reference": "RF-{ticket}"}}'),
        called("send_letter", '{"to": "the office"}', "Error: no stamps left", failed=True),
    ]
    for exchange in tools:
        at = random.randrange(len(messages) + 1)
        at = at if at == len(messages) or messages[at].role != "tool" else at + 1
        messages[at:at] = exchange
    return messages, [*needles, f"RF-{ticket}", str(refund), "no stamps left"]


def real_conversations() -> Iterator[tuple[list[Message], list[str]]]:
    """Recorded conversations, if this machine has some, with the identifiers and amounts that people mention."""
    recorded = msgspec.json.decode(REAL.read_bytes())
    for entry in recorded[:: volume(4, 1)]:
        messages = []
        for raw in entry["traj"][1:]:
            calls = tuple(
                ToolCallRequest(
                    name=call["function"]["name"], arguments=call["function"]["arguments"], provider_id=call["id"]
                )
                for call in raw.get("tool_calls") or ()
            )
            if raw["role"] == "tool":
                result = ToolCallResult(result=raw["content"], provider_id=raw["tool_call_id"])
                messages.append(Message(role="tool", name=raw.get("name"), tool_results=(result,)))
            else:
                messages.append(Message(role=raw["role"], content=raw.get("content"), tool_calls=calls))
        said = " ".join(message.text for message in messages)
        done = " ".join(
            call.arguments for each in messages for call in each.tool_calls if not call.name.startswith(("get", "sea"))
        )
        ids = r"\b(?=[A-Z]*\d)(?=\d*[A-Z])[A-Z0-9]{6}\b|\b[a-z]+_[a-z]+_\d{4}\b|\bHAT\d{3}\b"
        yield messages, sorted({*re.findall(ids, said), *re.findall(r"\$\d[\d,]*\d", said), *re.findall(ids, done)})


def plain_lines(messages: Sequence[Message]) -> list[str]:
    """Everything that was said and done, a sentence a line: what a summary without judgement chooses from."""
    lines: list[str] = []
    for message in messages:
        lines += split_sentences(message.text)
        lines += [f"{call.name}({call.arguments})" for call in message.tool_calls]
        lines += [line for result in message.tool_results for line in split_sentences(str(result.result))]
    return lines


def filled(lines: Sequence[str]) -> str:
    text = ""
    for line in lines:
        if estimate_tokens(f"{text}\n{line}") <= LIMIT:
            text = f"{text}\n{line}"
    return text


def first_lines(messages: Sequence[Message]) -> str:
    return filled(plain_lines(messages))


def random_lines(messages: Sequence[Message]) -> str:
    lines = plain_lines(messages)
    Random(len(lines)).shuffle(lines)
    return filled(lines)


def kept(conversations: Sequence[tuple[list[Message], list[str]]], summarise: Callable[[list[Message]], str]) -> float:
    """The share of what must be kept that is in the summaries."""
    found = total = 0
    for messages, needles in conversations:
        text = summarise(messages)
        assert estimate_tokens(text) <= LIMIT
        found += sum(needle in text for needle in needles)
        total += len(needles)
    return found / total


def generated(name: str, many: int) -> list[tuple[list[Message], list[str]]]:
    random = seeded(name)
    return [conversation(random) for _ in range(many)]

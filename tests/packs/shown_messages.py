"""Messages as a pack shows them, and requests taken apart into what a provider's cache compares."""

from __future__ import annotations

import json
import random
from typing import Any

from holdfast.core.packs.fences import evidence_label, fence_text
from holdfast.core.sessions.rounds import repair_messages
from holdfast.core.wire import anthropic
from holdfast.records.messages import Message, ToolDef
from tests.sessions.generated import conversation, text
from tests.sessions.wire_forms import anthropic_form

TOOLS = (ToolDef(name="find"), ToolDef(name="book", description="Books a seat."))
UNMARKED = ("thinking", "redacted_thinking")
MARK = {"cache_control": {"type": "ephemeral"}}
HOUR = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
NOTHING_SAID = "[Nothing was said.]"


def said(role: str, text: str) -> Message:
    return Message(role=role, content=text)


def fenced_message(rng: random.Random, label: str) -> Message:
    """What others wrote, as data in the user's role."""
    return Message(role="user", content=fence_text(label, text(rng), f"{rng.randrange(16**8):08x}"), synthetic=True)


def talked(rng: random.Random) -> list[Message]:
    """A conversation that was made valid, with everything that a provider's messages may hold."""
    if rng.random() < 0.4:
        return repair_messages(anthropic.read_messages(anthropic_form(rng)).messages).messages
    return repair_messages(conversation(rng, own_ids=rng.random() < 0.7)).messages


def packed(rng: random.Random) -> list[Message]:
    """Fenced blocks first, then a conversation with notes of the system's in it, evidence before the newest round."""
    said = talked(rng)
    for at in sorted(boundaries(said), reverse=True):
        if rng.random() < 0.1:
            said.insert(at, Message(role=rng.choice(["system", "developer"]), content=text(rng, 6)))
    first = [fenced_message(rng, "Summary of previous context:") for _ in range(rng.randint(0, 3))]
    newest = max((at for at in boundaries(said) if at < len(said)), default=0)
    evidence = [fenced_message(rng, evidence_label("h1", "document", "tool")) for _ in range(rng.randint(0, 2))]
    return [*first, *said[:newest], *evidence, *said[newest:]]


def boundaries(messages: list[Message]) -> list[int]:
    """Where a list may be cut without tearing a call from its results."""
    return [at for at in range(len(messages) + 1) if at == len(messages) or messages[at].role != "tool"]


def flat(request: Any) -> tuple[list[str], list[int]]:
    """A request to Anthropic piece by piece without its marks, and where those are.

    Tools come before the system prompt, as Anthropic reads them. A text is the same as a list of one block of it.
    """
    system = request.get("system") or []
    pieces: list[tuple[str, dict[str, Any]]] = [("tool", tool) for tool in request.get("tools", [])]
    pieces += [("system", block) for block in ([textual(system)] if isinstance(system, str) else system)]
    for at, message in enumerate(request["messages"]):
        content = message["content"]
        blocks = [textual(content)] if isinstance(content, str) else content
        pieces += [(f"{at} {message['role']}", block) for block in blocks]
    marks = [at for at, (_, block) in enumerate(pieces) if "cache_control" in block]
    return [json.dumps([where, unmarked(block)], sort_keys=True) for where, block in pieces], marks


def textual(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def unmarked(value: Any) -> Any:
    """Data without marks, all the way down."""
    if isinstance(value, dict):
        return {key: unmarked(inner) for key, inner in value.items() if key != "cache_control"}
    return [unmarked(inner) for inner in value] if isinstance(value, list) else value


def may_be_marked(piece: str) -> bool:
    """Whether a piece may carry a mark."""
    return json.loads(piece)[1].get("type") not in UNMARKED

"""Packs over real conversations: for every request and share valid, within the budget, well filled, and warm.

Reads conversations of an airline's agent from beside the project where they are, and makes some of the same shape
where they are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from random import Random
from statistics import mean
from typing import Any, NamedTuple

import pytest

import holdfast
from holdfast import ContextPack, Session
from holdfast.core.wire import openai_chat
from tests.scale import volume
from tests.sessions.generated import airline
from tests.sessions.provider_rules import anthropic_problems, openai_problems
from tests.sessions.test_windows_on_data import DATA, conversations
from tests.tokens.oracle import oracle

MODEL = "gpt-4o"
SHARES = (600, 1_000, 2_000, 4_000)
MEASURED = 2_000
LEAST_DENSE, LEAST_STICKY, LEAST_KEPT = 0.93, 0.65, 0.70


class Request(NamedTuple):
    """One pack: its share, its fill if the history exceeds the share, and how much of the last one it begins with."""

    share: int
    fill: float | None
    kept: float | None


@cache
def tokens_of(text: str) -> int:
    """Counted by somebody else's tokenizer."""
    return len(oracle("o200k_base").encode_ordinary(text))


def independent(request: dict[str, Any]) -> int:
    """Tokens of a rendered request by the published rule: three for each message, its fields, three for the reply."""
    total = 3 + sum(tokens_of(json.dumps(tool)) for tool in request.get("tools", ()))
    for message in request["messages"]:
        total += 3 + tokens_of(message["role"])
        content = message.get("content") or ""
        total += tokens_of(content if isinstance(content, str) else "".join(part.get("text", "") for part in content))
        for call in message.get("tool_calls", ()):
            total += 3 + tokens_of(call["function"]["name"]) + tokens_of(call["function"]["arguments"])
    return total


def brief_tokens(session: Session) -> int:
    """What a pack of nothing but the brief takes."""
    taken = session.pack().token_summary.breakdown
    return taken.brief + taken.overhead


def prefix_kept(old: list[tuple[str, int]], new: list[tuple[str, int]]) -> float | None:
    """The share of the conversation of the last call that this one begins with, in tokens."""
    total = sum(tokens for _, tokens in old)
    same = 0
    for (one, tokens), (other, _) in zip(old, new, strict=False):
        if one != other:
            break
        same += tokens
    return same / total if total else None


def shown(pack: ContextPack) -> list[tuple[str, int]]:
    """The conversation of a pack, message by message as it is sent, with what each takes."""
    said = pack.conversation.messages
    return [(json.dumps(openai_chat.render_request([message])["messages"]), message.tokens or 0) for message in said]


@cache
def talks() -> list[list[dict[str, Any]]]:
    """Real ones where they are, else such as they are, of which some pass every share."""
    rng = Random(7)
    return conversations() if DATA.exists() else [airline(rng, turns=rng.randint(4, 40)) for _ in range(100)]


def packs(share: int, stickiness: float | None, every: int, *, journaled: bool = True) -> Iterator[Request]:
    """Every request of every conversation, packed as an agent at work would pack it."""
    more = {} if stickiness is None else {"stickiness": stickiness}
    for number, messages in enumerate(talks()[::every]):
        with holdfast.open("memory:") as hf:
            session = hf.session(f"c{number}", system=messages[0]["content"], model=MODEL)
            budget = brief_tokens(session) + share
            before: list[tuple[str, int]] = []
            history = 0
            for message in messages[1:]:
                if message["role"] == "assistant":
                    pack = session.pack(budget, **more)
                    check(pack, budget)
                    now = shown(pack)
                    used = pack.token_summary.used - (budget - share)
                    fill = used / share if history > share else None
                    kept = prefix_kept(before, now) if history > share else None
                    yield Request(share, fill, kept)
                    if journaled:
                        session.packs.begin_model_call(pack)
                    before = now
                history += session.append(openai_chat.read_messages([message]).messages[0]).tokens or 0
            assert history == sum(one.tokens or 0 for one in session.messages())


def check(pack: ContextPack, budget: int) -> None:
    """Within its budget by any count, and valid for both providers."""
    assert pack.tokens <= budget
    request = pack.to_openai()
    assert independent(dict(request)) <= budget
    assert openai_problems(dict(request)["messages"]) == []
    assert anthropic_problems(dict(pack.to_anthropic())) == []


def figures(found: list[Request]) -> tuple[float, float]:
    fills = [one.fill for one in found if one.fill is not None]
    kept = [one.kept for one in found if one.kept is not None]
    return mean(fills), mean(kept)


@pytest.mark.parametrize("share", SHARES)
def test_packs_of_real_conversations_are_valid_within_budget_well_filled_and_warm(share: int) -> None:
    every = volume(4 if share == MEASURED else 20, 1)
    dense = figures(list(packs(share, 0.0, every)))
    sticky = figures(list(packs(share, None, every)))
    grid = figures(list(packs(share, None, every, journaled=False)))
    print(f"share {share}: dense fill {dense[0]:.3f} kept {dense[1]:.3f}; sticky {sticky[0]:.3f} {sticky[1]:.3f}; ")
    print(f"  grid, nothing journaled {grid[0]:.3f} {grid[1]:.3f}; data {'real' if DATA.exists() else 'generated'}")
    if share == MEASURED:
        assert dense[0] >= LEAST_DENSE
        assert sticky[0] >= LEAST_STICKY
        assert sticky[1] >= LEAST_KEPT

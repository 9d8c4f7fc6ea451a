"""Windows over real conversations: for every request and every limit valid, within the limit, and well filled.

Reads conversations of an airline's agent from beside the project where they are, and makes some of the
same shape where they are not.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.sessions import rounds as conversation_module
from holdfast.core.sessions.rounds import ConversationRounds, repair_messages
from holdfast.core.sessions.tokens import OPENAI, message_tokens
from holdfast.core.wire import openai_chat
from holdfast.errors import BudgetTooSmall
from holdfast.model.tokenizers import resolve_tokenizer
from holdfast.records.messages import Message
from holdfast.windows import slide_window as sliding_dicts
from tests.scale import volume
from tests.sessions.generated import airline
from tests.sessions.provider_rules import openai_problems
from tests.sessions.window_kit import summarise_window
from tests.sessions.window_rules import refused, slide_window

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "tau-bench" / "airline-even-tasks.json"
COUNT_LIMITS = range(3, 21)
TOKEN_LIMITS = (300, 500, 800, 1_200, 2_000, 3_000, 5_000, 8_000)
LEAST_SHARE = 0.96


@cache
def conversations() -> list[list[dict[str, Any]]]:
    """The conversations as dicts, real ones if there are any here."""
    if DATA.exists():
        return [each["traj"] for each in json.loads(DATA.read_text(encoding="utf-8"))]
    rng = random.Random(7)
    return [airline(rng, turns=rng.randint(2, 14)) for _ in range(100)]


@cache
def read() -> list[list[Message]]:
    """The same as messages; nothing in them needs repair."""
    found = [openai_chat.read_messages(each) for each in conversations()]
    assert all(not reading.repairs and not repair_messages(reading.messages).repairs for reading in found)
    return [reading.messages for reading in found]


def requests(every: int) -> Iterator[list[Message]]:
    """What stood before each reply of an assistant, the system prompt first: what a window was needed of."""
    nth = 0
    for messages in read():
        for at, message in enumerate(messages):
            if message.role == "assistant":
                nth += 1
                if nth % every == 0:
                    yield messages[:at]


_counted: dict[int, int] = {}


def count(message: Message) -> int:
    """Tokens as OpenAI's models count them; messages of the data are counted once."""
    if id(message) not in _counted:
        tokens = message_tokens(message, resolve_tokenizer().count, OPENAI)
        if message not in _kept():
            return tokens
        _counted[id(message)] = tokens
    return _counted[id(message)]


class _Identities:
    """Which messages are of the data, and stay, so that their identity is theirs."""

    def __init__(self) -> None:
        self.ids = {id(message) for messages in read() for message in messages}

    def __contains__(self, message: Message) -> bool:
        return id(message) in self.ids


@cache
def _kept() -> _Identities:
    return _Identities()


def suffixes(messages: list[Message]) -> set[int]:
    """The lengths that windows of whole rounds can have."""
    return {len(messages) - at for at, message in enumerate(messages) if message.role != "tool"}


def measure(every: int) -> None:
    """Windows of every length in messages; says what they come to, and fails where one is wrong."""
    shares: list[float] = []
    exact: list[float] = []
    invalid = over = made = 0
    for messages in requests(every):
        for given, head in ((messages[1:], 0), (messages, 1)):
            for limit in COUNT_LIMITS:
                shown = slide_window(given, max_messages=limit).messages
                made += 1
                invalid += bool(refused(shown))
                over += len(shown) > limit
                assert shown[:head] == messages[:head]
                assert shown[head:] == given[len(given) - len(shown) + head :]
                if len(given) >= limit:
                    shares.append(len(shown) / limit)
                    exact += [len(shown) / limit] if limit - head in suffixes(given[head:]) else []
    share = sum(shares) / len(shares)
    print(f"{made} windows by messages: {invalid} invalid, {over} over, share {share:.4f} of {len(shares)} limits")
    print(f"where whole rounds make up exactly the limit: {sum(exact) / len(exact):.4f} of {len(exact)}")
    assert (invalid, over) == (0, 0)
    assert share >= LEAST_SHARE
    assert min(exact) == 1


def test_every_window_by_messages_is_valid_within_its_limit_and_well_filled() -> None:
    measure(volume(20, 1))


def test_every_window_by_tokens_is_valid_and_within_its_limit() -> None:
    invalid = over = made = refusals = shortened = 0
    filled: list[float] = []
    for messages in requests(volume(20, 1)):
        prompt = count(messages[0])
        for given, limits in (
            (messages[1:], TOKEN_LIMITS),
            (messages, [limit for limit in TOKEN_LIMITS if limit > prompt + 200]),
        ):
            whole = sum(map(count, given))
            for limit in limits:
                try:
                    window = slide_window(given, max_tokens=limit, count=count)
                except BudgetTooSmall:
                    refusals += 1
                    continue
                tokens = sum(map(count, window.messages))
                made += 1
                invalid += bool(refused(window.messages))
                over += tokens > limit or tokens != window.tokens
                shortened += bool(window.shortened)
                filled += [tokens / limit] if whole > limit else []
    print(f"{made} windows by tokens: {invalid} invalid, {over} over, {refusals} limits too small")
    print(f"{shortened} with the newest round shortened; fill {sum(filled) / len(filled):.3f} where not all fits")
    assert (invalid, over, refusals) == (0, 0, 0)
    assert filled


def test_every_summarised_window_is_valid_and_within_its_limit() -> None:
    invalid = over = made = 0
    for messages in requests(volume(40, 4)):
        for limits in ({"max_messages": 8}, {"max_messages": 20}, {"max_tokens": 2_500}, {"max_tokens": 4_000}):
            window = summarise_window(messages, summarize=lambda _: "They spoke about a flight.", count=count, **limits)
            made += bool(window.summarised)
            invalid += bool(refused(window.messages)) or window.messages[0] is not messages[0]
            over += len(window.messages) > limits.get("max_messages", 1 << 60)
            over += (window.tokens or 0) > limits.get("max_tokens", 1 << 60)
    print(f"{made} summaries: {invalid} invalid, {over} over")
    assert (invalid, over) == (0, 0)
    assert made


def test_windows_over_the_dicts_themselves_hold_the_very_same_dicts() -> None:
    for history in conversations()[:: volume(10, 1)]:
        places = {id(message): at for at, message in enumerate(history)}
        for limit in (3, 8, 20):
            window = sliding_dicts(history, max_messages=limit)
            at = [places[id(message)] for message in window]
            assert at == [0, *range(len(history) - len(window) + 1, len(history))]
            # Their ids come again in later messages, which this provider takes.
            assert [each for each in openai_problems(window) if "comes twice" not in each] == []


def _by_messages(patch: pytest.MonkeyPatch) -> None:
    made = ConversationRounds.__init__

    def torn_apart(self: ConversationRounds, messages: Any, limits: Any, *rest: Any) -> None:
        made(self, messages, limits, *rest)
        self._starts = [*range(len(self.first), len(self.messages) + 1)]
        self.rounds = len(self._starts) - 1

    patch.setattr(ConversationRounds, "__init__", torn_apart)


def _never_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversation_module, "fits", lambda size, room: size[0] < room[0])


def _too_full(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(conversation_module, "fits", lambda size, room: size[0] <= room[0] + 1)


@pytest.mark.parametrize("plant", [_by_messages, _never_full, _too_full])
def test_a_planted_bug_would_be_noticed_here(monkeypatch: pytest.MonkeyPatch, plant: Any) -> None:
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        measure(40)

"""Windows over a list of messages that the caller keeps: pass the list in, get back the messages that fit.

    client.chat.completions.create(model=model, messages=holdfast.slide_window(history, max_tokens=8_000, model=model))

The list holds messages of OpenAI's chat completions as dicts or a provider's objects, or holdfast's own
`Message`. The result is a list of the same kind, with the very same objects wherever nothing had to be
changed; its `window` lists what was left out, shortened or repaired. Nothing is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.connect import make_summarizer
from holdfast.core.compaction.summary import insert_summary, plan_summary
from holdfast.core.sessions.rounds import ConversationRounds, WindowBounds, check_bounds
from holdfast.core.sessions.tokens import OPENAI, Framing, framing_of, message_tokens, request_tokens
from holdfast.core.sessions.windows import Window, fit_window
from holdfast.core.wire import openai_chat
from holdfast.core.wire.plain_data import ReadNotes
from holdfast.core.wire.tools import is_tool_name, read_tool_defs
from holdfast.errors import InvalidValue, SummaryFailed
from holdfast.model.registry import model_info
from holdfast.model.tokenizers import FunctionTokenizer
from holdfast.model.tokenizers import resolve_tokenizer as tokenizer_of
from holdfast.ports import Tokenizer
from holdfast.records.messages import Message

T = TypeVar("T")
TokenizerChoice = str | Tokenizer | Callable[[str], int]

SUMMARY_TOKENS = 1_000
"""The longest summary in tokens, unless a limit in tokens is lower."""


class WindowedMessages(list[T], Generic[T]):
    """The messages that fit, as a list to pass on; `window` describes what was left out or changed."""

    def __init__(self, messages: Sequence[T], window: Window) -> None:
        super().__init__(messages)
        self.window = window


def slide_window(
    messages: Sequence[T],
    *,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    model: str | None = None,
    tokenizer: TokenizerChoice | None = None,
) -> WindowedMessages[T]:
    """Return the first instructions and the newest whole rounds that fit.

    Tokens are counted for `model`, or by `tokenizer`; without either, as OpenAI's newest models do.
    If not even the newest round fits after shortening, raise BudgetTooSmall.
    """
    given = _MessageList(messages)
    limits, _ = _make_limits(max_messages, max_tokens, model, tokenizer)
    return given.convert_window(fit_window(ConversationRounds(given.messages, limits)))


def summarise_window(
    messages: Sequence[T],
    *,
    summarize: object = None,
    keep: int = 4,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    model: str | None = None,
    tokenizer: TokenizerChoice | None = None,
) -> WindowedMessages[T]:
    """Return all messages if they fit; else the newest `keep` rounds, or fewer, behind a summary of the rest.

    `summarize` is a function from messages to text, a model, its name, or a summarizer; without it the built-in one is
    used. If it fails or returns nothing, the window slides instead and its `failure` says why.
    """
    given = _MessageList(messages)
    limits, count = _make_limits(max_messages, max_tokens, model, tokenizer)
    checked = make_summarizer(summarize, count, None if model is None else model_info(model).input_budget)
    plan = plan_summary(ConversationRounds(given.messages, limits), keep)
    if isinstance(plan, Window):
        return given.convert_window(plan)
    try:
        text = checked.summarise(plan.covered, max_tokens=max(1, min(plan.room, SUMMARY_TOKENS)))
    except SummaryFailed as error:
        return given.convert_window(fit_window(plan.talk, str(error)))
    return given.convert_window(insert_summary(plan, text))


def count_tokens(
    messages: Sequence[Any],
    *,
    model: str | None = None,
    tokenizer: TokenizerChoice | None = None,
    system: str | None = None,
    tools: Sequence[Any] = (),
) -> int:
    """Return the tokens of a request with these messages, for example before adding another message."""
    count, framing = _select_counter(model, tokenizer)
    return request_tokens(_MessageList(messages).messages, count, framing, system=system, tools=read_tool_defs(tools))


class _MessageList(Generic[T]):
    """The caller's messages as `Message` records, with a map back to the caller's own objects."""

    __slots__ = ("_own", "_repairs", "_sources", "_where", "messages")

    def __init__(self, items: Sequence[T]) -> None:
        if isinstance(items, str | bytes | Mapping) or not isinstance(items, Sequence):
            raise InvalidValue(f"Messages come as a list, not as a {type(items).__name__}.")
        self.messages: list[Message] = []
        self._where: list[int] = []
        self._sources: dict[int, T] = {}
        self._own = all(isinstance(item, Message) for item in items)
        notes = ReadNotes()
        for index, item in enumerate(items):
            notes.index = index
            message = item if isinstance(item, Message) else openai_chat.read_message(item, notes)
            if message is None:
                continue
            self.messages.append(message)
            self._where.append(index)
            if not notes.repairs or notes.repairs[-1].index != index:
                # An item that was repaired on reading is not returned in its original form.
                self._sources[id(message)] = item
        self._repairs = notes.repairs

    def convert_window(self, window: Window) -> WindowedMessages[T]:
        """Return the window in the caller's own kind of message, with repairs indexed by the caller's list."""
        moved = [msgspec.structs.replace(repair, index=self._where[repair.index]) for repair in window.repairs]
        repairs = sorted([*self._repairs, *moved], key=attrgetter("index"))
        window = msgspec.structs.replace(window, repairs=tuple(repairs))
        back: list[Any] = []
        for part in _split_rounds(window.messages):
            back += part if self._own else self._render_round(part)
        return WindowedMessages(back, window)

    def _render_round(self, part: list[Message]) -> list[Any]:
        ids = [call.provider_id for call in part[0].tool_calls]
        named = [call.name for call in part[0].tool_calls]
        named += [message.name for message in part if message.role == "tool" and message.name]
        if None in ids or len({*ids}) < len(ids) or not all(map(is_tool_name, named)):
            # A call id is missing or repeated, or a name is refused: the round is only valid with new ids and names.
            return openai_chat.render_request(part)["messages"]
        back: list[Any] = []
        for message in part:
            source = self._sources.get(id(message))
            own = [message]
            back += openai_chat.render_request(own, ids="provider")["messages"] if source is None else [source]
        return back


def _split_rounds(messages: list[Message]) -> list[list[Message]]:
    parts: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and parts:
            parts[-1].append(message)
        else:
            parts.append([message])
    return parts


def _make_limits(
    max_messages: int | None, max_tokens: int | None, model: str | None, tokenizer: TokenizerChoice | None
) -> tuple[WindowBounds, Callable[[str], int] | None]:
    """Return the limits and the token counter; nothing is loaded if only messages are limited."""
    if max_tokens is None:
        return check_bounds(max_messages, None), None
    count, framing = _select_counter(model, tokenizer)
    limits = check_bounds(
        max_messages, max_tokens, lambda message: message_tokens(message, count, framing), reserve=framing.reply
    )
    return limits, count


def _select_counter(model: str | None, tokenizer: TokenizerChoice | None) -> tuple[Callable[[str], int], Framing]:
    """Return the counter for a model's texts, and the framing tokens added to them."""
    framing: Framing = OPENAI
    if model is not None:
        info = model_info(model)
        framing = framing_of(info.provider, model)
        tokenizer = info.tokenizer if tokenizer is None else tokenizer
    if getattr(tokenizer, "__name__", None) == "<lambda>" and callable(tokenizer):
        # Nothing is stored here, so the counter needs no stable name.
        return FunctionTokenizer("given", tokenizer).count, framing
    return tokenizer_of(tokenizer).count, framing

"""The newest part of a conversation that fits: valid for every provider, never over its limit.

A window is the first instructions, then pinned rounds, then the newest whole rounds without a gap,
all in their original order. The caller's list is not changed, and nothing is remembered here: what
is not shown is still in the list.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.sessions.rounds import ConversationRounds, subtract_size
from holdfast.core.sessions.shorten import Cut, ShortenedMessages, fit_messages, keep_newest_calls
from holdfast.errors import BudgetTooSmall
from holdfast.records.messages import Message, Repair


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a conversation that may be shown, and its cost."""

    messages: list[Message]
    left_out: int = 0
    """Messages of the repaired conversation that are not shown."""
    tokens: int | None = None
    """Tokens of the messages and the reserve; None if there is no counter."""
    shortened: tuple[Cut, ...] = ()
    repairs: tuple[Repair, ...] = ()
    summarised: int = 0
    """Messages left out for which a summary stands."""
    failure: str | None = None
    """The reason why there is no summary though one was asked for."""


def fit_window(talk: ConversationRounds, failure: str | None = None) -> Window:
    """Return the window over a conversation that has been repaired and can be measured."""
    room = subtract_size(talk.limits.size, talk.size(talk.first))
    if not talk.rounds:
        _fit_newest(talk, [], room)
        return build_window(talk, [], ShortenedMessages([], (), 0), failure=failure)
    newest = _fit_newest(talk, talk.round(-1), room)
    left = subtract_size(room, talk.size(newest.messages))
    return build_window(talk, talk.choose_rounds(left, keep_summaries=True), newest, failure=failure)


def build_window(
    talk: ConversationRounds,
    chosen: Sequence[int],
    newest: ShortenedMessages,
    *,
    summary: Message | None = None,
    failure: str | None = None,
) -> Window:
    """Build a window of the first instructions, a summary, these rounds, and the newest round as it was fitted."""
    messages = [*talk.first] if summary is None else [*talk.first, summary]
    for nth in chosen:
        messages += talk.round(nth)
    cuts = tuple(msgspec.structs.replace(cut, index=cut.index + len(messages)) for cut in newest.cuts)
    messages += newest.messages
    left_out = len(talk.messages) - len(messages) + (summary is not None)
    return Window(
        messages=messages,
        left_out=left_out,
        tokens=talk.size(messages)[1] + talk.limits.reserve if talk.limits.count is not None else None,
        shortened=cuts,
        repairs=talk.repairs,
        summarised=0 if summary is None else left_out,
        failure=failure,
    )


def _fit_newest(talk: ConversationRounds, whole: list[Message], room: tuple[int, int]) -> ShortenedMessages:
    """Fit the newest round, which is always shown: with fewer calls or shorter texts if necessary."""
    form: ShortenedMessages | None = ShortenedMessages(whole, (), 0)
    if len(whole) > room[0]:
        form = keep_newest_calls(whole, room[0]) if len(whole) > 1 else None
    if form is None:
        # A call is only shown with its result.
        required = len(talk.first) + min(len(whole), 2)
        raise BudgetTooSmall(
            f"A window of {talk.limits.messages} messages is too small: the first instructions and the newest round "
            f"need {required} messages. Raise max_messages to that.",
            required=required,
            unit="messages",
        )
    short = fit_messages(form.messages, room[1], talk.count)
    if short.tokens > room[1]:
        required = talk.size(talk.first)[1] + short.tokens + talk.limits.reserve
        raise BudgetTooSmall(
            f"A window of {talk.limits.tokens} tokens is too small: the first instructions and the newest round "
            f"need {required} tokens, shortened as they can be. Raise max_tokens to that, or shorten the instructions.",
            required=required,
        )
    return ShortenedMessages(short.messages, form.cuts + short.cuts, short.tokens)

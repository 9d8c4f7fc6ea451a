"""A conversation that is too long, with a summary in the place of its older rounds.

The summary is one system message behind the first instructions. Who makes it need not be called from
here: `planned` says what it is to cover and how long it may be, `with_summary` puts it in. What cannot
be summarised is not lost for it: an empty or failed summary changes nothing, and the window slides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from holdfast.core.conversation import SUMMARY_PREFIX, Conversation, bounds, less
from holdfast.core.shortening import Count, Fitted, fitted, marker
from holdfast.core.values import words
from holdfast.core.windows import Window, shown, slid
from holdfast.errors import InvalidValue
from holdfast.records.messages import Message

Summarize = Callable[[Sequence[Message]], str]
NO_ROOM = "There is no room for a summary beside the newest round."


class Plan(msgspec.Struct, frozen=True):
    """What is to be summarised, before anyone has done so."""

    talk: Conversation
    chosen: list[int]
    """Rounds that stay, beside the newest."""
    covered: list[Message]
    room: int
    """Tokens that are left for the text of the summary."""


def summarised(
    messages: Sequence[Message],
    *,
    summarize: Summarize,
    keep: int = 4,
    max_messages: int | None = None,
    max_tokens: int | None = None,
    count: Count | None = None,
    reserve: int = 0,
) -> Window:
    """All of it if it fits; else the newest `keep` rounds, or fewer, behind a summary of what was before them."""
    plan = planned(Conversation(messages, bounds(max_messages, max_tokens, count, reserve)), keep)
    if isinstance(plan, Window):
        return plan
    try:
        text = summarize(plan.covered)
    except Exception as error:  # noqa: BLE001  whatever it is, the conversation must go on
        return slid(plan.talk, words(error))
    return with_summary(plan, text)


def planned(talk: Conversation, keep: int) -> Plan | Window:
    """What to summarise; or the window itself, if all of it fits or there is no room for a summary."""
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise InvalidValue(f"keep is {keep!r}. Give how many of the newest rounds to keep, at least 1.")
    if talk.fits():
        return slid(talk)
    newest = talk.round(-1) if talk.rounds else []
    room = less(talk.limits.size, talk.size([*talk.first, *newest]))
    if not newest or room[0] < 1 or room[1] < talk.count(_summary(marker(99_999))):
        return slid(talk, NO_ROOM)
    # A quarter of what is not the newest round's is left for a summary, whose length nobody knows yet.
    chosen = talk.chosen((room[0] - 1, room[1] - room[1] // 4), most=keep - 1, keep_summaries=False)
    older = sorted({*range(talk.rounds - 1)}.difference(chosen))
    for nth in chosen:
        room = less(room, talk.size(talk.round(nth)))
    covered = [message for nth in older for message in talk.round(nth)]
    return Plan(talk, chosen, covered, room[1] - talk.count(_summary("")))


def with_summary(plan: Plan, text: object) -> Window:
    """The window with this summary in it, cut if it is too long; the sliding window if it says nothing."""
    talk = plan.talk
    if not isinstance(text, str):
        return slid(talk, f"The summary is a {type(text).__name__}, not text.")
    if not text.strip():
        return slid(talk, "The summary is empty.")
    room = plan.room + talk.count(_summary(""))
    body = Message(role="system", content=text.strip())
    short = fitted([body], room, lambda form: talk.count(_summary(form.text)))
    if short.tokens > room:
        return slid(talk, NO_ROOM)
    made = shown(talk, plan.chosen, Fitted(talk.round(-1), (), 0), summary=_summary(short.messages[0].text))
    cuts = tuple(msgspec.structs.replace(cut, index=len(talk.first)) for cut in short.cuts)
    return msgspec.structs.replace(made, shortened=cuts)


def _summary(text: str) -> Message:
    return Message(role="system", content=SUMMARY_PREFIX + text, synthetic=True)

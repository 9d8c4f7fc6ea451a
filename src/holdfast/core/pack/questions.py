"""What a turn answers: two of its questions always, each with words of its own, and the others as far as they fit.

The message that began a turn and the newest that a user said in it are in every pack. What else joined it is wanted
before anything older, the newest first, and gives way one by one: it is never why there is no pack. A question that is
shown is whole if it is short, and has words from both of its ends if not: a mark alone is no question.
"""

from __future__ import annotations

from collections.abc import Mapping

from holdfast.core.pack.rounds import Form, Rounds
from holdfast.core.pack.sharing import evenly
from holdfast.core.shortening import applied
from holdfast.records.messages import Message

SHORT = 400
"""Characters of a question that is never cut."""
WORDS = 200
"""Characters of a longer one that are left at least, from its beginning and its end."""


def floored(rounds: Rounds, form: Form) -> Form:
    """A question at its shortest."""
    lengths = {at: length for at, length in enumerate(_lengths(form.messages[0])) if length}
    if sum(lengths.values()) <= SHORT:
        return form
    step = f"text:{max(evenly(lengths, WORDS).values())}"
    made = applied(form.messages, (step,), rounds.name)
    tokens = sum(map(rounds.count, made.messages))
    if not made.cuts or tokens >= form.tokens:
        return form
    return Form(made.messages, tokens, (*form.recipe, step), form.left_out + sum(cut.left_out for cut in made.cuts))


def _lengths(message: Message) -> list[int]:
    """Characters of each text of a message."""
    if not isinstance(message.content, list):
        return [len(message.content or "")]
    return [len(str(part.get("text") or "")) for part in message.content if part.get("type") == "text"]


def least(rounds: Rounds, nth: int, form: Form) -> Form:
    """A round that must be shown, as short as it may get."""
    return floored(rounds, form) if rounds.answered(nth) else rounds.within(form, 0)


def joined(rounds: Rounds, shown: Mapping[int, Form], messages: int) -> list[int]:
    """Questions that are wanted and not shown yet, newest first; no more than so many messages."""
    found = [nth for nth in rounds.all_asked if nth not in shown]
    return found[::-1][: max(messages, 0)]


def taken(forms: Mapping[int, Form], room: int) -> dict[int, Form]:
    """Those that fit, one after the other up to the first that does not: more room never loses one."""
    found: dict[int, Form] = {}
    for nth, form in forms.items():
        if form.tokens > room:
            break
        room -= form.tokens
        found[nth] = form
    return found

"""Rounds of a conversation in the forms that a pack may show: whole, light, or shortened to a number of tokens.

How a form was made is its recipe, and `remade` does the same again, in any later release.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.conversation import Conversation
from holdfast.core.naming import handle_of
from holdfast.core.pack.light import is_light, light
from holdfast.core.shortening import Name, What, applied, fitted, thinned
from holdfast.core.wire.calls import json_text
from holdfast.records.messages import Message

LIGHT = "light"
OUTPUTS: tuple[What, ...] = ("results",)


class Form(msgspec.Struct, frozen=True):
    """A round as it would be shown."""

    messages: list[Message]
    tokens: int
    recipe: tuple[str, ...] = ()
    left_out: int = 0
    """Characters that are not shown."""


class Rounds:
    """The rounds of one line, measured when they are looked at."""

    def __init__(self, talk: Conversation, line: str, abbreviate: int) -> None:
        self.talk = talk
        self.line = line
        self._abbreviate = abbreviate
        self._forms: dict[tuple[int, bool], Form] = {}
        self.number = talk.rounds
        """How many there are."""
        self.count = talk.limits.count or talk.count
        self._pins = frozenset(map(id, filter(_is_pinned, talk.messages)))

    def name(self, message: Message) -> str | None:
        """What a model asks for to read a message whole."""
        return handle_of(message, self.line) or None

    def pinned(self, nth: int) -> bool:
        """Whether a round must be shown."""
        return bool(self._pins) and any(id(message) in self._pins for message in self.talk.round(nth))

    def whole(self, nth: int) -> Form:
        """As it was said."""
        nth %= self.number
        known = self._forms.get((nth, False))
        if known is None:
            messages = self.talk.round(nth)
            known = self._forms[nth, False] = Form(messages, sum(map(self.count, messages)))
        return known

    def light(self, nth: int) -> Form:
        """At level light."""
        nth %= self.number
        known = self._forms.get((nth, True))
        if known is None:
            whole = self.whole(nth)
            if all(is_light(message, self._abbreviate) for message in whole.messages):
                self._forms[nth, True] = whole
                return whole
            messages, left_out = lighter(whole.messages, self._abbreviate, self.name)
            if all(new is old for new, old in zip(messages, whole.messages, strict=True)):
                known = whole
            else:
                tokens = sum(map(self.count, messages))
                known = Form(messages, tokens, (f"{LIGHT}:{self._abbreviate}",), left_out)
            self._forms[nth, True] = known
        return known

    def within(self, form: Form, room: int, order: Sequence[What] | None = None) -> Form:
        """A form in at most `room` tokens, as far as shortening can do that."""
        if form.tokens <= room:
            return form
        more = {} if order is None else {"order": order}
        short = fitted(form.messages, room, self.count, name=self.name, **more)
        left_out = form.left_out + sum(cut.left_out for cut in short.cuts)
        return Form(short.messages, short.tokens, (*form.recipe, *short.recipe), left_out)

    def fewer(self, form: Form, most: int) -> Form:
        """A round of at most so many messages, which are two or more, with its newest calls."""
        if len(form.messages) <= most:
            return form
        thin = thinned(form.messages, most)
        assert thin is not None, "a call and its result are two messages"
        left_out = form.left_out + sum(map(_length, form.messages)) - sum(map(_length, thin.messages))
        return Form(thin.messages, sum(map(self.count, thin.messages)), (*form.recipe, *thin.recipe), left_out)


def _length(message: Message) -> int:
    """Characters of a message with its calls and results."""
    called = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.text) + called + sum(len(json_text(one.result)) for one in message.tool_results)


def _is_pinned(message: Message) -> bool:
    return message.pinned


def lighter(messages: Sequence[Message], most: int, name: Name) -> tuple[list[Message], int]:
    """Messages at level light, and how many characters that left out."""
    shown, left_out = [], 0
    for message in messages:
        form, missing = light(message, most, name(message))
        left_out += missing
        shown.append(form)
    return shown, left_out


def remade(messages: Sequence[Message], recipe: Sequence[str], line: str) -> list[Message]:
    """A round in the form that a recipe names."""
    return retold(messages, recipe, line)[0]


def retold(messages: Sequence[Message], recipe: Sequence[str], line: str) -> tuple[list[Message], int]:
    """A round in the form that a recipe names, and how many characters that leaves out."""

    def name(message: Message) -> str | None:
        return handle_of(message, line) or None

    shown, left_out = list(messages), 0
    for step in recipe:
        what, _, amount = step.partition(":")
        if what == LIGHT:
            shorter, missing = lighter(shown, int(amount), name)
        else:
            made = applied(shown, (step,), name)
            shorter, missing = made.messages, sum(cut.left_out for cut in made.cuts)
            if what == "calls":
                missing = sum(map(_length, shown)) - sum(map(_length, shorter))
        shown, left_out = shorter, left_out + missing
    return shown, left_out

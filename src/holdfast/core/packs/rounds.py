"""Rounds of a conversation in the forms that a pack may show: whole, light, or shortened to a number of tokens.

The steps that made a form are its recipe, and `remake_round` repeats them, in any later release. The message that began
a turn and the newest user message in it are in every pack; other questions of the turn come before anything older, and
are dropped one by one.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from operator import is_

import msgspec

from holdfast.core.packs.segments import message_handle
from holdfast.core.packs.tidy import LIGHT, is_light, lighten_message
from holdfast.core.sessions.rounds import ConversationRounds
from holdfast.core.sessions.shorten import CutTarget, HandleLookup, apply_recipe, fit_messages, keep_newest_calls
from holdfast.core.wire.calls import json_text
from holdfast.records.messages import Message
from holdfast.records.packs import Decision, Segment

MessagePlace = tuple[str, int]
"""A message by its stream and version."""
OUTPUTS_ONLY: tuple[CutTarget, ...] = ("results",)

WHOLE_QUESTION_CHARS = 400
"""Characters of a question that is never cut."""
MIN_QUESTION_CHARS = 200
"""Characters that a longer question keeps at least, from its beginning and its end."""


class RoundForm(msgspec.Struct, frozen=True):
    """A round as it would be shown."""

    messages: list[Message]
    tokens: int
    recipe: tuple[str, ...] = ()
    left_out: int = 0
    """Characters that are not shown."""


class MeasuredRound(msgspec.Struct):
    """A round with what packs made of it. It serves later packs as long as these very messages are shown."""

    messages: list[Message]
    whole: RoundForm
    light: RoundForm | None = None
    shown: tuple[Segment, Decision] | None = None
    """Its light form within a window."""


class ThreadRounds:
    """The rounds of one thread, measured when they are looked at."""

    def __init__(
        self,
        talk: ConversationRounds,
        thread: str,
        abbreviate: int,
        asked: frozenset[MessagePlace] = frozenset(),
        since: MessagePlace | None = None,
        known: dict[int, MeasuredRound] | None = None,
        settled: ThreadRounds | None = None,
    ) -> None:
        """Take the messages that a turn answers as `asked`; from `since` on, no message of the thread is missing.

        `known` are rounds of earlier packs by the identity of their first message. They are checked, and added to.
        `settled` are the rounds of an earlier pack of this thread, all of which but the newest are the same here.
        """
        self.talk = talk
        self.thread = thread
        self.abbreviate = abbreviate
        self._known = {} if known is None else known
        self.number = talk.rounds
        """The number of rounds."""
        old = 0 if settled is None else settled.number - 1
        self.messages: list[list[Message]] = [] if settled is None else settled.messages[:old]
        self.messages += talk.list_rounds(old)
        kept = [self._known.get(id(messages[0])) for messages in self.messages[old:]]
        self.measured: list[MeasuredRound | None] = [] if settled is None else settled.measured[:old]
        """The rounds that are measured already, each with the very messages that are shown now."""
        self.measured += [
            one if one is not None and one.messages == messages else None
            for one, messages in zip(kept, self.messages[old:], strict=True)
        ]
        self.count = talk.limits.count or talk.count
        pinned: list[int] = [] if settled is None else [nth for nth in settled.all_pinned if nth < old]
        if True in [message.pinned for messages in self.messages[old:] for message in messages]:
            pinned += [nth for nth in range(old, talk.rounds) if any(one.pinned for one in self.messages[nth])]
        self.all_pinned: dict[int, None] = dict.fromkeys(pinned)
        """Rounds that must be shown, with all of their calls, oldest first."""
        self.all_asked = dict.fromkeys(self._find_asked(asked))
        """Rounds that the turn answers, oldest first: every user message is a round of its own."""
        self.reasons = {
            **dict.fromkeys(self.all_pinned, "pinned"),
            **dict.fromkeys(self.all_asked, "question"),
            talk.rounds - 1: "newest",
        }
        """Rounds that come before others, however old they are, and why."""
        self._answered = frozenset((*[*self.all_asked][:1], *[*self.all_asked][-1:]))
        rounds = range(talk.rounds)
        found = (nth for nth in rounds if since in [(message.stream, message.version) for message in talk.round(nth)])
        self.unbroken = talk.rounds if since is None else next(found, 0)
        """From this round on, none is missing."""

    def _find_asked(self, asked: frozenset[MessagePlace]) -> list[int]:
        """Find the rounds that begin with these messages, from the newest back, where they are."""
        found: list[int] = []
        for nth in range(self.number - 1, -1, -1):
            if len(found) == len(asked):
                break
            head = self.messages[nth][0]
            if (head.stream, head.version) in asked:
                found.append(nth)
        return found[::-1]

    def name(self, message: Message) -> str | None:
        """Return the handle by which a model can read a message whole."""
        return message_handle(message, self.thread) or None

    @property
    def rounds_to_keep(self) -> list[int]:
        """Rounds that must be shown however old they are, oldest first."""
        return sorted({*self.all_pinned, *self._answered})

    def window_start(self, first: int, shown: Container[int]) -> int:
        """Return the start of a window from a round on, extended by shown rounds directly before it."""
        while first > self.unbroken and first - 1 in shown:
            first -= 1
        return first

    def whole_form(self, nth: int) -> RoundForm:
        """Return a round as it is in the thread."""
        return self.measure(nth).whole

    def measure(self, nth: int) -> MeasuredRound:
        """Return a round with its forms, each made once."""
        found = self.measured[nth]
        if found is None:
            messages = self.messages[nth]
            tokens = self.count(messages[0]) if len(messages) == 1 else sum(map(self.count, messages))
            found = self.measured[nth] = MeasuredRound(messages, RoundForm(messages, tokens))
            self._known[id(messages[0])] = found
        return found

    def light_form(self, nth: int) -> RoundForm:
        """Return a round at level light."""
        found = self.measured[nth] or self.measure(nth)
        if found.light is None:
            known, most = found.whole, self.abbreviate
            head = known.messages[0]
            alone = len(known.messages) == 1 and is_light(head, most)
            if not alone and False in [is_light(message, most) for message in known.messages]:
                messages, left_out = lighten_messages(known.messages, most, self.name)
                if not all(map(is_, messages, known.messages)):
                    tokens = sum(map(self.count, messages))
                    known = RoundForm(messages, tokens, (f"{LIGHT}:{most}",), left_out)
            found.light = known
        return found.light

    def shortest_form(self, nth: int, form: RoundForm) -> RoundForm:
        """Return the shortest form of a round that must be shown, such as the first and the newest question."""
        return shorten_question(self, form) if nth in self._answered else self.shorten_to(form, 0)

    def shorten_to(self, form: RoundForm, room: int, order: Sequence[CutTarget] | None = None) -> RoundForm:
        """Shorten a form to at most `room` tokens, as far as possible."""
        if form.tokens <= room:
            return form
        more = {} if order is None else {"order": order}
        short = fit_messages(form.messages, room, self.count, name=self.name, **more)
        left_out = form.left_out + sum(cut.left_out for cut in short.cuts)
        return RoundForm(short.messages, short.tokens, (*form.recipe, *short.recipe), left_out)

    def drop_calls(self, form: RoundForm, most: int) -> RoundForm:
        """Reduce a round to at most `most` messages, which must be two or more, keeping its newest calls."""
        if len(form.messages) <= most:
            return form
        thin = keep_newest_calls(form.messages, most)
        assert thin is not None, "a call and its result are two messages"
        left_out = form.left_out + sum(map(_message_length, form.messages)) - sum(map(_message_length, thin.messages))
        return RoundForm(thin.messages, sum(map(self.count, thin.messages)), (*form.recipe, *thin.recipe), left_out)


def _message_length(message: Message) -> int:
    called = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return len(message.text) + called + sum(len(json_text(one.result)) for one in message.tool_results)


def lighten_messages(messages: Sequence[Message], most: int, name: HandleLookup) -> tuple[list[Message], int]:
    """Return messages at level light, and the number of characters left out."""
    shown, left_out = [], 0
    for message in messages:
        form, missing = lighten_message(message, most, name(message))
        left_out += missing
        shown.append(form)
    return shown, left_out


def remake_round(messages: Sequence[Message], recipe: Sequence[str], thread: str) -> tuple[list[Message], int]:
    """Return a round in the form that a recipe names, and the number of characters left out."""

    def name(message: Message) -> str | None:
        return message_handle(message, thread) or None

    shown, left_out = list(messages), 0
    for step in recipe:
        what, _, amount = step.partition(":")
        if what == LIGHT:
            shorter, missing = lighten_messages(shown, int(amount), name)
        else:
            made = apply_recipe(shown, (step,), name)
            shorter, missing = made.messages, sum(cut.left_out for cut in made.cuts)
            if what == "calls":
                missing = sum(map(_message_length, shown)) - sum(map(_message_length, shorter))
        shown, left_out = shorter, left_out + missing
    return shown, left_out


def shorten_question(rounds: ThreadRounds, form: RoundForm) -> RoundForm:
    """Return a question at its shortest."""
    content = form.messages[0].content
    texts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    said = [str(part.get("text") or "") for part in texts if part.get("type") == "text"]
    lengths = {at: len(text) for at, text in enumerate(said) if text}
    if sum(lengths.values()) <= WHOLE_QUESTION_CHARS:
        return form
    step = f"text:{max(share_evenly(lengths, MIN_QUESTION_CHARS).values())}"
    made = apply_recipe(form.messages, (step,), rounds.name)
    tokens = sum(map(rounds.count, made.messages))
    if not made.cuts or tokens >= form.tokens:
        return form
    return RoundForm(
        made.messages, tokens, (*form.recipe, step), form.left_out + sum(cut.left_out for cut in made.cuts)
    )


def unshown_questions(rounds: ThreadRounds, shown: Mapping[int, RoundForm], messages: int) -> list[int]:
    """Return the questions that are wanted and not shown yet, newest first; at most `messages` of them."""
    found = [nth for nth in rounds.all_asked if nth not in shown]
    return found[::-1][: max(messages, 0)]


def share_evenly(wanted: Mapping[int, int], room: int) -> dict[int, int]:
    """Divide `room` by what each claim wants. No claim gets more than it wants."""
    shares: dict[int, int] = {}
    left = max(room, 0)
    for number, (nth, want) in enumerate(sorted(wanted.items(), key=lambda one: (one[1], one[0]))):
        shares[nth] = min(want, left // (len(wanted) - number))
        left -= shares[nth]
    return shares

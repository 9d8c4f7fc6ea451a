"""Runs of rounds that are shown one after another, with everything that packs add up over them; and hints for packs.

A conversation that only grows is shown with the same rounds as before, and a few more. A run holds the segments of the
older ones, and is extended by the new ones, so a pack costs what is new. Hints are what packs leave for the next one of
the same conversation. Nothing depends on them: whoever takes one first compares the messages that it was made from with
those that are shown now, and starts over if they differ.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from operator import attrgetter
from typing import Any

import msgspec

from holdfast.core.packs.manifest import DigestHint, Successors
from holdfast.core.packs.rounds import ThreadRounds
from holdfast.records.events.calls import PackedPiece
from holdfast.records.messages import Message
from holdfast.records.packs import AssembledPack, CompactionLevel, Decision, Segment

MAX_HINT_MESSAGES = 131_072
"""The most messages that the hints of a client hold together; those of other conversations are dropped."""
QUESTION = "question"
_read_id = attrgetter("id")
_read_version = attrgetter("version")
_MEDIA = frozenset({"image", "file"})


class RoundRun(msgspec.Struct, frozen=True, kw_only=True):
    """The oldest rounds of a conversation, as each pack of one level shows them."""

    level: CompactionLevel
    reasons: dict[int, str] = {}
    """The rounds among them that are shown for a reason of their own."""
    segments: tuple[Segment, ...] = ()
    decisions: tuple[Decision, ...] = ()
    messages: tuple[Message, ...] = ()
    even: int = 0
    """The number of leading segments that are whole, stored, and without a gap between them."""
    tokens: int = 0
    stored: int = 0
    """The number of messages that are in the journal; others were added to complete a round."""
    shortened: int = 0
    estimated: bool = False
    """True if a message holds an image or a file, whose tokens are only estimated."""
    base: RoundRun | None = None
    """The rounds before the first one that a turn answers: the next turn shows that one for another reason."""

    def fit_to(self, reasons: dict[int, str]) -> RoundRun | None:
        """Return the run, or its base, if its rounds are shown for these reasons now as well."""
        number = len(self.segments)
        if {nth: reason for nth, reason in reasons.items() if nth < number} == self.reasons:
            return self
        return None if self.base is None else self.base.fit_to(reasons)

    def extend(
        self, shown: Sequence[tuple[Segment, Decision]], reasons: dict[int, str], follows: Successors
    ) -> RoundRun:
        """Return the run with these rounds behind its own."""
        if not shown:
            return self
        number = len(self.segments)
        added = {nth: reasons[nth] for nth in range(number, number + len(shown)) if nth in reasons}
        asked = next((nth for nth, reason in added.items() if reason == QUESTION), None)
        if asked is not None and QUESTION not in self.reasons.values() and asked > number:
            before = self.extend(shown[: asked - number], reasons, follows)
            return before.extend(shown[asked - number :], reasons, follows)
        segments, decisions = list(self.segments), list(self.decisions)
        messages: list[Message] = []
        tokens, shortened = self.tokens, self.shortened
        for segment, decision in shown:
            segments.append(segment)
            decisions.append(decision)
            messages += segment.messages
            tokens += segment.estimated_tokens
            shortened += bool(segment.shortened)
        return RoundRun(
            level=self.level,
            reasons=self.reasons | added,
            segments=tuple(segments),
            decisions=tuple(decisions),
            messages=(*self.messages, *messages),
            even=self.even + self._count_even(segments[number:], follows),
            tokens=tokens,
            stored=self.stored + sum(map(bool, map(_read_id, messages))),
            shortened=shortened,
            estimated=self.estimated or has_estimates(messages),
            base=self if asked is not None and self.base is None else self.base,
        )

    def _count_even(self, segments: Sequence[Segment], follows: Successors) -> int:
        """Return how many of these segments continue the even ones of the run."""
        if self.even < len(self.segments):
            return 0
        last = self.segments[-1].origins[0] if self.segments else None
        for count, segment in enumerate(segments):
            origin = segment.origins[0] if len(segment.origins) == 1 else None
            if origin is None or origin.cut is not None or 0 in map(_read_version, segment.messages):
                return count
            if last is not None and origin.first != (last.last or 0) + 1:
                if follows.get((last.stream or "", last.last or 0)) != (origin.stream, origin.first):
                    return count
            elif last is not None and last.stream != origin.stream:
                return count
            last = origin
        return len(segments)


class ThreadHint(msgspec.Struct, frozen=True):
    """The rounds of a conversation that an earlier pack found, and the tail that it found them in."""

    origin: object
    """The reading of the tail from the journal; later tails of the same reading only add messages."""
    places: Sequence[Any]
    messages: Sequence[Message]
    settled: int
    """The number of messages before the newest round."""
    rounds: ThreadRounds


class PackHints:
    """Hints that packs of one conversation leave for the next one, each part replaced as a whole."""

    __slots__ = ("digest", "pieces", "rendered", "run", "run_at", "runs", "thread")

    def __init__(self, earlier: PackHints | None = None) -> None:
        """Begin with what earlier packs left."""
        self.thread: ThreadHint | None = None
        self.runs: dict[CompactionLevel, RoundRun] = {}
        self.digest: DigestHint | None = None
        """The digest of the messages that the last pack began with."""
        self.pieces: tuple[tuple[Sequence[Segment], tuple[PackedPiece, ...]], ...] = ()
        """The pieces of the segments that the last journaled pack began with: before the turn's questions, and all."""
        self.rendered: dict[Hashable, Any] = {}
        """The messages that the last pack began with, as each provider was sent them."""
        if earlier is not None:
            self.digest, self.pieces, self.rendered = earlier.digest, earlier.pieces, dict(earlier.rendered)

        self.run: RoundRun | None = None
        self.run_at = 0

    def describe(self, packed: AssembledPack, run: RoundRun, at: int) -> None:
        """Attach the hints to the pack that they are of, whose segments from `at` on are a run."""
        self.run, self.run_at = run, at
        packed.__dict__["hints"] = self

    def __len__(self) -> int:
        """The number of messages that are held."""
        return 1 if self.thread is None else len(self.thread.messages)


def has_estimates(messages: Sequence[Message]) -> bool:
    """Return True if a message holds an image or a file, whose tokens are only estimated."""
    values: list[Any] = []
    for message in messages:
        if message.content.__class__ is list:
            values.append(message.content)
        if message.tool_results:
            values += [one.result for one in message.tool_results if one.result.__class__ is list]
    if not values:
        return False
    parts = [part for value in values for part in value]
    return any(isinstance(part, dict) and part.get("type") in _MEDIA for part in parts)

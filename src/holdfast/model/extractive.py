"""The built-in summary: sentences of the conversation itself, and a line for each tool's work.

It needs no model, makes nothing up, and gives the same words for the same messages everywhere. It keeps facts that
cannot be guessed again (names, numbers, identifiers, dates, amounts), decisions, wishes and prohibitions, and open
questions; it drops courtesy and repetition. It never exceeds its limit.

Every message is read twice, in time linear in its length; then a fixed number of the strongest sentences are ranked
against each other. So the cost is O(text) + O(1), not O(messages²).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import nlargest

import msgspec

from holdfast.core.checks import check_number
from holdfast.core.compaction.sentences import (
    Lexicon,
    SentenceCandidate,
    choose_sentences,
    clean_text,
    find_names,
    fit_text,
    normalize_vector,
    split_sentences,
    split_words,
    word_signal,
    word_terms,
    word_worth,
)
from holdfast.core.compaction.summary import speaker_label, text_with_files
from holdfast.core.compaction.tool_notes import ToolNote, write_notes
from holdfast.records.messages import Message

MOST_SENTENCES = 400
"""The number of sentences that are ranked against each other: the strongest by their words."""
SIMILAR_LIMIT = 20
"""Sentences kept that differ only in their numbers, as in logs, newest first: they must leave room for others."""
TOOLS_HEADING = "What tools did:"
TOOL_SHARE = 0.4
"""The tools' share of the tokens, when tools were called and something was said too."""
NUMBER_WEIGHT = 0.5
"""The weight of a number when two sentences are compared. Numbers are rare, and would make all sentences different."""
NAME_WEIGHT = 0.5
"""The worth of a name, compared to a number or an identifier."""
OPEN_BONUS, ANSWERED_BONUS, GOAL_BONUS, SCRAP_BONUS = 1.0, -0.5, 1.0, -1.5
"""Bonuses: an unanswered question; an assistant's answered question; the user's first message; a mere scrap."""
_SPEAKER_WEIGHTS = {"user": 1.4, "assistant": 1.0}
"""The weight of each role's facts and wishes. A user's words are the task; instructions are mostly shown elsewhere."""
_ORDER_STRIDE = 1 << 32
"""The distance between the sentence numbers of two messages."""
_NO_DIGITS = dict.fromkeys(map(ord, "0123456789"))
_QUESTION_MARKS = ("?", "？", "؟")  # noqa: RUF001


class Sentence(msgspec.Struct, frozen=True, gc=False):
    """A sentence, the message that it is from, and its position."""

    order: int
    message: int
    text: str


def estimate_tokens(text: str) -> int:
    """Estimate the tokens of a text when no tokenizer was given: high for most languages."""
    return len(text) // 3 + 1


class ExtractiveSummarizer:
    """A summarizer without a model. `count` returns the number of tokens of a text."""

    name = "extractive"

    def __init__(self, *, count: Callable[[str], int] = estimate_tokens) -> None:
        self._count = count

    def summarise(self, messages: Sequence[Message], *, max_tokens: int) -> str:
        """Return a summary of at most `max_tokens`; empty if nothing was said or done, or nothing fits."""
        check_number("max_tokens", max_tokens, least=1)
        present = [message for message in messages if not message.erased]
        lexicon = Lexicon(text for message in present if (text := text_with_files(message)))
        said = _pick_sentences(present, lexicon)
        did = write_notes(messages, lambda word: any(map(lexicon.spread.__contains__, word_terms(word))))
        picked_notes = _pick_notes(did, int(max_tokens * TOOL_SHARE) if said else max_tokens, self._count)
        told = [fact for note in picked_notes for fact in _extract_facts(note.text, frozenset())]
        used = self._count(_render_summary([], picked_notes, present)) if picked_notes else 0
        candidates = self._build_candidates(said, present, lexicon)
        picked = [said[at] for at in choose_sentences(candidates, max_tokens - used, told)]
        return self._fit_summary(picked, picked_notes, present, max_tokens) or self._fallback_summary(
            said, did, present, max_tokens
        )

    def _build_candidates(
        self, said: list[Sentence], present: Sequence[Message], lexicon: Lexicon
    ) -> list[SentenceCandidate]:
        known = frozenset(word for sentence in said for word in find_names(sentence.text))
        first = next((at for at, message in enumerate(present) if message.role == "user"), -1)
        last = {message.role: at for at, message in enumerate(present) if message.content}
        found = []
        for sentence in said:
            role = present[sentence.message].role
            weight = _SPEAKER_WEIGHTS.get(role, 0.7)
            bonus = weight * _signal_weight(sentence.text)
            bonus += GOAL_BONUS if sentence.message == first else 0.0
            if sentence.text.endswith(_QUESTION_MARKS):
                answered = last.get("user" if role == "assistant" else "assistant", -1) > sentence.message
                bonus += OPEN_BONUS if not answered else ANSWERED_BONUS if role == "assistant" else 0.0
            # A number is rare, but says nothing about the topic.
            vector = {
                term: NUMBER_WEIGHT if any(map(str.isdigit, term)) else lexicon.rarity(term)
                for word in split_words(sentence.text)
                for term in word_terms(word)
            }
            bonus += SCRAP_BONUS if len(vector) < 2 else 0.0
            # One more for the line break: counts of parts are a little less than the count of the whole.
            cost = self._count(f"{speaker_label(present[sentence.message])}: {sentence.text}") + 1
            facts = {fact: weight * worth for fact, worth in _extract_facts(sentence.text, known).items()}
            found.append(SentenceCandidate(vector=normalize_vector(vector), facts=facts, bonus=bonus, cost=cost))
        return found

    def _fit_summary(self, picked: list[Sentence], did: list[ToolNote], present: Sequence[Message], most: int) -> str:
        """Render the summary, dropping the last choices if the whole counts more than its parts."""
        picked, did = list(picked), list(did)
        while picked or did:
            text = _render_summary(picked, did, present)
            if self._count(text) <= most:
                return text
            (picked or did).pop()
        return ""

    def _fallback_summary(
        self, said: list[Sentence], did: list[ToolNote], present: Sequence[Message], most: int
    ) -> str:
        """Return the beginning of the best sentence, where not even one sentence fits."""
        if said:
            best = max(
                said, key=lambda sentence: (sum(_extract_facts(sentence.text, frozenset()).values()), -sentence.order)
            )
            line = fit_text(f"{speaker_label(present[best.message])}: {best.text}", most, self._count)
            return line if len(line) > 20 else fit_text(best.text, most, self._count)
        return fit_text(did[-1].text, most, self._count) if did else ""


def _pick_sentences(present: Sequence[Message], lexicon: Lexicon) -> list[Sentence]:
    """Return the sentences worth a closer look, in order, without repetitions."""

    def weighed() -> Iterator[tuple[float, int, int, str]]:
        alike: dict[int, int] = {}
        for at in range(len(present) - 1, -1, -1):
            for nth, text in enumerate(split_sentences(text_with_files(present[at]))):
                pattern = hash(text.translate(_NO_DIGITS))
                alike[pattern] = alike.get(pattern, 0) + 1
                if alike[pattern] <= SIMILAR_LIMIT:
                    yield round(lexicon.strength(text), 6), at * _ORDER_STRIDE + nth, at, text

    found = nlargest(MOST_SENTENCES, weighed(), key=lambda item: (item[0], -item[1]))
    kept: dict[str, Sentence] = {}
    for _, order, at, raw in sorted(found, key=lambda item: item[1]):
        if text := clean_text(raw):
            kept.setdefault(text, Sentence(order=order, message=at, text=text))
    return list(kept.values())


def _extract_facts(text: str, known: frozenset[str]) -> dict[str, float]:
    """Return the words of a sentence that cannot be guessed, with their worth."""
    found = {word: word_worth(word) or (NAME_WEIGHT if word in known else 0.0) for word in split_words(text)}
    return {word.lower().strip("_'"): value for word, value in found.items() if value}


def _signal_weight(text: str) -> float:
    """Return the weight of words that speak for a sentence (decision, wish, limit) or against it (courtesy)."""
    return max(-1.0, min(2.4, 0.7 * sum(map(word_signal, dict.fromkeys(split_words(text))))))


def _pick_notes(did: list[ToolNote], most: int, count: Callable[[str], int]) -> list[ToolNote]:
    """Return the most important notes within a share, heaviest first, so that the lightest is dropped first."""
    most -= count(TOOLS_HEADING) + 1
    picked = []
    for note in sorted(did, key=lambda note: (-note.value, -note.order)):
        if (cost := count(f"- {note.text}") + 1) <= most:
            most -= cost
            picked.append(note)
    return picked


def _render_summary(picked: list[Sentence], did: list[ToolNote], present: Sequence[Message]) -> str:
    """Render sentences as they were said, one line for each message, then the tools' notes."""
    lines: dict[int, str] = {}
    before = -1
    for sentence in sorted(picked, key=lambda sentence: sentence.order):
        at, gap = sentence.message, " " if sentence.order == before + 1 else " … "
        lines[at] = (
            f"{lines[at]}{gap}{sentence.text}" if at in lines else f"{speaker_label(present[at])}: {sentence.text}"
        )
        before = sentence.order
    tools = [f"- {note.text}" for note in sorted(did, key=lambda note: note.order)]
    return "\n".join([*lines.values(), *([TOOLS_HEADING, *tools] if tools else ())])

"""Extract the state of a conversation as data: goals, decisions, facts, open questions, files. Deterministic, no model.

Every entry is a quotation: sentences are taken as they are, and sorted by their words and form.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

from holdfast.core.compaction.sentences import (
    Lexicon,
    clean_text,
    cut_end,
    fit_text,
    split_sentences,
    split_words,
    word_set,
    word_signal,
    word_worth,
)
from holdfast.core.compaction.summary import text_with_files
from holdfast.core.lazy import lazy_pattern
from holdfast.core.sessions.tokens import CountText
from holdfast.records.messages import Message

TITLES: Final = {
    "goals": "Goals",
    "decisions": "Decisions",
    "facts": "Facts",
    "open_questions": "Open questions",
    "files": "Files touched",
}
MAX_ENTRIES: Final = 12
"""Entries of one section. The newest stay; of goals, the first as well."""
MAX_ENTRY_CHARS: Final = 240
"""Characters of one entry."""
MAX_READ_CHARS: Final = 20_000
"""Characters of one message that are read."""
MIN_FACT_WORTH: Final = 1.0
"""The least worth of a sentence's words for it to be a fact."""

_DECISION_WORDS: Final = word_set(
    """
    decided decide decision agreed confirmed cancelled canceled approved rejected booked refunded denied chose chosen
    settled postponed rescheduled promised i'll we'll
    entschieden beschlossen vereinbart bestätigt storniert abgesagt genehmigt abgelehnt gebucht
    décidé confirmé annulé convenu refusé approuvé decidido confirmado cancelado acordado rechazado aprobado
    deciso confermato annullato
    """
)
_GOAL_WORDS: Final = word_set(
    """
    want wants need needs please wish goal find book change help make write build fix create update refund cancel send
    möchte brauche will bitte voudrais besoin quiero necesito vorrei
    """
)
_PATH_ARGUMENT: Final = lazy_pattern(r"(?i)(?:^|_)(?:path|paths|file|files|filename|file_path|filepath|notebook_path)$")
_PATH: Final = lazy_pattern(r"(?<![\w/.\\-])(?:[\w.~-]*[/\\])*[\w.-]*\w\.[A-Za-z][A-Za-z0-9]{0,4}(?![\w/\\])")
_EXTENSIONS: Final = word_set(
    """
    py pyi js jsx ts tsx json jsonl yaml yml toml ini cfg md rst txt csv tsv html css scss xml sql sh bash rs go java kt
    c h cc cpp hpp cs rb php swift scala lua r ipynb lock pdf doc docx xls xlsx ppt pptx png jpg jpeg gif svg log env
    """
)
_QUESTION_MARKS: Final = ("?", "？", "؟")  # noqa: RUF001


class _SpokenSentence(msgspec.Struct, frozen=True):
    """A sentence, the index of its message, and the speaker's role."""

    at: int
    role: str
    text: str


def extract_state(messages: Sequence[Message]) -> dict[str, list[str]]:
    """Return the state of a conversation; sections without entries are left out."""
    present = [message for message in messages if not message.erased]
    said = [
        _SpokenSentence(at, message.role, cut_end(text, MAX_ENTRY_CHARS))
        for at, message in enumerate(present)
        if message.role in ("user", "assistant")
        for sentence in split_sentences(text_with_files(message)[:MAX_READ_CHARS])
        if (text := clean_text(sentence))
    ]
    lexicon = Lexicon(text_with_files(message)[:MAX_READ_CHARS] for message in present if message.role != "tool")
    questions = [one for one in said if one.text.endswith(_QUESTION_MARKS)]
    rest = [one for one in said if not one.text.endswith(_QUESTION_MARKS)]
    asked = [one.text for one in said if one.role == "user"]
    # The user's first sentence, and later sentences with a wish.
    goals = [text for at, text in enumerate(asked) if at == 0 or _word_forms(text) & _GOAL_WORDS]
    # Questions after which the other side said nothing more.
    last = {message.role: at for at, message in enumerate(present) if text_with_files(message).strip()}
    sides = {"user": "assistant", "assistant": "user"}
    unanswered = [one.text for one in questions if last.get(sides[one.role], -1) <= one.at]
    decisions = [one.text for one in rest if _word_forms(one.text) & _DECISION_WORDS]
    facts = [one.text for one in rest if one.text not in decisions and _is_fact(one, lexicon)]
    found = {
        "goals": [*goals[:1], *[goal for goal in _keep_newest(goals) if goal not in goals[:1]][1 - MAX_ENTRIES :]],
        "decisions": _keep_newest(decisions),
        "facts": _keep_newest(text for text in facts if text not in goals[:1]),
        "open_questions": _keep_newest(unanswered),
        "files": _keep_newest(_find_files(present)),
    }
    return {name: entries for name, entries in found.items() if entries}


def render_state(state: dict[str, Any], most: int, count: CountText) -> str:
    """Return the state as text, without its oldest entries if it is too long; empty if there is none."""
    left = {name: list(state.get(name) or ()) for name in TITLES}
    while True:
        shown = {TITLES[name]: entries for name, entries in left.items() if entries}
        text = "\n".join("\n- ".join((f"{title}:", *entries)) for title, entries in shown.items())
        if count(text) <= most:
            return text
        longest = max(TITLES, key=lambda name: len(left[name]))
        if len(left[longest]) <= 1:
            return fit_text(text, most, count)
        # The first goal is what the whole conversation is about.
        left[longest].pop(1 if longest == "goals" else 0)


def _word_forms(text: str) -> set[str]:
    return {word.lower().replace("’", "'") for word in split_words(text)}  # noqa: RUF001


def _is_fact(one: _SpokenSentence, lexicon: Lexicon) -> bool:
    """Return True if it cannot be guessed: numbers, names, identifiers, or a user's statement about themselves."""
    found = dict.fromkeys(split_words(one.text))
    meant = sum(max(0.0, word_signal(word)) for word in found) if one.role == "user" else 0.0
    return len(found) > 2 and sum(map(word_worth, found)) + meant >= MIN_FACT_WORTH and lexicon.strength(one.text) > 0


def _find_files(present: Sequence[Message]) -> Iterator[str]:
    """Yield files that tools were given, and files that were named."""
    for message in present:
        for found in _PATH.findall(text_with_files(message)[:MAX_READ_CHARS]):
            if found.rpartition(".")[2].lower() in _EXTENSIONS:
                yield found
        for call in message.tool_calls:
            yield from _argument_paths(call.arguments)


def _argument_paths(arguments: str) -> Iterator[str]:
    try:
        data = msgspec.json.decode(arguments[:MAX_READ_CHARS])
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return
    for name, value in data.items() if isinstance(data, dict) else ():
        if _PATH_ARGUMENT.search(name):
            values = value if isinstance(value, list) else [value]
            yield from (clean_text(one)[:MAX_ENTRY_CHARS] for one in values if isinstance(one, str) and clean_text(one))


def _keep_newest(entries: Iterable[str]) -> list[str]:
    """Keep the newest entries, each once, where it occurred last."""
    found: dict[str, None] = {}
    for entry in entries:
        found.pop(entry, None)
        found[entry] = None
    return list(found)[-MAX_ENTRIES:]

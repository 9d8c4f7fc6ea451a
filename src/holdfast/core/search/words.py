"""The words of texts and queries for the text index, and the text of messages and entries that is searched.

A text for the index and a query are split by the same code, so a text is found by repeating its words, also in
languages without spaces. The result is letters and digits only, so a query can never be anything but words to the
index.

English function words are about half of a text and say nothing about it, so they are not indexed at all: the
index is a third smaller. Written in capitals (IT, US) they are names, and kept.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from holdfast.core.journal.codec import decode
from holdfast.core.lazy import lazy_pattern
from holdfast.core.numbers import is_number
from holdfast.core.search.documents import INDEXED_CHARS, MESSAGE_APPENDED, STATE_WRITTEN
from holdfast.records.events.sessions import MessageContent
from holdfast.records.events.state import ValueContent
from holdfast.records.messages import Message

ReadBeginning = Callable[[str], str]
"""A function from an artifact's name to the beginning of the text in it; empty if it cannot be read."""

MAX_TERMS = 64
MAX_QUERY_CHARS = 10_000
MAX_WORD_CHARS = 64
"""Anything longer is data; its beginning is enough to find it."""
CONTEXT_CHARS = 200
"""Characters of the previous message, which a short message needs to be understood."""
STEM_CHARS = 5
SNIPPET_SLACK = 20
"""Characters within which a snippet is cut between words, if there is a gap."""
_TEXT_PARTS = ("text", "refusal")
SELF_CONTAINED_CHARS = 400
"""A longer message can be understood without the previous one."""

UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff"
)
_WORD = re.compile(r"[^\W_]+")
_SPACED = {code: " " for code in range(128) if not chr(code).isalnum()}
"""For plain ASCII: everything but letters and digits separates words. Several times quicker than the pattern."""
_MARKED_SCRIPTS = re.compile("[\u0590-\u1cff]")
"""Scripts whose vowels and tones are combining marks; elsewhere only accents are."""
_ACCENTS = re.compile("[\u0300-\u036f]+")
_TYPOGRAPHY = {"\u2019": "'", "\u2018": "'", "\u2014": " ", "\u2013": " ", "\u201c": " ", "\u201d": " ", "\u2026": " "}
"""Typographic signs that models write often. Without them, most texts are plain ASCII."""
_NEGATED = re.compile(r"\b(?:[Cc]a|[Ww]o|[Ss]ha|[Aa]i)n't\b|[nN]'[tT]\b")
_ENDINGS = re.compile(r"'(?:[sSdDmM]|[lL]{2}|[rRvV][eE])\b")
_PLUSES = re.compile(r"(?<![^\W_])([A-Za-z])\+\+")
_SHARP = re.compile(r"(?<![^\W_])([A-Za-z])#(?![\w#])")
# Large sets of letters take milliseconds to compile, and most programs never need them.
_LETTER = lazy_pattern(f"[{UNSPACED}]")
_LETTERS = lazy_pattern(f"[{UNSPACED}]+")
_RUNS = lazy_pattern(f"[{UNSPACED}]+|[^{UNSPACED}]+")
_FOREIGN = lazy_pattern(f"[^\\x00-\\x7f{UNSPACED}]")


def _word_forms(text: str) -> frozenset[str]:
    """Return words in lower case and capitalised. In capitals they are names."""
    return frozenset(form for word in text.split() for form in (word, word.capitalize()))


_FUNCTION_WORDS = _word_forms(
    """
    a an the and or but nor of to in on at by for from with as into onto upon than then if so
    is are was were be been being am do does did doing have has had having
    i me my mine we us our ours you your yours he him his she her hers it its they them their theirs
    this that these those there here
    """
)
_QUESTION_WORDS = _FUNCTION_WORDS | _word_forms(
    """
    what which who whom whose when where why how whether
    can could may might must shall should will would
    any some all each every both such not no yes also too very just only really quite ever much many
    about because while during again done myself yourself himself herself itself ourselves themselves
    please tell told say says said mention mentioned remember remind recall know give given
    """
)
_MONTH_PREPOSITIONS = _word_forms(
    "in since until till last next early late mid this by before after through from of during"
)


def fold_text(text: str) -> str:
    """Return a text without accents and other marks, and with one spelling of each letter. Case is kept."""
    if text.isascii():
        return text
    for sign, plain in _TYPOGRAPHY.items():
        text = text.replace(sign, plain)
    if text.isascii():
        return text
    text = _ACCENTS.sub("", unicodedata.normalize("NFKD", text))
    if _MARKED_SCRIPTS.search(text):
        text = "".join(letter for letter in text if unicodedata.category(letter)[0] != "M")
    return unicodedata.normalize("NFC", text)


def space_letters(text: str) -> str:
    """Separate the letters of languages without spaces, so that each is a word to the index."""
    return text if text.isascii() else _LETTERS.sub(lambda run: f" {' '.join(run[0])} ", text)


def index_text(text: str) -> str:
    """Return the words of a text for the index, without function words unless it has no others."""
    words = " ".join(_content_words(text)).lower()
    return words if words.isascii() else space_letters(words)


def index_words(text: str) -> list[str]:
    """Return the same words as a list; of languages without spaces the letters, and the pairs that queries look for."""
    if not text:
        return []
    words = " ".join(_content_words(text)).lower().split(" ")
    return words if text.isascii() else [part for word in words for part in _split_letters(word)]


def _content_words(text: str) -> list[str]:
    said = _split_words(text)
    return [word for word in said if word not in _FUNCTION_WORDS] or said


def query_terms(query: str, names: Collection[str] = ()) -> tuple[str, ...]:
    """Return the words of a query that are worth looking for, in order, each once.

    Function words and question words are left out, and so are `names` of speakers: they are in everything that is said
    to them. If nothing else remains, the names are taken, and if there are none, all words.
    """
    said = _split_words(query[:MAX_QUERY_CHARS])
    spelled = [word.capitalize() for word in said] if query.isupper() else said
    content = [word for at, word in enumerate(said) if not _is_question_word(spelled[at], at, said)]
    people = set(_split_words(" ".join(names).lower()))
    others = [word for word in content if word.lower() not in people]
    found = dict.fromkeys(term for word in others or content or said for term in _split_terms(word.lower()))
    return tuple(found)[:MAX_TERMS]


def find_named(query: str, names: Iterable[str]) -> frozenset[str]:
    """Return the people that a query names, with all the words of the name."""
    said = set(_split_words(query[:MAX_QUERY_CHARS].lower()))
    return frozenset(name for name in names if (words := _split_words(name.lower())) and said.issuperset(words))


def context_before(text: str, previous: str) -> str:
    """Return the end of the previous message, if this one is too short to be understood alone."""
    if len(text) > SELF_CONTAINED_CHARS or not previous:
        return ""
    if len(previous) <= CONTEXT_CHARS:
        return previous
    return previous[-CONTEXT_CHARS:].partition(" ")[2] or previous[-CONTEXT_CHARS:]


def _split_words(text: str) -> list[str]:
    """Return the words of a text as written, without contractions and possessive endings."""
    if not text.isascii():
        text = fold_text(text)
    if "'" in text:
        text = _ENDINGS.sub(" ", _NEGATED.sub(" ", text))
    if "++" in text:
        text = _PLUSES.sub(r"\1plusplus", text)
    if "#" in text:
        text = _SHARP.sub(r"\1sharp", text)
    said = text.translate(_SPACED).split() if text.isascii() else _WORD.findall(text)
    if said and max(map(len, said)) > MAX_WORD_CHARS:
        said = [word if not word.isascii() and _LETTER.search(word) else word[:MAX_WORD_CHARS] for word in said]
    return said


def _is_question_word(word: str, at: int, said: list[str]) -> bool:
    """Return True if a word is a question word. May is a month next to a number or after `in`."""
    if word not in _QUESTION_WORDS:
        return False
    if word.lower() != "may":
        return True
    beside = said[max(0, at - 1) : at] + said[at + 1 : at + 2]
    after = at > 0 and (word == "May" or said[at - 1] in _MONTH_PREPOSITIONS)
    return not (after or any(neighbour[0].isdigit() for neighbour in beside))


def _split_terms(word: str) -> Iterator[str]:
    """Split a word into terms: pairs of neighbouring letters where a language has no spaces."""
    for run in _split_runs(word):
        if len(run) > 1 and _is_unspaced(run):
            yield from (run[at : at + 2] for at in range(len(run) - 1))
        else:
            yield run


def _split_letters(word: str) -> Iterator[str]:
    """Split a word as `_split_terms` does, with single letters as well."""
    for run in _split_runs(word):
        if len(run) > 1 and _is_unspaced(run):
            yield from run
        yield from _split_terms(run)


def _split_runs(word: str) -> list[str]:
    return [word] if word.isascii() else _RUNS.findall(word)


def _is_unspaced(run: str) -> bool:
    return not run.isascii() and _LETTER.match(run) is not None


def flatten_value(value: Any, limit: int) -> str:
    """Return the searchable text of a value: strings, numbers and field names, in order, up to `limit` characters."""
    lines: list[str] = []
    room = limit
    todo = [("", value)]
    while todo and room > 0:
        name, item = todo.pop()
        text = ""
        if isinstance(item, dict):
            todo += [(str(key), part) for key, part in reversed(item.items())]
        elif isinstance(item, list | tuple):
            todo += [("", part) for part in reversed(item)]
        elif isinstance(item, str):
            text = item
        elif is_number(item, whole=False) and abs(item) < 1e30:
            text = repr(item)
        line = f"{name}: {text}" if name and text else name or text
        if line:
            lines.append(line[:room])
            room -= len(line) + 1
    return "\n".join(lines)


def searchable_text(type_name: str, facts: Any, content: Any, beginning: ReadBeginning) -> str:
    """Return the searchable text of an event by its content, decoded or as bytes; empty for other events."""
    if content is None:
        return ""
    if type_name == MESSAGE_APPENDED:
        said: MessageContent = decode(content, MessageContent) if isinstance(content, bytes) else content
        return content_text(said, beginning)
    if type_name == STATE_WRITTEN:
        held: ValueContent = decode(content, ValueContent) if isinstance(content, bytes) else content
        return f"{facts.key}\n{flatten_value(held.value, INDEXED_CHARS)}"
    return ""


def content_text(content: MessageContent, beginning: ReadBeginning) -> str:
    """Return the text of a message with its results, without calls. Artifacts are read only if there is room."""
    if content.parts is None and content.tool_results is None:
        return (content.text or "")[:INDEXED_CHARS]
    return _join_texts(_content_texts(content, beginning))


def _content_texts(content: MessageContent, beginning: ReadBeginning) -> Iterator[Any]:
    yield content.text
    for part in content.parts or ():
        if part.get("type") in _TEXT_PARTS:
            yield beginning(part["artifact"]) if "artifact" in part else part.get("text")
    for result in content.tool_results or ():
        named = "artifact" in result
        yield beginning(result["artifact"]) if named else flatten_value(result.get("result"), INDEXED_CHARS)


def full_message_text(message: Message) -> str:
    """Return the same text of a message whose large texts were loaded."""
    parts: list[Any] = [message.content]
    if isinstance(message.content, list):
        parts = [part.get("text") for part in message.content if part.get("type") in _TEXT_PARTS]
    return _join_texts((*parts, *(flatten_value(one.result, INDEXED_CHARS) for one in message.tool_results)))


def _join_texts(texts: Iterable[Any]) -> str:
    """Join texts by line breaks, up to the indexed length; further texts are not read."""
    found: list[str] = []
    room = INDEXED_CHARS
    for text in texts:
        if isinstance(text, str) and text:
            found.append(text)
            room -= len(text) + 1
            if room <= 0:
                break
    return "\n".join(found)[:INDEXED_CHARS]


def make_snippet(text: str, terms: Collection[str], width: int = 160) -> str:
    """Return the part of a text with most of the terms, at most `width` characters, with … where it was cut."""
    if len(text) <= width:
        return text.strip()
    start, end = _find_densest(_find_terms(text, terms), width)
    start = max(0, min(start - (width - (end - start)) // 2, len(text) - width))
    end = start + width
    if start > 0:
        start = next((at for at in range(start, start + SNIPPET_SLACK) if text[at - 1].isspace()), start)
    if end < len(text):
        end = next((at for at in range(end, end - SNIPPET_SLACK, -1) if text[at].isspace()), end)
    return ("…" if start > 0 else "") + text[start:end].strip() + ("…" if end < len(text) else "")


def _find_terms(text: str, terms: Collection[str]) -> list[tuple[int, int, str]]:
    """Return the places where words begin like terms, which is close enough to stemming here."""
    patterns = [_prefix_pattern(term) for term in terms if term]
    if not patterns:
        return []
    # One letter for one letter, so that positions are the same in both texts.
    alike = _FOREIGN.sub(lambda letter: unicodedata.normalize("NFKD", letter[0])[0], text).lower()
    return [(*found.span(), found[0]) for found in re.finditer("|".join(patterns), alike)]


def _prefix_pattern(term: str) -> str:
    """Return a pattern for words that begin like a term; a number or a very short word must match whole."""
    if not term.isascii() and _LETTER.match(term):
        return re.escape(term)
    whole = not term.isalpha() or len(term) < 3
    return rf"(?<![^\W_]){re.escape(term)}(?![^\W_])" if whole else rf"(?<![^\W_]){re.escape(term[:STEM_CHARS])}"


def _find_densest(places: list[tuple[int, int, str]], width: int) -> tuple[int, int]:
    """Return the span within a width that has most different terms; of equals the first."""
    best, span, first = 0, (0, 0), 0
    for last, (_, end, _) in enumerate(places):
        while end - places[first][0] > width and first < last:
            first += 1
        different = len({term for _, _, term in places[first : last + 1]})
        if different > best:
            best, span = different, (places[first][0], min(end, places[first][0] + width))
    return span

"""Text as sentences and words, and what a word is worth to somebody who will not see the rest.

Works on prose, code and languages without spaces, and needs no word lists from elsewhere: a word
counts by how rare it is, by its form (a number, an identifier, a name) and, for a few languages,
by its meaning (a decision, a wish, a limit). Every function takes time in proportion to the text.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from holdfast.core.compaction.signals import COURTESY, SIGNALS, STOP_WORDS, listed
from holdfast.core.patterns import late

LONGEST = 320
"""Characters of a sentence. What runs on longer is cut into pieces of that size."""
SHORT_LINE = 60
"""Lines of a list are too short to say anything alone, so neighbours share a sentence."""
LONGEST_WORD = 64
"""Beyond it, it is not a word but data."""
STEM = 7
"""`cancelled` and `cancellation` begin with the same letters. A real stemmer would need a language."""

_WORD = late(r"[$€£¥₹]?\w+(?:[.@/'’\-]\w+|[:,]\d+)*%?")  # noqa: RUF001
_BREAK = late(r"(?<=[.!?…])[\"'”’)\]*]*\s+|(?<=[。！？])|\n+")  # noqa: RUF001
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUNS = late(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_FIRST_UNSPACED, _LETTERS = "\u0e00", late(f"[{_UNSPACED}]")
_BULLET = late(r"\A(?:[-*•–]|#{1,6}|>)\s+")  # noqa: RUF001
_NUMBERED = late(r"\w{1,3}[.)]")
_STRONG = late(r"(?<!\w)\*\*(?=\S)([^*]+)(?<=\S)\*\*(?!\w)")
_UNSTORABLE = late("[\x00-\x1f\x7f\ud800-\udfff]+")
_ABBREVIATIONS = listed("dr. mr. mrs. ms. prof. st. no. nr. vs. e.g. i.e. etc. approx. z.b. bzw. ca. art.")


def words(text: str) -> list[str]:
    """The words of a text as they are written: also amounts, dates, identifiers, paths and addresses."""
    return _WORD.findall(text)


def clean(text: str) -> str:
    """A text on one line that can be stored and shown anywhere: no control characters, no marks of emphasis."""
    return " ".join(_STRONG.sub(r"\1", _UNSTORABLE.sub(" ", text)).split())


def sentences(text: str) -> Iterator[str]:
    """The sentences of a text, in order; the short lines of a list are joined, endless ones are cut."""
    held = ""
    for piece, is_line in _pieces(text):
        if held and is_line and len(held) + len(piece) <= LONGEST // 2 and min(len(held), len(piece)) <= SHORT_LINE:
            held = f"{held} {piece}" if held.rstrip("*").endswith((":", ";", ",", ".")) else f"{held}; {piece}"
            continue
        if held:
            yield from _cut(held)
        held = piece
    if held:
        yield from _cut(held)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """What stands between breaks, without bullets, and whether it began a line."""
    start, began_line = 0, True
    for found in _BREAK.finditer(text):
        piece = text[start : found.end()].strip()
        ends_line = "\n" in found[0]
        if piece and (ends_line or len(piece) > LONGEST or not _goes_on(piece)):
            yield _BULLET.sub("", piece) if began_line else piece, began_line
            start, began_line = found.end(), ends_line
        elif not piece:
            start, began_line = found.end(), began_line or ends_line
    if piece := text[start:].strip():
        yield _BULLET.sub("", piece) if began_line else piece, began_line


def _goes_on(piece: str) -> bool:
    """Whether a full stop here is not the end: an abbreviation, an initial, the number of an item."""
    last = piece[-12:].rsplit(None, 1)[-1]
    return last.lower() in _ABBREVIATIONS or (len(last) == 2 and last[0].isupper()) or bool(_NUMBERED.fullmatch(piece))


def _cut(text: str) -> Iterator[str]:
    start = 0
    while len(text) - start > LONGEST:
        space = text.rfind(" ", start + LONGEST // 2, start + LONGEST)
        end = space if space > 0 else start + LONGEST
        yield text[start:end]
        start = end
    if rest := text[start:].strip():
        yield rest


def terms(word: str) -> tuple[str, ...]:
    """What a word is compared by: its beginning in lower case, or its pairs of letters where none are spaces."""
    if len(word) > LONGEST_WORD and not _LETTERS.search(word):
        return ()
    lower = word.lower().strip("_'’")  # noqa: RUF001
    if not lower or lower in STOP_WORDS:
        return ()
    if max(lower) < _FIRST_UNSPACED:
        return (lower[:STEM] if lower.isalpha() else lower,)
    found: list[str] = []
    for run in _RUNS.findall(lower):
        if _LETTERS.match(run) and len(run) > 1:
            found.extend(run[at : at + 2] for at in range(len(run) - 1))
        else:
            found.append(run)
    return tuple(dict.fromkeys(found))


def worth(word: str) -> float:
    """What a word is worth by its form: an amount, a number, an identifier, an address, a code in capitals."""
    if len(word) > LONGEST_WORD:
        return 0.0
    if any(letter.isdigit() for letter in word):
        if word.isdigit():
            return 1.0 if len(word) > 2 else 0.6 if len(word) > 1 else 0.3
        return 1.5
    inner = word[1:-1]
    if any(mark in inner for mark in "_@/.") or (word[1:] != word[1:].lower() and not word.isupper()):
        return 1.0
    return 0.8 if word.isupper() and word.isascii() and len(word) > 1 else 0.0


def signal(word: str) -> float:
    """What a word says about its sentence: a decision, a wish or a limit counts for it, courtesy against it."""
    if len(word) > LONGEST_WORD and not _LETTERS.search(word):
        return 0.0
    lower = word.lower().replace("’", "'")  # noqa: RUF001
    if lower in SIGNALS or lower in COURTESY or max(lower) < _FIRST_UNSPACED:
        return SIGNALS.get(lower, 0.0) - COURTESY.get(lower, 0.0)
    pairs = terms(word)
    return max((SIGNALS.get(pair, 0.0) for pair in pairs), default=0.0) - max(
        (COURTESY.get(pair, 0.0) for pair in pairs), default=0.0
    )


def names(sentence: str) -> list[str]:
    """Words with a capital that is not owed to their place."""
    found = []
    for match in _WORD.finditer(sentence):
        word, before = match[0], sentence[max(0, match.start() - 2) : match.start()]
        if word[0].isupper() and len(word) > 1 and before[-1:] == " " and before[:1] not in ".!?:;" and terms(word):
            found.append(word)
    return found


class Lexicon(dict[str, float]):
    """Every word of the texts, each judged once: its rarity, its form and its meaning in one number."""

    def __init__(self, texts: Iterable[str]) -> None:
        seen: Counter[str] = Counter()
        self.texts = 0
        for text in texts:
            self.texts += 1
            seen.update(dict.fromkeys(words(text)).keys())
        self.spread: Counter[str] = Counter()
        for word, times in seen.items():
            for term in terms(word):
                self.spread[term] += times

    def rarity(self, term: str) -> float:
        """High for what few messages say."""
        return math.log(1 + self.texts / self.spread.get(term, 1))

    def __missing__(self, word: str) -> float:
        rare = sum(map(self.rarity, terms(word)))
        self[word] = weight = rare / 4 + worth(word) + signal(word)
        return weight

    def strength(self, sentence: str) -> float:
        """How much a sentence says for its length: what decides whether it is looked at closely."""
        found = dict.fromkeys(words(sentence))
        return sum(map(self.__getitem__, found)) / (6 + len(found))


def fit(text: str, most: int, count: Callable[[str], int]) -> str:
    """The longest beginning of a text that is not over `most` tokens, with a mark where it was cut."""
    if count(text) <= most:
        return text
    low, high = 0, len(text) - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count(text[:middle] + "…") <= most else (low, middle - 1)
    space = text.rfind(" ", max(1, low - 20), low)
    for cut in (text[:space].rstrip() + "…" if space > 0 else "", text[:low] + "…", text[:1]):
        if cut.strip(" …") and count(cut) <= most:
            return cut
    return ""

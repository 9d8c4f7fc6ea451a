"""Choose the sentences that stand for a long text, without a model: split, weigh, rank.

A word counts by its rarity, by its form (a number, an identifier, a name) and, for a few languages, by its meaning.
TextRank finds the central sentences, marginal relevance the new ones. The similarity graph is never built: one step of
the walk is two passes over the words, O(n·k) for n sentences of k words in place of O(n²·k), and exact. Works on prose,
code and languages without spaces.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.core.lazy import lazy_pattern
from holdfast.core.sessions.tokens import CountText

MAX_SENTENCE_CHARS = 320
"""Characters of a sentence. Longer ones are cut into pieces of that size."""
SHORT_LINE_CHARS = 60
"""Lines of a list are too short to mean anything alone, so neighbours share a sentence."""
MAX_WORD_CHARS = 64
"""Anything longer is data, not a word."""
STEM_CHARS = 7
"""`cancelled` and `cancellation` begin with the same letters. A real stemmer would need to know the language."""
_WORD = lazy_pattern(r"[$€£¥₹]?\w+(?:[.@/'’\-]\w+|[:,]\d+)*%?")  # noqa: RUF001
_BREAK = lazy_pattern(r"(?<=[.!?…])[\"'”’)\]*]*\s+|(?<=[。！？])|\n+")  # noqa: RUF001
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff"
_RUNS = lazy_pattern(f"[{_UNSPACED}]+|[^{_UNSPACED}]+")
_FIRST_UNSPACED, _UNSPACED_LETTER = "\u0e00", lazy_pattern(f"[{_UNSPACED}]")
_BULLET = lazy_pattern(r"\A(?:[-*•–]|#{1,6}|>)\s+")  # noqa: RUF001
_NUMBERED = lazy_pattern(r"\w{1,3}[.)]")
_EMPHASIS = lazy_pattern(r"(?<!\w)\*\*(?=\S)([^*]+)(?<=\S)\*\*(?!\w)")
_UNSTORABLE = lazy_pattern("[\x00-\x1f\x7f\ud800-\udfff]+")
DAMPING = 0.85
MAX_STEPS = 20
CONVERGENCE = 1e-5
CENTRALITY_WEIGHT, FACT_WEIGHT = 0.6, 0.9
"""Weights: being central to the conversation; each fact that is not yet in the summary."""
MAX_FACT_WORTH = 4.0
"""Beyond it, a sentence is a table, and more numbers make it no better."""
DIVERSITY = 1.5
"""The power of dissimilarity: the penalty for being like a chosen sentence."""
BREVITY = 0.3
"""Between 0, the best sentences whatever their length, and 1, the most for each token."""
MIN_COST = 8
"""Tokens. Below it, being shorter is no merit."""


def word_set(text: str) -> frozenset[str]:
    """Return the words of a list as a set."""
    return frozenset(text.split())


def _weight_table(**lists: str) -> dict[str, float]:
    weights = {"strong": 1.5, "plain": 0.8}
    return {word: weights[name] for name, text in lists.items() for word in text.split()}


SIGNALS = _weight_table(
    strong="""
    decided decide decision agreed agree confirmed cancelled canceled approved rejected
    booked refunded denied chose chosen settled postponed rescheduled promised deadline due
    must never always cannot can't allergic allergy prefer prefers preferred preference require requires required
    forbidden mandatory only except unless important remember instead budget limit maximum minimum
    entschieden beschlossen vereinbart bestätigt storniert abgesagt genehmigt abgelehnt gebucht muss müssen darf
    niemals nie immer allergisch allergie bevorzuge lieber wichtig frist nur
    décidé confirmé annulé convenu refusé approuvé doit jamais toujours allergique préfère préférence important
    decidido decidimos confirmado cancelado acordado rechazado aprobado debe nunca siempre alérgico alérgica prefiero
    deciso confermato annullato deve mai sempre allergico preferisco
    决定 确认 取消 同意 批准 拒绝 必须 不能 不要 过敏 喜欢 偏好 禁止 截止
    決定 確認 承認 必ず 必須 決め 好き 嫌い 期限 アレ
    결정 확인 취소 반드 절대 선호
    """,
    plain="""
    confirm confirmation cancel
    i'll we'll will won't shall going need needs want wants would wouldn't like don't doesn't didn't isn't
    not no without failed failure error blocked missing wrong changed moved switched updated deleted created sent paid
    my name called email phone address
    nicht kein keine brauche möchte werde ne pas besoin voudrais non necesito quiero voy
    """,
)
COURTESY = _weight_table(
    strong="""
    thanks thank hello hi hey welcome glad pleasure sorry apologies sure certainly great danke hallo bitte merci bonjour
    gracias hola grazie ciao 谢谢 你好 がと こん 감사
    """,
    plain="feel free assist assistance further happy help anything else",
)
STOP_WORDS = word_set(
    """
    a an the and or but if of to in on at by for from with as is are was were be been being am it its it's this that
    these those there here he she they them his her their we us our you your yours i me my mine do does did done have
    has had having can could may might will would shall should so than then too very just also about into over out up
    down what which who whom whose when where why how all any each some such no not only own same more most other
    please okay ok yes i'm i'll i've i'd you're we're that's let's let
    der die das den dem des ein eine einen einem einer und oder aber wenn von zu im in an auf bei mit für aus ist sind
    war wird ich du er sie es wir ihr mein dein sein nicht auch als wie so noch nur
    le la les un une des et ou mais si de du au aux en dans sur par pour avec est sont je tu il elle nous vous ils ce
    cette ces que qui ne pas plus
    el los las una unos unas y o pero con por para es son yo ella nosotros que se su sus al lo como más
    """
)

_ABBREVIATIONS = word_set("dr. mr. mrs. ms. prof. st. no. nr. vs. e.g. i.e. etc. approx. z.b. bzw. ca. art.")


def split_words(text: str) -> list[str]:
    """Return the words of a text as written, including amounts, dates, identifiers, paths and addresses."""
    return _WORD.findall(text)


def clean_text(text: str) -> str:
    """Return a text on one line that can be stored and shown anywhere: no control characters, no emphasis."""
    return " ".join(_EMPHASIS.sub(r"\1", _UNSTORABLE.sub(" ", text)).split())


def split_sentences(text: str) -> Iterator[str]:
    """Yield the sentences of a text, in order; short lines of a list are joined, overlong ones are cut."""
    for sentence in _join_short_lines(text):
        *pieces, last = cut_pieces(sentence, MAX_SENTENCE_CHARS)
        yield from pieces
        yield last.strip()


def _join_short_lines(text: str) -> Iterator[str]:
    held = ""
    for piece, is_line in _split_pieces(text):
        if (
            held
            and is_line
            and len(held) + len(piece) <= MAX_SENTENCE_CHARS // 2
            and min(len(held), len(piece)) <= SHORT_LINE_CHARS
        ):
            held = f"{held} {piece}" if held.rstrip("*").endswith((":", ";", ",", ".")) else f"{held}; {piece}"
            continue
        if held:
            yield held
        held = piece
    if held:
        yield held


def _split_pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the texts between breaks, without bullets, and True for those that began a line."""
    start, began_line = 0, True
    for found in _BREAK.finditer(text):
        piece = text[start : found.end()].strip()
        ends_line = "\n" in found[0]
        if piece and (ends_line or len(piece) > MAX_SENTENCE_CHARS or not _continues_sentence(piece)):
            yield _BULLET.sub("", piece) if began_line else piece, began_line
            start, began_line = found.end(), ends_line
        elif not piece:
            start, began_line = found.end(), began_line or ends_line
    if piece := text[start:].strip():
        yield _BULLET.sub("", piece) if began_line else piece, began_line


def _continues_sentence(piece: str) -> bool:
    """Return True if the full stop here does not end a sentence: an abbreviation, an initial, an item's number."""
    last = piece[-12:].rsplit(None, 1)[-1]
    return last.lower() in _ABBREVIATIONS or (len(last) == 2 and last[0].isupper()) or bool(_NUMBERED.fullmatch(piece))


def cut_pieces(text: str, size: int, breaks: str = " ") -> Iterator[str]:
    """Yield a text in pieces of at most `size` characters, cut at a break in their second half if there is one."""
    start = 0
    while len(text) - start > size:
        space = max(text.rfind(mark, start + size // 2, start + size) for mark in breaks)
        end = space if space > 0 else start + size
        yield text[start:end]
        start = end
    if text:
        yield text[start:]


def cut_end(text: str, most: int) -> str:
    """Return the beginning of a text, at most `most` characters, with an ellipsis where it was cut."""
    return text if len(text) <= most else text[: most - 1].rstrip() + "…"


def word_terms(word: str) -> tuple[str, ...]:
    """Return the terms of a word for comparison: its lower-case beginning, or pairs of letters without spaces."""
    if len(word) > MAX_WORD_CHARS and not _UNSPACED_LETTER.search(word):
        return ()
    lower = word.lower().strip("_'’")  # noqa: RUF001
    if not lower or lower in STOP_WORDS:
        return ()
    if max(lower) < _FIRST_UNSPACED:
        return (lower[:STEM_CHARS] if lower.isalpha() else lower,)
    found: list[str] = []
    for run in _RUNS.findall(lower):
        if _UNSPACED_LETTER.match(run) and len(run) > 1:
            found.extend(run[at : at + 2] for at in range(len(run) - 1))
        else:
            found.append(run)
    return tuple(dict.fromkeys(found))


def word_worth(word: str) -> float:
    """Return the worth of a word by its form: an amount, a number, an identifier, an address, a code in capitals."""
    if len(word) > MAX_WORD_CHARS:
        return 0.0
    if any(letter.isdigit() for letter in word):
        if word.isdigit():
            return 1.0 if len(word) > 2 else 0.6 if len(word) > 1 else 0.3
        return 1.5
    inner = word[1:-1]
    if any(mark in inner for mark in "_@/.") or (word[1:] != word[1:].lower() and not word.isupper()):
        return 1.0
    return 0.8 if word.isupper() and word.isascii() and len(word) > 1 else 0.0


def word_signal(word: str) -> float:
    """Return a word's signal for its sentence: decisions, wishes and limits count for it, courtesy against it."""
    if len(word) > MAX_WORD_CHARS and not _UNSPACED_LETTER.search(word):
        return 0.0
    lower = word.lower().replace("’", "'")  # noqa: RUF001
    if lower in SIGNALS or lower in COURTESY or max(lower) < _FIRST_UNSPACED:
        return SIGNALS.get(lower, 0.0) - COURTESY.get(lower, 0.0)
    pairs = word_terms(word)
    return max((SIGNALS.get(pair, 0.0) for pair in pairs), default=0.0) - max(
        (COURTESY.get(pair, 0.0) for pair in pairs), default=0.0
    )


def find_names(sentence: str) -> list[str]:
    """Return the capitalised words that do not begin a sentence."""
    found = []
    for match in _WORD.finditer(sentence):
        word, before = match[0], sentence[max(0, match.start() - 2) : match.start()]
        inside = before[-1:] == " " and before[:1] not in ".!?:;"
        if inside and word[0].isupper() and len(word) > 1 and word_terms(word):
            found.append(word)
    return found


class Lexicon(dict[str, float]):
    """Every word of the texts, each weighed once: its rarity, form and meaning in one number."""

    def __init__(self, texts: Iterable[str]) -> None:
        seen: Counter[str] = Counter()
        self.texts = 0
        for text in texts:
            self.texts += 1
            seen.update(dict.fromkeys(split_words(text)).keys())
        self.spread: Counter[str] = Counter()
        for word, times in seen.items():
            for term in word_terms(word):
                self.spread[term] += times

    def rarity(self, term: str) -> float:
        """Return the rarity of a term, high if few texts have it."""
        return math.log(1 + self.texts / self.spread.get(term, 1))

    def __missing__(self, word: str) -> float:
        rare = sum(map(self.rarity, word_terms(word)))
        self[word] = weight = rare / 4 + word_worth(word) + word_signal(word)
        return weight

    def strength(self, sentence: str) -> float:
        """Return the weight of a sentence relative to its length, to preselect candidates."""
        found = dict.fromkeys(split_words(sentence))
        return sum(map(self.__getitem__, found)) / (6 + len(found))


def fit_text(text: str, most: int, count: CountText) -> str:
    """Return the longest beginning of a text within `most` tokens, with an ellipsis where it was cut."""
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


class SentenceCandidate(msgspec.Struct, frozen=True, gc=False):
    """A sentence that may be chosen."""

    vector: dict[str, float]
    """Its terms by weight, of length 1; empty if it has none."""
    facts: dict[str, float]
    """Its numbers, names and identifiers, by worth."""
    bonus: float
    """A bonus that does not depend on other choices."""
    cost: int
    """Tokens."""


def normalize_vector(weights: dict[str, float]) -> dict[str, float]:
    """Scale a vector to length 1."""
    length = math.sqrt(sum(weight * weight for weight in weights.values()))
    return {term: weight / length for term, weight in weights.items()} if length else {}


def compute_ranks(vectors: Sequence[dict[str, float]]) -> list[float]:
    """Return the centrality of each vector, the most central being 1. Rounded, so that platforms agree."""
    if not vectors:
        return []
    index = {term: at for at, term in enumerate(dict.fromkeys(term for vector in vectors for term in vector))}
    rows = [[(index[term], weight) for term, weight in vector.items()] for vector in vectors]
    # A sentence gives to others in proportion to their similarity; its similarity to itself (1) does not count.
    degrees = [max(0.0, degree - 1.0) for degree in _walk_graph(rows, [1.0] * len(rows), len(index))]
    ranked = [1.0] * len(rows)
    for _ in range(MAX_STEPS):
        given = [rank / degree if degree > CONVERGENCE else 0.0 for rank, degree in zip(ranked, degrees, strict=True)]
        reached = _walk_graph(rows, given, len(index))
        following = [
            (1 - DAMPING) + DAMPING * (max(0.0, got - own) if degree > CONVERGENCE else 0.0)
            for got, own, degree in zip(reached, given, degrees, strict=True)
        ]
        change = max(abs(after - before) for after, before in zip(following, ranked, strict=True))
        ranked = following
        if change < CONVERGENCE:
            break
    top = max(ranked)
    return [round(rank / top, 6) for rank in ranked]


def _walk_graph(rows: list[list[tuple[int, float]]], given: list[float], size: int) -> list[float]:
    """Take one step along all edges: each sentence gives to its words, and words give to their sentences."""
    held = [0.0] * size
    for row, amount in zip(rows, given, strict=True):
        if amount:
            for at, weight in row:
                held[at] += amount * weight
    return [sum([held[at] * weight for at, weight in row]) for row in rows]


def choose_sentences(candidates: Sequence[SentenceCandidate], most: int, told: Iterable[str] = ()) -> list[int]:
    """Choose candidates within `most` tokens, in order of choice. Facts that are `told` already count for nothing."""
    table = _ValueTable(candidates, set(told))
    left = [at for at, candidate in enumerate(candidates) if candidate.cost <= most]
    chosen: list[int] = []
    while left:
        best = max(left, key=table.values.__getitem__)  # The first of equals, so that the order is deterministic.
        if chosen and table.values[best] <= 0:
            break  # The rest says nothing new.
        chosen.append(best)
        most -= candidates[best].cost
        table.learn(best)
        left = [at for at in left if at != best and candidates[at].cost <= most]
    return chosen


class _ValueTable:
    """The value of each candidate given those that were chosen."""

    def __init__(self, candidates: Sequence[SentenceCandidate], known: set[str]) -> None:
        self.candidates, self.known = candidates, known
        self.central = compute_ranks([candidate.vector for candidate in candidates])
        self.alike = [0.0] * len(candidates)
        self.by_term: dict[str, list[tuple[int, float]]] = {}
        self.by_fact: dict[str, list[int]] = {}
        for at, candidate in enumerate(candidates):
            for term, weight in candidate.vector.items():
                self.by_term.setdefault(term, []).append((at, weight))
            for fact in candidate.facts:
                self.by_fact.setdefault(fact, []).append(at)
        self.values = [self._value(at) for at in range(len(candidates))]

    def learn(self, best: int) -> None:
        """Update the values after a choice: similar candidates lose, and known facts no longer count."""
        likeness: dict[int, float] = {}
        for term, weight in self.candidates[best].vector.items():
            for at, other in self.by_term[term]:
                likeness[at] = likeness.get(at, 0.0) + weight * other
        changed = {at for fact in self.candidates[best].facts for at in self.by_fact[fact]}
        self.known.update(self.candidates[best].facts)
        for at, cosine in likeness.items():
            if cosine > self.alike[at]:
                self.alike[at] = cosine
                changed.add(at)
        for at in changed:
            self.values[at] = self._value(at)

    def _value(self, at: int) -> float:
        candidate = self.candidates[at]
        news = sum([worth for fact, worth in candidate.facts.items() if fact not in self.known])
        gain = CENTRALITY_WEIGHT * self.central[at] + FACT_WEIGHT * min(MAX_FACT_WORTH, news) + candidate.bonus
        if gain > 0:
            gain *= max(0.0, 1 - self.alike[at]) ** DIVERSITY
        return round(gain / math.pow(max(MIN_COST, candidate.cost), BREVITY), 9)

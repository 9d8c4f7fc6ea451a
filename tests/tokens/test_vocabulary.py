"""Short texts are counted by a vocabulary before splintr is loaded: as splintr counts them, or not at all."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import regex
import splintr
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import InvalidValue
from holdfast.model import tokenizers, vocabulary
from holdfast.model.tokenizers import SplintrTokenizer, load_openai, load_splintr, resolve_tokenizer
from holdfast.model.vocabulary import Vocabulary, load_vocabulary
from tests.scale import seeded, volume
from tests.tokens.oracle import oracle
from tests.tokens.samples import CODE, LANGUAGES, samples
from tests.tokens.strings import SPECIAL, generated

ENCODINGS = ("o200k_base", "cl100k_base")
TEXT = "Refund order 17 of 1299.50 EUR, zqxjkwv! Ja, natürlich?\n\n\treturn prices[i]  # don't, I'LL"


@pytest.fixture(params=ENCODINGS)
def encoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """An encoding whose vocabulary counts without an end, and of which nothing is loaded."""
    monkeypatch.setattr(vocabulary, "EARLY_CHARACTERS", 1 << 60)
    monkeypatch.setattr(tokenizers, "_tokenizers", {})
    return str(request.param)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The encodings that splintr loads during a test."""
    found: list[str] = []

    def load(name: str) -> SplintrTokenizer:
        found.append(name)
        return load_splintr(name)

    monkeypatch.setattr(tokenizers, "load_splintr", load)
    monkeypatch.setattr(tokenizers, "_tokenizers", {})
    return found


def ready(encoding: str) -> Vocabulary:
    found = load_vocabulary(encoding)
    assert found is not None
    return found


def independent(encoding: str) -> Callable[[str], int]:
    """Count by an implementation of other people."""
    encode = oracle(encoding).encode_ordinary
    return lambda text: len(encode(text))


def prose(r: random.Random, number: int) -> Iterator[str]:
    """Texts that people and programs write: parts of sentences in many languages, and of code."""
    texts = (*LANGUAGES.values(), CODE, TEXT)
    for _ in range(number):
        pieces = []
        for _ in range(r.randrange(1, 6)):
            text = r.choice(texts)
            start = r.randrange(len(text))
            pieces.append(text[start : start + r.randrange(1, 80)])
        yield "".join(pieces)


def differing(ours: Vocabulary, other: Callable[[str], int], texts: Iterable[str]) -> tuple[list[str], int]:
    """The texts that are counted wrongly, and how many were counted."""
    wrong, counted = [], 0
    for text in texts:
        found = ours.count(text)
        counted += found is not None
        if found is not None and found != other(text):
            wrong.append(text)
    return wrong, counted


def test_counts_equal_an_independent_implementation_on_prose_and_code(encoding: str) -> None:
    number = volume(2_000, 20_000)
    wrong, counted = differing(ready(encoding), independent(encoding), prose(seeded("prose"), number))
    assert wrong == []
    assert counted > 0.6 * number


def test_counts_equal_it_on_generated_strings_special_tokens_and_samples(encoding: str) -> None:
    number = volume(2_000, 20_000)
    texts = (*generated(seeded("early strings"), number), *SPECIAL, *samples().values())
    wrong, counted = differing(ready(encoding), independent(encoding), texts)
    assert wrong == []
    assert counted > 0.3 * number


@settings(deadline=None, max_examples=volume(200, 5_000))
@given(text=st.text(st.characters(max_codepoint=0x24F), max_size=40))
def test_counts_equal_splintrs_on_any_text_of_latin_letters(text: str) -> None:
    for name, (ours, theirs) in both().items():
        ours._room = 1 << 60
        assert ours.count(text) in (None, theirs.count(text)), name


@cache
def both() -> dict[str, tuple[Vocabulary, SplintrTokenizer]]:
    return {name: (ready(name), load_splintr(name)) for name in ENCODINGS}


def around(code: int) -> str:
    """A character where patterns could take it for a letter of either case, a mark, a digit, a space or a sign."""
    it = chr(code)
    return f"a{it}b {it}C{it}{it}1{it}23456 {it}\n{it}'s '{it} {it}{it}D{it}e{it} {it}"


def split_differently(encoding: str, codes: Iterable[int]) -> tuple[list[str], int]:
    """The characters around which a text is split in other places, and how many were not refused."""
    pattern = {"o200k_base": splintr.O200K_BASE_PATTERN, "cl100k_base": splintr.CL100K_BASE_PATTERN}[encoding]
    split, ours = regex.compile(pattern).findall, ready(encoding)
    wrong, known = [], 0
    for text in map(around, codes):
        found = ours.split(text)
        known += found is not None
        if found is not None and found != split(text):
            wrong.append(text)
    return wrong, known


def test_a_text_is_split_around_every_character_as_openais_pattern_splits_it_or_refused(encoding: str) -> None:
    codes = [*range(0xD800), *range(0xE000, 0x110000)]
    chosen = [*range(0x3000), *seeded("characters").sample(codes, volume(10_000, len(codes)))]
    wrong, known = split_differently(encoding, chosen)
    assert wrong == []
    assert known > 8_000
    wrong, counted = differing(ready(encoding), both()[encoding][1].count, map(around, chosen))
    assert wrong == []
    assert counted == known


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "marks are letters": lambda patch: patch.setitem(vocabulary._STANDS_FOR, "M", vocabulary._LETTER),
    "capitals are small letters": lambda patch: patch.setitem(vocabulary._STANDS_FOR, "Lu", vocabulary._LOWER),
    "signs are numbers": lambda patch: patch.setitem(vocabulary._STANDS_FOR, "S", vocabulary._NUMBER),
    "a next line is no space": lambda patch: patch.setattr(vocabulary, "_NEXT_LINE", -1),
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_character_in_a_wrong_category_would_be_noticed(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[bug](monkeypatch)
    assert split_differently("o200k_base", range(0x80, 0x3000))[0]


def test_a_character_of_an_unsettled_category_is_refused(encoding: str) -> None:
    ours = ready(encoding)
    assert [odd for odd in "\u017f\u212a\u0295\u1c89\ue000" if ours.split(f"it'{odd} {odd}") is not None] == []


def test_a_merge_of_the_last_of_equal_pairs_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def merge(piece: bytes, rank: Callable[[bytes], int]) -> int:
        return vocabulary_merge(piece[::-1], lambda token: rank(token[::-1]))

    vocabulary_merge = vocabulary._merge
    monkeypatch.setattr(vocabulary, "_merge", merge)
    monkeypatch.setattr(vocabulary, "EARLY_CHARACTERS", 1 << 60)
    wrong, _ = differing(ready("o200k_base"), both()["o200k_base"][1].count, generated(seeded("merges"), 2_000))
    assert wrong


def writer() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "generate_vocabularies.py"
    spec = importlib.util.spec_from_file_location("generate_vocabularies", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_vocabularys_file_holds_what_splintr_holds(encoding: str) -> None:
    body = writer().build_table(encoding)
    assert ready(encoding)._table == body
    assert vocabulary.CHECKSUMS[encoding] == (len(body), zlib.crc32(body))


def test_short_texts_are_counted_without_loading_splintr(loads: list[str]) -> None:
    assert resolve_tokenizer("o200k_base").count(TEXT) == independent("o200k_base")(TEXT)
    assert resolve_tokenizer("estimate:2").count(TEXT) > 0
    assert loads == []


@pytest.mark.parametrize("text", ["a" * 1_000, "a new letter: \u1c89", "x" * 40_000, TEXT * 500, "\u017f"])
def test_a_text_that_the_vocabulary_cannot_count_loads_splintr_once_for_all_that_follow(
    text: str, loads: list[str]
) -> None:
    ours = resolve_tokenizer("o200k_base")
    for each in (TEXT, text, TEXT, text):
        assert ours.count(each) == independent("o200k_base")(each)
    assert loads == ["o200k_base"]


def test_the_vocabulary_counts_a_limited_number_of_characters(loads: list[str]) -> None:
    ours = resolve_tokenizer("cl100k_base")
    number = 0
    while not loads:
        number += 1
        assert ours.count(TEXT) == independent("cl100k_base")(TEXT)
    assert number <= vocabulary.EARLY_CHARACTERS // len(TEXT) + 1


def test_what_is_no_text_is_refused_before_and_after_splintr_is_loaded(loads: list[str]) -> None:
    ours = resolve_tokenizer("o200k_base")
    for _ in range(2):
        for wrong in ("a\ud800b", b"bytes", 7, None):
            with pytest.raises(InvalidValue, match="surrogate" if isinstance(wrong, str) else "Only text has tokens"):
                ours.count(wrong)  # type: ignore[arg-type]


def flip_a_byte(body: bytes) -> bytes:
    return body[:-1] + bytes((body[-1] ^ 1,))


@pytest.mark.parametrize(
    "damage",
    [lambda body: body[:-1], flip_a_byte, lambda body: b"", None],
    ids=["cut off", "a bit flipped", "empty", "missing"],
)
def test_a_damaged_file_is_not_used_and_counts_stay_the_same(
    damage: Callable[[bytes], bytes] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if damage is not None:
        (tmp_path / "o200k_base.ranks").write_bytes(damage(ready("o200k_base")._table))
    monkeypatch.setattr(vocabulary, "_FOLDER", tmp_path)
    found = load_openai("o200k_base")
    assert isinstance(found, SplintrTokenizer)
    assert found.count(TEXT) == independent("o200k_base")(TEXT)


def test_a_vocabulary_that_miscounts_the_known_texts_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    other = Vocabulary("o200k_base", ready("cl100k_base")._table)
    monkeypatch.setattr(tokenizers, "load_vocabulary", lambda _: other)
    assert isinstance(load_openai("o200k_base"), SplintrTokenizer)


def test_counts_are_the_same_without_a_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = list(prose(seeded("off"), 200))
    ours = load_openai("o200k_base")
    early = [ours.count(text) for text in texts]
    monkeypatch.setattr(tokenizers, "load_vocabulary", lambda _: None)
    off = load_openai("o200k_base")
    assert isinstance(off, SplintrTokenizer)
    assert early == [off.count(text) for text in texts]


def test_threads_count_alike_while_splintr_takes_over(loads: list[str]) -> None:
    texts = list(prose(seeded("threads"), 2_000))
    expected = [independent("o200k_base")(text) for text in texts]
    ours = resolve_tokenizer("o200k_base")
    with ThreadPoolExecutor(8) as pool:
        rounds = list(pool.map(lambda _: [ours.count(text) for text in texts], range(8)))
    assert all(counts == expected for counts in rounds)
    assert loads == ["o200k_base"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_forked_while_another_thread_loads_splintr_loads_it_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, began, done = load_openai("o200k_base"), threading.Event(), threading.Event()

    def wait(name: str) -> SplintrTokenizer:
        began.set()
        done.wait(60)
        return load_splintr(name)

    monkeypatch.setattr(tokenizers, "load_splintr", wait)
    loader = threading.Thread(target=ours.count, args=("a" * 1_000,))
    loader.start()
    assert began.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(60)  # Waiting for a lock of the parent's thread would never end.
        monkeypatch.setattr(tokenizers, "load_splintr", load_splintr)
        os._exit(0 if ours.count("a" * 1_000) == 125 else 1)
    done.set()
    loader.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert ours.count("a" * 1_000) == 125


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_counts_by_the_vocabulary_and_loads_splintr_itself() -> None:
    ours = load_openai("o200k_base")
    assert ours.count(TEXT) == independent("o200k_base")(TEXT)
    child = os.fork()
    if child == 0:
        wrong = ours.count("zqxjkwv zq") != 7 or ours.count("a" * 1_000) != 125
        os._exit(1 if wrong else 0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

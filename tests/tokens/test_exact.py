"""Counts of OpenAI's encodings are exact: another implementation, and OpenAI's own vocabulary, agree."""

from __future__ import annotations

import base64
import hashlib
from types import SimpleNamespace
from typing import Any

import pytest
import splintr

from holdfast.errors import InvalidValue
from holdfast.model import tokenizers
from holdfast.model.tokenizers import SplintrTokenizer, resolve_tokenizer
from tests.scale import seeded, volume
from tests.tokens.oracle import oracle
from tests.tokens.samples import samples
from tests.tokens.strings import SPECIAL, generated

ENCODINGS = ("o200k_base", "cl100k_base")


@pytest.fixture(scope="module", params=ENCODINGS)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Ours and the oracle's."""
    return resolve_tokenizer(request.param), oracle(request.param)


def differing(ours: Any, other: Any, texts: Any) -> list[str]:
    return [text for text in texts if ours.count(text) != len(other.encode_ordinary(text))]


def test_counts_equal_an_independent_implementation_on_generated_strings(pair: tuple[Any, Any]) -> None:
    ours, other = pair
    r = seeded("generated strings")
    assert differing(ours, other, generated(r, volume(2_000, 20_000))) == []


def test_counts_equal_it_on_languages_code_data_noise_and_runs(pair: tuple[Any, Any]) -> None:
    assert differing(*pair, samples().values()) == []


def test_special_tokens_spelled_in_a_text_are_ordinary_text(pair: tuple[Any, Any]) -> None:
    ours, other = pair
    assert differing(ours, other, SPECIAL) == []
    for name in other.special_tokens_set:
        assert ours.count(name) > 1
        assert ours.count(f"a{name}b") == len(other.encode_ordinary(f"a{name}b"))


@pytest.mark.parametrize("planted", ["special tokens in lists", "special tokens in bytes", "one token lost"])
def test_a_counter_that_recognises_special_tokens_or_miscounts_would_be_noticed(planted: str) -> None:
    real = splintr.Tokenizer.from_pretrained("o200k_base")
    wrong = SimpleNamespace(
        encode_ordinary=real.encode if planted == "special tokens in lists" else real.encode_ordinary,
        encode_flat=(lambda text: real.encode_flat(text)[4:]) if planted == "one token lost" else real.encode_flat,
        clear_cache=real.clear_cache,
    )
    ours = SplintrTokenizer("o200k_base", wrong)
    other = oracle("o200k_base")
    with pytest.MonkeyPatch.context() as patch:
        if planted == "special tokens in bytes":
            patch.setattr(tokenizers, "SPECIAL_PREFIX", "\0never")
        found = differing(ours, other, generated(seeded(planted), 500))
    assert len(found) > 5


@pytest.mark.parametrize("name", ENCODINGS)
def test_the_vocabulary_is_openais_byte_for_byte(name: str) -> None:
    """Written in OpenAI's file format, it has the digest that OpenAI's own library demands of its download."""
    loaded = splintr.Tokenizer.from_pretrained(name)
    number = {"o200k_base": 199_998, "cl100k_base": 100_256}[name]
    lines = (b"%s %d\n" % (base64.b64encode(loaded.decode_token_bytes(rank)), rank) for rank in range(number))
    assert hashlib.sha256(b"".join(lines)).hexdigest() == tokenizers._FILES[name][1]


def test_long_runs_of_one_character_are_counted_and_not_refused() -> None:
    ours = resolve_tokenizer("o200k_base")
    assert ours.count(" " * 1_000_000) == 7_813
    assert ours.count("a" * 200_000) == 25_000
    assert ours.count("的" * 100_000) == 100_000


def test_a_lone_surrogate_and_what_is_not_text_are_refused_by_every_tokenizer() -> None:
    for name in (*ENCODINGS, "estimate:1.5"):
        ours = resolve_tokenizer(name)
        for wrong in ("a\ud800b", "\udfff<|endoftext|>", b"bytes", 7, None, ["text"]):
            with pytest.raises(InvalidValue, match="surrogate" if isinstance(wrong, str) else "Only text has tokens"):
                ours.count(wrong)


def test_nothing_has_no_tokens_and_text_with_nul_is_counted() -> None:
    for name in ENCODINGS:
        assert resolve_tokenizer(name).count("") == 0
        assert resolve_tokenizer(name).count("a\0b") == len(oracle(name).encode_ordinary("a\0b"))

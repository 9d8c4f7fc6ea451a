"""Tokenizers are loaded once, on first use, checked, shared by threads, and hold a bounded amount of memory."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import splintr

from holdfast.errors import InvalidValue, Unsupported
from holdfast.model import tokenizers
from holdfast.model.tokenizers import SplintrTokenizer, load_splintr, resolve_tokenizer
from tests.scale import seeded
from tests.tokens.strings import generated


def test_importing_holdfast_and_its_model_package_loads_no_tokenizer() -> None:
    script = (
        "import sys, holdfast, holdfast.model.registry, holdfast.core.sessions.tokens\n"
        "assert not {'splintr', 'tiktoken', 'bpe_openai'} & set(sys.modules)\n"
        "assert holdfast.model.tokenizers.resolve_tokenizer().count('hello world') == 2\n"
        "assert 'splintr' in sys.modules and 'tiktoken' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=30)


def test_a_name_stands_for_one_object_and_no_name_for_openais_newest() -> None:
    assert resolve_tokenizer() is resolve_tokenizer(None) is resolve_tokenizer("o200k_base")
    assert resolve_tokenizer("o200k_harmony") is resolve_tokenizer("o200k_base")
    assert resolve_tokenizer("estimate") is resolve_tokenizer("estimate:1.5") is resolve_tokenizer("estimate:1.50")
    assert resolve_tokenizer(resolve_tokenizer("cl100k_base")) is resolve_tokenizer("cl100k_base")
    assert [resolve_tokenizer(name).exact for name in ("o200k_base", "cl100k_base", "estimate:2")] == [
        True,
        True,
        False,
    ]


@pytest.mark.parametrize(
    "name", ["gpt2", "p50k_base", "o200k", "", "tiktoken:", "tiktoken:gpt2", "O200K_BASE", "x" * 9000]
)
def test_an_unknown_name_is_refused_with_the_names_that_are_known(name: str) -> None:
    with pytest.raises(InvalidValue, match=r"o200k_base.*cl100k_base.*tiktoken:p50k_base"):
        resolve_tokenizer(name)


@pytest.mark.parametrize(
    "name", ["estimate:", "estimate:0.5", "estimate:nan", "estimate:inf", "estimate:x", "estimate:99"]
)
def test_an_estimate_has_a_sensible_factor(name: str) -> None:
    if name == "estimate:":
        assert resolve_tokenizer(name).name == "estimate:1.5"
    else:
        with pytest.raises(InvalidValue, match="factor from 1 to 10"):
            resolve_tokenizer(name)


def replaced(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """An installed splintr that is not the one we know."""
    real = splintr.Tokenizer.from_pretrained("o200k_base")
    methods = {
        "encode_ordinary": real.encode_ordinary,
        "encode_flat": real.encode_flat,
        "encode_batch": real.encode_batch,
        "clear_cache": real.clear_cache,
        "special_tokens": real.special_tokens,
        "vocab_size": real.vocab_size,
    }
    size = changes.pop("base", splintr.base_vocab_size("o200k_base"))
    loaded = SimpleNamespace(**(methods | changes))
    fake = SimpleNamespace(
        Tokenizer=SimpleNamespace(from_pretrained=lambda name: loaded), base_vocab_size=lambda name: size
    )
    monkeypatch.setitem(sys.modules, "splintr", fake)


def test_the_double_of_splintr_loads_when_nothing_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch)
    assert load_splintr("o200k_base").count("hello world") == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"vocab_size": 256, "encode_flat": lambda text: bytes(4) * len(text.encode())},
        {"encode_flat": lambda text: bytes(4) * len(text.encode())},
        {"encode_ordinary": splintr.Tokenizer.from_pretrained("o200k_base").encode},
        {"encode_ordinary": splintr.Tokenizer.from_pretrained("cl100k_base").encode_ordinary},
        {"vocab_size": 199_000},
        {"base": 100_277},
        {"special_tokens": lambda: {"[CLS]": 1}},
        {"special_tokens": None},
    ],
    ids=[
        "bytes only",
        "bytes",
        "special tokens",
        "another encoding",
        "few",
        "size",
        "strange specials",
        "another shape",
    ],
)
def test_a_wheel_with_a_wrong_vocabulary_is_refused_when_it_is_loaded(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    replaced(monkeypatch, **changes)
    monkeypatch.setattr(tokenizers, "_tokenizers", {})
    with pytest.raises(Unsupported, match="pip install 'splintr-rs"):
        load_splintr("o200k_base")
    for _ in range(2):
        with pytest.raises(Unsupported, match="pip install 'splintr-rs"):
            resolve_tokenizer("o200k_base").count("a" * 1_000)


def test_a_wheel_with_a_vocabulary_of_another_size_is_refused_before_anything_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replaced(monkeypatch, base=100_277)
    monkeypatch.setattr(tokenizers, "_tokenizers", {})
    with pytest.raises(Unsupported, match="pip install 'splintr-rs"):
        resolve_tokenizer("o200k_base")
    assert tokenizers._tokenizers == {}


def test_the_table_of_merges_is_built_by_the_call_that_gives_up_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    real = splintr.Tokenizer.from_pretrained("o200k_base")
    called: list[str] = []

    def noted(name: str) -> Any:
        return lambda text: (called.append(name), getattr(real, name)(text))[1]

    replaced(monkeypatch, **{name: noted(name) for name in ("encode_batch", "encode_ordinary", "encode_flat")})
    load_splintr("o200k_base")
    assert called[0] == "encode_batch"
    assert {"encode_ordinary", "encode_flat"} <= set(called[1:])


def test_the_check_at_loading_is_what_refuses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    replaced(monkeypatch, encode_flat=lambda text: bytes(4) * len(text.encode()))
    monkeypatch.setattr(tokenizers, "_verify_encoding", lambda counter, *_: counter)
    assert load_splintr("o200k_base").count("hello world") == 11


def test_a_missing_splintr_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "splintr", None)
    monkeypatch.setattr(tokenizers, "_tokenizers", {})
    for load in (load_splintr, resolve_tokenizer):
        with pytest.raises(Unsupported, match=r"splintr is not installed.*pip install"):
            load("o200k_base")


def test_eight_threads_count_as_one_does_also_while_the_cache_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "CACHED_CHARACTERS", 2_000)
    monkeypatch.setattr(tokenizers, "_tokenizers", {})
    texts = list(generated(seeded("threads"), 300))
    with ThreadPoolExecutor(8) as pool:
        shared = set(pool.map(lambda _: resolve_tokenizer("o200k_base"), range(8)))
        assert len(shared) == 1
        ours = shared.pop()
        expected = [ours.count(text) for text in texts]
        rounds = list(pool.map(lambda _: [ours.count(text) for text in texts], range(16)))
    assert all(counts == expected for counts in rounds)


def test_memory_is_bounded_by_text_and_not_only_by_the_number_of_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizers, "CACHED_CHARACTERS", 200_000)
    loaded = splintr.Tokenizer.from_pretrained("o200k_base")
    ours = SplintrTokenizer("o200k_base", loaded)
    r = seeded("long words")
    most = 0
    for _ in range(100):
        ours.count("".join(r.choices("abcdefghij", k=10_000)))
        most = max(most, loaded.cache_len)
    assert most <= 21
    monkeypatch.setattr(ours, "_forget", lambda: None)
    for _ in range(100):
        ours.count("".join(r.choices("abcdefghij", k=10_000)))
    assert loaded.cache_len > 90

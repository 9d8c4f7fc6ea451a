"""A caller's own tokenizer, and tiktoken: they count, or are refused by name; nothing foreign comes through."""

from __future__ import annotations

import functools
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiktoken
import tiktoken.load

from holdfast.errors import InvalidValue, Unsupported
from holdfast.model.registry import ModelRegistry
from holdfast.model.tokenizers import FunctionTokenizer, load_tiktoken, resolve_tokenizer
from tests.scale import seeded
from tests.tokens.oracle import vocabulary_file
from tests.tokens.strings import generated


def by_words(text: str) -> int:
    return len(text.split())


class Vendor:
    name = "vendor-3"
    exact = True

    def count(self, text: str) -> int:
        return len(text)


class PanicException(BaseException):
    """As compiled extensions raise it: not an Exception."""


def test_a_function_counts_under_its_own_name_and_is_not_taken_for_exact() -> None:
    ours = resolve_tokenizer(by_words)
    assert (ours.name, ours.exact, ours.count("a b  c")) == ("by_words", False, 3)


def test_an_object_with_a_name_counts_and_may_say_that_it_is_exact() -> None:
    ours = resolve_tokenizer(Vendor())
    assert (ours.name, ours.exact, ours.count("abc")) == ("vendor-3", True, 3)
    assert resolve_tokenizer(ours) is ours


def test_a_custom_tokenizer_serves_every_model_of_a_client_that_was_opened_with_it() -> None:
    models = ModelRegistry(Vendor())
    assert models.info("gpt-4o").tokenizer == "vendor-3"
    assert models.tokenizer().name == models.tokenizer("vendor-3").name == "vendor-3"
    assert models.tokenizer("cl100k_base").name == "cl100k_base"
    plain = ModelRegistry()
    assert plain.info("gpt-4").tokenizer == "cl100k_base"
    assert plain.tokenizer().name == "o200k_base"


@pytest.mark.parametrize(
    "wrong", [lambda text: 1, functools.partial(by_words), 7, b"o200k", ["o200k_base"], Vendor, object()]
)
def test_what_has_no_name_or_cannot_count_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidValue):
        resolve_tokenizer(wrong)


@pytest.mark.parametrize("name", ["o200k_base", "tiktoken:x", "estimate:1.2", "o200k_harmony", "a\nb", "n" * 200])
def test_a_custom_tokenizer_cannot_take_a_name_that_means_something_else(name: str) -> None:
    taken = Vendor()
    taken.name = name
    with pytest.raises(InvalidValue):
        resolve_tokenizer(taken)


@pytest.mark.parametrize("given", [-1, True, False, 2.0, "3", None, [1]])
def test_a_count_that_is_no_number_of_tokens_is_refused_by_the_tokenizers_name(given: Any) -> None:
    with pytest.raises(InvalidValue, match=r"tokenizer odd gave .* int of 0 or more"):
        FunctionTokenizer("odd", lambda text: given).count("text")


@pytest.mark.parametrize("error", [RuntimeError("boom"), ValueError("\ud800"), MemoryError(), PanicException("stack")])
def test_a_tokenizer_that_raises_is_refused_without_its_traceback(error: BaseException) -> None:
    def broken(text: str) -> int:
        raise error

    with pytest.raises(InvalidValue, match="tokenizer broken failed on a text of 4 characters") as refused:
        resolve_tokenizer(broken).count("text")
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interruption_while_counting_stays_what_it_is(error: type[BaseException]) -> None:
    def interrupted(text: str) -> int:
        raise error

    with pytest.raises(error):
        resolve_tokenizer(interrupted).count("text")


def test_a_custom_tokenizer_never_sees_a_lone_surrogate_or_what_is_not_text() -> None:
    seen: list[Any] = []

    def spy(text: str) -> int:
        seen.append(text)
        return 0

    for wrong in ("\ud800", 7, None):
        with pytest.raises(InvalidValue):
            resolve_tokenizer(spy).count(wrong)  # type: ignore[arg-type]
    assert seen == []


@pytest.fixture
def no_vocabulary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """tiktoken as it is on a new machine, with a network that must not be used."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})

    def forbidden(*_: Any, **__: Any) -> Any:
        raise AssertionError("a connection was made")

    monkeypatch.setattr(socket.socket, "connect", forbidden)
    monkeypatch.setattr(tiktoken.load, "read_file", forbidden)
    return tmp_path


def cached(folder: Path) -> Path:
    """Where tiktoken keeps the vocabulary of cl100k_base."""
    return folder / "9b5ad71b2ce5302211f9c61530b329a4922fc6a4"


def test_tiktoken_counts_from_a_vocabulary_on_disk_as_the_default_does(no_vocabulary: Path) -> None:
    cached(no_vocabulary).write_bytes(vocabulary_file("cl100k_base"))
    ours = load_tiktoken("cl100k_base")
    assert (ours.name, ours.exact) == ("tiktoken:cl100k_base", True)
    texts = list(generated(seeded("tiktoken"), 200))
    assert [ours.count(text) for text in texts] == [resolve_tokenizer("cl100k_base").count(text) for text in texts]
    with pytest.raises(InvalidValue, match="surrogate"):
        ours.count("\ud800")


@pytest.mark.parametrize("body", [None, b"", b"half a vocabulary"])
def test_without_its_vocabulary_tiktoken_is_refused_and_nothing_is_fetched_or_removed(
    no_vocabulary: Path, body: bytes | None
) -> None:
    if body is not None:
        cached(no_vocabulary).write_bytes(body)
    with pytest.raises(Unsupported, match=r"downloads nothing.*TIKTOKEN_CACHE_DIR.*Or use 'cl100k_base'"):
        resolve_tokenizer("tiktoken:cl100k_base")
    assert [path.read_bytes() for path in no_vocabulary.iterdir()] == ([] if body is None else [body])


@pytest.mark.parametrize("folder", ["", "/nonexistent/folder"])
def test_a_folder_that_keeps_nothing_is_no_vocabulary(
    no_vocabulary: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", folder)
    with pytest.raises(Unsupported, match="downloads nothing"):
        resolve_tokenizer("tiktoken:r50k_base")


def test_a_missing_tiktoken_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tiktoken", None)
    with pytest.raises(Unsupported, match="tiktoken is not installed"):
        resolve_tokenizer("tiktoken:p50k_base")


def test_a_panic_inside_tiktoken_is_a_refusal_and_the_process_goes_on(no_vocabulary: Path) -> None:
    """Its regular expressions overflow on a megabyte of spaces. A real panic prints, so it has a process of its own."""
    cached(no_vocabulary).write_bytes(vocabulary_file("cl100k_base"))
    script = (
        "from holdfast.errors import InvalidValue\n"
        "from holdfast.model.tokenizers import resolve_tokenizer\n"
        "ours = resolve_tokenizer('tiktoken:cl100k_base')\n"
        "try:\n"
        "    assert ours.count(' ' * 1_000_000) == resolve_tokenizer('cl100k_base').count(' ' * 1_000_000)\n"
        "except InvalidValue as error:\n"
        "    assert 'tiktoken:cl100k_base failed' in str(error)\n"
        "assert ours.count('hello world') == 2\n"
    )
    environment = {"TIKTOKEN_CACHE_DIR": str(no_vocabulary), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=30, env=environment, check=False)
    assert done.returncode == 0, done.stderr.decode()[-400:]


def test_the_signature_takes_any_function_from_text_to_int() -> None:
    functions: list[Callable[[str], int]] = [by_words]
    assert [resolve_tokenizer(function).count("x y") for function in functions] == [2]

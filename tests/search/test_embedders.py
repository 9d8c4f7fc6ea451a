"""Embedders: near texts have near vectors, offline; whoever may embed has a name; what anybody gives is checked."""

from __future__ import annotations

import importlib.util
import math
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest

from holdfast.errors import InvalidValue, Unavailable, Unsupported
from holdfast.model.embedder_check import MOST_CHARACTERS, CheckedEmbedder
from holdfast.model.embedders import EndpointEmbedder, resolve_embedder, similarities
from holdfast.model.embedding_local import WeightsEmbedder, wordllama_plan
from holdfast.ports import Embedder

NEAR = [
    ("I lost my credit card", "my bank card is missing", "the recipe needs two eggs"),
    ("How do I reset my password?", "I forgot my login password", "The train to Berlin was late"),
    ("My daughter plays the violin", "She practises music on her violin", "The invoice is due in March"),
    ("a flight from Paris to Tokyo", "airplane tickets to Japan", "The cat sleeps on the sofa"),
]


def by_letters(texts: list[str]) -> list[list[float]]:
    return [[float(text.count(letter)) for letter in "abcdefgh"] for text in texts]


class Vendor:
    name = "vendor-3"
    dimensions = 2

    def __init__(self) -> None:
        self.asked: list[bool] = []

    def embed(self, texts: list[str], *, query: bool = False) -> Any:
        self.asked.append(query)
        return [(3, 4) for _ in texts]


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **kwargs: object) -> Any:
        raise AssertionError("somebody opened a socket")

    monkeypatch.setattr(socket, "socket", refuse)
    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def needed(given: object) -> CheckedEmbedder:
    found = resolve_embedder(given)
    assert found is not None
    return found


@pytest.mark.usefixtures("no_network")
def test_wordllama_finds_what_is_meant_without_a_network_and_the_same_every_time() -> None:
    ours: Embedder = WeightsEmbedder(wordllama_plan())
    for said, near, far in NEAR:
        wanted, *rows = ours.embed([said, near, far])
        to_near, to_far = similarities(wanted, rows)
        assert to_near > to_far + 0.1, (said, to_near, to_far)
    again: Embedder = WeightsEmbedder(wordllama_plan())
    texts = [text for group in NEAR for text in group]
    assert ours.embed(texts) == [again.embed([text])[0] for text in texts]
    assert ours.name == again.name
    assert ours.name.startswith("static-256-")
    assert all(len(vector) == ours.dimensions == 256 for vector in ours.embed(texts))


def test_wordllama_is_loaded_once_and_its_package_is_never_imported() -> None:
    assert resolve_embedder("wordllama") is resolve_embedder("wordllama")
    code = (
        "import sys, holdfast.model.embedders as e, holdfast.sqlite.vectors;"
        "ours = e.resolve_embedder('wordllama'); ours.name; print('numpy' in sys.modules, 'tokenizers' in sys.modules);"
        "ours.embed(['x']); print('numpy' in sys.modules, 'wordllama' in sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout.split() == ["False", "False", "True", "False"]


def test_wordllama_gives_the_mean_of_its_token_vectors() -> None:
    plan = wordllama_plan()
    from safetensors.numpy import load_file
    from tokenizers import Tokenizer

    matrix = load_file(plan.weights)["embedding.weight"].astype(float)
    ids = Tokenizer.from_file(str(plan.tokenizer)).encode("refund 12.50 EUR 東京", add_special_tokens=False).ids
    mean = matrix[ids].mean(axis=0)
    (ours,) = needed("wordllama").embed(["refund 12.50 EUR 東京"])
    expected = numpy.rint(mean / numpy.linalg.norm(mean) * 127)
    assert numpy.array_equal(numpy.frombuffer(ours, numpy.int8), expected)


@pytest.mark.parametrize("absent", ["numpy", "safetensors", "tokenizers", "wordllama"])
def test_a_missing_package_is_unsupported_and_says_what_to_install(
    absent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else found(name))
    with pytest.raises(Unsupported, match=rf"{absent}.*pip install 'holdfast\[vectors\]'"):
        wordllama_plan()


def test_long_blank_and_broken_texts_have_vectors_too() -> None:
    ours = needed("wordllama")
    cut, whole, blank, zero, broken, hostile = ours.embed(
        ["tea " * 5_000, ("tea " * 5_000)[:MOST_CHARACTERS], "", " \n\t", "tea \ud800", "<s> [SEP] \0 </s>"]
    )
    assert cut == whole
    assert blank == zero == bytes(256)
    assert len(broken) == len(hostile) == 256
    assert ours.embed([]) == []
    assert similarities(cut, [blank, cut]) == pytest.approx([0, 1])
    for wrong in ("text", [b"text"], [None], None):
        with pytest.raises(InvalidValue):
            ours.embed(wrong)  # type: ignore[arg-type]


def test_functions_and_objects_embed_under_their_own_names() -> None:
    ours = needed(by_letters)
    assert (ours.name, ours.dimensions) == ("by_letters", 8)
    assert ours.embed(["abba"]) == [bytes([90, 90, 0, 0, 0, 0, 0, 0])]
    vendor = Vendor()
    theirs = needed(vendor)
    assert (theirs.name, theirs.dimensions, vendor.asked) == ("vendor-3", 2, [])
    assert theirs.embed(["x"], query=True) == theirs.embed(["y"]) == [bytes([76, 102])]
    assert vendor.asked == [True, False]
    assert resolve_embedder(theirs) is theirs
    assert resolve_embedder(None) is None


def test_an_object_that_follows_the_port_passes_its_vectors_through() -> None:
    inner = needed(by_letters)

    class Port:
        name, dimensions, embed = "port", inner.dimensions, inner.embed

    texts = ["bad egg", "a cab", "head", ""]
    assert needed(Port()).embed(texts) == inner.embed(texts)


async def waits(texts: list[str]) -> list[list[float]]:
    return []


@pytest.mark.parametrize(
    "wrong", [lambda texts: [], 7, b"x", [1], Vendor, object(), waits, "", "word2vec", "no/such/folder", "a\0/b"]
)
def test_what_cannot_embed_is_refused_with_what_can(wrong: Any) -> None:
    with pytest.raises(InvalidValue, match=r"Give|give|Needed"):
        resolve_embedder(wrong)


def failing(texts: list[str]) -> Any:
    raise RuntimeError("out of order")


class PanicException(BaseException):
    """As compiled extensions raise it: not an Exception."""


def panicking(texts: list[str]) -> Any:
    raise PanicException("index out of bounds")


WRONG_ANSWERS: dict[str, Callable[[list[str]], Any]] = {
    "raises": failing,
    "panics": panicking,
    "too few": lambda texts: [[1.0, 2.0]] * (len(texts) - 1),
    "too many": lambda texts: [[1.0, 2.0]] * (len(texts) + 1),
    "ragged": lambda texts: [[1.0] * (1 + place) for place, _ in enumerate(texts)],
    "empty": lambda texts: [[] for _ in texts],
    "nan": lambda texts: [[1.0, math.nan] for _ in texts],
    "infinite": lambda texts: [[math.inf, 1.0] for _ in texts],
    "words": lambda texts: [["1.0", "2.0"] for _ in texts],
    "nothing": lambda texts: None,
    "holes": lambda texts: [[1.0, None] for _ in texts],
    "mapping": lambda texts: {text: [1.0] for text in texts},
    "flat": lambda texts: [1.0 for _ in texts],
    "to be awaited": lambda texts: waits(texts),
    "beyond floats": lambda texts: [[10**400, 1] for _ in texts],
}


@pytest.mark.parametrize("kind", WRONG_ANSWERS)
def test_whatever_foreign_code_does_is_unavailable_and_names_it(kind: str) -> None:
    function = WRONG_ANSWERS[kind]
    function.__name__ = "their_model"
    with pytest.raises(Unavailable, match="The embedder their_model failed: "):
        needed(function).embed(["a", "b"])


def test_an_embedder_cannot_change_the_length_of_its_vectors() -> None:
    lengths = iter([3, 4])

    def wavering(texts: list[str]) -> list[list[float]]:
        length = next(lengths)
        return [[1.0] * length for _ in texts]

    ours = needed(wavering)
    assert ours.dimensions == 3
    with pytest.raises(Unavailable, match="4 numbers instead of 3"):
        ours.embed(["a"])


def test_interrupting_an_embedder_interrupts() -> None:
    def stopped(texts: list[str]) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        needed(stopped).embed(["a"])


def test_addresses_and_folders_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(resolve_embedder("http://127.0.0.1:9/v1#m"), EndpointEmbedder)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path)
    for folder in ("here", "./here", tmp_path / "here", tmp_path / "absent"):
        with pytest.raises(InvalidValue, match=r"Needed are tokenizer\.json and model\.safetensors"):
            resolve_embedder(folder)

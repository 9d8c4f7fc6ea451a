"""Folders with a model: computed as the model's formula says, or refused with what is needed."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
from safetensors.numpy import load_file, save_file

from holdfast.errors import InvalidValue, Unavailable
from holdfast.model import embedding_local
from holdfast.model.embedder_check import CheckedEmbedder
from holdfast.model.embedders import resolve_embedder
from holdfast.model.embedding_local import BertModel
from holdfast.sqlite.vectors import pack_vectors
from tests.forked import in_child
from tests.search.tiny_models import PLACES, SIZE, WORDS, reference, write_bert, write_tokenizer

TEXTS = ["the cat", "a mat", "cat", "the cat sat on a mat and looked at me the cat", "unheard of words and a cat"]


def loaded(folder: Path) -> CheckedEmbedder:
    found = resolve_embedder(folder)
    assert found is not None
    return found


def check_against_reference(ours: CheckedEmbedder, **how: Any) -> None:
    numbers = numpy.asarray(ours._compute_vectors(TEXTS, query=False), dtype=float)
    for text, row in zip(TEXTS, numbers, strict=True):
        assert row == pytest.approx(reference(text, **how), abs=2e-5), text
    expected = pack_vectors([reference(text, **how) for text in TEXTS], len(TEXTS), SIZE)
    for one, other in zip(ours.embed(TEXTS), expected, strict=True):
        pairs = zip(memoryview(one).cast("b"), memoryview(other).cast("b"), strict=True)
        assert max(abs(a - b) for a, b in pairs) <= 1


@pytest.mark.parametrize(("pooling", "prefix"), [("mean_tokens", ""), ("cls_token", "bert.")])
def test_a_bert_gives_what_its_formula_says(pooling: str, prefix: str, tmp_path: Path) -> None:
    ours = loaded(write_bert(tmp_path, pooling=pooling, prefix=prefix))
    assert ours.dimensions == SIZE
    assert ours.name.startswith(f"bert-{SIZE}-")
    check_against_reference(ours, pooling=pooling)


def test_a_bert_reads_no_more_tokens_than_its_folder_says(tmp_path: Path) -> None:
    write_bert(tmp_path)
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 5, "do_lower_case": true}')
    check_against_reference(loaded(tmp_path), most=5)
    assert loaded(tmp_path).embed(["THE CAT"]) == loaded(tmp_path).embed(["the cat"])


def test_texts_in_many_batches_are_in_their_own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_local, "TOKENS_AT_ONCE", 12)
    check_against_reference(loaded(write_bert(tmp_path)))


def without_mask_in_the_mean(self: Any, hidden: Any, mask: Any) -> Any:
    return hidden.mean(axis=1)


def with_padding_in_sight(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, state, hiding, layer: original(self, state, hiding * 0, layer)


def in_order_of_length(original: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, tokens: original(self, sorted(tokens, key=len))


@pytest.mark.parametrize(
    ("place", "planted"),
    [
        ("_pool", without_mask_in_the_mean),
        ("_attend", with_padding_in_sight(BertModel._attend)),
        ("embed_tokens", in_order_of_length(BertModel.embed_tokens)),
        ("_gelu", lambda self, x: numpy.maximum(x, 0)),
        ("_norm", lambda self, state, name: state),
    ],
)
def test_planted_mistakes_in_the_computation_are_caught(
    place: str, planted: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BertModel, place, planted)
    with pytest.raises(AssertionError):
        check_against_reference(loaded(write_bert(tmp_path)))


def test_what_a_model_wants_to_read_before_texts_and_questions_is_put_there(tmp_path: Path) -> None:
    plain = loaded(write_bert(tmp_path / "plain"))
    write_bert(tmp_path / "asks")
    prompts = {"prompts": {"query": "query ", "document": "passage "}}
    (tmp_path / "asks" / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    asks = loaded(tmp_path / "asks")
    assert asks.embed(["the cat"]) == plain.embed(["passage the cat"])
    assert asks.embed(["the cat"], query=True) == plain.embed(["query the cat"])
    assert asks.name != plain.name


def static_vector(text: str, matrix: Any, weights: Any = None, mapping: Any = None, *, unknown: bool = True) -> Any:
    ids = [WORDS.index(word) if word in WORDS else 1 for word in text.split()]
    rows = [
        matrix[id if mapping is None else mapping[id]] * (1 if weights is None else weights[id])
        for id in ids
        if unknown or id != 1
    ]
    return sum(rows) if rows else matrix[0] * 0


@pytest.mark.parametrize("kind", ["sentence-transformers", "model2vec", "model2vec-shared"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_static_model_gives_the_mean_of_its_rows(kind: str, dtype: str, tmp_path: Path) -> None:
    chance = numpy.random.default_rng(3)
    matrix = (chance.normal(0, 40, (len(WORDS), 6))).astype(dtype)
    place, tensors = tmp_path, {"embeddings": matrix}
    if kind == "sentence-transformers":
        place, tensors = tmp_path / "0_StaticEmbedding", {"embedding.weight": matrix}
        place.mkdir()
        module = {"type": "sentence_transformers.models.StaticEmbedding", "path": place.name}
        (tmp_path / "modules.json").write_text(json.dumps([module]))
    elif kind == "model2vec-shared":
        tensors["weights"] = chance.uniform(0.1, 1, len(WORDS))
        tensors["mapping"] = chance.integers(0, len(WORDS), len(WORDS))
    write_tokenizer(place, special=False)
    save_file(tensors, place / "model.safetensors")
    wide = {name: tensor.astype(float) if name != "mapping" else tensor for name, tensor in tensors.items()}
    expected = [
        static_vector(
            text,
            next(iter(wide.values())),
            wide.get("weights"),
            wide.get("mapping"),
            unknown=kind == "sentence-transformers",
        )
        for text in [*TEXTS, "unheard"]
    ]
    ours = loaded(tmp_path)
    assert (ours.dimensions, ours.name[:9]) == (6, "static-6-")
    found = numpy.asarray(ours._compute_vectors([*TEXTS, "unheard"], query=False))
    assert found == pytest.approx(numpy.array(expected), rel=1e-3, abs=1e-3)


def break_weights(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def change_config(folder: Path, **changes: Any) -> None:
    given = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(given | changes))


LACKS: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights": (lambda f: (f / "model.safetensors").unlink(), "no model.safetensors"),
    "tokenizer": (lambda f: (f / "tokenizer.json").unlink(), "no tokenizer.json"),
    "config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "pickle": (lambda f: (f / "model.safetensors").rename(f / "pytorch_model.bin"), "no model.safetensors"),
    "not safetensors": (lambda f: (f / "model.safetensors").write_bytes(b"\x80\x04" * 50), "cannot be read"),
    "cut header": (lambda f: (f / "model.safetensors").write_bytes(b"\x50" + bytes(7) + b"{"), "cannot be read"),
    "no weights": (lambda f: (f / "model.safetensors").write_bytes(b""), "cannot be read"),
    "other tensors": (lambda f: save_file({"x": numpy.ones(3)}, f / "model.safetensors"), "neither"),
    "other model": (lambda f: change_config(f, model_type="mpnet"), "model_type"),
    "other act": (lambda f: change_config(f, hidden_act="relu"), "hidden_act"),
    "other positions": (lambda f: change_config(f, position_embedding_type="relative_key"), "position_embedding_type"),
    "more layers": (lambda f: change_config(f, num_hidden_layers=3), r"encoder\.layer\.2"),
    "other heads": (lambda f: change_config(f, num_attention_heads=3), "num_attention_heads"),
    "more places": (lambda f: change_config(f, max_position_embeddings=PLACES + 1), "position embeddings"),
    "a tensor": (lambda f: break_weights(f, lambda t: t.pop("embeddings.LayerNorm.bias")), "LayerNorm"),
    "config of no kind": (lambda f: (f / "config.json").write_text("[]"), "not as expected"),
    "dense module": (
        lambda f: (f / "modules.json").write_text('[{"type": "a.Transformer"}, {"type": "b.Dense", "path": "2"}]'),
        "Dense",
    ),
    "max pooling": (
        lambda f: (f / "1_Pooling/config.json").write_text('{"pooling_mode_max_tokens": true}'),
        "Only mean and cls",
    ),
}


@pytest.mark.parametrize("lack", LACKS)
def test_a_folder_that_cannot_be_computed_is_refused_at_once_with_what_is_needed(lack: str, tmp_path: Path) -> None:
    change, said = LACKS[lack]
    change(write_bert(tmp_path))
    with pytest.raises(InvalidValue, match=said):
        resolve_embedder(tmp_path)


def test_numbers_of_a_kind_that_numpy_lacks_are_refused(tmp_path: Path) -> None:
    write_bert(tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(raw.replace(b'"dtype":"F32"', b'"dtype":"BF6"', 1))
    with pytest.raises(InvalidValue, match="Save it as F32"):
        resolve_embedder(tmp_path)


@pytest.mark.parametrize("file", ["tokenizer.json", "model.safetensors"])
def test_files_that_break_afterwards_make_it_unavailable(file: str, tmp_path: Path) -> None:
    ours = loaded(write_bert(tmp_path))
    (tmp_path / file).write_bytes((tmp_path / file).read_bytes()[:300])
    with pytest.raises(Unavailable, match="cannot be read"):
        ours.embed(["the cat"])
    (tmp_path / file).unlink()
    with pytest.raises(Unavailable, match="cannot be read"):
        _ = ours.name


def test_the_name_follows_the_files_and_not_the_place(tmp_path: Path) -> None:
    one, other = loaded(write_bert(tmp_path / "one")), loaded(write_bert(tmp_path / "other"))
    assert one.name == other.name
    assert one is loaded(tmp_path / "one")
    assert one is not other
    break_weights(tmp_path / "other", lambda tensors: tensors["embeddings.LayerNorm.bias"].__iadd__(1))
    assert loaded(tmp_path / "other").name != one.name
    write_bert(tmp_path / "other", layer_norm_eps=0.5)
    assert loaded(tmp_path / "other").name != one.name


def test_threads_and_forked_children_embed_alike(tmp_path: Path) -> None:
    ours = loaded(write_bert(tmp_path))
    found: list[list[bytes]] = []
    threads = [threading.Thread(target=lambda: found.append(ours.embed(TEXTS))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [found[0]] * 4
    assert in_child(lambda: ours.embed(TEXTS) == found[0]) == "True"
    with ours._lock.lock:  # type: ignore[attr-defined]
        assert in_child(lambda: ours.embed(TEXTS) == found[0]) == "True"


def test_gelu_is_exact_to_the_seventh_place(tmp_path: Path) -> None:
    ours = loaded(write_bert(tmp_path))
    _, model, _ = ours._load_once()  # type: ignore[attr-defined]
    xs = numpy.linspace(-8, 8, 4_001, dtype=numpy.float32)
    exact = numpy.array([x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in xs.tolist()])
    assert numpy.abs(model._gelu(xs) - exact).max() < 1e-6

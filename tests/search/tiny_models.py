"""Tiny models with random weights, written as sentence-transformers would, and a BERT computed word by word."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy
from safetensors.numpy import save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

WORDS = [
    "[PAD]",
    "[UNK]",
    "[CLS]",
    "[SEP]",
    *["the", "cat", "sat", "on", "a", "mat", "and", "looked", "at", "me", "query", "passage"],
]
SIZE, HEADS, LAYERS, WIDE, PLACES = 8, 2, 2, 12, 10
EPSILON = 1e-5


def write_tokenizer(folder: Path, *, special: bool) -> Tokenizer:
    tokenizer = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    if special:
        ends = [("[CLS]", 2), ("[SEP]", 3)]
        tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
        tokenizer.enable_padding(length=128)  # as MiniLM's own file has it
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def bert_weights(prefix: str = "") -> dict[str, Any]:
    chance = numpy.random.default_rng(11)

    def made(*shape: int) -> Any:
        return chance.normal(0, 0.6, shape).astype(numpy.float32)

    weights = {
        "embeddings.word_embeddings.weight": made(len(WORDS), SIZE),
        "embeddings.position_embeddings.weight": made(PLACES, SIZE),
        "embeddings.token_type_embeddings.weight": made(2, SIZE),
        "embeddings.LayerNorm.weight": made(SIZE),
        "embeddings.LayerNorm.bias": made(SIZE),
    }
    for number in range(LAYERS):
        shapes = {f"attention.self.{kind}": (SIZE, SIZE) for kind in ("query", "key", "value")}
        shapes |= {"attention.output.dense": (SIZE, SIZE), "intermediate.dense": (WIDE, SIZE)}
        shapes |= {"output.dense": (SIZE, WIDE), "attention.output.LayerNorm": (SIZE,), "output.LayerNorm": (SIZE,)}
        for name, shape in shapes.items():
            weights[f"encoder.layer.{number}.{name}.weight"] = made(*shape)
            weights[f"encoder.layer.{number}.{name}.bias"] = made(shape[0])
    return {prefix + name: tensor for name, tensor in weights.items()}


CONFIG = {
    "model_type": "bert",
    "hidden_size": SIZE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "max_position_embeddings": PLACES,
    "layer_norm_eps": EPSILON,
    "hidden_act": "gelu",
}


def write_bert(folder: Path, *, pooling: str = "mean_tokens", prefix: str = "", **more: Any) -> Path:
    folder.mkdir(exist_ok=True)
    write_tokenizer(folder, special=True)
    save_file(bert_weights(prefix), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | more))
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for path, kind in kinds.items()]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    modes = {f"pooling_mode_{mode}": mode == pooling for mode in ("cls_token", "mean_tokens", "max_tokens")}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    return folder


def reference(text: str, *, most: int = PLACES, pooling: str = "mean_tokens") -> list[float]:
    """The same model for one text, word by word in plain Python: no batches, so nothing is padded or hidden."""
    weights = {name: tensor.astype(float).tolist() for name, tensor in bert_weights().items()}

    def linear(vector: list[float], name: str) -> list[float]:
        rows = zip(weights[f"{name}.weight"], weights[f"{name}.bias"], strict=True)
        return [sum(w * v for w, v in zip(row, vector, strict=True)) + bias for row, bias in rows]

    def norm(vector: list[float], name: str) -> list[float]:
        mean = sum(vector) / len(vector)
        spread = math.sqrt(sum((v - mean) ** 2 for v in vector) / len(vector) + EPSILON)
        scaled = zip(vector, weights[f"{name}.weight"], weights[f"{name}.bias"], strict=True)
        return [(v - mean) / spread * w + b for v, w, b in scaled]

    def plus(*many: list[float]) -> list[float]:
        return [sum(each) for each in zip(*many, strict=True)]

    def attended(states: list[list[float]], layer: str) -> list[list[float]]:
        queries, keys, values = (
            [linear(state, f"{layer}attention.self.{kind}") for state in states] for kind in ("query", "key", "value")
        )
        wide, out = SIZE // HEADS, []
        for query in queries:
            seen: list[float] = []
            for part in (slice(head * wide, (head + 1) * wide) for head in range(HEADS)):
                scores = [
                    math.exp(sum(q * k for q, k in zip(query[part], key[part], strict=True)) / math.sqrt(wide))
                    for key in keys
                ]
                total = sum(scores)
                columns = zip(*(value[part] for value in values), strict=True)
                seen += [sum(s * c for s, c in zip(scores, column, strict=True)) / total for column in columns]
            out.append(seen)
        return out

    inner = [WORDS.index(word) if word in WORDS else 1 for word in text.split()]
    ids = [2, *inner[: most - 2], 3]
    tables = ("word", "position", "token_type")
    words, places, kinds = (weights[f"embeddings.{table}_embeddings.weight"] for table in tables)
    states = [norm(plus(words[id], places[place], kinds[0]), "embeddings.LayerNorm") for place, id in enumerate(ids)]
    for number in range(LAYERS):
        layer = f"encoder.layer.{number}."
        seen = [linear(state, f"{layer}attention.output.dense") for state in attended(states, layer)]
        states = [norm(plus(a, b), f"{layer}attention.output.LayerNorm") for a, b in zip(states, seen, strict=True)]
        wide = [linear(state, f"{layer}intermediate.dense") for state in states]
        wide = [[x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in state] for state in wide]
        dense = [linear(state, f"{layer}output.dense") for state in wide]
        states = [norm(plus(a, b), f"{layer}output.LayerNorm") for a, b in zip(states, dense, strict=True)]
    return states[0] if pooling == "cls_token" else [sum(column) / len(states) for column in zip(*states, strict=True)]

"""A BERT model forwards, in numpy: enough for MiniLM and its relatives, without torch.

Word, position and segment embeddings, then layers of attention and a dense pair, each with a residual
and a layer norm, as the model's config.json says. What the file does not hold is refused before it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

TOKENS_AT_ONCE = 4_096
"""Of one batch, with its padding: enough to keep the processor busy, little enough for any machine."""
_WORDS = "embeddings.word_embeddings.weight"


class BertConfig(msgspec.Struct, frozen=True):
    """The part of config.json that the computation depends on; anything but these literals is another model."""

    model_type: Literal["bert"]
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12
    hidden_act: Literal["gelu"] = "gelu"
    position_embedding_type: Literal["absolute"] = "absolute"


def missing(config: BertConfig, shapes: Mapping[str, Any]) -> str | None:
    """What a file of weights lacks to be this model, or None."""
    prefix = prefix_of(shapes)
    if prefix is None:
        return f"the tensor {_WORDS}"
    if absent := [name for name in _tensors(config) if prefix + name not in shapes]:
        return f"the tensor {absent[0]}"
    size, heads = config.hidden_size, config.num_attention_heads
    if heads < 1 or size % heads or shapes[prefix + _WORDS][-1] != size:
        return "word embeddings as wide as hidden_size, which num_attention_heads divides"
    if shapes[f"{prefix}embeddings.position_embeddings.weight"][0] < config.max_position_embeddings:
        return "as many position embeddings as max_position_embeddings"
    return None


def prefix_of(shapes: Mapping[str, Any]) -> str | None:
    """What stands before every name in this file, such as `bert.`; None if it is no BERT."""
    return next((name.removesuffix(_WORDS) for name in shapes if name.endswith(_WORDS)), None)


def _tensors(config: BertConfig) -> Iterator[str]:
    yield from (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
    parts = ["embeddings.LayerNorm"]
    for number in range(config.num_hidden_layers):
        layer = f"encoder.layer.{number}."
        parts += [f"{layer}attention.self.{kind}" for kind in ("query", "key", "value")]
        parts += [f"{layer}attention.output.dense", f"{layer}attention.output.LayerNorm"]
        parts += [f"{layer}intermediate.dense", f"{layer}output.dense", f"{layer}output.LayerNorm"]
    for part in parts:
        yield from (f"{part}.weight", f"{part}.bias")


class Bert:
    """The model with its weights. `vectors` gives one row for each list of token ids."""

    def __init__(self, numpy: Any, config: BertConfig, tensors: dict[str, Any], pooling: str) -> None:
        prefix = prefix_of(tensors) or ""
        self._np, self._config, self._pooling = numpy, config, pooling
        self._weights = {name: numpy.asarray(tensors[prefix + name], dtype=numpy.float32) for name in _tensors(config)}

    def vectors(self, tokens: list[list[int]]) -> Any:
        """One row for each text, in their order. Texts of like length run together, so that little is padding."""
        numpy = self._np
        rows = numpy.zeros((len(tokens), self._config.hidden_size), numpy.float32)
        order = sorted((place for place, ids in enumerate(tokens) if ids), key=lambda place: len(tokens[place]))
        while order:
            longest = len(tokens[order[-1]])
            count = max(1, TOKENS_AT_ONCE // longest)
            order, batch = order[:-count], order[-count:]
            ids, mask = numpy.zeros((2, len(batch), longest), numpy.int64)
            for row, place in enumerate(batch):
                ids[row, : len(tokens[place])] = tokens[place]
                mask[row, : len(tokens[place])] = 1
            rows[batch] = self._pooled(self._hidden(ids, mask), mask)
        return rows

    def _pooled(self, hidden: Any, mask: Any) -> Any:
        if self._pooling == "cls":
            return hidden[:, 0]
        return (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)

    def _hidden(self, ids: Any, mask: Any) -> Any:
        weights = self._weights
        state = weights[_WORDS][ids]
        state += weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        state += weights["embeddings.token_type_embeddings.weight"][0]
        state = self._norm(state, "embeddings.LayerNorm")
        # Added to the scores before the softmax: nobody looks at padding.
        hiding = ((mask - 1) * 1e9).astype(self._np.float32)[:, None, None, :]
        for number in range(self._config.num_hidden_layers):
            layer = f"encoder.layer.{number}."
            seen = self._linear(self._attended(state, hiding, layer), f"{layer}attention.output.dense")
            state = self._norm(state + seen, f"{layer}attention.output.LayerNorm")
            wide = self._gelu(self._linear(state, f"{layer}intermediate.dense"))
            state = self._norm(state + self._linear(wide, f"{layer}output.dense"), f"{layer}output.LayerNorm")
        return state

    def _attended(self, state: Any, hiding: Any, layer: str) -> Any:
        batch, length, size = state.shape
        heads = self._config.num_attention_heads
        query, key, value = (
            self._linear(state, f"{layer}attention.self.{kind}").reshape(batch, length, heads, -1).swapaxes(1, 2)
            for kind in ("query", "key", "value")
        )
        scores = query @ key.swapaxes(2, 3) * (1 / math.sqrt(size // heads)) + hiding
        scores -= scores.max(axis=-1, keepdims=True)
        shares = self._np.exp(scores)
        shares /= shares.sum(axis=-1, keepdims=True)
        return (shares @ value).swapaxes(1, 2).reshape(batch, length, size)

    def _linear(self, state: Any, name: str) -> Any:
        return state @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, state: Any, name: str) -> Any:
        state = state - state.mean(axis=-1, keepdims=True)
        spread = self._np.sqrt((state * state).mean(axis=-1, keepdims=True) + self._config.layer_norm_eps)
        return state / spread * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]

    def _gelu(self, x: Any) -> Any:
        """x times the share of a normal distribution below x. numpy has no erf: Abramowitz and Stegun 7.1.26."""
        numpy = self._np
        size = numpy.abs(x) * numpy.float32(math.sqrt(0.5))
        t = 1 / (1 + numpy.float32(0.3275911) * size)
        tail = numpy.zeros_like(t)
        for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
            tail = (tail + numpy.float32(factor)) * t
        tail *= numpy.exp(-size * size)
        return x * numpy.where(x < 0, tail, 2 - tail) * numpy.float32(0.5)

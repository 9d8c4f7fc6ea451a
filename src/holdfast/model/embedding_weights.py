"""Embeddings from weights on disk: wordllama's, out of its installed wheel, and folders with a static model or a BERT.

Nothing is downloaded and no code of a model's package is run: numpy computes, tokenizers reads the text. The
name is made from the bytes of the files, so that vectors of other weights are never compared with what is
stored. Weights are read when the first text is embedded.
"""

from __future__ import annotations

import hashlib
import importlib
import threading
from typing import Any, Protocol

import msgspec

from holdfast.ambient import renew_in_child
from holdfast.core.search.words import terms
from holdfast.core.values import words
from holdfast.errors import Unavailable
from holdfast.model.calling import stray
from holdfast.model.embedding import CheckedEmbedder
from holdfast.model.embedding_bert import Bert
from holdfast.model.embedding_folder import Plan

FORM = 1
"""Raised when the same files begin to give other vectors."""


class _Model(Protocol):
    def vectors(self, tokens: list[list[int]]) -> Any: ...


class WeightsEmbedder(CheckedEmbedder):
    """A model on this machine's disk."""

    def __init__(self, plan: Plan) -> None:
        super().__init__("", plan.dimensions)
        self._plan = plan
        self._loaded: tuple[Any, _Model, int | None] | None = None
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        self._lock = threading.Lock()

    @property
    def name(self) -> str:
        """Its kind and length, and a digest of its files and of how they are used."""
        if not self._name:
            try:
                self._name = _name(self._plan)
            except OSError as error:
                raise self._unreadable(error) from None
        return self._name

    def _numbers(self, texts: list[str], *, query: bool) -> Any:
        tokenizer, model, unknown = self._load()
        plan = self._plan
        if query and plan.config is None:
            # The mean of a question's words is mostly its function words; without them it is what was asked for.
            texts = [" ".join(terms(text)) or text for text in texts]
        before = plan.before_query if query else plan.before_text
        # One by one: in batches the library starts threads of its own, which a fork afterwards would trip over.
        special = plan.matrix is None
        tokens = [
            tokenizer.encode(before + (text.lower() if plan.lower else text), add_special_tokens=special).ids
            for text in texts
        ]
        if unknown is not None:
            tokens = [[token for token in ids if token != unknown] for ids in tokens]
        return model.vectors(tokens)

    def _load(self) -> tuple[Any, _Model, int | None]:
        with self._lock:
            if self._loaded is None:
                try:
                    self._loaded = _load(self._plan)
                except BaseException as error:
                    if stray(error):
                        raise
                    raise self._unreadable(error) from None
            return self._loaded

    def _unreadable(self, error: BaseException) -> Unavailable:
        return Unavailable(
            f"The embedder in {self._plan.weights.parent} failed: its files cannot be read: {words(error)[:300]}. "
            "Put them right, or use another."
        )


class _Static:
    """A vector for each token; a text is their mean. The sum points the same way, which is all that counts."""

    def __init__(self, numpy: Any, tensors: dict[str, Any], matrix: str) -> None:
        self._np, self._rows = numpy, tensors[matrix]
        # model2vec may give each token a weight, and let several share a row.
        self._weights, self._mapping = tensors.get("weights"), tensors.get("mapping")

    def vectors(self, tokens: list[list[int]]) -> Any:
        numpy = self._np
        sums = numpy.zeros((len(tokens), self._rows.shape[1]), numpy.float32)
        for place, ids in enumerate(tokens):
            if ids:
                found = self._rows[ids if self._mapping is None else self._mapping[ids]]
                if self._weights is not None:
                    found = found.astype(numpy.float32) * self._weights[ids][:, None]
                sums[place] = found.sum(axis=0, dtype=numpy.float32)
        return sums


def _load(plan: Plan) -> tuple[Any, _Model, int | None]:
    numpy: Any = importlib.import_module("numpy")
    tokenizer: Any = importlib.import_module("tokenizers").Tokenizer.from_file(str(plan.tokenizer))
    tensors = importlib.import_module("safetensors.numpy").load_file(plan.weights)
    tokenizer.no_padding()
    if plan.most_tokens is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(plan.most_tokens)
    if plan.config is not None:
        return tokenizer, Bert(numpy, plan.config, tensors, plan.pooling), None
    assert plan.matrix is not None, "a model is a BERT or has a matrix"
    return tokenizer, _Static(numpy, tensors, plan.matrix), _unknown(tokenizer, plan.matrix)


def _unknown(tokenizer: Any, matrix: str) -> int | None:
    """The token for what is not in the vocabulary: model2vec leaves it out."""
    if matrix != "embeddings":
        return None
    model = msgspec.json.decode(tokenizer.to_str())["model"]
    token = model.get("unk_token")
    found = model.get("unk_id") if token is None else tokenizer.token_to_id(token)
    return found if isinstance(found, int) else None


def _name(plan: Plan) -> str:
    used = (FORM, plan.config, plan.matrix, plan.pooling, plan.most_tokens, plan.lower)
    digest = hashlib.sha256(msgspec.json.encode((*used, plan.before_text, plan.before_query)))
    for file in (plan.weights, plan.tokenizer):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    kind = "static" if plan.config is None else "bert"
    return f"{kind}-{plan.dimensions}-{digest.hexdigest()[:16]}"

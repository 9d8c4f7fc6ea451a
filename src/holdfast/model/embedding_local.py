"""Embeddings from weights on disk: wordllama's installed wheel, or a folder with a static model or a BERT.

Nothing is downloaded and no code of a model's package is run: numpy computes, tokenizers reads the text. Accepted are
folders written by sentence-transformers and model2vec; anything else is refused, with a list of what is needed, before
weights are loaded. The forward pass of a BERT in numpy is enough for MiniLM and its relatives, without torch.

The name is derived from the bytes of the files, so that vectors of different weights are never compared. Weights are
read when the first text is embedded.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from holdfast.core.search.words import query_terms
from holdfast.core.values import exception_text, is_interruption
from holdfast.errors import InvalidValue, Unavailable, Unsupported
from holdfast.model.embedder_check import CheckedEmbedder
from holdfast.sqlite.vectors import MAX_DIMENSIONS
from holdfast.system import ForkLock

VECTOR_FORMAT = 1
"""Incremented when the same files begin to give other vectors."""
INSTALL = "pip install 'holdfast[vectors]'"
REQUIREMENTS = (
    "Needed are tokenizer.json and model.safetensors of a static model (one matrix of embeddings), or of a BERT "
    "with its config.json"
)
_MATRICES = ("embedding.weight", "embeddings")
"""The matrix's name in sentence-transformers and wordllama, and in model2vec."""
_DTYPES = frozenset({"F16", "F32", "F64", "I8", "I32", "I64"})
_KNOWN_MODULES = frozenset({"Transformer", "StaticEmbedding", "Pooling", "Normalize"})
_LONGEST_HEADER = 100_000_000
_RecordT = TypeVar("_RecordT")
TOKENS_AT_ONCE = 4_096
"""Tokens in one batch, padding included: enough to keep the processor busy, few enough for any machine."""
_WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"


class _TokenModel(Protocol):
    def embed_tokens(self, tokens: list[list[int]]) -> Any: ...


class WeightsEmbedder(CheckedEmbedder):
    """A model on this machine's disk."""

    def __init__(self, plan: EmbeddingPlan) -> None:
        super().__init__("", plan.dimensions)
        self._plan = plan
        self._loaded: tuple[Any, _TokenModel, int | None] | None = None
        self._lock = ForkLock()

    @property
    def name(self) -> str:
        """Its kind and length, and a digest of its files and of how they are used."""
        if not self._name:
            try:
                self._name = _embedder_name(self._plan)
            except OSError as error:
                raise self._unreadable_error(error) from None
        return self._name

    def _compute_vectors(self, texts: list[str], *, query: bool) -> Any:
        tokenizer, model, unknown = self._load_once()
        plan = self._plan
        if query and plan.config is None:
            # The mean of a question's words is mostly its function words; without them, the words that matter remain.
            texts = [" ".join(query_terms(text)) or text for text in texts]
        before = plan.before_query if query else plan.before_text
        # One by one: in batches the library starts its own threads, which do not survive a later fork.
        special = plan.matrix is None
        tokens = [
            tokenizer.encode(before + (text.lower() if plan.lower else text), add_special_tokens=special).ids
            for text in texts
        ]
        if unknown is not None:
            tokens = [[token for token in ids if token != unknown] for ids in tokens]
        return model.embed_tokens(tokens)

    def _load_once(self) -> tuple[Any, _TokenModel, int | None]:
        with self._lock.lock:
            if self._loaded is None:
                try:
                    self._loaded = _load_model(self._plan)
                except BaseException as error:
                    if is_interruption(error):
                        raise
                    raise self._unreadable_error(error) from None
            return self._loaded

    def _unreadable_error(self, error: BaseException) -> Unavailable:
        return Unavailable(
            f"The embedder in {self._plan.weights.parent} failed: its files cannot be read: "
            f"{exception_text(error)[:300]}. Put them right, or use another."
        )


class _StaticModel:
    """A vector for each token. A text is their sum: it has the direction of the mean, which is all that counts."""

    def __init__(self, numpy: Any, tensors: dict[str, Any], matrix: str) -> None:
        self._np, self._rows = numpy, tensors[matrix]
        # model2vec may give each token a weight, and let several tokens share a row.
        self._weights, self._mapping = tensors.get("weights"), tensors.get("mapping")

    def embed_tokens(self, tokens: list[list[int]]) -> Any:
        numpy = self._np
        sums = numpy.zeros((len(tokens), self._rows.shape[1]), numpy.float32)
        for place, ids in enumerate(tokens):
            if ids:
                found = self._rows[ids if self._mapping is None else self._mapping[ids]]
                if self._weights is not None:
                    found = found.astype(numpy.float32) * self._weights[ids][:, None]
                sums[place] = found.sum(axis=0, dtype=numpy.float32)
        return sums


def _load_model(plan: EmbeddingPlan) -> tuple[Any, _TokenModel, int | None]:
    numpy: Any = importlib.import_module("numpy")
    tokenizer: Any = importlib.import_module("tokenizers").Tokenizer.from_file(str(plan.tokenizer))
    tensors = importlib.import_module("safetensors.numpy").load_file(plan.weights)
    tokenizer.no_padding()
    if plan.most_tokens is None:
        tokenizer.no_truncation()
    else:
        tokenizer.enable_truncation(plan.most_tokens)
    if plan.config is not None:
        return tokenizer, BertModel(numpy, plan.config, tensors, plan.pooling), None
    assert plan.matrix is not None, "a model is a BERT or has a matrix"
    return tokenizer, _StaticModel(numpy, tensors, plan.matrix), _unknown_token(tokenizer, plan.matrix)


def _unknown_token(tokenizer: Any, matrix: str) -> int | None:
    """Return the token for words outside the vocabulary, which model2vec leaves out."""
    if matrix != "embeddings":
        return None
    model = msgspec.json.decode(tokenizer.to_str())["model"]
    token = model.get("unk_token")
    found = model.get("unk_id") if token is None else tokenizer.token_to_id(token)
    return found if isinstance(found, int) else None


def _embedder_name(plan: EmbeddingPlan) -> str:
    used = (VECTOR_FORMAT, plan.config, plan.matrix, plan.pooling, plan.most_tokens, plan.lower)
    digest = hashlib.sha256(msgspec.json.encode((*used, plan.before_text, plan.before_query)))
    for file in (plan.weights, plan.tokenizer):
        with file.open("rb") as opened:
            digest.update(hashlib.file_digest(opened, "sha256").digest())
    kind = "static" if plan.config is None else "bert"
    return f"{kind}-{plan.dimensions}-{digest.hexdigest()[:16]}"


class EmbeddingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A model on disk: its files, and how texts become vectors with them."""

    weights: Path
    tokenizer: Path
    dimensions: int
    matrix: str | None = None
    """The name of a static model's matrix; None for a BERT."""
    config: BertConfig | None = None
    pooling: Literal["mean", "cls"] = "mean"
    most_tokens: int | None = None
    lower: bool = False
    before_text: str = ""
    before_query: str = ""
    """The prompts that this model wants before a text and before a query."""


class _ModuleEntry(msgspec.Struct):
    type: str
    path: str = ""


class _SentenceBertConfig(msgspec.Struct):
    max_seq_length: int | None = None
    do_lower_case: bool = False


class _PromptConfig(msgspec.Struct):
    prompts: dict[str, str] = {}


class _TensorHeader(msgspec.Struct):
    dtype: str
    shape: list[int]


def wordllama_plan() -> EmbeddingPlan:
    """Return the plan for the installed wordllama wheel. The package is located, never imported: it would go online."""
    require_packages("wordllama")
    spec = importlib.util.find_spec("wordllama")
    places = (spec.submodule_search_locations if spec else None) or []
    for place in map(Path, places):
        weights = place / "weights" / "l2_supercat_256.safetensors"
        tokenizer = place / "tokenizers" / "l2_supercat_tokenizer_config.json"
        if weights.is_file() and tokenizer.is_file():
            return EmbeddingPlan(weights=weights, tokenizer=tokenizer, dimensions=256, matrix=_MATRICES[0])
    raise Unsupported(
        f"The installed wordllama has no weights of 256 dimensions in it. Install one that has: {INSTALL}."
    )


def require_packages(*more: str) -> None:
    """Raise Unsupported, with the command to install, if packages for computing vectors are missing."""
    absent = [name for name in ("numpy", "safetensors", "tokenizers", *more) if importlib.util.find_spec(name) is None]
    if absent:
        raise Unsupported(f"Vectors need {', '.join(absent)}, which is not installed. To install: {INSTALL}.")


def plan_folder(folder: Path) -> EmbeddingPlan:
    """Return the plan for a folder; raise an InvalidValue that says what it lacks."""
    if not folder.is_dir():
        raise InvalidValue(f"{folder} is not a folder. {REQUIREMENTS}.")
    modules = _read_record(folder / "modules.json", list[_ModuleEntry]) or []
    kinds = {module.type.rpartition(".")[2]: folder / module.path for module in modules}
    if unknown := sorted(set(kinds) - _KNOWN_MODULES):
        raise InvalidValue(f"{folder} has a module {unknown[0]!r:.60}, which cannot be computed here. {REQUIREMENTS}.")
    place = folder / modules[0].path if modules else folder
    weights, tokenizer = place / "model.safetensors", place / "tokenizer.json"
    for file in (weights, tokenizer):
        if not file.is_file():
            raise InvalidValue(f"{place} has no {file.name}. {REQUIREMENTS}.")
    shapes = _read_shapes(weights)
    prompts = (_read_record(folder / "config_sentence_transformers.json", _PromptConfig) or _PromptConfig()).prompts
    plan = EmbeddingPlan(
        weights=weights,
        tokenizer=tokenizer,
        dimensions=0,
        before_text=prompts.get("document", prompts.get("passage", "")),
        before_query=prompts.get("query", ""),
    )
    if tensor_prefix(shapes) is not None:
        return _plan_bert(plan, folder, kinds.get("Pooling"), shapes)
    matrix = next((name for name in _MATRICES if name in shapes), None)
    if matrix is None or len(shapes[matrix]) != 2:
        raise InvalidValue(f"{weights} holds neither a static model nor a BERT. {REQUIREMENTS}.")
    return msgspec.structs.replace(plan, matrix=matrix, dimensions=_check_width(plan, shapes[matrix]))


def _plan_bert(plan: EmbeddingPlan, folder: Path, pooling: Path | None, shapes: dict[str, list[int]]) -> EmbeddingPlan:
    config = _read_record(plan.weights.with_name("config.json"), BertConfig)
    if config is None:
        raise InvalidValue(f"{folder} has no config.json. {REQUIREMENTS}.")
    if lacks := find_missing(config, shapes):
        raise InvalidValue(f"{plan.weights} lacks {lacks}. {REQUIREMENTS}.")
    place = plan.weights.with_name("sentence_bert_config.json")
    reading = _read_record(place, _SentenceBertConfig) or _SentenceBertConfig()
    most = min(reading.max_seq_length or config.max_position_embeddings, config.max_position_embeddings)
    return msgspec.structs.replace(
        plan,
        config=config,
        dimensions=_check_width(plan, [config.hidden_size]),
        pooling=_read_pooling(pooling),
        most_tokens=max(most, 3),
        lower=reading.do_lower_case,
    )


def _read_pooling(place: Path | None) -> Literal["mean", "cls"]:
    if place is None:
        return "mean"
    given = _read_record(place / "config.json", dict[str, Any]) or {}
    modes = [name for name, value in given.items() if name.startswith("pooling_mode_") and value is True]
    wanted = modes or [f"pooling_mode_{given.get('pooling_mode', 'mean')}_tokens"]
    if wanted == ["pooling_mode_mean_tokens"]:
        return "mean"
    if wanted in (["pooling_mode_cls_token"], ["pooling_mode_cls_tokens"]):
        return "cls"
    raise InvalidValue(f"{place} pools by {', '.join(wanted):.80}. Only mean and cls can be computed here.")


def _check_width(plan: EmbeddingPlan, shape: list[int]) -> int:
    if not 1 <= shape[-1] <= MAX_DIMENSIONS:
        raise InvalidValue(f"{plan.weights} has vectors of {shape[-1]:,} numbers, not 1 to {MAX_DIMENSIONS:,}.")
    return shape[-1]


def _read_shapes(weights: Path) -> dict[str, list[int]]:
    """Return the tensor shapes of a file by name, from its header alone: eight bytes for the length, then JSON."""
    try:
        with weights.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            # A file that is not safetensors begins with some number as well, mostly a vast one.
            header = msgspec.json.decode(file.read(min(size, _LONGEST_HEADER)), type=dict[str, Any])
        header.pop("__metadata__", None)
        tensors = msgspec.convert(header, dict[str, _TensorHeader])
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise InvalidValue(
            f"{weights} cannot be read as safetensors ({type(error).__name__}). {REQUIREMENTS}."
        ) from None
    if strange := sorted({tensor.dtype for tensor in tensors.values()} - _DTYPES):
        raise InvalidValue(f"{weights} holds numbers of type {strange[0]!r:.20}. Save it as F32 or F16.")
    return {name: tensor.shape for name, tensor in tensors.items()}


def _read_record(file: Path, kind: type[_RecordT]) -> _RecordT | None:
    """Read a JSON file as a record; None if the file does not exist."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise InvalidValue(f"{file} is not as expected: {error}. {REQUIREMENTS}.") from None


class BertConfig(msgspec.Struct, frozen=True):
    """The part of config.json that the computation depends on; other values of the literals are other models."""

    model_type: Literal["bert"]
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    max_position_embeddings: int = 512
    layer_norm_eps: float = 1e-12
    hidden_act: Literal["gelu"] = "gelu"
    position_embedding_type: Literal["absolute"] = "absolute"


def find_missing(config: BertConfig, shapes: Mapping[str, Any]) -> str | None:
    """Return the first thing that a file of weights lacks to be this model, or None."""
    prefix = tensor_prefix(shapes)
    if prefix is None:
        return f"the tensor {_WORD_EMBEDDINGS}"
    if absent := [name for name in _tensor_names(config) if prefix + name not in shapes]:
        return f"the tensor {absent[0]}"
    size, heads = config.hidden_size, config.num_attention_heads
    if heads < 1 or size % heads or shapes[prefix + _WORD_EMBEDDINGS][-1] != size:
        return "word embeddings as wide as hidden_size, which num_attention_heads divides"
    if shapes[f"{prefix}embeddings.position_embeddings.weight"][0] < config.max_position_embeddings:
        return "as many position embeddings as max_position_embeddings"
    return None


def tensor_prefix(shapes: Mapping[str, Any]) -> str | None:
    """Return the prefix of every tensor name in this file, such as `bert.`; None if it is no BERT."""
    return next((name.removesuffix(_WORD_EMBEDDINGS) for name in shapes if name.endswith(_WORD_EMBEDDINGS)), None)


def _tensor_names(config: BertConfig) -> Iterator[str]:
    yield from (f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))
    parts = ["embeddings.LayerNorm"]
    for number in range(config.num_hidden_layers):
        layer = f"encoder.layer.{number}."
        parts += [f"{layer}attention.self.{kind}" for kind in ("query", "key", "value")]
        parts += [f"{layer}attention.output.dense", f"{layer}attention.output.LayerNorm"]
        parts += [f"{layer}intermediate.dense", f"{layer}output.dense", f"{layer}output.LayerNorm"]
    for part in parts:
        yield from (f"{part}.weight", f"{part}.bias")


class BertModel:
    """The model with its weights."""

    def __init__(self, numpy: Any, config: BertConfig, tensors: dict[str, Any], pooling: str) -> None:
        prefix = tensor_prefix(tensors) or ""
        self._np, self._config, self._pooling = numpy, config, pooling
        names = _tensor_names(config)
        self._weights = {name: numpy.asarray(tensors[prefix + name], dtype=numpy.float32) for name in names}

    def embed_tokens(self, tokens: list[list[int]]) -> Any:
        """Return one row for each text, in order. Batches hold texts of similar length, to need little padding."""
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
            rows[batch] = self._pool(self._run_layers(ids, mask), mask)
        return rows

    def _pool(self, hidden: Any, mask: Any) -> Any:
        if self._pooling == "cls":
            return hidden[:, 0]
        return (hidden * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)

    def _run_layers(self, ids: Any, mask: Any) -> Any:
        weights = self._weights
        state = weights[_WORD_EMBEDDINGS][ids]
        state += weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
        state += weights["embeddings.token_type_embeddings.weight"][0]
        state = self._norm(state, "embeddings.LayerNorm")
        # Added to the scores before the softmax, so that padding gets no attention.
        hiding = ((mask - 1) * 1e9).astype(self._np.float32)[:, None, None, :]
        for number in range(self._config.num_hidden_layers):
            layer = f"encoder.layer.{number}."
            seen = self._linear(self._attend(state, hiding, layer), f"{layer}attention.output.dense")
            state = self._norm(state + seen, f"{layer}attention.output.LayerNorm")
            wide = self._gelu(self._linear(state, f"{layer}intermediate.dense"))
            state = self._norm(state + self._linear(wide, f"{layer}output.dense"), f"{layer}output.LayerNorm")
        return state

    def _attend(self, state: Any, hiding: Any, layer: str) -> Any:
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
        """Compute x times the normal distribution's CDF. numpy has no erf: Abramowitz and Stegun 7.1.26."""
        numpy = self._np
        size = numpy.abs(x) * numpy.float32(math.sqrt(0.5))
        t = 1 / (1 + numpy.float32(0.3275911) * size)
        tail = numpy.zeros_like(t)
        for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
            tail = (tail + numpy.float32(factor)) * t
        tail *= numpy.exp(-size * size)
        return x * numpy.where(x < 0, tail, 2 - tail) * numpy.float32(0.5)

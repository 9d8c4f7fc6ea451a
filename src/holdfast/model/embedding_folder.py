"""Which files make an embedding model, and what is to be computed with them, found out before anything is loaded.

Taken are folders as sentence-transformers and model2vec write them: a static model, which is one matrix of word
embeddings, or a BERT such as MiniLM. Everything else is refused with what is needed.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec

from holdfast.errors import InvalidValue, Unsupported
from holdfast.model.embedding_bert import BertConfig, missing, prefix_of
from holdfast.vectors import MOST_DIMENSIONS

INSTALL = "pip install 'holdfast[vectors]'"
NEEDED = (
    "Needed are tokenizer.json and model.safetensors of a static model (one matrix of embeddings), or of a BERT "
    "with its config.json"
)
_MATRICES = ("embedding.weight", "embeddings")
"""What sentence-transformers and wordllama call the matrix, and what model2vec calls it."""
_NUMBERS = frozenset({"F16", "F32", "F64", "I8", "I32", "I64"})
_KNOWN_MODULES = frozenset({"Transformer", "StaticEmbedding", "Pooling", "Normalize"})
_LONGEST_HEADER = 100_000_000


class Plan(msgspec.Struct, frozen=True, kw_only=True):
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
    """What this model wants to read before a text, and before a question."""


class _Module(msgspec.Struct):
    type: str
    path: str = ""


class _Reading(msgspec.Struct):
    max_seq_length: int | None = None
    do_lower_case: bool = False


class _Prompts(msgspec.Struct):
    prompts: dict[str, str] = {}


class _Tensor(msgspec.Struct):
    dtype: str
    shape: list[int]


def wordllama_plan() -> Plan:
    """The weights in the installed wheel of wordllama. The package is found, never imported: it would look online."""
    need_packages("wordllama")
    spec = importlib.util.find_spec("wordllama")
    places = (spec.submodule_search_locations if spec else None) or []
    for place in map(Path, places):
        weights = place / "weights" / "l2_supercat_256.safetensors"
        tokenizer = place / "tokenizers" / "l2_supercat_tokenizer_config.json"
        if weights.is_file() and tokenizer.is_file():
            return Plan(weights=weights, tokenizer=tokenizer, dimensions=256, matrix=_MATRICES[0])
    raise Unsupported(
        f"The installed wordllama has no weights of 256 dimensions in it. Install one that has: {INSTALL}."
    )


def need_packages(*more: str) -> None:
    """Unsupported, with what to install, if vectors cannot be computed here."""
    absent = [name for name in ("numpy", "safetensors", "tokenizers", *more) if importlib.util.find_spec(name) is None]
    if absent:
        raise Unsupported(f"Vectors need {', '.join(absent)}, which is not installed. To install: {INSTALL}.")


def plan_of(folder: Path) -> Plan:
    """What to do with a folder, or an InvalidValue that says what it lacks."""
    if not folder.is_dir():
        raise InvalidValue(f"{folder} is not a folder. {NEEDED}.")
    modules = _record(folder / "modules.json", list[_Module]) or []
    kinds = {module.type.rpartition(".")[2]: folder / module.path for module in modules}
    if unknown := sorted(set(kinds) - _KNOWN_MODULES):
        raise InvalidValue(f"{folder} has a module {unknown[0]!r:.60}, which cannot be computed here. {NEEDED}.")
    place = folder / modules[0].path if modules else folder
    weights, tokenizer = place / "model.safetensors", place / "tokenizer.json"
    for file in (weights, tokenizer):
        if not file.is_file():
            raise InvalidValue(f"{place} has no {file.name}. {NEEDED}.")
    shapes = _shapes(weights)
    prompts = (_record(folder / "config_sentence_transformers.json", _Prompts) or _Prompts()).prompts
    plan = Plan(
        weights=weights,
        tokenizer=tokenizer,
        dimensions=0,
        before_text=prompts.get("document", prompts.get("passage", "")),
        before_query=prompts.get("query", ""),
    )
    if prefix_of(shapes) is not None:
        return _bert(plan, folder, kinds.get("Pooling"), shapes)
    return _static(plan, shapes)


def _static(plan: Plan, shapes: dict[str, list[int]]) -> Plan:
    matrix = next((name for name in _MATRICES if name in shapes), None)
    if matrix is None or len(shapes[matrix]) != 2:
        raise InvalidValue(f"{plan.weights} holds neither a static model nor a BERT. {NEEDED}.")
    return msgspec.structs.replace(plan, matrix=matrix, dimensions=_width(plan, shapes[matrix]))


def _bert(plan: Plan, folder: Path, pooling: Path | None, shapes: dict[str, list[int]]) -> Plan:
    config = _record(plan.weights.with_name("config.json"), BertConfig)
    if config is None:
        raise InvalidValue(f"{folder} has no config.json. {NEEDED}.")
    if lacks := missing(config, shapes):
        raise InvalidValue(f"{plan.weights} lacks {lacks}. {NEEDED}.")
    reading = _record(plan.weights.with_name("sentence_bert_config.json"), _Reading) or _Reading()
    most = min(reading.max_seq_length or config.max_position_embeddings, config.max_position_embeddings)
    return msgspec.structs.replace(
        plan,
        config=config,
        dimensions=_width(plan, [config.hidden_size]),
        pooling=_pooling(pooling),
        most_tokens=max(most, 3),
        lower=reading.do_lower_case,
    )


def _pooling(place: Path | None) -> Literal["mean", "cls"]:
    if place is None:
        return "mean"
    given = _record(place / "config.json", dict[str, Any]) or {}
    modes = [name for name, value in given.items() if name.startswith("pooling_mode_") and value is True]
    wanted = modes or [f"pooling_mode_{given.get('pooling_mode', 'mean')}_tokens"]
    if wanted == ["pooling_mode_mean_tokens"]:
        return "mean"
    if wanted in (["pooling_mode_cls_token"], ["pooling_mode_cls_tokens"]):
        return "cls"
    raise InvalidValue(f"{place} pools by {', '.join(wanted):.80}. Only mean and cls can be computed here.")


def _width(plan: Plan, shape: list[int]) -> int:
    if not 1 <= shape[-1] <= MOST_DIMENSIONS:
        raise InvalidValue(f"{plan.weights} has vectors of {shape[-1]:,} numbers, not 1 to {MOST_DIMENSIONS:,}.")
    return shape[-1]


def _shapes(weights: Path) -> dict[str, list[int]]:
    """The tensors of a file by name, from its header alone: eight bytes that say how long the JSON is, then that."""
    try:
        with weights.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            # What is not safetensors begins with some number of bytes as well, mostly a vast one.
            header = msgspec.json.decode(file.read(min(size, _LONGEST_HEADER)), type=dict[str, Any])
        header.pop("__metadata__", None)
        tensors = msgspec.convert(header, dict[str, _Tensor])
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise InvalidValue(f"{weights} cannot be read as safetensors ({type(error).__name__}). {NEEDED}.") from None
    if strange := sorted({tensor.dtype for tensor in tensors.values()} - _NUMBERS):
        raise InvalidValue(f"{weights} holds numbers of type {strange[0]!r:.20}. Save it as F32 or F16.")
    return {name: tensor.shape for name, tensor in tensors.items()}


_Read = TypeVar("_Read")


def _record(file: Path, kind: type[_Read]) -> _Read | None:
    """A JSON file as a record; None if there is none."""
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.DecodeError, ValueError) as error:
        raise InvalidValue(f"{file} is not as expected: {error}. {NEEDED}.") from None

"""Embedders: weights on disk, an endpoint, a function or an object, behind one interface.

    wordllama                 the weights in the wheel of that name, of 256 dimensions; needs holdfast[vectors]
    a folder                  a static model or a BERT such as MiniLM, as sentence-transformers saves it
    https://host/v1#model     an endpoint that speaks OpenAI's wire
    a function or an object   `embed(texts)`, with a name: a list of numbers, or a packed vector, for each text

A resolved embedder returns checked vectors or raises holdfast's own errors. `similarities` compares vectors.
"""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

from holdfast.core.values import discard_awaitable, exception_text, is_async
from holdfast.errors import InvalidValue
from holdfast.model.embedder_check import CheckedEmbedder, check_dimensions
from holdfast.model.embedding_endpoint import EndpointEmbedder
from holdfast.model.embedding_local import WeightsEmbedder, plan_folder, require_packages, wordllama_plan
from holdfast.model.tokenizers import LONGEST_NAME
from holdfast.sqlite.vectors import similarities

__all__ = ["EndpointEmbedder", "resolve_embedder", "similarities"]

WORDLLAMA = "wordllama"
_ACCEPTED_FORMS = (
    f"Give {WORDLLAMA!r}, the path of a model's folder, an address such as https://host/v1#model, "
    "a function from texts to lists of numbers, or an object with `name` and `embed(texts)`."
)
_shared_weights: weakref.WeakValueDictionary[object, WeightsEmbedder] = weakref.WeakValueDictionary()
"""Loaded weights, which are large, shared by all users of the same files. A race only loads them twice."""


def resolve_embedder(given: object) -> CheckedEmbedder | None:
    """Return the embedder for a name, path, address, function or object; None for None. Loaded weights are shared."""
    if given is None or isinstance(given, CheckedEmbedder):
        return given
    if isinstance(given, os.PathLike):
        return _embedder_from_folder(given)
    if not isinstance(given, str):
        return _wrap_custom(given)
    if given == WORDLLAMA:
        return _shared_weights.get(WORDLLAMA) or _shared_weights.setdefault(
            WORDLLAMA, WeightsEmbedder(wordllama_plan())
        )
    if given.lower().startswith(("https://", "http://")):
        return EndpointEmbedder(given)
    looks_like_path = os.sep in given or (os.altsep is not None and os.altsep in given)
    if looks_like_path or (given and "\0" not in given and Path(given).is_dir()):
        return _embedder_from_folder(given)
    raise InvalidValue(f"There is no embedder {given!r:.80}. {_ACCEPTED_FORMS}")


def _embedder_from_folder(given: str | os.PathLike[Any]) -> WeightsEmbedder:
    try:
        folder = Path(os.fsdecode(given)).expanduser().resolve()
        if "\0" in str(folder):
            raise ValueError
    except (OSError, RuntimeError, TypeError, ValueError):
        raise InvalidValue(f"This path cannot be one of a folder. {_ACCEPTED_FORMS}") from None
    require_packages()
    plan = plan_folder(folder)
    seen = plan.weights.stat(), plan.tokenizer.stat()
    key = (plan.weights, *((one.st_mtime_ns, one.st_size) for one in seen), repr(plan))
    return _shared_weights.get(key) or _shared_weights.setdefault(key, WeightsEmbedder(plan))


class _CustomEmbedder(CheckedEmbedder):
    """A caller's own function or object, wrapped so that it returns vectors or fails with an error that names it."""

    def __init__(self, name: str, function: Callable[..., Any], dimensions: int | None) -> None:
        super().__init__(name, dimensions)
        self._function = function
        self._tells = _takes_query(function)

    def _compute_vectors(self, texts: list[str], *, query: bool) -> Any:
        answer = self._function(texts, query=query) if self._tells else self._function(texts)
        if discard_awaitable(answer):
            raise self._failure("it must be awaited, and vectors are made by plain functions")
        return answer


def _wrap_custom(given: Any) -> _CustomEmbedder:
    try:
        function = getattr(given, "embed", None)
        name = getattr(given, "name", None) or getattr(given, "__name__", None)
        dimensions = getattr(given, "dimensions", None)
    except Exception as error:
        raise InvalidValue(
            f"{type(given).__name__} cannot embed: {exception_text(error)[:300]}. {_ACCEPTED_FORMS}"
        ) from error
    if not callable(function):
        function = given
    if not callable(function) or isinstance(given, type) or is_async(function):
        raise InvalidValue(f"{type(given).__name__} is not an embedder, or must be awaited. {_ACCEPTED_FORMS}")
    if not isinstance(name, str) or name == "<lambda>" or len(name) > LONGEST_NAME or not name.isprintable():
        raise InvalidValue(
            "An embedder needs a name, since its vectors are stored under it: give a function with a name of its own "
            "(not a lambda), or set its `name`. Change the name when it begins to give other vectors."
        )
    return _CustomEmbedder(name, function, check_dimensions(dimensions))


def _takes_query(function: Callable[..., Any]) -> bool:
    try:
        named = inspect.signature(function).parameters.get("query")
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return named is not None and named.kind in (named.KEYWORD_ONLY, named.POSITIONAL_OR_KEYWORD)

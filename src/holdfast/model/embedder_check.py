"""The checks around every embedder: a vector for each text, all of one length, or one of holdfast's own errors.

Any failure underneath becomes Unavailable, so that a search can go on with text alone; an endpoint that refuses the
request itself raises InvalidValue, since a retry would not help. Only the beginning of a long text is embedded. A
blank text gets the zero vector without a call of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.numbers import is_number
from holdfast.core.values import exception_text, is_interruption
from holdfast.errors import HoldfastError, InvalidValue, Unavailable
from holdfast.sqlite.vectors import MAX_DIMENSIONS, InvalidVectors, pack_vectors

MOST_CHARACTERS = 8_000
"""Characters of one text that are embedded. More adds little about the topic, costs time, and endpoints refuse it."""
_PROBE = "How many dimensions?"


class CheckedEmbedder:
    """An embedder whose vectors are checked. Subclasses compute them."""

    def __init__(self, name: str, dimensions: int | None = None) -> None:
        self._name = name
        self._dimensions = dimensions

    @property
    def name(self) -> str:
        """The name under which its vectors are stored."""
        return self._name

    @property
    def dimensions(self) -> int:
        """The length of its vectors. If it was not given, one text is embedded to find out."""
        if self._dimensions is None:
            self._embed_checked([_PROBE], query=False)
        assert self._dimensions is not None, "embedding a text says how long vectors are"
        return self._dimensions

    def embed(self, texts: Sequence[str], *, query: bool = False) -> list[bytes]:
        """Return a vector for each text. `query` marks search queries, which some models embed differently."""
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise InvalidValue("Only texts can be embedded. Give a list of str.")
        # A lone surrogate is not Unicode and would make tokenizers and encoders fail.
        cleaned = [text[:MOST_CHARACTERS].encode("utf-8", "replace").decode() for text in texts]
        filled = [text for text in cleaned if text.strip()]
        found = iter(self._embed_checked(filled, query=query) if filled else ())
        zero = b"" if len(filled) == len(cleaned) else bytes(self.dimensions)
        return [next(found) if text.strip() else zero for text in cleaned]

    def _compute_vectors(self, texts: list[str], *, query: bool) -> Any:
        raise NotImplementedError

    def _embed_checked(self, texts: list[str], *, query: bool) -> list[bytes]:
        try:
            vectors = pack_vectors(self._compute_vectors(texts, query=query), len(texts), self._dimensions)
        except HoldfastError:
            raise
        except InvalidVectors as error:
            raise self._failure(str(error)) from None
        except BaseException as error:
            if is_interruption(error):
                raise
            raise self._failure(exception_text(error)[:300]) from error
        self._dimensions = len(vectors[0])
        return vectors

    def _failure(self, why: str) -> Unavailable:
        return Unavailable(f"The embedder {self.name} failed: {why}. Correct it, or use another; try again later.")


def check_dimensions(given: object) -> int | None:
    """Return the caller's number of dimensions, checked; or None."""
    if given is None:
        return None
    if not is_number(given, least=1, most=MAX_DIMENSIONS):
        raise InvalidValue(f"dimensions must be a whole number from 1 to {MAX_DIMENSIONS:,}, not {given!r:.40}.")
    return given

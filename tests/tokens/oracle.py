"""Another implementation of OpenAI's encodings, by other people, to compare with."""

from __future__ import annotations

import base64
import warnings
from functools import cache
from typing import Any

with warnings.catch_warnings():
    # It reads its data by a function that Python 3.11 and 3.12 call old.
    warnings.simplefilter("ignore", DeprecationWarning)
    import bpe_openai


@cache
def oracle(name: str) -> Any:
    """An encoding with `encode_ordinary`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return bpe_openai.get_encoding(name)


@cache
def vocabulary_file(name: str) -> bytes:
    """Its vocabulary in the format of OpenAI's files."""
    ranks = oracle(name)._mergeable_ranks
    ordered = sorted(ranks, key=ranks.__getitem__)
    return b"".join(b"%s %d\n" % (base64.b64encode(token), ranks[token]) for token in ordered)

"""OpenAI's encodings, counted exactly and without a network: by splintr, or by tiktoken where that is asked for.

Spellings of special tokens in a text are ordinary text, as they are to a provider: nobody can forge
a control token by writing it. Both libraries are imported on first use. What is loaded is checked
against the size of its vocabulary and three counts that are known, because a counter that is wrong
without a word is worse than none.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import msgspec

from holdfast.errors import Unsupported
from holdfast.model.calling import Counter, refusal, stray

CACHED_CHARACTERS = 8_000_000
"""splintr remembers 65,536 words of any length. It is told to forget after this much text, so that long ones go too."""


class Known(msgspec.Struct, frozen=True):
    """What must be true of an encoding that was loaded rightly."""

    vocabulary: int
    counts: tuple[int, int, int]


PROBES = (
    "Refund 1299.50 EUR?  Ja, natürlich!\n\n\tfor i in range(10):\n        total += prices[i]",
    "<|endoftext|> and <|im_start|> are ordinary words here",
    "東京の天気は晴れ ☀️ 👩‍👩‍👧 नमस्ते Привет",
)
KNOWN = {"o200k_base": Known(200_019, (26, 18, 23)), "cl100k_base": Known(100_277, (27, 17, 35))}
SPECIAL = "<|"
"""What every special token begins with; checked when an encoding is loaded."""
ALIASES = {"o200k_harmony": "o200k_base"}
"""The same for ordinary text: only control tokens differ."""

_SITE = "https://openaipublic.blob.core.windows.net/encodings/"
"""Where tiktoken would fetch a vocabulary; also part of the name it keeps it under."""
_FILES = {
    "o200k_base": ("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    "o200k_harmony": ("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    "cl100k_base": ("cl100k_base", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    "p50k_base": ("p50k_base", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "p50k_edit": ("p50k_base", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "r50k_base": ("r50k_base", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"),
}
TIKTOKEN_ENCODINGS = frozenset(_FILES)


class Splintr:
    """One of OpenAI's encodings, exactly."""

    __slots__ = ("_flat", "_forget", "_ordinary", "_room", "name")
    exact = True

    def __init__(self, name: str, loaded: Any) -> None:
        self.name = name
        self._ordinary, self._flat = loaded.encode_ordinary, loaded.encode_flat
        self._forget, self._room = loaded.clear_cache, CACHED_CHARACTERS

    def count(self, text: str) -> int:
        """How many tokens the text has."""
        try:
            # As bytes, four to a token, it takes little more than half the time and far less memory than as
            # a list, but recognises special tokens: so only where none can be spelled.
            found = len(self._ordinary(text)) if SPECIAL in text else len(self._flat(text)) // 4
        except BaseException as error:
            if stray(error):
                raise
            raise refusal(self.name, text, error) from None
        # Threads may lose a subtraction to each other: then it forgets a little later.
        self._room -= len(text)
        if self._room < 0:
            self._room = CACHED_CHARACTERS
            self._forget()
        return found


def load_splintr(name: str) -> Splintr:
    """An encoding by splintr, checked."""
    splintr = _imported("splintr", "pip install 'splintr-rs>=0.22,<0.23'")
    try:
        loaded = splintr.Tokenizer.from_pretrained(name)
        size = min(splintr.base_vocab_size(name), loaded.vocab_size)
        strange = [token for token in loaded.special_tokens() if not token.startswith(SPECIAL)]
        counter = Splintr(name, loaded)
    except (AttributeError, TypeError, ValueError, OSError) as error:
        raise Unsupported(f"The installed splintr-rs cannot load {name} ({error}). {_REPAIR}") from None
    if strange:
        raise Unsupported(f"splintr-rs has special tokens in {name} that are not known: {strange[:3]}. {_REPAIR}")
    return _checked(counter, name, size)


def load_tiktoken(name: str) -> Counter:
    """An encoding by tiktoken, from a vocabulary that is on disk already, checked."""
    tiktoken = _imported("tiktoken", f"pip install tiktoken, or use {name!r}")
    registry = _imported("tiktoken.registry", "pip install tiktoken")
    if name not in registry.ENCODINGS and not _on_disk(name):
        raise Unsupported(
            f"The vocabulary of tiktoken:{name} is not on this machine, and holdfast downloads nothing. Fetch it once, "
            f"where there is a network, with TIKTOKEN_CACHE_DIR set to a folder that stays: "
            f'python -c "import tiktoken; tiktoken.get_encoding({name!r})".'
            + (f" Or use {name!r}, which needs no file." if name in KNOWN else "")
        )
    encoding = tiktoken.get_encoding(name)

    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    counter = Counter(f"tiktoken:{name}", count, exact=True)
    known = ALIASES.get(name, name)
    return _checked(counter, known, KNOWN[known].vocabulary) if known in KNOWN else counter


_Loaded = TypeVar("_Loaded", Splintr, Counter)
_REPAIR = "Install the release that holdfast asks for: pip install 'splintr-rs>=0.22,<0.23'."


def _checked(counter: _Loaded, encoding: str, vocabulary: int) -> _Loaded:
    known = KNOWN[encoding]
    counts = tuple(counter.count(probe) for probe in PROBES)
    if vocabulary != known.vocabulary or counts != known.counts:
        raise Unsupported(
            f"{counter.name} does not count as it should: its vocabulary has {vocabulary:,} entries instead of "
            f"{known.vocabulary:,}, and three texts have {counts} tokens instead of {known.counts}. {_REPAIR}"
        )
    return counter


def _imported(module: str, remedy: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unsupported(
            f"{module} is not installed or cannot be loaded here ({error}). To count: {remedy}."
        ) from None


def _on_disk(name: str) -> bool:
    """Whether tiktoken would find the whole vocabulary in its folder; anything else it would fetch or replace."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR"))
    if folder is None:
        folder = str(Path(tempfile.gettempdir(), "data-gym-cache"))
    if not folder:
        return False
    file, digest = _FILES[name]
    address = f"{_SITE}{file}.tiktoken"
    try:
        body = Path(folder, hashlib.sha1(address.encode(), usedforsecurity=False).hexdigest()).read_bytes()
    except OSError:
        return False
    return hashlib.sha256(body).hexdigest() == digest

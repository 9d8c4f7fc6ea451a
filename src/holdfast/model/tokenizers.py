"""Tokenizers: by name, by function, or by default OpenAI's newest.

    o200k_base, cl100k_base   OpenAI's, exact, nothing to download
    tiktoken:<encoding>       the same and older ones by tiktoken, if its vocabulary is on disk
    estimate:<factor>         high on purpose, for models whose tokenizer is not public
    a function or an object   `count(text) -> int`, with a name; its counts are taken as they are

Each name is loaded once, on first use, and offline. OpenAI's encodings count their first texts by a vocabulary that is
ready at once (model/vocabulary.py), and load splintr when more is counted. Both are checked against the size of the
encoding and three known counts, because a silently wrong counter is worse than none. A special token spelled out in a
text is ordinary text, as it is to a provider.

An estimate is the larger count of OpenAI's two encodings, times a factor, plus a surcharge for digits, non-ASCII text
and long runs of one character, which other tokenizers split further. Counts are stored under the tokenizer's name, so
a changed rule needs another name.
"""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.core.lazy import lazy_module
from holdfast.core.numbers import is_number
from holdfast.core.values import exception_text, is_interruption
from holdfast.core.wire.plain_data import is_unicode
from holdfast.errors import InvalidValue, Unsupported
from holdfast.model.vocabulary import Vocabulary, load_vocabulary
from holdfast.ports import Tokenizer
from holdfast.system import ForkLock

if TYPE_CHECKING:
    import tempfile
else:
    tempfile = lazy_module(__name__, "tempfile")

LONGEST_NAME = 128
CACHED_CHARACTERS = 8_000_000
"""Characters counted before splintr's cache is cleared: it holds 65,536 words of any length, long ones too."""
PROBES = (
    "Refund 1299.50 EUR?  Ja, natürlich!\n\n\tfor i in range(10):\n        total += prices[i]",
    "<|endoftext|> and <|im_start|> are ordinary words here",
    "東京の天気は晴れ ☀️ 👩‍👩‍👧 नमस्ते Привет",
)
KNOWN_ENCODINGS = {"o200k_base": (200_019, (26, 18, 23)), "cl100k_base": (100_277, (27, 17, 35))}
"""The expected size of each encoding's vocabulary, and the tokens of each probe."""
SPECIAL_PREFIX = "<|"
"""The prefix of every special token; checked when an encoding is loaded."""
ALIASES = {"o200k_harmony": "o200k_base"}
"""Encodings that count ordinary text alike: only their control tokens differ."""
_SITE = "https://openaipublic.blob.core.windows.net/encodings/"
"""The address from which tiktoken would fetch a vocabulary; the name of its cache file is derived from it."""
_FILES = {
    "o200k_base": ("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    "o200k_harmony": ("o200k_base", "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"),
    "cl100k_base": ("cl100k_base", "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"),
    "p50k_base": ("p50k_base", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "p50k_edit": ("p50k_base", "94b5ca7dff4d00767bc256fdd1b27e5b17361d7b8a5f968547f9f23eb70d2069"),
    "r50k_base": ("r50k_base", "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930"),
}
TIKTOKEN_ENCODINGS = frozenset(_FILES)
_INSTALL = "pip install 'splintr-rs>=0.22,<0.23'"
_REPAIR = f"Install the release that holdfast asks for: {_INSTALL}."
DEFAULT_FACTOR = 1.5
"""The factor for unknown models: above nine tokenizers of other families on all kinds of text."""
ESTIMATE_PREFIX = "estimate:"
_FACTOR_LIMIT = 10.0
_PER_DIGIT = 2 / 3
_PER_BYTE_NOT_ASCII = 0.45
_RUN = re.compile(r"(.)\1{7,}", re.DOTALL)
DEFAULT_TOKENIZER = "o200k_base"
_TIKTOKEN = "tiktoken:"
_tokenizers: dict[str, Tokenizer] = {}
_LOADING = ForkLock(reentrant=True)
"""Reentrant: loading an estimate loads the two tokenizers that it is made of."""


class FunctionTokenizer:
    """A tokenizer made of a function from text to a number of tokens; counts are stored under its name."""

    __slots__ = ("_function", "exact", "name")

    def __init__(self, name: str, function: Callable[[str], int], *, exact: bool = False) -> None:
        self.name, self._function, self.exact = name, function, exact

    def count(self, text: str) -> int:
        """Return the function's count, checked to be a number of tokens."""
        if not isinstance(text, str) or not is_unicode(text):
            raise count_error(self.name, text, None)
        try:
            found = self._function(text)
        except BaseException as error:
            if is_interruption(error):
                raise
            raise count_error(self.name, text, error) from None
        if not is_number(found, least=0):
            raise InvalidValue(
                f"The tokenizer {self.name} gave {found!r:.60} for a text of {len(text):,} characters. "
                "It must give a number of tokens: an int of 0 or more."
            )
        return int(found)


def count_error(name: str, text: object, error: BaseException | None) -> InvalidValue:
    """Build the error for a text that could not be counted."""
    if not isinstance(text, str):
        return InvalidValue(f"Only text has tokens, not {type(text).__name__}. Give a str.")
    if not is_unicode(text):
        return InvalidValue("Text holds a lone surrogate, which is not Unicode. Clean the text first.")
    said = "" if error is None else f": {exception_text(error)[:300]}"
    return InvalidValue(
        f"The tokenizer {name} failed on a text of {len(text):,} characters{said}. Correct it, or use another."
    )


class SplintrTokenizer:
    """An exact tokenizer for one of OpenAI's encodings, by splintr."""

    __slots__ = ("_flat", "_forget", "_ordinary", "_room", "name")
    exact = True

    def __init__(self, name: str, loaded: Any) -> None:
        self.name = name
        self._ordinary, self._flat = loaded.encode_ordinary, loaded.encode_flat
        self._forget, self._room = loaded.clear_cache, CACHED_CHARACTERS

    def count(self, text: str) -> int:
        """Count the tokens of a text."""
        try:
            # The flat encoding (bytes, four per token) takes little more than half the time and far less memory than a
            # list, but recognises special tokens: so it is used only where none can be spelled.
            found = len(self._ordinary(text)) if SPECIAL_PREFIX in text else len(self._flat(text)) // 4
        except BaseException as error:
            if is_interruption(error):
                raise
            raise count_error(self.name, text, error) from None
        # Threads may lose a subtraction to each other: then the cache is cleared a little later.
        self._room -= len(text)
        if self._room < 0:
            self._room = CACHED_CHARACTERS
            self._forget()
        return found


class OpenAITokenizer:
    """An exact tokenizer that is ready at once: splintr is loaded for the first text that the vocabulary cannot count.

    Loading takes 180 ms, in the first quarter of which no other thread runs. A process that counts little is spared it.
    """

    exact = True

    def __init__(self, name: str, vocabulary: Vocabulary) -> None:
        self.name = name
        self._vocabulary: Vocabulary | None = vocabulary
        self._loaded: SplintrTokenizer | None = None

    def count(self, text: str) -> int:
        """Count the tokens of a text."""
        vocabulary = self._vocabulary
        found = None if vocabulary is None or not isinstance(text, str) else vocabulary.count(text)
        return self.load().count(text) if found is None else found

    def load(self) -> SplintrTokenizer:
        """Load splintr, which counts every text from now on."""
        with _LOADING.lock:  # One thread loads while others wait.
            if self._loaded is None:
                self._loaded = load_splintr(self.name)
                self._vocabulary = None
                # Found before the method of the class, so that splintr's counts cost no call more.
                vars(self)["count"] = self._loaded.count
        return self._loaded


def load_openai(name: str) -> OpenAITokenizer | SplintrTokenizer:
    """Return the tokenizer of an encoding; splintr is loaded now if it or the vocabulary is not as it should be."""
    splintr = _import_library("splintr", _INSTALL)
    vocabulary = load_vocabulary(name)
    size, counts = KNOWN_ENCODINGS[name]
    sizes = getattr(splintr, "base_vocab_size", None)
    if vocabulary is None or sizes is None or sizes(name) != size:
        return load_splintr(name)
    if tuple(map(vocabulary.count, PROBES)) != counts:
        return load_splintr(name)
    return OpenAITokenizer(name, vocabulary)


def load_splintr(name: str) -> SplintrTokenizer:
    """Load an encoding by splintr and verify it."""
    splintr = _import_library("splintr", _INSTALL)
    try:
        loaded = splintr.Tokenizer.from_pretrained(name)
        size = min(splintr.base_vocab_size(name), loaded.vocab_size)
        strange = [token for token in loaded.special_tokens() if not token.startswith(SPECIAL_PREFIX)]
        # The first word that is no token has a table of merges built. This call alone gives up the GIL meanwhile.
        loaded.encode_batch(PROBES)
        counter = SplintrTokenizer(name, loaded)
    except (AttributeError, TypeError, ValueError, OSError) as error:
        raise Unsupported(f"The installed splintr-rs cannot load {name} ({error}). {_REPAIR}") from None
    if strange:
        raise Unsupported(f"splintr-rs has special tokens in {name} that are not known: {strange[:3]}. {_REPAIR}")
    return _verify_encoding(counter, name, size)


def load_tiktoken(name: str) -> FunctionTokenizer:
    """Load an encoding by tiktoken from a vocabulary that is already on disk, and verify it."""
    tiktoken = _import_library("tiktoken", f"pip install tiktoken, or use {name!r}")
    registry = _import_library("tiktoken.registry", "pip install tiktoken")
    if name not in registry.ENCODINGS and not _is_on_disk(name):
        raise Unsupported(
            f"The vocabulary of tiktoken:{name} is not on this machine, and holdfast downloads nothing. Fetch it once, "
            f"where there is a network, with TIKTOKEN_CACHE_DIR set to a folder that stays: "
            f'python -c "import tiktoken; tiktoken.get_encoding({name!r})".'
            + (f" Or use {name!r}, which needs no file." if name in KNOWN_ENCODINGS else "")
        )
    encoding = tiktoken.get_encoding(name)

    def count(text: str) -> int:
        return len(encoding.encode_ordinary(text))

    counter = FunctionTokenizer(f"tiktoken:{name}", count, exact=True)
    known = ALIASES.get(name, name)
    return _verify_encoding(counter, known, KNOWN_ENCODINGS[known][0]) if known in KNOWN_ENCODINGS else counter


_CounterT = TypeVar("_CounterT", SplintrTokenizer, FunctionTokenizer)


def _verify_encoding(counter: _CounterT, encoding: str, vocabulary: int) -> _CounterT:
    known_size, known_counts = KNOWN_ENCODINGS[encoding]
    counts = tuple(counter.count(probe) for probe in PROBES)
    if vocabulary != known_size or counts != known_counts:
        raise Unsupported(
            f"{counter.name} does not count as it should: its vocabulary has {vocabulary:,} entries instead of "
            f"{known_size:,}, and three texts have {counts} tokens instead of {known_counts}. {_REPAIR}"
        )
    return counter


def _import_library(module: str, remedy: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise Unsupported(
            f"{module} is not installed or cannot be loaded here ({error}). To count: {remedy}."
        ) from None


def _is_on_disk(name: str) -> bool:
    """Return True if tiktoken would find the whole vocabulary in its cache; otherwise it would download it."""
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


class EstimateTokenizer:
    """A tokenizer that counts high, based on two exact tokenizers."""

    __slots__ = ("_factor", "_first", "_second", "name")
    exact = False

    def __init__(self, factor: float, first: Tokenizer, second: Tokenizer) -> None:
        self._factor, self._first, self._second = factor, first, second
        self.name = f"{ESTIMATE_PREFIX}{factor:g}"

    def count(self, text: str) -> int:
        """Return an upper bound of the tokens in a text."""
        least = max(self._first.count(text), self._second.count(text))
        found = self._factor * least + _PER_DIGIT * sum(map(text.count, "0123456789"))
        if not text.isascii():
            found += _PER_BYTE_NOT_ASCII * (len(text.encode()) - len(text))
        # Every text is searched: dense words around a run would hide it from any average.
        found += sum(map(_run_surcharge, _RUN.finditer(text)))
        return math.ceil(found)


def parse_factor(name: str) -> float:
    """Return the factor in a name such as `estimate:1.5`; `estimate` alone has the default factor."""
    given = name.removeprefix(ESTIMATE_PREFIX.rstrip(":")).removeprefix(":")
    try:
        factor = float(given) if given else DEFAULT_FACTOR
    except ValueError:
        factor = 0.0
    if not 1.0 <= factor <= _FACTOR_LIMIT:
        raise InvalidValue(
            f"{name!r} is not an estimate: write estimate:1.5, with a factor from 1 to {_FACTOR_LIMIT:g}."
        )
    return factor


def _run_surcharge(found: re.Match[str]) -> float:
    """Return the tokens that a run of one character may take beyond the count: the maximum seen for its kind."""
    length, character = len(found[0]), found[1]
    if not character.isascii():
        return float(length * len(character.encode()))
    if character == " ":
        return length / 16
    return length / (2 if character.isalnum() else 4)


_WRAPPED_TYPES = (OpenAITokenizer, SplintrTokenizer, FunctionTokenizer, EstimateTokenizer)


def resolve_tokenizer(given: str | Tokenizer | Callable[[str], int] | None = None) -> Tokenizer:
    """Return the tokenizer for a name, a function, an object or None; the same object for the same name."""
    if given is None:
        given = DEFAULT_TOKENIZER
    if isinstance(given, str):
        if given in _tokenizers:
            return _tokenizers[given]
        if given == "estimate" or given.startswith(ESTIMATE_PREFIX):
            name = f"{ESTIMATE_PREFIX}{parse_factor(given):g}"
        else:
            name = ALIASES.get(given, given)
        if name not in _tokenizers:
            with _LOADING.lock:  # One thread loads a vocabulary while others wait.
                return _tokenizers.get(name) or _tokenizers.setdefault(name, _load_tokenizer(name))
        return _tokenizers[name]
    return given if isinstance(given, _WRAPPED_TYPES) else _wrap_custom(given)


def _load_tokenizer(name: str) -> Tokenizer:
    if name in KNOWN_ENCODINGS:
        return load_openai(name)
    if name.startswith("estimate:"):
        return EstimateTokenizer(parse_factor(name), resolve_tokenizer("o200k_base"), resolve_tokenizer("cl100k_base"))
    encoding = name.removeprefix(_TIKTOKEN)
    if name.startswith(_TIKTOKEN) and encoding in TIKTOKEN_ENCODINGS:
        return load_tiktoken(encoding)
    names = ", ".join((*KNOWN_ENCODINGS, *ALIASES, *sorted(_TIKTOKEN + known for known in TIKTOKEN_ENCODINGS)))
    raise InvalidValue(
        f"There is no tokenizer {name!r:.80}. Known are {names}, estimate:<factor>; "
        "or give a function that counts the tokens of a text."
    )


def _wrap_custom(given: Any) -> FunctionTokenizer:
    """Wrap a caller's own tokenizer, so that it either counts or fails with an error that names it."""
    function = getattr(given, "count", None)
    if not callable(function):
        function = given
    if not callable(function) or isinstance(given, type | bytes | list | tuple):
        raise InvalidValue(
            f"{type(given).__name__} is not a tokenizer. Give a name, a function from text to a number, "
            "or an object with `name` and `count(text)`."
        )
    name = getattr(given, "name", None) or getattr(given, "__name__", None)
    if not isinstance(name, str) or name == "<lambda>" or len(name) > LONGEST_NAME or not name.isprintable():
        raise InvalidValue(
            "A tokenizer needs a name, since its counts are stored under it: give a function with a name of its own "
            "(not a lambda), or set its `name`. Change the name when it begins to count differently."
        )
    if name in KNOWN_ENCODINGS or name in ALIASES or name.startswith((_TIKTOKEN, "estimate")):
        raise InvalidValue(f"{name} is the name of a tokenizer of holdfast. Give yours another name.")
    return FunctionTokenizer(name, function, exact=getattr(given, "exact", False) is True)

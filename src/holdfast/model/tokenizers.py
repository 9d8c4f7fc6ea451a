"""Which tokenizer is meant: by name, by function, or none, which is OpenAI's newest.

    o200k_base, cl100k_base   OpenAI's, exact, nothing to download
    tiktoken:<encoding>       the same and older ones by tiktoken, if its vocabulary is on disk
    estimate:<factor>         high on purpose, for models whose tokenizer is not public
    a function or an object   `count(text) -> int`, with a name; its counts are taken as they are

Loading happens once for each name, on first use.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from holdfast.ambient import renew_in_child
from holdfast.errors import InvalidValue
from holdfast.model.calling import LONGEST_NAME, Counter
from holdfast.model.encodings import ALIASES, KNOWN, TIKTOKEN_ENCODINGS, Splintr, load_splintr, load_tiktoken
from holdfast.model.estimates import Estimate, factor_of
from holdfast.ports import Tokenizer

DEFAULT = "o200k_base"
_TIKTOKEN = "tiktoken:"
_OWN = (Splintr, Counter, Estimate)
_loaded: dict[str, Tokenizer] = {}


def tokenizer(given: str | Tokenizer | Callable[[str], int] | None = None) -> Tokenizer:
    """The tokenizer that is meant; the same object for the same name."""
    if given is None:
        given = DEFAULT
    if isinstance(given, str):
        name = _canonical(given)
        return _loaded.get(name) or _LOADING.load(name)
    return given if isinstance(given, _OWN) else _custom(given)


class _Loading:
    """One thread loads a vocabulary while others wait for it; a forked child begins with a lock of its own."""

    def __init__(self) -> None:
        self.after_fork()
        renew_in_child(self)

    def after_fork(self) -> None:
        """A lock that another thread of the parent may have held."""
        # An estimate is made of two others, which are loaded while it is.
        self._lock = threading.RLock()

    def load(self, name: str) -> Tokenizer:
        """The tokenizer of this name, loaded once."""
        with self._lock:
            return _loaded.get(name) or _loaded.setdefault(name, _load(name))


_LOADING = _Loading()


def _canonical(name: str) -> str:
    if name == "estimate" or name.startswith("estimate:"):
        return f"estimate:{factor_of(name):g}"
    return ALIASES.get(name, name)


def _load(name: str) -> Tokenizer:
    if name in KNOWN:
        return load_splintr(name)
    if name.startswith("estimate:"):
        return Estimate(factor_of(name), tokenizer("o200k_base"), tokenizer("cl100k_base"))
    encoding = name.removeprefix(_TIKTOKEN)
    if name.startswith(_TIKTOKEN) and encoding in TIKTOKEN_ENCODINGS:
        return load_tiktoken(encoding)
    names = ", ".join((*KNOWN, *ALIASES, *sorted(_TIKTOKEN + known for known in TIKTOKEN_ENCODINGS)))
    raise InvalidValue(
        f"There is no tokenizer {name!r:.80}. Known are {names}, estimate:<factor>; "
        "or give a function that counts the tokens of a text."
    )


def _custom(given: Any) -> Counter:
    """A caller's own, so wrapped that it can only count or be refused by its name."""
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
    if name in KNOWN or name in ALIASES or name.startswith((_TIKTOKEN, "estimate")):
        raise InvalidValue(f"{name} is the name of a tokenizer of holdfast. Give yours another name.")
    return Counter(name, function, exact=getattr(given, "exact", False) is True)

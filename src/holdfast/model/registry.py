"""The model registry: provider, tokenizer, context window and reply reserve of a model, looked up by its name.

A name is looked up by its longest known prefix, after host prefixes are removed, so `openai/gpt-4o-2024-08-06`,
`ft:gpt-4o-mini:shop::1` and `us.anthropic.claude-sonnet-4-5-…` are found. An unknown model gets a window that nearly
all models have, and an upper estimate of tokens. The table describes families as their providers did in November 2026:
provider, tokenizer, window, longest reply, and the input limit where a provider accepts less than the rest of the
window. Dots in names are dashes there, since hosts write both; `register_model` overrides a row.

The reply reserve is the model's longest reply, but at most a quarter of the window: a reply is rarely that long, and a
window must hold a conversation. Where a provider accepts less input than the rest of the window, the reserve is
larger, so that the provider always accepts `input_budget`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import msgspec

from holdfast.errors import InvalidValue
from holdfast.model.calibration import Calibration, CalibrationKey
from holdfast.model.tokenizers import DEFAULT_FACTOR, DEFAULT_TOKENIZER, resolve_tokenizer
from holdfast.ports import Tokenizer
from holdfast.records.messages import ModelInfo

Family = tuple[str, str, int, int] | tuple[str, str, int, int, int]

ESTIMATE = f"estimate:{DEFAULT_FACTOR:g}"
_CLAUDE = "estimate:1.6"
"""Up to 4.6: by published measurements, a third more tokens than OpenAI's for code and a sixth more for prose."""
_CLAUDE_NEW = "estimate:2"
"""From 4.7: up to 1.47 times as many tokens as before."""

_SMALL_VOCABULARY = "estimate:2"
"""For vocabularies of 32,000 entries, which are poor in everything except English."""
_O200K, _CL100K = "o200k_base", "cl100k_base"

_ROWS: dict[str, Family] = {
    "gpt-6": ("openai", ESTIMATE, 1_050_000, 128_000, 922_000),  # its encoding is not published
    "gpt-5 gpt-5-4-mini gpt-5-4-nano gpt-5-6-cyber": ("openai", _O200K, 400_000, 128_000, 272_000),
    "gpt-5-chat gpt-5-1-chat gpt-5-2-chat gpt-5-3-chat gpt-4-5 gpt-4o": ("openai", _O200K, 128_000, 16_384),
    "chatgpt-4o gpt-audio": ("openai", _O200K, 128_000, 16_384),
    "gpt-5-4 gpt-5-5 gpt-5-6": ("openai", _O200K, 1_050_000, 128_000, 922_000),
    "gpt-4-1": ("openai", _O200K, 1_047_576, 32_768),
    "o1 o3 o4-mini": ("openai", _O200K, 200_000, 100_000),
    "o1-mini": ("openai", _O200K, 128_000, 65_536),
    "o1-preview": ("openai", _O200K, 128_000, 32_768),
    "gpt-oss": ("openai", _O200K, 131_072, 32_768),
    "gpt-4": ("openai", _CL100K, 8_192, 4_096),
    "gpt-4-32k": ("openai", _CL100K, 32_768, 4_096),
    "gpt-4-turbo gpt-4-1106 gpt-4-0125 gpt-4-vision": ("openai", _CL100K, 128_000, 4_096),
    "gpt-3-5-turbo gpt-35-turbo": ("openai", _CL100K, 16_385, 4_096),
    "gpt-3-5-turbo-0301 gpt-3-5-turbo-0613 gpt-3-5-turbo-instruct": ("openai", _CL100K, 4_096, 4_096),
    "claude": ("anthropic", _CLAUDE_NEW, 200_000, 64_000),
    "claude-2 claude-instant": ("anthropic", _CLAUDE, 100_000, 4_096),
    "claude-3": ("anthropic", _CLAUDE, 200_000, 4_096),
    "claude-3-5": ("anthropic", _CLAUDE, 200_000, 8_192),
    "claude-3-7 claude-sonnet-4 claude-haiku-4 claude-opus-4-5": ("anthropic", _CLAUDE, 200_000, 64_000),
    "claude-opus-4": ("anthropic", _CLAUDE, 200_000, 32_000),
    "claude-opus-4-6 claude-sonnet-4-6": ("anthropic", _CLAUDE, 1_000_000, 128_000),
    "claude-opus-4-7 claude-opus-4-8 claude-opus-5 claude-sonnet-5": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "claude-haiku-5 claude-fable claude-mythos": ("anthropic", _CLAUDE_NEW, 1_000_000, 128_000),
    "gemini": ("google", ESTIMATE, 1_048_576, 65_536),
    "gemini-1-0": ("google", ESTIMATE, 32_760, 8_192),
    "gemini-1-5 gemini-2-0": ("google", ESTIMATE, 1_048_576, 8_192),
    "gemini-1-5-pro": ("google", ESTIMATE, 2_097_152, 8_192),
    "gemma": ("google", ESTIMATE, 8_192, 8_192),
    "gemma-3 gemma3": ("google", ESTIMATE, 131_072, 8_192),
    "gemma-4": ("google", ESTIMATE, 262_144, 32_768),
    "llama llama-3-1 llama-3-2 llama-3-3 llama3-1 llama3-2 llama3-3 llama-4": ("meta", ESTIMATE, 131_072, 8_192),
    "llama-2 llama2": ("meta", _SMALL_VOCABULARY, 4_096, 4_096),
    "llama-3 llama3": ("meta", ESTIMATE, 8_192, 8_192),
    "mistral codestral devstral pixtral": ("mistral", ESTIMATE, 128_000, 16_384),
    "mistral-7b mixtral": ("mistral", _SMALL_VOCABULARY, 32_768, 8_192),
    "mistral-tiny open-mistral": ("mistral", _SMALL_VOCABULARY, 32_000, 8_192),
    "ministral": ("mistral", ESTIMATE, 131_072, 16_384),
    "magistral": ("mistral", ESTIMATE, 128_000, 40_000),
    "qwen qwq": ("qwen", ESTIMATE, 32_768, 8_192),
    "deepseek": ("deepseek", ESTIMATE, 65_536, 8_192),
    "deepseek-v4": ("deepseek", ESTIMATE, 1_000_000, 393_216),
}
FAMILIES = {name: row for names, row in _ROWS.items() for name in names.split()}


UNKNOWN_WINDOW = 128_000
"""The window assumed for an unknown model: the smallest common one."""
UNKNOWN_REPLY = 16_384
_HOSTS = re.compile(
    r"^(?:[a-z-]+\.)?(?:ai21|amazon|anthropic|cohere|deepseek|google|meta|mistral|openai|qwen)\.(?=[a-z])"
)
_UNKNOWN = ModelInfo(
    name="", provider="other", tokenizer=ESTIMATE, window=UNKNOWN_WINDOW, reply_reserve=UNKNOWN_REPLY, known=False
)
_FIELDS = frozenset({"provider", "tokenizer", "window", "reply_reserve"})
_registered: dict[str, ModelInfo] = {}


def _compute_reserve(window: int, reply: int, most_input: int | None = None) -> int:
    return max(min(reply, window // 4), 0 if most_input is None else window - most_input)


_TABLE = {
    prefix: ModelInfo(
        name=prefix,
        provider=provider,
        tokenizer=counted,
        window=window,
        reply_reserve=_compute_reserve(window, reply, *most),
    )
    for prefix, (provider, counted, window, reply, *most) in FAMILIES.items()
}


def model_info(name: str | None, overrides: Mapping[str, Any] | None = None) -> ModelInfo:
    """Return a model's description; `overrides` are the caller's own window, reply_reserve, tokenizer or provider."""
    if name is not None and not isinstance(name, str):
        raise InvalidValue(f"A model is given by its name, not as {type(name).__name__}.")
    found = _look_up(name or "")
    if not overrides:
        return found
    strange = set(overrides) - _FIELDS
    if strange:
        raise InvalidValue(f"A model has no {', '.join(sorted(strange))}. It has {', '.join(sorted(_FIELDS))}.")
    given = dict(overrides)
    window = given.get("window")
    if type(window) is int and "reply_reserve" not in given:
        # The reserve is at most a quarter of the smaller window, too.
        given["reply_reserve"] = _compute_reserve(window, found.reply_reserve)
    return _validate(msgspec.structs.replace(found, **given))


@lru_cache(maxsize=256)
def _look_up(name: str) -> ModelInfo:
    if not name.strip():
        # No model was named: count as for OpenAI's models, but mark the result as unknown.
        return msgspec.structs.replace(_UNKNOWN, tokenizer=DEFAULT_TOKENIZER)
    plain = normalise_name(name)
    prefix = max((known for known in (*_TABLE, *_registered) if has_prefix(plain, known)), key=len, default=None)
    if prefix is None:
        return msgspec.structs.replace(_UNKNOWN, name=name)
    return msgspec.structs.replace(_registered.get(prefix) or _TABLE[prefix], name=name)


def register_model(
    prefix: str, *, window: int, reply_reserve: int | None = None, tokenizer: str = ESTIMATE, provider: str = "other"
) -> ModelInfo:
    """Register models whose names begin with `prefix`, in this process; replaces an earlier entry for the prefix."""
    plain = normalise_name(prefix) if isinstance(prefix, str) else ""
    if not plain:
        raise InvalidValue("A model's name, or its beginning, must not be empty.")
    if reply_reserve is None and type(window) is int:
        reply_reserve = _compute_reserve(window, UNKNOWN_REPLY)
    reserve = reply_reserve or 0
    added = ModelInfo(name=plain, provider=provider, tokenizer=tokenizer, window=window, reply_reserve=reserve)
    _registered[plain] = _validate(added)
    _look_up.cache_clear()
    return added


class ModelRegistry:
    """The registry as a port. A tokenizer given to the client replaces the tokenizer of every model."""

    def __init__(self, given: str | Tokenizer | Callable[[str], int] | None = None) -> None:
        self._given = None if given is None else resolve_tokenizer(given)
        self._calibration = Calibration()

    def info(self, model: str | None) -> ModelInfo:
        """Return a model's description."""
        found = _look_up(model) if model.__class__ is str else model_info(model)
        return found if self._given is None else msgspec.structs.replace(found, tokenizer=self._given.name)

    def tokenizer(self, name: str | None = None) -> Tokenizer:
        """Return the tokenizer with the name that `info` or a stored count carries."""
        if self._given is not None and name in (None, self._given.name):
            return self._given
        return resolve_tokenizer(name)

    def calibration(self, model: str | None, tokenizer: str | None = None, *, tenant: str = "") -> float | None:
        """Return the factor for tokens estimated for a model; None if counts are exact or too few calls were seen."""
        counted = self._calibration_key(model, tokenizer, tenant)
        return None if counted is None else self._calibration.factor(counted)

    def note(
        self, model: str | None, estimated: int, reported: int, tokenizer: str | None = None, *, tenant: str = ""
    ) -> None:
        """Record how many tokens were estimated for a request, and how many the provider reported."""
        counted = self._calibration_key(model, tokenizer, tenant)
        if counted is not None:
            self._calibration.note(counted, estimated, reported)

    def _calibration_key(self, model: str | None, name: str | None, tenant: str) -> CalibrationKey | None:
        """Return the key to calibrate under; None if no model was named or its own tokenizer counts exactly."""
        info = self.info(model)
        if not info.name:
            return None
        counting = self.tokenizer(name or info.tokenizer)
        exact = counting.exact and info.known and counting.name == info.tokenizer
        return None if exact else (tenant, normalise_name(info.name), counting.name)


def normalise_name(name: str) -> str:
    """Return a model's name without host prefixes, in the table's spelling."""
    name = name.strip().lower().rsplit("/", 1)[-1].removeprefix("ft:").removeprefix("meta-")
    return _HOSTS.sub("", name, count=1).replace(".", "-").replace("_", "-")


def has_prefix(name: str, prefix: str) -> bool:
    """Return True if a name belongs to this family: gpt-4-1 is no prefix of gpt-4-1106, nor gpt-4 of gpt-4o."""
    if not name.startswith(prefix):
        return False
    rest = name[len(prefix) :]
    return not (rest and prefix[-1].isdigit() and rest[0].isalnum())


def _validate(info: ModelInfo) -> ModelInfo:
    whole = type(info.window) is int and type(info.reply_reserve) is int
    if not whole or not 0 <= info.reply_reserve < info.window:
        raise InvalidValue(
            f"{info.name or 'This model'} cannot have a window of {info.window!r:.40} tokens of which "
            f"{info.reply_reserve!r:.40} are for the reply. Give whole numbers, the window the larger."
        )
    if not (isinstance(info.tokenizer, str) and info.tokenizer and isinstance(info.provider, str) and info.provider):
        raise InvalidValue("A model's tokenizer and provider are names. Give a function with open(tokenizer=…).")
    return info

"""What a compaction may be asked for. What cannot be done is refused when it is asked for, and not when it is due."""

from __future__ import annotations

import threading
from typing import Any, Final

from holdfast.errors import InvalidValue
from holdfast.ports import Ports
from holdfast.records.compaction import STRATEGIES, CompactionConfig
from holdfast.records.ids import check_id
from holdfast.records.scope import Scope

_NUMBERS: Final = {
    "keep": (0, "keep must be a number of rounds"),
    "recall": (0, "recall must be a number of entries"),
    "summary_tokens": (1, "A summary's tokens must be a whole number"),
    "threshold": (0, "threshold must be a number of messages"),
    "max_messages": (1, "max_messages must be a number of messages"),
    "max_tokens": (1, 'max_tokens must be "model" or a number of tokens'),
    "max_length": (1, "max_length must be a number of characters"),
}
_MAY_BE_NONE: Final = frozenset({"threshold", "max_messages", "max_tokens", "max_length"})
_SWITCHES: Final = ("when_packed", "keep_goal", "enabled")
MOST_SECONDS: Final = int(threading.TIMEOUT_MAX)
"""No thread can wait for longer."""


def check(ports: Ports, config: CompactionConfig) -> None:
    """Refuse what cannot be done."""
    _check_strategy(ports, config.strategy)
    for name, (least, meaning) in _NUMBERS.items():
        value = getattr(config, name)
        absent = (value is None and name in _MAY_BE_NONE) or (name, value) == ("max_tokens", "model")
        if not absent and (not isinstance(value, int) or isinstance(value, bool) or value < least):
            raise InvalidValue(f"{meaning}, {least} or more, not {value!r:.60}.")
    for name in _SWITCHES:
        if not isinstance(getattr(config, name), bool):
            raise InvalidValue(f"{name} must be True or False, not {getattr(config, name)!r:.60}.")
    _check_seconds(config.timeout)
    if not isinstance(config.store, bool):
        Scope.of(config.store)


def _check_strategy(ports: Ports, strategy: Any) -> None:
    if not isinstance(strategy, str) or not (strategy in STRATEGIES or strategy in ports.strategies):
        known = ", ".join((*STRATEGIES, *sorted(ports.strategies)))
        raise InvalidValue(f"{strategy!r:.60} is not a strategy. Known strategies: {known}.")
    check_id(strategy, "strategy")  # It is noted with every summary that it makes.


def _check_seconds(seconds: Any) -> None:
    if seconds is None:
        return
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    # Written so that what is not a number at all, a float of that name, is refused as well.
    if not is_number or not 0 < seconds <= MOST_SECONDS:
        raise InvalidValue(
            f"timeout must be a number of seconds above 0 and at most {MOST_SECONDS}, not {seconds!r:.60}."
        )
